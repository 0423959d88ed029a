package sparse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

const mib = 1 << 20

func TestMain(m *testing.M) {
	if dir := os.Getenv(fillDir); dir != "" {
		fill(dir) // the child of TestKilledWriterKeepsWhatItAcknowledged
	}
	goleak.VerifyTestMain(m)
}

// sample makes an object and its bytes from a seed.
func sample(seed uint64, size int64) (*hearth.Object, []byte) {
	o, data := sampleObject(seed, size), make([]byte, size)
	hearthtest.Fill(data, o.Key, 0, 1)
	return o, data
}

func sampleObject(seed uint64, size int64) *hearth.Object {
	key, etag := fmt.Sprintf("object-%d", seed), "etag"
	return &hearth.Object{Key: key, ETag: etag, Size: size, Version: hearth.VersionOf("test", key, etag, size)}
}

// fixture is a directory of files under test.
type fixture struct {
	*Files
	t        testing.TB
	pool     *hearth.Pool
	verified chan bool // the ends of verification passes
	opt      Options
}

func start(t testing.TB, opt Options) *fixture {
	t.Helper()
	x := &fixture{t: t, pool: hearth.NewPool(64 << 20), verified: make(chan bool, 100), opt: opt}
	if opt.Dir == "" {
		x.opt.Dir = t.TempDir()
	}
	if opt.Pool == nil {
		x.opt.Pool = x.pool
	}
	if opt.Events.Verified == nil {
		x.opt.Events.Verified = func(_ [16]byte, whole bool) { x.verified <- whole }
	}
	x.reopen()
	t.Cleanup(x.stop)
	return x
}

func (x *fixture) reopen() {
	x.t.Helper()
	x.stop()
	f, err := Open(x.opt)
	if err != nil {
		x.t.Fatal(err)
	}
	x.Files = f
}

// stop closes the files and finds leaks. A call that comes after Close may hold memory until it
// gets its error.
func (x *fixture) stop() {
	if x.Files == nil {
		return
	}
	if err := x.Close(); err != nil {
		x.t.Error(err)
	}
	x.Files = nil
	free := func() bool { s := x.opt.Pool.Stats(); return s.Views == 0 && s.Used == s.Idle }
	if !hearthtest.Eventually(context.Background(), 5*time.Second, free) {
		x.t.Errorf("after Close the pool has %+v", x.opt.Pool.Stats())
	}
}

// piece returns the bytes of one block, aligned like a View of the Pool.
func blockOf(o *hearth.Object, data []byte, index int64) []byte {
	n := o.Block(index).Len()
	p := make([]byte, n+2*align)
	skip := align - int(uintptr(unsafe.Pointer(&p[0]))%align)
	p = p[skip : skip+n : skip+n]
	copy(p, data[index*hearth.BlockSize:])
	return p
}

func (x *fixture) put(o *hearth.Object, data []byte, blocks ...int64) {
	x.t.Helper()
	for _, i := range blocks {
		if err := x.Put(o, i, blockOf(o, data, i)); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *fixture) putAll(o *hearth.Object, data []byte) {
	x.t.Helper()
	var all [][]byte
	for i := range o.Blocks() {
		all = append(all, blockOf(o, data, i))
	}
	if err := x.PutMany(o, 0, all); err != nil {
		x.t.Fatal(err)
	}
}

// has reads a whole block: true if it is there and right, false for a miss.
func (x *fixture) has(o *hearth.Object, data []byte, index int64) bool {
	x.t.Helper()
	b := o.Block(index)
	return x.hasRange(b, data, 0, b.Len())
}

func (x *fixture) hasRange(b hearth.Block, data []byte, off, n int) bool {
	x.t.Helper()
	v, err := x.Get(context.Background(), b, off, n)
	if errors.Is(err, hearth.ErrMiss) {
		return false
	}
	if err != nil {
		x.t.Fatal(err)
	}
	defer v.Release()
	at := b.Offset() + int64(off)
	if !bytes.Equal(v.Bytes(), data[at:at+int64(n)]) {
		x.t.Fatalf("wrong bytes of block %v at %d+%d", b.ID(), off, n)
	}
	if hearthtest.CheckSums(x.t, v); n == b.Len() && v.Sums().Load() == nil {
		x.t.Errorf("block %v was read whole, and its sums are not known", b.ID())
	}
	return true
}

// local takes the object as a file, checks that it has no hole and the right bytes, and returns its
// release, or nil for a miss.
func (x *fixture) local(o *hearth.Object, data []byte) func() {
	x.t.Helper()
	file, release, err := x.LocalFile(o)
	if errors.Is(err, hearth.ErrMiss) {
		return nil
	}
	if err != nil {
		x.t.Fatal(err)
	}
	x.inspect(file, data)
	return func() { _ = file.Close(); release() }
}

func (x *fixture) inspect(file *os.File, data []byte) {
	x.t.Helper()
	if hole, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_HOLE); err != nil || hole != int64(len(data)) {
		x.t.Fatalf("a file of %d bytes was handed out with a hole at %d (%v)", len(data), hole, err)
	}
	part := make([]byte, mib)
	for at := 0; ; at += mib { // in parts: the race detector takes long for large ones
		n, err := file.ReadAt(part, int64(at))
		if err != nil && err != io.EOF || !bytes.Equal(part[:n], data[min(at, len(data)):min(at+mib, len(data))]) {
			x.t.Fatalf("a file was handed out with wrong bytes (%v)", err)
		}
		if err == io.EOF {
			return
		}
	}
}

// onDevice returns the sum of st_blocks of our files.
func (x *fixture) onDevice() (total int64) {
	x.t.Helper()
	names, err := os.ReadDir(x.opt.Dir)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, name := range names {
		var st unix.Stat_t
		if _, _, ours := parseName(name.Name()); ours && unix.Lstat(filepath.Join(x.opt.Dir, name.Name()), &st) == nil {
			total += allocated(&st)
		}
	}
	return total
}

// checkUsed allows the file system a few units of metadata per object, which it may add in the
// background.
func (x *fixture) checkUsed() {
	x.t.Helper()
	slack := 16384 * (1 + x.Stats().Objects)
	if used, real := x.Used(), x.onDevice(); used < real-slack || used > real+slack {
		x.t.Fatalf("Used is %d, on the device are %d", used, real)
	}
}

func (x *fixture) stat(o *hearth.Object) (st unix.Stat_t) {
	x.t.Helper()
	if err := unix.Stat(x.dataFile(o), &st); err != nil {
		x.t.Fatal(err)
	}
	return st
}

func (x *fixture) dataFile(o *hearth.Object) string {
	return filepath.Join(x.opt.Dir, (&object{version: o.Version}).dataName())
}

func (x *fixture) sumsFile(o *hearth.Object) string {
	return filepath.Join(x.opt.Dir, (&object{version: o.Version}).sumsName())
}

// modes are the ways in which bytes reach the files.
func modes(t *testing.T, test func(t *testing.T, opt Options)) {
	t.Run("direct", func(t *testing.T) { test(t, Options{}) })
	t.Run("buffered", func(t *testing.T) { test(t, Options{Buffered: true}) })
	t.Run("tmpfs", func(t *testing.T) {
		dir, err := os.MkdirTemp("/dev/shm", "sparse")
		if err != nil {
			t.Skip("no /dev/shm")
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		test(t, Options{Dir: dir})
	})
}
