package namespace

import (
	"context"
	"sync"
)

// progress tells the followers of a listing where its cursor is, and how old its names are. Call Start
// first.
type progress struct {
	mu    sync.Mutex // guards the rest
	began int64
	any   bool // upTo is valid
	upTo  string
	done  bool
	err   error
	moved chan struct{} // closed when the cursor moved or the listing ended
}

// Start begins a listing at a time in Unix ms.
func (p *progress) Start(began int64) { p.began, p.moved = began, make(chan struct{}) }

// Began is when the origin was first asked for what the listing brings, in Unix ms. It only goes back,
// so names before a cursor that was read earlier are no older than it says.
func (p *progress) Began() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.began
}

// Dated says that the next names are of that time, which may be before the listing began.
func (p *progress) Dated(at int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = min(p.began, at)
}

// Snapshot returns the cursor, a sort name; any says whether there is one yet. moved is closed when the
// cursor has moved or the listing has ended.
func (p *progress) Snapshot() (upTo string, any, done bool, moved <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upTo, p.any, p.done, p.moved
}

// Passed reports whether the listing has written a sort name, or its absence, into the database that it
// began with.
func (p *progress) Passed(sort string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done && p.err == nil || p.any && sort <= p.upTo
}

// Advance moves the cursor.
func (p *progress) Advance(upTo string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.any, p.upTo = true, upTo
	close(p.moved)
	p.moved = make(chan struct{})
}

// End ends the listing for all who follow it.
func (p *progress) End(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.err = true, err
	close(p.moved)
	p.moved = make(chan struct{})
}

// Err is why the listing failed, once it has ended.
func (p *progress) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Wait returns nil when the listing has ended, or ctx's cause if ctx ended first.
func (p *progress) Wait(ctx context.Context) error {
	for {
		_, _, done, moved := p.Snapshot()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
