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

// The State of a block in the index has the salt of its segment, but for the lowest bit. So what lay in a segment before
// it was begun anew is not found, whoever began it. The lowest bit says whether the block was hit since it was written.
const hit uint32 = 1

// cold is the State of a block that was not hit yet.
func cold(salt uint64) uint32 { return uint32(salt) &^ hit }

// find returns where a block lies, and adds hits to its State.
func (v *Volume) find(id hearth.ID, hits uint32) (record.Place, bool) {
	state := uint32(0)
	p, ok := v.index.Get(id, func(s uint32) uint32 { state = s; return s | hits })
	return p, ok && v.current(p, state)
}

// current reports whether an entry of the index is of its segment's present use.
func (v *Volume) current(p record.Place, state uint32) bool {
	return state&^hit == cold(v.segments[p.Slot].salt.Load())
}

// drop removes blocks from the index, and returns how many.
func (v *Volume) drop(which func(id hearth.ID, p record.Place, state uint32) bool) (n int64) {
	var ids []hearth.ID
	var places []record.Place
	v.index.Each(func(id hearth.ID, p record.Place, state uint32) {
		if which(id, p, state) {
			ids, places = append(ids, id), append(places, p)
		}
	})
	for i, id := range ids {
		if _, ok := v.index.Remove(id, &places[i]); ok { // else it has moved meanwhile
			n++
		}
	}
	return n
}

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
	if view := v.queue.get(id, off, n); view != nil { // before the index, which has it before it leaves the queue
		v.stats.hits.Add(1)
		v.stats.hitBytes.Add(int64(n))
		return view, nil
	}
	for range 2 { // a block that moved meanwhile is looked up again
		p, ok := v.find(id, hit)
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
		if errors.Is(err, ErrUnread) {
			return nil, hearth.ErrMiss
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

// read reads a range of the block at a place. The error is ErrUnread if the device did not give it.
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
		return nil, fmt.Errorf("%w: %w", ErrUnread, v.why())
	}
	err = r.err
	r.view, r.err = nil, nil
	v.reads.Put(r)
	defer view.Release()
	if err != nil {
		if !harmed(err) {
			v.failure(err)
		} else if v.spoiled(err, func(op func() error) error { return v.aside(ctx, op) }) { // a block of a device that is well
			if _, ok := v.index.Remove(id, &p); ok {
				v.stats.lost.Add(1)
			}
		}
		return nil, fmt.Errorf("%w: %w", ErrUnread, err)
	}
	v.failed.Store(0)
	v.stats.read.Add(int64(plan.Len()))
	if err := plan.Verify(view.Bytes(), salt); err != nil {
		return nil, err
	}
	return plan.Wanted(view), nil
}

// Has reports whether a Get would find the block: the volume is known to hold it, or it waits to be written.
func (v *Volume) Has(id hearth.ID) bool { return v.queue.has(id) && v.usable() || v.holds(id) }

// holds reports whether the volume is known to hold a block, as far as the last write.
func (v *Volume) holds(id hearth.ID) bool {
	_, ok := v.find(id, 0)
	return ok && v.usable()
}
