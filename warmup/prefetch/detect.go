package prefetch

import (
	"container/list"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// mostWindows are kept, three kilobytes each: those used last.
	mostWindows = 128
	// levels is how many directories above one have a window, too. Few trees fan out
	// more.
	levels = 3
	// follows is how long after a directory another one beside it makes the tree an area.
	follows = time.Hour
	// mostDirectories are remembered as being filled, of all areas, a hundred bytes each.
	mostDirectories = 1 << 15
	// mostDistrusted areas that wasted too much are remembered, each for distrust.
	mostDistrusted = 256
	distrust       = time.Hour
)

// where is a prefix of a link's keys that ends in "/" or is empty.
type where struct{ link, prefix string }

// detector says which directories are read in random order. It is arithmetic only.
type detector struct {
	windows    map[where]*list.Element
	order      list.List // of *placed, last used first
	areas      map[where]*area
	taken      int                 // how many directories, of all areas
	distrusted map[where]time.Time // until when
	space      [windowMisses]miss
}

type placed struct {
	where
	window
}

func newDetector() detector {
	return detector{windows: map[where]*list.Element{}, areas: map[where]*area{}, distrusted: map[where]time.Time{}}
}

// miss notes the miss of n bytes of an object. It returns the area that the object lies
// in, if any, and whether the area is new.
func (d *detector) miss(o *hearth.Object, n int, now time.Time) (a *area, fresh bool) {
	dir := directoryOf(o.Key)
	if a = d.covering(o.Link, dir); a != nil {
		a.seen(int64(n), now)
		d.fill(a, dir)
		return a, false
	}
	at, ok := dir, true
	for level := 0; level <= levels && ok; level++ {
		here := where{o.Link, at}
		w := d.window(here)
		if w.note(missed(o, now)) && a == nil {
			a = d.found(here, w.recent(now, d.space[:0]), level > 0, now)
		}
		at, ok = above(at)
	}
	if a != nil && !a.tree {
		a = d.widened(a, now)
	}
	if a != nil && a.tree {
		d.explained(a)
	}
	return a, a != nil
}

// explained has the windows above a new tree forget the misses in it. The tree's readers
// are why these lie in no order; they say nothing of what lies beside the tree.
func (d *detector) explained(a *area) {
	for at, ok := above(a.prefix); ok; at, ok = above(at) {
		if e := d.windows[where{a.link, at}]; e != nil {
			e.Value.(*placed).forget(a.prefix)
		}
	}
}

// covering is the area that a directory lies in, if any.
func (d *detector) covering(link, dir string) *area {
	at, ok := dir, true
	for level := 0; level <= levels && ok; level++ {
		if a := d.areas[where{link, at}]; a != nil && (a.tree || level == 0) {
			return a
		}
		at, ok = above(at)
	}
	return nil
}

// window is the window of a directory. A new one takes the place of the least recently
// used.
func (d *detector) window(at where) *window {
	if e := d.windows[at]; e != nil {
		d.order.MoveToFront(e)
		return &e.Value.(*placed).window
	}
	if d.order.Len() >= mostWindows {
		old := d.order.Remove(d.order.Back()).(*placed)
		delete(d.windows, old.where)
	}
	p := &placed{where: at}
	d.windows[at] = d.order.PushFront(p)
	return &p.window
}

// found makes a directory an area if its misses say so.
func (d *detector) found(at where, misses []miss, tree bool, now time.Time) *area {
	if !unordered(misses) || d.untrusted(at, now) {
		return nil
	}
	dirs := map[string]bool{at.prefix: true}
	if tree {
		if dirs = directories(misses); len(dirs) < someDirectories {
			return nil
		}
	}
	a := d.add(at, tree, now)
	for dir := range dirs {
		d.fill(a, dir)
	}
	for _, m := range misses {
		a.seen(m.size, m.at)
	}
	return a
}

func (d *detector) add(at where, tree bool, now time.Time) *area {
	a := &area{where: at, tree: tree, began: now, taken: map[string]bool{}}
	d.areas[at] = a
	return a
}

// widened makes the tree above a new area an area instead, if this is the second area
// there.
func (d *detector) widened(a *area, now time.Time) *area {
	up, ok := above(a.prefix)
	if !ok {
		return a
	}
	w := d.window(where{a.link, up})
	second := w.child != a.where && now.Sub(w.since) < follows
	w.child, w.since = a.where, now
	if !second || d.untrusted(where{a.link, up}, now) {
		return a
	}
	d.drop(a)
	tree := d.add(where{a.link, up}, true, a.began)
	d.fill(tree, a.prefix)
	tree.seen(a.reads.Load(), now)
	return tree
}

func (d *detector) untrusted(at where, now time.Time) bool { return now.Before(d.distrusted[at]) }

// fill queues a directory of an area, unless it was queued before.
func (d *detector) fill(a *area, dir string) {
	if !a.taken[dir] && d.taken < mostDirectories {
		d.taken++
		a.taken[dir] = true
		a.queue = append(a.queue, dir)
	}
}

// drop forgets an area.
func (d *detector) drop(a *area) {
	delete(d.areas, a.where)
	d.taken -= len(a.taken)
	a.queue, a.taken = nil, nil
}

// end ends an area. An area of which less than half was read is not trusted for a while.
func (d *detector) end(a *area, now time.Time) {
	d.drop(a)
	if !a.wasteful() {
		return
	}
	for at, until := range d.distrusted {
		if !now.Before(until) || len(d.distrusted) >= mostDistrusted {
			delete(d.distrusted, at)
		}
	}
	d.distrusted[a.where] = now.Add(distrust)
}
