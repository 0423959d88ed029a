package flight

import (
	"context"
	"hash/maphash"
	"runtime/debug"
	"sync"
)

// twinShards keeps callers of different keys apart. Readers of a cache take a shard's lock twice
// for each call.
const twinShards = 64

// Twins shares equal calls that are made at the same time (singleflight). Its values are
// reference-counted, as a Group's are.
type Twins[K comparable, V any] struct {
	retain, release func(V)
	seed            maphash.Seed
	shards          [twinShards]twinShard[K, V]
}

type twinShard[K comparable, V any] struct {
	mu    sync.Mutex // guards the rest and the twins' fields; never held in work
	calls map[K]*twin[V]
	idle  *twin[V] // the last twin that nobody joined, reused by the next call
	_     [40]byte // keeps shards on cache lines of their own
}

type twin[V any] struct {
	waiters  int
	done     chan struct{} // made by the first caller that joins, closed when v is there
	finished bool
	again    bool // the first caller went away: the waiters try again
	v        V
	err      error
}

// NewTwins returns Twins without calls.
func NewTwins[K comparable, V any](retain, release func(V)) *Twins[K, V] {
	t := &Twins[K, V]{retain: retain, release: release, seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].calls = map[K]*twin[V]{}
	}
	return t
}

// Do returns what work yields. work runs on the caller's goroutine and under the caller's context.
// If an equal call is in flight, the caller gets the result of that one, and shared is true.
func (t *Twins[K, V]) Do(ctx context.Context, key K, work func(context.Context) (V, error)) (v V, shared bool, err error) {
	s := &t.shards[maphash.Comparable(t.seed, key)%twinShards]
	for {
		s.mu.Lock()
		c := s.calls[key]
		if c == nil {
			s.startLocked(key)
			s.mu.Unlock()
			v, err = t.lead(ctx, s, key, work)
			return v, false, err
		}
		c.waiters++
		if c.done == nil {
			c.done = make(chan struct{})
		}
		s.mu.Unlock()
		select {
		case <-c.done:
			if !c.again {
				return c.v, true, c.err
			}
		case <-ctx.Done():
			t.leave(s, c)
			return v, true, context.Cause(ctx)
		}
	}
}

func (s *twinShard[K, V]) startLocked(key K) *twin[V] {
	c := s.idle
	if s.idle = nil; c == nil {
		c = &twin[V]{}
	}
	s.calls[key] = c
	return c
}

// lead does the work and hands the result to those who joined meanwhile, however
// the work ends.
func (t *Twins[K, V]) lead(ctx context.Context, s *twinShard[K, V], key K, work func(context.Context) (V, error)) (v V, err error) {
	again := true // stays so after runtime.Goexit, which recover does not see
	defer func() {
		if p := recover(); p != nil {
			err, again = &PanicError{Value: p, Stack: debug.Stack()}, false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.calls[key]
		delete(s.calls, key)
		if c.done == nil { // nobody joined it
			s.idle = c
			return
		}
		for range c.waiters {
			if err == nil && !again {
				t.retain(v)
			}
		}
		c.v, c.err, c.again, c.finished = v, err, again, true
		close(c.done)
	}()
	v, err = work(ctx)
	again = err != nil && ctx.Err() != nil
	return v, err
}

func (t *Twins[K, V]) leave(s *twinShard[K, V], c *twin[V]) {
	s.mu.Lock()
	if !c.finished {
		c.waiters--
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if c.err == nil && !c.again {
		t.release(c.v)
	}
}
