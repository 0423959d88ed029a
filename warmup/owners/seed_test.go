package owners

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/warmup"
)

// seedAll seeds all blocks of an object from a node. It returns the bytes that others took, and the blocks that are its own.
func seedAll(t *testing.T, x *fakeNode, o *hearth.Object) (taken int64, own []hearth.Block) {
	t.Helper()
	for first := int64(0); first < o.Blocks(); first += hearth.ExtentBlocks {
		n := int(min(hearth.ExtentBlocks, o.Blocks()-first))
		bytes, mine, err := x.owners.Seed(t.Context(), o.Block(first), n)
		if err != nil {
			t.Error(err)
		}
		for i := 0; i < n && mine; i++ {
			own = append(own, o.Block(first+int64(i)))
		}
		taken += bytes
	}
	return taken, own
}

func TestWhatWasWrittenComesToItsOwners(t *testing.T) {
	// A node has written an object. Each other block's owner fetches it from there, once, and holds it; the writer's own blocks are
	// left to it. Nobody asks the origin. Once more nothing is fetched. An owner without room fetches nothing.
	r := newRig(t, 3)
	writer := r.nodes[0]
	o := r.origin.put("written", 100<<20+5)
	taken, own := seedAll(t, writer, o)
	held, mine := int64(0), int64(0)
	for _, b := range own {
		mine += int64(b.Len())
	}
	for i := range o.Blocks() {
		b := o.Block(i)
		owner := r.find(writer.router.Owners(b)[0])
		if owner.disk.Has(b.ID()) != (owner != writer) {
			t.Errorf("block %d at %s: %v", i, owner.id, owner.disk.Has(b.ID()))
		}
		for _, x := range r.nodes {
			if x.disk.Has(b.ID()) {
				held += int64(b.Len())
			}
		}
	}
	if taken+mine != o.Size || held != taken || taken == 0 || mine == 0 {
		t.Errorf("%d taken, %d held, %d here", taken, held, mine)
	}
	peeks := writer.peeks.Load()
	if again, _ := seedAll(t, writer, o); again != taken || writer.peeks.Load() != peeks {
		t.Errorf("again %d taken, %d fetched", again, writer.peeks.Load()-peeks)
	}
	for _, x := range r.nodes {
		x.disk.set(func(d *fakeDisk) { d.full = true })
	}
	if taken, _ := seedAll(t, writer, r.origin.put("more", 100<<20)); taken != 0 || writer.peeks.Load() != peeks {
		t.Errorf("without room %d taken, %d fetched", taken, writer.peeks.Load()-peeks)
	}
	if gets, _ := r.origin.asked(); gets != 0 {
		t.Errorf("%d requests at the origin", gets)
	}
}

func TestASeedThatNobodyTakes(t *testing.T) {
	// What the writer does not give, and an object that is not one of the owner's, is not held by anybody. The last node of a ring
	// keeps all itself. A body that is none is refused.
	r := newRig(t, 2)
	writer := r.nodes[0]
	at := func(key string) hearth.Block { // a block of the other node's
		for size := int64(5); ; size++ {
			if b := r.origin.put(key, size).Block(0); !writer.owners.Here(b) {
				return b
			}
		}
	}
	if taken, mine, err := writer.owners.Seed(t.Context(), at("lost"), 1); taken != 0 || mine || err != nil {
		t.Errorf("%d, %v, %v", taken, mine, err)
	}
	strange := *at("strange").Object
	strange.ETag = "another"
	if taken, mine, err := writer.owners.Seed(t.Context(), strange.Block(0), 1); taken != 0 || mine || err == nil {
		t.Errorf("%d, %v, %v", taken, mine, err)
	}
	if n := r.nodes[1].disk.count(); n != 0 {
		t.Errorf("%d blocks are held", n)
	}
	for _, body := range []string{"", "{}", `{"from":"n0"}`} {
		if _, err := r.nodes[1].served.seeded(t.Context(), []byte(body)); !errors.Is(err, errBody) {
			t.Errorf("%q: %v", body, err)
		}
	}
	b := at("alone")
	r.join(writer)
	if _, mine, err := writer.owners.Seed(t.Context(), b, 1); !mine || err != nil {
		t.Errorf("%v, %v", mine, err)
	}
}

// busyDisk has a queue that is full for its first looks.
type busyDisk struct {
	fakeDisk
	looks, full int
}

func (d *busyDisk) Spare(hearth.Block, time.Time) (bool, bool) {
	d.looks++
	return true, d.looks > d.full
}

func TestASeedLetsOthersGoFirst(t *testing.T) {
	// The disk's queue is more than half full: a seed waits, without its place at the gate, until it is not, and fetches nothing
	// before. The end of its context ends that.
	synctest.Test(t, func(t *testing.T) {
		share := warmup.NewGate().Join()
		defer share.Leave()
		o := &hearth.Object{Key: "k", ETag: "e", Size: 5, Version: [16]byte{1}}
		bring := func(ctx context.Context, d *busyDisk) (held bool, fetched int) {
			pass, err := share.Enter(ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			defer pass.Exit(ctx, 0)
			held = Bring(ctx, pass, d, o.Block(0), func() (*hearth.View, error) {
				fetched++
				return hearth.NewView(make([]byte, 5)), nil
			})
			return held, fetched
		}
		d := &busyDisk{fakeDisk: fakeDisk{blocks: map[hearth.ID]bool{}}, full: 100}
		if held, fetched := bring(t.Context(), d); !held || fetched != 1 || d.looks != 101 {
			t.Errorf("held %v, fetched %d, after %d looks", held, fetched, d.looks)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d = &busyDisk{fakeDisk: fakeDisk{blocks: map[hearth.ID]bool{}}, full: 1 << 30}
		if held, fetched := bring(ctx, d); held || fetched != 0 {
			t.Errorf("held %v, fetched %d", held, fetched)
		}
	})
}
