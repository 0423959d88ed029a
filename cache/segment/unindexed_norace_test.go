//go:build !race

package segment

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// One goroutine works here: the race detector finds nothing in it, and makes it ten times slower.

func TestAnUnindexedBlockIsPutAgain(t *testing.T) {
	// An unindexed block is fetched and put again, so it has two records. Whatever happens to
	// either, in any order (memory, restarts, eviction), its bytes are right and the log counts
	// what it holds. No other block is lost with the other record.
	const again = 40
	for _, then := range []string{"recall", "reopen", "reopen scarce", "evict, recall", "evict, reopen", "shed"} {
		t.Run(then, func(t *testing.T) {
			dir := several(t, someBlocks)
			l, more := openScarce(t, dir, 70<<10)
			held := tell(t, l, someBlocks)
			var twice []int
			for i := 0; len(twice) < again; i += 7 {
				if !held[i] {
					if err := l.Append([]Entry{entryOf(i, 3000)}); err == nil { // otherwise its table is full
						twice = append(twice, i)
						mustHold(t, l, i, 3000)
					}
				}
			}
			want := someBlocks
			switch then {
			case "evict, recall", "evict, reopen":
				for _, i := range twice {
					l.Evict(blockID(i))
					mustMiss(t, l, i, 3000)
				}
			case "shed":
				want = int(l.Stats().Blocks)
				for l.Shed(func(hearth.ID) bool { return false }) > 0 {
				}
				for _, i := range twice {
					mustHold(t, l, i, 3000)
				}
			}
			switch then {
			case "recall", "evict, recall":
				more()
				if err := l.Recall(t.Context()); err != nil {
					t.Fatal(err)
				}
			case "reopen scarce":
				more()
				closeLog(t, l)
				l, more = openScarce(t, dir, 70<<10)
				for _, i := range twice { // in the newest segment
					mustHold(t, l, i, 3000)
				}
				more()
				if err := l.Recall(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if s := l.Stats(); then != "reopen" && then != "evict, reopen" && (s.Blocks != int64(want) || count(tell(t, l, someBlocks)) != want) {
					t.Errorf("%d blocks, want %d: %+v", count(tell(t, l, someBlocks)), want, s)
				}
				if l.Used() != allocated(t, dir) {
					t.Errorf("used %d, allocated %d", l.Used(), allocated(t, dir))
				}
				more()
				closeLog(t, l)
				l = open(t, Options{Dir: dir})
				then += ", and again"
			}
		})
	}
}

func TestReopenedWithAnyMemory(t *testing.T) {
	// Random appends, evictions, sheds, compactions, kills and restarts, each with a random amount
	// of memory, are compared with a reference. Only evicted or shed blocks are gone, no pinned one
	// is, and what is used is what is allocated.
	const kinds, length = 4000, 3000
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 22))
		dir := t.TempDir()
		var l *Log
		more := func() {}
		reopen := func(end func(testing.TB, *Log)) {
			if l != nil {
				more()
				end(t, l)
			}
			var pool *hearth.Pool
			pool, more = scarce(t, int64(r.IntN(4))*(50<<10)+int64(r.IntN(2))*(10<<20))
			var err error
			if l, err = Open(Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20}); err != nil {
				t.Fatal(err)
			}
		}
		reopen(closeLog)
		must, may := map[int]bool{}, map[int]bool{} // held for certain, and perhaps held
		pins, number := map[hearth.ID]bool{}, map[hearth.ID]int{}
		for i := range kinds {
			number[blockID(i)] = i
			pins[blockID(i)] = i%97 == 0
		}
		for step := range 90 {
			switch k := r.IntN(20); {
			case k < 8:
				at := r.IntN(kinds)
				for range 200 {
					at = (at + 1) % kinds
					if err := l.Append([]Entry{entryOf(at, length)}); err == nil {
						must[at] = true
					} else if !errors.Is(err, ErrDeclined) {
						t.Fatal(err)
					}
				}
			case k < 11:
				for range 300 {
					if i := r.IntN(kinds); !pins[blockID(i)] {
						l.Evict(blockID(i)) // an unindexed copy may come back
						delete(must, i)
						may[i] = true
					}
				}
			case k < 13:
				was := l.Stats().Unindexed
				n := l.Shed(func(id hearth.ID) bool {
					if i := number[id]; !pins[id] && !l.Has(id) { // otherwise another record of it stays
						delete(must, i)
						may[i] = true
					}
					return pins[id]
				})
				if l.Stats().Unindexed != was-n {
					t.Fatalf("%d of %d went, %+v", n, was, l.Stats())
				}
			case k < 15:
				if _, err := l.Compact(t.Context()); err != nil {
					t.Fatal(err)
				}
			case k < 17:
				more()
				if err := l.Recall(t.Context()); err != nil {
					t.Fatal(err)
				}
			case k < 18:
				reopen(func(t testing.TB, l *Log) { kill(t, l) })
			default:
				reopen(closeLog)
			}
			l.settler.wait()
			// After a kill the file system may still change a size by a page per file.
			if off := l.Used() - allocated(t, dir); max(off, -off) > int64(l.Stats().Segments+1)*record.PageSize {
				t.Fatalf("seed %d, step %d: used %d, allocated %d", seed, step, l.Used(), allocated(t, dir))
			}
			if step%30 > 0 && step < 89 {
				continue
			}
			more()
			if err := l.Recall(context.Background()); err != nil {
				t.Fatal(err)
			}
			for i := range kinds {
				got := read(t, l, blockID(i), length, [2]int{0, length})
				switch {
				case got != nil && !bytes.Equal(got, blockData(i, length)):
					t.Fatalf("seed %d, step %d: block %d is wrong", seed, step, i)
				case got == nil && must[i]:
					t.Fatalf("seed %d, step %d: block %d is lost, pinned: %v, %+v", seed, step, i, pins[blockID(i)], l.Stats())
				case got != nil && !must[i] && !may[i]:
					t.Fatalf("seed %d, step %d: block %d was never put", seed, step, i)
				}
			}
			if s := l.Stats(); s.Unindexed != 0 || s.Corrupt != 0 {
				t.Fatalf("seed %d, step %d: %+v", seed, step, s)
			}
		}
		more()
		closeLog(t, l)
	}
}

func TestWhatThereIsNoMemoryForStays(t *testing.T) {
	// A log is opened with less and less memory, down to none. The unindexed blocks are on disk,
	// count, and are the oldest. With memory again none is missing, after a restart or without.
	dir := several(t, someBlocks)
	before := allocated(t, dir)
	for _, left := range []int64{200 << 10, 100 << 10, 70 << 10, 0} {
		l, more := openScarce(t, dir, left)
		s := l.Stats()
		if s.Blocks+s.Unindexed != someBlocks || s.Unindexed < someBlocks/5 || left > 100<<10 && s.Blocks == 0 {
			t.Fatalf("with %d bytes %d blocks are indexed and %d not", left, s.Blocks, s.Unindexed)
		}
		if s.UnindexedBytes < s.Unindexed*3000 || l.Used() != allocated(t, dir) || max(l.Used()-before, before-l.Used()) > 64<<10 {
			t.Errorf("with %d bytes: used %d, allocated %d, before %d, %+v", left, l.Used(), allocated(t, dir), before, s)
		}
		held := tell(t, l, someBlocks)
		if count(held) != int(s.Blocks) || s.Blocks > 0 && !held[someBlocks-1] {
			t.Errorf("with %d bytes %d of %d indexed blocks are read, the newest: %v", left, count(held), s.Blocks, held[someBlocks-1])
		}
		if err := l.Recall(t.Context()); err != nil || l.Stats().Unindexed == 0 {
			t.Errorf("recalled without memory: %+v, %v", l.Stats(), err)
		}
		if left == 70<<10 {
			more()
			if err := l.Recall(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := l.Stats(); s.Blocks != someBlocks || s.Unindexed != 0 || s.UnindexedBytes != 0 {
				t.Errorf("with memory again: %+v", s)
			}
		}
		more()
		closeLog(t, l)
	}
	l := open(t, Options{Dir: dir})
	if n := count(tell(t, l, someBlocks)); n != someBlocks {
		t.Errorf("%d blocks of %d are left", n, someBlocks)
	}
}

func TestARecallOfManyDoublesEndsInTime(t *testing.T) {
	// Thousands of unindexed blocks are put again, and memory comes back. A recall shows progress,
	// and ends with its context within a segment, and so does each later one. At the end each block
	// is there once. The open segment is synced once.
	dir := several(t, someBlocks)
	pool, more := scarce(t, 0)
	_, cancel := context.WithCancel(t.Context())
	steps, syncs := 0, map[string]int{}
	l := open(t, Options{Dir: dir, Pool: pool, SegmentSize: 64 << 20,
		Step:    func() { steps++; cancel() },
		tapSync: func(name string) error { syncs[name]++; return nil }})
	t.Cleanup(more)
	more()
	var again []int
	for i := range someBlocks {
		if i%2 == 0 || i < someBlocks/3 {
			again = append(again, i)
		}
	}
	putAgain(t, l, again...)
	l.settler.wait()
	steps = 0
	clear(syncs)
	recalls, left := 0, l.Stats().Unindexed
	for ; left > 0; recalls++ {
		if recalls > someBlocks {
			t.Fatalf("no end: %+v", l.Stats())
		}
		var ctx context.Context
		ctx, cancel = context.WithCancel(t.Context())
		if err := l.Recall(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		s := l.Stats()
		if s.Unindexed >= left {
			t.Fatalf("a recall did nothing: %+v", s)
		}
		if s.Blocks+s.Unindexed < someBlocks {
			t.Fatalf("%d blocks are gone: %+v", someBlocks-s.Blocks-s.Unindexed, s)
		}
		left = s.Unindexed
	}
	if least := len(again) / doublesAtOnce; recalls < least || steps < least {
		t.Errorf("%d recalls and %d steps for %d doubles", recalls, steps, len(again))
	}
	if n := syncs[l.writer.segment.name()]; n != 1 {
		t.Errorf("the open segment was synced %d times", n)
	}
	for range 2 {
		s := l.Stats()
		if s.Blocks != someBlocks || count(tell(t, l, someBlocks)) != someBlocks || s.Corrupt != 0 {
			t.Errorf("%d of %d blocks are read, %+v", count(tell(t, l, someBlocks)), someBlocks, s)
		}
		// The file system may still change the size of a file by a page, and this one has thousands
		// of holes.
		if used, real := l.Used(), allocated(t, dir); max(used-real, real-used) > int64(s.Segments+1)*record.PageSize || used > someBlocks*4600 {
			t.Errorf("used %d, allocated %d", used, real)
		}
		closeLog(t, l)
		l = open(t, Options{Dir: dir, SegmentSize: 64 << 20})
	}
}

func TestARecordDiesOnceItsDoubleIsOnTheDevice(t *testing.T) {
	// Blocks are put again and recalled, twice. The first recall synced the open segment with their
	// later records, and more was appended since. No old record dies before all of that is on the
	// device.
	dir := several(t, someBlocks)
	pool, more := scarce(t, 0)
	dirty, recalling := map[string]bool{}, false
	l := open(t, Options{Dir: dir, Pool: pool, SegmentSize: 64 << 20,
		tap: func(c change) error {
			if c.What == "write" && c.Name != deathsName {
				dirty[c.Name] = true
			}
			if recalling && (c.Name == deathsName || c.What == "punch") && len(dirty) > 0 {
				t.Errorf("%s of %s while %v are not on the device", c.What, c.Name, dirty)
			}
			return nil
		},
		tapSync: func(name string) error { delete(dirty, name); return nil }})
	t.Cleanup(more)
	more()
	due := l.unindexed()
	for i, s := range due {
		s.unread = i != 1 // for now
	}
	per := due[0].records
	for round, first := range []int{per, 0} {
		for i := range 20 {
			putAgain(t, l, first+i)
		}
		l.settler.wait()
		recalling = true
		if err := l.Recall(t.Context()); err != nil {
			t.Fatal(err)
		}
		recalling = false
		if s := l.Stats(); s.Blocks+s.Unindexed != someBlocks || round == 0 && s.Unindexed == 0 || round == 1 && s.Unindexed > 0 {
			t.Errorf("round %d: %+v", round, s)
		}
		for _, s := range due {
			s.unread = false
		}
	}
	if n := count(tell(t, l, someBlocks)); n != someBlocks {
		t.Errorf("%d of %d blocks are left", n, someBlocks)
	}
}
