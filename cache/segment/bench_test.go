package segment

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// cpu returns the CPU time of the process until now, in microseconds.
func cpu() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

func BenchmarkAppend(b *testing.B) {
	// Blocks of 100 KiB in batches of ten; CPU time is the figure.
	l := open(b, Options{Dir: b.TempDir(), SegmentSize: 16 << 20})
	const batches = 400 // 400 MB, then they are evicted
	data := blockData(1, 100<<10)
	b.SetBytes(100 << 10)
	b.ReportAllocs()
	b.ResetTimer()
	used := 0.0
	id := blockID(1)
	for at := 0; at < b.N; at += batches * 10 {
		before := cpu()
		for i := at; i < min(at+batches*10, b.N); i += 10 {
			var batch [10]Entry
			for j := range batch {
				id.Index = int64(i + j)
				batch[j] = Entry{ID: id, Data: data}
			}
			appendAll(b, l, batch[:]...)
		}
		used += cpu() - before
		b.StopTimer()
		for i := range batches * 10 {
			id.Index = int64(at + i)
			l.Evict(id)
		}
		b.StartTimer()
	}
	b.ReportMetric(used/float64(b.N), "cpu-us/op")
}

func BenchmarkGet(b *testing.B) {
	for _, c := range []struct {
		name             string
		length, off, n   int
		blocks, parallel int
	}{
		{"100KiB", 100 << 10, 0, 100 << 10, 2000, 1},
		{"100KiB-8readers", 100 << 10, 0, 100 << 10, 2000, 4},
		{"16KiB-8readers", 16 << 10, 0, 16 << 10, 8000, 4},
		{"128KiB-of-1MiB", hearth.BlockSize, 640 << 10, 128 << 10, 200, 1},
		{"128KiB-of-1MiB-near", hearth.BlockSize, 64 << 10, 128 << 10, 200, 1},
		{"1MiB", hearth.BlockSize, 0, hearth.BlockSize, 200, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := open(b, Options{Dir: b.TempDir(), SegmentSize: 16 << 20, Pool: hearth.NewPool(256 << 20)})
			ids := make([]hearth.ID, c.blocks)
			for i := range ids {
				ids[i] = blockID(i)
				appendAll(b, l, Entry{ID: ids[i], Data: blockData(i, c.length)})
			}
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			b.SetParallelism(c.parallel)
			var seed atomic.Uint64
			b.ResetTimer()
			before := cpu()
			b.RunParallel(func(pb *testing.PB) {
				r := rand.New(rand.NewPCG(seed.Add(1), 0))
				for pb.Next() {
					v, err := l.Get(context.Background(), ids[r.IntN(c.blocks)], c.length, c.off, c.n)
					if err != nil {
						b.Error(err)
						return
					}
					v.Release()
				}
			})
			b.ReportMetric((cpu()-before)/float64(b.N), "cpu-us/op")
		})
	}
}

func BenchmarkRaw100KiB(b *testing.B) {
	// The cost of the device and of XXH3 alone, for comparison with BenchmarkGet/100KiB.
	l := open(b, Options{Dir: b.TempDir(), SegmentSize: 16 << 20})
	for i := range 2000 {
		appendAll(b, l, Entry{ID: blockID(i), Data: blockData(i, 100<<10)})
	}
	slots := *l.slots.Load()
	const n = 26 * record.PageSize
	b.SetBytes(100 << 10)
	b.ResetTimer()
	before := cpu()
	b.RunParallel(func(pb *testing.PB) {
		r, buf := rand.New(rand.NewPCG(1, 0)), aligned(n)
		for pb.Next() {
			s := slots[r.IntN(len(slots)-1)]
			f, err := s.acquire()
			if err == nil {
				err = f.ReadAt(buf, record.PageSize+int64(r.IntN(150))*n)
				s.release()
			}
			if err != nil {
				b.Error(err)
				return
			}
			xxh3.Hash(buf)
		}
	})
	b.ReportMetric((cpu()-before)/float64(b.N), "cpu-us/op")
}

func BenchmarkEvict(b *testing.B) {
	l := open(b, Options{Dir: b.TempDir(), SegmentSize: 16 << 20})
	data := blockData(1, 100<<10)
	b.ReportAllocs()
	b.ResetTimer()
	used := 0.0
	for at := 0; at < b.N; {
		b.StopTimer()
		n := min(1000, b.N-at)
		id := blockID(1)
		for i := range n {
			id.Index = int64(at + i)
			appendAll(b, l, Entry{ID: id, Data: data})
		}
		before := cpu()
		b.StartTimer()
		for i := range n {
			id.Index = int64(at + i)
			l.Evict(id)
		}
		used += cpu() - before
		at += n
	}
	b.ReportMetric(used/float64(b.N), "cpu-us/op")
}

func BenchmarkOpen(b *testing.B) {
	// Blocks of 1-4 KiB, HEARTH_BLOCKS of them (50,000), opened after Close and after a crash.
	blocks := 50_000
	if n, err := strconv.Atoi(os.Getenv("HEARTH_BLOCKS")); err == nil {
		blocks = n
	}
	for _, end := range []string{"close", "crash"} {
		b.Run(end, func(b *testing.B) {
			dir := b.TempDir()
			o := Options{Dir: dir, SegmentSize: 16 << 20, Pool: hearth.NewPool(256 << 20)}
			l := open(b, o)
			data := blockData(1, 4096)
			r := rand.New(rand.NewPCG(15, 16))
			batch := make([]Entry, 0, 1000)
			for i := range blocks {
				batch = append(batch, Entry{ID: blockID(i), Data: data[:1024+r.IntN(3072)]})
				if len(batch) == cap(batch) || i == blocks-1 {
					appendAll(b, l, batch...)
					batch = batch[:0]
				}
			}
			kill(b, l)
			if end == "close" {
				if err := open(b, o).Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			before := cpu()
			for b.Loop() {
				l := open(b, o)
				s := l.Stats()
				b.ReportMetric(float64(s.OpenRead)/float64(blocks), "bytes-read/block")
				b.ReportMetric(float64(s.Memory)/float64(blocks), "bytes-RAM/block")
				if s.Blocks != int64(blocks) {
					b.Fatalf("%+v", s)
				}
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu()-before)/1e3/float64(b.N), "cpu-ms/op")
		})
	}
}
