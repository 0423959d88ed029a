package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// disks are cache directories on one file system, of which some fail to write.
type disks struct {
	vfs.FS
	mem     *vfs.MemFS
	failing sync.Map // directory to how many writes still succeed, *atomic.Int64
}

func newDisks() *disks {
	d := &disks{mem: vfs.NewMem()}
	d.FS = errorfs.Wrap(d.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || strings.HasSuffix(op.Path, "LOCK") {
			return nil
		}
		dir, _, _ := strings.Cut(strings.TrimPrefix(op.Path, "/"), "/")
		if left, ok := d.failing.Load(dir); ok && left.(*atomic.Int64).Add(-1) < 0 {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.EIO}
		}
		return nil
	}))
	return d
}

// fail makes a directory fail after some more writes.
func (d *disks) fail(dir string, after int64) {
	left := &atomic.Int64{}
	left.Store(after)
	d.failing.Store(dir, left)
}

func (d *disks) heal(dir string) { d.failing.Delete(dir) }

func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	if !hearthtest.Eventually(t.Context(), 20*time.Second, fact) {
		t.Fatal("never: " + what)
	}
}

func TestMove(t *testing.T) {
	// The disk fails at any of its writes, while others write and read. The next directory fails at
	// first, too. Nobody gets an error or misses what was put. In the end all of it lies in the third
	// directory, and is there after a restart.
	for _, after := range []int64{0, 3, 40} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			d := newDisks()
			var moved atomic.Pointer[string]
			s, err := Open(Options{Dir: "a/names", FS: d, Retry: time.Millisecond, Moved: func(dir string) { moved.Store(&dir) },
				Next: func() []string { return []string{"a/names", "b/names", "c/names"} }})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, s, 0, 4000, false)
			d.fail("b", 2*after)
			var wg sync.WaitGroup
			var put [4]atomic.Int64
			stop := make(chan struct{})
			for g := range put {
				wg.Go(func() { writeUntil(t, s, g, &put[g], stop) })
			}
			d.fail("a", after)
			eventually(t, "moved", func() bool { return moved.Load() != nil })
			close(stop)
			wg.Wait()
			if st := s.Stats(); st.Dir != "c/names" || st.Ill != nil || st.Moves != 1 || st.Rebuilds != 0 || st.MemoryBytes != 0 {
				t.Errorf("%+v", st)
			}
			fill(t, s, 4000, 4001, true)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, Options{Dir: "c/names", FS: d.mem})
			if n := check(t, s, 4001); n != 4001 {
				t.Errorf("%d records", n)
			}
			for g := range put {
				checkWritten(t, s, g, put[g].Load())
			}
		})
	}
}

func TestMoveFromADiskThatFailsWhileItIsOpened(t *testing.T) {
	// The disk fails at any of the writes of a first start, before there is a database to move. It moves
	// as soon as it is open, with what was put meanwhile.
	for after := range int64(12) {
		d := newDisks()
		d.fail("a", after)
		s, err := Open(Options{Dir: "a/names", FS: d, Retry: time.Millisecond,
			Next: func() []string { return []string{"a/names", "b/names"} }})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, 0, 100, false)
		eventually(t, "moved", func() bool { return s.Stats().Dir == "b/names" })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, Options{Dir: "b/names", FS: d.mem})
		if n := check(t, s, 100); n != 100 {
			t.Errorf("a disk that fails after %d writes: %d records", after, n)
		}
	}
}

func gkey(g int, i int64) []byte { return fmt.Appendf(nil, "%c%06d", "aglz"[g], i) }

// writeUntil puts records one by one, removes every third again, and reads others back. put counts them.
func writeUntil(t *testing.T, s *Store, g int, put *atomic.Int64, stop chan struct{}) {
	r := rand.New(rand.NewPCG(uint64(g), 3))
	for i := int64(0); ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		e := s.Edit()
		e.Set(gkey(g, i), gkey(g, i))
		if i%3 == 2 {
			e.Delete(gkey(g, i-1))
		}
		if err := e.Commit(i%50 == 0); err != nil {
			t.Error(err)
			return
		}
		put.Store(i + 1)
		if i > 3 {
			checkOne(t, s, g, r.Int64N(i-2), i+1)
		}
	}
}

func checkOne(t *testing.T, s *Store, g int, i, put int64) {
	v, ok, err := s.Get(nil, gkey(g, i))
	removed := i%3 == 1 && i+1 < put
	if err != nil || ok == removed || ok && string(v) != string(gkey(g, i)) {
		t.Errorf("%s: %q, %v, %v", gkey(g, i), v, ok, err)
	}
}

func checkWritten(t *testing.T, s *Store, g int, put int64) {
	t.Helper()
	for i := range put {
		checkOne(t, s, g, i, put)
	}
}

func TestMoveBack(t *testing.T) {
	// The only directory fails and is well again, twice. The names return to it, and are there after a
	// restart, under whichever of their two names they lie.
	for times := 1; times <= 2; times++ {
		d := newDisks()
		s, err := Open(Options{Dir: "a/names", FS: d, Retry: time.Millisecond, Next: func() []string { return []string{"a/names"} }})
		if err != nil {
			t.Fatal(err)
		}
		for n := range times {
			fill(t, s, n*1000, n*1000+500, true)
			d.fail("a", 2)
			fill(t, s, n*1000+500, n*1000+1000, true)
			if s.Stats().Ill == nil {
				t.Fatal("it did not fail")
			}
			d.heal("a")
			eventually(t, "back", func() bool { st := s.Stats(); return st.Ill == nil && st.Moves == n+1 })
		}
		want := []string{"a/names.again", "a/names"}[times-1]
		if st := s.Stats(); st.Dir != want || check(t, s, times*1000) != times*1000 {
			t.Errorf("%+v", st)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, Options{Dir: "a/names", FS: d.mem})
		if n := check(t, s, times*1000); n != times*1000 {
			t.Errorf("%d times: %d records after a restart", times, n)
		}
		if names, err := d.mem.List("a"); err != nil || len(names) != 1 {
			t.Errorf("%q, %v", names, err)
		}
	}
}

func TestMoveCutOff(t *testing.T) {
	// A process that ended while it copied leaves an unfinished copy. The next start opens the complete
	// database, and removes the copy.
	mem := vfs.NewMem()
	for _, dir := range []string{"a/names", "a/names.again"} {
		s, err := Open(Options{Dir: dir, FS: mem})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, 0, 500/len(dir), true) // fewer in the copy
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, Options{Dir: "a/names", FS: mem})
	if n := check(t, s, 500); n != 500/len("a/names") {
		t.Errorf("%d records", n)
	}
	if names, err := mem.List("a"); err != nil || len(names) != 1 {
		t.Errorf("%q, %v", names, err)
	}
}

func TestADiskThatDoesNotAnswer(t *testing.T) {
	// The disk stalls: a look-up and a change take its patience and no more. Names start anew in memory,
	// and move back once the disk answers.
	mem := vfs.NewMem()
	var gate sync.RWMutex // write-locked while the disk stalls
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
		gate.RLock()
		defer gate.RUnlock()
		return nil
	}))
	ill, moved := make(chan error, 1), make(chan string, 1)
	const patience = time.Second // a busy machine answers by then, or the disk is given up before it stalls
	var well atomic.Bool
	s := mustOpen(t, Options{Dir: "names", FS: fs, CacheBytes: 1, Patience: patience, Retry: time.Millisecond,
		Ill: func(err error) { ill <- err }, Moved: func(dir string) { moved <- dir },
		Next: func() []string {
			if well.Load() {
				return []string{"names"}
			}
			return nil
		}})
	fill(t, s, 0, 3000, true)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stats().Ill; err != nil {
		t.Fatalf("the disk was given up before it stalled: %v", err)
	}
	gate.Lock()
	start := time.Now()
	if _, _, err := s.Get(nil, key(1500)); err != nil {
		t.Error(err)
	}
	fill(t, s, 5000, 5001, true)
	if took := time.Since(start); took > 10*patience {
		t.Errorf("a look-up and a change took %v, the patience is %v", took, patience)
	}
	if v, ok, err := s.Get(nil, key(5000)); !ok || err != nil {
		t.Errorf("what was written then: %q, %v, %v", v, ok, err)
	}
	if err := <-ill; !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("ill of %v", err)
	}
	gate.Unlock()
	well.Store(true)
	if dir := <-moved; dir != "names" || s.Stats().Ill != nil {
		t.Errorf("moved to %s, %+v", dir, s.Stats())
	}
	if _, ok, err := s.Get(nil, key(5000)); !ok || err != nil {
		t.Errorf("after the move: %v, %v", ok, err)
	}
}

func TestNamesMoveFromADiskThatHangs(t *testing.T) {
	// The disk of the names hangs and does not come back. They move to the next directory, which has a
	// guard of its own, and stay well there.
	mem := vfs.NewMem()
	gate := make(chan struct{})
	var stalls atomic.Bool
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if stalls.Load() && strings.HasPrefix(op.Path, "a/") {
			<-gate
		}
		return nil
	}))
	moved := make(chan string, 1)
	s := mustOpen(t, Options{Dir: "a/names", FS: fs, Patience: time.Second, Retry: time.Millisecond,
		Moved: func(dir string) { moved <- dir }, Next: func() []string { return []string{"b/names"} }})
	defer close(gate)
	fill(t, s, 0, 10, true)
	stalls.Store(true)
	fill(t, s, 10, 20, true)
	if dir := <-moved; dir != "b/names" {
		t.Errorf("moved to %s", dir)
	}
	fill(t, s, 20, 30, true)
	if st := s.Stats(); st.Dir != "b/names" || st.Ill != nil || st.Rebuilds != 0 {
		t.Errorf("%+v", st)
	}
	if n := check(t, s, 30); n != 30 {
		t.Errorf("%d of 30 records", n)
	}
}
