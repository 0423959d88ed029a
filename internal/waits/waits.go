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

// The kind of answer decides the cause, not the layer that waits.
const (
	// Origin is the wait for bytes of an object, from connecting to the last byte.
	Origin Cause = iota
	// Throttled is the pause that an origin asked for, whatever the request.
	Throttled
	// Disk is the wait for bytes that this node holds.
	Disk
	// List is the wait for names: look-ups, attributes and listings that asked an origin.
	List
	causes
)

// String is the cause's name in status and metrics.
func (c Cause) String() string { return [causes]string{"origin", "throttled", "disk", "list"}[c] }

// shards is the number of locks of a Ledger, so that few threads share one.
const shards = 64

// Ledger counts waits. A nil Ledger counts nothing.
type Ledger struct {
	shards [shards]shard
	pauses pauses
	alone  atomic.Uint64 // numbers the threads that are not known
}

// shard has the waits of some of the threads.
type shard struct {
	mu      sync.Mutex // guards the rest and its threads' Waits; held for some instructions; taken before that of pauses
	waited  [causes]time.Duration
	threads []thread // those that wait; its spare capacity is reused
	_       [64]byte // keeps shards on cache lines of their own
}

// thread has the requests of one thread of a reader that wait now.
type thread struct {
	id    uint64
	since time.Time // the time from here on is not counted yet
	waits []*Wait   // in the order of their beginning; never empty
}

// Wait is one request that waits. The zero Wait is a request that does not.
type Wait struct {
	ledger *Ledger
	cause  Cause
	thread uint64
	about  any
	paused time.Duration // the pause of about so far, when the thread was last counted
}

// New returns an empty Ledger.
func New() *Ledger { return &Ledger{pauses: pauses{of: map[any]*pause{}}} }

// Begin notes that a request waits for cause. It is a request of the thread of; 0 means that the
// thread is not known. about is the subject of the wait. nil means that there is none, and then no
// pause counts. The caller must call End.
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

// threadLocked returns the entry of a thread that waits. A thread that did not wait gets a new
// entry, from now on.
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

// leaveLocked removes a thread that no longer waits. The next thread reuses its entry.
func (s *shard) leaveLocked(t *thread) {
	last := len(s.threads) - 1
	*t, s.threads[last] = s.threads[last], *t
	s.threads = s.threads[:last]
}

// End notes that the request was answered, or no longer waits.
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

// share is how long a thread has waited beyond what is counted, and how long its first wait's
// subject paused meanwhile.
func (l *Ledger) share(t *thread, now time.Time) (all, slow time.Duration) {
	w := t.waits[0]
	all = now.Sub(t.since)
	return all, min(all, l.pauses.total(w.about, now)-w.paused)
}

// Seconds is the time waited so far, in seconds, by the causes' names. It includes waits that go
// on, and never falls.
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

// pauses has the time for which an origin slowed work down, by the work's subject. The subject nil
// has none.
type pauses struct {
	mu sync.Mutex // guards the rest; held for some instructions
	of map[any]*pause
}

// pause is one subject's. It exists while somebody waits for the subject or slows down for it.
type pause struct {
	users, slow int
	since       time.Time // when the first of those that slow down now began
	sum         time.Duration
}

// join adds a user of a subject, and returns its total.
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

// total is how long work on a subject was slowed down. The subject must have a user.
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
		return p.sum + max(0, now.Sub(p.since)) // now may have been taken before the lock
	}
	return p.sum
}

// mark is the context key of the subject that About notes.
type mark struct{}

type subject struct {
	ledger *Ledger
	about  any
}

// About marks the context of work that readers wait for with its subject.
func (l *Ledger) About(ctx context.Context, about any) context.Context {
	if l == nil {
		return ctx
	}
	return context.WithValue(ctx, mark{}, subject{l, about})
}

// SlowDown notes that the work of a context pauses, since its origin asks for that, until end is
// called. Without a mark of About it does nothing.
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
