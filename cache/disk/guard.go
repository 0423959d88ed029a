package disk

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/disk/pulse"
)

const (
	// defaultPatience is how long a reader waits for a device: tens of times what a
	// busy spinning disk takes, and an eighth of what a reader may be kept waiting.
	defaultPatience = 2 * time.Second
	// looks are the looks that a patience is made of. An operation hangs if it made
	// no step from one look to the next so many times.
	looks = 4
	// writerPatience is the writer's, in patiences: nobody waits for it, and one of
	// its steps may write 4 MiB behind a device's full queue.
	writerPatience = 5
	// closePatience is how long Close stands by a writer without a step, in patiences.
	closePatience = 15
	// maxLeft bounds the operations that their readers have left, each with a thread
	// and the memory that the kernel may still write into. With so many a Get is a
	// miss.
	maxLeft = 64
	// maxIdle is how many workers stay for the next call: as many as read at once
	// from a fast device, at a few KiB each.
	maxIdle = 32
)

// call is one operation on a directory's device that a reader waits for. It is the
// context of that operation, too: the reader's, by which the operation's wait for
// memory finds the call.
type call struct {
	context.Context
	op   func()
	undo func()        // what op brought is not wanted any more
	done chan struct{} // one word: op has ended, or the call was left
	// over is set by the first of two: the worker whose op has ended, or the lookout
	// who leaves it behind; left says which, to who got the word.
	over atomic.Bool
	left bool
	// stead takes the place of a caller who runs op himself and is left with it; nil: a
	// worker runs op.
	stead func()
	pulse.Pulse
	pulse.Watch
	before, after *call // in the guard's ring, under its lock

	block hearth.Block // of a Get, and what it brought
	span  span
	view  *hearth.View
	err   error
}

// guard runs a directory's operations on threads of its own, so that a reader can leave one that hangs in the kernel.
// What the operation holds stays with it until the kernel gives it back. Who waits too long is seen by a lookout
// (lookAround), so that a reader needs no timer: two switches of goroutines are all it pays.
type guard struct {
	well     func() bool // the directory is readable
	ill      func()      // an operation hangs
	gets     sync.Pool   // of *call
	handover chan *call  // to a worker that is free now
	idle     atomic.Int32
	away     atomic.Int32 // calls that were left and that have not ended

	quit    chan struct{}
	workers sync.WaitGroup
	mu      sync.Mutex // guards what follows; never held while anything waits
	closed  bool
	calls   call // the ring of those under way, those left among them
}

func newGuard(well func() bool, ill func()) *guard {
	g := &guard{well: well, ill: ill, handover: make(chan *call), quit: make(chan struct{})}
	g.calls.before, g.calls.after = &g.calls, &g.calls
	return g
}

// do runs c.op and reports whether it ended before the reader had to leave; if not,
// c belongs to its worker, who calls c.undo at the end.
func (g *guard) do(ctx context.Context, c *call) bool {
	if !g.enter(ctx, c, nil) {
		return false
	}
	select { // a worker who is free, or a new one
	case g.handover <- c:
		g.workers.Done()
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

// here is do on the caller's own thread: the two switches are saved, and with them a quarter
// of what a read costs who has nothing else to do meanwhile. A caller that is left cannot
// leave: stead is called, once, on another goroutine, to do without him, and he has false
// whenever the kernel lets go of him.
func (g *guard) here(ctx context.Context, c *call, stead func()) (ended bool) {
	if !g.enter(ctx, c, stead) {
		return false
	}
	defer func() { // also where it panics, which is not this goroutine's end
		if ended = c.over.CompareAndSwap(false, true); ended {
			g.ended(c)
		} else {
			g.returned(c)
		}
		g.workers.Done()
	}()
	c.op()
	return true
}

// enter begins a call, which the lookout sees from now on.
func (g *guard) enter(ctx context.Context, c *call, stead func()) bool {
	if g.away.Load() >= maxLeft {
		return false
	}
	c.Context, c.Watch, c.left, c.stead = ctx, pulse.Watch{}, false, stead
	c.over.Store(false)
	c.Work()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	c.before, c.after = g.calls.before, &g.calls
	c.before.after, c.after.before = c, c
	g.workers.Add(1) // before close waits for them
	return true
}

// ended takes a call out.
func (g *guard) ended(c *call) {
	g.mu.Lock()
	c.unlink()
	g.mu.Unlock()
}

func (c *call) unlink() { c.before.after, c.after.before = c.after, c.before }

func (g *guard) worker(c *call) {
	defer g.workers.Done()
	for {
		c.op()
		if c.over.CompareAndSwap(false, true) {
			c.done <- struct{}{}
		} else {
			g.returned(c)
		}
		if g.idle.Add(1) > maxIdle {
			g.idle.Add(-1)
			return
		}
		select {
		case c = <-g.handover:
			g.idle.Add(-1)
		case <-g.quit:
			return
		}
	}
}

// returned takes back a call that was left.
func (g *guard) returned(c *call) {
	c.undo()
	g.ended(c)
	g.away.Add(-1)
}

// lookAround leaves the calls that make no step, and those whose reader is not waiting any more, and reports how many
// are under way, and for how many looks one of them has made no step.
func (g *guard) lookAround() (under, longest int) {
	well, hang := g.well(), false
	g.mu.Lock()
	for c := g.calls.after; c != &g.calls; c = c.after {
		under++
		still := c.Look(&c.Pulse)
		longest = max(longest, still)
		hang = hang || still >= looks
		switch {
		case c.over.Load():
		case still >= looks, still > 0 && !well, c.Err() != nil:
			g.leave(c)
		}
	}
	g.mu.Unlock()
	if hang && well {
		g.ill()
	}
	return under, longest
}

// leave gives a call up, unless it has just ended.
func (g *guard) leave(c *call) {
	if !c.over.CompareAndSwap(false, true) {
		return
	}
	g.away.Add(1)
	c.left = true
	if c.stead != nil {
		go c.stead()
		return
	}
	c.done <- struct{}{} // there is room: nobody else sends
}

// close ends the workers and waits for those that do not hang.
func (g *guard) close() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.quit)
	}
	g.mu.Unlock()
	if g.away.Load() == 0 {
		g.workers.Wait()
	}
}

// alloc is Pool.Alloc for the operations of a call: who waits for memory is not
// waiting for a device. Who runs his operation himself has others that wait for him, and
// waits for no memory.
func alloc(pool *hearth.Pool) func(context.Context, int) (*hearth.View, error) {
	return func(ctx context.Context, n int) (*hearth.View, error) {
		if c, ok := ctx.(*call); ok {
			if c.stead != nil {
				if v := pool.TryAlloc(n); v != nil {
					return v, nil
				}
				return nil, hearth.ErrMiss
			}
			c.Rest()
			defer c.Work()
		}
		return pool.Alloc(ctx, n)
	}
}

// read reads a range of a block. A reader who had to leave has a miss, or its
// context's error. With stead it is read on the caller's thread (guard.here).
func (d *directory) read(ctx context.Context, b hearth.Block, r span, stead func()) (*hearth.View, error) {
	c := d.guard.gets.Get().(*call)
	c.block, c.span = b, r
	var ended bool
	if stead == nil {
		ended = d.guard.do(ctx, c)
	} else {
		ended = d.guard.here(ctx, c, stead)
	}
	if !ended {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, hearth.ErrMiss
	}
	v, err := c.view, c.err
	c.Context, c.stead, c.block, c.view, c.err = nil, nil, hearth.Block{}, nil, nil
	d.guard.gets.Put(c)
	return v, err
}

// newGet makes a call that serves one Get after the other, so that a Get costs no memory.
func (d *directory) newGet() any {
	c := newCall()
	c.op = func() {
		vol := d.use()
		if vol == nil {
			c.err = hearth.ErrMiss
			return
		}
		defer vol.release()
		c.view, c.err = vol.get(c, c.block, c.span, d.budget)
	}
	c.undo = func() {
		if c.view != nil {
			c.view.Release()
		}
	}
	return c
}

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

// aside runs op, which may wait for the device, and reports whether it has ended in
// time; if not, undo is called when it has.
func (d *directory) aside(op, undo func()) bool {
	c := newCall()
	c.op, c.undo = op, undo
	return d.guard.do(context.Background(), c)
}
