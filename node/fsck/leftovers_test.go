package fsck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace/store"
)

// cache makes a directory as a node leaves it: with some blocks, and names.
func cache(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	pool := hearthtest.Pool(t, 64<<20)
	s, err := disk.Open(disk.Options{Dirs: []disk.DirOptions{{Path: dir, Budget: 64 << 20, Floor: -1}}, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	for i, size := range []int64{500, 100_000, 3 << 20} {
		b := hearthtest.NewObject(fmt.Sprint(i), size, 1).Block(0)
		v := hearthtest.View(t, pool, b, 1)
		if err := s.Keep(t.Context(), b, v); err != nil {
			t.Fatal(err)
		}
		v.Release()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := store.Open(store.Options{Dir: filepath.Join(dir, disk.NamesDir)})
	if err != nil {
		t.Fatal(err)
	}
	e := names.Edit()
	e.Set([]byte("some key"), []byte("value"))
	if err := errors.Join(e.Commit(true), names.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsNotHearthsIsNeverTouched(t *testing.T) {
	// Files and directories of somebody else lie beside the cache, some with names much like what a node
	// leaves behind. A repair names each of them and removes only what a node left.
	dir := cache(t)
	theirs := map[string]string{"backup.new": "backup.new/thesis", "notes.tmp": "notes.tmp", "my.probe.txt": "my.probe.txt",
		"hearth.json.new": "hearth.json.new", "scrub.json.new": "scrub.json.new/kept", "names.corrupt-x": "names.corrupt-x/kept",
		"open-modes.json": "open-modes.json/kept"}
	for _, file := range theirs {
		write(t, filepath.Join(dir, file), "precious")
	}
	left := []string{"node-ids.new", "hearth.json.tmp", "hearth.json.probe", "hearth.json.probe.tmp", "open-modes.json.new"}
	for _, name := range left {
		write(t, filepath.Join(dir, name), "cut")
	}
	write(t, filepath.Join(dir, "names.corrupt-2/MANIFEST"), "set aside")
	refused := map[string]bool{}
	r := &check.Run{Repair: true}
	r.Found = func(f check.Finding) {
		if f.Kind == check.Refused {
			refused[filepath.Base(f.File)] = true
		} else if f.Kind != check.Leftover || !f.Repaired {
			t.Errorf("%s", f)
		}
	}
	if err := Stopped(t.Context(), dir, r); err != nil || r.Bad.Load() != int64(len(left)) || len(refused) != len(theirs) {
		t.Errorf("%d findings, refused %v, %v", r.Bad.Load(), refused, err)
	}
	for name, file := range theirs {
		if text, err := os.ReadFile(filepath.Join(dir, file)); !refused[name] || string(text) != "precious" {
			t.Errorf("%s: refused %v, %q, %v", name, refused[name], text, err)
		}
	}
	for _, name := range left {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

func TestDraftsAreNeverTouched(t *testing.T) {
	// A check and a repair of a directory leave drafts as they are, whatever their files are, and whatever else is broken there.
	dir := cache(t)
	drafts := map[string]string{"1.data": "what was written", "1.json": "a record", "2.data": "", "2.json.tmp": "half a rec"}
	for name, text := range drafts {
		write(t, filepath.Join(dir, disk.DraftsDir, name), text)
	}
	write(t, filepath.Join(dir, disk.LabelFile), "rotten")
	for _, repair := range []bool{false, true, true} {
		if err := Stopped(t.Context(), dir, &check.Run{Repair: repair, Found: func(check.Finding) {}}); err != nil {
			t.Errorf("repair %v: %v", repair, err)
		}
	}
	if l, err := disk.ReadLabel(dir); err != nil || l.Format != disk.LabelFormat {
		t.Errorf("the label of a directory with drafts: %+v, %v", l, err)
	}
	for name, text := range drafts {
		if got, err := os.ReadFile(filepath.Join(dir, disk.DraftsDir, name)); err != nil || string(got) != text {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}
