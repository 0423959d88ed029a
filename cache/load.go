package cache

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// Load has the store keep blocks first ... first+n-1 of one object, in order. It calls each once
// per block: with nil, with hearth.NotKept, or with the error that ends the run. It also ends when
// each returns false. The store may be slower than next: other readers get a block that the store
// has not taken yet from memory, instead of fetching it again.
func (t *Tier) Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error) bool) {
	if t.store == nil || !first.Object.Cacheable() {
		for i := range n {
			if !each(first.Object.Block(first.Index+int64(i)), hearth.NotKept("no tier keeps it")) {
				return
			}
		}
		return
	}
	lent := &lending{of: &t.lent, views: map[hearth.ID]*hearth.View{}}
	defer lent.end()
	keep := func(b hearth.Block, v *hearth.View, err error) bool {
		if err != nil {
			return each(b, err)
		}
		defer v.Release()
		lent.add(b.ID(), v) // for a block by another's attempt; our own attempt has lent it already
		defer lent.drop(b.ID())
		err = t.store.Keep(ctx, b, v) // also after a Put that took it: a kill loses what waits in a queue
		switch {
		case err != nil && ctx.Err() != nil:
			each(b, context.Cause(ctx))
			return false
		case err != nil:
			err = hearth.NotKept(err.Error())
		}
		return each(b, err)
	}
	if n == 1 { // a small object needs no run
		v, err := t.get(ctx, first, span{first.ID(), 0, first.Len()}, lent)
		keep(first, v, err)
		return
	}
	t.getMany(ctx, first, n, receiver{lent, keep})
}

// receiver gets the blocks of one GetMany or Load.
type receiver struct {
	lent *lending // nil for a GetMany
	each func(hearth.Block, *hearth.View, error) bool
}

// lent are the blocks that Loads hold at the moment.
type lent struct {
	n     atomic.Int64 // len(views), for a look without the lock
	mu    sync.Mutex   // guards views and the fields of all lendings
	views map[hearth.ID]*hearth.View
}

// get returns a slice of a block, or nil.
func (l *lent) get(id hearth.ID, off, n int) *hearth.View {
	if l.n.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.views[id]; v != nil {
		return v.Slice(off, n)
	}
	return nil
}

// has reports whether get would return a View.
func (l *lent) has(id hearth.ID) bool {
	if l.n.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.views[id] != nil
}

// lending is the blocks of one Load. It holds a reference to each for other readers: from before
// its attempt hands the block out until each has returned.
type lending struct {
	of    *lent
	views map[hearth.ID]*hearth.View
	ended bool
}

// add lends a block, unless it is lent already or the Load has ended.
func (x *lending) add(id hearth.ID, v *hearth.View) {
	if x == nil {
		return
	}
	l := x.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.ended || x.views[id] != nil || l.views[id] != nil {
		return
	}
	if l.views == nil {
		l.views = map[hearth.ID]*hearth.View{}
	}
	x.views[id] = v.Retain()
	l.views[id] = v
	l.n.Store(int64(len(l.views)))
}

func (x *lending) drop(id hearth.ID) {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.dropLocked(id)
}

func (x *lending) dropLocked(id hearth.ID) {
	v := x.views[id]
	if v == nil {
		return
	}
	delete(x.views, id)
	delete(x.of.views, id)
	x.of.n.Store(int64(len(x.of.views)))
	v.Release()
}

func (x *lending) end() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.ended = true
	for id := range x.views {
		x.dropLocked(id)
	}
}
