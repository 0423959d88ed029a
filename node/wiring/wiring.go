// Package wiring has the read side of a node as one expression: which source is asked after which, and what
// each tier keeps of what it reads.
package wiring

import (
	"context"
	"math/rand/v2"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/namespace"
)

// Wiring is what stands in the read side in the place of later tiers. nil means that nothing stands there.
type Wiring struct {
	// Volumes stands between the disk and the bucket. It keeps what the disk evicts, which the disk gives it by
	// itself, and what the disk has no room for. With All it keeps everything that comes from the bucket.
	Volumes hearth.Store
	All     bool
	// Ring routes reads to the nodes that own blocks. Mine reports whether this node owns a block. nil means
	// that it owns all.
	Ring Router
	Mine func(hearth.Block) bool
}

// Router is what the wiring needs of the other nodes.
type Router interface {
	// Former asks former owners of a block by Peek, and reads what they do not hold from next.
	Former(next hearth.Source) hearth.Source
	// Fill reads others' blocks at their owners. Where this node is the next rank, it reads from own, and where
	// nobody answers, from the bucket.
	Fill(own, bucket hearth.Source) hearth.Source
	// Route reads this node's blocks from own and the others' from theirs.
	Route(own, theirs hearth.Source) hearth.Source
	// List decorates an origin, so that each directory is listed once per ring and bound.
	List(origin namespace.Origin) namespace.Origin
	// Serve is given the Answers for peers.
	Serve(Answers) error
}

// Answers are the sources from which peers are answered.
type Answers struct {
	// Owned is the source for Fill.
	Owned hearth.Source
	// Local is the source for Peek. It asks nobody else.
	Local interface {
		hearth.Getter
		Has(id hearth.ID) bool
	}
	// Ready returns what memory holds of a block, or nil. It never waits.
	Ready func(b hearth.Block, off, n int) *hearth.View
	// Here returns what the disk holds of a block, by Disk.GetHere. It is nil if there is no disk tier.
	Here func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View
}

// Disk is the disk tier, on a device that may not answer.
type Disk interface {
	hearth.Store
	// GetHere is Get of what the Store holds, on the caller's own thread, which saves two thread switches. nil
	// means that the Store does not hold it, or that Get will return the error. The caller must be replaceable:
	// if the device does not answer, stead is called, once, on a goroutine of its own, to take the caller's
	// place. stead may run while the call lasts, and also after it if the device answers just then.
	GetHere(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View
	// WouldTake reports what Takes would, with the directory or the reason why not. It does not count as a
	// request: call it if no Put follows.
	WouldTake(b hearth.Block) (dir string, err error)
}

// alone is the Router of one node: it owns every block.
type alone struct{}

func (alone) Former(next hearth.Source) hearth.Source       { return next }
func (alone) Fill(own, _ hearth.Source) hearth.Source       { return own }
func (alone) Route(own, _ hearth.Source) hearth.Source      { return own }
func (alone) List(origin namespace.Origin) namespace.Origin { return origin }
func (alone) Serve(Answers) error                           { return nil }

// Tiers are the parts of the read side's expression.
type Tiers struct {
	// Reads is the source for this node's readers, and Own the source for its own blocks.
	Reads, Own             *cache.Tier
	backing, theirs, owned *cache.Tier
	// Lasting has volumes keep blocks. They come from the disk, else from the bucket.
	Lasting *cache.Tier
	// Ring is the Router of the other nodes, or alone.
	Ring Router
}

// Wire builds the read side in one expression, which is the architecture. disk may be nil.
func Wire(w Wiring, mem *cache.RAM, disk Disk, bucket hearth.Source) (*Tiers, error) {
	volumes, ring := w.Volumes, w.Ring
	if ring == nil {
		ring = alone{}
	}
	t, asked := &Tiers{Ring: ring}, cache.Hot(mem.Stats().Budget)
	t.backing = cache.Through(volumes, bucket, lasts(w, disk))                    // what lasts
	t.Own = cache.Through(disk, ring.Former(t.backing), cache.Keep(disk))         // this node's own blocks
	t.theirs = cache.Through(disk, ring.Fill(t.Own, t.backing), cache.Keep(disk)) // others' blocks: a copy here
	t.owned = cache.Memory(mem, t.Own, served(mem, disk, asked))                  // what peers may Fill from
	t.Reads = cache.Memory(mem, ring.Route(t.Own, t.theirs), hot(w, mem, disk))   // what readers use
	// A Load has each block kept itself. If they were also put on their way, they would be written twice.
	t.Lasting = cache.Through(volumes, cache.Through(disk, bucket, cache.Never), cache.Never)
	return t, ring.Serve(Answers{Owned: t.owned, Local: cache.Local(mem, disk), Ready: mem.Ready, Here: here(mem, disk, asked)})
}

// VolumeMisses counts the blocks that a read asked volumes for and that no volume had.
func (t *Tiers) VolumeMisses() int64 { return t.backing.Stats().Misses }

// Close ends the attempts in flight, each tier before what it reads from.
func (t *Tiers) Close() {
	for _, tier := range []*cache.Tier{t.Lasting, t.Reads, t.owned, t.theirs, t.Own, t.backing} {
		tier.Close()
	}
}

// lasts admits to volumes what comes from the bucket: all that they take, or what the disk has no room for. That is what
// the disk would evict at once. Of a large object a block comes whole, or not to volumes. A small one is brought whole
// for a part of it, as for the disk: READs of a mount may be shorter than it is.
func lasts(w Wiring, disk Disk) cache.Admit {
	if w.Volumes == nil {
		return cache.Never
	}
	keep := cache.Keep(w.Volumes)
	if w.All {
		return keep
	}
	return func(b hearth.Block, n int) bool {
		if n > 0 && n < b.Len() && b.Object.Blocks() > 1 || !keep(b, n) {
			return false
		}
		if disk == nil {
			return true
		}
		_, err := disk.WouldTake(b)
		return err != nil
	}
}

// served admits to memory what peers read from this node. It admits a block that peers ask for whole and that
// the disk does not hold yet, since other peers mostly ask for it soon. Of the rest it admits what is hot. An
// epoch of one reader asks for each block of the disk once. Keeping all of these evicted what is hot, and cost
// an owner a twenty-fifth of its CPU time.
func served(mem *cache.RAM, disk Disk, hot cache.Admit) cache.Admit {
	keep, below := cache.Keep(mem), cache.Local(disk)
	return func(b hearth.Block, n int) bool {
		if n == 0 || n == b.Len() && !below.Has(b.ID()) {
			return keep(b, n)
		}
		return hot(b, n)
	}
}

// here reads small objects from the disk for peers, on the thread that asks, and keeps in memory what is hot.
// It does what served does, without the tiers in between.
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
			_ = mem.Put(b, v) // if it declines, the next read goes to the disk again
		}
		return v
	}
}

// hot admits to memory what this node's readers read. In front of a disk it admits what is soon asked for
// again, since a mount's page cache has the rest. Without a disk it admits everything. It admits some of
// another node's blocks by chance, so that blocks that many nodes read again and again do not come from their
// owner alone.
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

// copied is the chance by which a reader keeps a copy of a block that came whole from a peer: one in copied.
// With 100 nodes that ask by Zipf's law, the busiest node then serves 0.75 of the mean instead of eight times
// the mean (simulated). The chance of a range is smaller in proportion, since all of the block is fetched.
const copied = 10
