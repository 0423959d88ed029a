package device

import (
	"sync/atomic"
	"time"
)

// Pulse shows the progress of a goroutine. An even number means that it waits for a device, and
// each step changes the number. An odd number means that it does not. The zero value is even.
type Pulse struct{ n atomic.Uint64 }

// Work notes a step, or the start of work with the device.
func (p *Pulse) Work() { p.n.Store((p.n.Load() | 1) + 1) }

// Rest says that the goroutine waits for no device until the next Work.
func (p *Pulse) Rest() { p.n.Store(p.n.Load() | 1) }

// watch counts the looks at a Pulse in a row that saw no step.
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
	// slowLooks looks within slowWithin that find an operation which has waited for half of its
	// patience tell a slow device. A read that hangs is found so twice; then the device is out of
	// use.
	slowLooks = 3
	// slowWithin is how long a look counts.
	slowWithin = 10 * time.Second
)

// slow has the last looks that found a device slow. One goroutine notes them.
type slow struct{ last atomic.Pointer[waited] }

// waited has the times of these looks, the last one first, and the longest wait of an operation.
type waited struct {
	at   [slowLooks]time.Time
	most time.Duration
}

// note notes a look that found an operation which had waited this long.
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

// waited is how long operations wait for the device. 0 means not for long.
func (s *slow) waited(now time.Time) time.Duration {
	if w := s.last.Load(); w != nil && now.Sub(w.at[slowLooks-1]) < slowWithin {
		return w.most
	}
	return 0
}
