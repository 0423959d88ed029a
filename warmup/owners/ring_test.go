package owners

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
	"github.com/hearthfs/hearth/warmup"
)

func TestOverlappingDriversAskTheOriginOnce(t *testing.T) {
	// Two nodes of three warm up the same set at once. The origin is asked for each byte
	// once, each block lies at its owner and nowhere else, and a third job finds
	// everything present.
	r := newRig(t, 3)
	files, bytes := r.origin.fill()
	a, b := r.engine(r.nodes[0]), r.engine(r.nodes[1])
	first, second := r.start(a, warmup.Request{}), r.start(b, warmup.Request{})
	want := warmup.Tally{Files: files, Bytes: bytes}
	for _, v := range []warmup.View{r.over(a, first), r.over(b, second)} {
		if v.State != warmup.Done || v.Counters.Held() != want || v.BytesDone != bytes {
			t.Errorf("want %+v\n%+v", want, v)
		}
	}
	if _, asked := r.origin.asked(); asked != bytes {
		t.Errorf("the origin was asked for %d bytes of %d", asked, bytes)
	}
	held := 0
	r.blocks(func(b hearth.Block) {
		if owner := r.find(r.nodes[0].router.Owners(b)[0]); !owner.disk.Has(b.ID()) {
			t.Errorf("block %v is not at its owner", b.ID())
		}
		held++
	})
	sum := 0
	for _, x := range r.nodes {
		sum += x.disk.count()
		if x.disk.flushes == 0 {
			t.Errorf("%s was not flushed", x.id)
		}
	}
	if sum != held {
		t.Errorf("%d blocks are held of %d", sum, held)
	}
	if v := r.over(a, r.start(a, warmup.Request{})); v.State != warmup.Done || v.Counters.Present != want {
		t.Errorf("again: %+v", v.Counters)
	}
	if v := r.over(b, r.start(b, warmup.Request{DryRun: true})); v.Plan.Held != want || v.Plan.Requests != 0 {
		t.Errorf("a dry run: %+v", v.Plan)
	}
}

func TestAnOwnerDiesInTheMiddle(t *testing.T) {
	// An owner dies while a job loads. The ring notices later, or only after the job's
	// end. In the end, all is held by nodes that can be asked for it.
	for _, name := range []string{"the ring hears of it", "nobody hears of it"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 3)
			files, bytes := r.origin.fill()
			dies := r.nodes[2]
			var once, heard sync.Once
			died := make(chan struct{})
			var work sync.WaitGroup
			defer work.Wait()
			r.origin.onGet = func(n int) {
				if n == 60 {
					once.Do(func() { work.Go(func() { dies.end(); close(died) }) })
				}
				if n > 150 && name == "the ring hears of it" {
					heard.Do(func() { work.Go(func() { <-died; r.join(r.nodes[:2]...) }) })
				}
			}
			e := r.engine(r.nodes[0])
			v := r.over(e, r.start(e, warmup.Request{}))
			if want := (warmup.Tally{Files: files, Bytes: bytes}); v.State != warmup.Done || v.Counters.Held() != want {
				t.Errorf("want %+v\n%+v", want, v.Record)
			}
			<-died
			r.blocks(func(b hearth.Block) {
				if !r.nodes[0].disk.Has(b.ID()) && !r.nodes[1].disk.Has(b.ID()) {
					t.Errorf("block %v is held by nobody that lives", b.ID())
				}
			})
			_, asked := r.origin.asked()
			t.Logf("%d bytes of %d were asked for", asked, bytes)
			if asked > 2*bytes {
				t.Errorf("%d bytes of %d were asked for", asked, bytes)
			}
		})
	}
}

func TestAFullOwnerIsNamed(t *testing.T) {
	// What an owner has no room for is not kept, and the job says at which node.
	r := newRig(t, 3)
	files, bytes := r.origin.fill()
	r.nodes[1].disk.full = true
	e := r.engine(r.nodes[0])
	v := r.over(e, r.start(e, warmup.Request{}))
	if v.State != warmup.Partly || v.Counters.NotKept.Files == 0 || v.Counters.Failed.Files > 0 || v.Counters.Sum() != (warmup.Tally{Files: files, Bytes: bytes}) {
		t.Fatalf("%s: %+v", v.State, v.Counters)
	}
	if len(v.Samples) == 0 || v.Samples[0].Cause != "at node name-n1: no room" {
		t.Errorf("%+v", v.Samples)
	}
	here := int64(0)
	r.blocks(func(b hearth.Block) {
		if r.nodes[0].router.Owners(b)[0] == "n1" {
			here += int64(b.Len())
		}
	})
	if v.Counters.NotKept.Bytes != here {
		t.Errorf("%d bytes are not kept, %d are that node's", v.Counters.NotKept.Bytes, here)
	}
}

func TestACheckNamesTheNode(t *testing.T) {
	// One owner has a damaged block, another has lost one. A check names both blocks and
	// both nodes, and loads nothing.
	r := newRig(t, 3)
	r.origin.fill()
	e := r.engine(r.nodes[0])
	for _, x := range r.nodes[1:] {
		x.owners.Join(x.disk, x.room)
	}
	r.over(e, r.start(e, warmup.Request{}))
	_, before := r.origin.asked()
	want := map[string]string{}
	var damaged, lost *fakeNode
	r.blocks(func(b hearth.Block) {
		owner := r.find(r.nodes[0].router.Owners(b)[0])
		switch {
		case owner.id == "n0":
		case damaged == nil:
			damaged = owner
			owner.disk.set(func(d *fakeDisk) { d.bad[b.ID()] = true })
			want[b.Object.Key] = "corrupt at node name-" + owner.id + ": checksum mismatch"
		case lost == nil && owner != damaged:
			lost = owner
			owner.disk.set(func(d *fakeDisk) { delete(d.blocks, b.ID()) })
			want[b.Object.Key] = "missing at node name-" + owner.id + ": not in the disk cache"
		}
	})
	v := r.over(e, r.start(e, warmup.Request{Check: true}))
	if v.State != warmup.Partly || v.Checked.Corrupt.Files != 1 || v.Checked.Missing.Files != 1 || v.Checked.Whole.Files != 300 {
		t.Errorf("%s: %+v", v.State, v.Checked)
	}
	for _, s := range v.Samples {
		if got := s.What + " " + s.Cause; want[strings.TrimPrefix(s.Path, "/")] != got {
			t.Errorf("%s: %s, want %v", s.Path, got, want)
		}
	}
	if _, after := r.origin.asked(); len(v.Samples) != 2 || after != before {
		t.Errorf("%d are named, %d bytes were asked for", len(v.Samples), after-before)
	}
}

func TestThrottlingReachesWhoAsks(t *testing.T) {
	// An owner's origin asks to slow down. The node whose blocks it loads learns of that.
	r := newRig(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	x.owners.loads(other.id)
	wait(t, func() bool {
		x.owners.Throttled(7)
		x.owners.mu.Lock()
		defer x.owners.mu.Unlock()
		return x.owners.pulses[other.id].known
	})
	if n := x.owners.Throttled(7); n != 7 {
		t.Fatalf("%d answers, nobody throttles", n)
	}
	other.slowed.Add(3)
	wait(t, func() bool { return x.owners.Throttled(7) == 10 })
	other.slowed.Store(1) // it began anew
	wait(t, func() bool { return x.owners.Throttled(7) == 11 })
}

func TestAnOwnerShrinksAndEnds(t *testing.T) {
	// While its origin asks to slow down, an owner works on less for others at a time. A
	// load whose asker has gone, or whose owner ends, is refused.
	r := newRig(t, 2)
	x := r.nodes[1]
	o := r.origin.put("slow", 1000)
	asked, answers := make(chan struct{}), make(chan struct{})
	r.origin.onGet = func(int) { close(asked); <-answers }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- x.served.Load(ctx, o.Block(0)) }()
	<-asked
	before, _ := x.served.gate.Steps()
	wait(t, func() bool {
		x.slowed.Add(1)
		now, _ := x.served.gate.Steps()
		return now <= before/4
	})
	cancel()
	if err := <-ended; !errors.Is(err, hearth.ErrRefused) {
		t.Error(err)
	}
	close(answers)
	x.served.mu.Lock()
	defer x.served.mu.Unlock()
	if x.served.working != 0 {
		t.Errorf("%d are at work", x.served.working)
	}
}

// wait waits until something is true.
func wait(t testing.TB, is func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-t.Context().Done():
			t.Fatal("it does not come")
		}
	}
}

func TestWhatIsNotFlushedIsNotCounted(t *testing.T) {
	// An owner's device fails as it is flushed. What the owner took is not kept, with its
	// error.
	r := newRig(t, 2)
	files, bytes := r.origin.fill()
	r.nodes[1].disk.flush = errors.New("input/output error")
	e := r.engine(r.nodes[0])
	v := r.over(e, r.start(e, warmup.Request{}))
	mine := int64(0)
	r.blocks(func(b hearth.Block) {
		if r.nodes[0].router.Owners(b)[0] == "n0" {
			mine += int64(b.Len())
		}
	})
	if c := v.Counters; v.State != warmup.Partly || c.Sum() != (warmup.Tally{Files: files, Bytes: bytes}) || c.Held().Bytes != mine {
		t.Fatalf("%s: %+v, %d bytes are this node's", v.State, c, mine)
	}
	if !strings.Contains(v.Samples[0].Cause, "at node name-n1: ") || !strings.Contains(v.Samples[0].Cause, "input/output error") {
		t.Errorf("%+v", v.Samples[0])
	}
}

func TestWhoCannotBeFlushedIsNotBelieved(t *testing.T) {
	// An owner that could not be asked to flush holds nothing for certain until it is
	// flushed.
	r := newRig(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	o := r.theirs(x)
	if theirs := x.owners.Load(t.Context(), o.Block(0), 1, func(_ hearth.Block, err error) {
		if err != nil {
			t.Error(err)
		}
	}); !theirs {
		t.Fatal("it is this node's")
	}
	held := func() bool { return x.owners.Held(t.Context(), []hearth.Block{o.Block(0)})(o.Block(0).ID()) }
	if !held() {
		t.Error("it is not held")
	}
	x.owners.mu.Lock()
	x.owners.unsure[other.id] = true
	x.owners.mu.Unlock()
	if held() {
		t.Error("it is held, and may be lost")
	}
	if err := x.owners.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if !held() || other.disk.flushes != 1 {
		t.Errorf("it is not held after %d flushes", other.disk.flushes)
	}
	other.end()
	x.owners.touch(other.id)
	if err := x.owners.Flush(t.Context()); err != nil {
		t.Error("a node that is down is no error of a flush:", err)
	}
	x.owners.mu.Lock()
	defer x.owners.mu.Unlock()
	if !x.owners.unsure[other.id] || !x.owners.touched[other.id] {
		t.Error("it is believed")
	}
}

// theirs is an object that another node owns.
func (r *rig) theirs(x *fakeNode) *hearth.Object {
	for i := 0; ; i++ {
		if o := r.origin.put("theirs"+string(rune('a'+i)), 1234); !x.owners.Here(o.Block(0)) {
			return o
		}
	}
}

func TestASetThatDoesNotFitIsRefused(t *testing.T) {
	// The nodes of the ring together have less room than a job needs. The job is refused
	// with the numbers, and nothing is loaded beyond the free room.
	r := newRig(t, 3)
	_, bytes := r.origin.fill()
	for _, x := range r.nodes {
		x.room = 10 << 20
		x.owners.Join(x.disk, x.room)
	}
	e := r.engine(r.nodes[0])
	v := r.over(e, r.start(e, warmup.Request{}))
	if v.State != warmup.Failed || v.Kind != "refused" || !strings.Contains(v.Error, "of the cache directories of the ring's 3 nodes, in which 30.0 MiB can be held") {
		t.Fatalf("%s: %s", v.State, v.Error)
	}
	for _, x := range r.nodes {
		x.room = fakeRoom(bytes)
		x.owners.Join(x.disk, x.room)
	}
	x := r.nodes[0]
	_, room := x.owners.Join(x.disk, x.room)
	wait(t, func() bool { return room.Rooms(nil)[0] == 3*bytes })
	if free := room.Free()[0]; free < 3*bytes/2-3 || free > 3*bytes/2 {
		t.Errorf("%d bytes are free of %d", free, 3*bytes)
	}
}

func TestAVersionThatHasGone(t *testing.T) {
	// The origin has a newer version. The owner says so, for one block and for many.
	r := newRig(t, 2)
	x := r.nodes[0]
	for _, size := range []int64{1000, 20 << 20} {
		var o *hearth.Object
		for i := 0; o == nil || x.owners.Here(o.Block(0)); i++ {
			o = r.origin.put("gone"+string(rune('a'+i)), size)
		}
		r.origin.mu.Lock()
		r.origin.gone[o.Key] = true
		r.origin.mu.Unlock()
		n := int(min(o.Blocks(), hearth.ExtentBlocks))
		stale := 0
		if !x.owners.Load(t.Context(), o.Block(0), n, func(_ hearth.Block, err error) {
			if errors.Is(err, hearth.ErrStale) {
				stale++
			}
		}) || stale != n {
			t.Errorf("%d bytes: %d blocks of %d are stale", size, stale, n)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	// All other nodes are down. Their blocks fail with the cause, and nobody holds them.
	r := newRig(t, 3)
	x := r.nodes[0]
	r.nodes[1].end()
	r.nodes[2].end()
	var o *hearth.Object
	for i := 0; o == nil || x.router.Owners(o.Block(0))[2] != x.id; i++ {
		o = r.origin.put("nobody"+string(rune('a'+i)), 1000)
	}
	var got error
	if !x.owners.Load(t.Context(), o.Block(0), 1, func(_ hearth.Block, err error) { got = err }) || !errors.Is(got, route.ErrNobody) || !errors.Is(got, wire.ErrDown) {
		t.Error(got)
	}
	if x.owners.Held(t.Context(), []hearth.Block{o.Block(0)})(o.Block(0).ID()) {
		t.Error("it is held")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if x.owners.Load(ctx, o.Block(0), 1, func(_ hearth.Block, err error) { got = err }); !errors.Is(got, context.Canceled) {
		t.Error(got)
	}
}
