package route

import (
	"sync/atomic"
	"time"
)

// median estimates the median of durations without keeping any: it goes up a little for
// each that is longer and down as much for each that is shorter. Of two at the same
// moment one may not count.
type median struct{ ns atomic.Int64 }

const (
	// leastStep in nanoseconds lets it leave zero.
	leastStep = int64(10 * time.Microsecond)
	// mostMedian in nanoseconds: who is farther away than that is hardly nearer than a bucket,
	// and peers that hang shall not have everybody wait longer and longer.
	mostMedian = int64(20 * time.Millisecond)
)

func (m *median) get() time.Duration { return time.Duration(m.ns.Load()) }

func (m *median) note(d time.Duration) {
	now := m.ns.Load()
	step := max(leastStep, now/16)
	switch {
	case int64(d) > now:
		m.ns.CompareAndSwap(now, min(now+step, int64(d), mostMedian))
	case int64(d) < now:
		m.ns.CompareAndSwap(now, max(now-step, int64(d)))
	}
}
