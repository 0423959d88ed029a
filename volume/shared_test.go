package volume

import (
	"sync"
	"sync/atomic"
	"testing"
)

// This file has what nodes do to each other on one volume.

// another attaches the volume for another node, too.
func (r *rig) another(change func(*Options)) *rig {
	r.Helper()
	x := *r
	x.told = make(chan State, 1000)
	x.o.Changed = func(s State) { x.told <- s }
	x.o.Node = [16]byte{8}
	x.o.Owns = nil
	if change != nil {
		change(&x.o)
	}
	x.attach()
	r.Cleanup(func() {
		if x.v != nil {
			_ = x.v.Close()
		}
	})
	return &x
}

func (r *rig) flush() {
	r.Helper()
	if err := r.v.Flush(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// count is how many of the blocks [from, to) are held.
func (r *rig) count(from, to, size int) (n int) {
	r.Helper()
	for i := from; i < to; i++ {
		if r.held(i, size) {
			n++
		}
	}
	return n
}

// claims is how many of the blocks [from, to) the node says that it has.
func (r *rig) claims(from, to, size int) (n int) {
	for i := from; i < to; i++ {
		if b, _ := r.block(i, size); r.v.Has(b.ID()) {
			n++
		}
	}
	return n
}

// moves are Owns of two nodes: the ranges are the first one's until over is called.
func moves() (first, second func([16]byte, int) bool, over func()) {
	var moved atomic.Bool
	return func([16]byte, int) bool { return !moved.Load() }, func([16]byte, int) bool { return moved.Load() },
		func() { moved.Store(true) }
}

func TestWhatAnotherNodeOverwroteIsNotClaimed(t *testing.T) {
	// The ranges move to another node, which writes all segments anew. Whoever wrote before says that it has what is
	// still there, once it has learned again, and nothing more; its memory has no more either.
	first, second, over := moves()
	r := newRig(t, 4, func(o *Options) { o.Owns = first })
	const size = 500_000
	for i := range 20 {
		r.mustKeep(i, size)
	}
	r.flush()
	over()
	x := r.another(func(o *Options) { o.Owns = second })
	for i := 1000; i < 1060; i++ {
		x.mustKeep(i, size)
	}
	x.flush()
	if err := r.v.Relearn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if claims, held := r.claims(0, 20, size), r.count(0, 20, size); claims != held || held != 0 {
		t.Errorf("%d of 20 are claimed, %d are there", claims, held)
	}
	others := r.claims(1000, 1060, size)
	if held := r.count(1000, 1060, size); others != held || held == 0 || int(r.v.Stats().Blocks) != held {
		t.Errorf("%d of the other node's blocks are claimed, %d are there; %d in the index", others, held, r.v.Stats().Blocks)
	}
}

func TestLearningKeepsHits(t *testing.T) {
	// A block that was hit stays so when its segment is learned again.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	r.close()
	r.attach()
	b, _ := r.block(1, 1000)
	state := func() uint32 { return r.v.index.State(b.ID()) & hit }
	if state() != 0 || !r.held(1, 1000) || state() != hit {
		t.Fatal("a read makes no hit")
	}
	if err := r.v.Relearn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state() != hit {
		t.Error("the hit is forgotten")
	}
}

func TestAReservedSegmentIsLookedAtAgain(t *testing.T) {
	// A node has a segment open and one reserved when the ranges move to another node, which fills them and flushes.
	// The former owner writes to neither any more: what the other one flushed is there.
	first, second, over := moves()
	r := newRig(t, 4, func(o *Options) { o.Owns = first })
	r.mustKeep(0, 1000)
	r.flush()
	over()
	x := r.another(func(o *Options) { o.Owns = second })
	const size = 500_000
	for i := 1000; i < 1012; i++ {
		x.mustKeep(i, size)
	}
	x.flush()
	held := x.count(1000, 1012, size)
	for i := 2000; i < 2020; i++ {
		if err := r.keep(i, size); err == nil || err.Error() != errNoRange.Error() {
			t.Fatalf("block %d of a node that owns nothing: %v", i, err)
		}
	}
	if after := x.count(1000, 1012, size); held != 12 || after != held {
		t.Errorf("of 12 flushed blocks %d are held, and %d after the former owner went on", held, after)
	}
}

func TestAReservedSegmentMayBeBegunMeanwhile(t *testing.T) {
	// Two nodes take the same ranges for theirs. What the second one has flushed in the segment that the first one has
	// reserved stays, though the first one fills its open segment and needs another.
	r := newRig(t, 6, nil)
	r.mustKeep(0, 1000)
	r.flush()
	x := r.another(nil)
	const size = 500_000
	for i := 1000; i < 1006; i++ {
		x.mustKeep(i, size)
	}
	x.flush()
	for i := 2000; i < 2010; i++ {
		r.mustKeep(i, size)
	}
	r.flush()
	if n := x.count(1000, 1006, size); n != 6 {
		t.Errorf("%d of 6 flushed blocks are held", n)
	}
	if n := r.count(2000, 2010, size); n != 10 {
		t.Errorf("%d of 10 flushed blocks are held", n)
	}
}

func TestOnlyTheWriterCloses(t *testing.T) {
	// A node attaches a volume whose open segment another one left. It closes it by an index, which its Close waits for:
	// once Close has returned nil, nothing is written. Who comes later reads that index alone.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	r.flush()
	gone := r.v
	gate, begun := make(chan struct{}), make(chan struct{})
	var closed atomic.Bool
	r.dev.fails(func(op string, _ int64) error {
		if op == "write" {
			if closed.Load() {
				t.Error("a write after Close")
			}
			close(begun)
			<-gate
		}
		return nil
	})
	r.attach()
	<-begun
	var work sync.WaitGroup
	work.Go(func() {
		r.close()
		closed.Store(true)
	})
	close(gate)
	work.Wait()
	r.dev.fails(nil)
	r.attach()
	if l, notes, err := r.v.look(0, r.v.here); err != nil || !l.closed || len(notes) != 1 {
		t.Errorf("%+v, %d notes, %v", l, len(notes), err)
	}
	_ = gone.Close()
}

func TestClosingComesInItsTurn(t *testing.T) {
	// A node learns an open segment of 3,000 small blocks, and fills the volume before the writer comes to close it. The
	// index of those blocks is not written over what was flushed there since.
	r := newRig(t, 2, nil)
	for i := range 3000 {
		r.mustKeep(i, 100)
	}
	r.flush()
	gone := r.v
	gate := make(chan struct{})
	var once sync.Once
	r.dev.fails(func(op string, _ int64) error {
		if op == "write" {
			once.Do(func() { <-gate })
		}
		return nil
	})
	r.attach()
	var work sync.WaitGroup
	const size = 520_000
	for i := 10000; i < 10016; i++ { // into segment 1, then into 0
		work.Go(func() { r.mustKeep(i, size) })
	}
	close(gate)
	work.Wait()
	r.flush()
	if err := r.v.Relearn(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.flush() // behind what learning has asked of the writer
	for n := range uint32(2) {
		l, notes, err := r.v.look(n, r.v.here)
		if err != nil || l.harm != "" || len(notes) == 0 {
			t.Errorf("segment %d: %+v, %d notes, %v", n, l, len(notes), err)
		}
	}
	if held, claims := r.count(10000, 10016, size), r.claims(10000, 10016, size); held != claims || held < 8 {
		t.Errorf("%d of 16 blocks are held, %d claimed", held, claims)
	}
	_ = gone.Close()
}

func TestTheLastRecordsOfARangeThatMoves(t *testing.T) {
	// A node joins, takes over a range and closes the segment that the former owner has open. That one learns of it
	// later, and has written and flushed more blocks meanwhile. It ends without a close then: its blocks are all there.
	var moved, nobody atomic.Bool
	r := newRig(t, 4, func(o *Options) { o.Owns = func([16]byte, int) bool { return !moved.Load() } })
	r.mustKeep(1, 1000)
	r.flush()
	x := r.another(func(o *Options) { o.Owns = func([16]byte, int) bool { return !nobody.Load() } })
	relearn := func(r *rig) {
		if err := r.v.Relearn(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.flush() // behind what learning has asked of the writer
	}
	relearn(x)
	if l, notes, err := x.v.look(0, x.v.here); err != nil || !l.closed || len(notes) != 1 {
		t.Fatalf("%+v, %d notes, %v", l, len(notes), err)
	}
	r.mustKeep(2, 1000)
	r.flush()
	moved.Store(true)
	relearn(r)
	nobody.Store(true) // closes no segment
	later := r.another(func(o *Options) { o.Owns = func([16]byte, int) bool { return false } })
	if n := later.count(1, 3, 1000); n != 2 {
		t.Errorf("%d of 2 flushed blocks are there", n)
	}
}
