package sparse

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

const benchSize = 1 << 30

// benchFile is a whole object of 1 GiB.
func benchFile(b *testing.B) (*fixture, *hearth.Object) {
	x := start(b, Options{})
	o, _ := sample(1, 0)
	o.Size = benchSize
	run := benchRun(b, o)
	for i := int64(0); i < o.Blocks(); i += maxRun {
		if err := x.PutMany(o, i, run); err != nil {
			b.Fatal(err)
		}
	}
	return x, o
}

func benchRun(b *testing.B, o *hearth.Object) (run [][]byte) {
	_, data := sample(2, maxRun*mib)
	for i := range int64(maxRun) {
		run = append(run, blockOf(o, data, i))
	}
	b.ReportAllocs()
	return run
}

func benchGet(b *testing.B, n int, random bool) {
	x, o := benchFile(b)
	b.SetBytes(int64(n))
	b.SetParallelism(4)
	var next atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(uint64(next.Add(1)), 1))
		for pb.Next() {
			at := next.Add(1) * int64(n) % benchSize
			if random {
				at = rng.Int64N(benchSize/int64(n)) * int64(n)
			}
			v, err := x.Get(context.Background(), o.Block(at/mib), int(at%mib), n)
			if err != nil {
				b.Error(err)
				return
			}
			v.Release()
		}
	})
}

func BenchmarkGetSequential1M(b *testing.B) { benchGet(b, mib, false) }
func BenchmarkGetRandom1M(b *testing.B)     { benchGet(b, mib, true) }
func BenchmarkGetRandom128K(b *testing.B)   { benchGet(b, 128<<10, true) }
func BenchmarkGetRandom4K(b *testing.B)     { benchGet(b, 4<<10, true) }

// BenchmarkDeviceRandom128K measures bare direct reads of the device.
func BenchmarkDeviceRandom128K(b *testing.B) { benchDevice(b, 128<<10) }

// BenchmarkDeviceRandom1M measures the same with larger reads.
func BenchmarkDeviceRandom1M(b *testing.B) { benchDevice(b, mib) }

func benchDevice(b *testing.B, n int) {
	x, o := benchFile(b)
	fd, err := unix.Open(x.dataFile(o), unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	b.SetBytes(int64(n))
	b.SetParallelism(4)
	var seed atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(uint64(seed.Add(1)), 1))
		v := x.pool.TryAlloc(n)
		defer v.Release()
		for pb.Next() {
			if _, err := pread(fd, v.Bytes(), rng.Int64N(benchSize/int64(n))*int64(n)); err != nil {
				b.Error(err)
			}
		}
	})
}

func benchPut(b *testing.B, n int64) {
	x := start(b, Options{})
	o, _ := sample(1, 0)
	o.Size = benchSize
	run := benchRun(b, o)
	b.SetBytes(n * mib)
	at := int64(0)
	for b.Loop() {
		if at+n > o.Blocks() {
			b.StopTimer()
			x.EvictObject(o.Version)
			at = 0
			b.StartTimer()
		}
		if err := x.PutMany(o, at, run[:n]); err != nil {
			b.Fatal(err)
		}
		at += n
	}
}

func BenchmarkPut1M(b *testing.B)  { benchPut(b, 1) }
func BenchmarkPut16M(b *testing.B) { benchPut(b, 16) }

// BenchmarkEvictExtent evicts and fills one extent of one block in turn.
func BenchmarkEvictExtent(b *testing.B) {
	x := start(b, Options{})
	o, _ := sample(1, 0)
	o.Size = benchSize
	run := benchRun(b, o)[:1]
	if err := x.PutMany(o, 16, run); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := x.PutMany(o, 0, run); err != nil {
			b.Fatal(err)
		}
		x.EvictExtent(o.Block(0).ID())
	}
}
