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
// origin's. In the same way a read of a volume is noted by Reads. While an origin and a volume are
// read for one subject, the volume counts: which of the two a request waits for is not known.
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
	// Volume is the wait for bytes of an object that a volume holds.
	Volume
	// Disk is the wait for bytes that this node holds.
	Disk
	// List is the wait for names: look-ups, attributes and listings that asked an origin.
	List
	causes
)

// String is the cause's name in status and metrics.
func (c Cause) String() string {
	return [causes]string{"origin", "throttled", "volume", "disk", "list"}[c]
}

// parts are the times that count for what the work on a subject did, and not for the wait's own
// cause. If both go on at once, the first counts.
type parts struct{ throttled, volume time.Duration }

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
	before parts // those of about so far, when the thread was last counted
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
	w.before = l.pauses.join(about, now)
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
	l.share(t, now, &s.waited)
	t.waits = slices.DeleteFunc(t.waits, func(x *Wait) bool { return x == w })
	l.pauses.leave(w.about)
	t.since = now
	for _, x := range t.waits {
		x.before = l.pauses.total(x.about, now)
	}
	if len(t.waits) == 0 {
		s.leaveLocked(t)
	}
	*w = Wait{}
}

// share adds to sums how long a thread has waited beyond what is counted, by what its first wait's
// subject did meanwhile.
func (l *Ledger) share(t *thread, now time.Time, sums *[causes]time.Duration) {
	w, all := t.waits[0], now.Sub(t.since)
	total := l.pauses.total(w.about, now)
	slow := min(all, total.throttled-w.before.throttled)
	volume := min(all-slow, total.volume-w.before.volume)
	sums[Throttled] += slow
	sums[Volume] += volume
	sums[w.cause] += all - slow - volume
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
		l.share(&s.threads[i], now, sums)
	}
}

// pauses has the time for which an origin slowed work down, or a volume was read, by the work's
// subject. The subject nil has none.
type pauses struct {
	mu sync.Mutex // guards the rest; held for some instructions
	of map[any]*pause
}

// pause is one subject's. It exists while somebody waits for the subject, slows down or reads a
// volume for it.
type pause struct {
	users        int
	slow, volume int       // how many slow down, and read a volume, now
	since        time.Time // when one of them changed last; sums has the time before
	sums         parts
}

// changed notes that so many more do what n counts.
func (p *pause) changed(n *int, more int) {
	now := time.Now()
	p.sums, p.since = p.total(now), now
	*n += more
}

func (p *pause) total(now time.Time) parts {
	t, d := p.sums, max(0, now.Sub(p.since)) // now may have been taken before the lock
	switch {
	case p.slow > 0:
		t.throttled += d
	case p.volume > 0:
		t.volume += d
	}
	return t
}

// join adds a user of a subject, and returns its total.
func (p *pauses) join(about any, now time.Time) parts {
	if about == nil {
		return parts{}
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

// total is how long work on a subject was slowed down or read a volume. The subject must have a user.
func (p *pauses) total(about any, now time.Time) parts {
	if about == nil {
		return parts{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[about].total(now)
}

// during notes that work on a subject does what of counts, until end is called.
func (p *pauses) during(about any, of func(*pause) *int) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.useLocked(about)
	x.changed(of(x), 1)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		x.changed(of(x), -1)
		p.leaveLocked(about)
	}
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
	return s.ledger.pauses.during(s.about, func(p *pause) *int { return &p.slow })
}

// Reads notes that a volume is read for a subject, until end is called.
func (l *Ledger) Reads(about any) (end func()) {
	if l == nil {
		return func() {}
	}
	return l.pauses.during(about, func(p *pause) *int { return &p.volume })
}
