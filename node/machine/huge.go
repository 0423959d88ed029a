//go:build !race

package machine

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"golang.org/x/sys/unix"
)

// hugeHeap has the kernel back the next n bytes of Go's heap with huge pages, where it gives them to who asks
// (Ubuntu, many clouds' images). Debian and Red Hat give them to all. Go asks for none. A read of the device, a reply,
// a copy and a look-up then miss the processor's table of pages far less: an epoch from a volume (bench, W7 epoch) took
// 0.7 of the processor time.
//
// Go's heap grows from low addresses to high ones. So an object of n bytes is taken, marked, and given back
// untouched: what is allocated later lies in its place. Where a future Go does otherwise, nothing is gained and
// nothing lost. A heap that has such a size already, as with another node in the process, is left alone: Go would
// clear such an object.
func hugeHeap(n int64) {
	mapped := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	if metrics.Read(mapped); HugePages("/") != "madvise" || mapped[0].Value.Uint64() >= uint64(n) || !fits(n) {
		return
	}
	stretch := make([]byte, n)
	_ = unix.Madvise(stretch, unix.MADV_HUGEPAGE) // without them all works, only slower
	runtime.KeepAlive(stretch)
	debug.FreeOSMemory()
}

// fits reports whether the process may have n more bytes of addresses. Go would end the process otherwise.
func fits(n int64) bool {
	probe, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return false
	}
	return unix.Munmap(probe) == nil
}
