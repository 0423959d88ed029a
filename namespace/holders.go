package namespace

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/namespace/store"
)

// holders are those who keep node ids: one for each mount. What a superseded id
// stood for is kept while one of them has it. They are asked, not told of: a
// mount counts what its kernel holds anyway, so that two mounts need no memory
// here, and a FORGET costs the database nothing.
type holders struct {
	mu   sync.RWMutex // guards next and all; not held while they are asked
	next int
	all  map[int]func(id uint64) bool

	sweep sync.Mutex   // one at a time; taken before every other lock
	since atomic.Int64 // ids superseded since the last sweep
	left  atomic.Int64 // records that the last sweep left
}

const (
	// sweepLeast superseded ids are worth a sweep, and as many as the last one left:
	// so each record is looked at about twice, and there are never more than twice
	// what is held and what one minute brought.
	sweepLeast = 4096
	// supersededGrace is how long a superseded id is kept though nobody holds it: an
	// answer that names it may be under way to a kernel.
	supersededGrace = time.Minute
)

// Hold keeps what superseded node ids stood for as long as holds says that their
// holder has them, until end is called. holds must not block or call the Tree.
func (t *Tree) Hold(holds func(id uint64) bool) (end func()) {
	h := &t.holders
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[int]func(uint64) bool{}
	}
	h.next++
	n := h.next
	h.all[n] = holds
	return func() {
		h.mu.Lock()
		delete(h.all, n)
		h.mu.Unlock()
		t.behind(func() { _ = t.sweepSuperseded(supersededGrace) }) // at worst they stay until the next one
	}
}

// superseded counts n more superseded ids, and sweeps when that is worth it.
func (t *Tree) superseded(n int) {
	h := &t.holders
	if n == 0 || h.since.Add(int64(n)) < max(sweepLeast, h.left.Load()) {
		return
	}
	h.since.Store(0)
	t.behind(func() { _ = t.sweepSuperseded(supersededGrace) })
}

// sweepSuperseded drops what is known of superseded ids that nobody holds, if
// they were superseded longer ago than grace.
func (t *Tree) sweepSuperseded(grace time.Duration) error {
	h := &t.holders
	h.sweep.Lock()
	defer h.sweep.Unlock()
	h.mu.RLock()
	var all []func(uint64) bool
	for _, holds := range h.all {
		all = append(all, holds)
	}
	h.mu.RUnlock()
	held := func(id uint64) bool {
		for _, holds := range all {
			if holds(id) {
				return true
			}
		}
		return false
	}
	until := int64(math.MaxInt64)
	if grace > 0 {
		until = t.clock.Now() - grace.Milliseconds()
	}
	var rows store.Rows
	left := 0
	lower, upper := []byte{kindSuperseded}, []byte{kindSuperseded + 1}
	for more := true; more && t.ctx.Err() == nil; {
		if err := t.db.Scan(&rows, lower, upper, pageNames); err != nil {
			return err
		}
		w := t.db.Edit()
		for i := range rows.Len() {
			key := rows.Key(i)
			if supersededAt(rows.Value(i)) > until || held(binary.BigEndian.Uint64(key[1:])) {
				left++
				continue
			}
			w.Delete(key)
			w.Delete(append([]byte{kindReverse}, key[1:]...))
		}
		if more = rows.Len() == pageNames; more {
			lower = append(append(lower[:0], rows.Key(pageNames-1)...), 0)
		}
		if err := w.Commit(false); err != nil {
			return err
		}
	}
	h.left.Store(int64(left))
	return nil
}

// supersededAt is when an id was superseded, in Unix ms; 0: long ago, written
// before that was noted.
func supersededAt(value []byte) int64 {
	if len(value) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}
