package warmup

import (
	"context"
	"errors"

	"github.com/hearthfs/hearth"
)

// Owners are the nodes of a ring. Each keeps its own blocks in its disk tier.
type Owners interface {
	// Here reports whether this node is to keep a block.
	Here(b hearth.Block) bool
	// Load has the owner keep blocks [first, first+n), all of one extent. It calls each
	// once per block, in order, with nil, hearth.NotKept or an error. It returns false if
	// the blocks that are left have become this node's own.
	Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error)) bool
	// Held asks for many blocks at once, this node's own among them, and tells which are
	// held. A block that nobody could be asked for is not held.
	Held(ctx context.Context, blocks []hearth.Block) func(id hearth.ID) bool
	// Flush does what hearth.Store's Flush does, at all nodes where blocks were found or
	// loaded since the last call. An error is an Unflushed.
	Flush(ctx context.Context) error
}

// Unflushed is an error of Owners' Flush. Blocks that it does not concern are on a
// device.
type Unflushed interface {
	error
	// Unsafe reports whether a block is held only where it may be lost.
	Unsafe(b hearth.Block) bool
}

// Loader brings blocks and has its Store keep them, as *cache.Tier does.
type Loader interface {
	// Load brings blocks [first, first+n) of one object. It calls each once per block, in
	// order, until each returns false. err is nil once the block is kept, or
	// hearth.NotKept. Any other error says why the block cannot be had, and ends the run.
	Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error) bool)
}

// has tells which blocks of some steps are held.
func (l *loader) has(ctx context.Context, of ...*outcome) func(hearth.ID) bool {
	if l.known != nil {
		_ = l.known(ctx) // what cannot be used holds nothing
	}
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

// ahead tells which blocks of the small files of a page are held, for the walk that
// reaches them next. Large files are asked for one by one. nil means that nobody was
// asked.
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

// askedAhead is how many blocks of a large object are asked about at once by a look
// alone.
const askedAhead = 1024

// along tells which blocks of an object are held, to a caller that goes from first to
// last.
func (l *loader) along(ctx context.Context, o *hearth.Object) func(hearth.ID) bool {
	part := outcome{object: o}
	if l.Owners == nil {
		return l.has(ctx)
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

// atRisk tells which blocks an error of flush concerns. An error of another kind concerns
// all.
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
