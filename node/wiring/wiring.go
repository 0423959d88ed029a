// Package wiring is the read side of a node in one expression: what is asked after
// what, and what each tier keeps of it.
package wiring

import (
	"context"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/namespace"
)

// Wiring is what stands in the read side where later tiers will. Nil: nothing
// stands there.
type Wiring struct {
	// Volumes stands between the disk and the bucket.
	Volumes hearth.Store
	// Ring routes reads to the nodes that own blocks.
	Ring Ring
}

// Ring is what the wiring wants of the nodes around it. A Ring may also have
// Owns(hearth.ID) bool, which eviction asks so that others' blocks go first.
type Ring interface {
	// Former asks those who owned a block before, by Peek, and reads from next what
	// they do not hold.
	Former(next hearth.Source) hearth.Source
	// Fill reads others' blocks at their owners.
	Fill() hearth.Source
	// Route reads own blocks from own and the others' from theirs.
	Route(own, theirs hearth.Source) hearth.Source
	// List has each directory listed once per ring and bound.
	List(origin namespace.Origin) namespace.Origin
	// Serve answers peers: Fill from owned, Peek from local.
	Serve(owned, local hearth.Source) error
}

// alone is the Ring of one node: it owns every block.
type alone struct{ owned atomic.Pointer[hearth.Source] }

func (*alone) Former(next hearth.Source) hearth.Source       { return next }
func (a *alone) Fill() hearth.Source                         { return a }
func (*alone) Route(own, _ hearth.Source) hearth.Source      { return own }
func (*alone) List(origin namespace.Origin) namespace.Origin { return origin }
func (a *alone) Serve(owned, _ hearth.Source) error          { a.owned.Store(&owned); return nil }
func (a *alone) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if owned := a.owned.Load(); owned != nil {
		return (*owned).Get(ctx, b, off, n)
	}
	return nil, hearth.ErrMiss
}

// Tiers are the values of the read side's expression.
type Tiers struct {
	// Reads is what this node's readers use, Own the way of its own blocks.
	Reads, Own             *cache.Tier
	backing, theirs, owned *cache.Tier
	local                  hearth.Source
	// Ring is the nodes around it, or none.
	Ring Ring
}

// Wire is the architecture: the read side in one expression. disk may be nil.
func Wire(w Wiring, mem *cache.RAM, disk hearth.Store, bucket hearth.Source) (*Tiers, error) {
	volumes, ring := w.Volumes, w.Ring
	if ring == nil {
		ring = &alone{}
	}
	t := &Tiers{Ring: ring}
	t.backing = cache.Through(volumes, bucket, cache.Always)                  // what lasts
	t.Own = cache.Through(disk, ring.Former(t.backing), cache.Keep(disk))     // this node's own blocks
	t.theirs = cache.Through(disk, ring.Fill(), cache.Keep(disk))             // others' blocks: a copy here
	t.owned = cache.Through(mem, t.Own, cache.Keep(mem))                      // what peers may Fill from
	t.Reads = cache.Through(mem, ring.Route(t.Own, t.theirs), hot(mem, disk)) // what readers use
	t.local = cache.Local(mem, disk)
	return t, ring.Serve(t.owned, t.local)
}

// Close ends the attempts under way, each tier before what it reads from.
func (t *Tiers) Close() {
	for _, tier := range []*cache.Tier{t.Reads, t.owned, t.theirs, t.Own, t.backing} {
		tier.Close()
	}
}

// hot is what this node's readers keep in memory. Before a disk it is what is
// soon asked for again, since a mount's page cache has the rest; without a disk
// it is everything.
func hot(mem *cache.RAM, disk hearth.Store) cache.Admit {
	if disk == nil {
		return cache.Keep(mem)
	}
	return cache.Hot(mem.Stats().Budget)
}
