package disk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
)

// drafting is a file of drafts that is written as package draft writes: Room is asked first.
type drafting struct {
	*rig
	dir  string
	file *os.File
}

func newDrafting(r *rig) *drafting {
	r.t.Helper()
	if err := r.MarkDrafts(); err != nil {
		r.t.Fatal(err)
	}
	d := &drafting{rig: r, dir: r.DraftDirs()[0]}
	d.must(os.MkdirAll(d.dir, 0o700))
	f, err := os.Create(filepath.Join(d.dir, "draft"))
	d.must(err)
	d.file = f
	r.t.Cleanup(func() { _ = f.Close() })
	return d
}

func (d *drafting) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// write writes a MiB at an offset, unless there is no room.
func (d *drafting) write(off int64) error {
	d.t.Helper()
	p := make([]byte, 1<<20)
	if err := d.Room(d.dir, int64(len(p))); err != nil {
		return err
	}
	_, err := d.file.WriteAt(p, off)
	d.must(err)
	return nil
}

func (d *drafting) allocated() int64 {
	var st unix.Stat_t
	d.must(unix.Fstat(int(d.file.Fd()), &st))
	return st.Blocks * 512
}

func TestDraftsDriveBlocksOutAndEndAtTheBudget(t *testing.T) {
	// A directory is full of blocks, and drafts are written as fast as they can be: they are not refused while blocks can give way,
	// blocks and drafts together are never far beyond the budget, what is written over itself needs no room, and at the budget
	// there is ENOSPC.
	const budget = 64 << 20
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: budget}}})
	for i := range 700 {
		if err := r.keep(t.Context(), small(i, 100_000)); err != nil && !isFull(err) {
			t.Fatal(err)
		}
	}
	r.flush()
	if used := r.area(0).used(); used < budget*9/10 {
		t.Fatalf("only %d of blocks", used)
	}
	d := newDrafting(r)
	for off := int64(0); off < budget-4<<20; off += 1 << 20 {
		if err := d.write(off); err != nil {
			t.Fatalf("after %d MiB, with %d bytes of blocks: %v", off>>20, r.area(0).used(), err)
		}
		if sum := d.allocated() + r.area(0).used(); sum > budget+draftsAhead+2<<20 {
			t.Fatalf("after %d MiB %d bytes are used of %d", off>>20, sum, budget)
		}
	}
	for range 100 {
		d.must(d.write(0))
	}
	var err error
	for off := int64(budget) - 4<<20; err == nil && off < 2*budget; off += 1 << 20 {
		err = d.write(off)
	}
	if !errors.Is(err, syscall.ENOSPC) || d.allocated() > budget {
		t.Errorf("%v at %d bytes of %d", err, d.allocated(), budget)
	}
	d.must(d.file.Truncate(0))
	d.must(d.write(0))
	if err := r.Room(filepath.Join(t.TempDir(), DraftsDir), 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("room in a directory that is not ours: %v", err)
	}
}

func TestDraftsLeaveTheFloor(t *testing.T) {
	// Others fill the file system: drafts get what is above the floor, although the budget has more.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 64 << 20, Floor: 1 << 30}}})
	r.free.Store(1<<30 + 8<<20)
	r.until("the limit is known", func() bool { return r.Stats().Dirs[0].Limit < 9<<20 })
	d := newDrafting(r)
	if err := r.Room(d.dir, 16<<20); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("16 MiB where 8 are free: %v", err)
	}
	d.must(r.Room(d.dir, 4<<20))
}

// formatAt is the format that a directory's label says.
func formatAt(t *testing.T, dir string) int {
	t.Helper()
	l, err := ReadLabel(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l.Format
}

func TestDirectoriesWithDraftsAreMarked(t *testing.T) {
	// A directory is of a format that earlier versions refuse from before the first draft can come until none is left: also over a
	// kill, and where its label was lost and a repair made it anew. Its ids stay. Then it is of their format again.
	dir := t.TempDir()
	open := func() *Store {
		t.Helper()
		s, err := Open(Options{Pool: newRig(t, Options{}).pool, Dirs: []DirOptions{{Path: dir}}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	shut := func(s *Store) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	is := func(when string, want int) {
		t.Helper()
		if got := formatAt(t, dir); got != want {
			t.Errorf("%s: format %d, not %d", when, got, want)
		}
	}
	file := filepath.Join(dir, DraftsDir, "one.data")
	s := open()
	is("new", plainFormat)
	before, _ := ReadLabel(dir)
	if err := s.MarkDrafts(); err != nil || s.Format() != LabelFormat {
		t.Errorf("%v, format %d", err, s.Format())
	}
	is("before the first draft", LabelFormat)
	shut(s)
	is("none was made", plainFormat)

	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("draft"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s = open()
	is("one was left", LabelFormat)
	shut(s)
	is("and still is", LabelFormat)
	if after, err := ReadLabel(dir); err != nil || after.Node != before.Node || after.Directory != before.Directory {
		t.Errorf("%+v, before %+v, %v", after, before, err)
	}

	if err := os.WriteFile(filepath.Join(dir, LabelFile), []byte("rotten"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckLabel(dir, true, &check.Run{Repair: true, Found: func(check.Finding) {}}); err != nil {
		t.Error(err)
	}
	is("made anew", LabelFormat)
	if text, err := os.ReadFile(file); string(text) != "draft" {
		t.Errorf("the draft is %q, %v", text, err)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s = open() // as after a kill: the mark stands, and no draft is left
	is("none is left", plainFormat)
	if s.Format() != plainFormat {
		t.Errorf("format %d", s.Format())
	}
	shut(s)
}

func TestEvictionAndEjectionLeaveDrafts(t *testing.T) {
	// A directory whose budget has become much smaller than its blocks and its drafts evicts all blocks and no draft. One that was
	// ejected refuses writes with EIO, and has the draft and its mark as it returns.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20}}})
	fill(r, 0)
	d := newDrafting(r)
	if _, err := d.file.WriteAt(make([]byte, 12<<20), 0); err != nil { // an earlier node had a larger budget
		t.Fatal(err)
	}
	r.until("all blocks have given way", func() bool { return r.area(0).used() == 0 })
	if err := d.write(12 << 20); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("beyond the budget: %v", err)
	}
	r.dirs[0].eject(errors.New("test"), false)
	if err := r.Room(d.dir, 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("in an ejected directory: %v", err)
	}
	r.until("it returns", func() bool { return r.heard("returned") > 0 })
	if fi, err := os.Stat(d.file.Name()); err != nil || fi.Size() != 12<<20 || formatAt(t, r.paths[0]) != LabelFormat {
		t.Errorf("%v, %v, format %d", fi, err, formatAt(t, r.paths[0]))
	}
}
