package hearth

import (
	"context"
	"testing"
	"testing/synctest"
)

// fakeTier holds Views until it is asked for memory.
type fakeTier struct {
	held  []*View
	asked int
}

func (f *fakeTier) give(n int64, _ bool) bool {
	f.asked++
	gave := false
	for n > 0 && len(f.held) > 0 {
		gave = true
		n -= int64(f.held[0].Len())
		f.held[0].Release()
		f.held = f.held[1:]
	}
	return gave
}

func fillPool(p *Pool) *fakeTier {
	f := &fakeTier{}
	for v := p.TryAlloc(BlockSize); v != nil; v = p.TryAlloc(BlockSize) {
		f.held = append(f.held, v)
	}
	return f
}

func TestAnIndexGoesBeforeThoseWhoWait(t *testing.T) {
	// The tier in memory has all of it, and readers wait; what it lets go of for an index
	// goes to the index, and then it lets go of what they wait for.
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(MinRAM)
		f := fillPool(p)
		got := make(chan *View)
		for range 4 {
			go func() { v, _ := p.Alloc(context.Background(), BlockSize); got <- v }()
		}
		synctest.Wait()
		end := p.Gives(f.give)
		if !p.Claim(6<<20) || !p.Claim(1<<20) {
			t.Fatalf("an index has no memory while a tier holds %d blocks", len(f.held))
		}
		for range 4 { // or they would wait for what nobody gives any more
			(<-got).Release()
		}
		p.Unclaim(7 << 20)
		end()
		asked := f.asked
		for v := p.TryAlloc(BlockSize); v != nil; v = p.TryAlloc(BlockSize) {
			f.held = append(f.held, v)
		}
		if p.Claim(1<<20) || f.asked != asked {
			t.Error("a tier that has ended was asked for memory")
		}
		f.give(1<<40, true)
		if s := p.Stats(); s.Used != s.Idle {
			t.Errorf("leaked: %+v", s)
		}
	})
}

func TestIndexesLeaveReadersTheirMemory(t *testing.T) {
	// An index is larger than the budget: what it cannot have in any case costs the tier in
	// memory nothing, and with all that it can have, readers go on.
	p := NewPool(MinRAM)
	f := fillPool(p)
	p.Gives(f.give)
	if p.Claim(MinRAM-claimLeft+1) || f.asked > 0 {
		t.Fatalf("the tier was asked %d times", f.asked)
	}
	n := int64(0)
	for p.Claim(1 << 20) {
		n += 1 << 20
	}
	if n != MinRAM-claimLeft {
		t.Errorf("indexes have %d bytes, want %d", n, MinRAM-claimLeft)
	}
	f.give(1<<40, true)
	for range claimLeft / BlockSize {
		v := p.TryAlloc(BlockSize)
		if v == nil {
			t.Fatal("readers have no memory")
		}
		defer v.Release()
	}
	p.Unclaim(n)
}

func TestTheTierGivesWayToReaders(t *testing.T) {
	// An index takes what was free between a reader's miss and its Alloc. Nobody else
	// reads, so nobody else would have the tier give way.
	p := NewPool(MinRAM)
	f := fillPool(p)
	p.Gives(f.give)
	v, err := p.Alloc(t.Context(), BlockSize)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	f.give(1<<40, true)
}

func TestAnIndexInVainStrandsNobody(t *testing.T) {
	// Nobody has memory to give: the index is refused, and who waits has what comes next.
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(MinRAM)
		f := fillPool(p)
		got := make(chan *View)
		go func() { v, _ := p.Alloc(context.Background(), BlockSize); got <- v }()
		synctest.Wait()
		if p.Claim(2 << 20) {
			t.Fatal("memory from nowhere")
		}
		f.give(1, true)
		(<-got).Release()
		f.give(1<<40, true)
	})
}
