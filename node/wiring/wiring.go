// Package wiring is the read side of a node in one expression: what is asked after
// what, and what each tier keeps of it.
package wiring

import (
	"context"
	"math/rand/v2"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/namespace"
)

// Wiring is what stands in the read side where later tiers will. Nil: nothing
// stands there.
type Wiring struct {
	// Volumes stands between the disk and the bucket.
	Volumes hearth.Store
	// Ring routes reads to the nodes that own blocks; Mine tells its own from others', nil:
	// all are.
	Ring Ring
	Mine func(hearth.Block) bool
}

// Ring is what the wiring wants of the nodes around it.
type Ring interface {
	// Former asks those who owned a block before, by Peek, and reads from next what
	// they do not hold.
	Former(next hearth.Source) hearth.Source
	// Fill reads others' blocks at their owners, from own where this node is the next to
	// be asked, and from the bucket where nobody answers.
	Fill(own, bucket hearth.Source) hearth.Source
	// Route reads own blocks from own and the others' from theirs.
	Route(own, theirs hearth.Source) hearth.Source
	// List has each directory listed once per ring and bound.
	List(origin namespace.Origin) namespace.Origin
	// Serve is given what peers are answered from.
	Serve(Answers) error
}

// Answers are what peers are answered from.
type Answers struct {
	// Owned is what they may Fill from.
	Owned interface {
		hearth.Source
		hearth.ManyGetter
	}
	// Load is GetMany of what is kept by a tier before each hears of it, with a View or
	// without.
	Load func(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool)
	// Local is what they may Peek at: it asks nobody.
	Local interface {
		hearth.Source
		Has(id hearth.ID) bool
	}
}

// alone is the Ring of one node: it owns every block.
type alone struct{}

func (alone) Former(next hearth.Source) hearth.Source       { return next }
func (alone) Fill(own, _ hearth.Source) hearth.Source       { return own }
func (alone) Route(own, _ hearth.Source) hearth.Source      { return own }
func (alone) List(origin namespace.Origin) namespace.Origin { return origin }
func (alone) Serve(Answers) error                           { return nil }

// Tiers are the values of the read side's expression.
type Tiers struct {
	// Reads is what this node's readers use, Own the way of its own blocks.
	Reads, Own             *cache.Tier
	backing, theirs, owned *cache.Tier
	// Ring is the nodes around it, or none.
	Ring Ring
}

// Wire is the architecture: the read side in one expression. disk may be nil.
func Wire(w Wiring, mem *cache.RAM, disk hearth.Store, bucket hearth.Source) (*Tiers, error) {
	volumes, ring := w.Volumes, w.Ring
	if ring == nil {
		ring = alone{}
	}
	t := &Tiers{Ring: ring}
	t.backing = cache.Through(volumes, bucket, cache.Always)                      // what lasts
	t.Own = cache.Through(disk, ring.Former(t.backing), cache.Keep(disk))         // this node's own blocks
	t.theirs = cache.Through(disk, ring.Fill(t.Own, t.backing), cache.Keep(disk)) // others' blocks: a copy here
	t.owned = cache.Through(mem, t.Own, served(mem))                              // what peers may Fill from
	t.Reads = cache.Through(mem, ring.Route(t.Own, t.theirs), hot(w, mem, disk))  // what readers use
	return t, ring.Serve(Answers{Owned: t.owned, Load: t.load(disk), Local: cache.Local(mem, disk)})
}

// load has the disk keep what comes, or without one memory.
func (t *Tiers) load(disk hearth.Store) func(context.Context, hearth.Block, int, func(hearth.Block, *hearth.View, error) bool) {
	keeper, ok := disk.(hearth.Keeper)
	if !ok {
		return t.owned.GetMany
	}
	l := loader{t.Own, keeper}
	return l.load
}

// loader brings blocks into a Keeper.
type loader struct {
	own    hearth.Loader
	keeper hearth.Keeper
}

// load is Answers.Load. What is held is not read again.
func (l loader) load(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	block := func(i int) hearth.Block { return first.Object.Block(first.Index + int64(i)) }
	for i := 0; i < n; {
		if l.keeper.Has(block(i).ID()) {
			if !each(block(i), nil, nil) {
				return
			}
			i++
			continue
		}
		run := 1
		for i+run < n && !l.keeper.Has(block(i+run).ID()) {
			run++
		}
		more := true
		l.own.Load(ctx, block(i), run, func(b hearth.Block, v *hearth.View, err error) bool {
			if err == nil {
				err = l.keeper.Keep(ctx, b, v)
				v.Release()
			}
			more = each(b, nil, err) && err == nil
			return more
		})
		if !more {
			return
		}
		i += run
	}
}

// Close ends the attempts under way, each tier before what it reads from.
func (t *Tiers) Close() {
	for _, tier := range []*cache.Tier{t.Reads, t.owned, t.theirs, t.Own, t.backing} {
		tier.Close()
	}
}

// served is what peers have this node keep in memory: what they ask for whole, since others
// of them mostly do soon, and of the rest what is hot.
func served(mem *cache.RAM) cache.Admit {
	keep, hot := cache.Keep(mem), cache.Hot(mem.Stats().Budget)
	return func(b hearth.Block, n int) bool {
		if n == b.Len() || n == 0 {
			return keep(b, n)
		}
		return hot(b, n)
	}
}

// hot is what this node's readers keep in memory. Before a disk it is what is
// soon asked for again, since a mount's page cache has the rest; without a disk
// it is everything. Of another node's blocks it is by chance, so that what many nodes
// read again and again does not come from its owner alone.
func hot(w Wiring, mem *cache.RAM, disk hearth.Store) cache.Admit {
	if disk == nil {
		return cache.Keep(mem)
	}
	hot := cache.Hot(mem.Stats().Budget)
	if w.Mine == nil {
		return hot
	}
	return func(b hearth.Block, n int) bool {
		return hot(b, n) || n > 0 && rand.IntN(copied*b.Len()) < n && !w.Mine(b)
	}
}

// copied is one of how many blocks that come from a peer whole a reader keeps a copy of:
// with 100 nodes that ask by Zipf's law the busiest then serves 0.75 of the mean instead
// of eight times (simulated). Of a range it is as much less, for all of the block comes.
const copied = 10
