//go:build !race

package cache

// What is fetched is the same with the race detector, which takes ten times as long; what it may
// find here it finds in the other tests of readers.

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// pattern is a way to read an object, with what it may cost: bytes fetched from
// the bucket per byte read with a cold cache, where the disk keeps blocks and
// where it is full, and requests per MiB fetched where it keeps.
type pattern struct {
	name                 string
	size                 int64
	most, full, requests float64
	run                  func(size int64, read func(off int64, n int))
}

func sequential(n int, share float64) func(int64, func(int64, int)) {
	return func(size int64, read func(int64, int)) {
		for off := int64(0); off < int64(share*float64(size)); off += int64(n) {
			read(off, n)
		}
	}
}

func strided(n int, step int64) func(int64, func(int64, int)) {
	return func(size int64, read func(int64, int)) {
		for off := int64(0); off < size; off += step {
			read(off, n)
		}
	}
}

// shuffled reads one in part of the object's pieces of n bytes, in random order.
func shuffled(n, part int) func(int64, func(int64, int)) {
	return func(size int64, read func(int64, int)) {
		pieces := rand.New(rand.NewPCG(3, 4)).Perm(int(size+int64(n)-1) / n)
		for _, i := range pieces[:len(pieces)/part] {
			read(int64(i)*int64(n), n)
		}
	}
}

func patterns() []pattern {
	return []pattern{
		{"sequential, 1 MiB", 128 * mib, 1, 1.1, 0.3, sequential(mib, 1)},
		{"sequential, 128 KiB", 128 * mib, 1, 1.1, 0.3, sequential(128<<10, 1)},
		{"sequential, 100,000 bytes", 64 * mib, 1, 1.1, 0.4, sequential(100_000, 1)},
		{"sequential, the first quarter", 128 * mib, 2, 2, 0.3, sequential(128<<10, 0.25)},
		{"four streams, 128 KiB", 128 * mib, 1, 1.3, 0.4, func(size int64, read func(int64, int)) {
			for off := int64(0); off < size/4; off += 128 << 10 {
				for s := range int64(4) {
					read(s*size/4+off, 128<<10)
				}
			}
		}},
		{"out of order, 128 KiB by fours", 64 * mib, 1, 1.1, 0.4, func(size int64, read func(int64, int)) {
			for off := int64(0); off < size; off += 512 << 10 {
				for _, i := range []int64{1, 0, 3, 2} {
					read(off+i*128<<10, 128<<10)
				}
			}
		}},
		{"random 128 KiB, one in 64", 256 * mib, 8, 1, 1, shuffled(128<<10, 64)},
		{"random 128 KiB, all", 64 * mib, 1, 1.1, 1, shuffled(128<<10, 1)},
		{"random 1 MiB, one in 4", 256 * mib, 1.1, 1.1, 1, shuffled(mib, 4)},
		{"strided, 128 KiB each 512 KiB", 256 * mib, 4, 1, 1, strided(128<<10, 512<<10)},
		{"strided, 128 KiB each 4 MiB", 256 * mib, 8, 1, 1, strided(128<<10, 4*mib)},
		{"backwards, 128 KiB", 64 * mib, 1, 1, 1, func(size int64, read func(int64, int)) {
			for off := size - 128<<10; off >= 0; off -= 128 << 10 {
				read(off, 128<<10)
			}
		}},
		{"slices of 96 KiB, all of 5 MiB", 5 * mib, 1, 1.5, 1, shuffled(96<<10, 1)},
		{"slices of 96 KiB, one in 20 of 64 MiB", 64 * mib, 12, 1, 1, shuffled(96<<10, 20)},
		{"the first page again and again", 64 * mib, 0.3, 0.3, 1, func(_ int64, read func(int64, int)) {
			for range 1000 {
				read(0, 4096)
			}
		}},
		{"a header and a footer", 64 * mib, 64, 1, 1, func(size int64, read func(int64, int)) {
			read(0, 16<<10)
			read(size-16<<10, 16<<10)
		}},
	}
}

func TestBytesFetchedPerByteRead(t *testing.T) {
	// The figure for each pattern stays below its bound, over a bucket that needs
	// 20 ms for the first byte and 10 ms for each MiB (by a clock that stands still
	// while anybody works).
	t.Logf("%-40s %10s %10s %10s", "pattern", "bytes/byte", "disk full", "GETs/MiB")
	for _, p := range patterns() {
		var kept, full, requests float64
		synctest.Test(t, func(t *testing.T) { kept, requests = p.cost(t, false) })
		synctest.Test(t, func(t *testing.T) { full, _ = p.cost(t, true) })
		t.Logf("%-40s %10.3f %10.3f %10.3f", p.name, kept, full, requests)
		if kept > p.most+0.0005 || full > p.full+0.0005 || requests > p.requests {
			t.Errorf("%s: more than %.2f bytes per byte, %.2f with a full disk, %.2f requests", p.name, p.most, p.full, p.requests)
		}
	}
}

// cost runs a pattern once, cold, and returns bytes fetched per byte read and
// requests per MiB fetched.
func (p pattern) cost(t *testing.T, full bool) (bytes, requests float64) {
	n := newNode(t, 64*mib)
	n.shelf.full.Store(full)
	n.bucket.first, n.bucket.mib = 20*time.Millisecond, 10*time.Millisecond
	o := hearthtest.NewObject("objects/"+p.name, p.size, 1)
	r := NewReader(n.reads, o, ReaderOptions{})
	asked := int64(0)
	buf := make([]byte, mib)
	p.run(p.size, func(off int64, n int) {
		readOne(t, r, buf[:n], off)
		asked += min(int64(n), p.size-off)
	})
	r.working.Wait() // what was asked for ahead counts to the last byte
	r.Close()
	fetched := n.bucket.bytes.Load()
	return float64(fetched) / float64(asked), float64(n.bucket.requests.Load()) / (float64(fetched)/mib + 1)
}
