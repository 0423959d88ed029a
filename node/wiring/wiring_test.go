package wiring

import (
	"context"
	"errors"
	"testing"

	"github.com/hearthfs/hearth"
)

// fakeSource holds one block.
type fakeSource struct{ text string }

func (s *fakeSource) Get(_ context.Context, _ hearth.Block, off, n int) (*hearth.View, error) {
	return hearth.NewView([]byte(s.text)[off : off+n]), nil
}

func TestAloneServesItsOwn(t *testing.T) {
	// Without a ring its parts pass through, and Fill at the owner is a read of one's own.
	a := &alone{}
	own := &fakeSource{"abc"}
	o := &hearth.Object{Key: "k", ETag: "e", Size: 3}
	if _, err := a.Fill().Get(t.Context(), o.Block(0), 0, 3); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("before Serve: %v", err)
	}
	if a.Former(own) != hearth.Source(own) || a.Route(own, nil) != hearth.Source(own) {
		t.Error("Former or Route does not pass through")
	}
	if err := a.Serve(own, own); err != nil {
		t.Fatal(err)
	}
	v, err := a.Fill().Get(t.Context(), o.Block(0), 1, 2)
	if err != nil || string(v.Bytes()) != "bc" {
		t.Error(v, err)
	}
}
