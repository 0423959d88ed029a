// Package route is how a node of a ring reads: its own blocks by itself, the others' at
// their owners, and what was another's until lately from whoever has it yet.
//
// A Table is who owns what and who can be asked, as a node knows it at a moment; a Walk is
// whom it asks next. All that nodes ask each other of what one of them owns goes by these:
// reads here, what is warmed up and checked at owners, and the names of directories.
//
// Two verbs keep any two nodes from waiting for each other. A Fill goes from a reader to
// an owner, which answers it from its own tiers, its former owners' and the bucket, and
// never by a Fill. A Peek is answered from what a node holds, at once. So a read takes
// one Fill at most that is answered, and nothing waits in a circle, however much the
// nodes differ in what they take for the ring.
//
// A reader goes elsewhere when its owner is silent, down, refuses, or has no memory: to
// the next rank, and then to the bucket. A slow origin is none of these, since who fetches
// says so. An owner that could not read the origin in time has waited for all of a
// request's bound already, and that is the answer; one that was refused there may be
// set up wrongly, so that the reader asks by itself.
//
// With rendezvous hashing the owner before a join is the next rank now, and who takes
// over from one that has left was the next rank before. So for half an hour after owners
// changed, an owner that lacks a block asks the ranks beside it whether they hold it.
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
	// mostFills of different ranks are asked for one range.
	mostFills = 2
	// mostPeeks of different ranks are asked whether they hold a block.
	mostPeeks = 2
	// mostAgain is how often one owner is asked again for what there was no memory for
	// here: no other one's answer would find more. Each waits a tenth of a second.
	mostAgain = 20
	// mostCalls is how often a node is called whose answer found no memory here: what is done
	// otherwise is a request more.
	mostCalls = 5
	// remembered is how long former owners are asked after a change: whatever is read
	// has mostly been asked for by then.
	remembered = 30 * time.Minute
	// peekSlack is how much longer than usual a former owner may take to say whether it
	// holds a block: the bucket, which is asked otherwise, takes longer.
	peekSlack = 5 * time.Millisecond
)

// ErrNobody says that no node took a block: none of its ranks answered.
var ErrNobody = errors.New("no owner answers")

// Peer is a node that can be asked, as *wire.Peer is.
type Peer interface {
	// Fill returns a range of a block from its owner; n = 0 has it loaded there.
	Fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)
	// Peek returns a range of a block that is held; n = 0 asks whether it is.
	Peek(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)
	// Many asks for many ranges and calls each once for each of them, in any order.
	Many(ctx context.Context, v wire.Verb, wants []wire.Want, each func(i int, v *hearth.View, err error))
	// Call asks by a number that all nodes know.
	Call(ctx context.Context, number uint16, body *hearth.View) (*hearth.View, error)
}

// Router is how one node of a ring asks the others. Its methods may be called from many
// goroutines.
type Router struct {
	self  string
	table atomic.Pointer[Table]
	usual median

	asked, loaded, bytes, detours, elsewhere, peeks, found, late, gone, alone atomic.Int64

	passed [causes]atomic.Int64 // by cause
	most   atomic.Int64
}

// New returns a Router for the node of an id, which is alone until Set.
func New(self string) *Router { return &Router{self: self} }

// Set takes other nodes. What is under way ends with those before.
func (r *Router) Set(t Table) { r.table.Store(&t) }

// Table is the nodes as they are known now; nil: this one is alone. It never changes.
func (r *Router) Table() *Table { return r.table.Load() }

// Self is this node's id.
func (r *Router) Self() string { return r.self }

// Walk begins at the owner of a slot, and asks two ranks at most.
func (r *Router) Walk(s place.Slot) Walk { return r.Table().walk(r.self, s, mostFills) }

// Owner is the owner of a slot, and how it is asked.
func (r *Router) Owner(s place.Slot) (id string, at Step) {
	w := r.Walk(s)
	id, _, at = w.Next()
	return id, at
}

// Owns reports whether this node is to keep a block: it owns it, or nobody does.
func (r *Router) Owns(id hearth.ID) bool {
	_, at := r.Owner(place.OfID(id))
	return at == Here || at == Nobody
}

// Mine reports whether the block is for this node to read: it is to keep it, or nobody may.
func (r *Router) Mine(b hearth.Block) bool { return !b.Object.Cacheable() || r.Owns(b.ID()) }

// Owners are the ids of a block's ranks, its owner first.
func (r *Router) Owners(b hearth.Block) (ids []string) {
	w := r.Table().walk(r.self, place.Of(b), place.Ranks)
	for id, _, at := w.Next(); at != Nobody; id, _, at = w.Next() {
		ids = append(ids, id)
	}
	return ids
}

// Others are the ids of the other nodes of the Map.
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

// Peer is the way to a node; nil: it is this one, or cannot be asked now.
func (r *Router) Peer(id string) Peer {
	if t := r.Table(); t != nil {
		return t.Peers[id]
	}
	return nil
}

// Call asks a node by a number that all nodes know.
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

// Fill is the Source of others' blocks: from their owners, or from own where this node is
// the next rank, or else from the bucket.
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

// Has is hearth.Source's: others' blocks are on no tier behind this one.
func (f *fill) Has(hearth.ID) bool { return false }

// FromPeer reports whether another node is to be asked for the block first.
func (f *fill) FromPeer(b hearth.Block) bool {
	_, at := f.Owner(place.Of(b))
	return at == There
}

// Load has a block brought into a tier of its owner. mine: that is this node, who is to
// do it. ErrNobody wraps why none of the ranks did.
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

// ask asks the ranks of a block, one after the other, as far as they do not answer; the
// error of Nobody is why not.
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

// came counts what came of a Fill.
func (r *Router) came(v *hearth.View) {
	if v != nil {
		r.bytes.Add(int64(v.Len()))
	}
}

// ranks shows try those who may be asked for blocks of an extent, of which left are to come
// yet, until one has the last word: There, Here or Nobody. why is what the last one said.
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

// cause is why a read passed an owner.
type cause int

const (
	silent cause = iota
	down
	refused
	memory
	failed // it said so, or its bytes were damaged
	causes
)

// passes counts blocks that an owner did not give, and how many owners their read has asked.
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

// Former is the Source of this node's own blocks behind its tiers: where owners have
// changed lately, from who holds them yet, and else from next.
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

// Has is hearth.Source's. What former owners hold is not here.
func (f *former) Has(id hearth.ID) bool { return f.next.Has(id) }

// FromPeer is hearth.Source's: a former owner that does not answer at once is no peer to wait for.
func (f *former) FromPeer(b hearth.Block) bool { return f.next.FromPeer(b) }

// lacked counts blocks that a former owner did not give though it said that it holds them.
func (r *Router) lacked(err error, blocks int) {
	if errors.Is(err, hearth.ErrMiss) {
		r.gone.Add(int64(blocks))
	} else {
		r.late.Add(int64(blocks))
	}
}

// remembers reports whether a former owner may hold a block yet.
func remembers(t *Table, b hearth.Block) bool {
	return t != nil && !t.Changed.IsZero() && time.Since(t.Changed) <= remembered && b.Object.Cacheable()
}

// holder is a rank beside this node that says it holds the block; nil: none does, or
// says so in time.
func (r *Router) holder(ctx context.Context, b hearth.Block) Peer {
	held := r.held(ctx, b, 1)
	p, _ := held.run(0)
	return p
}

// holding is which of some blocks that follow each other the ranks beside this node say
// they hold.
type holding struct {
	peers [mostPeeks]Peer
	by    []uint8 // of each block, with a bit for each of peers
}

// run is who holds the block of an index, and how many from there on; nil: nobody does.
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

// held asks the ranks beside this node which of n blocks of an extent they hold, from the
// first on. What they do not say in time they are taken not to hold.
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
		err         error // nil: it holds the block
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
	missing, unsaid := n, make([]bool, n) // unsaid: one who was asked failed to say
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

// holds tells of each of n blocks whether the peer holds it, by its error. It ends with ctx.
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
	// Asked are Fills of others' blocks, Loaded those without payload that were done.
	Asked, Loaded int64
	// Bytes came of them.
	Bytes int64
	// Detours are reads that went on to another rank than the first that could be asked, this
	// node itself among them: each may read again from the bucket what that one has read.
	Detours int64
	// Elsewhere are ranges that were read from the bucket by a node that does not own them.
	Elsewhere int64
	// Passed are blocks that an owner did not give, so that their read went past it, by why:
	// silent, down (no connection, or one that broke), refused, memory (there was none here for
	// the answer), failed (it could not or may not answer, or its bytes were damaged). Most is
	// how many owners one read asked in vain.
	Passed map[string]int64
	Most   int64
	// Peeks asked former owners whether they hold a block, Found got it there, Late were given
	// up for the bucket since these took longer than usual, failed or could not be asked, and
	// Gone since they hold it no more. Alone were read from the bucket while this node knew of
	// nobody else, as one that has just come does.
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
