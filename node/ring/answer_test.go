package ring

import (
	"context"
	"errors"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/wiring"
)

// fakeOwned counts its calls, and holds nothing.
type fakeOwned struct{ asked int }

func (f *fakeOwned) Get(context.Context, hearth.Block, int, int) (*hearth.View, error) {
	f.asked++
	return nil, hearth.ErrMiss
}

func (f *fakeOwned) GetMany(_ context.Context, first hearth.Block, _ int, each func(hearth.Block, *hearth.View, error) bool) {
	f.asked++
	each(first, nil, hearth.ErrMiss)
}

func (f *fakeOwned) Has(hearth.ID) bool { return false }

func (f *fakeOwned) FromPeer(hearth.Block) bool { return false }

func TestAPeersKeyLiesInTheLink(t *testing.T) {
	// A member asks for an object of the right bucket and version, but outside what the link shows. This node's
	// credentials may read it, yet no tier is asked: not for a read, a run or a load. What the link shows is
	// asked for.
	owned := &fakeOwned{}
	here := 0
	r := &Part{o: Options{
		Away: func(error) bool { return false },
		Link: func(name string) (string, string, bool) { return "s3 at/bucket", "data/", name == "link" },
	}}
	r.Answer(wiring.Answers{Owned: owned, Here: func(context.Context, hearth.Block, int, int, func()) *hearth.View {
		here++
		return nil
	}})
	r.Warms(owned.GetMany, nil)
	h := r.Handler()
	for _, c := range []struct {
		link, key string
		asks      int
	}{
		{"link", "data/a", 5}, {"link", "data/../a", 5}, {"link", "secret/a", 0}, {"link", "dat", 0}, {"link", "data", 0}, {"link", "data2/a", 0}, {"link", "/data/a", 0}, {"other", "data/a", 0},
	} {
		o := &hearth.Object{Link: c.link, Key: c.key, ETag: "e", Size: 10, Version: hearth.VersionOf("s3 at/bucket", c.key, "e", 10)}
		owned.asked, here = 0, 0
		missed := func(_ hearth.Block, _ *hearth.View, err error) bool {
			if !errors.Is(err, hearth.ErrMiss) {
				t.Errorf("%s: %v", c.key, err)
			}
			return false
		}
		for _, n := range []int{0, 10} {
			_, err := h.Fill(t.Context(), o.Block(0), 0, n)
			missed(o.Block(0), nil, err)
		}
		for _, load := range []bool{false, true} {
			h.Run(t.Context(), o.Block(0), 1, load, missed)
		}
		h.Here(t.Context(), o.Block(0), 0, 10, func() {})
		if owned.asked+here != c.asks {
			t.Errorf("%s %s: asked %d times, not %d", c.link, c.key, owned.asked+here, c.asks)
		}
	}
}
