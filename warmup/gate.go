package warmup

import (
	"context"
	"sync"
	"time"
)

// This file says how much of warm-up is under way at a time, and for which job. The gate
// is a semaphore with congestion control.
//
// A step of a job enters, works, and exits. The number of steps that the gate lets
// through grows by half while throughput grows with it. It is halved when an origin asks
// to slow down.
//
// When several jobs want to begin a step, the job with the fewest under way goes first.
// The same holds for large steps. Of these there are few, and the fewer the less a job
// has to load, so that a kill loses little of it. So a job that comes late has its share
// as soon as one step of another job has ended. What a job does not use, others have. A
// step that waits without working, such as for its job's rate, steps aside meanwhile.
//
// While readers are active, two steps are let through, and each rests three times as long
// as it worked. A quarter of a second after the last reader the gate is as wide as
// before. Work beside the steps, on names, rests after every 10 ms of work (Breathe), one
// at a time. All of it together then takes half a core at most, because
// the rests add up: each rests also until the work of the others and its own have had
// their rest, one after the other.

const (
	// firstSteps is what a plain downloader begins with. Starting from 16, it took a
	// second until an origin 20 ms away was asked for all that it could give.
	firstSteps = 64
	// busySteps are let through while readers are active. Then a step rests restPerWork
	// times as long as it worked: two threads that each work a quarter of their time take
	// half a core at most.
	busySteps   = 2
	restPerWork = 3
	// maxRest bounds that rest, so that a slow origin does not bring warm-up to a stop.
	// Work beyond mostWork, a third of it, is waiting for an origin or a disk.
	maxRest  = 200 * time.Millisecond
	mostWork = maxRest / restPerWork
	// maxDebt is the rest that two steps and one that breathes owe at most. Steps that
	// were under way when readers came owe no more than that.
	maxDebt = (busySteps + 1) * 2 * mostWork
	// breathAfter is the work that makes a rest worth its timer. It gives names a fair
	// share beside requests of 4 MiB, after each of which steps rest.
	breathAfter = 10 * time.Millisecond
	// pilotEvery is long enough for some answers of an origin 100 ms away.
	pilotEvery = 200 * time.Millisecond
	// readersEvery is how often the gate looks whether there are readers.
	readersEvery = 50 * time.Millisecond
	// readersLast is how long readers count as active after their last request.
	readersLast = 250 * time.Millisecond
	// largeSteps is how many steps of several blocks are let through at least: ten
	// streams of 4 MiB fill a link of 1 GB/s over 40 ms. Where more steps bring more, a
	// quarter of all may be large.
	largeSteps = 10
	// leastLarge is how many large steps a job may always have under way.
	leastLarge = 3
	// requestUnits is what a request counts beside its bytes when throughput is compared,
	// so that many small objects count at their cost.
	requestUnits = 64 << 10
)

// Gate lets steps through.
type Gate struct {
	mu      sync.Mutex // guards the rest, and what is in Shares
	steps   int
	busy    bool // readers are active
	flying  int
	large   int // of these, how many are large
	shares  []*GateShare
	full    bool  // all steps were under way at some time since the last look
	units   int64 // bytes and requestUnits of the steps that ended since then
	changed chan struct{}
	rested  time.Time     // when half a core would have done all work so far, while readers are active
	beside  time.Duration // work beside the steps that has not been rested for

	breath chan struct{} // capacity 1: a semaphore for rests beside the steps
}

// NewGate returns a Gate that nobody has joined. It has its first width until Run.
func NewGate() *Gate {
	return &Gate{steps: firstSteps, changed: make(chan struct{}), breath: make(chan struct{}, 1)}
}

// GateShare is a job's part of a Gate.
type GateShare struct {
	gate *Gate
	// The gate's lock guards these. begun also counts steps that are aside. waits counts
	// steps that want to begin or go on. Index 1 is for large steps.
	flying, large int
	begun, waits  [2]int
	mostLarge     int // as set by Large
}

// Join adds a job; Leave ends that.
func (g *Gate) Join() *GateShare {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &GateShare{gate: g, mostLarge: leastLarge}
	g.shares = append(g.shares, s)
	g.wakeLocked()
	return s
}

// Leave ends a job's part, once its steps have ended. It also returns the places of steps
// that a panic ended, which did not exit.
func (s *GateShare) Leave() {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying -= s.flying
	g.large -= s.large
	rest := make([]*GateShare, 0, len(g.shares))
	for _, o := range g.shares {
		if o != s {
			rest = append(rest, o)
		}
	}
	g.shares = rest
	g.wakeLocked()
}

// Large says how many large steps the job may have under way. It may always have
// leastLarge.
func (s *GateShare) Large(most int) {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if most = max(leastLarge, most); most != s.mostLarge {
		s.mostLarge = most
		g.wakeLocked()
	}
}

func (g *Gate) wakeLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *Gate) mostLocked() int {
	if g.busy {
		return busySteps
	}
	return g.steps
}

// mostLargeLocked is how many large steps are let through.
func (g *Gate) mostLargeLocked() int { return max(largeSteps, g.steps/4) }

// Steps is how many steps are let through now, and how many are under way.
func (g *Gate) Steps() (most, flying int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mostLocked(), g.flying
}

// wantsLocked reports whether a step of the job waits for nothing but the steps of
// others.
func (s *GateShare) wantsLocked(kind int) bool { return s.waits[kind] > 0 && s.hasRoomLocked(kind) }

// hasRoomLocked reports whether the job may begin another step. Under way and aside
// together, it has no more than the gate may let through.
func (s *GateShare) hasRoomLocked(kind int) bool {
	g := s.gate
	return s.begun[kind] < []int{g.steps, min(g.mostLargeLocked(), s.mostLarge)}[kind]
}

// mayLocked reports whether a step of the job may go on: there is room, and no waiting
// job has fewer steps under way.
func (s *GateShare) mayLocked(large bool) bool {
	g := s.gate
	most, mostLarge := g.mostLocked(), g.mostLargeLocked()
	if g.flying >= most || large && g.large >= mostLarge {
		return false
	}
	for _, o := range g.shares {
		wantsLarge := o.wantsLocked(1) && g.large < mostLarge
		if large && wantsLarge && o.large < s.large || (o.wantsLocked(0) || wantsLarge && !large) && o.flying < s.flying {
			return false
		}
	}
	return true
}

// GatePass is a step's permission to be under way.
type GatePass struct {
	share  *GateShare
	large  bool
	aside  bool
	since  time.Time
	worked time.Duration // before since
}

// Enter waits until a step of the job may begin. large means that it has several blocks.
func (s *GateShare) Enter(ctx context.Context, large bool) (*GatePass, error) {
	p := &GatePass{share: s, large: large}
	if err := p.enter(ctx, 1); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *GatePass) kind() int {
	if p.large {
		return 1
	}
	return 0
}

// enter waits until the step may begin or go on. begins is 1 if it begins, else 0.
func (p *GatePass) enter(ctx context.Context, begins int) error {
	s, g, kind := p.share, p.share.gate, p.kind()
	g.mu.Lock()
	defer g.mu.Unlock()
	s.waits[kind]++
	defer func() { s.waits[kind]-- }()
	for waited := false; ctx.Err() == nil; waited = true {
		room := begins == 0 || s.hasRoomLocked(kind)
		g.full = g.full || g.flying+1 >= g.mostLocked() || p.large && room && g.large+1 >= g.mostLargeLocked()
		if room && s.mayLocked(p.large) {
			if p.large {
				g.large++
				s.large++
			}
			g.flying++
			s.flying++
			s.begun[kind] += begins
			p.since = time.Now()
			if waited {
				g.wakeLocked() // for those that were behind this one
			}
			return nil
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		g.mu.Lock()
	}
	g.wakeLocked() // it no longer stands before others
	return context.Cause(ctx)
}

// Aside gives the step's place to others while it waits without working. It returns
// wait's error or the context's cause; then the step must exit.
func (p *GatePass) Aside(ctx context.Context, wait func() error) error {
	p.worked += time.Since(p.since)
	p.stop(0)
	p.aside = true
	if err := wait(); err != nil {
		return err
	}
	if err := p.enter(ctx, 0); err != nil {
		return err
	}
	p.aside = false
	return nil
}

func (p *GatePass) stop(ends int) {
	s, g := p.share, p.share.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if !p.aside {
		if p.large {
			g.large--
			s.large--
		}
		g.flying--
		s.flying--
	}
	s.begun[p.kind()] -= ends
	g.wakeLocked()
}

// Exit ends a step that fetched so many bytes. While readers are active it rests first,
// before the next step may begin.
func (p *GatePass) Exit(ctx context.Context, bytes int64) {
	if !p.aside {
		p.worked += time.Since(p.since)
	}
	g := p.share.gate
	g.mu.Lock()
	g.units += bytes + requestUnits
	g.mu.Unlock()
	if !p.aside {
		g.rest(ctx, p.worked)
	}
	p.stop(1)
}

// Rest is for a large step between two of its requests. While readers are active it rests
// for the work so far, as it would at its end.
func (p *GatePass) Rest(ctx context.Context) {
	worked := p.worked + time.Since(p.since)
	if p.aside || worked < breathAfter {
		return
	}
	if p.share.gate.rest(ctx, worked) {
		p.worked, p.since = 0, time.Now()
	}
}

// rest waits as long as so much work requires. It reports whether readers are active, and
// does not wait if they are not.
func (g *Gate) rest(ctx context.Context, worked time.Duration) bool {
	now := time.Now()
	g.mu.Lock()
	if !g.busy {
		g.mu.Unlock()
		return false
	}
	work := min(worked, mostWork)
	if begun := now.Add(-work); g.rested.Before(begun) {
		g.rested = begun
	}
	g.rested = g.rested.Add(2 * work)
	if most := now.Add(maxDebt); g.rested.After(most) {
		g.rested = most
	}
	owed := g.rested.Sub(now)
	g.mu.Unlock()
	timer := time.NewTimer(max(owed, restPerWork*work))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// Breathe rests for work that is no step, once enough has added up, one caller at a time.
func (g *Gate) Breathe(ctx context.Context, took time.Duration) {
	g.mu.Lock()
	g.beside += took
	took = g.beside
	breathe := g.busy && took >= breathAfter
	if breathe || !g.busy {
		g.beside = 0
	}
	g.mu.Unlock()
	if !breathe {
		return
	}
	select {
	case g.breath <- struct{}{}:
		defer func() { <-g.breath }()
		g.rest(ctx, took)
	case <-ctx.Done():
	}
}

// Pressure is what a Gate looks at.
type Pressure struct {
	// Readers counts requests of readers so far, Throttled the answers of origins that
	// asked to slow down. Most is how many steps the connections allow.
	Readers, Throttled func() int64
	Most               func() int
}

// Run adjusts the gate until the context ends.
func (g *Gate) Run(ctx context.Context, p Pressure) {
	tick := time.NewTicker(readersEvery)
	defer tick.Stop()
	plane := pilot{steps: firstSteps}
	seen, slowed, looked := p.Readers(), p.Throttled(), time.Now()
	var active time.Time
	for {
		g.mu.Lock()
		idle, changed := len(g.shares) == 0, g.changed
		g.mu.Unlock()
		if idle { // without jobs nobody needs to look at readers
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		if n := p.Readers(); n != seen {
			seen, active = n, now
		}
		g.mu.Lock()
		was := g.busy
		if g.busy = !active.IsZero() && now.Sub(active) < readersLast; was != g.busy {
			g.units, g.full, looked = 0, false, now // they were measured under the other rule
			g.wakeLocked()
		}
		if took := now.Sub(looked); took >= pilotEvery && !g.busy {
			n := p.Throttled()
			g.steps = plane.fly(float64(g.units)/took.Seconds(), g.full, n != slowed, p.Most())
			slowed, looked, g.units, g.full = n, now, 0, false
			g.wakeLocked()
		}
		g.mu.Unlock()
	}
}
