// Package route is how a node of a ring reads: its own blocks by itself, the others' from their
// owners. Blocks that belonged to another node until lately come from any node that still holds
// them.
//
// A Table says who owns what and who can be asked, as a node knows it at a moment. A Walk says who
// is asked next. All requests between nodes for something with an owner use these two: reads here,
// warm-ups and checks at owners, and the names of directories.
//
// Two verbs keep nodes from waiting for each other in a circle. A Fill goes from a reader to an
// owner. The owner answers it from its own tiers, its former owners and the bucket, and never by
// another Fill. A Peek is answered at once from what a node holds. So a read takes at most one Fill
// that is answered. No circle of waits is possible, however much the nodes' views of the ring
// differ.
//
// A reader makes a detour when the owner is silent, down, refuses, or has no memory: to the next
// rank, and then to the bucket. A slow origin is no reason, since the node that fetches says so. An
// owner that could not read the origin in time has used up the request's whole time, so that is the
// answer. An owner that the origin refused may be set up wrongly, so the reader asks the origin
// itself.
//
// With rendezvous hashing the owner before a join is the next rank now. The node that takes over
// from one that left was the next rank before. So for half an hour after owners changed, an owner
// that lacks a block asks the ranks beside it whether they hold it.
package route

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/wire"
)

const (
	// mostFills is the most ranks that are asked for one range.
	mostFills = 2
	// mostPeeks is the most ranks that are asked whether they hold a block.
	mostPeeks = 2
	// mostAgain is how often one owner is asked again after its answer found no memory here: the
	// answer of another node would find no more. Each attempt waits a tenth of a second.
	mostAgain = 20
	// mostCalls is how often a node is called whose answer found no memory here. The alternative
	// costs one more request.
	mostCalls = 5
	// remembered is how long former owners are asked after a change. By then most blocks that are
	// read have been asked for.
	remembered = 30 * time.Minute
	// peekSlack is how much longer than usual a former owner may take to say whether it holds a
	// block. The alternative is the bucket, which takes longer.
	peekSlack = 5 * time.Millisecond
)

// ErrNobody says that none of a block's ranks answered.
var ErrNobody = errors.New("no owner answers")

// Peer is a node that can be asked, as *wire.Peer is.
type Peer interface {
	// Fill returns a range of a block from its owner. With n = 0 the owner only loads the block.
	Fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)
	// Peek returns a range of a block that the node holds. With n = 0 it asks whether the node
	// holds it.
	Peek(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)
	// Many asks for many ranges, and calls each once for each of them, in any order.
	Many(ctx context.Context, v wire.Verb, wants []wire.Want, each func(i int, v *hearth.View, err error))
	// Call sends a request with a number that all nodes know.
	Call(ctx context.Context, number uint16, body *hearth.View) (*hearth.View, error)
}

// Router asks the other nodes of a ring for one node. Its methods may be called from many
// goroutines.
type Router struct {
	self  string
	table atomic.Pointer[Table]
	usual median

	asked, loaded, bytes, detours, elsewhere, peeks, found, late, gone, alone atomic.Int64

	passed [causes]atomic.Int64 // by cause
	most   atomic.Int64
}

// New returns a Router for the node with an id, which is alone until Set.
func New(self string) *Router { return &Router{self: self} }

// Set replaces the Table. Reads in flight end with the Table before.
func (r *Router) Set(t Table) { r.table.Store(&t) }

// Table is the present Table, which never changes; nil means that this node is alone.
func (r *Router) Table() *Table { return r.table.Load() }

// Self is this node's id.
func (r *Router) Self() string { return r.self }

// Walk begins at the owner of a slot, and asks at most two ranks.
func (r *Router) Walk(s place.Slot) Walk { return r.Table().walk(r.self, s, mostFills) }

// Owner is the owner of a slot, and how to ask it.
func (r *Router) Owner(s place.Slot) (id string, at Step) {
	w := r.Walk(s)
	id, _, at = w.Next()
	return id, at
}

// Owns reports whether this node keeps a block: it owns the block, or nobody does.
func (r *Router) Owns(id hearth.ID) bool {
	_, at := r.Owner(place.OfID(id))
	return at == Here || at == Nobody
}

// Mine reports whether this node reads the block itself: it keeps the block, or no node may.
func (r *Router) Mine(b hearth.Block) bool { return !b.Object.Cacheable() || r.Owns(b.ID()) }

// Owners returns the ids of a block's ranks, its owner first.
func (r *Router) Owners(b hearth.Block) (ids []string) {
	w := r.Table().walk(r.self, place.Of(b), place.Ranks)
	for id, _, at := w.Next(); at != Nobody; id, _, at = w.Next() {
		ids = append(ids, id)
	}
	return ids
}

// Others returns the ids of the other nodes of the Map.
func (r *Router) Others() (ids []string) {
	if t := r.Table(); t != nil {
		for _, n := range t.Map.Nodes() {
			if n.ID != r.self {
				ids = append(ids, n.ID)
			}
		}
	}
	return ids
}

// Peer is the Peer of a node. nil means that it is this node, or cannot be asked now.
func (r *Router) Peer(id string) Peer {
	if t := r.Table(); t != nil {
		return t.Peers[id]
	}
	return nil
}

// Call sends a node a request with a number that all nodes know.
func (r *Router) Call(ctx context.Context, id string, number uint16, body *hearth.View) (*hearth.View, error) {
	p := r.Peer(id)
	if p == nil {
		return nil, unreached(id)
	}
	v, err := p.Call(ctx, number, body)
	for calls := 1; calls < mostCalls && errors.Is(err, wire.ErrMemory); calls++ {
		v, err = p.Call(ctx, number, body)
	}
	return v, err
}

// Fill is the Source of others' blocks: from their owners, or from own if this node is the next
// rank, or else from the bucket.
func (r *Router) Fill(own, bucket hearth.Source) hearth.Source { return &fill{r, own, bucket} }

type fill struct {
	*Router
	own, bucket hearth.Source
}

func (f *fill) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	v, from, err := f.ask(ctx, b, off, n)
	switch from {
	case Here:
		return f.own.Get(ctx, b, off, n)
	case Nobody:
		f.elsewhere.Add(1)
		return f.bucket.Get(ctx, b, off, n)
	}
	return v, err
}

// Has implements hearth.Source: others' blocks are on no tier behind this one.
func (f *fill) Has(hearth.ID) bool { return false }

// FromPeer reports whether another node is asked for the block first.
func (f *fill) FromPeer(b hearth.Block) bool {
	_, at := f.Owner(place.Of(b))
	return at == There
}

// Load has a block's owner bring it into a tier. mine means that this node is the owner and has to
// load it itself. ErrNobody wraps the reason why none of the ranks did.
func (r *Router) Load(ctx context.Context, b hearth.Block) (mine bool, err error) {
	_, from, err := r.ask(ctx, b, 0, 0)
	switch from {
	case Here:
		return true, nil
	case Nobody:
		return false, fmt.Errorf("load block %v: %w: %w", b.ID(), ErrNobody, err)
	}
	return false, err
}

// ask asks the ranks of a block, one after the other, until one answers. With Nobody, the error
// says why none did.
func (r *Router) ask(ctx context.Context, b hearth.Block, off, n int) (v *hearth.View, from Step, err error) {
	from, err = r.ranks(b, func() int { return 1 }, func(p Peer) judgement {
		r.asked.Add(1)
		v, err = p.Fill(ctx, b, off, n)
		for again := 0; errors.Is(err, wire.ErrMemory) && ctx.Err() == nil && again < mostAgain; again++ {
			v, err = p.Fill(ctx, b, off, n)
		}
		if err == nil && n == 0 {
			r.loaded.Add(1)
		}
		r.came(v)
		return judge(ctx, err)
	}, func() error { return err })
	return v, from, err
}

// came counts the bytes of a Fill.
func (r *Router) came(v *hearth.View) {
	if v != nil {
		r.bytes.Add(int64(v.Len()))
	}
}

// ranks calls try with the nodes that may be asked for blocks of an extent, until one settles it:
// There, Here or Nobody. left is how many blocks are still to come. why is the last node's error.
func (r *Router) ranks(b hearth.Block, left func() int, try func(p Peer) judgement, why func() error) (Step, error) {
	cause := hearth.ErrMiss
	for w := r.Walk(place.Of(b)); ; {
		id, p, at := w.Next()
		switch at {
		case Nobody:
			return Nobody, cause
		case Down:
			cause = unreached(id)
			r.passed[down].Add(int64(left()))
			continue
		case Here:
			if w.Asked() > 0 {
				r.detours.Add(1)
			}
			return Here, nil
		}
		if w.Asked() > 1 {
			r.detours.Add(1)
		}
		said := try(p)
		if said == final {
			return There, why()
		}
		cause = why()
		r.passes(cause, left(), int64(w.Asked()))
		if said == useless {
			return Nobody, cause
		}
	}
}

// cause is the reason why a read passed an owner.
type cause int

const (
	silent cause = iota
	down
	refused
	memory
	failed // it answered with an error, or its bytes were damaged
	causes
)

// passes counts blocks that an owner did not give, and notes the most owners that one read has
// asked.
func (r *Router) passes(err error, blocks int, fills int64) {
	why := failed
	switch {
	case errors.Is(err, wire.ErrSilent):
		why = silent
	case errors.Is(err, wire.ErrDown), errors.Is(err, wire.ErrClosed):
		why = down
	case errors.Is(err, hearth.ErrRefused):
		why = refused
	case errors.Is(err, wire.ErrMemory):
		why = memory
	}
	r.passed[why].Add(int64(blocks))
	for most := r.most.Load(); fills > most && !r.most.CompareAndSwap(most, fills); most = r.most.Load() {
	}
}

// Former is the Source of this node's own blocks behind its tiers. If owners have changed lately,
// it reads from a node that still holds the block, and else from next.
func (r *Router) Former(next hearth.Source) hearth.Source { return &former{r, next} }

type former struct {
	*Router
	next hearth.Source
}

func (f *former) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if p := f.holder(ctx, b); p != nil {
		v, err := p.Peek(ctx, b, off, n)
		if err == nil {
			f.found.Add(1)
			return v, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		f.lacked(err, 1)
	}
	return f.next.Get(ctx, b, off, n)
}

// Has implements hearth.Source. Blocks that former owners hold are not here.
func (f *former) Has(id hearth.ID) bool { return f.next.Has(id) }

// FromPeer implements hearth.Source. A former owner must answer at once, so it does not count as a
// peer to wait for.
func (f *former) FromPeer(b hearth.Block) bool { return f.next.FromPeer(b) }

// lacked counts blocks that a former owner did not give, though it had said that it holds them.
func (r *Router) lacked(err error, blocks int) {
	if errors.Is(err, hearth.ErrMiss) {
		r.gone.Add(int64(blocks))
	} else {
		r.late.Add(int64(blocks))
	}
}

// remembers reports whether a former owner may still hold a block.
func remembers(t *Table, b hearth.Block) bool {
	return t != nil && !t.Changed.IsZero() && time.Since(t.Changed) <= remembered && b.Object.Cacheable()
}

// holder is a rank beside this node that says in time that it holds the block. nil means that there
// is none.
func (r *Router) holder(ctx context.Context, b hearth.Block) Peer {
	held := r.held(ctx, b, 1)
	p, _ := held.run(0)
	return p
}

// holding says which of some consecutive blocks the ranks beside this node hold, by their answers.
type holding struct {
	peers [mostPeeks]Peer
	by    []uint8 // for each block, a bit for each of peers
}

// run is a peer that holds the block of an index, and how many blocks from there on it holds. nil
// means that no peer holds the block.
func (h *holding) run(i int) (p Peer, n int) {
	all := h.by[i]
	for n = 1; i+n < len(h.by); n++ {
		both := all & h.by[i+n]
		if both == 0 && all|h.by[i+n] != 0 {
			break
		}
		all = both
	}
	if all == 0 {
		return nil, n
	}
	return h.peers[bits.TrailingZeros8(all)], n
}

// held asks the ranks beside this node which of n blocks of an extent they hold, from the first on.
// An answer that is late counts as a miss.
func (r *Router) held(ctx context.Context, first hearth.Block, n int) (h holding) {
	h.by = make([]uint8, n)
	table := r.Table()
	if !remembers(table, first) {
		if table == nil {
			r.alone.Add(int64(n))
		}
		return h
	}
	began := time.Now()
	asking, cancel := context.WithTimeout(ctx, r.usual.get()+peekSlack)
	defer cancel()
	type answer struct {
		block, peer int
		err         error // nil means that it holds the block
	}
	answers := make(chan answer, mostPeeks*n)
	w, others := table.walk(r.self, place.Of(first), mostPeeks), false
	for _, p, at := w.Next(); at != Nobody; _, p, at = w.Next() {
		others = others || at != Here
		if at == There {
			peer := w.Asked() - 1
			h.peers[peer] = p
			go holds(asking, p, first, n, func(block int, err error) { answers <- answer{block, peer, err} })
		}
	}
	asked := w.Asked()
	r.peeks.Add(int64(asked * n))
	missing, unsaid := n, make([]bool, n) // unsaid: a rank that was asked failed to answer
	for left := asked * n; left > 0 && missing > 0; left-- {
		select {
		case a := <-answers:
			if a.block == 0 {
				r.usual.note(time.Since(began))
			}
			switch {
			case a.err != nil:
				unsaid[a.block] = unsaid[a.block] || !errors.Is(a.err, hearth.ErrMiss)
			case h.by[a.block] == 0:
				missing--
				fallthrough
			default:
				h.by[a.block] |= 1 << a.peer
			}
		case <-asking.Done():
			if ctx.Err() == nil {
				r.usual.note(time.Since(began)) // a ring may have become slower than it was
				r.late.Add(int64(missing))
			}
			return h
		}
	}
	for i, by := range h.by {
		switch {
		case by != 0 || ctx.Err() != nil:
		case !others:
			r.alone.Add(1)
		case unsaid[i], asked == 0:
			r.late.Add(1)
		default:
			r.gone.Add(1)
		}
	}
	return h
}

// holds calls tell for each of n blocks: without an error if the peer holds it. It ends with ctx.
func holds(ctx context.Context, p Peer, first hearth.Block, n int, tell func(block int, err error)) {
	if n == 1 {
		_, err := p.Peek(ctx, first, 0, 0)
		tell(0, err)
		return
	}
	wants := make([]wire.Want, n)
	for i := range wants {
		wants[i].Block = first.Object.Block(first.Index + int64(i))
	}
	p.Many(ctx, wire.Peek, wants, func(i int, _ *hearth.View, err error) { tell(i, err) })
}

// Stats are a Router's figures since it was made.
type Stats struct {
	// Asked counts Fills of others' blocks. Loaded counts those without payload that succeeded.
	Asked, Loaded int64
	// Bytes is the number of bytes that these Fills brought.
	Bytes int64
	// Detours counts reads that went past the first rank that could be asked, to the next ranks or
	// to this node itself. Each may read bytes again from the bucket that the first rank has read.
	Detours int64
	// Elsewhere counts ranges that a node read from the bucket without owning them.
	Elsewhere int64
	// Passed counts blocks that an owner did not give, so that their read went past it, by cause:
	// silent, down (no connection, or one that broke), refused, memory (none here for the answer),
	// failed (it could not or may not answer, or its bytes were damaged). Most is the most owners
	// that one read asked in vain.
	Passed map[string]int64
	Most   int64
	// Peeks counts questions to former owners whether they hold a block, Found the blocks that came
	// from them. Late counts blocks read from the bucket because former owners took longer than
	// usual, failed or could not be asked. Gone counts those read from the bucket because former
	// owners no longer hold them. Alone counts those read from it while this node knew no other
	// node, as one that has just come.
	Peeks, Found, Late, Gone, Alone int64
}

// Stats returns the present figures.
func (r *Router) Stats() Stats {
	return Stats{
		Asked: r.asked.Load(), Loaded: r.loaded.Load(), Bytes: r.bytes.Load(), Detours: r.detours.Load(), Elsewhere: r.elsewhere.Load(),
		Passed: map[string]int64{"silent": r.passed[silent].Load(), "down": r.passed[down].Load(), "refused": r.passed[refused].Load(),
			"memory": r.passed[memory].Load(), "failed": r.passed[failed].Load()}, Most: r.most.Load(),
		Peeks: r.peeks.Load(), Found: r.found.Load(), Late: r.late.Load(), Gone: r.gone.Load(), Alone: r.alone.Load(),
	}
}
