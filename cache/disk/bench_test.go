package disk

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// BenchmarkGet reads small blocks, by the Store and by the segments below it: the
// difference is what this package costs.
func BenchmarkGet(b *testing.B) {
	pool := hearth.NewPool(256 << 20)
	s, err := Open(Options{Pool: pool, Dirs: []DirOptions{{Path: b.TempDir(), Budget: 1 << 30, Floor: -1}}})
	if err != nil {
		b.Fatal(err)
	}
	defer hearthtest.Close(b, s)
	objects := make([]*hearth.Object, 500)
	for i := range objects {
		objects[i] = small(i, 4000)
		fillBench(b, s, pool, objects[i].Block(0))
	}
	if err := s.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	run := func(src func(i int) (*hearth.View, error)) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				v, err := src(i)
				if err != nil {
					b.Fatal(err)
				}
				v.Release()
			}
		}
	}
	b.Run("store", run(func(i int) (*hearth.View, error) {
		return s.Get(b.Context(), objects[i%len(objects)].Block(0), 0, 4000)
	}))
	packed := s.dirs[0].volume.Load().packed
	b.Run("segments", run(func(i int) (*hearth.View, error) {
		return packed.get(b.Context(), objects[i%len(objects)].Block(0), 0, 4000)
	}))
	b.Run("miss", func(b *testing.B) {
		o := small(-1, 4000)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Get(b.Context(), o.Block(0), 0, 4000); !errors.Is(err, hearth.ErrMiss) {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPut writes blocks of a size as fast as the queue takes them.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{2000, 100_000, hearth.BlockSize} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			pool := hearth.NewPool(256 << 20)
			s, err := Open(Options{Pool: pool, Dirs: []DirOptions{{Path: b.TempDir(), Budget: 1 << 40, Floor: -1}}})
			if err != nil {
				b.Fatal(err)
			}
			defer hearthtest.Close(b, s)
			b.SetBytes(int64(size))
			v, err := pool.Alloc(b.Context(), size)
			if err != nil {
				b.Fatal(err)
			}
			defer v.Release()
			hearthtest.Fill(v.Bytes(), "bench", 0, 1)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				o := hearth.Object{Key: "k", ETag: "e", Size: int64(size)}
				o.Version[0], o.Version[1], o.Version[2], o.Version[3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
				putBench(b, s, o.Block(0), v)
			}
			if err := s.drain(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func fillBench(b *testing.B, s *Store, pool *hearth.Pool, block hearth.Block) {
	v := hearthtest.View(b, pool, block, 1)
	defer v.Release()
	putBench(b, s, block, v)
}

func putBench(b *testing.B, s *Store, block hearth.Block, v *hearth.View) {
	err := s.Put(block, v)
	for errors.Is(err, errFull) {
		if err := s.dirs[0].queue.Wait(b.Context(), queueCost(v)); err != nil {
			b.Fatal(err)
		}
		err = s.Put(block, v)
	}
	if err != nil {
		b.Fatal(err)
	}
}
