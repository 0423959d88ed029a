package namespace

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// edit is a set of changes of one directory's entries that are committed together. The directory's lock
// is held from its beginning to its commit.
type edit struct {
	t        *Tree
	d        *directory
	w        *store.Edit
	pending  map[string]*record.Entry // written in this edit; nil means removed
	old      map[string]record.Entry  // what the database had, where that was read
	changes  []Change
	segments []string  // the segment of each change, one for each
	asked    int64     // when the origin was asked, in Unix ms; 0 means unknown, or that another node answered
	told     int64     // the same of what another node answered
	first    bool      // the directory was never listed to its end
	state    *dirState // the directory's state once this is committed; nil means unchanged
	// superseded counts node ids that lost their names.
	superseded int
	miss       string   // a sort name that the database is known not to have; "" means none
	gone       []uint64 // directories that went away
	buf        []byte
	keyBuf     []byte
}

// beginLocked begins an edit. The error store.ErrRebuilt means that the database is being replaced.
func (t *Tree) beginLocked(d *directory) (*edit, error) {
	w := t.db.Edit()
	if d.state.Load().age != w.Generation() {
		if err := t.claim(d, w); err != nil {
			return nil, err
		}
	}
	return &edit{t: t, d: d, w: w, first: !d.whole(t), pending: map[string]*record.Entry{}, old: map[string]record.Entry{}}, nil
}

// get is the entry as this edit has it.
func (e *edit) get(sort string) (record.Entry, bool, error) {
	if x, ok := e.pending[sort]; ok {
		if x == nil {
			return record.Entry{}, false, nil
		}
		return *x, true, nil
	}
	if x, ok := e.old[sort]; ok {
		return x, true, nil
	}
	if sort == e.miss && sort != "" {
		return record.Entry{}, false, nil
	}
	x, ok, err := e.d.entry(e.t, sort)
	if ok {
		e.old[sort] = x
	}
	return x, ok, err
}

// setDir makes the directory of a sort name present. A file of the same segment gives its name up to
// it.
func (e *edit) setDir(sort string, checked int64) error {
	x, ok, err := e.get(sort)
	if err != nil {
		return err
	}
	if !ok {
		if x.ID, err = e.t.placeID(e.d.child(record.Segment(sort))); err != nil {
			return err
		}
		x.Dir = true
		e.newName(sort, &x)
	}
	if !ok || checked > 0 {
		x.Checked = max(x.Checked, checked)
		e.put(sort, x)
	}
	return e.setBeside(record.Segment(sort), true)
}

// setBeside notes in a file's entry, if there is one, whether a directory of the same name stands beside
// it. The file's name in the mount depends on that.
func (e *edit) setBeside(file string, beside bool) error {
	x, ok, err := e.get(file)
	if err != nil || !ok || x.Beside == beside {
		return err
	}
	e.news(file, &x, x.ID)
	x.Beside = beside
	e.news(file, &x, 0)
	e.put(file, x)
	return nil
}

// setFile sets the version of a sort name. A version that is not the former one gets a new node id, and
// the reverse record of the old id keeps what it stood for.
func (e *edit) setFile(sort string, o *hearth.Object, checked int64) error {
	x := fileEntry(e.d.link, o)
	x.Checked = checked
	return e.setEntry(sort, x)
}

// setEntry sets the entry of a sort name. The entry may be doubted, when a listing's size or ETag is not sure.
func (e *edit) setEntry(sort string, x record.Entry) error {
	was, ok, err := e.get(sort)
	if err != nil {
		return err
	}
	checked := x.Checked
	if ok && was.Same(&x) {
		if x.Doubted {
			if !was.Doubted || x.Checked > 0 {
				was.Doubted, was.Checked = true, x.Checked
				e.put(sort, was)
			}
			return nil
		}
		dated := was.Date(&x)
		moved := was.Class != x.Class // a lifecycle rule of the bucket may change it
		was.Class = x.Class
		if checked == 0 && !was.Doubted && !dated && !moved {
			return nil // confirmed by a listing, which has its own record
		}
		was.Checked, was.Doubted = checked, false
		e.put(sort, was)
		return nil
	}
	if x.ID, err = e.t.ids.Next(); err != nil {
		return err
	}
	if ok {
		x.Beside = was.Beside
		e.retire(sort, &was)
		if !was.Doubted || was.Checked > 0 { // else no kernel was told to believe it
			e.news(sort, &was, was.ID)
		}
	} else {
		e.newName(sort, &x)
	}
	r := record.Reverse{Parent: e.d.id, Sort: sort}
	e.buf = r.Append(e.buf[:0])
	e.keyBuf = record.IDKey(e.keyBuf[:0], record.KindReverse, x.ID)
	e.w.Set(e.keyBuf, e.buf)
	e.put(sort, x)
	return nil
}

// refine is for a name that was asked for alone, and later than the listing. It takes over only what
// the listing tells more finely, such as fractions of a second.
func (e *edit) refine(sort string, was *record.Entry, o *hearth.Object) {
	if x := fileEntry(e.d.link, o); x.Refines(was) && was.Date(&x) {
		e.put(sort, *was)
	}
}

// setBesideOf does that for a file that was set alone.
func (e *edit) setBesideOf(file string) error {
	_, ok, err := e.get(file + "/")
	if err != nil {
		return err
	}
	return e.setBeside(file, ok)
}

// supersede keeps what a node id stood for, for as long as somebody holds the id.
func (e *edit) supersede(sort string, was *record.Entry) {
	r := record.Reverse{Parent: e.d.id, Sort: sort, Superseded: true, Entry: *was}
	e.buf = r.Append(e.buf[:0])
	e.keyBuf = record.IDKey(e.keyBuf[:0], record.KindReverse, was.ID)
	e.w.Set(e.keyBuf, e.buf)
	e.keyBuf = record.IDKey(e.keyBuf[:0], record.KindSuperseded, was.ID)
	e.w.Set(e.keyBuf, supersededAt(e.t.clock.Now()))
	e.superseded++
}

// retire is supersede for an id that a name loses, but where the id stands for another name by now: its file was renamed (Wrote).
func (e *edit) retire(sort string, was *record.Entry) {
	if r, err := e.t.reverse(was.ID); err != nil || !r.Superseded {
		e.supersede(sort, was)
	}
}

// drop removes a sort name. A directory keeps its id, which belongs to its path.
func (e *edit) drop(sort string) error {
	was, ok, err := e.get(sort)
	if err != nil || !ok {
		return err
	}
	e.news(sort, &was, was.ID)
	if !was.Dir {
		e.retire(sort, &was)
	}
	e.pending[sort] = nil
	e.keyBuf = record.NameKey(e.keyBuf[:0], record.KindEntry, e.d.hash, sort)
	e.w.Delete(e.keyBuf)
	if name := record.MountName(sort, was.Beside); record.IsShortened(name) {
		e.keyBuf = record.NameKey(e.keyBuf[:0], record.KindHashed, e.d.hash, name)
		e.w.Delete(e.keyBuf)
	}
	if was.Dir {
		e.gone = append(e.gone, was.ID)
		e.w.Delete(record.IDKey(nil, record.KindAttr, was.ID))
		return e.setBeside(record.Segment(sort), false)
	}
	return nil
}

// dropAsOf removes a sort name that was not there at that time. A directory stays if a name in it was found
// later, as by a writer. No such name is overlooked: who finds one asks, under the lock of this edit,
// whether its directory has a name (Tree.stands), and asks the origin if not. stays is when the name was
// found, or 0.
func (e *edit) dropAsOf(sort string, at int64) (stays int64, err error) {
	if record.IsDir(sort) {
		names := pageNames
		if found := e.t.foundBelow(e.d.child(record.Segment(sort)), &names); found > at {
			if e.told != 0 { // whoever said so, and those whom it told, are wrong
				e.t.tellDoubt(e.d.place, record.Segment(sort), found)
			}
			return found, nil
		}
	}
	return 0, e.drop(sort)
}

// doubt marks a file's name so that it is asked for again before it is believed.
func (e *edit) doubt(sort string, was record.Entry) {
	e.news(sort, &was, was.ID)
	was.Doubted = true
	was.Checked = e.t.clock.Now()
	e.put(sort, was)
}

func (e *edit) put(sort string, x record.Entry) {
	e.pending[sort] = &x
	e.t.neg.Remove(absence{Dir: e.d.hash, Sort: sort})
	e.buf = x.Append(e.buf[:0])
	e.keyBuf = record.NameKey(e.keyBuf[:0], record.KindEntry, e.d.hash, sort)
	e.w.Set(e.keyBuf, e.buf)
	if len(sort) > record.MaxName-len(record.BesideTag) || strings.IndexByte(sort, '%') >= 0 || strings.IndexByte(sort, 0) >= 0 {
		if name := record.MountName(sort, x.Beside); record.IsShortened(name) {
			e.keyBuf = record.NameKey(e.keyBuf[:0], record.KindHashed, e.d.hash, name)
			e.w.Set(e.keyBuf, []byte(sort))
		}
	}
}

// newName tells subscribers of a new name. A first listing tells only of names in the negative cache: no
// kernel has cached anything about the others.
func (e *edit) newName(sort string, x *record.Entry) {
	if !e.first || e.t.neg.Since(absence{Dir: e.d.hash, Sort: sort}) != 0 {
		e.news(sort, x, 0)
	}
}

// news notes a change: a name in the mount has another meaning now. old is the node id that it had.
func (e *edit) news(sort string, x *record.Entry, old uint64) {
	c := Change{Dir: e.d.id, Old: old}
	if len(e.changes) < maxChanges {
		c.Name = e.d.mountName(e.t, sort, x)
	}
	e.changes = append(e.changes, c)
	e.segments = append(e.segments, record.Segment(sort))
}

// commitLocked commits the changes. The directory's state is set after them: a reader that finds the
// directory whole must find its names.
func (e *edit) commitLocked() error {
	if len(e.changes) > 0 {
		s := *e.d.state.Load()
		if e.state != nil {
			s = *e.state
		}
		s.seen = max(s.seen+1, e.t.clock.Now()*int64(time.Millisecond))
		e.state = &s
	}
	if e.state != nil {
		setDirectory(e.w, e.d.id, e.d.place, e.state)
	}
	e.t.noteClock(e.w) // no other time in this edit is later
	e.t.stats.written.Add(int64(e.w.Len()))
	if err := e.w.Commit(false); err != nil {
		return err
	}
	if e.state != nil {
		e.d.state.Store(e.state)
	}
	return nil
}

// setState replaces the directory's state once the edit is committed.
func (e *edit) setState(s dirState) {
	e.t.refused.add(e.w, int64(s.refused)-int64(e.d.state.Load().refused))
	e.state = &s
}

// change makes one edit of a directory, and tells of its changes. f runs again when the database is
// replaced meanwhile.
func (t *Tree) change(d *directory, f func(*edit) error) error {
	for {
		e, err := t.changeOnce(d, f)
		if err == nil {
			t.after(e)
		}
		if !errors.Is(err, store.ErrRebuilt) || errors.Is(err, hearth.ErrStale) {
			return err
		}
	}
}

func (t *Tree) changeOnce(d *directory, f func(*edit) error) (*edit, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, err := t.beginLocked(d)
	if err == nil {
		err = f(e)
	}
	if err == nil {
		err = e.commitLocked()
	}
	return e, err
}

// after does what follows an edit, under no lock: it tells of the changes and begins sweeps.
func (t *Tree) after(e *edit) {
	t.news.Tell(e.changes)
	t.tell(e)
	if t.holders.Superseded(e.superseded) {
		t.sweepHeld()
	}
	gone := cmp.Or(e.asked, e.told, t.clock.Now())
	for _, id := range e.gone {
		t.behind(func() { t.sweep(id, gone) })
	}
}

// object is the version that a file's entry stands for.
func object(l *link, e *record.Entry, key string) hearth.Object {
	o := hearth.Object{Link: l.Name, Key: key, ETag: e.ETag, Size: e.Size, ModTime: e.ModTime, Exact: e.Exact, Class: e.Class, Version: e.Version}
	if !e.HasVersion {
		o.Version = hearth.VersionOf(l.Identity, key, e.ETag, e.Size)
	}
	return o
}

// fileEntry is the entry of a version, without an id.
func fileEntry(l *link, o *hearth.Object) record.Entry {
	e := record.Entry{Size: o.Size, ModTime: o.ModTime, Exact: o.Exact, ETag: o.ETag, Class: o.Class}
	if l.Identity == "" || hearth.VersionOf(l.Identity, o.Key, o.ETag, o.Size) != o.Version {
		e.Version, e.HasVersion = o.Version, true
	}
	return e
}
