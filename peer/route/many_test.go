package route

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/wire"
)

// shuffled answers Many in an order that was drawn. Each block has its index as bytes.
// From some block on all fail.
type shuffled struct {
	fakePeer
	order []int
	bad   map[int64]error // by block

	mu    sync.Mutex // guards views
	views []*hearth.View
}

func (p *shuffled) Many(_ context.Context, _ wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	for _, i := range p.order {
		if i >= len(wants) {
			continue
		}
		b := wants[i].Block
		if err := p.bad[b.Index]; err != nil {
			each(i, nil, err)
			continue
		}
		v := hearth.NewView([]byte{byte(b.Index)})
		p.mu.Lock()
		p.views = append(p.views, v.Retain())
		p.mu.Unlock()
		each(i, v, nil)
	}
}

// numbered yields blocks with their index, one by one.
type numbered struct{ gets []int64 }

func (s *numbered) Get(_ context.Context, b hearth.Block, _, _ int) (*hearth.View, error) {
	s.gets = append(s.gets, b.Index)
	return hearth.NewView([]byte{byte(b.Index)}), nil
}

func (s *numbered) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	hearthtest.Source(s).GetMany(ctx, first, n, each)
}

func (s *numbered) Has(hearth.ID) bool { return false }

func (s *numbered) FromPeer(hearth.Block) bool { return false }

func TestManyAreYieldedInOrder(t *testing.T) {
	// However a peer's answers come, and whichever of them fail, the blocks come in
	// order, each once. The rest of an extent comes from the bucket. No View is kept, and
	// nobody is asked once the reader has enough.
	rapid.Check(t, func(t *rapid.T) {
		const extents = 3
		o := object(rapid.IntRange(0, 99).Draw(t, "object"))
		o.Size = extents * hearth.ExtentBlocks * hearth.BlockSize
		first := rapid.IntRange(0, 20).Draw(t, "first")
		n := rapid.IntRange(1, extents*hearth.ExtentBlocks-first).Draw(t, "n")
		enough := rapid.IntRange(1, n).Draw(t, "enough")
		p := &shuffled{bad: map[int64]error{}, order: rapid.Permutation(indexes(hearth.ExtentBlocks)).Draw(t, "order")}
		for range rapid.IntRange(0, 3).Draw(t, "failures") {
			p.bad[rapid.Int64Range(0, 47).Draw(t, "bad")] = rapid.SampledFrom([]error{hearth.ErrRefused, wire.ErrMemory, hearth.ErrMiss}).Draw(t, "why")
		}
		m := mapOf(t, 2)
		r := New("nobody")
		r.Set(Table{Map: m, Peers: map[string]Peer{"node-00": p, "node-01": p}})
		bucket := &numbered{}
		src := r.Fill(&numbered{}, bucket)
		var got []int64
		src.GetMany(context.Background(), o.Block(int64(first)), n, func(b hearth.Block, v *hearth.View, err error) bool {
			if err != nil || int64(v.Bytes()[0]) != b.Index {
				t.Fatalf("block %d: %v", b.Index, err)
			}
			v.Release()
			got = append(got, b.Index)
			return len(got) < enough
		})
		want := make([]int64, enough)
		for i := range want {
			want[i] = int64(first + i)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if len(p.bad) == 0 && len(bucket.gets) > 0 {
			t.Fatalf("%v from the bucket", bucket.gets)
		}
		for _, v := range p.views {
			v.Release() // the test's reference is the last one
			if v.TryRetain() {
				t.Fatal("a View was kept")
			}
		}
	})
}

func TestManyThatAreNotGivenAreCounted(t *testing.T) {
	// Each block of a run that an owner does not give counts once for each owner that was
	// asked. So the counters tell why the bucket was asked for so many. A read asks two
	// owners at most.
	r := newRig(t, 8, time.Time{})
	b := ranked(t, r.m, "node-00", 4)
	for range 2 {
		r.at(t, b, 1).fill, r.at(t, b, 2).fill = wire.ErrSilent, hearth.ErrRefused
		n := 0
		r.Fill(&r.own, &r.bucket).GetMany(t.Context(), b, 3, func(_ hearth.Block, v *hearth.View, err error) bool {
			if n++; err != nil {
				t.Error(err)
			}
			v.Release()
			return true
		})
		if n != 3 {
			t.Errorf("%d blocks of 3", n)
		}
	}
	if s := r.Stats(); s.Passed["silent"] != 6 || s.Passed["refused"] != 6 || s.Elsewhere != 6 || s.Most != 2 {
		t.Errorf("%+v", s)
	}
}

func TestManyEndWithAnAnswer(t *testing.T) {
	// A version that is gone is an answer. Nobody else is asked, and the reader gets the
	// error once, for the first block that has it.
	o := object(1)
	p := &shuffled{order: indexes(hearth.ExtentBlocks), bad: map[int64]error{2: hearth.ErrStale}}
	r := New("nobody")
	r.Set(Table{Map: mapOf(t, 2), Peers: map[string]Peer{"node-00": p, "node-01": p}})
	bucket := &numbered{}
	var got []error
	r.Fill(bucket, bucket).GetMany(t.Context(), o.Block(0), 5, func(_ hearth.Block, v *hearth.View, err error) bool {
		if v != nil {
			v.Release()
		}
		got = append(got, err)
		return true
	})
	if len(got) != 3 || got[0] != nil || got[1] != nil || !errors.Is(got[2], hearth.ErrStale) || len(bucket.gets) > 0 {
		t.Errorf("%v; %v from the bucket", got, bucket.gets)
	}
}

func TestFormerGivesARun(t *testing.T) {
	// A former owner that holds a part of an extent gives that part, wherever it lies.
	// The bucket is asked for the rest, and for all of an extent that nobody holds.
	synctest.Test(t, func(t *testing.T) {
		o := object(1)
		p := &shuffled{order: indexes(hearth.ExtentBlocks), bad: map[int64]error{3: hearth.ErrMiss}}
		r := New("nobody")
		r.Set(Table{Map: mapOf(t, 2), Peers: map[string]Peer{"node-00": p, "node-01": p}, Changed: time.Now()})
		bucket := &numbered{}
		var got []int64
		yes := func(b hearth.Block, v *hearth.View, err error) bool {
			v.Release()
			got = append(got, b.Index)
			return err == nil
		}
		former := r.Former(bucket)
		former.GetMany(t.Context(), o.Block(0), 5, yes)
		if !slices.Equal(got, []int64{0, 1, 2, 3, 4}) || !slices.Equal(bucket.gets, []int64{3}) || r.Stats().Found != 4 {
			t.Errorf("got %v, %v from the bucket, %+v", got, bucket.gets, r.Stats())
		}
		synctest.Wait() // both peers that were asked have answered
		p.bad[0] = hearth.ErrMiss
		got, bucket.gets = nil, nil
		former.GetMany(t.Context(), o.Block(0), 5, yes)
		if !slices.Equal(got, []int64{0, 1, 2, 3, 4}) || !slices.Equal(bucket.gets, []int64{0, 3}) {
			t.Errorf("got %v, %v from the bucket", got, bucket.gets)
		}
		synctest.Wait()
		for i := range int64(5) {
			p.bad[i] = hearth.ErrMiss
		}
		got, bucket.gets = nil, nil
		former.GetMany(t.Context(), o.Block(0), 5, yes)
		if len(bucket.gets) != 5 {
			t.Errorf("got %v, %v from the bucket", got, bucket.gets)
		}
	})
}

func TestRouteReadsEachExtentOnItsWay(t *testing.T) {
	// A run over many extents is read from own and from theirs, as each block belongs.
	rig := newRig(t, 8, time.Time{})
	o := object(7)
	o.Size = 64 * hearth.ExtentBlocks * hearth.BlockSize
	own, theirs := &numbered{}, &numbered{}
	n := 64 * hearth.ExtentBlocks
	var got int64
	rig.Route(own, theirs).GetMany(t.Context(), o.Block(0), n, func(b hearth.Block, v *hearth.View, err error) bool {
		if b.Index != got || err != nil {
			t.Fatalf("block %d where %d is due: %v", b.Index, got, err)
		}
		got++
		v.Release()
		return true
	})
	for _, i := range own.gets {
		if !rig.Mine(o.Block(i)) {
			t.Errorf("block %d is not ours", i)
		}
	}
	for _, i := range theirs.gets {
		if rig.Mine(o.Block(i)) {
			t.Errorf("block %d is ours", i)
		}
	}
	if got != int64(n) || len(own.gets) == 0 || len(theirs.gets) == 0 {
		t.Errorf("%d blocks, %d own, %d theirs", got, len(own.gets), len(theirs.gets))
	}
}

func mapOf(t interface{ Fatal(...any) }, nodes int) *place.Map {
	m, err := place.New(ids(nodes))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func indexes(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestWhoIsAskedFirstIsKnown(t *testing.T) {
	// FromPeer is true of another node's block. It is false of this node's own, and of a
	// block whose owner cannot be asked.
	r := New("node-00")
	r.Set(Table{Map: mapOf(t, 3), Peers: map[string]Peer{"node-01": &shuffled{}}})
	route := r.Route(&numbered{}, r.Fill(&numbered{}, &numbered{}))
	asked := 0
	for i := range 60 {
		b := object(i).Block(0)
		want := r.Owners(b)[0] == "node-01"
		if got := route.FromPeer(b); got != want {
			t.Errorf("object %d of %s: asks %v", i, r.Owners(b)[0], got)
		}
		if want {
			asked++
		}
	}
	if asked == 0 || asked == 60 {
		t.Errorf("%d of 60 are of the node that is asked", asked)
	}
}
