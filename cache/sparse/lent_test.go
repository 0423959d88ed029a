package sparse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// holder reads a lent file directly.
type holder struct {
	file    *os.File
	mapping []byte
	release func() // of the lent file; nil means that it was given back
}

// lend makes a holder of an object's file, or of a mapping of it that outlives the release.
func lend(t *testing.T, x *fixture, o *hearth.Object, mapped bool) *holder {
	t.Helper()
	file, release, err := x.LocalFile(o)
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{file: file, release: release}
	if mapped {
		if h.mapping, err = unix.Mmap(int(file.Fd()), 0, int(o.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		release()
		h.file, h.release = nil, nil
	}
	t.Cleanup(h.leave)
	return h
}

// sees returns what the holder reads now.
func (h *holder) sees(t *testing.T, n int64) []byte {
	t.Helper()
	if h.mapping != nil {
		return h.mapping
	}
	got := make([]byte, n)
	if _, err := h.file.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	return got
}

func (h *holder) leave() {
	if h.mapping != nil {
		_ = unix.Munmap(h.mapping)
	}
	if h.file != nil {
		_ = h.file.Close()
	}
	if h.release != nil {
		h.release()
	}
	*h = holder{}
}

// harm is one way in which a file could be changed under its reader.
type harm struct {
	name string
	do   func(t *testing.T, x *fixture, o *hearth.Object, data []byte)
	// flips means that a byte of block 1 is flipped on the disk before, so the reader sees that.
	flips bool
}

func repair(t *testing.T, run func(r *check.Run) error) {
	t.Helper()
	looked(t, true, run)
}

var harms = []harm{
	{name: "eviction by extents", do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		if n := x.EvictExtent(o.Block(0).ID()) + x.EvictExtent(o.Block(17).ID()); n != 0 {
			t.Errorf("%d bytes were freed under a reader", n)
		}
		if !x.Has(o.Block(0).ID()) {
			t.Error("what could not be evicted is not held any more")
		}
	}},
	{name: "a replaced version", do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		if n := x.EvictObject(o.Version); n != 0 || x.Used() < o.Size {
			t.Errorf("%d bytes were freed under a reader, %d count", n, x.Used())
		}
	}},
	{name: "a bad block", flips: true, do: func(t *testing.T, x *fixture, o *hearth.Object, data []byte) {
		if v, err := x.Get(t.Context(), o.Block(1), 0, mib); !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("a bad block: %v %v", v, err)
		}
		if err := x.Put(o, 1, bytes.Clone(data[mib:2*mib])); !errors.Is(err, ErrLent) {
			t.Errorf("put of what a lent file lacks: %v", err)
		}
		x.EvictExtent(o.Block(0).ID())
	}},
	{name: "a check with repair", flips: true, do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		run := func(r *check.Run) error { return x.Files.Check(t.Context(), r, [16]byte{}, nil) }
		repair(t, run)
		hearthtest.FlipByte(t, x.sumsFile(o), recordOffset(5), 4)
		x.reopen()
		repair(t, run)
		repair(t, run)
	}},
	{name: "a sidecar without records", do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		x.stop()
		if err := os.Truncate(x.sumsFile(o), recordOffset(3)); err != nil {
			t.Fatal(err)
		}
		x.reopen()
		if x.Has(o.Block(4).ID()) || !x.Has(o.Block(2).ID()) {
			t.Error("the records were not read again")
		}
		if x.EvictExtent(o.Block(2).ID()) != 0 {
			t.Error("freed")
		}
	}},
	{name: "a sidecar's header", do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		hearthtest.FlipByte(t, x.sumsFile(o), 20, 1)
		x.reopen()
		x.Has(o.Block(0).ID())
		repair(t, func(r *check.Run) error { return x.Files.Check(t.Context(), r, [16]byte{}, nil) })
	}},
	{name: "a stopped directory's repair", flips: true, do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		x.stop()
		hearthtest.FlipByte(t, x.sumsFile(o), recordOffset(5), 4)
		run := func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) }
		repair(t, run)
		if err := os.Truncate(x.sumsFile(o), recordOffset(3)); err != nil { // 15 blocks without a record
			t.Fatal(err)
		}
		repair(t, run)
		x.reopen()
	}},
	{name: "a stopped directory's repair of a header", do: func(t *testing.T, x *fixture, o *hearth.Object, _ []byte) {
		x.stop()
		hearthtest.FlipByte(t, x.sumsFile(o), 20, 1)
		repair(t, func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) })
		x.reopen()
	}},
}

func TestDoomedFilesGoWithTheirReaders(t *testing.T) {
	// A replaced version is mapped. Its bytes count until the mapping ends, and are then freed
	// without a further call for that object. Meanwhile the kernel is asked about it once a second.
	now := uint32(1000)
	x := start(t, Options{Now: func() uint32 { return now }})
	o, data := sample(1, 2*mib)
	x.putAll(o, data)
	reader := lend(t, x, o, true)
	for range 2 {
		if x.EvictObject(o.Version) != 0 || x.Used() < o.Size {
			t.Fatalf("gone under its reader, %d used", x.Used())
		}
	}
	now++
	if x.Used() < o.Size || !bytes.Equal(reader.sees(t, o.Size), data) {
		t.Fatalf("gone under its reader a second later, %d used", x.Used())
	}
	reader.leave()
	if x.Used() < o.Size {
		t.Fatal("asked about twice in a second")
	}
	now++
	if x.Used() != 0 || x.onDevice() != 0 {
		t.Fatalf("%d used, %d on the device after its last reader", x.Used(), x.onDevice())
	}
	x.put(o, data, 0)
	if !x.has(o, data, 0) || x.Used() < mib {
		t.Fatal("an evicted object cannot begin again")
	}
}

func TestFilesThatCannotBeAskedAboutGoWhole(t *testing.T) {
	// The file system has no leases, or the file is another user's, so nobody can tell who reads
	// it. It takes no block, no extent of it is evicted, and it is evicted by unlink alone.
	x := start(t, Options{Shared: true})
	o, data := sample(1, 18*mib)
	x.putAll(o, data)
	reader := lend(t, x, o, true)
	hearthtest.FlipByte(t, x.dataFile(o), mib+99, 8)
	data[mib+99] ^= 8
	x.reopen()
	x.ask = func(int) readers { return anyReaders }
	if x.has(o, data, 1) {
		t.Fatal("a bad block was read")
	}
	if err := x.Put(o, 1, bytes.Clone(data[mib:2*mib])); !errors.Is(err, ErrLent) {
		t.Errorf("put: %v", err)
	}
	if n := x.EvictExtent(o.Block(0).ID()); n < 18*mib {
		t.Errorf("%d bytes went", n)
	}
	if _, err := os.Stat(x.dataFile(o)); !os.IsNotExist(err) || !bytes.Equal(reader.sees(t, o.Size), data) {
		t.Errorf("by more than its name: %v", err)
	}
	if x.Has(o.Block(0).ID()) || x.Used() != 0 {
		t.Errorf("it is still held, %d used", x.Used())
	}
}

func TestWhatHasNoLeaseCannotBeAskedAbout(t *testing.T) {
	// The kernel's answer means that it cannot tell, not that nobody reads.
	fd := openDir(t, t.TempDir()) // a directory has no lease
	if who := readersOf(fd); who != anyReaders {
		t.Errorf("readers of what has no lease: %d", who)
	}
}

func TestWhereLeasesLieNobodyIsAsked(t *testing.T) {
	// Each file system is tried: a mapping counts on a disk and in memory. On overlayfs it does
	// not, so no file there gets a hole while it may be lent.
	if ask := asker(openDir(t, t.TempDir())); ask(openFile(t)) != noReaders {
		t.Error("nobody can tell of the tests' own directory")
	}
	under := hearthtest.Tmpfs(t, "size=64m")
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(under, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(under, "merged")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", under)
	if err := unix.Mount("hearthtest", merged, "overlay", 0, options); err != nil {
		t.Skipf("no overlay here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	x := start(t, Options{Dir: filepath.Join(merged, "objects"), Shared: true})
	o, data := sample(1, 18*mib)
	x.putAll(o, data)
	reader := lend(t, x, o, true)
	if n := x.EvictExtent(o.Block(0).ID()); n < 18*mib || !bytes.Equal(reader.sees(t, o.Size), data) {
		t.Errorf("%d bytes went, and not by the file's name", n)
	}
}

func openDir(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func openFile(t *testing.T) int {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}
