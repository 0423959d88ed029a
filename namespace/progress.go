package namespace

import (
	"context"
	"sync"
)

// This file tells those who follow a listing how far it is and how old.

// progress is how far a listing is. Start it.
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

// Began is when the origin was first asked for what the listing brings, in Unix ms. It
// only goes back: what a cursor that was looked at before vouches for is no older.
func (p *progress) Began() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.began
}

// Dated says that what comes next is of a time, which may be before the listing began.
func (p *progress) Dated(at int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = min(p.began, at)
}

// Snapshot is the cursor, a sort name, if there is any yet; moved is closed when that has
// changed or the listing has ended.
func (p *progress) Snapshot() (upTo string, any, done bool, moved <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upTo, p.any, p.done, p.moved
}

// Passed reports whether the database of the listing's beginning has a sort name as
// the listing found it.
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

// Wait returns when the listing has ended, with ctx's cause if that ended first.
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
