package hearth

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"unsafe"
)

func TestSizeClassesHoldWhatTheyPromise(t *testing.T) {
	// Every size fits its class, the class below is too small, and a buffer's
	// capacity finds its own class again.
	for n := 1; n <= BlockSize+64<<10; n += 1 + n/300 {
		c := classOf(n)
		if classSize(c) < n || c > 0 && classSize(c-1) >= n {
			t.Fatalf("class %d of %d bytes for %d bytes", c, classSize(c), n)
		}
		if classOf(classSize(c)) != c {
			t.Fatalf("class %d is not its own class", c)
		}
	}
}

func TestViewsAreAlignedForDirectReads(t *testing.T) {
	// O_DIRECT refuses memory that is not aligned to the device's block.
	p := NewPool(64 << 20)
	for n := 4096; n <= BlockSize+64<<10; n += 4096 {
		v := p.TryAlloc(n)
		if uintptr(unsafe.Pointer(&v.Bytes()[0]))%4096 != 0 {
			t.Fatalf("%d bytes are not aligned", n)
		}
		v.Release()
	}
}

func TestReleaseTwicePanics(t *testing.T) {
	// The second release would let two owners share recycled memory.
	defer func() {
		if recover() == nil {
			t.Fatal("the second release went unnoticed")
		}
	}()
	v := NewPool(MinRAM).TryAlloc(100)
	v.Release()
	v.Release()
}

func TestSliceKeepsItsMemory(t *testing.T) {
	// The owner lets go while a slice is lent out: the bytes stay, and nothing is
	// free before the slice goes too.
	p := NewPool(MinRAM)
	v := p.TryAlloc(8192)
	copy(v.Bytes()[4000:], "lent")
	s := v.Slice(4000, 4)
	inner := s.Slice(1, 2)
	v.Release()
	s.Release()
	if !bytes.Equal(inner.Bytes(), []byte("en")) || p.Stats().Views != 1 {
		t.Fatalf("slice reads %q, %d views alive", inner.Bytes(), p.Stats().Views)
	}
	inner.Release()
	if got := p.Stats(); got.Views != 0 || got.Idle != got.Used {
		t.Fatalf("after the last release: %+v", got)
	}
	if v.TryRetain() {
		t.Fatal("a dead view was retained")
	}
}

func TestSumsAreOfAllOfTheBytes(t *testing.T) {
	// What is all of a View shares its sums, whoever notes them first; a part has its own.
	v := NewView(make([]byte, 2*PieceSize))
	part, whole := v.Slice(0, PieceSize), v.Slice(0, 2*PieceSize)
	all, first := []uint64{1, 2}, []uint64{1}
	whole.Sums().Store(&all)
	part.Sums().Store(&first)
	again := v.Slice(0, 2*PieceSize)
	if v.Sums().Load() != &all || again.Sums().Load() != &all || part.Sums().Load() != &first {
		t.Errorf("the View has %v, all of it %v, its part %v", v.Sums().Load(), again.Sums().Load(), part.Sums().Load())
	}
	for _, s := range []*View{part, whole, again, v} {
		s.Release()
	}
}

func TestAllocWaitsWithinTheBudget(t *testing.T) {
	// The budget is spent; a reader waits, gets memory when some is released, and
	// one whose context ends leaves the queue without taking any.
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(MinRAM)
		var held []*View
		for v := p.TryAlloc(BlockSize); v != nil; v = p.TryAlloc(BlockSize) {
			held = append(held, v)
		}
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error)
		go func() { _, err := p.Alloc(ctx, BlockSize); gone <- err }()
		synctest.Wait()
		got := make(chan *View)
		go func() { v, _ := p.Alloc(context.Background(), BlockSize); got <- v }()
		synctest.Wait()
		if p.TryAlloc(512) != nil {
			t.Fatal("somebody passed those who wait")
		}
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		held[0].Release()
		v := <-got
		if s := p.Stats(); s.Used > s.Budget || s.Views != int64(len(held)) {
			t.Fatalf("stats %+v with %d views", s, len(held))
		}
		v.Release()
		for _, v := range held[1:] {
			v.Release()
		}
		if s := p.Stats(); s.Views != 0 || s.Used != s.Idle {
			t.Fatalf("leaked: %+v", s)
		}
	})
}

func TestPoolUnderLoadStaysWithinBudget(t *testing.T) {
	// Sixteen readers of mixed sizes share the smallest budget: all are served,
	// none ever sees the counter above it.
	p := NewPool(MinRAM)
	var wg sync.WaitGroup
	for seed := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			for range 500 {
				v, err := p.Alloc(context.Background(), 1+rng.IntN(BlockSize))
				if err != nil {
					t.Error(err)
					return
				}
				v.Bytes()[0] = byte(seed)
				if s := p.Stats(); s.Used > s.Budget {
					t.Errorf("used %d of %d", s.Used, s.Budget)
				}
				v.Release()
			}
		})
	}
	wg.Wait()
	if s := p.Stats(); s.Views != 0 || s.Used != s.Idle {
		t.Fatalf("leaked: %+v", s)
	}
}

func TestVersionTellsFieldsApart(t *testing.T) {
	// Bytes that move from one field to the next make another version.
	a := VersionOf("s3://b", "ab", "c", 1)
	b := VersionOf("s3://b", "a", "bc", 1)
	c := VersionOf("s3://b", "ab", "c", 2)
	if a == b || a == c {
		t.Fatal("two objects share a version")
	}
}

func BenchmarkPoolAlloc(b *testing.B) {
	p := NewPool(64 << 20)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			v, _ := p.Alloc(context.Background(), 100<<10)
			v.Release()
		}
	})
}
