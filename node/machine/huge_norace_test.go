//go:build !race

package machine

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

func TestTheHeapIsOfHugePages(t *testing.T) {
	// What is allocated after hugeHeap lies in memory for which the kernel was asked for huge pages, but for free pages
	// before that, in which it may begin; and so much is not in use.
	if is := HugePages("/"); is != "madvise" {
		t.Skipf("the kernel gives huge pages to %q, not to who asks", is)
	}
	hugeHeap(64 << 20)
	hugeHeap(64 << 20) // of a second node
	data := make([]byte, 8<<20)
	flags, resident := mapping(t, uintptr(unsafe.Pointer(&data[len(data)/2])))
	if !strings.Contains(flags, " hg") || resident > 32<<20 {
		t.Errorf("the heap's memory has flags%s and %d bytes in use", flags, resident)
	}
}

// mapping has the flags of the mapping that holds an address, and how many bytes of it are in use.
func mapping(t *testing.T, address uintptr) (flags string, resident int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= address && address < to
		}
		if inside {
			if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
				_, _ = fmt.Sscan(rest, &resident)
				resident <<= 10
			}
			if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok {
				return strings.TrimRight(rest, "\n"), resident
			}
		}
	}
	t.Fatalf("no mapping holds %#x", address)
	return "", 0
}
