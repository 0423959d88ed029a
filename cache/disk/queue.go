package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// This file is the write queue of a cache directory.

// Push declines with these errors.
var (
	errFull   = errors.New("write queue is full")
	errQueued = errors.New("queued already")
	errClosed = errors.New("disk cache is closed")
)

// writeQueue holds the blocks of one directory that were offered and are not written yet. It is a
// bounded list for the writer, and a sharded map for readers. They find a block there from Put
// until the index has it. Readers take only a shard's lock, and none at all while nothing is
// queued.
type writeQueue struct {
	max   int64         // bytes
	ready chan struct{} // capacity 1

	blocks atomic.Int64 // in the shards
	shards [queueShards]queueShard

	mu     sync.Mutex // guards what follows; taken before a shard's lock
	items  []queueItem
	bytes  int64         // of Views in items and in the writer's hands
	room   chan struct{} // closed when bytes fell; nil while nobody waits
	closed bool
}

// queueShards keeps readers out of each other's way. It need only exceed the number of cores.
const queueShards = 64

type queueShard struct {
	sync.RWMutex // guards views; never held across anything that waits
	views        map[hearth.ID]*hearth.View
}

// queueItem is a block to write, or a mark: a point in the order of writes.
type queueItem struct {
	Block hearth.Block
	View  *hearth.View // nil for a mark
	Keep  bool         // evict other entries for it
	Done  chan error   // capacity 1, receives the outcome; nil if nobody waits
}

// queueCost adds the fixed cost of an entry to its bytes, so that many tiny objects are bounded as
// well.
func queueCost(v *hearth.View) int64 { return int64(v.Len()) + 512 }

// newWriteQueue makes a queue of that many bytes.
func newWriteQueue(limit int64) *writeQueue {
	q := &writeQueue{max: limit, ready: make(chan struct{}, 1)}
	for i := range q.shards {
		q.shards[i].views = map[hearth.ID]*hearth.View{}
	}
	return q
}

func (q *writeQueue) shard(id hearth.ID) *queueShard { return &q.shards[id.Hash()%queueShards] }

// Max is the most bytes that the queue holds.
func (q *writeQueue) Max() int64 { return q.max }

// Ready receives when the writer has something to do.
func (q *writeQueue) Ready() <-chan struct{} { return q.ready }

// Empty reports whether no block is queued.
func (q *writeQueue) Empty() bool { return q.blocks.Load() == 0 }

// Get returns a slice of a queued block, or nil.
func (q *writeQueue) Get(id hearth.ID, off, n int) *hearth.View {
	if q.blocks.Load() == 0 {
		return nil
	}
	s := q.shard(id)
	s.RLock()
	defer s.RUnlock()
	if v := s.views[id]; v != nil && off+n <= v.Len() { // peers may ask for more; the map's reference holds under the lock
		return v.Slice(off, n)
	}
	return nil
}

// Has reports whether a block is queued or being written.
func (q *writeQueue) Has(id hearth.ID) bool {
	if q.blocks.Load() == 0 {
		return false
	}
	s := q.shard(id)
	s.RLock()
	defer s.RUnlock()
	return s.views[id] != nil
}

// Push appends a block, or fails with errFull, errQueued or errClosed. The queue retains the View.
func (q *writeQueue) Push(it queueItem) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed
	}
	n := queueCost(it.View)
	id := it.Block.ID()
	if q.Has(id) {
		return q.joinLocked(it)
	}
	if q.bytes+n > q.max && q.bytes > 0 { // one block always fits
		return errFull
	}
	s := q.shard(id)
	s.Lock()
	s.views[id] = it.View.Retain()
	q.blocks.Add(1)
	s.Unlock()
	q.bytes += n
	q.addLocked(it)
	return nil
}

// joinLocked lets a Keep wait for the block that a Put has queued, unless the writer has taken it
// already.
func (q *writeQueue) joinLocked(it queueItem) error {
	for i := len(q.items) - 1; i >= 0 && it.Keep; i-- {
		if x := &q.items[i]; x.View != nil && x.Done == nil && x.Block.ID() == it.Block.ID() {
			x.Keep, x.Done = true, it.Done
			return nil
		}
	}
	return errQueued
}

// Mark appends a mark and returns a channel that receives once everything before it was written or
// declined.
func (q *writeQueue) Mark() (<-chan error, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, errClosed
	}
	done := make(chan error, 1)
	q.addLocked(queueItem{Done: done})
	return done, nil
}

func (q *writeQueue) addLocked(it queueItem) {
	q.items = append(q.items, it)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Take removes the next items: one mark, or blocks of about limit bytes up to the next mark. The
// blocks stay readable and counted until Drop.
func (q *writeQueue) Take(batch []queueItem, limit int64) []queueItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for bytes := int64(0); n < len(q.items) && bytes < limit; n++ {
		if q.items[n].View == nil {
			if n == 0 {
				n = 1
			}
			break
		}
		bytes += int64(q.items[n].View.Len())
	}
	batch = append(batch[:0], q.items[:n]...)
	clear(q.items[:n]) // append moves the rest to new memory once it grows
	q.items = q.items[n:]
	if len(q.items) == 0 {
		q.items = nil
	}
	return batch
}

// Drop forgets a block that Take returned: the index has it, or it is lost.
func (q *writeQueue) Drop(it *queueItem) {
	id := it.Block.ID()
	n := queueCost(it.View)
	s := q.shard(id)
	s.Lock()
	delete(s.views, id)
	s.Unlock()
	q.blocks.Add(-1)
	it.View.Release()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= n
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// Wait returns when there is room for n bytes, when bytes have left the queue, or when it is empty
// or closed.
func (q *writeQueue) Wait(ctx context.Context, n int64) error {
	q.mu.Lock()
	if q.closed || q.bytes == 0 || q.bytes+n <= q.max {
		q.mu.Unlock()
		return nil
	}
	if q.room == nil {
		q.room = make(chan struct{})
	}
	room := q.room
	q.mu.Unlock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for room in the write queue: %w", context.Cause(ctx))
	}
}

// Pending is the number of bytes that are not written yet.
func (q *writeQueue) Pending() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// Close refuses new items; queued items are still taken.
func (q *writeQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Closed reports whether Close was called.
func (q *writeQueue) Closed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
