package wiring

import (
	"context"
	"testing"

	"github.com/hearthfs/hearth"
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
