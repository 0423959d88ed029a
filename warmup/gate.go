package warmup

import (
	"context"
	"sync"
	"time"
)

const (
	// firstSteps under way are enough for an origin next door, and grow within two
	// seconds to what one far away takes.
	firstSteps = 16
	// busySteps are let through while readers are active, and restPerWork is how often
	// the time that a step worked it rests then: two threads of which each works a
	// third of its time stay within half a core and half of one lost to others.
	busySteps   = 2
	restPerWork = 2
	// maxRest bounds that, so that a slow origin does not bring warm-up to a stop.
	maxRest = 200 * time.Millisecond
	// pilotEvery is long enough for some answers of an origin 100 ms away.
	pilotEvery = 200 * time.Millisecond
	// readersEvery is how often readers are looked at.
	readersEvery = 50 * time.Millisecond
	// readersLast is how long readers count as active after their last request.
	readersLast = 250 * time.Millisecond
	// largeSteps of several blocks are under way at most. Six streams of 4 MiB fill a link
	// of 600 MB/s over 40 ms, and a kill loses half of that on the average.
	largeSteps = 6
	// requestUnits is what a request counts beside its bytes where throughput is
	// compared, so that many small objects count as what they cost.
	requestUnits = 64 << 10
)

// pilot finds the number of steps under way that brings the most. It is arithmetic
// only.
type pilot struct {
	steps int
	best  float64 // units per second that a number of steps has brought
	rest  int     // intervals without growth, after an origin asked to slow down
	flat  int     // intervals without a gain
}

// fly takes the rate of the last interval, whether all steps were under way in it,
// and whether an origin asked to slow down, and gives the number for the next.
func (p *pilot) fly(rate float64, full, throttled bool, most int) int {
	switch {
	case throttled:
		p.steps, p.best, p.rest = p.steps/2, 0, 10
	case p.rest > 0:
		p.rest--
	case !full:
	case rate > 1.05*p.best:
		p.best, p.flat = rate, 0
		p.steps += max(4, p.steps/2)
	case rate < 0.6*p.best: // too many, or the origin has become slower
		p.best = rate
		p.steps = p.steps * 3 / 4
	default:
		p.best *= 0.99 // what was once is not for ever
		if p.flat++; p.flat%10 == 0 {
			p.steps += 2
		}
	}
	p.steps = max(busySteps, min(p.steps, most))
	return p.steps
}

// gate lets steps through, and shares them out among jobs.
type gate struct {
	mu      sync.Mutex // guards the rest
	steps   int
	busy    bool // readers are active
	flying  int
	large   int // of them, those of several blocks
	jobs    int
	full    bool  // all steps were under way since the last look
	units   int64 // that ended since then
	changed chan struct{}

	breath chan struct{} // capacity 1: whoever rests beside the steps
}

func newGate() *gate {
	return &gate{steps: firstSteps, changed: make(chan struct{}), breath: make(chan struct{}, 1)}
}

// share is a job's part of the gate.
type share struct {
	gate   *gate
	flying int // guarded by the gate's lock
}

func (g *gate) join() *share {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.jobs++
	g.wakeLocked()
	return &share{gate: g}
}

func (s *share) leave() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.gate.jobs--
	s.gate.wakeLocked()
}

func (g *gate) wakeLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// enter waits until a step of the job may begin; large: it has several blocks.
func (s *share) enter(ctx context.Context, large bool) error {
	g := s.gate
	for {
		g.mu.Lock()
		most := g.steps
		if g.busy {
			most = busySteps
		}
		g.full = g.full || g.flying+1 >= most
		if g.flying < most && s.flying < (most+g.jobs-1)/g.jobs && !(large && g.large >= largeSteps) {
			if large {
				g.large++
			}
			g.flying++
			s.flying++
			g.mu.Unlock()
			return nil
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// exit ends a step that fetched so many bytes; while readers are active it rests
// before the next may begin.
func (s *share) exit(ctx context.Context, large bool, bytes int64, took time.Duration) {
	g := s.gate
	g.mu.Lock()
	g.units += bytes + requestUnits
	busy := g.busy
	g.mu.Unlock()
	if busy {
		rest := time.NewTimer(min(restPerWork*took, maxRest))
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if large {
		g.large--
	}
	g.flying--
	s.flying--
	g.wakeLocked()
}

// breathe rests after work that is no step, of which no two then run at a time.
func (g *gate) breathe(ctx context.Context, took time.Duration) {
	g.mu.Lock()
	busy := g.busy
	g.mu.Unlock()
	if !busy {
		return
	}
	select {
	case g.breath <- struct{}{}:
		defer func() { <-g.breath }()
	case <-ctx.Done():
		return
	}
	rest := time.NewTimer(min(restPerWork*took, maxRest))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
}

// pressure is what the gate looks at.
type pressure struct {
	readers   func() int64 // requests of readers so far
	throttled func() int64 // answers of origins that asked to slow down so far
	most      func() int   // steps that connections allow
}

// run adjusts the gate until the context ends.
func (g *gate) run(ctx context.Context, p pressure) {
	tick := time.NewTicker(readersEvery)
	defer tick.Stop()
	plane := pilot{steps: firstSteps}
	seen, slowed, looked := p.readers(), p.throttled(), time.Now()
	var active time.Time
	for {
		g.mu.Lock()
		idle, changed := g.jobs == 0, g.changed
		g.mu.Unlock()
		if idle { // nobody looks at readers for nothing
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
		if n := p.readers(); n != seen {
			seen, active = n, now
		}
		g.mu.Lock()
		was := g.busy
		if g.busy = !active.IsZero() && now.Sub(active) < readersLast; was != g.busy {
			g.units, g.full, looked = 0, false, now // of another regime
			g.wakeLocked()
		}
		if took := now.Sub(looked); took >= pilotEvery && !g.busy {
			n := p.throttled()
			g.steps = plane.fly(float64(g.units)/took.Seconds(), g.full, n != slowed, p.most())
			slowed, looked, g.units, g.full = n, now, 0, false
			g.wakeLocked()
		}
		g.mu.Unlock()
	}
}
