package watch

import (
	"sync"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// mostPause bounds the back-off between two tries of a fetch that keeps failing.
	mostPause = 2 * time.Minute
	// told is how long status shows a denied key after a reader last asked for it. For as long, another
	// successful fetch proves that the origin of a denied key is well.
	told = 10 * time.Minute
)

// Failure is a fetch that failed, and what it says of the origin.
type Failure struct {
	// Says is the cause with its cure. At is when it was last met.
	Says string
	At   time.Time
	// Block is the block that was asked for.
	Block hearth.Block
	// Denied means that the origin answered that this cannot be read. OneKey means that other keys can be.
	// Archived means that the object is archived, which no further try changes.
	Denied, OneKey, Archived bool

	sure bool // OneKey is certain: another key was tried
}

// Health is the state of a link's origin, by its fetches. The origin is well once a fetch succeeds. The last
// failure is tried again even if no reader asks, since all else may be cached. A denied key, while others can
// be read, is no failure of the origin, and is forgotten.
type Health struct {
	// Pause is the back-off before the first try of what failed. It doubles with each further try.
	Pause time.Duration

	mu     sync.Mutex // guards the rest
	last   *Failure   // nil if the last fetch succeeded
	well   time.Time  // when a fetch last succeeded
	next   time.Time  // when to try again what failed
	pause  time.Duration
	trying bool
}

// Succeeded notes a fetch that succeeded. again means that one had failed before.
func (h *Health) Succeeded() (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	again = h.last != nil
	h.last, h.well = nil, time.Now()
	return again
}

// Failed notes a fetch that began at a time and failed. If another fetch has succeeded since it began, the
// failure says nothing about the present.
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

// Last returns the last failure. nil means that the last fetch succeeded.
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

// Due returns a failure that is to be tried again now, or nil. The caller reports the result with Tried.
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

// Tried reports the result of a try that was due. A nil result means success. If another failure was noted
// meanwhile, the result counts only where both are denials. again means that the origin is well again.
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
	if is.OneKey { // no reader asked for it again
		h.last.At, h.well = last.At, now
	}
	return is.OneKey && !last.OneKey
}
