package warmup

import (
	"context"
	"errors"

	"github.com/hearthfs/hearth"
)

// Owners are the nodes of a ring, of which each keeps its own blocks in its disk tier.
type Owners interface {
	// Here reports whether this node is to keep a block.
	Here(b hearth.Block) bool
	// Load has the owner of blocks [first, first+n), all of one extent, keep them, and calls
	// each for every one, in order, with what became of it: nil, hearth.NotKept, or an error. false:
	// those that are left have become this node's own.
	Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error)) bool
	// Held asks for many blocks at once, this node's own among them, and tells them apart.
	// What nobody could be asked for is not held.
	Held(ctx context.Context, blocks []hearth.Block) func(id hearth.ID) bool
	// Flush is hearth.Store's, of all nodes where blocks were found or loaded since it was
	// called last; an error is Unflushed.
	Flush(ctx context.Context) error
}

// Unflushed is an error of Owners' Flush; what it does not concern is on a device.
type Unflushed interface {
	error
	// Unsafe reports whether a block is held only where it may be lost.
	Unsafe(b hearth.Block) bool
}

// Loader has its Store keep blocks, as *cache.Tier does.
type Loader interface {
	// Load brings blocks [first, first+n) of one object and calls each once per block, in order,
	// once it is kept, until each returns false: nil, hearth.NotKept, or why the block cannot be
	// had, which ends the run.
	Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error) bool)
}

// has tells which blocks of some steps are held.
func (l *loader) has(ctx context.Context, of ...*outcome) func(hearth.ID) bool {
	if l.Owners == nil {
		return l.keeper.Has
	}
	var all []hearth.Block
	for _, o := range of {
		for i := range o.n {
			all = append(all, o.object.Block(o.first+i))
		}
	}
	return l.Owners.Held(ctx, all)
}

// ahead is has of what a walk goes over next, as far as it is small: what is large is
// asked for on its own. nil: nobody was asked.
func (l *loader) ahead(ctx context.Context, page []Entry) func(hearth.ID) bool {
	if l.Owners == nil {
		return nil
	}
	var some []*outcome
	for i := range page {
		if o := &page[i].Object; !page[i].Dir && isSmall(o) && o.Cacheable() {
			some = append(some, &outcome{object: o, n: o.Blocks()})
		}
	}
	return l.has(ctx, some...)
}

func isSmall(o *hearth.Object) bool { return o.Size <= hearth.ExtentBlocks*hearth.BlockSize }

// askedAhead is how many blocks of a large object are asked for at once by who only looks.
const askedAhead = 1024

// along is has of an object whose blocks are looked at from the first to the last.
func (l *loader) along(ctx context.Context, o *hearth.Object) func(hearth.ID) bool {
	part := outcome{object: o}
	if l.Owners == nil {
		return l.keeper.Has
	}
	var has func(hearth.ID) bool
	return func(id hearth.ID) bool {
		if id.Index >= part.first+part.n {
			part.first, part.n = id.Index, min(askedAhead, o.Blocks()-id.Index)
			has = l.has(ctx, &part)
		}
		return has(id)
	}
}

// flush brings what was loaded to the devices.
func (l *loader) flush(ctx context.Context) error {
	if l.Owners == nil {
		return l.keeper.Flush(ctx)
	}
	return l.Owners.Flush(ctx)
}

// atRisk tells which blocks an error of flush concerns; nil: all.
func atRisk(err error) func(hearth.Block) bool {
	var there Unflushed
	if errors.As(err, &there) {
		return there.Unsafe
	}
	var here hearth.Unflushed
	if errors.As(err, &here) {
		return func(b hearth.Block) bool { return here.Concerns(b.ID()) }
	}
	return func(hearth.Block) bool { return true }
}
