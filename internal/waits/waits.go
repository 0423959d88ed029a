// Package waits counts the seconds that readers waited, by cause.
//
// A request says when it begins to wait, when it was answered, and what it waited for: bytes of an
// origin, names, a disk. A request that is answered without a wait says nothing. The kernel reads
// ahead for a thread, so several of its requests may wait at once, while the thread waits once. So
// the time counts during which at least one request of a thread waited. Each stretch counts for the
// cause of the request that waited longest.
//
// The work that a request waits for is shared and runs elsewhere, under a context that About has
// marked with its subject: a version, a link. If an origin asks there to slow down, SlowDown notes
// the pause. That part of a wait for the same subject counts as throttling, and no longer as the
// origin's.
//
// A wait costs two looks at a clock and a lock that a few threads share, and no memory. So a
// request that is answered within microseconds may also say that it waits.
package waits

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Cause is what a request waited for.
type Cause int

// The content of the answer decides among them, not the layer that waits.
const (
	// Origin is bytes of an object, from the connection to the last of them.
	Origin Cause = iota
	// Throttled is the pause that an origin asked for, for whatever request.
	Throttled
	// Disk is bytes that this node holds.
	Disk
	// List is names: look-ups, attributes and listings that asked an origin.
	List
	causes
)

// String is the cause's name in status and metrics.
func (c Cause) String() string { return [causes]string{"origin", "throttled", "disk", "list"}[c] }

// shards keeps threads away from each other's locks.
const shards = 64

// Ledger is where waits are counted. A nil one counts nothing.
type Ledger struct {
	shards [shards]shard
	pauses pauses
	alone  atomic.Uint64 // numbers threads that are not known
}

// shard is some of the threads.
type shard struct {
	mu      sync.Mutex // guards the rest and its threads' Waits; held for some instructions; taken before that of pauses
	waited  [causes]time.Duration
	threads []thread // that wait; behind them, up to its capacity, room of some that did
	_       [64]byte // keeps shards on cache lines of their own
}

// thread holds the requests of one thread of a reader that wait now.
type thread struct {
	id    uint64
	since time.Time // what is not counted yet
	waits []*Wait   // in the order of their beginning; never empty
}

// Wait is one request that waits, or, if it is zero, one that does not.
type Wait struct {
	ledger *Ledger
	cause  Cause
	thread uint64
	about  any
	paused time.Duration // of the thing until what is counted of the thread
}

// New returns an empty Ledger.
func New() *Ledger { return &Ledger{pauses: pauses{of: map[any]*pause{}}} }

// Begin notes that a request of a thread (0: not known) waits, for cause and for the
// thing that about says, which may be nil: nobody slows down for that. It must be ended.
func (w *Wait) Begin(l *Ledger, of uint32, cause Cause, about any) {
	if l == nil {
		return
	}
	*w = Wait{ledger: l, cause: cause, thread: uint64(of), about: about}
	if of == 0 {
		w.thread = l.alone.Add(1) << 32
	}
	s := l.shard(w.thread)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	w.paused = l.pauses.join(about, now)
	t := s.threadLocked(w.thread, now)
	t.waits = append(t.waits, w)
}

func (l *Ledger) shard(thread uint64) *shard { return &l.shards[(thread^thread>>32)%shards] }

// threadLocked is a thread that waits, since now if it did not.
func (s *shard) threadLocked(id uint64, now time.Time) *thread {
	for i := range s.threads {
		if s.threads[i].id == id {
			return &s.threads[i]
		}
	}
	n := len(s.threads)
	if n == cap(s.threads) {
		s.threads = append(s.threads, thread{})
	}
	s.threads = s.threads[:n+1]
	t := &s.threads[n]
	t.id, t.since = id, now
	return t
}

// leaveLocked makes the room of a thread that does not wait any more the next one's.
func (s *shard) leaveLocked(t *thread) {
	last := len(s.threads) - 1
	*t, s.threads[last] = s.threads[last], *t
	s.threads = s.threads[:last]
}

// End notes that the request is answered, or waits no more.
func (w *Wait) End() {
	l := w.ledger
	if l == nil {
		return
	}
	s := l.shard(w.thread)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	t := s.threadLocked(w.thread, now)
	all, slow := l.share(t, now)
	s.waited[t.waits[0].cause] += all - slow
	s.waited[Throttled] += slow
	t.waits = slices.DeleteFunc(t.waits, func(x *Wait) bool { return x == w })
	l.pauses.leave(w.about)
	t.since = now
	for _, x := range t.waits {
		x.paused = l.pauses.total(x.about, now)
	}
	if len(t.waits) == 0 {
		s.leaveLocked(t)
	}
	*w = Wait{}
}

// share is what a thread has waited and is not counted, and how much of it its first
// wait was slowed down.
func (l *Ledger) share(t *thread, now time.Time) (all, slow time.Duration) {
	w := t.waits[0]
	all = now.Sub(t.since)
	return all, min(all, l.pauses.total(w.about, now)-w.paused)
}

// Seconds are what was waited so far, by the names of the causes, those who wait now
// included. They never fall.
func (l *Ledger) Seconds() map[string]float64 {
	var sums [causes]time.Duration
	for i := range l.shards {
		l.shards[i].addTo(&sums, l)
	}
	m := map[string]float64{}
	for c, sum := range sums {
		m[Cause(c).String()] = sum.Seconds()
	}
	return m
}

func (s *shard) addTo(sums *[causes]time.Duration, l *Ledger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, d := range s.waited {
		sums[c] += d
	}
	now := time.Now()
	for i := range s.threads {
		t := &s.threads[i]
		all, slow := l.share(t, now)
		sums[t.waits[0].cause] += all - slow
		sums[Throttled] += slow
	}
}

// pauses are how long somebody had to slow down, by what for. Of nil that is never.
type pauses struct {
	mu sync.Mutex // guards the rest; held for some instructions
	of map[any]*pause
}

// pause stands while somebody waits for the thing or slows down for it.
type pause struct {
	users, slow int
	since       time.Time // of the first that slows down now
	sum         time.Duration
}

// join is total, with one user more.
func (p *pauses) join(about any, now time.Time) time.Duration {
	if about == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.useLocked(about).total(now)
}

func (p *pauses) useLocked(about any) *pause {
	x := p.of[about]
	if x == nil {
		x = &pause{}
		p.of[about] = x
	}
	x.users++
	return x
}

func (p *pauses) leave(about any) {
	if about == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(about)
}

func (p *pauses) leaveLocked(about any) {
	x := p.of[about]
	if x.users--; x.users == 0 {
		delete(p.of, about)
	}
}

// total is how long somebody slowed down for a thing that has a user.
func (p *pauses) total(about any, now time.Time) time.Duration {
	if about == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[about].total(now)
}

func (p *pause) total(now time.Time) time.Duration {
	if p.slow > 0 {
		return p.sum + max(0, now.Sub(p.since)) // now may be from before the lock
	}
	return p.sum
}

// mark is the key of what About notes in a context.
type mark struct{}

type subject struct {
	ledger *Ledger
	about  any
}

// About marks a context of work that readers wait for with what it is about.
func (l *Ledger) About(ctx context.Context, about any) context.Context {
	if l == nil {
		return ctx
	}
	return context.WithValue(ctx, mark{}, subject{l, about})
}

// SlowDown notes that the work of a context pauses because its origin asks for that, until
// end is called. It is nothing in a context that About has not marked.
func SlowDown(ctx context.Context) (end func()) {
	s, ok := ctx.Value(mark{}).(subject)
	if !ok {
		return func() {}
	}
	l := &s.ledger.pauses
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.useLocked(s.about)
	if p.slow++; p.slow == 1 {
		p.since = time.Now()
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := time.Now()
		if p.slow--; p.slow == 0 {
			p.sum += now.Sub(p.since)
		}
		l.leaveLocked(s.about)
	}
}
