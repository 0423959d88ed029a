package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

const (
	keyRefused = "mrefused"
	keyClock   = "mclock"
)

func (t *Tree) checkFormat() error {
	v, ok, err := t.db.Get(nil, []byte(record.FormatKey))
	switch {
	case err != nil:
		return err
	case ok && record.Newer(v):
		return fmt.Errorf("the names in %s: %w", t.o.Dir, store.ErrNewer)
	case ok:
		return nil
	}
	e := t.db.Edit()
	e.Set([]byte(record.FormatKey), []byte{record.Format})
	return e.Commit(false)
}

// loadClock compares the clock with the last time that was written down.
func (t *Tree) loadClock() error {
	v, ok, err := t.db.Get(nil, []byte(keyClock))
	if err == nil && ok && len(v) == 8 {
		t.clock.Distrust(int64(binary.BigEndian.Uint64(v)))
	}
	return err
}

// noteClock writes the present time down with w.
func (t *Tree) noteClock(w *store.Edit) {
	w.Set([]byte(keyClock), binary.BigEndian.AppendUint64(nil, uint64(t.clock.Now())))
}

// entry is what the database says of a sort name of the directory.
func (d *directory) entry(t *Tree, sort string) (record.Entry, bool, error) {
	var keyBuf, valueBuf [128]byte
	v, ok, err := t.db.Get(valueBuf[:0], record.NameKey(keyBuf[:0], record.KindEntry, d.hash, sort))
	if err != nil || !ok {
		return record.Entry{}, false, err
	}
	e, err := record.ParseEntry(v)
	if err != nil {
		return record.Entry{}, false, nil // a record that cannot be read is looked up anew
	}
	return e, true, nil
}

func (t *Tree) reverse(id uint64) (record.Reverse, error) {
	if id == rootID {
		return record.Reverse{Dir: true}, nil
	}
	var keyBuf [16]byte
	var valueBuf [128]byte
	v, ok, err := t.db.Get(valueBuf[:0], record.IDKey(keyBuf[:0], record.KindReverse, id))
	if err != nil {
		return record.Reverse{}, err
	}
	r, err := record.ParseReverse(v)
	if !ok || err != nil {
		return record.Reverse{}, staleID(id)
	}
	return r, nil
}

// directoryRecord is the node id and the state of a directory. It returns false when the directory has
// no record.
func (t *Tree) directoryRecord(hash [16]byte) (uint64, dirState, bool, error) {
	var keyBuf, valueBuf [64]byte
	v, ok, err := t.db.Get(valueBuf[:0], record.NameKey(keyBuf[:0], record.KindDirectory, hash, ""))
	if err != nil || !ok {
		return 0, dirState{}, false, err
	}
	r, err := record.ParseDirectory(v)
	if err != nil {
		return 0, dirState{}, false, nil // as if there were none
	}
	return r.ID, dirState{listed: r.Listed, took: r.Took, seen: r.Seen, refused: r.Refused}, true, nil
}

// setDirectory writes a directory's records.
func setDirectory(w *store.Edit, id uint64, p place, s *dirState) {
	var buf [256]byte
	v := record.Directory{ID: id, Listed: s.listed, Took: s.took, Seen: s.seen, Refused: s.refused}
	var keyBuf [32]byte
	w.Set(record.NameKey(keyBuf[:0], record.KindDirectory, p.hash(), ""), v.Append(buf[:0]))
	if id == rootID {
		return // the links say which directory the root is
	}
	r := record.Reverse{Dir: true, Path: p.path}
	if p.link != nil {
		r.Link = "=" + p.link.Name
	}
	w.Set(record.IDKey(keyBuf[:0], record.KindReverse, id), r.Append(buf[:0]))
}

// idOf is the node id of a directory. It returns false when the directory has none yet.
func (t *Tree) idOf(p place) (uint64, bool, error) {
	if p == t.links.Load().root {
		return rootID, true, nil
	}
	id, _, ok, err := t.directoryRecord(p.hash())
	return id, ok && id != rootID, err // it may have been the root with other links
}

// placeID is the node id of a directory. A directory without one gets one now.
func (t *Tree) placeID(p place) (uint64, error) {
	if id, ok, err := t.idOf(p); ok || err != nil {
		return id, err
	}
	// Two callers that find the same directory must not give it two ids.
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	for {
		w := t.db.Edit()
		id, ok, err := t.idOf(p)
		if ok || err != nil {
			return id, err
		}
		if in, ok := t.dirs.ids.Load(p.hash()); ok && in != uint64(rootID) {
			id = in.(uint64) // its record is gone with a former database
		} else if id, err = t.ids.Next(); err != nil {
			return 0, err
		}
		setDirectory(w, id, p, &dirState{seen: t.clock.Now() * int64(time.Millisecond)})
		if err := w.Commit(false); !errors.Is(err, store.ErrRebuilt) {
			return id, err
		}
	}
}

// claim adopts a directory whose database was replaced into the present database. Its id stays, and
// nothing is known of its names. The directory's lock is held.
func (t *Tree) claim(d *directory, w *store.Edit) error {
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	was := d.state.Load()
	s := &dirState{seen: was.seen, failed: was.failed, age: w.Generation()}
	id, ok, err := t.idOf(d.place)
	switch {
	case err != nil:
		return err
	case ok && id != d.id:
		t.dirs.drop(d.id)
		return fmt.Errorf("%w: %w", store.ErrRebuilt, staleID(d.id)) // it got another id while it was not in memory
	case !ok:
		setDirectory(w, d.id, d.place, s)
		if err := w.Commit(false); err != nil {
			return err
		}
	}
	d.state.Store(s)
	return nil
}

// refusals counts keys that cannot be shown, over all listings kept.
type refusals struct{ total atomic.Int64 }

func (r *refusals) load(db *store.Store) error {
	v, ok, err := db.Get(nil, []byte(keyRefused))
	if err == nil && ok {
		n, _ := binary.Uvarint(v)
		r.total.Store(int64(n))
	}
	return err
}

// add adds n, which may be negative, and writes the total down with w.
func (r *refusals) add(w *store.Edit, n int64) {
	if n != 0 {
		w.Set([]byte(keyRefused), binary.AppendUvarint(nil, uint64(max(0, r.total.Add(n)))))
	}
}

// Knows reports whether names of a link are known from an earlier start, of the same origin and prefix,
// so that they can be served while the origin is unreachable. The link need not be in the tree.
func (t *Tree) Knows(l Link) (bool, error) {
	if !(&link{Link: l}).believes() {
		return false, nil
	}
	hash := place{link: &link{Link: l}}.hash()
	var rows store.Rows
	err := t.db.Scan(&rows, record.NameKey(nil, record.KindEntry, hash, ""), record.DirectoryEnd(hash), 1)
	if err != nil || rows.Len() == 0 {
		return false, err
	}
	_, err = record.ParseEntry(rows.Value(0))
	return err == nil, nil
}

// Asked tells the tree what another user of a link's origin found. err says why the origin is
// unreachable; nil says that it answers.
func (t *Tree) Asked(name string, err error) {
	l := t.links.Load().named(name)
	switch {
	case l == nil:
	case err == nil:
		t.well(l)
	default:
		t.stats.originErrors.Add(1)
		t.ill(l, err)
	}
}
