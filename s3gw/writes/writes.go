// Package writes is for writes whose clients have gone, or whose answers were lost.
//
// An origin that has all of a write ends it, whoever waits. So what was asked for lasts beyond its
// client (Lasting), and what it may have changed is forgotten when it is done. Where the answer does
// not come nobody knows when that is: it is forgotten again, several times (Again), and at the end once
// more, by a context that is over, so that whoever can only doubts it.
//
// One goroutine attends to all that is unsure, and only while anything is. How much that is is bounded
// in keys; of what is beyond the caller has something coarser forgotten.
package writes

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// finishWithin is how long the answer to a write is waited for behind a client that has gone,
	// where the origin says something now and then; its silence has bounds of its own. It is as long
	// as these: Amazon says of CompleteMultipartUpload that it "can take several minutes".
	finishWithin = 10 * time.Minute
	// Most keys are forgotten again one by one, which are some 10 MiB.
	Most = 10_000
	// eachWithin is how long forgetting one may take, and allWithin for all that are due: after it
	// they are only doubted. atOnce of them are forgotten at a time.
	eachWithin, allWithin = 5 * time.Second, time.Minute
	atOnce                = 8
)

// errEnds is why what is under way ends.
var errEnds = fmt.Errorf("the endpoint ends: %w", context.Canceled)

// Options say when a name is forgotten once more. The zero Options works.
type Options struct {
	// After is when it is forgotten again, counted from when the answer was lost, each later than the
	// one before. None: after 5 s, a minute, and as long as an answer is waited for.
	After []time.Duration
}

// Writes are those of an endpoint.
type Writes struct {
	ctx   context.Context // ends with End
	end   context.CancelCauseFunc
	after []time.Duration
	more  chan struct{}  // something is unsure that may be due earlier than all else
	work  sync.WaitGroup // the goroutine that attends

	mu     sync.Mutex        // guards the rest
	unsure map[string]unsure // by name; not empty: a goroutine attends to it
	keys   int               // in them
}

// unsure is a write of which nobody knows whether it was, or is yet to be, done.
type unsure struct {
	forget func(ctx context.Context)
	keys   int
	since  time.Time
	turn   int // of those in after
}

// New returns Writes of which none is unsure. Close them.
func New(o Options) *Writes {
	w := &Writes{after: o.After, more: make(chan struct{}, 1), unsure: map[string]unsure{}}
	if len(w.after) == 0 {
		w.after = []time.Duration{5 * time.Second, time.Minute, finishWithin}
	}
	w.ctx, w.end = context.WithCancelCause(context.Background())
	return w
}

// Context ends with End.
func (w *Writes) Context() context.Context { return w.ctx }

// Lasting is the context of a write that is finished though its client has gone: it has the values of
// ctx, and ends with End and some time after the client. end must be called.
func (w *Writes) Lasting(ctx, client context.Context) (lasting context.Context, end func()) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	late := time.AfterFunc(finishWithin, func() {
		cancel(fmt.Errorf("the origin is not done %v after the client has gone", finishWithin))
	})
	late.Stop()
	gone := context.AfterFunc(client, func() { late.Reset(finishWithin) })
	ends := context.AfterFunc(w.ctx, func() { cancel(context.Cause(w.ctx)) })
	return lasting, func() {
		gone()
		ends()
		late.Stop()
		cancel(nil)
	}
}

// Again has a write of so many keys forgotten again. One of that name that is unsure already begins
// anew. false: there is no room; what counts no keys always has some.
func (w *Writes) Again(name string, keys int, forget func(ctx context.Context)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.unsure[name]
	if keys > 0 && w.keys-before.keys+keys > Most {
		return false
	}
	begins := len(w.unsure) == 0
	w.keys += keys - before.keys
	w.unsure[name] = unsure{forget: forget, keys: keys, since: time.Now()}
	if begins {
		w.work.Go(w.attend) // ends when nothing is unsure any more
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
	return true
}

// End ends what lasts. What becomes unsure then is forgotten at once.
func (w *Writes) End() { w.end(errEnds) }

// Close waits until what is unsure was forgotten once more. Nobody calls Again any more.
func (w *Writes) Close() {
	w.End()
	w.work.Wait()
}

// attend forgets what is due until nothing is unsure any more.
func (w *Writes) attend() {
	for {
		due, wait := w.due(time.Now(), w.ctx.Err() != nil)
		w.forget(due)
		switch {
		case len(due) > 0:
			continue
		case wait < 0:
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-w.more:
		case <-w.ctx.Done():
		}
		timer.Stop()
	}
}

// due is what is to be forgotten now, or all of it for the last time, and else how long nothing is;
// negative: nothing is left, and whoever comes next has another attend.
func (w *Writes) due(now time.Time, last bool) (due []func(context.Context), wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait = -1
	for name, u := range w.unsure {
		if u.turn == len(w.after) { // its last turn is over
			w.keys -= u.keys
			delete(w.unsure, name)
			continue
		}
		if left := u.since.Add(w.after[u.turn]).Sub(now); left > 0 && !last {
			if wait < 0 || left < wait {
				wait = left
			}
			continue
		}
		if u.turn++; last {
			u.turn = len(w.after)
		}
		w.unsure[name] = u
		due = append(due, u.forget)
	}
	return due, wait
}

// forget forgets, some at a time.
func (w *Writes) forget(all []func(context.Context)) {
	ctx, cancel := context.WithTimeout(w.ctx, allWithin)
	defer cancel()
	var work sync.WaitGroup
	defer work.Wait()
	room := make(chan struct{}, atOnce)
	for _, forget := range all {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, eachWithin)
			defer cancel()
			forget(ctx)
		})
	}
}
