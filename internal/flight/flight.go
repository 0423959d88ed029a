// Package flight lets callers that want the same thing at the same time share one attempt to get it
// (singleflight).
//
// A Group runs each attempt on a goroutine of its own, for work that outlives its first caller. A
// caller starts an attempt, or joins the one in flight, and waits. The wait ends with the caller's
// context; the attempt does not. It is cancelled when its last waiter has left. From that moment
// its keys are free again: the next caller starts a new attempt, and is never handed a cancelled
// one. A panic in the attempt becomes an error for all waiters. A value is handed over under the
// lock: each waiter of that moment gets its own reference, and a waiter that left before gets none.
//
// An attempt may have several keys (Lead), which it finishes one by one. Each key is joined and
// left by itself. The attempt ends early when nobody waits for its unfinished keys.
//
// Twins are the cheap form, for work that leaves nothing behind. The first caller does the work on
// its own goroutine and under its own context. Equal calls that come meanwhile wait for it. If it
// fails because its caller went away, one of the waiters does it again.
package flight

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

var (
	// ErrClosed is returned by a Group that was closed.
	ErrClosed = errors.New("closed")
	// ErrUnwanted is the cause with which an attempt is cancelled after its last waiter has left.
	ErrUnwanted = errors.New("nobody waits for it any more")

	errExited = errors.New("attempt ended without a result")
	errAgain  = errors.New("not attempted") // a waiter that sees it tries again
)

// PanicError is what waiters get when an attempt panicked.
type PanicError struct {
	// Value is what was passed to panic.
	Value any
	// Stack is the attempt's stack at that moment.
	Stack []byte
}

// Error names the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Group shares attempts by key. Its values are reference-counted: retain adds a reference for a
// waiter, and release gives back a reference that nobody wants.
type Group[K comparable, V any] struct {
	retain, release func(V)

	working sync.WaitGroup // running attempts; Add under mu while not closed
	flying  atomic.Int64   // len(calls), so that Join can look without the lock

	// mu guards the rest and every field of call and Run; it is never held while
	// work or a waiter runs. retain is called under it.
	mu       sync.Mutex
	calls    map[K]*call[V]
	attempts map[*attempt]struct{}
	closed   bool
}

// call is one key of an attempt. It is in Group.calls until it is finished or
// its attempt is cancelled.
type call[V any] struct {
	of       *attempt
	waiters  int           // each gets a reference when v is there
	done     chan struct{} // closed when v and err are set for good
	finished bool
	v        V
	err      error
}

// attempt is one run of work, for one key or several.
type attempt struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wanted int    // waiters of unfinished calls; at 0 the attempt is over
	over   bool   // cancelled since its last waiter left: none of its calls may be joined
	forget func() // removes its unfinished calls from Group.calls; called under mu
}

// NewGroup returns a Group without attempts.
func NewGroup[K comparable, V any](retain, release func(V)) *Group[K, V] {
	return &Group[K, V]{retain: retain, release: release, calls: map[K]*call[V]{}, attempts: map[*attempt]struct{}{}}
}

// Do returns what work yields for key, from the attempt in flight or a new one. The caller owns the
// reference that it gets. work runs on its own goroutine, under a context that ends when nobody
// waits any more. The reference that work returns belongs to the Group. shared says that another
// caller had started the attempt.
func (g *Group[K, V]) Do(ctx context.Context, key K, work func(context.Context) (V, error)) (v V, shared bool, err error) {
	for {
		g.mu.Lock()
		c := g.calls[key]
		if shared = c != nil; shared {
			g.joinLocked(c)
			g.mu.Unlock()
		} else {
			r, err := g.leadLocked(ctx, []K{key}, func(ctx context.Context, r *Run[K, V]) {
				v, err := work(ctx)
				r.Finish(0, v, err)
			})
			g.mu.Unlock()
			if err != nil {
				return v, false, err
			}
			c = r.calls[0]
		}
		if v, err = g.wait(ctx, c); !errors.Is(err, errAgain) {
			return v, shared, err
		}
	}
}

// Join waits for the attempt in flight for key, if there is one. If no attempt at all is in flight,
// it costs one atomic load.
func (g *Group[K, V]) Join(ctx context.Context, key K) (v V, joined bool, err error) {
	if g.flying.Load() == 0 {
		return v, false, nil
	}
	g.mu.Lock()
	c := g.calls[key]
	if c == nil {
		g.mu.Unlock()
		return v, false, nil
	}
	g.joinLocked(c)
	g.mu.Unlock()
	if v, err = g.wait(ctx, c); errors.Is(err, errAgain) {
		return v, false, nil // it ended without touching our key: as if there had been no attempt
	}
	return v, true, err
}

// Flying reports whether an attempt is in flight for key.
func (g *Group[K, V]) Flying(key K) bool {
	if g.flying.Load() == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls[key] != nil
}

// Lead starts one attempt for keys from the first on, up to the first that has an attempt in
// flight. It returns nil if that is the first key. The caller waits for each key by Run.Wait, and
// calls Run.Leave if it goes before the last. work calls Run.Finish for each key, in any order. A
// waiter for a key that work does not finish makes an attempt of its own, unless work panicked.
func (g *Group[K, V]) Lead(ctx context.Context, keys []K, work func(context.Context, *Run[K, V])) (*Run[K, V], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	free := 0
	for free < len(keys) && g.calls[keys[free]] == nil {
		free++
	}
	if free == 0 && !g.closed {
		return nil, nil
	}
	return g.leadLocked(ctx, keys[:free], work)
}

// Close cancels every attempt and waits until none runs. Calls made afterwards
// get ErrClosed.
func (g *Group[K, V]) Close() {
	g.mu.Lock()
	g.closed = true
	for a := range g.attempts {
		a.cancel(ErrClosed)
	}
	g.mu.Unlock()
	g.working.Wait()
}

func (g *Group[K, V]) leadLocked(of context.Context, keys []K, work func(context.Context, *Run[K, V])) (*Run[K, V], error) {
	if g.closed {
		return nil, ErrClosed
	}
	// An attempt does not end with the first caller's context, but keeps its values: they tell for
	// whom it began.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(of))
	r := &Run[K, V]{g: g, of: attempt{ctx: ctx, cancel: cancel, wanted: len(keys)}, keys: keys, calls: make([]*call[V], len(keys))}
	r.of.forget = r.forgetLocked
	for i, key := range keys {
		r.calls[i] = &call[V]{of: &r.of, waiters: 1, done: make(chan struct{})}
		g.calls[key] = r.calls[i]
	}
	g.attempts[&r.of] = struct{}{}
	g.working.Add(1)
	g.flying.Store(int64(len(g.calls)))
	go r.run(work)
	return r, nil
}

func (g *Group[K, V]) joinLocked(c *call[V]) {
	c.waiters++
	c.of.wanted++
}

// wait ends when the call is finished or when ctx ends. A caller whose context ended still takes a
// result that is there already.
func (g *Group[K, V]) wait(ctx context.Context, c *call[V]) (v V, err error) {
	select {
	case <-c.done:
		return c.v, c.err
	default:
	}
	select {
	case <-c.done:
		return c.v, c.err
	case <-ctx.Done():
		g.leave(c)
		return v, context.Cause(ctx)
	}
}

// leave removes one waiter from a call. If it was handed a reference already, the reference is
// released; otherwise it will get none.
func (g *Group[K, V]) leave(c *call[V]) {
	g.mu.Lock()
	if !c.finished {
		defer g.mu.Unlock()
		c.waiters--
		g.unwantLocked(c.of, 1)
		return
	}
	g.mu.Unlock()
	if c.err == nil {
		g.release(c.v)
	}
}

// unwantLocked notes that n fewer waiters want the unfinished part of the attempt. After the last
// it cancels the attempt, and its keys are free at once.
func (g *Group[K, V]) unwantLocked(a *attempt, n int) {
	a.wanted -= n
	if a.wanted > 0 || a.over {
		return
	}
	a.over = true
	a.forget()
	a.cancel(ErrUnwanted)
}

// Run is one attempt for several keys, as its leader and its work see it.
type Run[K comparable, V any] struct {
	g     *Group[K, V]
	of    attempt
	keys  []K
	calls []*call[V]
	left  int // the leader has waited for the calls before it; only the leader uses it
}

// Len is the number of keys of the attempt: the first ones that Lead was given.
func (r *Run[K, V]) Len() int { return len(r.keys) }

// Wait is the leader's wait for key i. It is called in ascending order, once for each key. again
// says that the attempt ended without touching the key.
func (r *Run[K, V]) Wait(ctx context.Context, i int) (v V, again bool, err error) {
	r.left = i + 1
	v, err = r.g.wait(ctx, r.calls[i])
	if errors.Is(err, errAgain) {
		return v, true, nil
	}
	return v, false, err
}

// Leave ends the leader's wait for every key that it has not waited for. The attempt goes on for
// those who joined.
func (r *Run[K, V]) Leave() {
	for _, c := range r.calls[r.left:] {
		r.g.leave(c)
	}
	r.left = len(r.calls)
}

// Finish hands the result for key i to its waiters. The reference belongs to the Run from here on.
// It returns false when nobody wants the unfinished keys.
func (r *Run[K, V]) Finish(i int, v V, err error) bool {
	g, c := r.g, r.calls[i]
	g.mu.Lock()
	if !c.finished {
		r.finishLocked(i, v, err)
	}
	wanted := !r.of.over
	g.mu.Unlock()
	if err == nil {
		g.release(v) // each waiter has its own
	}
	return wanted
}

func (r *Run[K, V]) finishLocked(i int, v V, err error) {
	g, c := r.g, r.calls[i]
	if g.calls[r.keys[i]] == c {
		delete(g.calls, r.keys[i])
		g.flying.Store(int64(len(g.calls)))
	}
	if err == nil {
		for range c.waiters {
			g.retain(v)
		}
	}
	c.v, c.err, c.finished = v, err, true
	close(c.done)
	g.unwantLocked(&r.of, c.waiters)
}

// forgetLocked frees the keys of unfinished calls, unless a later attempt has
// taken them since.
func (r *Run[K, V]) forgetLocked() {
	for i, c := range r.calls {
		if r.g.calls[r.keys[i]] == c {
			delete(r.g.calls, r.keys[i])
		}
	}
	r.g.flying.Store(int64(len(r.g.calls)))
}

// run does the work, and gives a result to every key that the work left unfinished.
func (r *Run[K, V]) run(work func(context.Context, *Run[K, V])) {
	g := r.g
	defer g.working.Done()
	rest := errExited // runtime.Goexit, which recover does not see
	defer func() {
		if p := recover(); p != nil {
			rest = &PanicError{Value: p, Stack: debug.Stack()}
		}
		var none V
		g.mu.Lock()
		if errors.Is(rest, errAgain) && g.closed {
			rest = ErrClosed
		}
		for i, c := range r.calls {
			if !c.finished {
				r.finishLocked(i, none, rest)
			}
		}
		delete(g.attempts, &r.of)
		g.mu.Unlock()
		r.of.cancel(ErrUnwanted) // frees the context; the work is over
	}()
	work(r.of.ctx, r)
	rest = errAgain
}
