//go:build !race

package nvmetcp

// These benchmarks are for profiles. What is compared with plain TCP is W7 of `make bench`.

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hearthfs/hearth/internal/fakenvmet"
)

// cpu is the time of this process on processors, in nanoseconds: of both sides.
func cpu() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it fails for other arguments only
	return u.Utime.Nano() + u.Stime.Nano()
}

// readers has so many goroutines read the namespace in turn.
func readers(b *testing.B, queues, depth, size int) {
	n := openFake(b, startFake(b, fakenvmet.Options{Success: true}), Options{Queues: queues, Depth: depth})
	var next atomic.Int64
	var work sync.WaitGroup
	begun := cpu()
	b.SetBytes(int64(size))
	b.ResetTimer()
	for range queues * depth {
		work.Go(func() {
			p := make([]byte, size)
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, err := n.ReadAt(p, i*7919%(1<<12)*int64(size)%(60<<20)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	b.ReportMetric(float64(cpu()-begun)/float64(b.N), "cpu-ns/op")
}

func BenchmarkRead4KDepth16(b *testing.B) { readers(b, 1, 16, 4096) }

func BenchmarkRead4KTwoQueuesOf32(b *testing.B) { readers(b, 2, 32, 4096) }

func BenchmarkRead1M(b *testing.B) { readers(b, 1, 2, 1<<20) }
