package namespace

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

func TestWhatIsSetOfANode(t *testing.T) {
	// What was set of a file stays as long as it is this version: over a listing, a question and a restart. It goes with the version to
	// the id that its name gets, and is dropped with an id that nobody holds. What was set of a directory goes with its name.
	w := open(t, func(o *Options) { o.Dir, o.fs = "names", vfs.NewMem() })
	w.b.put("d/f", "A", 5)
	w.b.put("e/g", "A", 5)
	at := time.Unix(1700000000, 123)
	has := func(what string, id uint64, want Attr) {
		t.Helper()
		if a, ok := w.tree.Attr(id); a != want || ok != (want != Attr{}) {
			t.Errorf("%s: %+v, %t", what, a, ok)
		}
	}
	f, d := w.resolve("/d/f").ID, w.resolve("/d").ID
	has("nothing was set", f, Attr{})
	file, dir := Attr{Mode: 0o600, UID: 7, GID: 1 << 31, ModTime: at, ATime: at.Add(-time.Hour)}, Attr{Mode: 0o700}
	for id, a := range map[uint64]Attr{f: file, d: dir} {
		if err := w.tree.SetAttr(id, a); err != nil {
			t.Fatal(err)
		}
	}
	w.names("/d")
	w.clock.add(time.Hour)
	w.names("/d")
	w.reopen()
	if w.resolve("/d/f").ID != f {
		t.Fatal("the file has another id")
	}
	has("after a restart", f, file)
	has("of a directory", d, dir)
	has("of another", w.resolve("/e").ID, Attr{})

	end := w.tree.Hold(func(id uint64) bool { return id == 1<<40 })
	o := w.b.put("d/f", "B", 6)
	if err := w.tree.SetAttr(1<<40, dir); !errors.Is(err, hearth.ErrStale) {
		t.Errorf("of an unknown node: %v", err)
	}
	w.tree.Wrote(t.Context(), "/", "d/f", &o, 1<<40)
	now := w.resolve("/d/f").ID
	has("another version", now, Attr{})
	later := Attr{Mode: 0o640, ModTime: at, ATime: at}
	if err := w.tree.SetAttr(1<<40, later); err != nil { // of the writer's id, and so of the name's
		t.Fatal(err)
	}
	has("by the writer's id", now, later)
	w.tree.Wrote(t.Context(), "/", "d/moved", &o, now) // as a rename does
	has("under another name", w.resolve("/d/moved").ID, later)

	w.b.remove("d/f")
	w.b.remove("e/g")
	w.clock.add(time.Hour)
	w.tree.Wrote(t.Context(), "/", "d/f", nil, 0)
	end()
	w.clock.add(2 * grace)
	if err := w.tree.sweepSuperseded(w.tree.clock.Now()); err != nil {
		t.Fatal(err)
	}
	has("of an id that nobody holds", 1<<40, Attr{})
	in, err := w.tree.dirs.get(w.tree, rootID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.tree.change(in, func(e *edit) error { return e.drop("d/") }); err != nil {
		t.Error(err)
	}
	in.release()
	has("of a directory that went", d, Attr{})
	w.settle()
}

func TestAttrRecords(t *testing.T) {
	// A record reads as it was written; one that is cut off is none.
	for _, a := range []Attr{{}, {Mode: 0o7777, UID: 1<<32 - 1, GID: 3, ModTime: time.Unix(-1, 999999999), ATime: time.Unix(1<<40, 0)}} {
		b := a.Append(nil)
		got, err := record.ParseAttr(b)
		if err != nil || got.Mode != a.Mode || got.UID != a.UID || got.GID != a.GID || !got.ModTime.Equal(a.ModTime) || !got.ATime.Equal(a.ATime) || got.ModTime.IsZero() != a.ModTime.IsZero() {
			t.Errorf("%+v became %+v, %v", a, got, err)
		}
		for i := range b {
			if _, err := record.ParseAttr(b[:i]); err == nil {
				t.Errorf("%d bytes of %d are a record", i, len(b))
			}
		}
	}
}
