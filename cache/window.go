package cache

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// window holds blocks that a run brought and that no store keeps, from when they came until they
// were read once. Without it, read-ahead would be for nothing while the disk declines. ristretto
// would refuse these blocks, since it has no history of them. A full window declines, so that
// readers ahead learn their share. After as many declined blocks as the window holds, the oldest
// block goes: nobody seems to want it.
type window struct {
	most int64        // bytes
	used atomic.Int64 // written under mu

	mu    sync.Mutex // guards the rest
	byID  map[hearth.ID]*ahead
	queue []*ahead // oldest first; a block that went early stays in it without its view
	turns int      // blocks declined since the oldest last went
}

type ahead struct {
	id     hearth.ID
	view   *hearth.View // one reference; nil once it is gone
	cost   int64
	unread int
}

// hold keeps a block until it was read once or newer blocks push it out.
func (w *window) hold(id hearth.ID, v *hearth.View) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cost := memory(v)
	if w.byID[id] != nil || cost > w.most {
		return
	}
	if w.used.Load()+cost > w.most {
		if w.turns++; w.turns <= len(w.byID) {
			return
		}
		w.shrinkLocked(w.most - cost)
		w.turns = 0
	}
	if w.byID == nil {
		w.byID = map[hearth.ID]*ahead{}
	}
	a := &ahead{id: id, view: v.Retain(), cost: cost, unread: v.Len()}
	w.byID[id] = a
	if len(w.queue) > 64+2*len(w.byID) { // an old one that nobody reads keeps the gone ones in line
		w.queue = slices.DeleteFunc(w.queue, func(a *ahead) bool { return a.view == nil })
	}
	w.queue = append(w.queue, a)
	w.used.Add(cost)
}

// take returns a reference to a block, n bytes of which will be read now.
func (w *window) take(id hearth.ID, n int) *hearth.View {
	if w.used.Load() == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.byID[id]
	if a == nil {
		return nil
	}
	v := a.view.Retain()
	if a.unread -= n; a.unread <= 0 {
		w.dropLocked(a)
	}
	return v
}

func (w *window) has(id hearth.ID) bool {
	if w.used.Load() == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byID[id] != nil
}

func (w *window) drop(id hearth.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.byID[id]; a != nil {
		w.dropLocked(a)
	}
}

func (w *window) shrink(to int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shrinkLocked(to)
}

func (w *window) shrinkLocked(to int64) {
	for len(w.queue) > 0 && (w.queue[0].view == nil || w.used.Load() > to) {
		w.dropLocked(w.queue[0])
		w.queue[0] = nil
		w.queue = w.queue[1:]
	}
}

func (w *window) dropLocked(a *ahead) {
	if a.view == nil {
		return
	}
	delete(w.byID, a.id)
	w.used.Add(-a.cost)
	a.view.Release()
	a.view = nil
}
