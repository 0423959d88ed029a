package warmup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

func TestADirectoryThatCannotBeListed(t *testing.T) {
	// The listing of one directory fails for good. It is counted as failed and named, and
	// all else is loaded. A job for names alone does the same.
	w := newWorld(t)
	w.fill()
	w.bucket.unlist = func(prefix string) error {
		if prefix == "d3/" {
			return errors.New("access denied")
		}
		return nil
	}
	w.open()
	v := w.over(w.start("/"))
	rest := w.bucket.total()
	rest.Add(Tally{Files: -41 + 1, Bytes: -17<<20 - 1000*40*39/2}) // the directory counts as one
	if v.State != Partly || v.Counters.Failed != (Tally{Files: 1, Bytes: 0}) || v.Counters.Sum() != rest || v.Plan.Total != rest ||
		len(v.Samples) != 1 || v.Samples[0].Path != "/d3/" || !strings.Contains(v.Samples[0].Cause, "access denied") {
		t.Errorf("%+v, want %+v", v, rest)
	}
	r, err := w.engine.Submit(Request{Targets: []string{"/"}, MetadataOnly: true}, nil, false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	if v := w.over(r.ID); v.State != Partly || v.Counters.Failed.Files != 1 || len(v.Samples) != 1 || v.Samples[0].Path != "/d3/" {
		t.Errorf("names alone: %+v", v)
	}
}

func TestNothingCanBeListed(t *testing.T) {
	// A target that cannot be listed at all fails its job, and so do 64 directories in a
	// row.
	w := newWorld(t)
	for i := range 70 {
		w.bucket.put(fmt.Sprintf("d%02d/f", i), "e", 10)
	}
	w.bucket.unlist = func(prefix string) error {
		if prefix != "" {
			return errors.New("nobody answers")
		}
		return nil
	}
	w.open()
	for _, q := range []Request{{Targets: []string{"/"}}, {Targets: []string{"/d00"}}, {Targets: []string{"/"}, MetadataOnly: true}} {
		r, err := w.engine.Submit(q, nil, false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		if v := w.over(r.ID); v.State != Failed || !strings.Contains(v.Error, "nobody answers") {
			t.Errorf("%+v: %+v", q, v)
		}
	}
}

// fakeListing is Names of one tree. It has the names in each directory; those of directories
// end in "/".
type fakeListing map[uint64][]string

func (l fakeListing) entry(dir uint64, sort string) Entry {
	name, isDir := strings.CutSuffix(sort, "/")
	return Entry{ID: dir*10 + uint64(slices.Index(l[dir], sort)+1), Dir: isDir, Name: name, Object: hearth.Object{Key: sort}}
}

// Find is Names'.
func (l fakeListing) Find(context.Context, string) ([]Entry, error) {
	return []Entry{{ID: 1, Dir: true}}, nil
}

// ReadSince is Names'.
func (l fakeListing) ReadSince(_ context.Context, dir uint64, _ int64, after string, each func(Entry) bool) error {
	for _, sort := range l[dir] {
		if sort > after && !each(l.entry(dir, sort)) {
			return nil
		}
	}
	return nil
}

// Lookup is Names'.
func (l fakeListing) Lookup(_ context.Context, dir uint64, name string) (Entry, error) {
	if !slices.Contains(l[dir], name) {
		return Entry{}, fs.ErrNotExist
	}
	return l.entry(dir, name), nil
}

// Hidden is Names'.
func (l fakeListing) Hidden(uint64) (int64, error) { return 0, nil }

// Now is Names'.
func (l fakeListing) Now() int64 { return 0 }

func TestAWalkGoesOnWhereNamesChangedTheirKind(t *testing.T) {
	// A walk goes on behind a file that has become a directory. It also goes on behind a
	// file whose directory has become a file or has vanished. Names that sort between the
	// two are neither skipped nor passed on twice. A file that was counted in part is
	// reported as vanished.
	part := &Part{Blocks: 3}
	for _, c := range []struct {
		now  fakeListing
		at   string
		part *Part
		want string
	}{
		{fakeListing{1: {"a", "x", "x-1", "y"}}, "x", nil, "x-1 y"},
		{fakeListing{1: {"a", "x-1", "x/", "y"}, 13: {"in"}}, "x", nil, "x-1 x/in y"},
		{fakeListing{1: {"a", "x-1", "x/", "y"}, 13: {"in"}}, "x", part, "x(gone) x-1 x/in y"},
		{fakeListing{1: {"a", "x", "x-1", "y"}}, "x/in", nil, "y"},
		{fakeListing{1: {"a", "x", "x-1", "y"}}, "x/in", part, "x/in(gone) y"},
		{fakeListing{1: {"a", "x-1", "x/", "y"}, 13: {"a", "in", "z"}}, "x/in", part, "x/in(part) x/z y"},
		{fakeListing{1: {"a", "x-1", "x/", "y"}, 13: {"a", "in", "z"}}, "x/", nil, "y"},
		{fakeListing{1: {"a", "x-1", "y"}}, "x/y/in", nil, "y"},
	} {
		var got []string
		w := walk{Options: &Options{Names: c.now, Explain: error.Error}, goesOn: true, breathe: func(context.Context, time.Duration) {}}
		w.targets = func(_ Cursor, each func(string, Cursor, Cursor) error) error {
			return each("/", Cursor{}, Cursor{Target: 1})
		}
		w.each = func(r ref) error {
			text := r.at.Path
			switch {
			case r.part != nil && r.absent != "":
				text += "(gone)"
			case r.part != nil:
				text += "(part)"
			}
			got = append(got, text)
			return nil
		}
		if err := w.from(t.Context(), Cursor{Root: dirRoot, Path: c.at, File: c.part}); err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%v behind %s: %q, want %q, %v", c.now, c.at, got, c.want, err)
		}
	}
}

// renamed is Names whose directories get new ids after each read, as if the names were
// collected anew. The ids of before are not known any more.
type renamed struct {
	fakeListing
	ids map[uint64]string // all that there were
	now map[string]uint64
}

func (l *renamed) id(path string) uint64 {
	if l.now[path] == 0 {
		id := uint64(len(l.ids) + 1)
		l.ids[id], l.now[path] = path, id
	}
	return l.now[path]
}

// Find is Names'.
func (l *renamed) Find(_ context.Context, target string) ([]Entry, error) {
	return []Entry{{ID: l.id(target), Dir: true}}, nil
}

// ReadSince is Names'.
func (l *renamed) ReadSince(_ context.Context, dir uint64, _ int64, after string, each func(Entry) bool) error {
	path := l.ids[dir]
	if l.now[path] != dir {
		return fmt.Errorf("node id %d: %w", dir, hearth.ErrStale)
	}
	clear(l.now)
	for i := range 3 * pageNames / 2 {
		n := Entry{Name: fmt.Sprintf("%04d", i)}
		if i%pageNames == 0 && len(path) < len("/0000/0000/") {
			n.Dir, n.ID = true, l.id(path+n.Name+"/")
		}
		if n.Name > strings.TrimSuffix(after, "/") && !each(n) {
			break
		}
	}
	return nil
}

func TestAWalkFindsDirectoriesAgainWhoseNamesWereCollectedAnew(t *testing.T) {
	// Each listing makes the ids of all directories before it unknown. A walk passes on
	// each file once all the same, and no directory is left out.
	got := map[string]int{}
	l := &renamed{ids: map[uint64]string{}, now: map[string]uint64{}}
	w := walk{Options: &Options{Names: l, Explain: error.Error}, breathe: func(context.Context, time.Duration) {}}
	w.targets = func(_ Cursor, each func(string, Cursor, Cursor) error) error {
		return each("/", Cursor{}, Cursor{Target: 1})
	}
	w.each = func(r ref) error { got[r.at.Path+r.absent]++; return nil }
	if err := w.from(t.Context(), Cursor{}); err != nil {
		t.Fatal(err)
	}
	const files, dirs = 3 * pageNames / 2, 2 // of each of the upper directories
	if want := (files-dirs)*(1+dirs) + files*dirs*dirs; len(got) != want {
		t.Errorf("%d files passed on, want %d", len(got), want)
	}
	for path, n := range got {
		if n != 1 || strings.Contains(path, "listed") {
			t.Errorf("%s was passed on %d times", path, n)
		}
	}
}
