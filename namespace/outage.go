package namespace

import (
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// Knows reports whether names of a link are known from before, of this very
// origin and prefix, so that they can go on while the origin cannot be asked. The
// link need not be in the tree.
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

// Asked tells the tree what somebody else who asked a link's origin found: err
// says why it cannot be asked now, nil that it can.
func (t *Tree) Asked(name string, err error) {
	l := t.links.Load().named(name)
	switch {
	case l == nil:
	case err == nil:
		t.answered(l)
	default:
		t.failed(l, t.clock.Now(), err) // asked again soon, so what is out of date by then passes
	}
}
