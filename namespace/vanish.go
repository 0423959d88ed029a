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
	parent := strings.TrimSuffix(d.path, "/")
	cut := strings.LastIndexByte(parent, '/') + 1
	id, ok, err := t.idOf(place{link: d.link, path: parent[:cut]})
	if !ok || err != nil {
		return
	}
	in, err := t.dirs.get(t, id)
	if err != nil {
		return
	}
	defer in.release()
	_ = t.change(in, func(e *edit) error { // if this fails, the next listing does it
		e.asked = asked
		sort := parent[cut:] + "/"
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
			more = false
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
				if err := e.drop(string(rows.Key(i)[17:])); err != nil {
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
