package wiring

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
)

// fakeSource holds one block.
type fakeSource struct{ text string }

func (s *fakeSource) Get(_ context.Context, _ hearth.Block, off, n int) (*hearth.View, error) {
	return hearth.NewView([]byte(s.text)[off : off+n]), nil
}

func TestAloneEverythingIsOwn(t *testing.T) {
	// Without a ring its parts pass through. A Fill at the owner is a read of its own block.
	own := hearthtest.Source(&fakeSource{"abc"})
	if (alone{}).Former(own) != own || (alone{}).Route(own, nil) != own || (alone{}).Fill(own, nil) != own {
		t.Error("Former, Route or Fill does not pass through")
	}
	if err := (alone{}).Serve(Answers{}); err != nil {
		t.Fatal(err)
	}
}

// listening keeps what peers are answered from.
type listening struct {
	alone
	answers Answers
}

func (l *listening) Serve(a Answers) error {
	l.answers = a
	return nil
}

func TestPeersAreAnsweredFromMemoryWithoutAsking(t *testing.T) {
	// What memory holds is ready for peers. Nobody is asked for what it does not hold.
	pool := hearthtest.Pool(t, 64<<20)
	mem := cache.NewRAM(pool, 32<<20)
	t.Cleanup(mem.Close)
	ring := &listening{}
	tiers, err := Wire(Wiring{Ring: ring}, mem, nil, nil) // without a bucket: asking would panic
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tiers.Close)
	b := hearthtest.NewObject("object", 20_000, 1).Block(0)
	if v := ring.answers.Ready(b, 0, 5); v != nil {
		t.Error("ready, and nobody holds it")
	}
	v := hearthtest.View(t, pool, b, 1)
	if err := mem.Put(b, v); err != nil {
		t.Fatal(err)
	}
	v.Release()
	if v = ring.answers.Ready(b, 7, 100); v == nil {
		t.Fatal("not ready, and memory holds it")
	}
	if err := hearthtest.Check(v.Bytes(), "object", 7, 1); err != nil {
		t.Error(err)
	}
	v.Release()
}

// emptyDisk holds nothing, and counts its calls.
type emptyDisk struct{ gets atomic.Int64 }

func (d *emptyDisk) Get(context.Context, hearth.Block, int, int) (*hearth.View, error) {
	d.gets.Add(1)
	return nil, hearth.ErrMiss
}
func (d *emptyDisk) Put(hearth.Block, *hearth.View) error   { return nil }
func (d *emptyDisk) Has(hearth.ID) bool                     { return false }
func (d *emptyDisk) Takes(hearth.Block) bool                { return true }
func (d *emptyDisk) Flush(context.Context) error            { return nil }
func (d *emptyDisk) WouldTake(hearth.Block) (string, error) { return "", nil }

func (d *emptyDisk) Keep(context.Context, hearth.Block, *hearth.View) error { return nil }

func (d *emptyDisk) GetHere(context.Context, hearth.Block, int, int, func()) *hearth.View { return nil }

// two is a ring of two nodes, whose router is the node's own. The other one answers each Fill.
type two struct {
	alone
	*route.Router
	answers Answers
	fills   atomic.Int64
}

func newTwo(t *testing.T) *two {
	m, err := place.New([]place.Node{{ID: "here", Weight: 1 << 30}, {ID: "there", Weight: 1 << 30}})
	if err != nil {
		t.Fatal(err)
	}
	r := &two{Router: route.New("here")}
	r.Set(route.Table{Map: m, Peers: map[string]route.Peer{"there": there{two: r}}})
	return r
}

func (r *two) Former(next hearth.Source) hearth.Source       { return r.Router.Former(next) }
func (r *two) Fill(own, bucket hearth.Source) hearth.Source  { return r.Router.Fill(own, bucket) }
func (r *two) Route(own, theirs hearth.Source) hearth.Source { return r.Router.Route(own, theirs) }
func (r *two) Serve(a Answers) error {
	r.answers = a
	return nil
}

// block is of an object that is this node's, or the other's, and that no caller got before.
func (r *two) block(name string, mine bool) hearth.Block {
	for i := 0; ; i++ {
		if b := hearthtest.NewObject(fmt.Sprint(name, i), 20_000, 1).Block(0); r.Mine(b) == mine {
			return b
		}
	}
}

// there is the other node.
type there struct {
	route.Peer // nil, since nobody calls its methods
	*two
}

func (p there) Fill(_ context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	p.fills.Add(1)
	return hearth.NewView(make([]byte, n)), nil
}

func (p there) Peek(context.Context, hearth.Block, int, int) (*hearth.View, error) {
	p.fills.Add(1)
	return nil, hearth.ErrMiss
}

func (p there) Many(_ context.Context, _ wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	for i := range wants {
		p.fills.Add(1)
		each(i, nil, hearth.ErrMiss)
	}
}

// mine reports whether an id ends in an even digit.
func mine(b hearth.Block) bool { return (b.Object.Key[len(b.Object.Key)-1]-'0')%2 == 0 }

func TestEachTierIsAskedOnce(t *testing.T) {
	// A read looks once into memory and once into the disk, whoever owns the block. So does a peer's Fill. A
	// Peek asks these two and nobody else.
	pool := hearthtest.Pool(t, 64<<20)
	mem := cache.NewRAM(pool, 32<<20)
	t.Cleanup(mem.Close)
	disk, ring, bucket := &emptyDisk{}, newTwo(t), &atomic.Int64{}
	tiers, err := Wire(Wiring{Ring: ring, Mine: ring.Mine}, mem, disk, hearthtest.Source(sourceFunc(func(n int) *hearth.View {
		bucket.Add(1)
		return hearth.NewView(make([]byte, n))
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tiers.Close)
	for _, c := range []struct {
		what                        string
		get                         hearth.Getter
		mine                        bool
		memory, disk, fills, bucket int64
	}{
		{"own", tiers.Reads, true, 1, 1, 0, 1}, {"another's", tiers.Reads, false, 1, 1, 1, 0}, {"for a peer", ring.answers.Owned, true, 1, 1, 0, 1},
		{"a Peek", ring.answers.Local, true, 1, 1, 0, 0}, {"a Peek of another's", ring.answers.Local, false, 1, 1, 0, 0},
	} {
		before := [4]int64{mem.Stats().Misses, disk.gets.Load(), ring.fills.Load(), bucket.Load()}
		b := ring.block(c.what, c.mine)
		v, err := c.get.Get(t.Context(), b, 0, b.Len())
		if err == nil {
			v.Release()
		}
		after := [4]int64{mem.Stats().Misses, disk.gets.Load(), ring.fills.Load(), bucket.Load()}
		for i := range after {
			after[i] -= before[i]
		}
		if want := [4]int64{c.memory, c.disk, c.fills, c.bucket}; after != want || (err == nil) != (c.fills+c.bucket > 0) {
			t.Errorf("%s: memory, disk, peer and bucket were asked %v times, want %v; %v", c.what, after, want, err)
		}
	}
}

// sourceFunc is a bucket.
type sourceFunc func(n int) *hearth.View

func (f sourceFunc) Get(_ context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	return f(n), nil
}

func TestOneInTenOfWhatComesFromPeersIsCopied(t *testing.T) {
	// A tenth of others' blocks that are read whole and once stays in memory, of ranges as much less, and of
	// this node's own blocks none.
	mem := cache.NewRAM(hearthtest.Pool(t, 64<<20), 32<<20)
	t.Cleanup(mem.Close)
	admit := hot(Wiring{Mine: mine}, mem, &emptyDisk{})
	const reads = 20_000
	var whole, half, own int
	for i := range reads {
		b := hearthtest.NewObject(fmt.Sprint(i, "/1"), 20_000, 1).Block(0)
		if admit(b, b.Len()) {
			whole++
		}
		if admit(hearthtest.NewObject(fmt.Sprint(i, "/3"), 20_000, 1).Block(0), b.Len()/2) {
			half++
		}
		if admit(hearthtest.NewObject(fmt.Sprint(i, "/2"), 20_000, 1).Block(0), b.Len()) {
			own++
		}
	}
	// The deviations are 42 and 31.
	if whole < 1700 || whole > 2300 || half < 800 || half > 1200 || own != 0 {
		t.Errorf("of %d each: %d whole ones, %d halves, %d own", reads, whole, half, own)
	}
}

// heldDisk has every block.
type heldDisk struct {
	emptyDisk
	pool *hearth.Pool
}

func (d *heldDisk) Has(hearth.ID) bool { return true }
func (d *heldDisk) Get(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	d.gets.Add(1)
	return d.pool.Alloc(ctx, n)
}

func (d *heldDisk) GetHere(ctx context.Context, b hearth.Block, off, n int, _ func()) *hearth.View {
	v, _ := d.Get(ctx, b, off, n)
	return v
}

func TestWhatIsReadHereForPeersIsWholeAndKeptOnceItIsHot(t *testing.T) {
	// The thread that a peer's request came to reads only whole objects from the disk. The second time within a
	// while they stay in memory. Without a disk there is nothing to read there.
	pool := hearthtest.Pool(t, 64<<20)
	mem := cache.NewRAM(pool, 32<<20)
	t.Cleanup(mem.Close)
	store, ring := &heldDisk{pool: pool}, &listening{}
	tiers, err := Wire(Wiring{Ring: ring}, mem, store, hearthtest.Source(&anyBucket{pool}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tiers.Close)
	o := hearthtest.NewObject("object", 20_000, 1)
	weak := *o
	weak.ETag = ""
	for _, b := range []struct {
		hearth.Block
		n int
	}{{o.Block(0), 19_999}, {weak.Block(0), 20_000}} {
		if v := ring.answers.Here(t.Context(), b.Block, 0, b.n, nil); v != nil {
			t.Errorf("%d bytes of %q were read", b.n, b.Object.ETag)
		}
	}
	for ask, kept := range []bool{false, true} {
		v := ring.answers.Here(t.Context(), o.Block(0), 0, 20_000, nil)
		if v == nil {
			t.Fatal("nothing was read")
		}
		v.Release()
		if mem.Has(o.Block(0).ID()) != kept {
			t.Errorf("kept after ask %d: %v", ask+1, !kept)
		}
	}
	bare := &listening{}
	if other, err := Wire(Wiring{Ring: bare}, mem, nil, hearthtest.Source(&anyBucket{pool})); err != nil || bare.answers.Here != nil {
		t.Errorf("a disk that is not there is asked: %v", err)
	} else {
		other.Close()
	}
}

func TestWhatTheDiskHasIsKeptForPeersOnceItIsHot(t *testing.T) {
	// Peers ask an owner for whole blocks. A block on its disk is kept in memory when it is asked for again. A
	// block on no disk yet is kept at once, since other peers mostly want it soon.
	for name, disk := range map[string]bool{"on disk": true, "not yet": false} {
		pool := hearthtest.Pool(t, 64<<20)
		mem := cache.NewRAM(pool, 32<<20)
		t.Cleanup(mem.Close)
		var store Disk = &emptyDisk{}
		if disk {
			store = &heldDisk{pool: pool}
		}
		ring := &listening{}
		tiers, err := Wire(Wiring{Ring: ring}, mem, store, hearthtest.Source(&anyBucket{pool}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tiers.Close)
		b := hearthtest.NewObject("object", 20_000, 1).Block(0)
		kept := 0 // asks until it is
		for kept = 1; kept <= 5 && !mem.Has(b.ID()); kept++ {
			v, err := ring.answers.Owned.Get(t.Context(), b, 0, b.Len())
			if err != nil {
				t.Fatal(err)
			}
			v.Release()
		}
		if want := map[bool]int{true: 3, false: 2}[disk]; kept != want {
			t.Errorf("%s: kept before ask %d, want %d", name, kept, want)
		}
	}
}

// anyBucket has every block.
type anyBucket struct{ pool *hearth.Pool }

func (b *anyBucket) Get(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	return b.pool.Alloc(ctx, n)
}

// fullDisk has no room.
type fullDisk struct{ emptyDisk }

func (*fullDisk) Takes(hearth.Block) bool                { return false }
func (*fullDisk) WouldTake(hearth.Block) (string, error) { return "", errors.New("it is full") }

// fakeVolumes count what they are given.
type fakeVolumes struct {
	emptyDisk
	kept atomic.Int64
}

func (v *fakeVolumes) Put(hearth.Block, *hearth.View) error {
	v.kept.Add(1)
	return nil
}

func (v *fakeVolumes) Keep(context.Context, hearth.Block, *hearth.View) error {
	return v.Put(hearth.Block{}, nil)
}

func TestWhatComesToVolumes(t *testing.T) {
	// A block that misses goes to volumes if no disk has room for it, or always if all is to be kept there. A small object
	// is brought whole for a part of it, and a block of a large one is not. What the disk takes goes there only once the
	// disk evicts it. A warm-up of volumes puts it there.
	pool := hearthtest.Pool(t, 64<<20)
	mem := cache.NewRAM(pool, 32<<20)
	t.Cleanup(mem.Close)
	for name, c := range map[string]struct {
		disk        Disk
		all         bool
		whole, part int64
	}{
		"room":         {&emptyDisk{}, false, 0, 0},
		"a full disk":  {&fullDisk{}, false, 1, 0},
		"no disk":      {nil, false, 1, 0},
		"all":          {&emptyDisk{}, true, 1, 1},
		"all, no room": {&fullDisk{}, true, 1, 1},
	} {
		vol := &fakeVolumes{}
		tiers, err := Wire(Wiring{Volumes: vol, All: c.all}, mem, c.disk, hearthtest.Source(sourceFunc(func(n int) *hearth.View {
			return hearth.NewView(make([]byte, n))
		})))
		if err != nil {
			t.Fatal(err)
		}
		read := func(key string, size int64, n int) int64 {
			before := vol.kept.Load()
			v, err := tiers.Own.Get(t.Context(), hearthtest.NewObject(name+key, size, 1).Block(0), 0, n)
			if err != nil {
				t.Fatal(err)
			}
			v.Release()
			return vol.kept.Load() - before
		}
		if got := read("whole", 20_000, 20_000); got != c.whole {
			t.Errorf("%s: a whole block is kept %d times", name, got)
		}
		if got := read("small", 20_000, 100); got != c.whole {
			t.Errorf("%s: a small object of which a part was read is kept %d times", name, got)
		}
		if got := read("part", 3<<20, 100); got != c.part {
			t.Errorf("%s: a block of which a part was read is kept %d times", name, got)
		}
		before := vol.kept.Load()
		tiers.Lasting.Load(t.Context(), hearthtest.NewObject(name+"warm", 20_000, 1).Block(0), 1, func(_ hearth.Block, err error) bool {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return true
		})
		if vol.kept.Load() == before {
			t.Errorf("%s: a warm-up of volumes keeps nothing", name)
		}
		tiers.Close()
	}
}
