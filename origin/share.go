package origin

import (
	"context"
	"sync"
)

// This file shares an origin's connections among the clients of forwarded requests, who
// read the answers as slowly as they like.

// clientKey is the context key of ForClient.
type clientKey struct{}

// ForClient names the client of a request, so that all requests of that client stay within one share.
// The name "" is for all clients without one. A request without a name in its context has no share.
func ForClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// shares is a semaphore of which each client may hold only a part.
type shares struct {
	slots chan struct{} // the semaphore for all clients
	each  int           // tokens that one client may hold

	mu      sync.Mutex              // guards the rest
	clients map[string]*clientShare // those that hold a token, or wait
}

// clientShare is the semaphore of one client.
type clientShare struct {
	slots chan struct{}
	users int // guarded by shares.mu
}

// newShares makes that many tokens. One client may hold at most half of them, and always one.
func newShares(most int) *shares {
	return &shares{slots: make(chan struct{}, most), each: max(1, most/2), clients: map[string]*clientShare{}}
}

// Taken returns how many tokens are held, and how many clients hold some or wait.
func (d *shares) Taken() (tokens, clients int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.slots), len(d.clients)
}

// Take acquires a token of the client and one of the whole, which release gives back. It does not wait
// for free ones, even if ctx has ended meanwhile. The error wraps ctx's cause.
func (d *shares) Take(ctx context.Context) (release func(), err error) {
	mine := func() {}
	if client, ok := ctx.Value(clientKey{}).(string); ok {
		if mine, err = d.mine(ctx, client); err != nil {
			return nil, err
		}
	}
	all, err := acquire(ctx, d.slots)
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
	give, err := acquire(ctx, s.slots)
	if err != nil {
		gone()
		return nil, err
	}
	return func() { give(); gone() }, nil
}
