package namespace

import (
	"encoding/binary"
	"sync"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// maxChanges is how many changes of one edit are told by name. The rest merge into "directory changed",
// and kernels learn of them when their timeouts end.
const maxChanges = 1024

// Subscribe calls f for each change, until cancel. The tree holds no lock meanwhile. f must not block,
// and may still be called once more while cancel runs.
func (t *Tree) Subscribe(f func(Change)) (cancel func()) { return t.news.Add(f) }

// Forget says that a reader found a version gone. Its name is not believed until the origin has been
// asked again, which begins now.
func (t *Tree) Forget(o *hearth.Object) {
	t.stats.forgets.Add(1)
	d, sort, ok := t.find(o)
	if !ok {
		return
	}
	current, listed, now := false, false, t.clock.Now()
	err := t.change(d, func(e *edit) error {
		was, ok, err := e.get(sort)
		if err != nil || !ok || was.Dir || object(d.link, &was, o.Key).Version != o.Version {
			return err
		}
		current, listed = true, was.Checked == 0 || d.sharer() != nil
		if !was.Doubted {
			e.doubt(sort, was)
		}
		return nil
	})
	if err != nil || !current || !t.behind(func() {
		defer d.release()
		n, err := t.lookup(t.ctx, d, record.Meaning{Segment: sort}) // the next look-up returns the error
		if err == nil && listed && d.headed.Load() >= now && !n.Dir && n.Object.Version != o.Version {
			t.suspect(d.link, o, &n.Object)
		}
	}) {
		d.release()
	}
}

// Hold keeps the records of superseded node ids for which holds returns true, until end is called. holds
// must not block or call the Tree.
func (t *Tree) Hold(holds func(id uint64) bool) (end func()) {
	drop := t.holders.Add(holds)
	return func() {
		drop()
		t.sweepHeld()
	}
}

// sweepHeld drops superseded ids without a holder, in the background. If that fails they stay until the
// next sweep.
func (t *Tree) sweepHeld() {
	t.behind(func() { _ = t.sweepSuperseded(t.clock.Now() - grace.Milliseconds()) })
}

func (t *Tree) sweepSuperseded(before int64) error {
	return t.holders.Sweep(before, func(keep func(uint64, []byte) bool) (left int, err error) {
		var rows store.Rows
		lower, upper := []byte{record.KindSuperseded}, []byte{record.KindSuperseded + 1}
		for more := true; more && t.ctx.Err() == nil; {
			if err := t.db.Scan(&rows, lower, upper, pageNames); err != nil {
				return 0, err
			}
			w := t.db.Edit()
			for i := range rows.Len() {
				key := rows.Key(i)
				if keep(binary.BigEndian.Uint64(key[1:]), rows.Value(i)) {
					left++
					continue
				}
				w.Delete(key)
				w.Delete(append([]byte{record.KindReverse}, key[1:]...))
				w.Delete(append([]byte{record.KindAttr}, key[1:]...))
			}
			if more = rows.Len() == pageNames; more {
				lower = append(append(lower[:0], rows.Key(pageNames-1)...), 0)
			}
			if err := w.Commit(false); err != nil {
				return 0, err
			}
		}
		return left, nil
	})
}

// find is the directory, in use, and the sort name of an object.
func (t *Tree) find(o *hearth.Object) (*directory, string, bool) {
	l := t.links.Load().named(o.Link)
	if !l.has(o.Key) {
		return nil, "", false
	}
	p, sort := l.split(o.Key)
	id, ok, err := t.idOf(p)
	if !ok || err != nil {
		return nil, "", false
	}
	d, err := t.dirs.get(t, id)
	return d, sort, err == nil
}

// Change says that the meaning of a name has changed.
type Change struct {
	// Dir is the directory's node id.
	Dir uint64
	// Name is the name in the mount. "" means that the directory changed.
	Name string
	// Old is the node id that the name had. 0 means none, or unknown.
	Old uint64
}

// subscribers are told of changes. The zero value has none.
type subscribers struct {
	mu   sync.RWMutex // guards the rest; not held while f runs
	next int
	all  map[int]func(Change)
}

// Add calls f for each change until cancel. f must not block. It may still be called once more while
// cancel runs.
func (s *subscribers) Add(f func(Change)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[int]func(Change){}
	}
	s.next++
	id := s.next
	s.all[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, id)
	}
}

// Tell calls every subscriber with each change, but only once with "the directory changed".
func (s *subscribers) Tell(changes []Change) {
	if len(changes) == 0 {
		return
	}
	s.mu.RLock()
	told := make([]func(Change), 0, len(s.all))
	for _, f := range s.all {
		told = append(told, f)
	}
	s.mu.RUnlock()
	for _, f := range told {
		merged := false
		for _, c := range changes {
			if c.Name != "" || !merged {
				f(c)
			}
			merged = merged || c.Name == ""
		}
	}
}

// Events are the callbacks of a Tree. Each may be nil. None may block or call the Tree.
type Events struct {
	// Ill says that the disk failed. Names live in memory until they move.
	Ill func(cause error)
	// Moved says that names lie in another directory from now on.
	Moved func(dir string)
	// Rebuilt says that all names were dropped, or set aside because they were corrupt.
	Rebuilt func(cause error)
	// Origin says that a link's origin cannot be asked any more. A nil err means that it can again.
	Origin func(link string, err error)
	// Name says that the origin fails or denies one name of a link, and answers for others.
	Name func(link string, err error)
	// Differs says that a link's listings name other versions than HEADs, as one key showed. Versions
	// come from HEADs from now on. "" means that the two agree again.
	Differs func(link, says string)
	// Refused tells a key, found by a listing, that cannot be shown.
	Refused func(link, key string)
	// Reserved says that node ids up to this one may be in use. The caller keeps that elsewhere.
	Reserved func(upTo uint64)
	// Log receives each line of the database's log.
	Log func(text string)
}
