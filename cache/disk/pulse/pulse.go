// Package pulse tells what works from what hangs, and what hangs from what is slow, by looks
// at it from outside: who works makes a step now and then, and one without a step from one
// look to the next, several times in a row, hangs. A process that was stopped or starved
// meanwhile has missed looks, and blames no disk.
package pulse

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

// Watch counts the looks at a Pulse that saw no step since the one before.
type Watch struct {
	last  uint64
	still int
}

// Look looks once more, and returns how many looks in a row have seen no step.
func (w *Watch) Look(p *Pulse) int {
	now := p.n.Load()
	if now%2 == 1 || now != w.last {
		w.last, w.still = now, 0
		return 0
	}
	w.still++
	return w.still
}

const (
	// slowLooks within SlowWithin that find an operation which has waited for half of its
	// patience tell a slow device: a read that hangs is found so twice, then the device is
	// out of use.
	slowLooks = 3
	// SlowWithin is how long a look counts.
	SlowWithin = 10 * time.Second
)

// Slow are the last looks that found a device slow. One goroutine notes them.
type Slow struct{ last atomic.Pointer[waited] }

// waited are looks, the last one first, and how long an operation had waited at the most.
type waited struct {
	at   [slowLooks]time.Time
	most time.Duration
}

// Note notes a look that found an operation which had waited so long.
func (s *Slow) Note(now time.Time, wait time.Duration) {
	w := waited{most: wait}
	if old := s.last.Load(); old != nil {
		copy(w.at[1:], old.at[:])
		if now.Sub(old.at[0]) < SlowWithin {
			w.most = max(wait, old.most)
		}
	}
	w.at[0] = now
	s.last.Store(&w)
}

// Waited is how long operations wait for the device; 0: not for long.
func (s *Slow) Waited(now time.Time) time.Duration {
	if w := s.last.Load(); w != nil && now.Sub(w.at[slowLooks-1]) < SlowWithin {
		return w.most
	}
	return 0
}
