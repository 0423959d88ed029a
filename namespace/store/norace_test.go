//go:build !race

package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// One goroutine works here after another: the race detector finds nothing in it, and makes it take
// several times as long.

func TestCorruption(t *testing.T) {
	// Whatever bytes change in whatever file, the store opens, returns what was put or nothing, takes new
	// records, and sets the broken database aside.
	rebuilds, told := 0, 0
	defer func() {
		if told != rebuilds {
			t.Errorf("%d rebuilds, told of %d", rebuilds, told)
		}
		if rebuilds < 3 {
			t.Errorf("%d rebuilds: the damage is not met", rebuilds)
		}
	}()
	for seed := range uint64(16) {
		dir := filepath.Join(t.TempDir(), "names")
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, 0, 3000, false)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 3000, 4000, false)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		damage(t, dir, rand.New(rand.NewPCG(seed, 2)))
		s, err = Open(Options{Dir: dir, Rebuilt: func(error) { told++ }})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		check(t, s, 4000)
		_ = s.Compact() // meets what look-ups did not
		check(t, s, 4000)
		fill(t, s, 0, 100, false)
		if n := check(t, s, 100); n != 100 {
			t.Errorf("seed %d: %d of the new records, %+v", seed, n, s.Stats())
		}
		rebuilds += s.Stats().Rebuilds
		if st := s.Stats(); st.Ill != nil {
			t.Errorf("seed %d: ill: %v", seed, st.Ill)
		}
		if err := s.Close(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

func TestFailingWrites(t *testing.T) {
	// The disk fails from any write on. Nobody gets an error, and everything that was put is still there.
	// The store says that it is ill, and what it left on the disk opens.
	for _, after := range []int64{0, 3, 17, 90} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			mem := vfs.NewMem()
			var writes atomic.Int64
			failing := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || strings.HasSuffix(op.Path, "LOCK") || writes.Add(1) <= after {
					return nil
				}
				return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
			}))
			var told atomic.Int64
			s, err := Open(Options{Dir: "names", FS: failing, Ill: func(error) { told.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < 16_000; i += 4_000 {
				fill(t, s, i, i+4_000, false)
				fill(t, s, i, i+1, true)
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Compact(); err != nil {
				t.Fatal(err)
			}
			st := s.Stats()
			if n := check(t, s, 16_000); n != 16_000 {
				t.Errorf("%d records, %+v", n, st)
			}
			if !errors.Is(st.Ill, syscall.ENOSPC) || told.Load() != 1 || st.Rebuilds != 0 {
				t.Errorf("%+v, told %d times", st, told.Load())
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			check(t, mustOpen(t, Options{Dir: "names", FS: mem}), 16_000)
		})
	}
}

func TestCrash(t *testing.T) {
	// After a crash at any time the store opens with a prefix of what was put, and
	// all that was synced.
	for seed := range uint64(8) {
		mem := vfs.NewCrashableMem()
		s, err := Open(Options{Dir: "names", FS: mem})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, 0, 500, true)
		fill(t, s, 500, 3000, false)
		if seed%2 == 1 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		fill(t, s, 3000, 4000, false)
		crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed) * 12, RNG: rand.New(rand.NewPCG(seed, 1))})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		after := mustOpen(t, Options{Dir: "names", FS: crashed})
		n := check(t, after, 4000)
		if st := after.Stats(); n < 500 || st.Rebuilds != 0 || st.Ill != nil {
			t.Errorf("seed %d: %d records, %+v", seed, n, st)
		}
		if have := check(t, after, n); have != n {
			t.Errorf("seed %d: %d of the first %d", seed, have, n)
		}
	}
}

func TestMoveCutOffElsewhere(t *testing.T) {
	// A process ends in the middle of a move to another directory. Whichever of the two the next start
	// opens has all names or none, and never a part of them. What the move left takes no room.
	mem := vfs.NewCrashableMem()
	var failing atomic.Bool
	var writes atomic.Int64
	var mu sync.Mutex // guards left
	var left []*vfs.MemFS
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !failing.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		if strings.HasPrefix(op.Path, "a/") {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.EIO}
		}
		if writes.Add(1)%6 != 0 {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		left = append(left, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}))
		return nil
	}))
	moved := make(chan string, 1)
	s := mustOpen(t, Options{Dir: "a/names", FS: fs, Retry: time.Millisecond, Moved: func(dir string) { moved <- dir },
		Next: func() []string { return []string{"a/names", "b/names"} }})
	const names = 3000
	fill(t, s, 0, names, true)
	failing.Store(true)
	fill(t, s, 0, 1, true) // the write that fails
	<-moved
	failing.Store(false)
	whole, none := 0, 0
	for i, after := range left {
		for _, dir := range []string{"b/names", "a/names"} {
			crashed := after.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
			s, err := Open(Options{Dir: dir, FS: crashed, Next: func() []string { return []string{"a/names", "b/names"} }})
			if err != nil {
				t.Fatal(err)
			}
			switch n := check(t, s, names); {
			case n == names:
				whole++
			case n == 0:
				none++
			default:
				t.Errorf("after moment %d of %d: %d of %d records in %s", i, len(left), n, names, dir)
			}
			if found, err := crashed.List("b/names"); err == nil && slices.Contains(found, partFile) {
				t.Errorf("after moment %d of %d: b/names holds %v", i, len(left), found)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if whole == 0 || none == 0 {
		t.Errorf("%d whole, %d none", whole, none)
	}
}
