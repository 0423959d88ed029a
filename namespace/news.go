package namespace

import (
	"encoding/binary"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/held"
	"github.com/hearthfs/hearth/namespace/news"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// maxChanges of one edit that are told by name; what is more merges into
// "directory changed", and kernels learn of it when their timeouts end.
const maxChanges = 1024

// Change says that a name means another thing than before.
type Change = news.Change

// Events are called by a Tree; each may be nil, none may block or call the Tree.
type Events = news.Events

// Subscribe has f called for each change, under no lock of the tree's. f must not
// block. It may still be called once more while cancel runs.
func (t *Tree) Subscribe(f func(Change)) (cancel func()) { return t.news.Add(f) }

// Forget says that a version was found gone: its name is not believed until the
// origin was asked again, which begins now.
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
		n, err := t.lookup(t.ctx, d, record.Meaning{Segment: sort}) // whoever looks it up next hears of an error
		if err == nil && listed && d.headed.Load() >= now && !n.Dir && n.Object.Version != o.Version {
			t.suspect(d.link, o, &n.Object)
		}
	}) {
		d.release()
	}
}

// Hold keeps what superseded node ids stood for as long as holds says that their
// holder has them, until end is called. holds must not block or call the Tree.
func (t *Tree) Hold(holds func(id uint64) bool) (end func()) {
	drop := t.holders.Add(holds)
	return func() {
		drop()
		t.sweepHeld()
	}
}

// sweepHeld drops superseded ids that nobody holds. At worst they stay until the
// next sweep.
func (t *Tree) sweepHeld() {
	t.behind(func() { _ = t.sweepSuperseded(t.clock.Now() - held.Grace.Milliseconds()) })
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
