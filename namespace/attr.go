package namespace

import (
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// Attr is what somebody has set of a file or directory on this node. The bucket has no place for it, and
// other nodes do not hear of it. A file has it as long as it is this version, a directory as long as it
// stands.
type Attr = record.Attr

// Attr returns what was set of a node. It asks nobody.
func (t *Tree) Attr(id uint64) (a Attr, ok bool) {
	if !t.attrs.Load() {
		return a, false
	}
	var keyBuf [16]byte
	var valueBuf [64]byte
	v, ok, err := t.db.Get(valueBuf[:0], record.IDKey(keyBuf[:0], record.KindAttr, id))
	if err != nil || !ok {
		return a, false
	}
	a, err = record.ParseAttr(v)
	return a, err == nil
}

// SetAttr keeps what somebody sets of a node. If its name has that version by another id now, it is set of
// that one, too. The error hearth.ErrStale means that the tree does not know the node.
func (t *Tree) SetAttr(id uint64, a Attr) error {
	r, err := t.reverse(id)
	if err != nil {
		return err
	}
	if !r.Superseded {
		w := t.db.Edit()
		t.setAttr(w, id, &a)
		return w.Commit(false)
	}
	d, err := t.dirs.get(t, r.Parent)
	if err != nil {
		return err
	}
	defer d.release()
	return t.change(d, func(e *edit) error {
		t.setAttr(e.w, id, &a)
		now, ok, err := e.get(r.Sort)
		if ok && now.Same(&r.Entry) {
			t.setAttr(e.w, now.ID, &a)
		}
		return err
	})
}

func (t *Tree) setAttr(w *store.Edit, id uint64, a *Attr) {
	w.Set(record.IDKey(nil, record.KindAttr, id), a.Append(nil))
	t.attrs.Store(true) // before the commit: whoever finds it false has asked before
}

// loadAttrs looks whether anything was set: most nodes are spared the look for each file.
func (t *Tree) loadAttrs() error {
	var rows store.Rows
	err := t.db.Scan(&rows, []byte{record.KindAttr}, []byte{record.KindAttr + 1}, 1)
	t.attrs.Store(rows.Len() > 0)
	return err
}
