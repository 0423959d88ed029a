package namespace

import "time"

// stopwatch is how long a listing takes, by the monotonic clock: by the wall clock a jump would
// make that hours.
type stopwatch struct {
	now     func() time.Time
	start   time.Time
	stopped time.Duration // that it waited for its turn, and at the gate; of the goroutine that runs it
}

// ran is the time since the start in whole ms, as it is written down.
func (w *stopwatch) ran() time.Duration { return w.now().Sub(w.start).Truncate(time.Millisecond) }

// busy is ran without what was left out.
func (w *stopwatch) busy() time.Duration { return w.ran() - w.stopped.Truncate(time.Millisecond) }

// stop leaves out what passes until the end that it returns.
func (w *stopwatch) stop() (end func()) {
	at := w.now()
	return func() { w.stopped += w.now().Sub(at) }
}
