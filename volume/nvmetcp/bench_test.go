//go:build !race

package nvmetcp

import (
	"io"
	"net"
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

// plain moves the same bytes over connections without NVMe: 72 bytes there, a header and data back, each goroutine
// waiting for its own.
func plain(b *testing.B, depth, size int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	host, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer host.Close()
	target, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		in, out := make([]byte, depth*72), make([]byte, depth*(24+size))
		have := 0
		for {
			n, err := target.Read(in[have:])
			if err != nil {
				return
			}
			have += n
			whole := have / 72
			if whole == 0 {
				continue
			}
			if _, err := target.Write(out[:whole*(24+size)]); err != nil {
				return
			}
			have = copy(in, in[whole*72:have])
		}
	}()
	var mu sync.Mutex
	done := make(chan struct{}, depth)
	go func() {
		head, p := make([]byte, 24), make([]byte, size)
		for {
			if _, err := io.ReadFull(host, head); err != nil {
				return
			}
			if _, err := io.ReadFull(host, p); err != nil {
				return
			}
			done <- struct{}{}
		}
	}()
	var next atomic.Int64
	var work sync.WaitGroup
	begun := cpu()
	b.SetBytes(int64(size))
	b.ResetTimer()
	for range depth {
		work.Go(func() {
			capsule := make([]byte, 72)
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				mu.Lock()
				_, err := host.Write(capsule)
				mu.Unlock()
				if err != nil {
					b.Error(err)
					return
				}
				<-done
			}
		})
	}
	work.Wait()
	b.ReportMetric(float64(cpu()-begun)/float64(b.N), "cpu-ns/op")
}

func BenchmarkRaw4KDepth16(b *testing.B) { plain(b, 16, 4096) }

func BenchmarkRaw1M(b *testing.B) { plain(b, 2, 1<<20) }
