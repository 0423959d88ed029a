//go:build !race

package machine

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"golang.org/x/sys/unix"
)

// hugeHeap asks the kernel to back the next n bytes of Go's heap with huge pages. It does so only in the mode madvise
// (Ubuntu, many cloud images): in the mode always (Debian, Red Hat) every process has them, and Go never asks. Huge pages
// mean fewer TLB misses in device reads, copies, replies and look-ups: an epoch from a volume (bench, W7 epoch) took 0.7
// of the processor time.
//
// Go's heap grows from low addresses to high ones. So hugeHeap allocates n bytes, marks them, and frees them untouched:
// later allocations reuse these addresses. If a future Go places them elsewhere, the gain is lost and nothing breaks. If
// n bytes are mapped already, as with another node in the process, it does nothing: Go would clear reused memory.
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
