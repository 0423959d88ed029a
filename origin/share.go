package origin

import (
	"context"
	"sync"
)

// This file shares an origin's connections out among clients whose requests are sent on, and who
// take the answers as slowly as they like.

// clientKey is where For leaves a client's name in a context.
type clientKey struct{}

// ForClient says for which client a request is, so that it has that one's share at most. The name is "" for
// all who have none; a request without a name in its context has no share.
func ForClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// shares are tokens of which each client has so many at most.
type shares struct {
	slots chan struct{} // a token for each
	each  int           // of these for one client

	mu      sync.Mutex              // guards the rest
	clients map[string]*clientShare // those that have some, or wait
}

// clientShare are one client's.
type clientShare struct {
	slots chan struct{}
	users int // guarded by Shares.mu
}

// newShares makes so many; one client has half of them at most, and one at least.
func newShares(most int) *shares {
	return &shares{slots: make(chan struct{}, most), each: max(1, most/2), clients: map[string]*clientShare{}}
}

// Taken is how many tokens are, Clients how many clients have some or wait.
func (d *shares) Taken() (tokens, clients int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.slots), len(d.clients)
}

// Take waits for a token of the client's, and for one of all, which release gives back. The error is
// the cause with which ctx ended.
func (d *shares) Take(ctx context.Context) (release func(), err error) {
	mine := func() {}
	if client, ok := ctx.Value(clientKey{}).(string); ok {
		if mine, err = d.mine(ctx, client); err != nil {
			return nil, err
		}
	}
	all, err := acquireSlot(ctx, d.slots)
	if err != nil {
		mine()
		return nil, err
	}
	return func() { all(); mine() }, nil
}

func (d *shares) mine(ctx context.Context, client string) (release func(), err error) {
	d.mu.Lock()
	s := d.clients[client]
	if s == nil {
		s = &clientShare{slots: make(chan struct{}, d.each)}
		d.clients[client] = s
	}
	s.users++
	d.mu.Unlock()
	gone := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(d.clients, client)
		}
	}
	give, err := acquireSlot(ctx, s.slots)
	if err != nil {
		gone()
		return nil, err
	}
	return func() { give(); gone() }, nil
}

func acquireSlot(ctx context.Context, slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
