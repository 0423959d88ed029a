package volume

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// item is a block that waits to be written, or what the writer does in between.
type item struct {
	id   hearth.ID
	view *hearth.View
	do   func(errs []error) error // with no view; errs is append's
	done chan error               // receives once, if somebody waits
}

// queue has the blocks that wait to be written, up to a bound in bytes. They are read from here until the index has
// them: a mount's READ may be shorter than a file, and the next one comes before the block is written.
type queue struct {
	waits atomic.Int64 // blocks: len(views), for a look without the lock

	mu     sync.RWMutex // guards the rest
	limit  int64
	held   int64
	items  []item
	views  map[hearth.ID]*hearth.View // those of the first item of each block, until it is freed
	closed bool
	more   chan struct{} // capacity 1: something came
	less   chan struct{} // closed when there is room; nil since then until an item is refused
}

func (q *queue) begin(limit int64) {
	q.limit, q.more, q.views = limit, make(chan struct{}, 1), map[hearth.ID]*hearth.View{}
}

// get returns a slice of a block that waits, or nil.
func (q *queue) get(id hearth.ID, off, n int) *hearth.View {
	if q.waits.Load() == 0 {
		return nil
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	if view := q.views[id]; view != nil && off+n <= view.Len() { // the item's reference holds under the lock
		return view.Slice(off, n)
	}
	return nil
}

// has reports whether a block waits.
func (q *queue) has(id hearth.ID) bool {
	if q.waits.Load() == 0 {
		return false
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.views[id] != nil
}

// offer adds an item, unless there is no room, which less tells when it may be there; nil means never. The queue has a
// reference of its own to the View. A single block always has room in an empty queue.
func (q *queue) offer(x item) (ok bool, less <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := int64(0)
	if x.view != nil {
		n = int64(x.view.Len())
	}
	if q.closed {
		return false, nil
	}
	if n > 0 && q.held > 0 && q.held+n > q.limit {
		if q.less == nil {
			q.less = make(chan struct{})
		}
		return false, q.less
	}
	if x.view != nil {
		x.view.Retain()
		if q.views[x.id] == nil {
			q.views[x.id] = x.view
			q.waits.Add(1)
		}
	}
	q.held += n
	q.items = append(q.items, x)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return true, nil
}

// wait is offer that waits for room, and then for what comes of it.
func (q *queue) wait(ctx context.Context, x item) error {
	x.done = make(chan error, 1)
	for {
		ok, less := q.offer(x)
		if ok {
			break
		}
		if less == nil {
			return errClosed
		}
		select {
		case <-less:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take returns what waits, or nil once the queue is closed and empty. The caller calls free for each.
func (q *queue) take() []item {
	for {
		q.mu.Lock()
		items, closed := q.items, q.closed
		q.items = nil
		q.mu.Unlock()
		if len(items) > 0 || closed {
			return items
		}
		<-q.more
	}
}

// free ends an item: the index has its block, or the block is lost.
func (q *queue) free(x item, err error) {
	if x.view != nil {
		q.mu.Lock()
		q.held -= int64(x.view.Len())
		if q.views[x.id] == x.view {
			delete(q.views, x.id)
			q.waits.Add(-1)
		}
		q.roomLocked()
		q.mu.Unlock()
		x.view.Release()
	}
	if x.done != nil {
		x.done <- err
	}
}

// roomLocked wakes those who wait for room.
func (q *queue) roomLocked() {
	if q.less != nil {
		close(q.less)
		q.less = nil
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	q.roomLocked()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

func (q *queue) bytes() int64 {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.held
}
