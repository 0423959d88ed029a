//go:build !race

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

// cutObject is an object of either area, with an odd end or a whole one.
func cutObject(i int) *hearth.Object {
	size := []int64{700, 30_000, 3<<20 + 77, 300_000, 2 << 20, 5000}[i%6]
	return hearthtest.NewObject(fmt.Sprintf("cut/%d", i), size, 1)
}

func openForCut(t *testing.T, dir string) (*Store, *hearth.Pool) {
	t.Helper()
	pool := hearth.NewPool(64 << 20)
	s, err := Open(Options{Pool: pool, Dirs: []DirOptions{{Path: dir + "/cache", Budget: 64 << 20, Floor: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	return s, pool
}

func TestWhatWasFlushedOutlivesAPowerCut(t *testing.T) {
	// Objects of either area are kept, flushed and given up, and the power fails at any moment: what Flush answered for is there, every byte, and the directory is the same one; no byte is ever wrong, and no open fails.
	const objects, drop = 12, 4
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		s, pool := openForCut(t, dir)
		mark("opened " + s.dirs[0].home.id)
		for i := range objects {
			o := cutObject(i)
			for at := range o.Blocks() {
				v := hearthtest.View(t, pool, o.Block(at), 1)
				err := s.Keep(t.Context(), o.Block(at), v)
				if v.Release(); err != nil {
					t.Fatal(err)
				}
			}
			if i%3 == 2 {
				if err := s.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				mark(fmt.Sprint("flushed ", i))
			}
			if i == objects/2 {
				for k := range drop {
					mark(fmt.Sprint("drop ", k))
					s.Drop(cutObject(k))
				}
			}
		}
	})
	t.Logf("%d operations, %d of them syncs of all", len(tr.Ops), tr.Count(powercut.SyncAll))
	tr.Cuts(t, 3, 5, func(t *testing.T, c powercut.Cut) {
		s, pool := openForCut(t, c.Dir)
		last := -1
		for i := range objects {
			if c.Passed(fmt.Sprint("flushed ", i)) {
				last = i
			}
		}
		if last >= 0 && !c.Passed("opened "+s.dirs[0].home.id) {
			t.Errorf("%v: the directory has another identity", c)
		}
		for i := range objects {
			o := cutObject(i)
			for at := range o.Blocks() {
				b := o.Block(at)
				v, err := s.Get(t.Context(), b, 0, b.Len())
				switch {
				case err == nil:
					want := make([]byte, b.Len())
					hearthtest.Fill(want, o.Key, b.Offset(), 1)
					if !bytes.Equal(v.Bytes(), want) {
						t.Errorf("%v: block %d of object %d is wrong", c, at, i)
					}
					v.Release()
				case !errors.Is(err, hearth.ErrMiss):
					t.Errorf("%v: block %d of object %d: %v", c, at, i, err)
				case i <= last && !c.Passed(fmt.Sprint("drop ", i)):
					t.Errorf("%v: block %d of object %d was flushed, and is lost", c, at, i)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("%v: %v", c, err)
		}
		if p := pool.Stats(); p.Views != 0 || p.Used != p.Idle {
			t.Errorf("%v: after Close the pool has %+v", c, p)
		}
	})
}
