package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// sealed is a hearth.json of a format.
func sealed(format int) string {
	t := Label{Format: format, Node: newID(), Directory: newID()}
	return fmt.Sprintf(`{"format":%d,"node":%q,"directory":%q,"check":%q,"later":[1]}`, t.Format, t.Node, t.Directory, t.Sum())
}

func TestHomeRefusals(t *testing.T) {
	// What a person must decide on is refused with the cure, and left as it was.
	for _, c := range []struct {
		name, file, text, says string
	}{
		{"foreign", "thesis.tex", "precious", `is not empty and not hearth's (it holds "thesis.tex"): choose another`},
		{"newer", LabelFile, sealed(LabelFormat + 1), "has format 3, this version of hearth knows 2: run the newer hearth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(Options{Pool: hearth.NewPool(0), Dirs: []DirOptions{{Path: dir}}})
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("open: %v", err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, c.file)); err != nil || string(got) != c.text {
				t.Fatalf("%s is now %q, %v", c.file, got, err)
			}
		})
	}
}

func TestHomeIsKnownByWhatItHolds(t *testing.T) {
	// hearth.json was lost, and beside the blocks lies all that a node may leave: it is
	// ours still.
	dir := t.TempDir()
	for _, name := range []string{"names.corrupt-1", "open-modes.json", "open-modes.json.new", "node-ids", LabelFile + ".tmp", LockFile} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(Options{Pool: hearthtest.Pool(t, 0), Dirs: []DirOptions{{Path: dir}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestFUSEIsRefused(t *testing.T) {
	// A directory that is still to be made inside of a FUSE mount is refused, and not made.
	dir := t.TempDir()
	o := Options{Pool: hearth.NewPool(0), Dirs: []DirOptions{{Path: filepath.Join(dir, "a", "b")}}}
	o.statfs = func(path string, st *unix.Statfs_t) error {
		err := unix.Statfs(path, st)
		st.Type = unix.FUSE_SUPER_MAGIC
		return err
	}
	_, err := Open(o)
	if err == nil || !strings.Contains(err.Error(), "lies in a FUSE mount") {
		t.Fatalf("open in a FUSE mount: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the directory was made")
	}
}

func TestHomeHeals(t *testing.T) {
	// Whatever befalls the files that are ours alone, the directory opens again and the blocks are there.
	dir := t.TempDir()
	pool := hearthtest.Pool(t, 64<<20)
	b := small(1, 5000).Block(0)
	names := filepath.Join(dir, NamesDir, "LOCK") // who opens it takes what it may not open for what somebody holds
	for _, c := range []struct {
		name string
		harm func() error
		told []string // of the files that are mended, by their names, sorted
	}{
		{"new", func() error { return nil }, nil},
		{"untouched", func() error { return nil }, nil},
		{"id damaged", func() error { return os.WriteFile(filepath.Join(dir, LabelFile), []byte(`{"format":2,`), 0o600) }, []string{LabelFile}},
		{"id removed", func() error { return os.Remove(filepath.Join(dir, LabelFile)) }, []string{LabelFile}},
		{"id replaced by a directory", func() error {
			return errors.Join(os.Remove(filepath.Join(dir, LabelFile)), os.MkdirAll(filepath.Join(dir, LabelFile, "x"), 0o700))
		}, []string{LabelFile}},
		{"lock replaced by a directory", func() error {
			return errors.Join(os.Remove(filepath.Join(dir, LockFile)), os.Mkdir(filepath.Join(dir, LockFile), 0o700))
		}, []string{LockFile}},
		{"objects replaced by a file", func() error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, objectsDir)), os.WriteFile(filepath.Join(dir, objectsDir), nil, 0o600))
		}, []string{objectsDir}},
		{"half-written id", func() error { return os.WriteFile(filepath.Join(dir, LabelFile+".tmp"), []byte(`{`), 0o600) }, nil},
		{"id locked away", func() error { return os.Chmod(filepath.Join(dir, LabelFile), 0) }, []string{LabelFile}},
		{"lock locked away", func() error { return os.Chmod(filepath.Join(dir, LockFile), 0) }, []string{LockFile}},
		{"objects locked away", func() error { return os.Chmod(filepath.Join(dir, objectsDir), 0) }, []string{objectsDir}},
		{"list of deaths damaged", func() error { return os.WriteFile(filepath.Join(dir, segmentsDir, "deaths"), []byte("x"), 0o600) }, []string{"deaths"}},
		{"format of objects damaged", func() error { return os.WriteFile(filepath.Join(dir, objectsDir, "FORMAT"), []byte("x"), 0o600) }, []string{"FORMAT"}},
		// Segments are opened by other threads, which obey no modes here: the scenario cache-damaged has them.
		{"all files locked away", func() error {
			if err := os.WriteFile(names, nil, 0o600); err != nil {
				return err
			}
			return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					err = os.Chmod(name, 0)
				}
				return err
			})
		}, []string{"FORMAT", "LOCK", "deaths", LabelFile, LockFile}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.harm(); err != nil {
				t.Fatal(err)
			}
			var s *Store
			var told []string
			mended := func(file string, _ error) { told = append(told, filepath.Base(file)) }
			err := hearthtest.ObeyingModes(func() (err error) {
				s, err = Open(Options{Pool: pool, Dirs: []DirOptions{{Path: dir, Budget: 64 << 20, Floor: -1}}, Events: Events{Mended: mended}})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer hearthtest.Close(t, s)
			if fi, err := os.Stat(names); err == nil && fi.Mode() != 0o600 {
				t.Errorf("a file of the names has mode %v", fi.Mode())
			}
			n := s.Stats().Dirs[0].Mended
			if slices.Sort(told); n != int64(len(told)) || !slices.Equal(slices.Compact(told), c.told) {
				t.Errorf("%d are counted; mended are %q, not %q", n, told, c.told)
			}
			if c.name != "new" && hearthtest.CheckGet(t, s, b, 0, b.Len(), 1) {
				t.Error("the block is lost")
			}
			v := hearthtest.View(t, pool, b, 1)
			defer v.Release()
			if err := s.Keep(t.Context(), b, v); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestCopiedDirectoryKeepsItsNode(t *testing.T) {
	// The id in a directory is readable; a second directory without one gets the same.
	one, two := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(one, LabelFile), []byte(sealed(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := ReadLabel(one)
	if err != nil {
		t.Fatal(err)
	}
	s := openReal(t, Options{Dirs: []DirOptions{{Path: one, Budget: 32 << 20}, {Path: two, Budget: 32 << 20}}})
	other, err := ReadLabel(two)
	if err != nil || s.NodeID() != text.Node || other.Node != text.Node || other.Directory == text.Directory {
		t.Fatalf("node %s, first %+v, second %+v, %v", s.NodeID(), text, other, err)
	}
}

func TestAnotherDiskIsNotTaken(t *testing.T) {
	// When the file system of the directory has gone and only its mount point is left, the cache is not made anew on the disk below.
	d := &directory{path: filepath.Join(t.TempDir(), "cache"), opt: &Options{}}
	d.last = identity{id: "some", device: deviceOf(d.path) + 1}
	if err := d.sameDisk(); err == nil {
		t.Fatal("a directory on another file system was taken")
	}
	d.last.device = deviceOf(d.path)
	if err := d.sameDisk(); err != nil {
		t.Fatalf("a removed directory is not made again: %v", err)
	}
}

func FuzzParseHome(f *testing.F) {
	f.Add([]byte(sealed(1)))
	f.Add([]byte(sealed(9)))
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(sealed(1))[:20])     // truncated
	f.Add([]byte(`{"name":"other"}`)) // foreign
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Any bytes give a text whose check holds, or "damaged".
		text, err := parseLabel(data)
		if (err == nil) != (text.Check == text.Sum() && text.Format >= 1) {
			t.Fatalf("%q: %+v, %v", data, text, err)
		}
	})
}

func TestALockIsWaitedForWhereItsHolderEnds(t *testing.T) {
	// A process holds the directory and says that it ends: who comes next waits, longer
	// than for one that says nothing, and has the lock when it is given up.
	dir := t.TempDir()
	name := filepath.Join(dir, LockFile)
	if err := os.WriteFile(name, []byte("1 ends\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	held := exec.Command("flock", name, "sh", "-c", "echo held; exec cat")
	said, err := held.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	hold, err := held.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := said.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		f, err := lock(dir, nil)
		if err == nil {
			_ = f.Close()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(lockGrace + lockGrace/2):
	}
	if err := hold.Close(); err != nil {
		t.Fatal(err)
	}
	if err := held.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(name)
	if err != nil || !ParseLockHolder(string(text)).IsSelf() {
		t.Errorf("the lock names %q, %v", text, err)
	}
}

func TestHomeOfAKilledProcessThatCannotEnd(t *testing.T) {
	// The lock's holder was killed and a thread of it hangs in the kernel: the refusal
	// says how to let it end, and not to stop what runs no more.
	dead := exec.Command("true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dead.Wait() }()
	pid := strconv.Itoa(dead.Process.Pid)
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return ParseLockHolder(pid).Defunct() }) {
		t.Fatal("it never ended")
	}
	dir := t.TempDir()
	f, err := os.OpenFile(filepath.Join(dir, LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		defer func() { _ = f.Close() }()
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	for holder, says := range map[string]string{pid: "run umount -f", "1": "stop that one"} {
		if err := os.WriteFile(f.Name(), []byte(holder+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openHome(dir, "", unix.Statfs, nil)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "in use by process "+holder) || !strings.Contains(err.Error(), says) {
			t.Errorf("process %s: %v", holder, err)
		}
	}
}

func TestTooManyOpenFilesIsNoVerdict(t *testing.T) {
	// A process that is short of descriptors counts errors, and keeps its directory; a device that fails loses it.
	d := &directory{events: &Events{}}
	for range 3 * ejectAfter {
		d.writeFailed(fmt.Errorf("create: %w", unix.EMFILE))
		d.readFailed(fmt.Errorf("open: %w", unix.ENFILE))
	}
	if e := d.ejection.Load(); e != nil || d.errors.Load() != 6*ejectAfter {
		t.Errorf("ejected: %v, %d errors", e, d.errors.Load())
	}
	for range ejectAfter {
		d.writeFailed(fmt.Errorf("create: %w", unix.EIO))
	}
	if d.writable() {
		t.Error("a failing device is still written to")
	}
}

func TestACheckShortOfDescriptorsDropsNothing(t *testing.T) {
	// At each of its steps in turn a check that repairs finds no descriptor left: it ends with that error or has no need of one, and finds and drops nothing.
	dir := t.TempDir()
	open := func(step func(s *Store)) {
		s, err := Open(Options{Dirs: []DirOptions{{Path: dir, Budget: 64 << 20, Floor: -1}}, Pool: hearthtest.Pool(t, 64<<20), Check: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		step(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open(func(s *Store) {
		for i := range 10 {
			o := mixed(i)
			for j := range min(o.Blocks(), 3) {
				v := hearthtest.View(t, s.dirs[0].opt.Pool, o.Block(j), 1)
				if err := s.Keep(t.Context(), o.Block(j), v); err != nil {
					t.Fatal(err)
				}
				v.Release()
			}
		}
	})
	limit, lift := hearthtest.OpenFiles(t)
	defer lift()
	blocks, short := int64(0), 0
	for at, over := -1, false; !over; at++ { // -1: without a limit
		open(func(s *Store) {
			steps := 0
			r := &check.Run{Repair: true, Found: func(f check.Finding) { t.Errorf("short at step %d: %s", at, f) }}
			r.Pace = func(context.Context, int64) error {
				if steps++; steps == at {
					limit(0)
				}
				return nil
			}
			if at == 0 {
				limit(0)
			}
			err := s.Check(t.Context(), r, dir)
			lift()
			over = steps < at
			switch {
			case errors.Is(err, unix.EMFILE):
				short++
			case err != nil:
				t.Errorf("short at step %d: %v", at, err)
			case at < 0, over:
				if blocks = max(blocks, r.Blocks.Load()); r.Blocks.Load() != blocks {
					t.Errorf("%d blocks are left of %d", r.Blocks.Load(), blocks)
				}
			}
		})
	}
	if short < 10 || blocks < 14 {
		t.Errorf("%d checks came to feel it, of %d blocks", short, blocks)
	}
}
