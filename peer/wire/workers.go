package wire

import (
	"sync"
	"sync/atomic"
)

// mostIdle workers of all connections stay for the next item: as many as are under way to a
// fast disk, of some KiB each, however many peers there are.
const mostIdle = 32

// workers are a connection's goroutines that do one item after another. A new one for each has its
// stack made larger, step by step, on the way to the disk: a twentieth of what it costs to
// serve one of 100 KiB.
type workers struct {
	handover chan func()    // to one that is free now; closed by end
	idle     *atomic.Int32  // of the server
	all      sync.WaitGroup // Add by do
}

// do has work done by a worker that is free, or by a new one. It is not called after end.
func (w *workers) do(work func()) {
	select {
	case w.handover <- work:
	default:
		w.all.Go(func() { w.run(work) })
	}
}

func (w *workers) run(work func()) {
	for ok := true; ok; {
		work()
		if w.idle.Add(1) > mostIdle {
			w.idle.Add(-1)
			return
		}
		work, ok = <-w.handover
		w.idle.Add(-1)
	}
}

// end waits for all of them; each has done its work.
func (w *workers) end() {
	close(w.handover)
	w.all.Wait()
}
