package owners

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
)

func TestAnOlderReleaseKnowsNoVolumes(t *testing.T) {
	// The owner of a block is of a release that knows no calls about volumes. Its blocks are not kept, and the cause
	// names it and the cure. It holds nothing, and nothing is to be flushed there.
	r := newRig(t, 2)
	x := r.nodes[0]
	o := New(Options{Router: x.router, Names: x.Names, Disk: x.disk, Volumes: true})
	t.Cleanup(o.Close)
	b := r.origin.put("large", 20<<20).Block(0)
	for i := 0; o.Here(b); i++ {
		b = r.origin.put("large"+strings.Repeat("x", i), 20<<20+int64(i)).Block(0)
	}
	n := 0
	if !o.Load(t.Context(), b, hearth.ExtentBlocks, func(_ hearth.Block, err error) {
		n++
		if kept := new(hearth.NotKept); !errors.As(err, kept) || !strings.HasPrefix(err.Error(), "at node name-n1: its release knows no volumes: run the same release") {
			t.Error(err)
		}
	}) || n != hearth.ExtentBlocks {
		t.Errorf("%d blocks", n)
	}
	if o.Held(t.Context(), []hearth.Block{b})(b.ID()) {
		t.Error("it is held")
	}
	if err := o.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if gets, _ := r.origin.asked(); gets != 0 {
		t.Errorf("%d requests", gets)
	}
}

// downPeer cannot be reached for its first calls, and keeps all that it is asked for later.
type downPeer struct {
	route.Peer // nil: nobody calls its other methods

	down, calls atomic.Int64
}

func (p *downPeer) Call(context.Context, uint16, *hearth.View) (*hearth.View, error) {
	if p.calls.Add(1) <= p.down.Load() {
		return nil, wire.ErrDown
	}
	return hearth.NewView([]byte{1}), nil
}

func TestAnOwnerOfVolumesIsWaitedFor(t *testing.T) {
	// The owner of a block cannot be reached for some seconds, and then keeps it. No other rank is asked meanwhile. If
	// it does not come back, the block has failed with that cause.
	for _, c := range []struct{ down, calls int64 }{{3, 4}, {1000, waits + 1}} {
		synctest.Test(t, func(t *testing.T) {
			p := &downPeer{}
			p.down.Store(c.down)
			o := New(Options{Router: ringOf(p), Names: nameless, Disk: &fakeDisk{}, Volumes: true})
			defer o.Close()
			var got error
			if !o.Load(t.Context(), small(1), 1, func(_ hearth.Block, err error) { got = err }) {
				t.Error("this node is asked")
			}
			if back := c.down < 10; back != (got == nil) || !back && (!errors.Is(got, route.ErrNobody) || !errors.Is(got, wire.ErrDown)) {
				t.Error(got)
			}
			if n := p.calls.Load(); n != c.calls {
				t.Errorf("%d calls, not %d", n, c.calls)
			}
		})
	}
}
