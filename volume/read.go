package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

// The State of a block in the index says whether it was hit since it was written.
const (
	cold uint32 = iota
	hit
)

func touch(uint32) uint32 { return hit }

// read is one Get that asks the device, and its result. It is reused, so that a Get allocates nothing.
type read struct {
	call *device.Call
	plan record.Plan
	base int64 // where the segment begins
	view *hearth.View
	err  error
}

func (v *Volume) newRead() any {
	r := new(read)
	at := func(p []byte, off int64) error {
		_, err := v.dev.ReadAt(p, r.base+off)
		return err
	}
	r.call = device.NewCall(func() { r.err = r.plan.Fill(at, r.view.Bytes()) }, func() { r.view.Release() })
	return r
}

// Get returns bytes [off, off+n) of a block, verified. hearth.ErrMiss means that the volume does not hold
// the block, cannot be asked now, or that its bytes were bad.
func (v *Volume) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if off < 0 || n <= 0 || off+n > b.Len() {
		return nil, fmt.Errorf("read [%d, %d) of block %s of %d bytes: %w", off, off+n, b.ID(), b.Len(), fs.ErrInvalid)
	}
	if !v.usable() {
		return nil, hearth.ErrMiss
	}
	id := b.ID()
	for range 2 { // a block that moved meanwhile is looked up again
		p, ok := v.index.Get(id, touch)
		if !ok || int(p.Length) != b.Len() {
			v.stats.misses.Add(1)
			return nil, hearth.ErrMiss
		}
		view, err := v.read(ctx, id, p, off, n)
		if err == nil {
			v.stats.hits.Add(1)
			v.stats.hitBytes.Add(int64(n))
			return view, nil
		}
		if !errors.Is(err, record.ErrMismatch) {
			return nil, err
		}
		if _, ok := v.index.Remove(id, &p); ok {
			v.stats.lost.Add(1)
		}
	}
	return nil, hearth.ErrMiss
}

// read reads a range of the block at a place.
func (v *Volume) read(ctx context.Context, id hearth.ID, p record.Place, off, n int) (*hearth.View, error) {
	s := &v.segments[p.Slot]
	salt := s.salt.Load() // before the bytes: later ones do not verify
	plan := record.Read(p.Note(id), off, n)
	view, err := v.o.Pool.Alloc(ctx, plan.Len())
	if err != nil {
		return nil, err
	}
	r := v.reads.Get().(*read)
	r.plan, r.base, r.view = plan, v.g.offset(p.Slot), view
	if !v.guard.Do(ctx, r.call) { // r is the guard's, with the View
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, hearth.ErrMiss
	}
	err = r.err
	r.view, r.err = nil, nil
	v.reads.Put(r)
	defer view.Release()
	if err != nil {
		v.failure(err)
		return nil, hearth.ErrMiss
	}
	v.failed.Store(0)
	v.stats.read.Add(int64(plan.Len()))
	if err := plan.Verify(view.Bytes(), salt); err != nil {
		return nil, err
	}
	return plan.Wanted(view), nil
}

// Has reports whether the volume is known to hold a block.
func (v *Volume) Has(id hearth.ID) bool {
	_, ok := v.index.Get(id, nil)
	return ok && v.usable()
}
