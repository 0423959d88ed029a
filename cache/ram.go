package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/hearthfs/hearth"
)

// What RAM leaves of the Pool to reads in flight, write queues and indexes: a quarter of it. The
// least is half of the smallest Pool (a few blocks for each of a few readers). The most is what
// hundreds of requests in flight need.
const (
	reserveLeast = hearth.MinRAM / 2
	reserveMost  = 256 << 20
)

// entryBytes is what an entry costs beside its View: ours 48, the View's header
// 64, ristretto's two maps about 140. It is counted against the Pool.
const entryBytes = 256

// sliceSlack is the memory in bytes that a slice may hold beyond its own bytes; the slice itself
// cannot tell. A tier that reads by O_DIRECT lends slices of a buffer with a header before the
// bytes and padding behind them.
const sliceSlack = 8 << 10

var errDeclined = errors.New("declined")

// RAM is the tier in memory, over ristretto. Three habits of ristretto shape this file (read in
// v2.4.2).
//
// First, Get takes no reference. The View found may be dead or another block's: so the ID is
// compared, and TryRetain decides. Second, Set only queues. A queue of 32,768 entries lies outside
// its budget, and queued entries cannot be read. So bytes are counted here, and queued entries are
// found in pending. Third, a Set that does not fit into the queue calls no callback: then Put
// releases the View itself. All other ways out - refused, replaced, evicted, deleted, closed - end
// in OnExit.
type RAM struct {
	pool    *hearth.Pool
	limit   int64 // most bytes that may be held
	reserve int64 // of the pool, to be left to others

	closing sync.RWMutex // held for reading by all who use items, for writing by Close
	closed  bool
	items   *ristretto.Cache[uint64, *entry]
	held    atomic.Int64 // bytes of entries that have not exited
	entries atomic.Int64

	endGiving func()     // to the pool's indexes
	shrinking sync.Mutex // held by the one that shrinks
	pending   pending
	window    window

	hits, hitBytes, misses, puts, declined atomic.Int64
}

// entry is what ristretto holds: it owns one reference to the View.
type entry struct {
	id   hearth.ID
	view *hearth.View
	cost int64
}

var _ hearth.Store = (*RAM)(nil)

// NewRAM returns a RAM that holds at most limit bytes, and at most what the pool's
// budget leaves beside the reserve for reads in flight.
func NewRAM(pool *hearth.Pool, limit int64) *RAM {
	budget := pool.Stats().Budget
	r := &RAM{pool: pool, reserve: min(max(budget/4, reserveLeast), reserveMost)}
	r.limit = max(1, min(limit, budget-r.reserve))
	r.window.most = r.limit / 2
	config := &ristretto.Config[uint64, *entry]{
		// Ten counters for each of the 16 KiB objects that would fill it, at 3
		// bytes each: 0.2 % of the budget, and not more than 3 MiB.
		NumCounters:        min(max(r.limit/1600, 1024), 1<<20),
		MaxCost:            r.limit,
		BufferItems:        64, // as ristretto recommends
		IgnoreInternalCost: true,
		KeyToHash:          func(key uint64) (uint64, uint64) { return key, 0 },
		Cost:               r.dequeued,
		OnExit:             r.exited,
	}
	items, err := ristretto.NewCache(config)
	if err != nil {
		panic(fmt.Sprintf("cache: ristretto refuses its configuration: %v", err)) // all of it is ours
	}
	r.items = items
	r.endGiving = pool.Gives(r.give)
	return r
}

// Get returns a range of a block that is held.
func (r *RAM) Get(_ context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if v := r.ready(b, off, n); v != nil {
		return v, nil
	}
	r.misses.Add(1)
	// A reader that misses here needs memory next, and only this tier gives way.
	r.giveWay()
	return nil, hearth.ErrMiss
}

// Ready is Get for a block that is held, and returns nil for any other. That does not count as a
// miss, since the caller goes on to Get.
func (r *RAM) Ready(b hearth.Block, off, n int) *hearth.View {
	r.closing.RLock()
	defer r.closing.RUnlock()
	return r.ready(b, off, n)
}

func (r *RAM) ready(b hearth.Block, off, n int) *hearth.View {
	v := r.find(b.ID(), n)
	if v == nil {
		return nil
	}
	if v.Len() != b.Len() { // its Size comes from a peer, and does not belong to its Version
		v.Release()
		return nil
	}
	r.hits.Add(1)
	r.hitBytes.Add(int64(n))
	return cut(v, off, n)
}

// cut trades the caller's reference to v for a reference to its bytes [off, off+n).
func cut(v *hearth.View, off, n int) *hearth.View {
	if off == 0 && n == v.Len() {
		return v
	}
	s := v.Slice(off, n)
	v.Release()
	return s
}

// find returns a reference to a whole block, n bytes of which are wanted.
func (r *RAM) find(id hearth.ID, n int) *hearth.View {
	if r.closed {
		return nil
	}
	e, _ := r.items.Get(id.Hash())
	if e == nil || e.id != id {
		if e = r.pending.get(id); e == nil {
			return r.window.take(id, n)
		}
	}
	if !e.view.TryRetain() {
		return nil
	}
	return e.view
}

// Has reports whether the block is held. It does not count as a hit.
func (r *RAM) Has(id hearth.ID) bool {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.closed {
		return false
	}
	// GetTTL does not count as a use for ristretto's policy, and Get would. It compares only 64
	// bits of the ID: a collision makes this answer wrong, and nothing else.
	if _, ok := r.items.GetTTL(id.Hash()); ok {
		return true
	}
	return r.pending.get(id) != nil || r.window.has(id)
}

// Drop lets go of a block.
func (r *RAM) Drop(id hearth.ID) {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if !r.closed {
		if e := r.pending.get(id); e != nil {
			r.pending.remove(e)
		}
		r.items.Del(id.Hash())
		r.window.drop(id)
	}
}

// Put queues a whole block. Whether it is kept is decided later, by ristretto's policy.
func (r *RAM) Put(b hearth.Block, v *hearth.View) error {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if err := r.put(b, v); err != nil {
		r.declined.Add(1)
		return err
	}
	r.puts.Add(1)
	return nil
}

// Takes implements hearth.Store. Memory knows only at Put, so it is always true.
func (r *RAM) Takes(hearth.Block) bool { return true }

// Keep is Put, since memory has no queue to wait for.
func (r *RAM) Keep(_ context.Context, b hearth.Block, v *hearth.View) error { return r.Put(b, v) }

// Flush does nothing: no device is behind memory.
func (r *RAM) Flush(context.Context) error { return nil }

func (r *RAM) put(b hearth.Block, v *hearth.View) error {
	if r.closed || !b.Object.Cacheable() || v.Len() != b.Len() {
		return fmt.Errorf("keep block %v in memory: %w", b.ID(), errDeclined)
	}
	id := b.ID()
	key := id.Hash()
	if _, held := r.items.GetTTL(key); held {
		return nil
	}
	e := &entry{id: id, view: v, cost: memory(v) + entryBytes}
	most := r.adapt()
	// Queued entries lie outside ristretto's budget. A sixteenth more is room enough for them,
	// since the queue is emptied in microseconds.
	if r.held.Load()+e.cost > most+most/16+hearth.BlockSize {
		return fmt.Errorf("keep block %v in memory: %w: too much is queued", id, errDeclined)
	}
	if !r.pool.Reserve(entryBytes) {
		return fmt.Errorf("keep block %v in memory: %w: no memory", id, errDeclined)
	}
	v.Retain()
	r.held.Add(e.cost)
	r.entries.Add(1)
	r.pending.add(e)
	if !r.items.Set(key, e, 0) {
		r.pending.remove(e)
		r.exited(e)
		return fmt.Errorf("keep block %v in memory: %w: queue is full", id, errDeclined)
	}
	return nil
}

// hold keeps a block that a run brought and no store keeps until it was read once, if memory is not
// short.
func (r *RAM) hold(b hearth.Block, v *hearth.View) {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if !r.closed && r.spare() > r.reserve/2 {
		r.window.hold(b.ID(), v)
	}
}

// read counts n bytes of a block as read that came from elsewhere.
func (r *RAM) read(id hearth.ID, n int) {
	if v := r.window.take(id, n); v != nil {
		v.Release()
	}
}

// memory is the number of bytes that the View keeps from being free, as far as can be known.
func memory(v *hearth.View) int64 {
	if c := cap(v.Bytes()); c > v.Len() {
		return int64(c) // a whole buffer of its size class
	}
	return min(int64(v.Len()+v.Len()/8)+sliceSlack, hearth.BlockSize+hearth.PieceSize) // no View is larger
}

// adapt sets how much ristretto may hold now, and returns it: what it holds, and what is free
// beyond half of the reserve. So a growing index or a long queue makes it evict at the next Put.
func (r *RAM) adapt() int64 {
	most := max(1, min(r.limit-r.window.used.Load(), r.held.Load()+r.spare()-r.reserve/2))
	r.items.UpdateMaxCost(most)
	return most
}

// spare is the number of unused bytes of the pool.
func (r *RAM) spare() int64 {
	s := r.pool.Stats()
	return s.Budget - (s.Used - s.Idle)
}

// giveWay drops blocks when less than a quarter of the reserve is free, until half of it is free.
// Others cannot take memory from us, and those who wait for memory do not Put. Which blocks go is
// left to chance. This happens when indexes grow, not in steady state.
func (r *RAM) giveWay() {
	if r.closed || r.spare() >= r.reserve/4 || r.held.Load() == 0 || !r.shrinking.TryLock() {
		return
	}
	defer r.shrinking.Unlock()
	r.letGo(r.reserve/2 - r.spare())
}

// give is a hearth.Give. Blocks that somebody reads become free only later, so it may be called
// again.
func (r *RAM) give(n int64, index bool) bool {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.closed || r.held.Load()+r.window.used.Load() == 0 {
		return false
	}
	r.shrinking.Lock()
	defer r.shrinking.Unlock()
	if !index {
		s := r.pool.Stats()
		left := s.Budget - s.Claimed - r.held.Load() - r.window.used.Load() // for reads in flight
		return left < r.reserve/4 && r.letGo(r.reserve/2-left)
	}
	if r.letGo(max(n-r.spare(), hearth.BlockSize)) {
		return true
	}
	// The rest lies in ristretto's queue, where nobody finds it. The queue is emptied in microseconds, so the
	// index has that memory, too.
	held := r.held.Load()
	r.items.Wait()
	return r.letGo(max(n-r.spare(), hearth.BlockSize)) || r.held.Load() < held
}

// letGo drops the window's blocks, and cached blocks of at least need bytes. It returns false if
// there were none, except in ristretto's queue.
func (r *RAM) letGo(need int64) bool {
	gave := r.window.used.Load() > 0
	r.window.shrink(0)
	var keys []uint64
	r.items.IterValues(func(e *entry) bool {
		need -= e.cost
		keys = append(keys, e.id.Hash())
		return need <= 0
	})
	for _, key := range keys {
		r.items.Del(key)
	}
	return gave || len(keys) > 0
}

// dequeued is ristretto's Cost callback: one goroutine calls it for each entry that leaves the
// queue. When it is called for an entry, the one before can be read (or was refused), and is no
// longer pending.
func (r *RAM) dequeued(e *entry) int64 {
	r.pending.settle(e)
	return e.cost
}

// exited is ristretto's OnExit callback. It is called once for each entry, and with nil for keys
// that Del does not find.
func (r *RAM) exited(e *entry) {
	if e == nil {
		return
	}
	r.held.Add(-e.cost)
	r.entries.Add(-1)
	e.view.Release()
	r.pool.Unreserve(entryBytes)
}

// RAMStats are a RAM's figures.
type RAMStats struct {
	// Used and Budget in bytes; Used counts each View's memory and its entry.
	Used, Budget, Entries int64
	// Hits and Misses count Gets, Puts and Declined count Puts.
	Hits, HitBytes, Misses, Puts, Declined int64
}

// Stats returns the present figures.
func (r *RAM) Stats() RAMStats {
	return RAMStats{
		Used: r.held.Load() + r.window.used.Load(), Budget: r.limit, Entries: r.entries.Load(),
		Hits: r.hits.Load(), HitBytes: r.hitBytes.Load(), Misses: r.misses.Load(),
		Puts: r.puts.Load(), Declined: r.declined.Load(),
	}
}

// Close drops every block. Afterwards every Get is a miss and every Put is declined.
func (r *RAM) Close() {
	r.endGiving()
	r.closing.Lock()
	defer r.closing.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.items.Close()
	r.window.shrink(0)
}

// pending are the entries that ristretto has queued and cannot find yet. They own no reference: an
// entry that exits meanwhile is dead and thus a miss.
type pending struct {
	count atomic.Int64 // len(byID), for a look without the lock
	mu    sync.Mutex   // guards the rest
	byID  map[hearth.ID]*entry
	last  *entry // the one that ristretto is working on
}

func (p *pending) get(id hearth.ID) *entry {
	if p.count.Load() == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

func (p *pending) add(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = map[hearth.ID]*entry{}
	}
	p.byID[e.id] = e
	p.count.Store(int64(len(p.byID)))
}

func (p *pending) remove(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(e)
}

func (p *pending) settle(next *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.last != next {
		p.removeLocked(p.last)
	}
	p.last = next
}

func (p *pending) removeLocked(e *entry) {
	if p.byID[e.id] == e {
		delete(p.byID, e.id)
		p.count.Store(int64(len(p.byID)))
	}
}
