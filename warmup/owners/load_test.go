package owners

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
	"github.com/hearthfs/hearth/warmup"
)

func TestARunIsOneRequest(t *testing.T) {
	// An owner lacks all of an extent but a block in the middle. It asks its origin for
	// what lies before and behind that, one request each, and keeps each block.
	r := newRig(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	o := r.largeOf(x)
	other.disk.set(func(d *fakeDisk) { d.blocks[o.Block(5).ID()] = true })
	var came []int64
	x.owners.Load(t.Context(), o.Block(0), hearth.ExtentBlocks, func(b hearth.Block, err error) {
		if came = append(came, b.Index); err != nil {
			t.Error(err)
		}
	})
	if len(came) != hearth.ExtentBlocks || !slices.IsSorted(came) {
		t.Errorf("blocks %v", came)
	}
	if gets, bytes := r.origin.asked(); gets != 2 || bytes != 15<<20 || other.disk.count() != 16 || x.disk.count() != 0 {
		t.Errorf("%d requests for %d bytes, %d blocks are there", gets, bytes, other.disk.count())
	}
}

// largeOf is an object of an extent and more. Another node owns its first extent.
func (r *rig) largeOf(x *fakeNode) *hearth.Object {
	for i := 0; ; i++ {
		if o := r.origin.put("large"+string(rune('a'+i)), 20<<20); !x.owners.Here(o.Block(0)) {
			return o
		}
	}
}

func TestOneBlockOfARunIsNotKept(t *testing.T) {
	// An owner declines one block of a run. That block is not kept, and those behind it
	// are.
	r := newRig(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	o := r.largeOf(x)
	other.disk.set(func(d *fakeDisk) { d.declines = o.Block(3).ID() })
	kept, not := 0, []int64{}
	x.owners.Load(t.Context(), o.Block(0), 8, func(b hearth.Block, err error) {
		var why hearth.NotKept
		switch {
		case err == nil:
			kept++
		case errors.As(err, &why) && why == "at node name-n1: declined":
			not = append(not, b.Index)
		default:
			t.Error(err)
		}
	})
	if kept != 7 || !slices.Equal(not, []int64{3}) || other.disk.count() != 7 {
		t.Errorf("%d blocks are kept, %v are not, %d are there", kept, not, other.disk.count())
	}
}

func TestOneExtentIsNotToldOfAnother(t *testing.T) {
	// Two extents of a file go to their owner in one frame. It declines a block of the
	// first extent, and keeps all of the second.
	r := newRig(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	o := r.largeOf(x)
	for x.owners.Here(o.Block(hearth.ExtentBlocks)) {
		o = r.origin.put(o.Key+"-", 20<<20)
		for x.owners.Here(o.Block(0)) {
			o = r.origin.put(o.Key+"-", 20<<20)
		}
	}
	other.disk.set(func(d *fakeDisk) { d.declines = o.Block(13).ID() })
	held := &line{frames: mostFrames} // until both wait
	x.owners.mu.Lock()
	x.owners.lines[other.id] = held
	x.owners.mu.Unlock()
	var work sync.WaitGroup
	var kept, not [2]int
	for i, first := range []int64{12, hearth.ExtentBlocks} {
		work.Go(func() {
			x.owners.Load(t.Context(), o.Block(first), 4, func(_ hearth.Block, err error) {
				if err == nil {
					kept[i]++
				} else {
					not[i]++
				}
			})
		})
		if !hearthtest.Eventually(t.Context(), 30*time.Second, func() bool {
			x.owners.mu.Lock()
			defer x.owners.mu.Unlock()
			return len(held.queue) > i
		}) {
			t.Fatal("nobody waits")
		}
	}
	x.owners.mu.Lock()
	held.frames = 0
	x.owners.sendLocked(other.id, held)
	x.owners.mu.Unlock()
	work.Wait()
	if kept != [2]int{3, 4} || not != [2]int{1, 0} || other.disk.count() != 7 {
		t.Errorf("kept %v, not %v, %d are there", kept, not, other.disk.count())
	}
}

func TestAnOwnerDiesInARun(t *testing.T) {
	// An owner has kept a part of a run when it ends, and this node is the next rank. The
	// rest is this node's own, and nothing is counted twice.
	p := &partly{kept: 5}
	r := newRig(t, 1)
	o := New(Options{Router: ringOf(p), Names: nameless, Disk: r.nodes[0].disk})
	t.Cleanup(o.Close)
	x := &hearth.Object{Link: "l", Key: "k", ETag: "e", Size: 20 << 20, Version: [16]byte{1}}
	var came []int64
	if o.Load(t.Context(), x.Block(0), 16, func(b hearth.Block, err error) {
		if came = append(came, b.Index); err != nil {
			t.Error(err)
		}
	}) || !slices.Equal(came, []int64{0, 1, 2, 3, 4}) {
		t.Errorf("blocks %v", came)
	}
	if n := o.Strays(); n != 11<<20 {
		t.Errorf("%d bytes went past the owner", n)
	}
	stored := r.origin.put("large", 20<<20)
	e := r.engineOf(r.nodes[0], o)
	v := r.over(e, r.start(e, warmup.Request{}))
	if v.State != warmup.Partly || v.Counters.Sum().Bytes != stored.Size { // what "it" kept nobody holds
		t.Errorf("%s: %+v", v.State, v.Counters)
	}
	if _, asked := r.origin.asked(); asked != 11<<20 || v.Counters.NotKept.Bytes != 9<<20 {
		t.Errorf("%d bytes were asked for, %+v", asked, v.Counters)
	}
}

// partly keeps the first blocks that it is asked for, and is down after that.
type partly struct {
	route.Peer // nil: nobody calls its other methods

	kept int
}

func (p *partly) Many(_ context.Context, _ wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	for i := range wants {
		if i < p.kept {
			each(i, nil, nil)
		} else {
			each(i, nil, wire.ErrDown)
		}
	}
}

func (p *partly) Call(context.Context, uint16, *hearth.View) (*hearth.View, error) {
	return nil, wire.ErrDown
}

// fakePeer answers when it is told to.
type fakePeer struct {
	route.Peer // nil: nobody calls its other methods

	mu     sync.Mutex // guards frames
	frames [][]wire.Want
	answer chan error // one for each frame
	cut    atomic.Int64
}

func (p *fakePeer) Many(ctx context.Context, _ wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	p.mu.Lock()
	p.frames = append(p.frames, wants)
	p.mu.Unlock()
	var err error
	select {
	case err = <-p.answer:
	case <-ctx.Done():
		p.cut.Add(1)
		err = context.Cause(ctx)
	}
	for i := range wants {
		each(i, nil, err)
	}
}

func (p *fakePeer) Call(context.Context, uint16, *hearth.View) (*hearth.View, error) {
	return nil, hearth.ErrRefused
}

// ringOf is a node that owns next to nothing, beside a peer that owns the rest.
func ringOf(p route.Peer) *route.Router {
	where, err := place.New([]place.Node{{ID: "it", Weight: 1 << 62}, {ID: "me", Weight: 1}})
	if err != nil {
		panic(err)
	}
	r := route.New("me")
	r.Set(route.Table{Map: where, Peers: map[string]route.Peer{"it": p}})
	return r
}

func nameless() map[string]string { return nil }

func small(i int) hearth.Block {
	o := &hearth.Object{Link: "l", Key: "k", ETag: "e", Size: int64(i) + 1, Version: [16]byte{byte(i), byte(i >> 8), 1}}
	return o.Block(0)
}

func TestWhatWaitsGoesTogether(t *testing.T) {
	// Many small objects are wanted while an owner answers none. As many frames are sent
	// as allowed, and what comes then shares one frame. A frame ends when the last caller
	// leaves it.
	synctest.Test(t, func(t *testing.T) {
		p := &fakePeer{answer: make(chan error)}
		o := New(Options{Router: ringOf(p), Names: nameless, Disk: &fakeDisk{}})
		defer o.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		load := func(ctx context.Context, i int, want error) {
			work.Go(func() {
				o.Load(ctx, small(i), 1, func(_ hearth.Block, err error) {
					if !errors.Is(err, want) {
						t.Errorf("block %d: %v", i, err)
					}
				})
			})
			synctest.Wait()
		}
		load(ctx, 0, context.Canceled)
		for i := range mostFrames - 1 {
			load(t.Context(), 1+i, nil)
		}
		for i := range 40 {
			load(t.Context(), 100+i, nil)
		}
		if len(p.frames) != mostFrames {
			t.Errorf("%d frames", len(p.frames))
		}
		cancel()
		synctest.Wait()
		if last := p.frames[len(p.frames)-1]; p.cut.Load() != 1 || len(p.frames) != mostFrames+1 || len(last) != 40 {
			t.Errorf("%d frames ended, the last of %d has %d items", p.cut.Load(), len(p.frames), len(last))
		}
		close(p.answer)
		work.Wait()
		synctest.Wait() // who answered the last one takes the line away
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.lines) > 0 {
			t.Error("there is a line, and nobody waits")
		}
	})
}

func TestWhoHasTooMuchToDoIsAskedAgain(t *testing.T) {
	// An owner refuses three times and is not passed by. An owner that always refuses is.
	synctest.Test(t, func(t *testing.T) {
		p := &fakePeer{answer: make(chan error, 64)}
		o := New(Options{Router: ringOf(p), Names: nameless, Disk: &fakeDisk{}})
		defer o.Close()
		for range 3 {
			p.answer <- hearth.ErrRefused
		}
		p.answer <- nil
		began := time.Now()
		if !o.Load(t.Context(), small(1), 1, func(_ hearth.Block, err error) {
			if err != nil {
				t.Error(err)
			}
		}) {
			t.Error("it was left")
		}
		if took := time.Since(began); took != 7*refusedFirst {
			t.Errorf("it took %v", took)
		}
		for range refusals + 1 {
			p.answer <- hearth.ErrRefused
		}
		if o.Load(t.Context(), small(1), 1, func(_ hearth.Block, err error) { t.Error(err) }) {
			t.Error("it is not this node's turn")
		}
	})
}

func TestSiblingsAreOffered(t *testing.T) {
	// Small objects are brought to their owners, unless these hold them or have no free
	// room. This node remembers what was brought.
	r := newRig(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	s := x.owners.Siblings(siblings{x.own, x.disk})
	defer x.owners.Close() // before what it reads from
	fill := func(o *hearth.Object) (begun bool, err error) {
		b := o.Block(0)
		if would, soon := s.Takes(b, time.Now().Add(-time.Minute)); !would || !soon {
			t.Error("it is not offered")
		}
		err = s.Fill(t.Context(), b, func() { begun = true })
		return begun, err
	}
	o := r.theirs(x)
	if begun, err := fill(o); !begun || err != nil || !other.disk.Has(o.Block(0).ID()) || !s.Has(o.Block(0).ID()) || s.Fetching(o.Block(0).ID()) {
		t.Errorf("begun %v: %v", begun, err)
	}
	if begun, err := fill(o); begun || err != nil {
		t.Errorf("held: begun %v: %v", begun, err)
	}
	if gets, _ := r.origin.asked(); gets != 1 {
		t.Errorf("%d requests", gets)
	}
	unheld := r.origin.put(o.Key+"2", 999)
	if held := s.Held(t.Context(), []hearth.Block{o.Block(0), unheld.Block(0)}); !held(o.Block(0).ID()) || held(unheld.Block(0).ID()) {
		t.Error("what was brought is not held there, or what was not is")
	}
	mine := r.origin.put("mine", 1000)
	for i := 0; !x.owners.Here(mine.Block(0)); i++ {
		mine = r.origin.put("mine"+string(rune('a'+i)), 1000)
	}
	if begun, err := fill(mine); !begun || err != nil || !x.disk.Has(mine.Block(0).ID()) {
		t.Errorf("this node's: begun %v: %v", begun, err)
	}
	other.disk.set(func(d *fakeDisk) { d.full = true })
	next := r.origin.put("next", 999)
	for i := 0; x.owners.Here(next.Block(0)); i++ {
		next = r.origin.put("next"+string(rune('a'+i)), 999)
	}
	before, _ := r.origin.asked()
	if begun, err := fill(next); !begun || !errors.Is(err, errDeclined) || s.Has(next.Block(0).ID()) {
		t.Errorf("no room: begun %v: %v", begun, err)
	}
	if begun, err := fill(next); begun || err != nil { // it is not asked for a while
		t.Errorf("no room, just now: begun %v: %v", begun, err)
	}
	if gets, _ := r.origin.asked(); gets != before {
		t.Errorf("%d requests, nothing was taken", gets-before)
	}
}

// siblings is this node's store of prefetch.
type siblings struct {
	tier interface {
		Fill(context.Context, hearth.Block, func()) error
		Fetching(hearth.ID) bool
	}
	disk *fakeDisk
}

func (s siblings) Fill(ctx context.Context, b hearth.Block, begun func()) error {
	return s.tier.Fill(ctx, b, begun)
}
func (s siblings) Has(id hearth.ID) bool                           { return s.disk.Has(id) }
func (s siblings) Fetching(id hearth.ID) bool                      { return s.tier.Fetching(id) }
func (s siblings) Takes(b hearth.Block, at time.Time) (bool, bool) { return s.disk.Spare(b, at) }
func (s siblings) Held(context.Context, []hearth.Block) func(hearth.ID) bool {
	return s.Has
}

func TestFlushesAreShared(t *testing.T) {
	// Many ask a node for a flush while one runs. All of them share the next one.
	synctest.Test(t, func(t *testing.T) {
		d := &slowDisk{fakeDisk: fakeDisk{blocks: map[hearth.ID]bool{}}, begin: make(chan struct{})}
		s := NewServed(ServedOptions{Disk: d, Readers: zero, Throttled: zero, Connections: func() int { return 8 }})
		defer s.Close()
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() {
				if _, err := s.disk.flush(t.Context(), nil); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(d.begin)
		work.Wait()
		if d.flushes != 2 {
			t.Errorf("%d flushes", d.flushes)
		}
	})
}

func zero() int64 { return 0 }

// slowDisk begins no flush before it is told to.
type slowDisk struct {
	fakeDisk
	begin chan struct{}
}

func (d *slowDisk) Flush(ctx context.Context) error {
	<-d.begin
	return d.fakeDisk.Flush(ctx)
}

func FuzzBodies(f *testing.F) {
	// Whatever a peer sends is understood or refused, and nothing panics.
	o := hearth.Object{Link: "l", Key: "k\xff", ETag: "e", Size: 3 << 20, ModTime: time.Unix(5, 6).UTC(), Version: [16]byte{1, 2}}
	for _, document := range []any{run{objectOf(&o), 1, 2}, seed{run{objectOf(&o), 1, 2}, "n"}, offer{[]object{objectOf(small(1).Object)}, 9}, room{1, 2}, warmup.Verdict{Whole: 1}} {
		v, err := view(document)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(v.Bytes())
	}
	f.Add(appendIDs(nil, []hearth.Block{o.Block(2)}))
	f.Add([]byte("12345678"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if first, n, err := parseRun(body); err == nil {
			x := first.Object
			if n < 1 || n > hearth.ExtentBlocks || first.Index+int64(n) > x.Blocks() {
				t.Errorf("%d blocks from %d of %d", n, first.Index, x.Blocks())
			}
			v, err := view(run{objectOf(x), first.Index, int64(n)})
			if err != nil {
				t.Fatal(err)
			}
			if again, m, err := parseRun(v.Bytes()); err != nil || m != n || *again.Object != *x {
				t.Errorf("%+v became %+v: %v", x, again.Object, err)
			}
		}
		if first, n, from, err := parseSeed(body); err == nil && (n < 1 || n > hearth.ExtentBlocks || first.Index+int64(n) > first.Object.Blocks() || from == "") {
			t.Errorf("%d blocks from %d of %d, from %q", n, first.Index, first.Object.Blocks(), from)
		}
		if objects, since, err := parseOffer(body); err == nil && (len(objects) == 0 || len(objects) > mostOffered || since < 0) {
			t.Errorf("%d objects, %v", len(objects), since)
		}
		if ids, err := parseIDs(body); err == nil && (len(ids)*idBytes != len(body) || len(ids) > mostIDs) {
			t.Errorf("%d IDs of %d bytes", len(ids), len(body))
		}
		if v, err := parseVerdict(body, 1<<20); err == nil && (v.Whole+v.Missing+v.Corrupt+v.Unread > 1<<20 || min(v.Whole, v.Missing, v.Corrupt, v.Unread) < 0) {
			t.Errorf("%+v", v)
		}
		if x, ok := parseRoom(body); ok && min(x.Room, x.Free) < 0 {
			t.Errorf("%+v", x)
		}
		if n, ok := parseCount(body); ok && n < 0 {
			t.Errorf("%d", n)
		}
	})
}

func TestIDsAreThemselves(t *testing.T) {
	// A body of IDs names the blocks that were asked for.
	o := hearth.Object{Size: 100 << 20, Version: [16]byte{9, 8, 7, 15: 1}}
	blocks := []hearth.Block{o.Block(0), o.Block(77), small(3)}
	ids, err := parseIDs(appendIDs(nil, blocks))
	for i, b := range blocks {
		if err != nil || ids[i] != b.ID() {
			t.Errorf("%v: %v", b.ID(), err)
		}
	}
}

func BenchmarkHeld(b *testing.B) {
	// A page of names of small objects is asked for, over loopback. The figure is per
	// object.
	r := newRig(b, 2)
	x := r.nodes[0]
	blocks := make([]hearth.Block, 512)
	for i := range blocks {
		blocks[i] = small(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		x.owners.Held(b.Context(), blocks)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(blocks)), "ns/object")
}

func BenchmarkLoad(b *testing.B) {
	// 64 loads at a time ask for small objects that their owner holds. This is the cost
	// of a load without its origin.
	r := newRig(b, 2)
	x, other := r.nodes[0], r.nodes[1]
	o := r.theirs(x)
	other.disk.set(func(d *fakeDisk) { d.blocks[o.Block(0).ID()] = true })
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			x.owners.Load(b.Context(), o.Block(0), 1, func(_ hearth.Block, err error) {
				if err != nil {
					b.Error(err)
				}
			})
		}
	})
}
