// Package cache is the read side of one node: the local tiers, how they are
// stacked, and the Reader that turns offsets into blocks.
//
// A Tier (Through) looks in its store. On a miss it looks for an attempt in flight for the block,
// and waits for that together with the others (singleflight). Without one, the admission policy
// (Admit) decides. A block worth keeping is fetched whole, once, and put into the store; each
// waiter takes its slice. Of any other block only the range that was asked for is fetched, straight
// from the next Source; equal ranges in flight are shared. A store that fails or declines costs
// time, never a read.
//
// GetMany reads many blocks at once. They come from the store where it has them, and from attempts
// in flight where there are any. The runs between come in one request each; every block of a run is
// put, finished and shared by itself. Load has the store keep blocks; others read them from memory
// until it has them. Objects that are not Cacheable pass a Tier by. Memory is Through a RAM, with a
// window for the blocks that runs bring.
//
// RAM holds whole blocks in memory. It gives way when memory is short: the one Pool counts every
// byte, and cached bytes go first. Hot is its admission policy.
//
// A Reader gives one object as io.ReaderAt does. It copies each block out and releases it before it
// asks for the next, so it never waits for memory while holding a View. It tells sequential
// readers, several at a time, from all others. Ahead of a sequential reader it has missing
// neighbours fetched into the tiers. It never reads ahead further than that reader has read in one
// piece before. So a reader that stops has wasted at most as much as it read.
package cache

import (
	"context"
	"errors"

	"github.com/hearthfs/hearth"
)

// Admit is an admission policy: it says whether a block that missed is worth being fetched whole
// and kept. n is how many bytes of the block were asked for. n is 0 for a block that comes whole in
// any case, in a run, perhaps before any reader asked for it. Admit is called on each miss and must
// not wait.
type Admit func(b hearth.Block, n int) bool

// Always admits every block that is asked for.
func Always(hearth.Block, int) bool { return true }

// Never admits no block.
func Never(hearth.Block, int) bool { return false }

// Keep admits the blocks that store takes.
func Keep(store hearth.Store) Admit {
	if store == nil {
		return Always
	}
	return func(b hearth.Block, _ int) bool { return store.Takes(b) }
}

// Held reads from stores in order, and the first that has the block answers. It never fetches.
type Held []hearth.Store

// Local returns the Held of the stores that are not nil.
func Local(stores ...hearth.Store) Held {
	var l Held
	for _, s := range stores {
		if s != nil {
			l = append(l, s)
		}
	}
	return l
}

// Get asks each store in turn. An error of a store counts as a miss: another store may have the
// block.
func (l Held) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if !b.Object.Cacheable() {
		return nil, hearth.ErrMiss
	}
	for _, s := range l {
		if v, err := s.Get(ctx, b, off, n); err == nil {
			return v, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, hearth.ErrMiss
}

// Has reports whether a store says that it holds the block.
func (l Held) Has(id hearth.ID) bool {
	for _, s := range l {
		if s.Has(id) {
			return true
		}
	}
	return false
}

// errShort is returned when a Source ends a run without an error or all blocks.
var errShort = errors.New("fewer blocks than asked for")
