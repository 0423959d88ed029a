package device

import (
	"context"
	"sync/atomic"
)

// Call is one operation that a caller waits for. It is also the context of that operation, with the
// caller's context inside. By it the operation finds its Call, to rest it while it waits for
// something else. A Call is reused by one operation after the other, so that each allocates
// nothing; an abandoned one belongs to the Guard.
type Call struct {
	context.Context
	Pulse
	// Looks is how many looks without a step are a hang of this operation, if that is more than the
	// constant.
	Looks int

	op   func()
	undo func()        // releases the result of op if the call was abandoned
	done chan struct{} // receives once: op has ended, or the call was abandoned
	// over is set by the first of two: the worker whose op has ended, or the lookout that abandons
	// the call. left tells the caller that it was the lookout.
	over atomic.Bool
	left bool
	// stead takes the place of a caller that runs op itself and is abandoned with it. nil means
	// that a worker runs op.
	stead         func()
	watch         watch
	before, after *Call // in the Guard's list, under its lock
}

// NewCall makes a Call of op. If the call is abandoned, undo is called once op has ended.
func NewCall(op, undo func()) *Call {
	return &Call{op: op, undo: undo, done: make(chan struct{}, 1)}
}

// Here reports whether op runs on its caller's own thread, which cannot leave.
func (c *Call) Here() bool { return c.stead != nil }

// Do runs c on another thread, and reports whether it ended before its caller had to leave. If not,
// c was abandoned and belongs to the Guard, or it was never begun.
func (g *Guard) Do(ctx context.Context, c *Call) bool {
	if !g.enter(ctx, c, nil) {
		return false
	}
	select { // an idle worker, or a new one
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

// Here is Do on the caller's own thread. It saves two switches of goroutines, a quarter of what a
// read costs a caller that has nothing else to do meanwhile. If the call is abandoned, its caller
// cannot leave. Then stead is called, once, on another goroutine, to go on without the caller. The
// caller gets false once the kernel lets go of it.
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

// enter begins a call. The lookout sees it from now on.
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

// ended removes a call from the list.
func (g *Guard) ended(c *Call) {
	g.mu.Lock()
	c.before.after, c.after.before = c.after, c.before
	g.mu.Unlock()
	c.Context, c.stead = nil, nil // nothing holds them until the next operation
}

// worker runs calls until there are enough other idle workers. It ends after a call that was
// abandoned, since such a worker is no longer counted.
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

// returned takes back an abandoned call.
func (g *Guard) returned(c *Call) {
	c.undo()
	g.ended(c)
	g.left.Add(-1)
}
