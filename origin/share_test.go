package origin

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestShares(t *testing.T) {
	// One client has half at most, all together no more than there is, and who has no name takes of
	// all; what a client waited for in vain is no use to it, and nothing of it is left.
	d := newShares(4)
	over := errors.New("over")
	ended, end := context.WithCancelCause(t.Context())
	end(over)
	var held []func()
	take := func(ctx context.Context, want error) {
		t.Helper()
		give, err := d.Take(ctx)
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
		if err == nil {
			held = append(held, give)
		}
	}
	a := ForClient(t.Context(), "a")
	take(a, nil)
	take(a, nil)
	take(ForClient(ended, "a"), over)
	take(ForClient(t.Context(), ""), nil)
	take(t.Context(), nil)
	take(ForClient(ended, "b"), over)
	take(ended, over)
	if tokens, clients := d.Taken(); tokens != 4 || clients != 2 {
		t.Errorf("%d tokens of %d clients", tokens, clients)
	}
	var work sync.WaitGroup
	for range 8 { // they wait in turn
		work.Go(func() {
			give, err := d.Take(a)
			if err != nil {
				t.Error(err)
				return
			}
			give()
		})
	}
	for _, give := range held {
		give()
	}
	work.Wait()
	if tokens, clients := d.Taken(); tokens != 0 || clients != 0 {
		t.Errorf("%d tokens of %d clients are left", tokens, clients)
	}
}

func TestAFreePlaceIsTakenThoughTimeIsOver(t *testing.T) {
	// A request whose time to wait passed while the machine stood still has its place if one is free. It was refused
	// every other time.
	d := newShares(4)
	ended, end := context.WithCancel(ForClient(t.Context(), "a"))
	end()
	for range 100 {
		give, err := d.Take(ended)
		if err != nil {
			t.Fatal(err)
		}
		give()
	}
}

func TestFewShares(t *testing.T) {
	// Of one there is one for each.
	d := newShares(1)
	give, err := d.Take(ForClient(t.Context(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	give()
}
