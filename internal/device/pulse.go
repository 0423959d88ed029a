package device

import (
	"sync/atomic"
	"time"
)

// Pulse is what somebody who works shows. Even: it is in the hands of a device, and each step
// makes it another number. Odd: it is not. The zero value is in the hands of a device.
type Pulse struct{ n atomic.Uint64 }

// Work is a step, or the begin of some.
func (p *Pulse) Work() { p.n.Store((p.n.Load() | 1) + 1) }

// Rest says that no device is waited for until the next Work.
func (p *Pulse) Rest() { p.n.Store(p.n.Load() | 1) }

// watch counts the looks at a Pulse that saw no step since the one before.
type watch struct {
	last  uint64
	still int
}

// look looks once more, and returns how many looks in a row have seen no step.
func (w *watch) look(p *Pulse) int {
	now := p.n.Load()
	if now%2 == 1 || now != w.last {
		w.last, w.still = now, 0
		return 0
	}
	w.still++
	return w.still
}

const (
	// slowLooks within slowWithin that find an operation which has waited for half of its
	// patience tell a slow device: a read that hangs is found so twice, then the device is
	// out of use.
	slowLooks = 3
	// slowWithin is how long a look counts.
	slowWithin = 10 * time.Second
)

// slow are the last looks that found a device slow. One goroutine notes them.
type slow struct{ last atomic.Pointer[waited] }

// waited are looks, the last one first, and how long an operation had waited at the most.
type waited struct {
	at   [slowLooks]time.Time
	most time.Duration
}

// note notes a look that found an operation which had waited so long.
func (s *slow) note(now time.Time, wait time.Duration) {
	w := waited{most: wait}
	if old := s.last.Load(); old != nil {
		copy(w.at[1:], old.at[:])
		if now.Sub(old.at[0]) < slowWithin {
			w.most = max(wait, old.most)
		}
	}
	w.at[0] = now
	s.last.Store(&w)
}

// waited is how long operations wait for the device; 0: not for long.
func (s *slow) waited(now time.Time) time.Duration {
	if w := s.last.Load(); w != nil && now.Sub(w.at[slowLooks-1]) < slowWithin {
		return w.most
	}
	return 0
}
