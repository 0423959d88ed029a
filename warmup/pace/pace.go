// Package pace measures how fast something grows, from notes of a counter.
package pace

import "time"

// notes are enough for ten seconds of checkpoints.
const notes = 10

// Pace is how fast a counter grew lately. The zero value has no notes.
type Pace struct {
	at    [notes]time.Time
	value [notes]int64
	n     int
}

// Note takes the counter's value at a time.
func (p *Pace) Note(at time.Time, value int64) {
	p.at[p.n%notes], p.value[p.n%notes] = at, value
	p.n++
}

// Rate is how much it grew per second over the last notes; 0: that is not known.
func (p *Pace) Rate() int64 {
	if p.n < 2 {
		return 0
	}
	last, first := (p.n-1)%notes, max(0, p.n-notes)%notes
	took := p.at[last].Sub(p.at[first]).Seconds()
	if took <= 0 {
		return 0
	}
	return max(0, int64(float64(p.value[last]-p.value[first])/took)) // it may be set back
}
