package disk

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// blocks reads, writes and evicts the blocks of one area of a directory: the packed area (package
// segment) or the sparse files (package sparse).
type blocks interface {
	get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)
	has(id hearth.ID) bool
	// put writes blocks as one group; for sparse files consecutive ones of one object.
	put(items []queueItem) error
	// sample calls each with up to n pseudo-random entries.
	sample(r uint64, n int, each func(entry))
	// evict offers a sampled entry to Options.Spill, evicts it, and reports whether it was still there.
	evict(id hearth.ID) bool
}

// upkeep is the rest of the methods of an area.
type upkeep interface {
	// forget evicts all blocks of a version, which has this many.
	forget(version [16]byte, blocks int64)
	// used is the number of allocated bytes.
	used() int64
	sync() error
	stats() areaStats
	close() error
}

type area interface {
	blocks
	upkeep
}

// compacter is an area that eviction leaves fragmented.
type compacter interface {
	// compact frees the space of dead bytes. It returns false when there is nothing to do.
	compact(ctx context.Context) (bool, error)
}

// lender is an area that has a file for each object.
type lender interface {
	LocalFile(o *hearth.Object) (file *os.File, release func(), err error)
}

// entry is a candidate that an area offers for eviction.
type entry struct {
	id    hearth.ID
	size  int64
	state uint32
}

// areaStats are an area's figures for Stats.
type areaStats struct {
	blocks, corrupt, errors, indexBytes, written int64
}

// volume is the open content of a directory. The directory holds a reference, and so does each call
// of a reader. The last release closes it.
type volume struct {
	packed, whole area
	refs          atomic.Int64
	closed        chan struct{} // closed once the areas are
	closeErr      error         // valid then
}

// openVolume opens both areas of a directory.
func openVolume(d *directory) (*volume, error) {
	whole, err := openWhole(d)
	if err != nil {
		return nil, err
	}
	packed, err := openPacked(d)
	if err != nil {
		_ = whole.close() // the error of the other area is returned
		return nil, err
	}
	return newVolume(packed, whole), nil
}

func newVolume(packed, whole area) *volume {
	v := &volume{packed: packed, whole: whole, closed: make(chan struct{})}
	v.refs.Store(1)
	return v
}

// tryRetain adds a reference. It fails when the last one is gone.
func (v *volume) tryRetain() bool {
	for {
		n := v.refs.Load()
		if n == 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (v *volume) release() {
	if v.refs.Add(-1) == 0 {
		v.closeErr = errors.Join(v.packed.close(), v.whole.close())
		close(v.closed)
	}
}

func (v *volume) used() int64                { return v.packed.used() + v.whole.used() }
func (v *volume) forget(x [16]byte, n int64) { v.packed.forget(x, n); v.whole.forget(x, n) }
func (v *volume) sync() error                { return errors.Join(v.packed.sync(), v.whole.sync()) }
func (v *volume) has(id hearth.ID) bool      { return v.packed.has(id) || v.whole.has(id) }

// knower is an area that may have to ask its device whether it holds a block.
type knower interface {
	// knows is has without the device. If known is false, only has can tell.
	knows(id hearth.ID) (held, known bool)
}

// knows is has, as far as memory can tell.
func (v *volume) knows(id hearth.ID) (held, known bool) {
	if v.packed.has(id) {
		return true, true
	}
	if k, ok := v.whole.(knower); ok {
		return k.knows(id)
	}
	return v.whole.has(id), true
}

// mayHold is false for a block that is certainly not held. It asks no device.
func (v *volume) mayHold(b hearth.Block) bool {
	if b.Object.Size <= hearth.BlockSize {
		return v.packed.has(b.ID())
	}
	held, known := v.knows(b.ID())
	return held || !known
}

// partial is an area that may hold blocks that there is no memory to index.
type partial interface {
	// unindexed is the number of these blocks, and their bytes on disk.
	unindexed() (blocks, bytes int64)
	// recall indexes what there is memory for by now.
	recall(ctx context.Context) error
	// shed evicts some unindexed blocks that are not pinned, and returns how many. A nil pinned
	// means that no block is pinned. 0 means that none may go.
	shed(pinned func(hearth.ID) bool) (blocks int64)
}

func (v *volume) partial() (all []partial) {
	for _, a := range []area{v.packed, v.whole} {
		if p, ok := a.(partial); ok {
			all = append(all, p)
		}
	}
	return all
}

func (v *volume) unindexed() (blocks, bytes int64) {
	for _, p := range v.partial() {
		n, size := p.unindexed()
		blocks, bytes = blocks+n, bytes+size
	}
	return blocks, bytes
}

func (v *volume) recall(ctx context.Context) error {
	var errs []error
	for _, p := range v.partial() {
		errs = append(errs, p.recall(ctx))
	}
	return errors.Join(errs...)
}

func (v *volume) shed(pinned func(hearth.ID) bool) (blocks int64) {
	for _, p := range v.partial() {
		if blocks = p.shed(pinned); blocks > 0 {
			break
		}
	}
	return blocks
}

// compact compacts at most a few segments of the packed area.
func (v *volume) compact(ctx context.Context) (done bool, err error) {
	c, ok := v.packed.(compacter)
	for range 4 {
		if !ok || err != nil {
			return !ok, err
		}
		ok, err = c.compact(ctx)
	}
	return false, err
}

// get looks where an object of this size belongs, then in the other area, since the budget may have
// been different when it was written.
func (v *volume) get(ctx context.Context, b hearth.Block, r span, budget int64) (*hearth.View, error) {
	if b.Object.Size <= hearth.BlockSize {
		return v.packed.get(ctx, b, r.off, r.n)
	}
	first, second := v.packed, v.whole
	if isWhole(b.Object, budget) {
		first, second = second, first
	}
	view, err := first.get(ctx, b, r.off, r.n)
	if err != nil && errors.Is(err, hearth.ErrMiss) {
		return second.get(ctx, b, r.off, r.n)
	}
	return view, err
}

// span is bytes [off, off+n) of a block.
type span struct{ off, n int }

// isWhole reports whether an object gets a file of its own. Such an object is larger than a block,
// and not so large that its eviction as a whole would empty the cache.
func isWhole(o *hearth.Object, budget int64) bool {
	return o.Size > hearth.BlockSize && o.Size <= budget/4
}
