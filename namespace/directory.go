package namespace

import (
	"container/list"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// directory is one directory in memory. There is at most one for each id, so that its lock is the only
// one.
type directory struct {
	place
	id    uint64
	hash  [16]byte
	users atomic.Int32 // it stays in memory while somebody uses it

	state   atomic.Pointer[dirState]
	running atomic.Pointer[listing] // the listing under way
	headed  atomic.Int64            // when a HEAD by this node last found a file in it, in Unix ms

	// mu makes changes of the directory's entries and of its state one after the
	// other. It is held across reads and writes of the database, which go to
	// memory first; never while an origin is asked. Taken before every other lock.
	mu sync.Mutex
	// doubted is the listing under way, if a write may have changed names that it has passed already. mu
	// guards it.
	doubted *listing
}

// dirState is what is known of a directory's listing. It is replaced, not changed.
type dirState struct {
	listed  int64         // when the last whole listing began, in Unix ms; 0: never
	took    time.Duration // how long that took
	seen    int64         // when the present listing was first seen, in Unix ns
	refused uint64        // keys in it that cannot be shown
	failed  int64         // when the last listing failed, in Unix ms; not kept
	age     int64         // generation of the database that has it; not kept
}

func (d *directory) release() { d.users.Add(-1) }

// retain adds a user. The caller is one already.
func (d *directory) retain() *directory {
	d.users.Add(1)
	return d
}

// prefix of the directory's keys.
func (d *directory) prefix() string { return d.link.Prefix + d.path }

// name is the directory's own name in the mount.
func (d *directory) name(t *Tree) string {
	if d.id == rootID || d.path == "" {
		return ""
	}
	parent := strings.TrimSuffix(d.path, "/")
	i := strings.LastIndexByte(parent, '/')
	return record.MountName(parent[i+1:]+"/", false)
}

// seen is the directory's mod time.
func (d *directory) seen() time.Time {
	if n := d.state.Load().seen; n > 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// whole reports whether the directory was ever listed to its end.
func (d *directory) whole(t *Tree) bool {
	s := d.state.Load()
	return s.listed > 0 && s.age == t.db.Generation()
}

// listedDoubted is the time of listing, in Unix ms, that is noted when the last listing may lack a
// name. It is long ago, so that the directory is listed again even where names hold for ever.
const listedDoubted = 1

// listingLeft is how long the listing may be believed.
func (d *directory) listingLeft(t *Tree) time.Duration {
	s := d.state.Load()
	switch {
	case s.listed <= listedDoubted || s.age != t.db.Generation():
		return 0
	case d.link.Freshness.Mode == Immutable:
		return Forever
	case d.link.Freshness.Mode == Strict:
		return 0
	}
	return left(t.clock.Trusted(s.listed), t.clock.Now(), d.link.Freshness.ListingLife(s.took))
}

// node makes the Node of an entry.
func (d *directory) node(t *Tree, sort string, e *record.Entry, ttl time.Duration) Node {
	n := Node{ID: e.ID, Dir: e.Dir, Name: d.mountName(t, sort, e), TTL: ttl}
	if e.Dir {
		n.Object = hearth.Object{Link: d.link.Name, Key: d.prefix() + sort, Size: hearth.PrefixSize}
		n.ModTime = t.dirs.seen(t, e.ID)
		return n
	}
	n.Object = object(d.link, e, d.prefix()+sort)
	n.ModTime = Shown(d.link.Identity, n.Object.ModTime)
	n.Unsure = e.Doubted || ttl == 0 && d.link.differs.Load() != nil
	return n
}

// Shown is the mod time that people and kernels are shown of an object, given its origin's identity.
// HEADs tell whole seconds where listings tell fractions, and the time of an unchanged file must not
// depend on which one was asked. A local directory always tells the same time.
func Shown(identity string, modified time.Time) time.Time {
	if hearth.IsLocal(identity) {
		return modified
	}
	return modified.Truncate(time.Second)
}

func (d *directory) mountName(t *Tree, sort string, e *record.Entry) string {
	beside := e.Beside
	if !e.Dir && !beside {
		below := t.links.Load().below
		if len(below) > 0 {
			_, beside = below[d.hash][record.Escape(sort)]
		}
	}
	return record.MountName(sort, beside)
}

// directories are the directories in memory: those in use, and those used last (LRU).
type directories struct {
	shards [16]dirShard
	// ids of the directories in memory, by their hashes. They outlive the database.
	ids sync.Map
}

type dirShard struct {
	mu    sync.Mutex // guards the rest; held for a database read when a directory is not in memory
	byID  map[uint64]*list.Element
	order list.List // of *directory, last used first
}

// maxDirectories is how many stay in memory per shard, at about 400 bytes each, beside those in use.
const maxDirectories = 512

func (ds *directories) start() {
	for i := range ds.shards {
		ds.shards[i].byID = map[uint64]*list.Element{}
	}
}

func (ds *directories) shard(id uint64) *dirShard { return &ds.shards[id%uint64(len(ds.shards))] }

// get returns the directory of an id, in use; the caller releases it.
func (ds *directories) get(t *Tree, id uint64) (*directory, error) {
	s := ds.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[id]; e != nil {
		d := e.Value.(*directory)
		if s.order.Front() != e {
			s.order.MoveToFront(e)
		}
		d.users.Add(1)
		return d, nil
	}
	d, err := t.loadDirectory(id)
	if err != nil {
		return nil, err
	}
	d.users.Add(1)
	s.byID[id] = s.order.PushFront(d)
	ds.ids.Store(d.hash, id)
	for e := s.order.Back(); e != nil && s.order.Len() > maxDirectories; {
		old, prev := e.Value.(*directory), e.Prev()
		if old.users.Load() == 0 {
			ds.removeLocked(s, e)
		}
		e = prev
	}
	return d, nil
}

// has reports whether an id is that of a directory in memory.
func (ds *directories) has(id uint64) bool {
	s := ds.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}

// of gives the directories of a link that are in memory, each in use. The caller releases each.
func (ds *directories) of(l *link) iter.Seq[*directory] {
	return func(each func(*directory) bool) {
		for i := range ds.shards {
			var all []*directory
			s := &ds.shards[i]
			s.mu.Lock()
			for _, e := range s.byID {
				if d := e.Value.(*directory); d.link == l {
					all = append(all, d.retain())
				}
			}
			s.mu.Unlock()
			for i, d := range all {
				if !each(d) {
					for _, d := range all[i+1:] {
						d.release()
					}
					return
				}
			}
		}
	}
}

// removeLocked takes a directory out of memory.
func (ds *directories) removeLocked(s *dirShard, e *list.Element) {
	d := s.order.Remove(e).(*directory)
	delete(s.byID, d.id)
	ds.ids.CompareAndDelete(d.hash, d.id)
}

// drop forgets a directory whose place has changed. Those who use it may finish.
func (ds *directories) drop(id uint64) {
	s := ds.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[id]; e != nil {
		ds.removeLocked(s, e)
	}
}

// seen is the mod time of a directory. It loads the directory into memory, since its id is given out:
// ids in memory outlive the database.
func (ds *directories) seen(t *Tree, id uint64) time.Time {
	d, err := ds.get(t, id)
	if err != nil {
		return time.Time{}
	}
	defer d.release()
	return d.seen()
}

// loadDirectory makes the directory of an id from its records.
func (t *Tree) loadDirectory(id uint64) (*directory, error) {
	table := t.links.Load()
	d := &directory{id: id}
	if id == rootID {
		d.place = table.root
	} else {
		r, err := t.reverse(id)
		if err != nil {
			return nil, err
		}
		if !r.Dir {
			return nil, syscall.ENOTDIR
		}
		d.place.path = r.Path
		if r.Link != "" {
			if d.link = table.named(r.Link[1:]); d.link == nil {
				return nil, staleID(id)
			}
		}
	}
	d.hash = d.place.hash()
	age := t.db.Generation()
	at, state, ok, err := t.directoryRecord(d.hash)
	if err != nil {
		return nil, err
	}
	if ok && at != id && id != rootID {
		return nil, staleID(id) // the id belongs to a bucket that this link led to before
	}
	if !ok {
		state.seen = t.clock.Now() * int64(time.Millisecond)
	}
	state.age = age
	d.state.Store(&state)
	return d, nil
}
