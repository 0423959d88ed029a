package wire

import (
	"sync"
	"sync/atomic"
)

// This file is goroutines that stay for the next piece of work. A new one for each has
// its stack made larger, step by step, on the way to a disk: a twentieth of what it costs to
// serve a read of 100 KiB.

// mostIdle workers of all Groups that share an Idle stay for the next piece: as many as are under
// way to a fast disk, of some KiB each, however many Groups there are.
const mostIdle = 32

// idleWorkers counts workers without work, of the Groups that share it. The zero value is ready.
type idleWorkers struct{ n atomic.Int32 }

// workers does one piece of work after another.
type workers struct {
	handover chan func() // to one that is free now; closed by End
	idle     *idleWorkers
	all      sync.WaitGroup // Add by Do
}

// newWorkers makes a Group without workers.
func newWorkers(idle *idleWorkers) *workers { return &workers{handover: make(chan func()), idle: idle} }

// Do has work done by a worker that is free, or by a new one. It is not called after End.
func (g *workers) Do(work func()) {
	select {
	case g.handover <- work:
	default:
		g.all.Go(func() { g.run(work) })
	}
}

func (g *workers) run(work func()) {
	for ok := true; ok; {
		work()
		if g.idle.n.Add(1) > mostIdle {
			g.idle.n.Add(-1)
			return
		}
		work, ok = <-g.handover
		g.idle.n.Add(-1)
	}
}

// End waits for all of them; each has done its work.
func (g *workers) End() {
	close(g.handover)
	g.all.Wait()
}
