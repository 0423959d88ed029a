package disk

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// askedLater makes the directory's policy see a load under which it pays to
// replace: each block is asked for again a little later, and then never.
func askedLater(t *testing.T, s *Store) {
	t.Helper()
	p := s.dirs[0].policy
	for i := range uint32(40_000) {
		p.Use(small(1<<20+int(i), 100_000).Block(0).ID(), 100_000, i)
		if i >= 8 {
			p.Use(small(1<<20+int(i-8), 100_000).Block(0).ID(), 100_000, i)
		}
		if p.Replaces() {
			return
		}
	}
	t.Fatal("the policy never wants to replace")
}

func TestPutReplacesWhenThatPays(t *testing.T) {
	// A full directory takes a Put once the policy says so, by evicting, within its budget; pinned blocks stay all the same.
	pinned := map[hearth.ID]bool{}
	for i := range 10 {
		pinned[small(i, 100_000).Block(0).ID()] = true
	}
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}, Pinned: func(id hearth.ID) bool { return pinned[id] }})
	if room, queue := r.Spare(small(7000, 100_000).Block(0), time.Now()); !room || !queue {
		t.Fatal("an empty directory has nothing to spare")
	}
	fill(r, 0)
	if r.Takes(small(7000, 100_000).Block(0)) || !isFull(r.put(small(7000, 100_000))) {
		t.Fatal("a full directory took a Put before the policy said so")
	}
	askedLater(t, r.Store)
	for i := range 60 {
		o := small(8000+i, 100_000)
		if !r.Takes(o.Block(0)) {
			t.Fatalf("block %d is not taken although the policy says so", i)
		}
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.flush()
		if !r.holds(o) {
			t.Fatalf("block %d was taken and is not held", i)
		}
	}
	if used := r.area(0).used(); used > 4<<20 {
		t.Fatalf("%d used of %d", used, 4<<20)
	}
	for i := range 10 {
		if !r.holds(small(i, 100_000)) {
			t.Fatalf("pinned block %d is gone", i)
		}
	}
}

func TestSpareIsWhatLosesAndWasNotUsedSince(t *testing.T) {
	// A full directory has room for what nobody has asked for once the policy replaces, and only while what would go was used last before a given moment; a read takes that back, what is pinned never goes, and nothing does while pins are not known.
	var pinned, unknown atomic.Bool
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}, Pinned: func(hearth.ID) bool { return pinned.Load() }, Unknown: unknown.Load})
	n := fill(r, 0)
	room := func(since time.Time) bool {
		room, _ := r.Spare(small(7000, 100_000).Block(0), since)
		return room
	}
	later := time.Now().Add(time.Hour)
	if room(later) {
		t.Fatal("it has room before the policy replaces anything")
	}
	askedLater(t, r.Store)
	r.until("what is held yields", func() bool { return room(later) })
	if room(time.Now().Add(-time.Hour)) {
		t.Fatal("what was written since has to yield")
	}
	r.area(0).setStates(evict.Fresh(r.dirs[0].clock.seconds() - 100))
	before := time.Now().Add(-50 * time.Second)
	r.until("what is old yields", func() bool { return room(before) })
	for i := range n {
		r.holds(small(i, 100_000))
	}
	r.until("what was read stays", func() bool { return !room(before) })
	for _, stays := range []*atomic.Bool{&pinned, &unknown} {
		r.until("what is held yields", func() bool { return room(later) })
		stays.Store(true)
		r.until("nothing yields", func() bool { return !room(later) })
		stays.Store(false)
	}
}

func TestOursPushOutTheirs(t *testing.T) {
	// Our blocks take the room of others' in a full directory whatever the policy says, others' never that of ours, and none is left when all is ours.
	ours := func(id hearth.ID) bool { return id.Hash()%2 == 0 }
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}, Owns: ours})
	n := fill(r, 0)
	kept := map[int]bool{}
	for i := range n {
		kept[i] = ours(small(i, 100_000).Block(0).ID())
	}
	if !r.dirs[0].foreign.Load() { // or what comes next of ours would be declined until the writer looks
		t.Error("nobody noted that some of what was put is others'")
	}
	pushed := 0
	for i := 1000; pushed < 4 && i < 2000; i++ {
		o := small(i, 100_000)
		if room, _ := r.Spare(o.Block(0), time.Now()); room != ours(o.Block(0).ID()) {
			t.Fatalf("room for block %d, which nobody has asked for: %v", i, room)
		}
		if !ours(o.Block(0).ID()) {
			if !isFull(r.put(o)) {
				t.Fatal("another's block was taken into a full directory")
			}
			continue
		}
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.flush()
		if !r.holds(o) {
			t.Fatalf("our block %d did not get the room of another's", i)
		}
		pushed++
	}
	for i, own := range kept {
		if own && !r.holds(small(i, 100_000)) {
			t.Fatalf("our block %d made room", i)
		}
	}
}

func TestPolicyMemoryIsCounted(t *testing.T) {
	// What the policies take is in the Pool while the Store is open, and given back.
	r := newRig(t, Options{})
	before := r.pool.Stats().Used
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if after := r.pool.Stats().Used; before-after < 200<<10 {
		t.Fatalf("%d reserved while open, %d after", before, after)
	}
}

func TestLargeFilesGoByExtents(t *testing.T) {
	// A directory full of large files with holes gives up extents for a Put that pays, within its budget, and every byte that is left is right.
	const budget, held = 96 << 20, 18 // blocks of each object: an extent, and two of the next
	s := openReal(t, Options{Dirs: []DirOptions{{Path: t.TempDir(), Budget: budget}}})
	large := func(i int) *hearth.Object { return hearthtest.NewObject(fmt.Sprintf("large/%d", i), 24<<20, 1) }
	put := func(b hearth.Block) error {
		v := hearthtest.View(t, s.dirs[0].opt.Pool, b, 1)
		defer v.Release()
		err := s.Put(b, v)
		return errors.Join(err, s.Flush(t.Context()))
	}
	full := 0
	for i := 0; full == 0; i++ {
		for k := range int64(held) {
			if err := put(large(i).Block(k)); errors.Is(err, ErrFull) {
				full = i
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	askedLater(t, s)
	for k := range int64(held) {
		if err := put(large(1000).Block(k)); err != nil {
			t.Fatalf("block %d: %v", k, err)
		}
	}
	if used := s.Stats().Dirs[0].Used; used > budget+writeUnit {
		t.Errorf("%d bytes used of %d", used, budget)
	}
	split := 0
	for i := range full {
		first, last := 0, 0
		for k := range int64(held) {
			if hearthtest.CheckGet(t, s, large(i).Block(k), 0, hearth.BlockSize, 1) {
				continue // a miss
			}
			if k < hearth.ExtentBlocks {
				first++
			} else {
				last++
			}
		}
		if first != 0 && first != hearth.ExtentBlocks || last != 0 && last != held-hearth.ExtentBlocks {
			t.Errorf("object %d has %d and %d blocks left in its extents: not whole extents", i, first, last)
		}
		if (first == 0) != (last == 0) {
			split++
		}
	}
	if split == 0 {
		t.Errorf("no object lost one extent and kept the other: %+v", s.Stats().Dirs[0])
	}
}

func TestAKeepWaitsForWhatLeaves(t *testing.T) {
	// All that may go was evicted for a Keep, and still counts, since somebody had it open. The Keep finds its room a little later.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20}}})
	n := fill(r, 0)
	before := r.dirs[0].declined.Load()
	a := r.area(0)
	a.mu.Lock()
	a.leaves = func() bool { return r.dirs[0].declined.Load() > before }
	a.mu.Unlock()
	o := small(9000, 100_000)
	v := hearthtest.View(t, r.pool, o.Block(0), 0)
	defer v.Release()
	if err := r.Keep(t.Context(), o.Block(0), v); err != nil || r.dirs[0].declined.Load() != before+1 {
		t.Errorf("a Keep beside %d blocks that leave: %v, declined %d times", n, err, r.dirs[0].declined.Load()-before)
	}
}

func TestTheFloorWinsOverPins(t *testing.T) {
	// All of a directory is pinned: a Keep finds no room. When others fill the file
	// system it goes all the same, since the floor is a promise.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20, Floor: 1 << 30}}, Pinned: func(hearth.ID) bool { return true }})
	fill(r, 0)
	o := small(9000, 100_000)
	v := hearthtest.View(t, r.pool, o.Block(0), 0)
	defer v.Release()
	if err := r.Keep(t.Context(), o.Block(0), v); !isFull(err) {
		t.Errorf("a Keep where all is pinned: %v", err)
	}
	before := r.area(0).used()
	r.free.Store(1<<30 - 5<<20)
	r.until("5 MiB given back", func() bool { return r.area(0).used() <= before-5<<20 })
}

func TestABudgetMissedByAWriteCostsNoPin(t *testing.T) {
	// A write took some pages more than reckoned, and all is pinned: that is what a budget
	// may be missed by, and nothing goes. What is more goes.
	const budget, pins = 8 << 20, 100
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: budget}}, Pinned: func(hearth.ID) bool { return true }})
	a := r.area(0)
	fill := func(used int64) {
		a.mu.Lock()
		for a.spared = pins; a.size < used; {
			a.keepLocked(hearth.ID{Version: [16]byte{1}, Index: a.size}, []byte{1})
		}
		a.mu.Unlock()
	}
	fill(budget + 8192)
	r.until("seen", func() bool { return r.Stats().Dirs[0].Used > budget })
	r.flush() // the look is over
	if n, _ := a.unindexed(); n != pins || r.Stats().Dirs[0].Evicted != 0 {
		t.Errorf("%d of %d pinned blocks without an index are left, %+v", n, pins, r.Stats().Dirs[0])
	}
	fill(budget + writeUnit + 8192)
	r.until("it shrinks", func() bool { n, _ := a.unindexed(); return n == 0 && a.used() <= budget })
}

func TestNothingGoesBeforePinsAreKnown(t *testing.T) {
	// It is not known yet what is pinned: a full directory gives up nothing, neither for a
	// Keep nor for the floor. Then it does. What is dropped goes in any case.
	var known atomic.Bool
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20, Floor: 1 << 30}}, Unknown: func() bool { return !known.Load() },
		Pinned: func(hearth.ID) bool { return true }})
	fill(r, 0)
	o := small(9000, 100_000)
	v := hearthtest.View(t, r.pool, o.Block(0), 0)
	defer v.Release()
	before := r.Stats().Dirs[0].Evicted
	r.free.Store(1<<30 - 5<<20)
	for i := 0; i < 20; i++ {
		if err := r.Keep(t.Context(), o.Block(0), v); !isFull(err) {
			t.Fatalf("a Keep: %v", err)
		}
	}
	if n := r.Stats().Dirs[0].Evicted - before; n != 0 {
		t.Errorf("%d blocks went before pins were known", n)
	}
	if first := small(0, 100_000); !r.holds(first) {
		t.Error("the first block is not held")
	} else if r.Drop(first); r.holds(first) {
		t.Error("a block is held that was dropped")
	}
	known.Store(true)
	r.until("something given back to the floor", func() bool { return r.Stats().Dirs[0].Evicted > before })
}

func TestAPinnedVersionThatCameBackStays(t *testing.T) {
	// A version was replaced and is the name's again, and pinned: it stays, and another
	// that was replaced goes for a Keep.
	back := small(0, 100_000)
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}, Pinned: func(id hearth.ID) bool { return id.Version == back.Version }})
	fill(r, 0)
	gone := small(1, 100_000)
	r.Replaced(back)
	r.Replaced(gone)
	o := small(9000, 100_000)
	v := hearthtest.View(t, r.pool, o.Block(0), 0)
	defer v.Release()
	if err := r.Keep(t.Context(), o.Block(0), v); err != nil {
		t.Fatal(err)
	}
	if !r.holds(back) || r.holds(gone) {
		t.Errorf("the pinned one is held: %v, the other: %v", r.holds(back), r.holds(gone))
	}
}

func TestRoomIsMadeAgainWhereSomebodyTookIt(t *testing.T) {
	// While a full directory gives up a block for a Keep, others take what that frees: it gives
	// up another.
	var r *rig
	var asked atomic.Int64
	r = newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20, Floor: 1 << 30}}, Pinned: func(hearth.ID) bool {
		free := int64(1 << 30) // just what is to stay free
		if asked.Add(1) > evict.Samples {
			free = 1 << 40
		}
		r.free.Store(free)
		return false
	}})
	fill(r, 0)
	asked.Store(0)
	if err := r.keep(t.Context(), small(9000, 100_000)); err != nil {
		t.Errorf("a Keep beside others: %v", err)
	}
	if asked.Load() <= evict.Samples {
		t.Error("nothing was given up a second time")
	}
}
