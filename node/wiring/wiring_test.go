package wiring

import (
	"context"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeSource holds one block.
type fakeSource struct{ text string }

func (s *fakeSource) Get(_ context.Context, _ hearth.Block, off, n int) (*hearth.View, error) {
	return hearth.NewView([]byte(s.text)[off : off+n]), nil
}

func TestAloneEverythingIsOwn(t *testing.T) {
	// Without a ring its parts pass through, and Fill at the owner is a read of one's own.
	own := &fakeSource{"abc"}
	if (alone{}).Former(own) != hearth.Source(own) || (alone{}).Route(own, nil) != hearth.Source(own) || (alone{}).Fill(own, nil) != hearth.Source(own) {
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
	// What memory holds is ready for peers; what it does not hold nobody is asked for.
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
