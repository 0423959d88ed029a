package namespace

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What a superseded node id stood for is kept while the kernel of a mount holds the id. A sweep goes over
// the superseded ids, and drops those that no holder has. It asks the holders: a mount counts what its
// kernel holds anyway. So mounts need no memory here, and a FORGET costs the database nothing.

// holders are those who hold node ids, one for each mount.
type holders struct {
	mu   sync.RWMutex // guards next and all; not held while they are asked
	next int
	all  map[int]func(id uint64) bool

	sweep sync.Mutex   // one at a time; taken before every other lock
	since atomic.Int64 // ids superseded since the last sweep
	left  atomic.Int64 // records that the last sweep left
}

const (
	// sweepLeast superseded ids are worth a sweep, or as many as the last sweep left if that is more. So
	// each record is looked at about twice. There are never more records than twice those held and those
	// of the last minute.
	sweepLeast = 4096
	// grace is how long a superseded id is kept though nobody holds it: an answer with the id may be in
	// flight to a kernel.
	grace = time.Minute
)

// Add adds a holder; end removes it. holds must not block.
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

// held returns a function that reports whether any of the present holders has an id.
func (h *holders) held() func(id uint64) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := slices.Collect(maps.Values(h.all))
	return func(id uint64) bool {
		return slices.ContainsFunc(all, func(holds func(uint64) bool) bool { return holds(id) })
	}
}

// Sweep runs all, one sweep at a time. all goes over the superseded ids, removes those that keep
// returns false for, and returns how many are left. Ids superseded at before, in Unix ms, or later are
// kept though nobody holds them.
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

// supersededAt is the value of a superseded id's record: when it was superseded, in Unix ms.
func supersededAt(now int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(now)) }

// at is the time in such a value. 0 means long ago: older versions wrote no time.
func at(value []byte) int64 {
	if len(value) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}
