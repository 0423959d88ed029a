package wire

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// BenchmarkFill is the cost of a Fill whose bytes the owner has in RAM. Both sides are in
// one process, with 32 Fills in flight over loopback.
func BenchmarkFill(b *testing.B) {
	for _, n := range []int{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) { benchmarkFill(b, loopback, n) })
		b.Run(fmt.Sprintf("%dKiB-TLS", n>>10), func(b *testing.B) { benchmarkFill(b, encrypted, n) })
	}
}

func benchmarkFill(b *testing.B, over transport, n int) {
	pool := hearth.NewPool(512 << 20)
	held, _ := pool.Alloc(b.Context(), hearth.BlockSize)
	defer held.Release()
	get := func(_ context.Context, _ hearth.Block, off, n int) (*hearth.View, error) {
		return held.Slice(off, n), nil
	}
	ready := func(_ hearth.Block, off, n int) *hearth.View { return held.Slice(off, n) }
	s := NewServer(ServerOptions{Handler: Handler{Ready: ready, Fill: get}, Pool: pool})
	dial, stop := over(b, func(conn net.Conn) { _ = s.Serve(context.Background(), conn, "asker") })
	defer stop()
	p := NewPeer("owner", PeerOptions{Pool: pool, Silence: time.Minute, Dial: dial})
	defer p.Close()
	block := object("data").Block(0)
	fill := func() bool {
		v, err := p.Fill(b.Context(), block, 0, n)
		if err != nil {
			b.Error(err)
			return false
		}
		v.Release()
		return true
	}
	fill()
	b.SetBytes(int64(n))
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var readers sync.WaitGroup
	for range 32 {
		readers.Go(func() {
			for left.Add(-1) >= 0 && fill() {
			}
		})
	}
	readers.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}
