package namespace

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestWhoFollowsSeesTheCursorNotAheadOfItsDate(t *testing.T) {
	// A listing that began at 100 copies names of 70, moves its cursor and ends. A reader that looks at the
	// cursor first, and at the date after it, never gets too young a date.
	var p progress
	p.Start(100)
	upTo, any, done, moved := p.Snapshot()
	if any || done || upTo != "" || p.Began() != 100 || p.Passed("a") {
		t.Fatalf("%q %v %v at %d", upTo, any, done, p.Began())
	}
	p.Dated(70)
	p.Dated(90) // a later page is younger, the whole is not
	p.Advance("m")
	select {
	case <-moved:
	default:
		t.Error("nobody is told that the cursor moved")
	}
	if upTo, any, done, _ := p.Snapshot(); !any || done || upTo != "m" || p.Began() != 70 || !p.Passed("m") || p.Passed("n") {
		t.Errorf("%q %v %v at %d", upTo, any, done, p.Began())
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	if err := p.Wait(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("who went away: %v", err)
	}
	failed := errors.New("away")
	time.AfterFunc(0, func() { p.End(failed) })
	if err := p.Wait(t.Context()); err != nil || p.Err() != failed || p.Passed("n") {
		t.Errorf("%v, %v", err, p.Err())
	}
	var whole progress
	whole.Start(1)
	if whole.End(nil); !whole.Passed("anything") {
		t.Error("a whole listing has not passed all")
	}
}
