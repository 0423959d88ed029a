package cache

import (
	"context"
	"errors"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

const mib = 1 << 20

func TestReadAheadIsOffWhereItHelpsNobody(t *testing.T) {
	// Nothing is read ahead of a reader whose source keeps nothing, of one told not
	// to, of small objects, of what lies on this node already, nor while memory is short.
	n := newNode(t, 64*mib)
	o, asked := object(64*mib), n.bucket
	cases := map[string]func() (*Reader, func()){
		"keeps nothing": func() (*Reader, func()) { return NewReader(Through(nil, n.bucket, Always), o, ReaderOptions{}), nil },
		"told not to":   func() (*Reader, func()) { return NewReader(n.reads, o, ReaderOptions{Ahead: -1}), nil },
		"held":          func() (*Reader, func()) { return NewReader(n.reads, o, ReaderOptions{}), nil },
		"memory short": func() (*Reader, func()) {
			n, o := newNode(t, 64*mib), hearthtest.NewObject("another", 8*mib, 1)
			left := int64(0)
			for n.ram.spare() >= aheadSpare {
				n.pool.Reserve(64 << 10)
				left += 64 << 10
			}
			asked = n.bucket
			return NewReader(n.reads, o, ReaderOptions{Pool: n.pool}), func() { n.pool.Unreserve(left) }
		},
	}
	for _, name := range []string{"keeps nothing", "told not to", "held", "memory short"} {
		r, done := cases[name]()
		before := asked.requests.Load()
		size := int64(8 * mib)
		if name == "held" {
			size /= 2
		}
		readAll(t, r, size, 128<<10)
		r.working.Wait()
		switch got := asked.requests.Load() - before; {
		case name == "held" && got != 0, name != "held" && name != "keeps nothing" && got != 8, name == "keeps nothing" && got != 64:
			t.Errorf("%s: %d requests", name, got)
		}
		r.Close()
		if done != nil {
			done()
		}
	}
}

func TestWhatIsLentIsReadAhead(t *testing.T) {
	// Who takes Views block by block gets the object's bytes, and asks the bucket for as few
	// runs as who has them copied.
	n := newNode(t, 64*mib)
	o := object(32*mib + 5)
	r := NewReader(n.reads, o, ReaderOptions{})
	t.Cleanup(r.Close)
	for i := range o.Blocks() {
		b := o.Block(i)
		v, err := r.ViewAt(t.Context(), b.Offset(), b.Len())
		if err == nil && v.Len() != b.Len() {
			t.Errorf("block %d: %d bytes", i, v.Len())
		}
		check(t, v, err, b, 0) // lets go of it
		r.working.Wait()       // who overtakes the reading ahead, as on a busy machine, asks by itself
	}
	if got := n.bucket.requests.Load(); got > 12 {
		t.Errorf("%d requests for %d blocks", got, o.Blocks())
	}
	n.bucket.fail.Store(&hearth.ErrStale)
	other := NewReader(n.reads, hearthtest.NewObject("objects/other", 5*mib, 1), ReaderOptions{})
	t.Cleanup(other.Close)
	if v, err := other.ViewAt(t.Context(), mib, 10); v != nil || !errors.Is(err, hearth.ErrStale) {
		t.Errorf("%v, %v", v, err)
	}
}

func TestCloseEndsReadAhead(t *testing.T) {
	// The bucket hangs, a run is under way; Close returns all the same, and later
	// reads start no other.
	n := newNode(t, 64*mib)
	o := object(64 * mib)
	r := NewReader(n.reads, o, ReaderOptions{})
	started := make(chan struct{}, 100)
	readAll(t, r, 3*mib, 128<<10)
	r.working.Wait()
	n.bucket.gate = make(chan struct{})
	n.bucket.before = func(hearth.Block) { started <- struct{}{} }
	r.mu.Lock()
	r.runs++
	r.working.Add(1)
	r.mu.Unlock()
	go r.bring(ask{first: 40, n: 10})
	<-started
	r.Close()
	close(n.bucket.gate)
	before := n.bucket.requests.Load()
	readAll(t, r, 8*mib, 128<<10)
	if got := n.bucket.requests.Load() - before; got > 8 {
		t.Errorf("%d requests", got)
	}
}

func TestAFailingRunEndsTrust(t *testing.T) {
	// The bucket fails while blocks are asked for ahead: the reader is told by its own
	// read, and the streams start anew.
	n := newNode(t, 64*mib)
	r := NewReader(n.reads, object(64*mib), ReaderOptions{})
	defer r.Close()
	readAll(t, r, 4*mib, 128<<10)
	r.working.Wait()
	n.bucket.fail.Store(&errBroken)
	r.mu.Lock()
	r.runs++
	r.working.Add(1)
	r.mu.Unlock()
	r.bring(ask{first: 40, n: 10})
	if r.runs != 0 || r.streams.all[0].used != 0 {
		t.Errorf("%d runs, %+v", r.runs, r.streams.all[0])
	}
}

func TestADiskHitPaysForNothing(t *testing.T) {
	// A small object that lies on the disk is read through all tiers: one look-up
	// there, and no allocation but those of the store itself.
	n := newNode(t, 64*mib)
	b := hearthtest.NewObject("objects/small", 100_000, 1).Block(0)
	hearthtest.PutHeld(t, n.pool, n.shelf, b, 1)
	allocations := func(src hearth.Getter) float64 {
		return testing.AllocsPerRun(500, func() {
			if v, err := src.Get(t.Context(), b, 0, 4096); err == nil {
				v.Release()
			}
		})
	}
	alone := allocations(n.shelf)
	before := n.shelf.gets.Load()
	for range 10 {
		v, err := n.reads.Get(t.Context(), b, 0, 100)
		check(t, v, err, b, 0)
	}
	if got := n.shelf.gets.Load() - before; got != 10 {
		t.Errorf("%d look-ups for 10 reads", got)
	}
	// The race detector makes sync.Pool, in ristretto, forget one in four.
	if got := allocations(n.own) - alone; got > 0.9 {
		t.Errorf("own: %.1f allocations more", got)
	}
	if got := allocations(n.reads) - alone; got > 0.9 {
		t.Errorf("reads: %.1f allocations more", got)
	}
}

// BenchmarkSmallObjectOnDisk is a read of a small object that lies on the disk
// tier, through all tiers: the machinery's own cost.
func BenchmarkSmallObjectOnDisk(b *testing.B) {
	n := newNode(b, 64*mib)
	objects := make([]*hearth.Object, 4096)
	for i := range objects {
		objects[i] = hearthtest.NewObject("objects/"+string(rune('a'+i)), 100_000, 1)
		v := hearthtest.View(b, n.pool, objects[i].Block(0), 1)
		_ = n.shelf.Put(objects[i].Block(0), v) // a shelf takes everything
		v.Release()
	}
	ctx := context.Background()
	for name, src := range map[string]hearth.Getter{"store alone": n.shelf, "all tiers": n.reads} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				v, err := src.Get(ctx, objects[i%4096].Block(0), 0, 16<<10)
				if err != nil {
					b.Fatal(err)
				}
				v.Release()
				i++
			}
		})
	}
}

// BenchmarkSequentialOnDisk is a 128 KiB read of a large object that lies on the
// disk tier, by a Reader.
func BenchmarkSequentialOnDisk(b *testing.B) {
	n := newNode(b, 64*mib)
	o := object(64 * mib)
	for i := range o.Blocks() {
		hearthtest.PutHeld(b, n.pool, n.shelf, o.Block(i), 1)
	}
	r := NewReader(n.reads, o, ReaderOptions{})
	defer r.Close()
	p, ctx := make([]byte, 128<<10), context.Background()
	b.ReportAllocs()
	b.SetBytes(128 << 10)
	i := int64(0)
	for b.Loop() {
		if _, err := r.ReadAt(ctx, p, i%(o.Size/(128<<10))*(128<<10)); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
