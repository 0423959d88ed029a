//go:build !race

package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

// deed is one step of a plan that a scenario follows and a check knows.
type deed struct {
	what string // append, evict, compact, sync, close or kill
	ids  []int
}

const planSegment = 2 * stageSize // the smallest

func planLength(i int) int {
	return []int{300, 5000, 9000, 40_000, 66_000, 130_000, 250_000}[i%7]
}

// draft plans that blocks come, go, come again and move, over several segments, restarts and kills,
// with a sync now and then.
func draft(seed uint64, steps int) (deeds []deed) {
	r := rand.New(rand.NewPCG(seed, 1))
	live, gone, next := []int{}, []int{}, 0
	draw := func(from *[]int, n int) (ids []int) {
		for range min(n, len(*from)) {
			at := r.IntN(len(*from))
			ids = append(ids, (*from)[at])
			*from = slices.Delete(*from, at, at+1)
		}
		return ids
	}
	for range steps {
		d := deed{}
		switch k := r.IntN(20); {
		case k < 8:
			d.what = "append"
			d.ids = draw(&gone, r.IntN(2))
			for range 2 + r.IntN(8) {
				d.ids = append(d.ids, next)
				next++
			}
			live = append(live, d.ids...)
		case k < 13:
			d.what, d.ids = "evict", draw(&live, len(live)*3/5)
			gone = append(gone, d.ids...)
		case k < 15:
			d.what = "compact"
		case k < 18:
			d.what = "sync"
		case k < 19:
			d.what = "close"
		default:
			d.what = "kill"
		}
		deeds = append(deeds, d)
	}
	return deeds
}

// follow runs a plan.
func follow(t *testing.T, dir string, deeds []deed, mark func(string)) {
	reopen := func() *Log {
		l, err := Open(Options{Dir: dir, Pool: newPool(), SegmentSize: planSegment})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := reopen()
	for i, d := range deeds {
		mark(fmt.Sprint("begin ", i))
		var err error
		switch d.what {
		case "append":
			var batch []Entry
			for _, id := range d.ids {
				batch = append(batch, entryOf(id, planLength(id)))
			}
			err = l.Append(batch)
		case "evict":
			for _, id := range d.ids {
				l.Evict(blockID(id))
			}
		case "compact":
			_, err = l.Compact(context.Background())
		case "sync":
			err = l.Sync()
		case "close":
			err = l.Close()
			l = reopen()
		case "kill":
			err = l.shut()
			l = reopen()
		}
		if err != nil {
			t.Fatalf("%s: %v", d.what, err)
		}
		mark(fmt.Sprint("end ", i))
	}
}

// promise returns what must be found after a cut: for each block whether it is held, except those
// that were put or evicted since the last Sync.
func promise(c powercut.Cut, deeds []deed) (held map[int]bool, open map[int]bool) {
	now := map[int]bool{}
	held, open = map[int]bool{}, map[int]bool{}
	for i, d := range deeds {
		if !c.Passed(fmt.Sprint("begin ", i)) {
			break
		}
		for _, id := range d.ids {
			now[id] = d.what == "append"
			open[id] = true
		}
		if d.what == "sync" && c.Passed(fmt.Sprint("end ", i)) {
			for id, is := range now {
				held[id] = is
			}
			clear(open)
		}
	}
	return held, open
}

// afterCut opens what a power cut left, and compares it with the promise.
func afterCut(t *testing.T, c powercut.Cut, deeds []deed) {
	t.Helper()
	pool := newPool()
	l, err := Open(Options{Dir: c.Dir, Pool: pool, SegmentSize: planSegment})
	if err != nil {
		t.Fatalf("%v: %v", c, err)
	}
	held, open := promise(c, deeds)
	for id := range held {
		if got := read(t, l, blockID(id), planLength(id), [2]int{0, planLength(id)}); got != nil {
			if !bytes.Equal(got, blockData(id, planLength(id))) {
				t.Errorf("%v: block %d is wrong", c, id)
			}
			if !held[id] && !open[id] {
				t.Errorf("%v: block %d was evicted, synced, and is back", c, id)
			}
		} else if held[id] && !open[id] {
			t.Errorf("%v: block %d of %d bytes was synced, and is lost", c, id, planLength(id))
		}
	}
	for id := range open {
		if got := read(t, l, blockID(id), planLength(id), [2]int{0, planLength(id)}); got != nil && !bytes.Equal(got, blockData(id, planLength(id))) {
			t.Errorf("%v: block %d is wrong", c, id)
		}
	}
	l.settler.wait() // it holds segments that are unlinked meanwhile
	// The copies are dirty in the page cache: the file system may still change their size by a page
	// per file.
	if used, real := l.Used(), allocated(t, c.Dir); max(used-real, real-used) > int64(l.Stats().Segments+1)*record.PageSize {
		t.Errorf("%v: used %d, allocated %d", c, used, real)
	}
	appendAll(t, l, entryOf(1_000_000, 10_000))
	mustHold(t, l, 1_000_000, 10_000)
	if err := l.Close(); err != nil {
		t.Errorf("%v: %v", c, err)
	}
	if s := pool.Stats(); s.Views != 0 || s.Used != s.Idle {
		t.Errorf("%v: after Close the pool has %+v", c, s)
	}
}

func TestAPowerCutLosesNothingThatWasSynced(t *testing.T) {
	// Blocks come, go and move, and the power fails at any moment. What Sync confirmed is there
	// with its bytes, and what was evicted before is not. No byte is wrong, and the log opens and
	// counts right.
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			deeds := draft(seed, 50)
			tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) { follow(t, dir, deeds, mark) })
			t.Logf("%d operations, %d syncs, %d renames, %d removals", len(tr.Ops), tr.Count(powercut.Sync), tr.Count(powercut.Rename), tr.Count(powercut.Remove))
			cuts := 0
			tr.Cuts(t, 15, 3, func(t *testing.T, c powercut.Cut) { cuts++; afterCut(t, c, deeds) })
			t.Logf("%d cuts", cuts)
		})
	}
}

func TestACopyThatDidNotReachTheDeviceCostsNoBlock(t *testing.T) {
	// Most of a closed segment is evicted and the rest copied. The power fails while the copies are
	// in flight, also after a kill and a restart that found some blocks twice. Each block is there
	// once.
	const blocks, stay, length = 18, 2, 115_000 // a segment and a little more
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
				var refuse atomic.Bool
				o := Options{Dir: dir, Pool: newPool(), SegmentSize: planSegment, tapSync: func(string) error {
					if refuse.Load() {
						return fs.ErrPermission // the kill comes before
					}
					return nil
				}}
				l, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				for i := range blocks + stay {
					appendAll(t, l, entryOf(i, length))
				}
				if err := l.Sync(); err != nil {
					t.Fatal(err)
				}
				mark("synced")
				for i := stay; i < blocks; i++ {
					l.Evict(blockID(i))
				}
				refuse.Store(killed)
				if n, err := l.Compact(t.Context()); (n < stay*length) != killed || (err != nil) != killed {
					t.Fatalf("%d bytes were copied, %v", n, err)
				}
				if refuse.Store(false); killed {
					_ = l.shut()
					if _, err = Open(o); err != nil {
						t.Fatal(err)
					}
				}
				mark("copied")
			})
			tr.From("synced").Cuts(t, 1, 8, func(t *testing.T, c powercut.Cut) {
				l, err := Open(Options{Dir: c.Dir, Pool: newPool(), SegmentSize: planSegment})
				if err != nil {
					t.Fatal(err)
				}
				defer hearthtest.Close(t, l)
				for i := range stay {
					if got := read(t, l, blockID(i), length, [2]int{0, length}); !bytes.Equal(got, blockData(i, length)) {
						t.Errorf("%v, behind %q: block %d is wrong (held: %v)", c, c.Marks, i, got != nil)
					}
				}
			})
		})
	}
}

func TestARecallCostsNoBlockThatWasSynced(t *testing.T) {
	// Synced blocks come back without memory, are put again in two rounds, and each is recalled.
	// Nothing is synced since, and the power fails at any moment. Each block is there, by its old
	// record or by the later one.
	const blocks, length = 30, 115_000
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		l, err := Open(Options{Dir: dir, Pool: newPool(), SegmentSize: planSegment})
		if err != nil {
			t.Fatal(err)
		}
		for i := range blocks {
			appendAll(t, l, entryOf(i, length))
		}
		if err := errors.Join(l.Sync(), l.Close()); err != nil {
			t.Fatal(err)
		}
		mark("synced")
		pool, more := scarce(t, 0)
		if l, err = Open(Options{Dir: dir, Pool: pool, SegmentSize: planSegment}); err != nil {
			t.Fatal(err)
		}
		more()
		due := l.unindexed()
		for round, s := range due[:2] {
			for i, other := range due {
				other.unread = i != round
			}
			for _, i := range []int{0, 1, 2} {
				appendAll(t, l, entryOf(round*due[0].records+i, length))
			}
			if err := l.Recall(t.Context()); err != nil || s.unindexed {
				t.Fatalf("not recalled: %v", err)
			}
			mark(fmt.Sprint("recalled ", round))
		}
		kill(t, l)
	})
	cuts := 0
	tr.From("synced").Cuts(t, 1, 8, func(t *testing.T, c powercut.Cut) {
		cuts++
		l, err := Open(Options{Dir: c.Dir, Pool: newPool(), SegmentSize: planSegment})
		if err != nil {
			t.Fatal(err)
		}
		defer hearthtest.Close(t, l)
		for i := range blocks {
			if got := read(t, l, blockID(i), length, [2]int{0, length}); !bytes.Equal(got, blockData(i, length)) {
				t.Errorf("%v, behind %q: block %d is wrong (held: %v)", c, c.Marks, i, got != nil)
			}
		}
	})
	if cuts == 0 {
		t.Error("no cut")
	}
}
