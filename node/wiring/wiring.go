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
	Ring Router
	Mine func(hearth.Block) bool
}

// Router is what the wiring wants of the nodes around it.
type Router interface {
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
	Owned hearth.Source
	// Local is what they may Peek at: it asks nobody.
	Local interface {
		hearth.Getter
		Has(id hearth.ID) bool
	}
	// Ready is what memory holds of a block, or nil. It waits for nobody.
	Ready func(b hearth.Block, off, n int) *hearth.View
	// Here is what the disk holds of a block, as Disk says; nil: there is none.
	Here func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View
}

// Disk is the disk tier, on a device that may not answer.
type Disk interface {
	hearth.Store
	// GetHere is Get of what the Store holds, for a caller who can be replaced, read on his
	// own thread, without two switches; nil: it does not hold it, or Get says what is wrong. Where
	// the device does not answer, stead is called, once, on a goroutine of its own, to take the
	// caller's place: it may run while the call lasts, and after it, if the device answers just then.
	GetHere(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View
}

// alone is the Router of one node: it owns every block.
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
	Ring Router
}

// Wire is the architecture: the read side in one expression. disk may be nil.
func Wire(w Wiring, mem *cache.RAM, disk Disk, bucket hearth.Source) (*Tiers, error) {
	volumes, ring := w.Volumes, w.Ring
	if ring == nil {
		ring = alone{}
	}
	t, asked := &Tiers{Ring: ring}, cache.Hot(mem.Stats().Budget)
	t.backing = cache.Through(volumes, bucket, cache.Always)                      // what lasts
	t.Own = cache.Through(disk, ring.Former(t.backing), cache.Keep(disk))         // this node's own blocks
	t.theirs = cache.Through(disk, ring.Fill(t.Own, t.backing), cache.Keep(disk)) // others' blocks: a copy here
	t.owned = cache.Memory(mem, t.Own, served(mem, disk, asked))                  // what peers may Fill from
	t.Reads = cache.Memory(mem, ring.Route(t.Own, t.theirs), hot(w, mem, disk))   // what readers use
	return t, ring.Serve(Answers{Owned: t.owned, Local: cache.Local(mem, disk), Ready: mem.Ready, Here: here(mem, disk, asked)})
}

// Close ends the attempts under way, each tier before what it reads from.
func (t *Tiers) Close() {
	for _, tier := range []*cache.Tier{t.Reads, t.owned, t.theirs, t.Own, t.backing} {
		tier.Close()
	}
}

// served is what peers have this node keep in memory: what they ask for whole and the disk has
// not yet, since others of them mostly do soon, and of the rest what is hot. An epoch of one
// reader asks for each block of the disk once: to keep them all pushed out what is hot, and
// cost an owner a twenty-fifth of its CPU time.
func served(mem *cache.RAM, disk Disk, hot cache.Admit) cache.Admit {
	keep, below := cache.Keep(mem), cache.Local(disk)
	return func(b hearth.Block, n int) bool {
		if n == 0 || n == b.Len() && !below.Has(b.ID()) {
			return keep(b, n)
		}
		return hot(b, n)
	}
}

// here gives peers small objects that the disk holds, on the thread that asks, and keeps in
// memory what is hot: what served does, without the tiers on the way there.
func here(mem *cache.RAM, disk Disk, hot cache.Admit) func(context.Context, hearth.Block, int, int, func()) *hearth.View {
	if disk == nil {
		return nil
	}
	return func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
		if n < b.Len() || !b.Object.Cacheable() {
			return nil
		}
		v := disk.GetHere(ctx, b, off, n, stead)
		if v != nil && hot(b, n) {
			_ = mem.Put(b, v) // or the next one is read from disk again
		}
		return v
	}
}

// hot is what this node's readers keep in memory. Before a disk it is what is
// soon asked for again, since a mount's page cache has the rest; without a disk
// it is everything. Of another node's blocks it is by chance, so that what many nodes
// read again and again does not come from its owner alone.
func hot(w Wiring, mem *cache.RAM, disk Disk) cache.Admit {
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
