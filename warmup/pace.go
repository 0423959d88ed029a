package warmup

import (
	"sync"
	"time"
)

// This file measures how fast something grows: lately, from samples of a counter, or over
// all the time in which requests were in flight.

// notes is how many samples are kept: ten seconds of checkpoints.
const notes = 10

// growth is how fast a counter grew lately. The zero value has no samples.
type growth struct {
	at    [notes]time.Time
	value [notes]int64
	n     int
}

// Note takes the counter's value at a time.
func (p *growth) Note(at time.Time, value int64) {
	p.at[p.n%notes], p.value[p.n%notes] = at, value
	p.n++
}

// leastSpan is how long a counter is watched before its growth is called a rate. What
// came in the first second is chance.
const leastSpan = 2 * time.Second

// Rate is the growth per second over the last samples; 0 means unknown.
func (p *growth) Rate() int64 {
	if p.n < 2 {
		return 0
	}
	last, first := (p.n-1)%notes, max(0, p.n-notes)%notes
	took := p.at[last].Sub(p.at[first])
	if took < leastSpan {
		return 0
	}
	return max(0, int64(float64(p.value[last]-p.value[first])/took.Seconds())) // the counter may be set back
}

// Measure is what requests have brought, and the seconds in which any was in flight.
type Measure struct {
	Bytes    int64   `json:"bytes"`
	Requests int64   `json:"requests"`
	Seconds  float64 `json:"seconds"`
}

// meter measures requests, many of which may be in flight at a time. The zero value has
// seen none.
type meter struct {
	mu    sync.Mutex // guards the rest
	sum   Measure    // without the seconds after since
	since time.Time  // when the first of those in flight began
	busy  int        // how many are in flight
}

// Start goes on from an earlier Measure.
func (m *meter) Start(before Measure) { m.sum = before }

// Begin notes that a request begins.
func (m *meter) Begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy++; m.busy == 1 {
		m.since = time.Now()
	}
}

// End notes that a request has ended, and what it brought. One that brought nothing
// counts only for its time.
func (m *meter) End(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy--; m.busy == 0 {
		m.sum.Seconds += time.Since(m.since).Seconds()
	}
	if bytes > 0 {
		m.sum.Bytes += bytes
		m.sum.Requests++
	}
}

// Sum is what was measured so far.
func (m *meter) Sum() Measure {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.sum
	if m.busy > 0 {
		sum.Seconds += time.Since(m.since).Seconds()
	}
	return sum
}
