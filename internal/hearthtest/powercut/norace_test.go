//go:build !race

package powercut

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// must ends a scenario on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryOperationIsSeen(t *testing.T) {
	// A scenario does each kind of operation, by package os and by bare calls: the trace has all of them, in order, with their bytes.
	tr := Record(t, func(t *testing.T, dir string, mark func(string)) {
		name := filepath.Join(dir, "d", "a")
		must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
		must(t, os.WriteFile(name, []byte("first"), 0o600))
		mark("written")
		f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND, 0)
		must(t, err)
		_, err = f.WriteString("more")
		must(t, err)
		fd := int(f.Fd())
		must(t, unix.Fdatasync(fd))
		must(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 2))
		must(t, f.Truncate(7))
		must(t, f.Close())
		g, err := os.OpenFile(name, os.O_RDWR, 0)
		must(t, err)
		_, err = unix.Pwritev2(int(g.Fd()), [][]byte{[]byte("x"), []byte("yz")}, 4096, 0)
		must(t, err)
		_, err = g.WriteAt([]byte("w"), 9)
		must(t, err)
		must(t, os.Rename(name, filepath.Join(dir, "b")))
		must(t, g.Sync())
		must(t, os.Remove(filepath.Join(dir, "b")))
		d, err := os.Open(dir)
		must(t, err)
		must(t, d.Sync())
		must(t, unix.Syncfs(int(d.Fd())))
	})
	want := []Op{
		{Kind: Mkdir, Name: "d"}, {Kind: Create, Name: "d/a"}, {Kind: Write, Name: "d/a", Data: []byte("first")}, {Kind: Mark, Name: "written"},
		{Kind: Write, Name: "d/a", Off: 5, Data: []byte("more")}, {Kind: Sync, Name: "d/a"}, {Kind: Punch, Name: "d/a", N: 2}, {Kind: Truncate, Name: "d/a", N: 7},
		{Kind: Write, Name: "d/a", Off: 4096, Data: []byte("xyz")}, {Kind: Write, Name: "d/a", Off: 9, Data: []byte("w")},
		{Kind: Rename, Name: "d/a", To: "b"}, {Kind: Sync, Name: "b"}, {Kind: Remove, Name: "b"}, {Kind: Sync, Name: "."}, {Kind: SyncAll},
	}
	same := func(a, b Op) bool {
		return a.Kind == b.Kind && a.Name == b.Name && a.To == b.To && a.Off == b.Off && a.N == b.N && bytes.Equal(a.Data, b.Data)
	}
	if !slices.EqualFunc(tr.Ops, want, same) {
		t.Fatalf("seen:\n%+v\nwant:\n%+v", tr.Ops, want)
	}
}

// outcomes are the contents that a file may have after each cut behind a mark. "-" means that there
// is no file.
func outcomes(t *testing.T, tr *Trace, name, mark string) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	tr.Every(t, 5000, func(t *testing.T, c Cut) {
		text, err := os.ReadFile(filepath.Join(c.Dir, name))
		if err != nil {
			text = []byte("-")
		}
		if c.Passed(mark) {
			seen[string(bytes.Trim(text, "\x00"))] = true
		}
	})
	return seen
}

func holds(t *testing.T, seen map[string]bool, want ...string) {
	t.Helper()
	for _, w := range want {
		if !seen[w] {
			t.Errorf("%q is no outcome", w)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("outcomes %q, want %q", slices.Sorted(maps.Keys(seen)), want)
	}
}

// replaced writes a file twice, the second time beside it and renamed, with the wanted syncs.
func replaced(t *testing.T, file, dir bool) *Trace {
	return Record(t, func(t *testing.T, at string, mark func(string)) {
		name := filepath.Join(at, "f")
		must(t, os.WriteFile(name, []byte("old"), 0o600))
		d, err := os.Open(at)
		must(t, err)
		must(t, unix.Syncfs(int(d.Fd())))
		f, err := os.Create(name + ".new")
		must(t, err)
		_, err = f.WriteString("new")
		must(t, err)
		if file {
			must(t, f.Sync())
		}
		must(t, os.Rename(name+".new", name))
		if dir {
			must(t, d.Sync())
		}
		mark("replaced")
	})
}

func TestARenameIsWorthWhatWasSynced(t *testing.T) {
	// A file is replaced by a rename. With both syncs it is the new one. Without the directory's it
	// is the old one or the new one. Without the file's it may be empty.
	t.Run("both", func(t *testing.T) { holds(t, outcomes(t, replaced(t, true, true), "f", "replaced"), "new") })
	t.Run("file", func(t *testing.T) { holds(t, outcomes(t, replaced(t, true, false), "f", "replaced"), "old", "new") })
	t.Run("directory", func(t *testing.T) { holds(t, outcomes(t, replaced(t, false, true), "f", "replaced"), "", "new") })
	t.Run("none", func(t *testing.T) {
		holds(t, outcomes(t, replaced(t, false, false), "f", "replaced"), "old", "", "new")
	})
}

func TestPagesComeInAnyOrder(t *testing.T) {
	// Two pages are written, the first of them twice, and nothing is synced after the first write.
	// Each page has any of its states, whatever the other has.
	tr := Record(t, func(t *testing.T, dir string, mark func(string)) {
		f, err := os.Create(filepath.Join(dir, "f"))
		must(t, err)
		_, err = f.WriteAt(append(bytes.Repeat([]byte("a"), pageSize), 'b'), 0)
		must(t, err)
		d, err := os.Open(dir)
		must(t, err)
		must(t, unix.Fdatasync(int(f.Fd())))
		must(t, d.Sync())
		_, err = f.WriteAt([]byte{'c'}, 0)
		must(t, err)
		_, err = f.WriteAt([]byte{'d'}, pageSize)
		must(t, err)
		mark("written")
	})
	seen := map[string]bool{}
	tr.Every(t, 5000, func(t *testing.T, c Cut) {
		text, err := os.ReadFile(filepath.Join(c.Dir, "f"))
		if c.Passed("written") && err == nil && len(text) == pageSize+1 {
			seen[string([]byte{text[0], text[pageSize]})] = true
		} else if c.Passed("written") {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	})
	holds(t, seen, "ab", "cb", "ad", "cd")
}

func TestPunchedAndRemovedMayComeBack(t *testing.T) {
	// A synced page is punched, a synced file is removed. Both may be back, until that was synced,
	// too.
	tr := Record(t, func(t *testing.T, dir string, mark func(string)) {
		must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("page"), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, "g"), []byte("gone"), 0o600))
		d, err := os.Open(dir)
		must(t, err)
		must(t, unix.Syncfs(int(d.Fd())))
		f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0)
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageSize))
		must(t, os.Remove(filepath.Join(dir, "g")))
		mark("done")
		must(t, f.Sync())
		must(t, d.Sync())
		mark("synced")
	})
	holds(t, outcomes(t, tr, "f", "synced"), "")
	holds(t, outcomes(t, tr, "g", "synced"), "-")
	holds(t, outcomes(t, tr, "f", "done"), "page", "")
	holds(t, outcomes(t, tr, "g", "done"), "gone", "-")
}

func TestNoCutBeforeItsMark(t *testing.T) {
	// A scenario prepares something and goes on. From its mark on each cut is made, and none before.
	tr := Record(t, func(t *testing.T, dir string, mark func(string)) {
		must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("first"), 0o600))
		mark("prepared")
		must(t, os.WriteFile(filepath.Join(dir, "g"), []byte("more"), 0o600))
	})
	all, behind := 0, 0
	tr.Cuts(t, 1, 1, func(_ *testing.T, c Cut) {
		if c.Passed("prepared") {
			all++
		}
	})
	tr.From("prepared").Cuts(t, 1, 1, func(t *testing.T, c Cut) {
		if behind++; !c.Passed("prepared") {
			t.Errorf("%v is made before the mark", c)
		}
	})
	if all == 0 || behind != all {
		t.Errorf("%d cuts behind the mark of %d", behind, all)
	}
}
