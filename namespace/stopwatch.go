package namespace

import "time"

// stopwatch measures how long a listing takes, by the monotonic clock. By the wall clock a jump would
// turn that into hours.
type stopwatch struct {
	now     func() time.Time
	start   time.Time
	stopped time.Duration // spent waiting for a semaphore or the gate; owned by the goroutine that runs the listing
}

// ran is the time since the start in whole ms, the unit of the records.
func (w *stopwatch) ran() time.Duration { return w.now().Sub(w.start).Truncate(time.Millisecond) }

// busy is ran without the stopped time.
func (w *stopwatch) busy() time.Duration { return w.ran() - w.stopped.Truncate(time.Millisecond) }

// stop leaves out the time from now until end is called.
func (w *stopwatch) stop() (end func()) {
	at := w.now()
	return func() { w.stopped += w.now().Sub(at) }
}
