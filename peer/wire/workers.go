package wire

import (
	"sync"
	"sync/atomic"
)

// This file is a pool of goroutines that stay for the next piece of work. A new goroutine
// for each piece would have its stack grown step by step on the way to a disk. That is a
// twentieth of what it costs to serve a read of 100 KiB.

// mostIdle workers stay idle, over all pools that share an idleWorkers, of some KiB each.
// That is as many as a fast disk has requests in flight.
const mostIdle = 32

// idleWorkers counts idle workers, over the pools that share it. The zero value is ready.
type idleWorkers struct{ n atomic.Int32 }

// workers is a pool. Each worker does one piece of work after another.
type workers struct {
	handover chan func() // to a worker that is idle; closed by End
	idle     *idleWorkers
	all      sync.WaitGroup // Add by Do
}

// newWorkers makes a pool without workers.
func newWorkers(idle *idleWorkers) *workers { return &workers{handover: make(chan func()), idle: idle} }

// Do has work done by an idle worker, or by a new one. Do not call it after End.
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

// End waits until all workers have done their work and ended.
func (g *workers) End() {
	close(g.handover)
	g.all.Wait()
}
