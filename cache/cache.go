// Package cache is the read side of one node: the local tiers, how they are
// stacked, and the Reader that turns offsets into blocks.
//
// A Tier (Through) looks in its store. On a miss it looks whether the block is on
// its way already, and if so waits for it with the others. If not, admit decides:
// a block worth keeping is fetched whole, once, put into the store, and each
// waiter takes its slice; of any other just the range that was asked for is
// fetched, straight from the next Source, and equal ranges asked for at the same
// time share that. A store that fails or declines costs time, never a read. Many
// blocks at once (GetMany) come from the store where it has them, from attempts
// under way where there are any, and the runs between in one request each; every
// block of a run is put, finished and shared by itself. Load has the store keep blocks;
// others read them from memory until it has them. Objects that are not Cacheable pass a
// Tier by. Memory is Through a RAM, with a window for what runs bring.
//
// RAM holds whole blocks in memory. It gives way when memory is short: every byte
// is counted by the one Pool, and a cached byte is the first to go. Hot is what it
// is asked before a block is kept there.
//
// A Reader gives one object as io.ReaderAt does. It copies each block out and
// releases it before it asks for the next, so that nobody waits for memory while
// holding a View. It tells sequential readers, several at a time, from all others;
// ahead of a sequential one it has missing neighbours fetched into the tiers,
// never more than that reader has read in one piece before, so that whoever stops
// has wasted at most as much as it read.
package cache

import (
	"context"
	"errors"

	"github.com/hearthfs/hearth"
)

// Admit says whether a block that was asked for, n bytes of it, is worth being
// fetched whole and kept. n is 0 for a block that comes whole in any case, in a run,
// perhaps before any reader asked for it. It is called on each miss and must not
// block.
type Admit func(b hearth.Block, n int) bool

// Always keeps everything that is asked for.
func Always(hearth.Block, int) bool { return true }

// Keep keeps what store will take.
func Keep(store hearth.Store) Admit {
	if store == nil {
		return Always
	}
	return func(b hearth.Block, _ int) bool { return store.Takes(b) }
}

// Held is what stores hold, the first that has it; it never fetches.
type Held []hearth.Store

// Local is what stores hold. Those that are nil are left out.
func Local(stores ...hearth.Store) Held {
	var l Held
	for _, s := range stores {
		if s != nil {
			l = append(l, s)
		}
	}
	return l
}

// Get asks each store in turn. Any store's error is a miss: another has it, or
// nobody here.
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
