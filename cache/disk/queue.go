package disk

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// queue holds the blocks of one directory that were given and are not written
// yet. It is two things: a bounded list for the writer, and a sharded map in
// which readers find a block from Put on until the index has it. Readers take a
// shard's lock only, and none at all while nothing is queued.
type queue struct {
	max   int64         // bytes
	ready chan struct{} // capacity 1: the writer has something to do

	blocks atomic.Int64 // in the shards
	shards [queueShards]queueShard

	mu     sync.Mutex // guards what follows; taken before a shard's lock
	items  []item
	bytes  int64         // of Views in items and in the writer's hands
	room   chan struct{} // closed when bytes fell; nil while nobody waits
	closed bool
}

// queueShards keeps readers out of each other's way; more than cores suffices.
const queueShards = 64

type queueShard struct {
	sync.RWMutex // guards views; never held across anything that waits
	views        map[hearth.ID]*hearth.View
}

// item is a block to write, or a mark: a point in the order of writes.
type item struct {
	block hearth.Block
	view  *hearth.View // nil: a mark
	keep  bool         // evict for it
	done  chan error   // capacity 1, told the outcome; nil: nobody waits
}

// queueCost counts what an entry costs beside its bytes, so that many tiny
// objects are bounded as well.
func queueCost(v *hearth.View) int64 { return int64(v.Len()) + 512 }

func newQueue(limit int64) *queue {
	q := &queue{max: limit, ready: make(chan struct{}, 1)}
	for i := range q.shards {
		q.shards[i].views = map[hearth.ID]*hearth.View{}
	}
	return q
}

func (q *queue) shard(id hearth.ID) *queueShard { return &q.shards[id.Hash()%queueShards] }

// get returns a slice of a queued block, or nil.
func (q *queue) get(id hearth.ID, off, n int) *hearth.View {
	if q.blocks.Load() == 0 {
		return nil
	}
	s := q.shard(id)
	s.RLock()
	defer s.RUnlock()
	if v := s.views[id]; v != nil { // the map's reference holds while we hold the lock
		return v.Slice(off, n)
	}
	return nil
}

func (q *queue) has(id hearth.ID) bool {
	if q.blocks.Load() == 0 {
		return false
	}
	s := q.shard(id)
	s.RLock()
	defer s.RUnlock()
	return s.views[id] != nil
}

// push appends a block, or fails with errQueueFull, errQueued or errClosed. The
// queue retains the View.
func (q *queue) push(it item) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed
	}
	n := queueCost(it.view)
	id := it.block.ID()
	if q.has(id) {
		return q.joinLocked(it)
	}
	if q.bytes+n > q.max && q.bytes > 0 { // one block always fits
		return errQueueFull
	}
	s := q.shard(id)
	s.Lock()
	s.views[id] = it.view.Retain()
	q.blocks.Add(1)
	s.Unlock()
	q.bytes += n
	q.addLocked(it)
	return nil
}

// joinLocked has a Keep wait for what a Put has queued, unless the writer has it already.
func (q *queue) joinLocked(it item) error {
	for i := len(q.items) - 1; i >= 0 && it.keep; i-- {
		if x := &q.items[i]; x.view != nil && x.done == nil && x.block.ID() == it.block.ID() {
			x.keep, x.done = true, it.done
			return nil
		}
	}
	return errQueued
}

// mark appends a mark and returns the channel that is told when everything
// before it was written.
func (q *queue) mark() (<-chan error, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, errClosed
	}
	done := make(chan error, 1)
	q.addLocked(item{done: done})
	return done, nil
}

func (q *queue) addLocked(it item) {
	q.items = append(q.items, it)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take removes the next items: one mark, or blocks of about limit bytes up to the
// next mark. They stay readable and counted until drop.
func (q *queue) take(batch []item, limit int64) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for bytes := int64(0); n < len(q.items) && bytes < limit; n++ {
		if q.items[n].view == nil {
			if n == 0 {
				n = 1
			}
			break
		}
		bytes += int64(q.items[n].view.Len())
	}
	batch = append(batch[:0], q.items[:n]...)
	clear(q.items[:n]) // append moves the rest to new memory once it grows
	q.items = q.items[n:]
	if len(q.items) == 0 {
		q.items = nil
	}
	return batch
}

// drop forgets a block that take returned: the index has it, or it is lost.
func (q *queue) drop(it *item) {
	id := it.block.ID()
	n := queueCost(it.view)
	s := q.shard(id)
	s.Lock()
	delete(s.views, id)
	s.Unlock()
	q.blocks.Add(-1)
	it.view.Release()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= n
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// wait returns when bytes have left the queue since it was full, or nothing is in it.
func (q *queue) wait(ctx context.Context, n int64) error {
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

func (q *queue) pending() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// close lets nothing more in; what is queued is still taken.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
