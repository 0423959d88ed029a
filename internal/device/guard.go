// Package device runs operations on a device that may not answer.
//
// An operation that hangs in the kernel cannot be cancelled, only left. So a Guard runs
// each one on a thread of its own (Do). Whoever waits for it can leave; the thread, the
// memory that the kernel may still write into, and what undoes the operation stay behind,
// until the device answers. Two switches of goroutines are the price. A reader who has
// nothing else to do saves them and runs the operation itself (Here): it cannot leave, and
// where it would have to, another goroutine is started in its place.
//
// One goroutine, the lookout (LookOut), sees what hangs, so that nobody needs a timer. Whoever
// works shows a Pulse, which each step changes. The lookout looks at all of them four times in
// a patience. An operation without a step in four looks in a row hangs: it is left, and
// Options.Hangs is told. A process that was stopped or starved has missed looks, and blames
// no device. Who waits for memory rests, and does not hang. The lookout also leaves an
// operation whose context is done, and, once the device is out of use, each that it waits for.
//
// At most Options.MaxLeft operations are left behind: with so many, none begins.
//
// A goroutine that writes needs no thread beside it: it shows its Pulse (Guard.Writer), and
// hangs after five patiences, for one of its steps is long and nobody waits for it. Close
// waits for what does not hang; Await stands by the writer for fifteen patiences.
package device

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultPatience is how long an operation may hang: tens of times what a busy spinning
	// disk takes, and an eighth of what a reader may be kept waiting.
	defaultPatience = 2 * time.Second
	// Looks are the looks that a patience is made of. An operation hangs if it made
	// no step from one look to the next so many times.
	Looks = 4
	// writerPatience is the writer's, in patiences: nobody waits for it, and one of
	// its steps may write 4 MiB behind a device's full queue.
	writerPatience = 5
	// awaitPatience is how long Await stands by a writer without a step, in patiences.
	awaitPatience = 15
	// maxIdle is how many workers stay for the next call: as many as read at once
	// from a fast device, at a few KiB each.
	maxIdle = 32
)

// Options says how patient a Guard is, and whom it tells.
type Options struct {
	// Patience is how long an operation may take without a step; what hangs is seen a
	// quarter of it later at the latest. 0: 2 s.
	Patience time.Duration
	// MaxLeft bounds the operations that were left and that have not ended, each with a
	// thread and memory. With so many no operation begins.
	MaxLeft int
	// Usable says whether the device is in use. While it is not, an operation that waits for
	// it is left at the next look, and Hangs is not told. nil: it always is.
	Usable func() bool
	// Hangs is told what hangs, and since when. It is called by the lookout. nil: nobody.
	Hangs func(what string, since time.Duration)
}

// Guard runs operations on one device.
type Guard struct {
	// Writer is the Pulse of a goroutine that writes to the device. It rests at first.
	Writer Pulse

	o        Options
	handover chan *Call // to a worker that is free now
	idle     atomic.Int32
	left     atomic.Int32 // calls that were left and that have not ended
	slow     slow
	writer   watch // the lookout's

	quit    chan struct{}
	working sync.WaitGroup // workers and calls, but those that were left
	mu      sync.Mutex     // guards what follows; never held while anything waits
	closed  bool
	calls   Call // the ring of those under way, those left among them
}

// New returns a Guard, whose owner starts LookOut and calls Close.
func New(o Options) *Guard {
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Usable == nil {
		o.Usable = func() bool { return true }
	}
	if o.Hangs == nil {
		o.Hangs = func(string, time.Duration) {}
	}
	g := &Guard{o: o, handover: make(chan *Call), quit: make(chan struct{})}
	g.calls.before, g.calls.after = &g.calls, &g.calls
	g.Writer.Rest()
	return g
}

// LookOut looks for what hangs: the writer, and what is waited for. It ends with the
// Guard and the last of these.
func (g *Guard) LookOut() {
	tick := time.NewTicker(g.o.Patience / Looks)
	defer tick.Stop()
	quit := g.quit
	for under := 1; quit != nil || under > 0; {
		select {
		case <-quit:
			quit = nil // ready for ever: it was seen
		case <-tick.C:
		}
		under = g.look()
	}
}

// look looks once, and reports how many calls are under way.
func (g *Guard) look() (under int) {
	under, longest := g.lookAtCalls()
	still := g.writer.look(&g.Writer)
	if longest < Looks && 2*longest >= Looks || still < writerPatience*Looks && 2*still >= writerPatience*Looks {
		g.slow.note(time.Now(), time.Duration(max(longest, still))*g.o.Patience/Looks)
	}
	if still >= writerPatience*Looks && g.o.Usable() {
		g.o.Hangs("the writer", writerPatience*g.o.Patience)
	}
	return under
}

// lookAtCalls leaves the calls that make no step, and those that nobody waits for any more. It
// reports how many are under way, and for how many looks one of them has made no step.
func (g *Guard) lookAtCalls() (under, longest int) {
	usable, hang := g.o.Usable(), false
	g.mu.Lock()
	for c := g.calls.after; c != &g.calls; c = c.after {
		under++
		still := c.watch.look(&c.Pulse)
		longest = max(longest, still)
		over := still >= max(c.Looks, Looks)
		hang = hang || over
		switch {
		case c.over.Load():
		case over, still > 0 && !usable, c.Err() != nil:
			g.leave(c)
		}
	}
	g.mu.Unlock()
	if hang && usable {
		g.o.Hangs("an operation", g.o.Patience)
	}
	return under, longest
}

// leave gives a call up, unless it has just ended. The caller holds g.mu.
func (g *Guard) leave(c *Call) {
	if !c.over.CompareAndSwap(false, true) {
		return
	}
	g.left.Add(1)
	g.working.Done()
	c.left = true
	if c.stead != nil {
		go c.stead()
		return
	}
	c.done <- struct{}{} // there is room: nobody else sends
}

// Left counts the operations that were left and that have not ended.
func (g *Guard) Left() int { return int(g.left.Load()) }

// Busy reports whether an operation is under way now, be it one that was left.
func (g *Guard) Busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls.after != &g.calls
}

// Waited is how long operations have waited for the device in the last 10 s, where that is
// half of what is a hang again and again; 0: less.
func (g *Guard) Waited() time.Duration { return g.slow.waited(time.Now()) }

// Await waits until the writer has ended, and closes the Guard. False: the writer hangs,
// and is not waited for: a node must end although its device does not answer.
func (g *Guard) Await(ended <-chan struct{}) bool {
	defer g.Close()
	tick := time.NewTicker(g.o.Patience / Looks)
	defer tick.Stop()
	var writer watch
	for {
		select {
		case <-ended:
			return true
		case <-tick.C:
		}
		if writer.look(&g.Writer) >= awaitPatience*Looks {
			return false
		}
	}
}

// Close ends the workers, and waits for those that do not hang. No operation begins any more.
func (g *Guard) Close() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.quit)
	}
	g.mu.Unlock()
	g.working.Wait()
}
