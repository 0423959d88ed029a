package fuse

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth/namespace"
)

const (
	maxNewsNames    = 8192  // names waiting to be told, of all directories
	maxNewsPerDir   = 1024  // names of one directory before it has "changed"
	maxNewsDirs     = 4096  // directories with news waiting
	maxKeptListings = 65536 // listings that the kernel keeps at a time
)

// kernel takes notifications. Each call may block on locks that requests hold in the kernel, so
// only the news goroutine calls it.
type kernel interface {
	InodeNotify(node uint64, off, length int64) gofuse.Status
	EntryNotify(dir uint64, name string) gofuse.Status
}

// news tells the kernel what has changed. A caller enqueues its news and returns; one goroutine
// tells the kernel. News that do not fit merge: the names of one directory become "it changed".
// Beyond that, news are lost and counted. The names then live until their timeouts, which never
// exceed what the namespace promised.
//
// A notification for a name takes the directory's lock, which LOOKUP and READDIR hold. While one of
// them waits for the origin, the notification would wait too, and all further look-ups in that
// directory behind it. A process killed in that state could not even die: its thread is in the
// kernel, so its end of the connection stays open. So the names of such a directory are put aside
// until no request waits there.
type news struct {
	kernel kernel
	ops    *newsOps
	table  *table // has the kept listings, for the process that takes the mount over; nil if none will

	mu       sync.Mutex // guards the rest; held for a few instructions
	dirs     map[uint64]*dirNews
	queue    []uint64 // keys of dirs, FIFO
	names    int
	awaited  map[uint64]chan struct{} // node id that a request waits for, until its name is dropped
	stalled  map[uint64]int           // requests that wait, counted by directory
	making   map[madeName]int         // names that requests make, of which their answers tell
	aside    map[uint64]*dirNews      // names of stalled directories
	listings listings
	kept     map[uint64]*listing
	telling  bool            // the entry taken last from the queue is being told
	settles  []chan struct{} // closed once nothing is queued

	wake chan struct{} // holds one token when there is something to do
	stop chan struct{}
	done chan struct{}
}

// dirNews is what changed in one directory. Its listing changed in any case.
type dirNews struct {
	names   []changedName
	expired *listing // that is all
}

type changedName struct {
	name string
	old  uint64 // the node id that the name meant, or 0
}

// madeName is a name in a directory, a node id of the kernel.
type madeName struct {
	dir  uint64
	name string
}

type newsOps struct{ told, merged, lost atomic.Int64 }

func newNews(k kernel, ops *newsOps) *news {
	return &news{
		kernel: k, ops: ops,
		dirs: map[uint64]*dirNews{}, awaited: map[uint64]chan struct{}{}, kept: map[uint64]*listing{},
		stalled: map[uint64]int{}, making: map[madeName]int{}, aside: map[uint64]*dirNews{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// add enqueues a change in dir, a node id of the kernel. A name that a request waits for always has
// room: there is at most one per request under way.
func (w *news) add(dir uint64, c namespace.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.dirs[dir]
	_, awaited := w.awaited[c.Old]
	if d == nil {
		if len(w.dirs)+len(w.aside) >= maxNewsDirs && !awaited {
			w.ops.lost.Add(1)
			return
		}
		d = &dirNews{}
		w.dirs[dir] = d
		w.queue = append(w.queue, dir)
	}
	switch {
	case c.Name == "" || c.Old == 0 && w.making[madeName{dir, c.Name}] > 0:
	case awaited || w.names < maxNewsNames && len(d.names) < maxNewsPerDir:
		d.names = append(d.names, changedName{c.Name, c.Old})
		w.names++
	default:
		w.ops.merged.Add(1)
	}
	w.poke()
}

// stall and free count the requests that wait with a directory's lock held.
func (w *news) stall(dir uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stalled[dir]++
}

func (w *news) free(dir uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stalled[dir]--; w.stalled[dir] > 0 {
		return
	}
	delete(w.stalled, dir)
	aside := w.aside[dir]
	if aside == nil {
		return
	}
	delete(w.aside, dir)
	if d := w.dirs[dir]; d != nil {
		d.names = append(aside.names, d.names...)
	} else {
		w.dirs[dir] = aside
		w.queue = append(w.queue, dir)
	}
	w.poke()
}

// make notes that a request makes a directory, until made: its answer tells the kernel of the name. News of it would be told
// behind that, since the request holds the lock of the directory that it is in. They would take the name from under whoever has
// changed into the new directory, who could not tell any more where he is (getcwd: ENOENT).
func (w *news) make(dir uint64, name string) (made func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := madeName{dir, name}
	w.making[m]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.making[m]--; w.making[m] == 0 {
			delete(w.making, m)
		}
	}
}

// putAside keeps names for later while a request waits in their directory.
func (w *news) putAside(dir uint64, names []changedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stalled[dir] == 0 {
		return false
	}
	d := w.aside[dir]
	if d == nil {
		d = &dirNews{}
		w.aside[dir] = d
	}
	if len(d.names)+len(names) > maxNewsPerDir {
		w.ops.merged.Add(int64(len(names)))
		return true
	}
	d.names = append(d.names, names...)
	w.names += len(names)
	return true
}

func (w *news) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// await returns a channel that is closed once the name of a node id was dropped
// from the kernel; leave ends the wait.
func (w *news) await(id uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.awaited[id]
	if told == nil {
		told = make(chan struct{})
		w.awaited[id] = told
	}
	return told
}

func (w *news) leave(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.awaited, id)
}

// settled returns a channel that is closed once the kernel was told all that is queued now. It does
// not wait for names that are put aside, since a request waits for the origin there.
func (w *news) settled() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{})
	if len(w.queue) == 0 && !w.telling {
		close(c)
	} else {
		w.settles = append(w.settles, c)
	}
	return c
}

// listed notes that the kernel keeps the listing of dir until the given time.
func (w *news) listed(dir uint64, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.kept[dir]; l != nil {
		l.until = until
		heap.Fix(&w.listings, l.index)
	} else {
		w.keepLocked(&listing{dir: dir, until: until, row: w.table.put(tableRow{node: dir, kind: listed})})
	}
	if len(w.kept) > maxKeptListings {
		w.listings[0].until = time.Time{}
	}
	w.poke()
}

func (w *news) keepLocked(l *listing) {
	w.kept[l.dir] = l
	heap.Push(&w.listings, l)
}

// inherit takes over a listing that another process let the kernel keep. It is dropped at once.
func (w *news) inherit(dir uint64, row int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.kept[dir]; l == nil {
		w.keepLocked(&listing{dir: dir, row: row})
	} else { // it was listed meanwhile, perhaps in part, behind what the other process told
		w.table.clear(row)
		l.until = time.Time{}
		heap.Fix(&w.listings, l.index)
	}
	w.poke()
}

// run tells the kernel until close.
func (w *news) run() {
	defer close(w.done)
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		dir, d, wait := w.next()
		if d != nil {
			w.tell(dir, d)
			continue
		}
		t.Reset(wait)
		select {
		case <-w.stop:
			return
		case <-w.wake:
		case <-t.C:
		}
	}
}

// next takes the next directory with news, or else an expired listing. If there is neither, it
// returns how long to wait.
func (w *news) next() (uint64, *dirNews, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.stop:
		return 0, nil, 0
	default:
	}
	if w.telling = len(w.queue) > 0; !w.telling {
		for _, c := range w.settles {
			close(c)
		}
		w.settles = nil
	}
	if w.telling {
		dir := w.queue[0]
		w.queue = w.queue[1:]
		d := w.dirs[dir]
		delete(w.dirs, dir)
		w.names -= len(d.names)
		return dir, d, 0
	}
	if len(w.listings) == 0 {
		return 0, nil, time.Hour
	}
	l := w.listings[0]
	if wait := time.Until(l.until); wait > 0 {
		return 0, nil, wait
	}
	heap.Pop(&w.listings)
	delete(w.kept, l.dir)
	return l.dir, &dirNews{expired: l}, 0
}

// tell drops the directory's listing, then its changed names. A dropped name alone would leave the
// listing as it was, for ever.
func (w *news) tell(dir uint64, d *dirNews) {
	w.kernel.InodeNotify(dir, 0, 0)
	w.ops.told.Add(1)
	if d.expired != nil {
		w.table.clear(d.expired.row)
	}
	for i, c := range d.names {
		if w.putAside(dir, d.names[i:]) {
			return
		}
		w.kernel.EntryNotify(dir, c.name)
		w.ops.told.Add(1)
		w.mu.Lock()
		if told := w.awaited[c.old]; told != nil {
			close(told)
			delete(w.awaited, c.old)
		}
		w.mu.Unlock()
	}
}

// close ends run; a notification under way ends with the connection.
func (w *news) close() {
	close(w.stop)
	<-w.done
	if t, ok := w.kernel.(*teller); ok {
		t.close()
	}
}

// listing is a directory whose names the kernel keeps.
type listing struct {
	dir   uint64
	until time.Time
	index int // in listings
	row   int // in the table
}

// listings is a heap; the first to expire is in front.
type listings []*listing

func (h listings) Len() int           { return len(h) }
func (h listings) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h listings) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is part of heap.Interface.
func (h *listings) Push(x any) {
	l := x.(*listing)
	l.index = len(*h)
	*h = append(*h, l)
}

// Pop is part of heap.Interface.
func (h *listings) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
