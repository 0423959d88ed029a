package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
)

// maxLeft bounds the operations that their readers have abandoned, each with a thread and the
// memory that the kernel may still write into. At this bound a Get is a miss.
const maxLeft = 64

// get is one Get that asks the device, and its result.
type get struct {
	call  *device.Call
	block hearth.Block
	span  span
	view  *hearth.View
	err   error
}

// newGet makes a call that is reused by one Get after the other, so that a Get allocates nothing.
func (d *directory) newGet() any {
	g := new(get)
	g.call = device.NewCall(func() {
		vol := d.use()
		if vol == nil {
			g.err = hearth.ErrMiss
			return
		}
		defer vol.release()
		g.view, g.err = vol.get(g.call, g.block, g.span, d.budget)
	}, func() {
		if g.view != nil {
			g.view.Release()
		}
	})
	return g
}

// read reads a range of a block. A reader that had to abandon the operation gets a miss, or its
// context's error. With stead it reads on the caller's thread (device.Guard.Here).
func (d *directory) read(ctx context.Context, b hearth.Block, r span, stead func()) (*hearth.View, error) {
	g := d.gets.Get().(*get)
	g.block, g.span = b, r
	var ended bool
	if stead == nil {
		ended = d.guard.Do(ctx, g.call)
	} else {
		ended = d.guard.Here(ctx, g.call, stead)
	}
	if !ended {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, hearth.ErrMiss
	}
	v, err := g.view, g.err
	g.block, g.view, g.err = hearth.Block{}, nil, nil
	d.gets.Put(g)
	return v, err
}

// alloc is Pool.Alloc for the operations of a call. Time spent waiting for memory is not time spent
// waiting for the device. If the caller runs the operation itself, others wait for the caller, so
// it does not wait for memory.
func alloc(pool *hearth.Pool) func(context.Context, int) (*hearth.View, error) {
	return func(ctx context.Context, n int) (*hearth.View, error) {
		if c, ok := ctx.(*device.Call); ok {
			if c.Here() {
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

// aside runs op, which may wait for the device, and reports whether it ended in time. If not, undo
// is called when it ends.
func (d *directory) aside(op, undo func()) bool {
	return d.guard.Do(context.Background(), device.NewCall(op, undo))
}

// hangs ejects a directory whose device does not answer.
func (d *directory) hangs(what string, since time.Duration) {
	if d.eject(fmt.Errorf("stalled: %s has not come back for %v", what, since), true) {
		d.errors.Add(1)
		d.stalls.Add(1)
	}
}

// await waits for the writer's end, unless it hangs.
func (d *directory) await() error {
	if !d.guard.Await(d.stopped) {
		return fmt.Errorf("close cache directory %s: its device does not answer", d.path)
	}
	return d.closeErr
}
