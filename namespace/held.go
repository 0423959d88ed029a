package namespace

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file keeps what superseded node ids stood for while a mount's kernel has
// them. Holders are asked, not told of: a mount counts what its kernel holds anyway,
// so that two mounts need no memory here, and a FORGET costs the database nothing.
// A sweep over the superseded ids asks every holder, and drops what none has.

// holders are those who keep node ids: one for each mount.
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
	// grace is how long a superseded id is kept though nobody holds it: an
	// answer that names it may be under way to a kernel.
	grace = time.Minute
)

// Add adds one; end takes it away. holds must not block.
func (h *holders) Add(holds func(id uint64) bool) (end func()) {
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
		defer h.mu.Unlock()
		delete(h.all, n)
	}
}

// Superseded counts n more superseded ids and reports whether a sweep is worth it.
func (h *holders) Superseded(n int) bool {
	if n == 0 || h.since.Add(int64(n)) < max(sweepLeast, h.left.Load()) {
		return false
	}
	h.since.Store(0)
	return true
}

// held reports whether any holder has an id, as they are now.
func (h *holders) held() func(id uint64) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := slices.Collect(maps.Values(h.all))
	return func(id uint64) bool {
		return slices.ContainsFunc(all, func(holds func(uint64) bool) bool { return holds(id) })
	}
}

// Sweep has all called, which goes over the superseded ids, removes those that it
// is told not to keep, and returns how many are left. What was superseded at before,
// in Unix ms, or later is kept though nobody holds it.
func (h *holders) Sweep(before int64, all func(keep func(id uint64, since []byte) bool) (left int, err error)) error {
	h.sweep.Lock()
	defer h.sweep.Unlock()
	held := h.held()
	left, err := all(func(id uint64, since []byte) bool { return at(since) >= before || held(id) })
	if err == nil {
		h.left.Store(int64(left))
	}
	return err
}

// supersededAt is the value of a superseded id's record: when that came to pass, in Unix
// ms.
func supersededAt(now int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(now)) }

// at is that time; 0: long ago, written before it was noted.
func at(value []byte) int64 {
	if len(value) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}
