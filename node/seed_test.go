package node

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// seedDisk is a disk tier in memory.
type seedDisk struct {
	hearth.Store // nil: nobody calls its other methods

	mu     sync.Mutex // guards the rest
	blocks map[hearth.ID]string
	full   bool
}

func (d *seedDisk) Has(id hearth.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.blocks[id]
	return ok
}

func (d *seedDisk) Spare(hearth.Block, time.Time) (room, queue bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.full, true
}

func (d *seedDisk) Put(b hearth.Block, v *hearth.View) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocks[b.ID()] = string(v.Bytes())
	return nil
}

// has is the bytes of an object that the disk has, block by block.
func (d *seedDisk) has(o *hearth.Object) (all string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range o.Blocks() {
		all += d.blocks[o.Block(i).ID()]
	}
	return all
}

// seedDraft is a draft that was published.
type seedDraft struct {
	o    hearth.Object
	data string

	mu     sync.Mutex // guards the rest
	bad    int64      // the block that cannot be read; -1 for none
	gone   error
	closed int
	reads  int
	onRead func(n int) // called before each read, without the lock
}

func (d *seedDraft) Object() (hearth.Object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.o, d.gone
}

func (d *seedDraft) Read(p []byte, off int64) error {
	d.mu.Lock()
	d.reads++
	n, told := d.reads, d.onRead
	d.mu.Unlock()
	if told != nil {
		told(n)
	}
	if off/hearth.BlockSize == d.bad {
		return draft.ErrNoSeed
	}
	copy(p, d.data[off:])
	return nil
}

func (d *seedDraft) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed++
}

// seedOf makes a draft of an object of so many bytes.
func seedOf(key string, size int64) *seedDraft {
	o := hearth.Object{Link: "l", Key: key, ETag: "e", Size: size, Version: hearth.VersionOf("id", key, "e", size)}
	return &seedDraft{o: o, data: strings.Repeat(key+" ", int(size))[:size], bad: -1}
}

// seeded begins to seed onto a disk.
func seeded(t *testing.T, offer func(context.Context, hearth.Block, int) (int64, bool, error), work func(s *seeding, d *seedDisk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &seedDisk{blocks: map[hearth.ID]string{}}
		s := newSeeding(hearth.NewPool(32<<20), d, 100<<20)
		s.offer = offer
		ctx, cancel := context.WithCancel(t.Context())
		zero := func() int64 { return 0 }
		var run sync.WaitGroup
		run.Go(func() { s.run(ctx, warmup.Pressure{Readers: zero, Throttled: zero, Most: func() int { return 8 }}) })
		work(s, d)
		cancel()
		run.Wait()
		if views := s.pool.Stats().Views; views != 0 || s.waiting != 0 || len(s.lent)+len(s.giving) > 0 {
			t.Errorf("left: %d Views, %d bytes", views, s.waiting)
		}
	})
}

func (s *seeding) is(t *testing.T, what string, seeded, dropped int64) {
	t.Helper()
	synctest.Wait()
	if s.seeded.Load() != seeded || s.dropped.Load() != dropped {
		t.Errorf("%s: %d bytes seeded, %d dropped, not %d and %d", what, s.seeded.Load(), s.dropped.Load(), seeded, dropped)
	}
}

func TestWhatWasWrittenIsSeeded(t *testing.T) {
	// A draft's blocks come to the disk of a node that is alone, and then the draft is let go. A block that the draft does not give
	// is not there, nor are those for which the disk has no room. What was removed before its turn is not read.
	seeded(t, nil, func(s *seeding, d *seedDisk) {
		x := seedOf("a", 20<<20+5)
		s.put(&seed{x, x.o.Size})
		s.is(t, "whole", x.o.Size, 0)
		if d.has(&x.o) != x.data || x.closed != 1 {
			t.Errorf("the disk has %d bytes, closed %d times", len(d.has(&x.o)), x.closed)
		}
		y := seedOf("b", 3<<20)
		y.bad = 1
		s.put(&seed{y, y.o.Size})
		s.is(t, "a bad block", x.o.Size+2<<20, 1<<20)
		if d.Has(y.o.Block(1).ID()) || !d.Has(y.o.Block(2).ID()) {
			t.Error("the disk has what the draft did not give, or lacks the rest")
		}
		d.mu.Lock()
		d.full = true
		d.mu.Unlock()
		full, gone := seedOf("c", 5), seedOf("d", 7)
		gone.gone = draft.ErrNoSeed
		s.put(&seed{full, 5})
		s.put(&seed{gone, 7})
		s.is(t, "no room", x.o.Size+2<<20, 1<<20+12)
		if full.reads+gone.reads > 0 || full.closed+gone.closed != 2 {
			t.Errorf("%d and %d reads, %d closed", full.reads, gone.reads, full.closed+gone.closed)
		}
	})
}

func TestSeedsAreBounded(t *testing.T) {
	// What is beyond the bound of bytes is dropped at once, but one draft may be larger than all of it. Room that a writer needs is
	// given: what waits is dropped, and what is being given away ends. At the end nothing is kept from going.
	seeded(t, func(ctx context.Context, _ hearth.Block, _ int) (int64, bool, error) {
		<-ctx.Done()
		return 0, false, context.Cause(ctx)
	}, func(s *seeding, _ *seedDisk) {
		large, over := seedOf("large", 200<<20), seedOf("over", 1)
		s.put(&seed{large, large.o.Size})
		synctest.Wait()
		s.put(&seed{over, 1})
		if s.is(t, "beyond the bound", 0, 1); over.closed != 1 || large.closed != 0 {
			t.Errorf("%d and %d closed", over.closed, large.closed)
		}
		if !s.clear() || large.closed != 1 {
			t.Error("what is being given away keeps its room")
		}
		s.is(t, "cleared", 0, 200<<20+1)
		var all []*seedDraft
		for range 2 * seeders {
			x := seedOf("x", 10<<20)
			s.put(&seed{x, x.o.Size})
			all = append(all, x)
		}
		synctest.Wait()
		if !s.clear() || s.clear() {
			t.Error("nothing was to be cleared, or was left")
		}
		s.is(t, "cleared", 0, 280<<20+1)
		last := seedOf("last", 5)
		s.put(&seed{last, 5})
		for _, x := range append(all, last) {
			if x != last && x.closed != 1 {
				t.Error("a draft was kept")
			}
		}
	})
	s := newSeeding(hearth.NewPool(32<<20), &seedDisk{}, 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	zero := func() int64 { return 0 }
	s.run(ctx, warmup.Pressure{Readers: zero, Throttled: zero, Most: func() int { return 8 }})
	x := seedOf("late", 5)
	if s.put(&seed{x, 5}); x.closed != 1 || s.dropped.Load() != 5 {
		t.Error("a draft was taken after the end")
	}
}

func TestOthersGetWhatTheyOwn(t *testing.T) {
	// In a ring an extent is offered to its owner, who fetches the blocks by Peek as long as that lasts: other versions are not
	// there, and damaged bytes are a miss. The node's own extents go to its disk.
	var s *seeding
	var at local
	x := seedOf("a", 40<<20+5)
	x.bad = 3
	got := map[int64]string{}
	offer := func(ctx context.Context, first hearth.Block, n int) (taken int64, mine bool, err error) {
		if first.Index == hearth.ExtentBlocks {
			return 0, true, nil
		}
		for i := range n {
			b := first.Object.Block(first.Index + int64(i))
			if !at.Has(b.ID()) {
				t.Errorf("block %d is not to be had", b.Index)
			}
			v, err := at.Get(ctx, b, 0, b.Len())
			if err != nil {
				if !errors.Is(err, hearth.ErrMiss) || b.Index != x.bad {
					t.Errorf("block %d: %v", b.Index, err)
				}
				continue
			}
			got[b.Index] = string(v.Bytes())
			taken += int64(v.Len())
			v.Release()
		}
		other := seedOf("b", 5).o
		if _, err := at.Get(ctx, other.Block(0), 0, 5); !errors.Is(err, hearth.ErrMiss) || at.Has(other.Block(0).ID()) {
			t.Errorf("another object: %v", err)
		}
		return taken, false, nil
	}
	seeded(t, offer, func(made *seeding, d *seedDisk) {
		s = made
		at = local{held: nothing{}, seeds: &(&drafts{}).seeds}
		if _, err := at.Get(t.Context(), x.o.Block(0), 0, 5); !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("before anything was seeded: %v", err)
		}
		at.seeds.Store(s)
		s.put(&seed{x, x.o.Size})
		s.is(t, "a ring", x.o.Size-1<<20, 1<<20)
		if d.has(&x.o) != x.data[16<<20:32<<20] {
			t.Errorf("the disk has %d bytes", len(d.has(&x.o)))
		}
		for i := range x.o.Blocks() {
			b := x.o.Block(i)
			if want := x.data[b.Offset() : b.Offset()+int64(b.Len())]; i != x.bad && i/hearth.ExtentBlocks != 1 && got[i] != want {
				t.Errorf("block %d is another", i)
			}
		}
		if _, err := at.Get(t.Context(), x.o.Block(0), 0, 5); !errors.Is(err, hearth.ErrMiss) || at.Has(x.o.Block(0).ID()) {
			t.Errorf("after it was given: %v", err)
		}
	})
}

// nothing is stores that hold nothing.
type nothing struct{}

func (nothing) Get(context.Context, hearth.Block, int, int) (*hearth.View, error) {
	return nil, hearth.ErrMiss
}
func (nothing) Has(hearth.ID) bool { return false }

func TestAPublishedDraftIsReadFromTheCache(t *testing.T) {
	// A node publishes a file of several blocks. Once it is seeded, its readers have all of it without a request, and the bytes are
	// those that were written; status and metrics tell of it. With seed: off the first reader asks the bucket.
	for _, off := range []bool{false, true} {
		_, p, c := outage(t, "immutable")
		c.Links[0].NoSeed = off
		n := start(t, "", c.with)
		text := strings.Repeat("0123456789abcde\n", 3<<16+5)
		d := written(t, n, "a", text, 0)
		o, err := d.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.Release()
		before := p.Stats().Get.Requests // those of the start
		want := int64(len(text))
		if off {
			want = 0
		}
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.draftsLine().Seeded == want }) {
			t.Fatalf("%+v", n.draftsLine())
		}
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { _, there := n.drafts.store.Load().Find(d.Info().Name); return !there }) {
			t.Error("the draft stays")
		}
		var got bytes.Buffer
		for i := range o.Blocks() {
			b := o.Block(i)
			v, err := n.tiers.Reads.Get(t.Context(), b, 0, b.Len())
			if err != nil {
				t.Fatal(err)
			}
			got.Write(v.Bytes())
			v.Release()
		}
		if got.String() != text {
			t.Errorf("read %d bytes of %d", got.Len(), len(text))
		}
		if gets := p.Stats().Get.Requests - before; (gets > 0) != off {
			t.Errorf("seed: off is %v, and the bucket had %d GETs", off, gets)
		}
		if off { // nor is anything taken from others
			if _, err := n.seedFrom(t.Context(), "peer", o.Block(0)); !errors.Is(err, hearth.ErrRefused) {
				t.Error(err)
			}
		}
		if s := n.draftsLine(); s.Unseeded != 0 {
			t.Errorf("%+v", s)
		}
	}
}

func TestSeedsGiveWayToWriters(t *testing.T) {
	// A file that was published waits to be seeded, and takes more than half of the cache disk. A writer that needs the room gets it:
	// the seed is dropped, and the file is in the bucket.
	_, _, c := outage(t, "immutable")
	n := start(t, "", c.with)
	if _, err := n.openDrafts(); err != nil {
		t.Fatal(err)
	}
	s := newSeeding(n.pool, n.disk, 1) // nobody works at it
	n.drafts.seeds.Store(s)
	text := strings.Repeat("0123456789abcde\n", 40<<16)
	first := written(t, n, "first", text, 0)
	if _, err := first.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Release()
	if _, there := n.drafts.store.Load().Find(first.Info().Name); !there || s.waiting != int64(len(text)) {
		t.Fatalf("%d bytes wait", s.waiting)
	}
	second := written(t, n, "second", text, 0)
	defer second.Release()
	if _, there := n.drafts.store.Load().Find(first.Info().Name); there || s.dropped.Load() != int64(len(text)) {
		t.Errorf("the draft stays; %d bytes were dropped", s.dropped.Load())
	}
	if _, err := second.Publish(t.Context()); err != nil {
		t.Error(err)
	}
	s.clear()
}
