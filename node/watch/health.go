package watch

import (
	"sync"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// mostPause is between two tries of a fetch that goes on to fail.
	mostPause = 2 * time.Minute
	// told is how long a denied key is told of after somebody last asked for it, and how
	// long another fetch speaks for the origin that denies one.
	told = 10 * time.Minute
)

// Failure is a fetch that failed, and what it says of the origin.
type Failure struct {
	// Says is the cause with its cure, At when it was met last.
	Says string
	At   time.Time
	// Block that was asked for.
	Block hearth.Block
	// Denied: the origin answered that this cannot be read. OneKey: others can be. Archived:
	// for that reason, which no other try changes.
	Denied, OneKey, Archived bool

	sure bool // of OneKey: another was tried
}

// Health is what the fetches of a link say of its origin: it is well once one succeeds. What
// failed last is tried again though nobody asks, for all else may be cached, and nobody ever
// does. A key that is denied while others are read is no failure of the origin, and is
// forgotten.
type Health struct {
	// Pause is before the first try of what failed, and doubles.
	Pause time.Duration

	mu     sync.Mutex // guards the rest
	last   *Failure   // nil: the last fetch succeeded
	well   time.Time  // when one last did
	next   time.Time  // when what failed is to be tried
	pause  time.Duration
	trying bool
}

// Succeeded hears of a fetch that did; again: one failed before.
func (h *Health) Succeeded() (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	again = h.last != nil
	h.last, h.well = nil, time.Now()
	return again
}

// Failed hears of a fetch that had begun then and failed; what began before another succeeded
// says nothing of now.
func (h *Health) Failed(f Failure, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if began.Before(h.well) {
		return
	}
	now, before := time.Now(), h.now()
	f.At = now
	others := f.OneKey || !h.well.IsZero() && now.Sub(h.well) < told
	f.OneKey = f.Archived || f.Denied && others && (before == nil || before.OneKey)
	f.sure = f.Archived || f.OneKey && before != nil && before.sure && !before.Archived
	if h.last = &f; before == nil {
		h.pause, h.next = h.Pause, now.Add(h.Pause)
	}
}

// Last is the last fetch if it failed; nil: it did not.
func (h *Health) Last() *Failure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now()
}

func (h *Health) now() *Failure {
	if f := h.last; f == nil || f.OneKey && time.Since(f.At) > told {
		return nil
	}
	return h.last
}

// Due is what to try again now; nil: nothing. Whoever takes it says with Tried what came of
// it.
func (h *Health) Due() *Failure {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.now()
	if f == nil || f.sure || h.trying || time.Now().Before(h.next) {
		return nil
	}
	h.trying = true
	return f
}

// Tried says that what was due is now so; nil: it succeeds. Of another failure that was heard
// meanwhile it says something only where both are denials. again: the origin is well again.
func (h *Health) Tried(was, is *Failure) (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, last := time.Now(), h.last
	h.trying = false
	h.pause = max(h.pause, min(2*h.pause, mostPause))
	h.next = now.Add(h.pause)
	switch {
	case last == nil, last != was && (is == nil || !is.Denied || !last.Denied):
		return false
	case is == nil:
		h.last, h.well = nil, now
		return true
	}
	h.last = &Failure{Says: is.Says, At: now, Block: last.Block, Denied: is.Denied, OneKey: is.OneKey, Archived: is.Archived, sure: is.OneKey}
	if is.OneKey { // which nobody asked for again
		h.last.At, h.well = last.At, now
	}
	return is.OneKey && !last.OneKey
}
