package device

import (
	"context"
	"sync/atomic"
)

// Call is one operation that somebody waits for. It is the context of that operation, too: the
// caller's, by which what the operation calls finds the Call, to rest it while it waits for
// something else. It serves one operation after the other, so that each costs no memory; one
// that was left belongs to the Guard.
type Call struct {
	context.Context
	Pulse
	// Looks without a step are a hang of this operation, where that is more than Looks.
	Looks int

	op   func()
	undo func()        // what op brought is not wanted any more
	done chan struct{} // one word: op has ended, or the call was left
	// over is set by the first of two: the worker whose op has ended, or the lookout
	// who leaves it behind; left says which, to who got the word.
	over atomic.Bool
	left bool
	// stead takes the place of a caller who runs op himself and is left with it; nil: a
	// worker runs op.
	stead         func()
	watch         watch
	before, after *Call // in the Guard's ring, under its lock
}

// NewCall makes a Call of op. If it is left, undo is called once op has ended.
func NewCall(op, undo func()) *Call {
	return &Call{op: op, undo: undo, done: make(chan struct{}, 1)}
}

// Here reports whether op runs on its caller's own thread, who cannot leave.
func (c *Call) Here() bool { return c.stead != nil }

// Do runs c on another thread, and reports whether it ended before its caller had to leave.
// If not, it was left, and belongs to the Guard, or was never begun.
func (g *Guard) Do(ctx context.Context, c *Call) bool {
	if !g.enter(ctx, c, nil) {
		return false
	}
	select { // a worker who is free, or a new one
	case g.handover <- c:
		g.working.Done()
	default:
		go g.worker(c)
	}
	<-c.done
	if c.left {
		return false
	}
	g.ended(c)
	return true
}

// Here is Do on the caller's own thread: the two switches are saved, and with them a quarter
// of what a read costs who has nothing else to do meanwhile. A caller that is left cannot
// leave: stead is called, once, on another goroutine, to do without him, and he has false
// whenever the kernel lets go of him.
func (g *Guard) Here(ctx context.Context, c *Call, stead func()) (ended bool) {
	if !g.enter(ctx, c, stead) {
		return false
	}
	defer func() { // also where it panics, which is not this goroutine's end
		if ended = c.over.CompareAndSwap(false, true); ended {
			g.ended(c)
			g.working.Done()
		} else {
			g.returned(c)
		}
	}()
	c.op()
	return true
}

// enter begins a call, which the lookout sees from now on.
func (g *Guard) enter(ctx context.Context, c *Call, stead func()) bool {
	if g.Left() >= g.o.MaxLeft {
		return false
	}
	c.Context, c.watch, c.left, c.stead = ctx, watch{}, false, stead
	c.over.Store(false)
	c.Work()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	c.before, c.after = g.calls.before, &g.calls
	c.before.after, c.after.before = c, c
	g.working.Add(1) // before Close waits for them
	return true
}

// ended takes a call out.
func (g *Guard) ended(c *Call) {
	g.mu.Lock()
	c.before.after, c.after.before = c.after, c.before
	g.mu.Unlock()
	c.Context, c.stead = nil, nil // nothing holds them until the next operation
}

// worker runs calls until too many others are free. With one that was left it ends: others
// count it as gone.
func (g *Guard) worker(c *Call) {
	for {
		c.op()
		if !c.over.CompareAndSwap(false, true) {
			g.returned(c)
			return
		}
		c.done <- struct{}{}
		if g.idle.Add(1) > maxIdle {
			g.idle.Add(-1)
			break
		}
		select {
		case c = <-g.handover:
			g.idle.Add(-1)
			continue
		case <-g.quit:
		}
		break
	}
	g.working.Done()
}

// returned takes back a call that was left.
func (g *Guard) returned(c *Call) {
	c.undo()
	g.ended(c)
	g.left.Add(-1)
}
