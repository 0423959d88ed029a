package route

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/wire"
)

var _ Peer = (*wire.Peer)(nil)

// fakePeer answers as it is told, after a while.
type fakePeer struct {
	Peer         // nil: nobody calls its other methods
	after        time.Duration
	fill, peek   error
	fills, peeks atomic.Int64
}

func (p *fakePeer) wait(ctx context.Context, err error) error {
	select {
	case <-time.After(p.after):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func view(n int) *hearth.View {
	if n == 0 {
		return nil
	}
	return hearth.NewView(make([]byte, n))
}

func (p *fakePeer) Fill(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	p.fills.Add(1)
	if err := p.wait(ctx, p.fill); err != nil {
		return nil, err
	}
	return view(n), nil
}

func (p *fakePeer) Peek(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	p.peeks.Add(1)
	if err := p.wait(ctx, p.peek); err != nil {
		return nil, err
	}
	return view(n), nil
}

func (p *fakePeer) Many(ctx context.Context, v wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	manyOf(ctx, p, v, wants, each)
}

// manyOf asks a Peer for each want by itself.
func manyOf(ctx context.Context, p Peer, v wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	get := p.Fill
	if v == wire.Peek {
		get = p.Peek
	}
	for i, w := range wants {
		x, err := get(ctx, w.Block, w.Off, w.N)
		each(i, x, err)
	}
}

// fakeSource counts what is read from it.
type fakeSource struct{ gets atomic.Int64 }

func (s *fakeSource) Get(_ context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	s.gets.Add(1)
	return view(n), nil
}

func (s *fakeSource) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	hearthtest.Source(s).GetMany(ctx, first, n, each)
}

func (s *fakeSource) Has(hearth.ID) bool { return false }

func (s *fakeSource) FromPeer(hearth.Block) bool { return false }

func ids(n int) (list []place.Node) {
	for i := range n {
		list = append(list, place.Node{ID: fmt.Sprintf("node-%02d", i), Weight: 1 << 40})
	}
	return list
}

func object(i int) *hearth.Object {
	o := &hearth.Object{Link: "l", Key: fmt.Sprintf("a/%d", i), ETag: "e", Size: 5 << 20}
	o.Version = hearth.VersionOf("o", o.Key, o.ETag, o.Size)
	return o
}

// ranked is a block for which a node has some rank.
func ranked(t *testing.T, m *place.Map, self string, rank int) hearth.Block {
	t.Helper()
	for i := range 10_000 {
		b := object(i).Block(0)
		if n, ok := m.Rank(place.Of(b), rank); ok && n.ID == self {
			return b
		}
	}
	t.Fatalf("%s has rank %d of nothing", self, rank)
	return hearth.Block{}
}

// rig is a node among other nodes that are fakes.
type rig struct {
	*Router
	m           *place.Map
	peers       map[string]*fakePeer
	own, bucket fakeSource
}

func newRig(t *testing.T, nodes int, changed time.Time) *rig {
	t.Helper()
	m, err := place.New(ids(nodes))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Router: New("node-00"), m: m, peers: map[string]*fakePeer{}}
	table := Table{Map: m, Peers: map[string]Peer{}, Changed: changed}
	for _, n := range ids(nodes)[1:] {
		p := &fakePeer{peek: hearth.ErrMiss}
		r.peers[n.ID], table.Peers[n.ID] = p, p
	}
	r.Set(table)
	return r
}

// at is the peer of a block's rank.
func (r *rig) at(t *testing.T, b hearth.Block, rank int) *fakePeer {
	t.Helper()
	n, ok := r.m.Rank(place.Of(b), rank)
	if !ok || r.peers[n.ID] == nil {
		t.Fatalf("nobody has rank %d", rank)
	}
	return r.peers[n.ID]
}

func TestWhereAReadGoes(t *testing.T) {
	// The owner's answer is the answer, unless it has none to give. Then the next rank is
	// asked, two at most, or this node itself if it is the next rank; and then the
	// bucket.
	away := &wire.Error{Class: wire.Away, Text: "no answer from the bucket in 30 s"}
	for name, c := range map[string]struct {
		self, first, second error // what ranks say; self: this node's rank is 2
		from                string
		fills               [2]int64
	}{
		"held":                 {from: "peer", fills: [2]int64{1, 0}},
		"stale":                {first: hearth.ErrStale, from: "error", fills: [2]int64{1, 0}},
		"origin away":          {first: away, from: "error", fills: [2]int64{1, 0}},
		"origin too slow":      {first: &wire.Error{Class: wire.Deadline}, from: "error", fills: [2]int64{1, 0}},
		"not allowed":          {first: &wire.Error{Class: wire.Permission}, from: "bucket", fills: [2]int64{1, 0}},
		"another link's":       {first: hearth.ErrMiss, from: "bucket", fills: [2]int64{1, 0}},
		"version differs":      {first: &wire.Error{Class: wire.Mismatch}, from: "bucket", fills: [2]int64{1, 0}},
		"silent":               {first: wire.ErrSilent, from: "peer", fills: [2]int64{1, 1}},
		"sheds":                {first: hearth.ErrRefused, from: "peer", fills: [2]int64{1, 1}},
		"no memory here":       {first: wire.ErrMemory, from: "peer", fills: [2]int64{1 + mostAgain, 1}},
		"damaged on the way":   {first: wire.ErrChecksum, from: "peer", fills: [2]int64{1, 1}},
		"both down":            {first: wire.ErrDown, second: wire.ErrDown, from: "bucket", fills: [2]int64{1, 1}},
		"silent, and we next":  {first: wire.ErrSilent, self: wire.ErrSilent, from: "own", fills: [2]int64{1, 0}},
		"silent, second stale": {first: wire.ErrSilent, second: hearth.ErrStale, from: "error", fills: [2]int64{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 8, time.Time{})
			rank := 3
			if c.self != nil {
				rank = 2
			}
			b := ranked(t, r.m, "node-00", rank)
			r.at(t, b, 1).fill = c.first
			if c.self == nil {
				r.at(t, b, 2).fill = c.second
			}
			v, err := r.Fill(&r.own, &r.bucket).Get(t.Context(), b, 0, 100)
			from := "peer"
			switch {
			case r.own.gets.Load() == 1:
				from = "own"
			case r.bucket.gets.Load() == 1:
				from = "bucket"
			case err != nil:
				from = "error"
			}
			if from != c.from || (v != nil) == (err != nil) || err != nil && !errors.Is(err, c.first) && !errors.Is(err, c.second) {
				t.Errorf("from %s: %v, %v", from, v, err)
			}
			got := [2]int64{r.at(t, b, 1).fills.Load(), 0}
			if c.self == nil {
				got[1] = r.at(t, b, 2).fills.Load()
			}
			s := r.Stats()
			if again := int64(mostAgain); c.fills[0] > again {
				c.fills[0] -= again
				got[0] -= again
			}
			detours := c.fills[1]
			if c.from == "own" {
				detours = 1
			}
			passed := 0
			for _, said := range []error{c.first, c.second} {
				if why := passedBy(said); why != "" && (said != c.second || c.fills[1] > 0) {
					passed++
					if s.Passed[why] == 0 {
						t.Errorf("%v is not counted as %s: %v", said, why, s.Passed)
					}
				}
			}
			if all := total(s.Passed); all != int64(passed) || s.Most != all {
				t.Errorf("%d owners were passed, of one read %d, and not %d: %v", all, s.Most, passed, s.Passed)
			}
			if got != c.fills || s.Asked != c.fills[0]+c.fills[1] || s.Detours != detours || (s.Elsewhere == 1) != (c.from == "bucket") {
				t.Errorf("%v Fills, %+v", got, s)
			}
		})
	}
}

// passedBy is the cause under which an owner with this error is counted. "" means that
// its word is final.
func passedBy(said error) string {
	for err, why := range map[error]string{wire.ErrSilent: "silent", wire.ErrDown: "down", hearth.ErrRefused: "refused",
		wire.ErrMemory: "memory", wire.ErrChecksum: "failed", hearth.ErrMiss: "failed"} {
		if errors.Is(said, err) {
			return why
		}
	}
	var answer *wire.Error
	if errors.As(said, &answer) && (answer.Class == wire.Permission || answer.Class == wire.Mismatch) {
		return "failed"
	}
	return ""
}

func total(counts map[string]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestWhoIsDownIsNotAskedAndNotCounted(t *testing.T) {
	// A rank that cannot be asked uses up none of the two Fills, and is counted as down.
	r := newRig(t, 8, time.Time{})
	b := ranked(t, r.m, "node-00", 4)
	table := *r.Table()
	owner, _ := r.m.Owner(place.Of(b))
	delete(table.Peers, owner.ID)
	r.Set(table)
	r.at(t, b, 2).fill = wire.ErrSilent
	if _, err := r.Fill(&r.own, &r.bucket).Get(t.Context(), b, 0, 1); err != nil || r.at(t, b, 3).fills.Load() != 1 || r.bucket.gets.Load() != 0 {
		t.Errorf("%v, %d Fills of rank 3", err, r.at(t, b, 3).fills.Load())
	}
	if s := r.Stats(); s.Passed["down"] != 1 || s.Passed["silent"] != 1 || s.Most != 1 {
		t.Errorf("%+v", s)
	}
}

func TestMine(t *testing.T) {
	// Alone, or if nobody owns anything, everything is ours, and so is what no node may
	// keep. Otherwise a block is its owner's alone. Finding that out allocates nothing.
	r := New("node-00")
	b := object(1).Block(0)
	if !r.Mine(b) || !slices.Equal(r.Owners(b), []string{"node-00"}) {
		t.Error("alone, and a block is another's")
	}
	readers, err := place.New([]place.Node{{ID: "node-00"}, {ID: "node-01"}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Set(Table{Map: readers}); !r.Mine(b) {
		t.Error("nobody owns anything, and a block is another's")
	}
	rig := newRig(t, 8, time.Time{})
	ours, theirs := ranked(t, rig.m, "node-00", 1), ranked(t, rig.m, "node-00", 2)
	if !rig.Mine(ours) || rig.Mine(theirs) || rig.Owners(theirs)[1] != "node-00" || len(rig.Owners(theirs)) != place.Ranks {
		t.Errorf("ranks of the two are %v and %v", rig.Owners(ours), rig.Owners(theirs))
	}
	weak := *theirs.Object
	weak.ETag = "W/x"
	if !rig.Mine(weak.Block(0)) {
		t.Error("what nobody may keep is another's")
	}
	if n := testing.AllocsPerRun(100, func() { rig.Mine(theirs) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLoad(t *testing.T) {
	// Blocks are loaded by their owner: another node, this node, or nobody.
	r := newRig(t, 8, time.Time{})
	if mine, err := r.Load(t.Context(), ranked(t, r.m, "node-00", 1)); !mine || err != nil {
		t.Errorf("ours: %v, %v", mine, err)
	}
	b := ranked(t, r.m, "node-00", 3)
	if mine, err := r.Load(t.Context(), b); mine || err != nil || r.Stats().Loaded != 1 {
		t.Errorf("another's: %v, %v, %+v", mine, err, r.Stats())
	}
	r.at(t, b, 1).fill, r.at(t, b, 2).fill = wire.ErrSilent, wire.ErrDown
	if mine, err := r.Load(t.Context(), b); mine || !errors.Is(err, ErrNobody) || !errors.Is(err, wire.ErrDown) {
		t.Errorf("nobody's: %v, %v", mine, err)
	}
}

func TestFormerOwnersAreAskedForHalfAnHour(t *testing.T) {
	// Blocks that former owners no longer hold are counted apart from those of which they
	// did not say in time.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, time.Now())
		b := ranked(t, r.m, "node-00", 1)
		own := r.Former(&r.bucket)
		read := func() {
			t.Helper()
			if _, err := own.Get(t.Context(), b, 0, 100); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		read() // neither has it
		if s := r.Stats(); s.Peeks != 2 || s.Found != 0 || s.Gone != 1 || s.Late != 0 || r.bucket.gets.Load() != 1 || r.at(t, b, 4).peeks.Load() != 0 {
			t.Errorf("%+v, %d reads of the bucket", s, r.bucket.gets.Load())
		}
		r.at(t, b, 3).peek = nil
		read()
		if s := r.Stats(); s.Found != 1 || s.Gone != 1 || r.bucket.gets.Load() != 1 {
			t.Errorf("%+v, %d reads of the bucket", s, r.bucket.gets.Load())
		}
		r.at(t, b, 3).peek = wire.ErrDown
		read() // it does not answer
		if s := r.Stats(); s.Found != 1 || s.Gone != 1 || s.Late != 1 || r.bucket.gets.Load() != 2 {
			t.Errorf("%+v, %d reads of the bucket", s, r.bucket.gets.Load())
		}
		weak := *b.Object
		weak.ETag = ""
		if _, err := own.Get(t.Context(), weak.Block(0), 0, 1); err != nil || r.Stats().Peeks != 6 {
			t.Errorf("%v, %+v: of what nobody keeps", err, r.Stats())
		}
		time.Sleep(remembered + time.Second)
		read()
		if s := r.Stats(); s.Peeks != 6 || r.bucket.gets.Load() != 4 {
			t.Errorf("half an hour later: %+v, %d reads of the bucket", s, r.bucket.gets.Load())
		}
	})
}

func TestWhoKnowsNobodyAsksNobody(t *testing.T) {
	// A node that has just come is asked before it knows the ring, or while it knows
	// itself alone. It goes to the bucket and counts that. If its former owners cannot be
	// asked, it counts them as late.
	b := object(1).Block(0)
	alone, err := place.New([]place.Node{{ID: "node-00", Weight: 1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	r := New("node-00")
	for i, set := range []func(){func() {}, func() { r.Set(Table{Map: alone, Changed: time.Now()}) }} {
		set()
		bucket := &fakeSource{}
		if _, err := r.Former(bucket).Get(t.Context(), b, 0, 1); err != nil || bucket.gets.Load() != 1 || r.Stats().Alone != int64(i)+1 {
			t.Errorf("%v, %d reads of the bucket, %+v", err, bucket.gets.Load(), r.Stats())
		}
	}
	rig := newRig(t, 8, time.Now())
	rig.Set(Table{Map: rig.m, Changed: time.Now()})
	if _, err := rig.Former(&rig.bucket).Get(t.Context(), ranked(t, rig.m, "node-00", 1), 0, 1); err != nil || rig.Stats().Late != 1 || rig.Stats().Gone+rig.Stats().Alone != 0 {
		t.Errorf("%v, %+v", err, rig.Stats())
	}
}

func TestAFormerOwnerThatHangsCostsFiveMilliseconds(t *testing.T) {
	// A former owner may take as long as usual and a little more. Peers that all hang do
	// not make that longer and longer.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, time.Now())
		b := ranked(t, r.m, "node-00", 1)
		own := r.Former(&r.bucket)
		read := func() time.Duration {
			began := time.Now()
			if _, err := own.Get(t.Context(), b, 0, 100); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		for _, p := range r.peers {
			p.after = 2 * time.Millisecond
		}
		for range 200 {
			read()
		}
		if usual := r.usual.get(); usual < 1900*time.Microsecond || usual > 2*time.Millisecond {
			t.Errorf("%v is usual where all take 2 ms", usual)
		}
		r.at(t, b, 2).after = time.Hour
		if took := read(); took < 5*time.Millisecond || took > 7*time.Millisecond+200*time.Microsecond {
			t.Errorf("%v beside one that hangs", took)
		}
		if s := r.Stats(); s.Late != 1 {
			t.Errorf("%+v", s)
		}
		r.at(t, b, 3).after = time.Hour
		for range 500 {
			read()
		}
		if took := read(); took > time.Duration(mostMedian)+peekSlack {
			t.Errorf("%v after hundreds that hung", took)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		late := r.Stats().Late
		if _, err := own.Get(gone, b, 0, 1); r.Stats().Late != late {
			t.Errorf("a reader that has left was late (%v)", err)
		}
	})
}

func BenchmarkMine(b *testing.B) {
	m, err := place.New(ids(100))
	if err != nil {
		b.Fatal(err)
	}
	r := New("node-00")
	r.Set(Table{Map: m})
	block := object(1).Block(0)
	b.ReportAllocs()
	for b.Loop() {
		r.Mine(block)
	}
}
