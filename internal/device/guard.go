// Package device is how Hearth uses a block device. It has files past the page cache (direct.go) and
// durable writes (durable.go). A Guard runs operations on a device that may not answer.
//
// An operation that hangs in the kernel cannot be cancelled, only abandoned. So a Guard runs each
// one on a thread of its own (Do). Its caller can leave. The thread, the memory that the kernel may
// still write into, and the function that undoes the operation stay behind until the device
// answers. The price is two switches of goroutines. A reader that has nothing else to do saves them
// and runs the operation itself (Here). It cannot leave; if it would have to, another goroutine is
// started in its place.
//
// One goroutine, the lookout (LookOut), is the watchdog that finds hung operations, so no operation
// needs a timer. Everything that works has a Pulse, which each step changes. The lookout looks at
// all of them four times within a patience. An operation without a step in four looks in a row
// hangs: it is abandoned, and Options.Hangs is called. If the process was stopped or starved, it
// missed looks too, and blames no device. An operation that waits for memory rests, and does not
// hang. The lookout also abandons an operation whose context is done and, once the device is out of
// use, each that waits for the device.
//
// At most Options.MaxLeft operations stay abandoned: at this bound no new one begins.
//
// A goroutine that writes needs no second thread. It shows its Pulse (Guard.Writer), and hangs
// after five patiences, since its steps are long and nobody waits for them. Close waits for
// everything that does not hang. Await waits up to fifteen patiences for a writer without a step.
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
	// Looks is the number of looks in a patience. An operation hangs if so many looks in a row saw
	// no step.
	Looks = 4
	// writerPatience is the writer's patience, in patiences: nobody waits for the writer, and one
	// of its steps may write 4 MiB behind a device's full queue.
	writerPatience = 5
	// awaitPatience is how long Await waits for a writer without a step, in patiences.
	awaitPatience = 15
	// maxIdle is how many idle workers stay for the next call: as many as read at once from a fast
	// device, at a few KiB each.
	maxIdle = 32
)

// Options says how patient a Guard is, and what it calls.
type Options struct {
	// Patience is how long an operation may take without a step. A hang is seen at most a quarter
	// of it later. 0 means 2 s.
	Patience time.Duration
	// MaxLeft bounds the abandoned operations that have not ended, each with a thread and memory.
	// At this bound no new operation begins.
	MaxLeft int
	// Usable reports whether the device is in use. While it is not, an operation that waits for it
	// is abandoned at the next look, and Hangs is not called. nil means that it always is.
	Usable func() bool
	// Hangs is called by the lookout with what hangs, and for how long. nil means that nobody wants
	// to know.
	Hangs func(what string, since time.Duration)
}

// Guard runs operations on one device.
type Guard struct {
	// Writer is the Pulse of a goroutine that writes to the device. It rests at first.
	Writer Pulse

	o        Options
	handover chan *Call // to an idle worker
	idle     atomic.Int32
	left     atomic.Int32 // abandoned calls that have not ended
	slow     slow
	writer   watch // used by the lookout

	quit    chan struct{}
	working sync.WaitGroup // workers and calls, except abandoned ones
	mu      sync.Mutex     // guards what follows; never held while anything waits
	closed  bool
	calls   Call // head of the list of calls in flight, with abandoned ones
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

// LookOut is the watchdog: it looks for hung operations and a hung writer. It ends once the Guard
// is closed and the last call has ended.
func (g *Guard) LookOut() {
	tick := time.NewTicker(g.o.Patience / Looks)
	defer tick.Stop()
	quit := g.quit
	for under := 1; quit != nil || under > 0; {
		select {
		case <-quit:
			quit = nil // it stays ready for ever
		case <-tick.C:
		}
		under = g.look()
	}
}

// look looks once, and returns how many calls are in flight.
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

// lookAtCalls abandons the calls that make no step, and those that nobody waits for any more. It
// returns how many calls are in flight, and the most looks in a row for which one of them has made
// no step.
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

// leave abandons a call, unless it has just ended. The caller holds g.mu.
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

// Left counts the abandoned operations that have not ended.
func (g *Guard) Left() int { return int(g.left.Load()) }

// Busy reports whether an operation is in flight now, abandoned ones included.
func (g *Guard) Busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls.after != &g.calls
}

// Waited is how long operations have waited for the device in the last 10 s. It is 0 unless waits
// reached half of the time that counts as a hang again and again.
func (g *Guard) Waited() time.Duration { return g.slow.waited(time.Now()) }

// Await waits until the writer has ended, and closes the Guard. False means that the writer hangs
// and is not waited for: a node must be able to end although its device does not answer.
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

// Close ends the workers, and waits for those that do not hang. After it no operation begins.
func (g *Guard) Close() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.quit)
	}
	g.mu.Unlock()
	g.working.Wait()
}
