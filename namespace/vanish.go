package namespace

import (
	"strings"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// vanished removes a directory from its parent when a listing that began at that time found nothing in
// it: a bucket has no empty directories. The directory stays when a name in it was found later by
// somebody who asked for it alone, as a writer does. It also stays when the directory itself was found
// later.
func (t *Tree) vanished(d *directory, asked int64) {
	in, sort, ok := t.above(d.place)
	if !ok {
		return
	}
	defer in.release()
	_ = t.change(in, func(e *edit) error { // if this fails, the next listing does it
		e.asked = asked
		was, ok, err := e.get(sort)
		if err != nil || !ok || max(t.clock.Trusted(was.Checked), in.listedAt(t, sort)) > asked {
			return err
		}
		if t.holds(d) { // whoever finds a name after this finds the directory too, in an edit after this one
			return nil
		}
		return e.drop(sort)
	})
}

// above is the directory, in use, that a place below a link's root lies in, and the place's sort name there.
func (t *Tree) above(p place) (in *directory, sort string, ok bool) {
	path := strings.TrimSuffix(p.path, "/")
	cut := strings.LastIndexByte(path, '/') + 1
	id, ok, err := t.idOf(place{link: p.link, path: path[:cut]})
	if !ok || err != nil {
		return nil, "", false
	}
	in, err = t.dirs.get(t, id)
	return in, path[cut:] + "/", err == nil
}

// stands reports whether a directory has a name in the one above it. No edit of that one is under way
// meanwhile.
func (t *Tree) stands(p place) bool {
	if p.path == "" {
		return true
	}
	in, sort, ok := t.above(p)
	if !ok {
		return false
	}
	defer in.release()
	in.mu.Lock()
	defer in.mu.Unlock()
	_, ok, err := in.entry(t, sort)
	return ok && err == nil
}

// sweep removes what is known of the inside of a directory that went away at that time: nobody will
// list it. What a kernel holds stays, by its node id. What was found later than that stays too, since
// the directory is back: to ask another node for it again could bring the answer that it is not there,
// as that node may not have heard of it yet.
func (t *Tree) sweep(id uint64, gone int64) {
	d, err := t.dirs.get(t, id)
	if err != nil {
		return
	}
	defer d.release()
	var rows store.Rows
	lower := record.NameKey(nil, record.KindEntry, d.hash, "")
	for more := true; more && t.ctx.Err() == nil; {
		err := t.change(d, func(e *edit) error {
			more, e.told = false, gone
			if d.running.Load() != nil {
				return nil // it is asked for: perhaps it is back
			}
			if err := t.db.Scan(&rows, lower, record.DirectoryEnd(d.hash), pageNames); err != nil {
				return err
			}
			for i := range rows.Len() {
				if x, err := record.ParseEntry(rows.Value(i)); err == nil && t.clock.Trusted(x.Checked) > gone {
					continue
				}
				if _, err := e.dropAsOf(string(rows.Key(i)[17:]), gone); err != nil {
					return err
				}
			}
			if more = rows.Len() == pageNames; more {
				lower = append(append(lower[:0], rows.Key(rows.Len()-1)...), 0)
			}
			if s := *d.state.Load(); s.listed != 0 || s.refused != 0 {
				s.listed, s.refused = 0, 0
				e.setState(s)
			}
			return nil
		})
		if err != nil {
			return
		}
	}
}
