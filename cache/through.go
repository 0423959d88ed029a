package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/flight"
)

// Tier is a Source that reads from a store, else from the next Source. It keeps in the store what
// its Admit likes.
type Tier struct {
	store hearth.Store
	next  hearth.Source
	admit Admit

	window *RAM // store, if Memory made this

	whole  *flight.Group[hearth.ID, *hearth.View] // whole blocks, on their way into the store
	ranges *flight.Twins[span, *hearth.View]      // ranges, straight from next
	lent   lent                                   // blocks that a Load is giving to the store

	hits, hitBytes, misses, fetches, fetchedBytes, shared, sharedBytes, declined, failures atomic.Int64
}

// span is a range of a block. Only equal ranges share an attempt.
type span struct {
	id     hearth.ID
	off, n int
}

var _ hearth.Source = (*Tier)(nil)

// Through returns the Tier that reads from store, else from next, and keeps what admit likes. If
// store is nil, everything passes through to next. If next is nil, a miss stays a miss.
func Through(store hearth.Store, next hearth.Source, admit Admit) *Tier {
	retain := func(v *hearth.View) { v.Retain() }
	return &Tier{
		store: store, next: next, admit: admit,
		whole:  flight.NewGroup[hearth.ID](retain, (*hearth.View).Release),
		ranges: flight.NewTwins[span](retain, (*hearth.View).Release),
	}
}

// Memory is Through memory, with a window. The window holds a block that a run brought and that no
// Store below keeps, until it was read once, whatever admit says.
func Memory(mem *RAM, next hearth.Source, admit Admit) *Tier {
	t := Through(mem, next, admit)
	t.window = mem
	return t
}

// Get returns a range of a block from the store; on a miss it goes on as the package comment says.
func (t *Tier) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if t.store == nil || !b.Object.Cacheable() {
		return t.fetch(ctx, b, off, n)
	}
	return t.get(ctx, b, span{b.ID(), off, n}, nil)
}

// get returns a range of a block. With lent, which belongs to a Load, it returns the whole block.
func (t *Tier) get(ctx context.Context, b hearth.Block, of span, lent *lending) (*hearth.View, error) {
	off, n := of.off, of.n
	v, err := t.store.Get(ctx, b, off, n)
	if err == nil {
		t.hits.Add(1)
		t.hitBytes.Add(int64(n))
		return v, nil
	}
	t.missed(err)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if v := t.lent.get(b.ID(), off, n); v != nil {
		t.joined(n)
		return v, nil
	}
	if v, joined, err := t.whole.Join(ctx, b.ID()); joined {
		t.joined(n)
		if err != nil {
			return nil, err
		}
		t.read(b.ID(), n)
		return cut(v, off, n), nil
	}
	if t.next == nil {
		return nil, hearth.ErrMiss
	}
	admitted := t.admit(b, n)
	if !admitted && lent == nil {
		return t.straight(ctx, b, of, false)
	}
	if lent == nil && t.near(b) {
		// Such a fetch need not outlive its first waiter. A direct call saves the goroutine of an
		// attempt, whose scheduling costs as much as the copy of a small object.
		return t.straight(ctx, b, of, true)
	}
	v, err = t.fill(ctx, b, n, admitted, lent)
	if err != nil {
		return nil, err
	}
	return cut(v, off, n), nil
}

// near reports whether a block comes from a tier below or from another node. There runs the attempt
// that outlives its first waiter.
func (t *Tier) near(b hearth.Block) bool { return t.next.Has(b.ID()) || t.next.FromPeer(b) }

// FromPeer implements hearth.Source.
func (t *Tier) FromPeer(b hearth.Block) bool { return t.next != nil && t.next.FromPeer(b) }

// missed counts an error of the store.
func (t *Tier) missed(err error) {
	t.misses.Add(1)
	if !errors.Is(err, hearth.ErrMiss) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.failures.Add(1)
	}
}

// fill fetches the whole block, of which n bytes are asked for, once for all who want it. With put
// it offers the block to the store; a Load's block may come without.
func (t *Tier) fill(ctx context.Context, b hearth.Block, n int, put bool, lent *lending) (*hearth.View, error) {
	v, shared, err := t.whole.Do(ctx, b.ID(), func(ctx context.Context) (*hearth.View, error) {
		if v := t.meanwhile(ctx, b); v != nil {
			return v, nil
		}
		return t.fetchWhole(ctx, b, put, lent)
	})
	if shared {
		t.joined(n)
	}
	return v, err
}

// fetchWhole fetches the whole block within an attempt. It puts the block into the store if put is
// set, and lends it to other readers if a Load asked.
func (t *Tier) fetchWhole(ctx context.Context, b hearth.Block, put bool, lent *lending) (*hearth.View, error) {
	v, err := t.fetch(ctx, b, 0, b.Len())
	if err != nil {
		return nil, err
	}
	if put {
		t.put(b, v)
	}
	lent.add(b.ID(), v)
	return v, nil
}

// joined counts n bytes that come by the attempt of another caller.
func (t *Tier) joined(n int) {
	t.shared.Add(1)
	t.sharedBytes.Add(int64(n))
}

// Fill brings a whole block into the store before anybody reads it, unless it is held or in flight.
// begun is called just before next is asked. The store sees only a Put, so its policy does not take
// this for a read.
func (t *Tier) Fill(ctx context.Context, b hearth.Block, begun func()) error {
	if t.store == nil || t.next == nil || !b.Object.Cacheable() || t.store.Has(b.ID()) {
		return nil
	}
	v, _, err := t.whole.Do(ctx, b.ID(), func(ctx context.Context) (*hearth.View, error) {
		if v := t.meanwhile(ctx, b); v != nil {
			return v, nil
		}
		begun()
		return t.fetchWhole(ctx, b, true, nil)
	})
	if err == nil {
		v.Release()
	}
	return err
}

// meanwhile looks into the store again from within an attempt. Between our miss and the start of
// the attempt, another one for the same block may have ended.
func (t *Tier) meanwhile(ctx context.Context, b hearth.Block) *hearth.View {
	if v := t.lent.get(b.ID(), 0, b.Len()); v != nil { // before the store, which gets it from there
		return v
	}
	if !t.store.Has(b.ID()) {
		return nil
	}
	v, err := t.store.Get(ctx, b, 0, b.Len())
	if err != nil {
		return nil
	}
	return v
}

// straight fetches a range that is not kept. With put it fetches the whole block and offers it to
// the store.
func (t *Tier) straight(ctx context.Context, b hearth.Block, of span, put bool) (*hearth.View, error) {
	all := of
	if put {
		all.off, all.n = 0, b.Len()
	}
	v, shared, err := t.ranges.Do(ctx, all, func(ctx context.Context) (*hearth.View, error) {
		if v := t.lent.get(all.id, all.off, all.n); v != nil {
			return v, nil
		}
		v, err := t.fetch(ctx, b, all.off, all.n)
		if err == nil && put {
			t.put(b, v)
		}
		return v, err
	})
	if shared {
		t.joined(of.n)
	}
	if err != nil {
		return nil, err
	}
	return cut(v, of.off-all.off, of.n), nil
}

// fetch gets a range from next and counts it. The caller decides what becomes of it.
func (t *Tier) fetch(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if t.next == nil {
		return nil, hearth.ErrMiss
	}
	v, err := t.next.Get(ctx, b, off, n)
	if err == nil && v.Len() != n {
		err = fmt.Errorf("get block %v [%d, %d): got %d bytes", b.ID(), off, off+n, v.Len())
		v.Release()
	}
	if err != nil {
		return nil, err
	}
	t.fetches.Add(1)
	t.fetchedBytes.Add(int64(n))
	return v, nil
}

// put offers a block to the store. A store that declines costs only another fetch later.
func (t *Tier) put(b hearth.Block, v *hearth.View) {
	if err := t.store.Put(b, v); err != nil {
		t.declined.Add(1)
	}
}

// read notes that n bytes of a block that a run brought were read from elsewhere than the store.
func (t *Tier) read(id hearth.ID, n int) {
	if t.window != nil {
		t.window.read(id, n)
	}
}

// Has reports whether the block is held here or below.
func (t *Tier) Has(id hearth.ID) bool {
	return t.store != nil && t.store.Has(id) || t.next != nil && t.next.Has(id)
}

// Fetching reports whether the whole block is in flight into the store.
func (t *Tier) Fetching(id hearth.ID) bool { return t.whole.Flying(id) || t.lent.has(id) }

// spare is the number of unused bytes of memory; false means that the tier does not know.
func (t *Tier) spare() (int64, bool) {
	if t.window == nil {
		return 0, false
	}
	return t.window.spare(), true
}

// TierStats are a Tier's figures.
type TierStats struct {
	// Hits of the store, with the bytes asked for, and Misses.
	Hits, HitBytes, Misses int64
	// Fetches counts Views that next yielded, with their bytes.
	Fetches, FetchedBytes int64
	// Shared counts reads that waited for an attempt which another had started, with
	// the bytes asked for.
	Shared, SharedBytes int64
	// Declined counts Puts that the store refused; Errors counts Gets that failed
	// in the store other than by a miss.
	Declined, Errors int64
}

// Stats returns the present figures.
func (t *Tier) Stats() TierStats {
	return TierStats{
		Hits: t.hits.Load(), HitBytes: t.hitBytes.Load(), Misses: t.misses.Load(),
		Fetches: t.fetches.Load(), FetchedBytes: t.fetchedBytes.Load(), Shared: t.shared.Load(), SharedBytes: t.sharedBytes.Load(),
		Declined: t.declined.Load(), Errors: t.failures.Load(),
	}
}

// Close cancels the attempts in flight and waits for them. From then on, a read that needs a new
// one fails. The store and next are left alone. Tiers are closed before what they read from.
func (t *Tier) Close() { t.whole.Close() }
