//go:build !race

package disk

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// starve leaves indexes so many bytes of the Pool; more gives them all.
func starve(t *testing.T, pool *hearth.Pool, left int64) (more func()) {
	t.Helper()
	taken := int64(0)
	for n := pool.Stats().Budget; n > 0; n /= 2 {
		for pool.Claim(n) {
			taken += n
		}
	}
	pool.Unclaim(left)
	taken -= left
	return func() { pool.Unclaim(taken); taken = 0 }
}

func TestReturnBesideAFullRAMTier(t *testing.T) {
	// A device stalls; while its directory is out, the RAM tier and readers take the memory
	// of its index, and nobody asks for anything more. The RAM tier gives way: nothing is lost.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	const n = 40_000
	dir := t.TempDir()
	fillReady(t, dir, "closed", n)
	pool := hearthtest.Pool(t, hearth.MinRAM)
	s := openReal(t, Options{Pool: pool, QueueBytes: 1 << 20, Dirs: []DirOptions{{Path: dir, Budget: readyBudget}}})
	d := s.dirs[0]
	if b := s.Stats().Dirs[0].Blocks; b != n {
		t.Fatalf("%d blocks", b)
	}
	ram := cache.NewRAM(pool, hearth.MinRAM)
	t.Cleanup(ram.Close)
	hot := hearthtest.NewObject("hot", 1000<<20, 1)
	at := int64(0)
	grow := func() {
		for range 60 {
			if v := pool.TryAlloc(hearth.BlockSize); v != nil {
				_ = ram.Put(hot.Block(at), v)
				at++
				v.Release()
			}
		}
	}
	hang := make(chan struct{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if d.guard.Do(gone, device.NewCall(func() { <-hang }, func() {})) { // it hangs in the device, and does not return yet
		t.Fatal("what hangs has ended")
	}
	d.hangs("an operation", time.Second)
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return d.volume.Load() == nil && s.Stats().Dirs[0].IndexBytes == 0 }) {
		t.Fatal("not let go")
	}
	grow()
	var readers []*hearth.View
	for spare := func() int64 { s := pool.Stats(); return s.Budget - s.Used + s.Idle }; spare() > 2500<<10; {
		v := pool.TryAlloc(256 << 10)
		if v == nil {
			break
		}
		readers = append(readers, v)
	}
	close(hang)
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return !s.Stats().Dirs[0].Ejected }) {
		t.Fatalf("never returned: %+v", s.Stats().Dirs[0])
	}
	if x := s.Stats().Dirs[0]; x.Blocks != n || x.Unindexed != 0 {
		t.Errorf("after the return %d blocks are held and %d have no index; RAM %+v, pool %+v", x.Blocks, x.Unindexed, ram.Stats(), pool.Stats())
	}
	for _, v := range readers {
		v.Release()
	}
}

// blend is the i-th object of what is packed, mostly, and of what has a file of its own.
func blend(i int) *hearth.Object {
	size := int64(3000 + i)
	if i%100 == 99 {
		size = hearth.BlockSize + 5000 + int64(i)
	}
	return hearthtest.NewObject(fmt.Sprint("blend/", i), size, 1)
}

func keepAll(t *testing.T, s *Store, pool *hearth.Pool, o *hearth.Object) {
	t.Helper()
	for i := range o.Blocks() {
		v := hearthtest.View(t, pool, o.Block(i), 1)
		if err := s.Keep(t.Context(), o.Block(i), v); err != nil {
			t.Error(err)
		}
		v.Release()
	}
}

func holdsAll(t *testing.T, s *Store, o *hearth.Object) bool {
	t.Helper()
	for i := range o.Blocks() {
		if b := o.Block(i); hearthtest.CheckGet(t, s, b, 0, b.Len(), 1) {
			return false
		}
	}
	return true
}

func TestLessRAMAtARestartDeletesNothing(t *testing.T) {
	// cache.ram was made so small that next to nothing of the index fits. What has none is
	// told of, counts, and stays beside what is put now; once there is more, by a restart
	// or since others gave it back, all is held.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	const n = 3000
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	var told atomic.Int64
	o := Options{Pool: pool, Dirs: []DirOptions{{Path: dir, Budget: 64 << 20, Floor: -1}}, Check: 5 * time.Millisecond,
		Events: Events{Unindexed: func(_ string, blocks, _ int64) { told.Add(blocks) }}}
	more, s := func() {}, (*Store)(nil)
	end := func() {
		t.Helper()
		if s == nil {
			return
		}
		was := s
		s = nil
		if err := was.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { end(); more() }) // whatever failed: no other test has to see it
	reopen := func() {
		t.Helper()
		end()
		var err error
		if s, err = Open(o); err != nil {
			t.Fatal(err)
		}
	}
	reopen()
	for i := range n {
		keepAll(t, s, pool, blend(i))
	}
	for i, left := range []int64{0, 80 << 10} {
		used := s.Stats().Dirs[0].Used
		end()
		more = starve(t, pool, left)
		told.Store(0)
		reopen()
		if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return told.Load() > 0 }) {
			t.Fatal("nobody is told of it")
		}
		x := s.Stats().Dirs[0]
		if x.Unindexed < n/3 || x.UnindexedBytes < x.Unindexed*3000 || x.Evicted != 0 || x.Used < used-256<<10 || x.Used > used+256<<10 {
			t.Errorf("used %d before, then %+v", used, x)
		}
		if left > 0 {
			fresh := hearthtest.NewObject(fmt.Sprint("fresh/", i), 5000, 1)
			keepAll(t, s, pool, fresh)
			if !holdsAll(t, s, fresh) {
				t.Error("what is put is not held")
			}
		}
		more()
		if left == 0 {
			reopen()
		} else if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return s.Stats().Dirs[0].Unindexed == 0 }) {
			t.Fatalf("there is memory, and still: %+v", s.Stats().Dirs[0])
		}
		for i := range n {
			if o := blend(i); !holdsAll(t, s, o) {
				t.Fatalf("object %d of %d bytes is lost", i, o.Size)
			}
		}
	}
}

func TestUnindexedGoFirst(t *testing.T) {
	// A directory comes back full and without memory for most of its index, then blocks
	// come that no policy makes room for: what has no index goes for them, but for what is
	// pinned, and nothing that has one. The budget holds.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	const most, budget = 20_000, 48 << 20
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	pins := map[[16]byte]bool{}
	for i := range most {
		if i%250 == 99 || i%250 == 7 {
			pins[blend(i).Version] = true
		}
	}
	o := Options{Pool: pool, Dirs: []DirOptions{{Path: dir, Budget: budget}}, Pinned: func(id hearth.ID) bool { return pins[id.Version] }}
	var objects []*hearth.Object
	t.Run("fill", func(t *testing.T) {
		s := openReal(t, o)
		for i := 0; i < most && s.Stats().Dirs[0].Used < budget-3<<20; i++ {
			keepAll(t, s, pool, blend(i))
			objects = append(objects, blend(i))
		}
	})
	var fresh []*hearth.Object
	t.Run("scarce", func(t *testing.T) {
		more := starve(t, pool, 100<<10)
		s := openReal(t, o)
		t.Cleanup(more)
		var indexed []*hearth.Object
		for _, x := range objects {
			if s.Has(x.Block(0).ID()) {
				indexed = append(indexed, x)
			}
		}
		before := s.Stats().Dirs[0]
		if before.Replaces || before.Unindexed < 1000 || len(indexed) < 500 {
			t.Fatalf("%d of %d objects are indexed, %+v", len(indexed), len(objects), before)
		}
		for i := range 55 {
			x := hearthtest.NewObject(fmt.Sprint("fresh/", i), 150_000, 1)
			v := hearthtest.View(t, pool, x.Block(0), 1)
			if err := errors.Join(s.Put(x.Block(0), v), s.Flush(t.Context())); err != nil {
				t.Errorf("put %d: %v, %+v", i, err, s.Stats().Dirs[0])
			}
			v.Release()
			if s.Has(x.Block(0).ID()) { // else its table of the index is full
				fresh = append(fresh, x)
			}
			if used := device.Usage(dir); used > budget+writeUnit {
				t.Fatalf("%d bytes are used of %d", used, budget)
			}
		}
		if x := s.Stats().Dirs[0]; len(fresh) < 40 || x.Unindexed >= before.Unindexed || x.Evicted == 0 {
			t.Errorf("%d were kept, %+v", len(fresh), x)
		}
		for _, x := range indexed {
			if !s.Has(x.Block(0).ID()) {
				t.Fatalf("an indexed object of %d bytes went before unindexed ones: %+v", x.Size, s.Stats().Dirs[0])
			}
		}
	})
	s := openReal(t, o)
	for _, x := range fresh {
		if !holdsAll(t, s, x) {
			t.Error("what was kept is lost")
		}
	}
	lost := 0
	for _, x := range objects {
		held := holdsAll(t, s, x)
		if !held && pins[x.Version] {
			t.Errorf("a pinned object of %d bytes is lost", x.Size)
		}
		if !held {
			lost++
		}
	}
	if lost == 0 || lost > len(objects)*3/4 {
		t.Errorf("%d of %d objects went", lost, len(objects))
	}
}

func TestAllUnindexedArePinned(t *testing.T) {
	// All that has no index is pinned: blocks that come are declined, and nothing goes. The
	// floor wins over pins, and then what has no index goes before what has one.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	const budget = 24 << 20
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	var free atomic.Int64
	free.Store(1 << 40)
	o := Options{Pool: pool, Dirs: []DirOptions{{Path: dir, Budget: budget, Floor: 1 << 30}}, Pinned: func(hearth.ID) bool { return true },
		statfs: func(path string, st *unix.Statfs_t) error {
			err := unix.Statfs(path, st)
			st.Bsize, st.Bavail = 1, uint64(free.Load())
			return err
		}}
	t.Run("fill", func(t *testing.T) {
		s := openReal(t, o)
		for i := 0; s.Stats().Dirs[0].Used < budget-1<<20; i++ {
			keepAll(t, s, pool, small(i, 3000))
		}
	})
	more := starve(t, pool, 80<<10)
	s := openReal(t, o)
	t.Cleanup(more)
	before := s.Stats().Dirs[0]
	if before.Unindexed == 0 || before.Blocks == 0 {
		t.Fatalf("%+v", before)
	}
	for i := range 40 {
		x := small(100_000+i, 100_000)
		v := hearthtest.View(t, pool, x.Block(0), 1)
		_ = s.Put(x.Block(0), v)
		v.Release()
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x := s.Stats().Dirs[0]; x.Evicted != 0 || x.Unindexed != before.Unindexed {
		t.Errorf("what is pinned went: %+v, before %+v", x, before)
	}
	free.Store(1<<30 - 6<<20)
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return s.Stats().Dirs[0].Used <= budget-7<<20 }) {
		t.Fatalf("the floor does not win: %+v", s.Stats().Dirs[0])
	}
	if x := s.Stats().Dirs[0]; x.Blocks < before.Blocks || x.Unindexed >= before.Unindexed {
		t.Errorf("before %+v, then %+v", before, x)
	}
}
