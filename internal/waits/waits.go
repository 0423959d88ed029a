// Package waits counts the seconds that readers waited, by cause.
//
// A request says when it begins to wait and when it was answered, and for what it waited:
// bytes of an origin, names, a disk. A request that is answered at once says nothing. The
// kernel reads ahead for a thread, so that several of its requests may wait at once,
// while the thread waits once: what is counted is how long at least one request of a
// thread waited, each stretch for the cause of the request that waited longest.
//
// The work that a request waits for is shared and runs elsewhere, under a context that
// About has marked with what it is about: a version, a link. There an origin that asks to
// slow down is obeyed by SlowDown, and of a stretch of waiting for the same thing
// that much is no longer the origin's, but the throttling's.
//
// Costs lie in waits alone: a lock, two looks at a clock and an allocation each.
package waits

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Cause is what was waited for.
type Cause int

// The causes.
const (
	// Origin is bytes of an object, from the connection to the last of them.
	Origin Cause = iota
	// Throttled is the pause that an origin asked for, whatever for.
	Throttled
	// Disk is bytes that a cache directory holds.
	Disk
	// List is names: look-ups, attributes and listings that asked an origin.
	List
	causes
)

// String is the cause's name in status and metrics.
func (c Cause) String() string { return [causes]string{"origin", "throttled", "disk", "list"}[c] }

// Ledger is where waits are counted. A nil one counts nothing.
type Ledger struct {
	waited [causes]atomic.Int64 // nanoseconds

	mu      sync.Mutex // guards the rest; held for some instructions
	threads map[uint64]*thread
	pauses  map[any]*pause
	alone   uint64 // numbers threads that are not known
}

// thread is one that waits.
type thread struct {
	since time.Time // what is not counted yet
	waits []*Wait   // in the order of their beginning; never empty
}

// pause is how long somebody had to slow down for one thing; it stands while somebody
// waits for that or slows down for it.
type pause struct {
	users, slow int
	since       time.Time // of the first that slows down now
	sum         time.Duration
}

// Wait is one request that waits.
type Wait struct {
	ledger *Ledger
	cause  Cause
	thread uint64
	about  any
	paused time.Duration // of the thing until what is counted of the thread
}

// New returns an empty Ledger.
func New() *Ledger { return &Ledger{threads: map[uint64]*thread{}, pauses: map[any]*pause{}} }

// Begin notes that a request of a thread (0: not known) waits, for cause and for the
// thing that about says. It must be ended.
func (l *Ledger) Begin(of uint32, cause Cause, about any) *Wait {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	w := &Wait{ledger: l, cause: cause, thread: uint64(of), about: about}
	if of == 0 {
		l.alone++
		w.thread = l.alone << 32
	}
	w.paused = l.pauseLocked(about).total(now)
	t := l.threads[w.thread]
	if t == nil {
		t = &thread{since: now}
		l.threads[w.thread] = t
	}
	t.waits = append(t.waits, w)
	return w
}

// End notes that the request is answered.
func (w *Wait) End() {
	if w == nil {
		return
	}
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	now, t := time.Now(), l.threads[w.thread]
	all, slow := l.shareLocked(t, now)
	l.waited[t.waits[0].cause].Add(int64(all - slow))
	l.waited[Throttled].Add(int64(slow))
	t.waits = slices.DeleteFunc(t.waits, func(x *Wait) bool { return x == w })
	l.leaveLocked(w.about)
	t.since = now
	for _, x := range t.waits {
		x.paused = l.pauses[x.about].total(now)
	}
	if len(t.waits) == 0 {
		delete(l.threads, w.thread)
	}
}

// shareLocked is what a thread has waited and is not counted, and how much of it its
// first wait was slowed down.
func (l *Ledger) shareLocked(t *thread, now time.Time) (all, slow time.Duration) {
	w := t.waits[0]
	all = now.Sub(t.since)
	return all, min(all, l.pauses[w.about].total(now)-w.paused)
}

// Add counts a wait that was measured elsewhere.
func (l *Ledger) Add(c Cause, d time.Duration) {
	if l != nil {
		l.waited[c].Add(int64(d))
	}
}

// Seconds are what was waited so far, by the names of the causes, those who wait now
// included. They never fall.
func (l *Ledger) Seconds() map[string]float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sums [causes]time.Duration
	for c := range causes {
		sums[c] = time.Duration(l.waited[c].Load())
	}
	now := time.Now()
	for _, t := range l.threads {
		all, slow := l.shareLocked(t, now)
		sums[t.waits[0].cause] += all - slow
		sums[Throttled] += slow
	}
	m := map[string]float64{}
	for c, sum := range sums {
		m[Cause(c).String()] = sum.Seconds()
	}
	return m
}

func (l *Ledger) pauseLocked(about any) *pause {
	p := l.pauses[about]
	if p == nil {
		p = &pause{}
		l.pauses[about] = p
	}
	p.users++
	return p
}

func (l *Ledger) leaveLocked(about any) {
	p := l.pauses[about]
	if p.users--; p.users == 0 {
		delete(l.pauses, about)
	}
}

func (p *pause) total(now time.Time) time.Duration {
	if p.slow > 0 {
		return p.sum + now.Sub(p.since)
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
	l := s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pauseLocked(s.about)
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
