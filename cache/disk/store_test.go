package disk

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestQueuedIsReadable(t *testing.T) {
	// While the device stalls, what was put is read from the queue; the queue is bounded and then declines; nothing is lost once the device goes on.
	r := newRig(t, Options{QueueBytes: 2 << 20})
	r.area(0).stall = make(chan struct{})
	var taken []*hearth.Object
	var last error
	for i := 0; i < 100 && last == nil; i++ {
		o := small(i, 100_000)
		if last = r.put(o); last == nil {
			taken = append(taken, o)
		}
	}
	if !errors.Is(last, errFull) || len(taken) < 15 || len(taken) > 21 {
		t.Fatalf("%d of 100 KB taken by a queue of 2 MiB, then %v", len(taken), last)
	}
	for _, o := range taken {
		if !r.holds(o) || !r.Has(o.Block(0).ID()) {
			t.Fatal("a queued block is missed")
		}
	}
	close(r.area(0).stall)
	r.flush()
	for _, o := range taken {
		if !r.area(0).has(o.Block(0).ID()) || !r.holds(o) {
			t.Fatal("a queued block was lost")
		}
	}
	if st := r.Stats().Dirs[0]; st.Queued != 0 || st.Declined != 1 || !r.dirs[0].queue.Empty() {
		t.Fatalf("after Flush: %+v", st)
	}
}

func TestKeepWaitsForTheQueue(t *testing.T) {
	// Keep waits for room in the queue; its context ends the wait, and the View is not leaked.
	r := newRig(t, Options{QueueBytes: 1 << 20})
	r.area(0).stall = make(chan struct{})
	for i := range 10 {
		if err := r.put(small(i, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.keep(ctx, small(50, 100_000)) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled Keep said %v", err)
	}
	go func() { done <- r.keep(t.Context(), small(51, 100_000)) }()
	close(r.area(0).stall)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !r.area(0).has(small(51, 100_000).Block(0).ID()) {
		t.Fatal("Keep returned before the block was written")
	}
}

func TestPutGoesIntoFreeSpaceKeepEvicts(t *testing.T) {
	// A full directory declines a Put and keeps what it has; a Keep evicts.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}})
	n := fill(r, 0)
	if n < 35 || n > 42 {
		t.Fatalf("%d blocks of 100 KB fit into 4 MiB", n)
	}
	if err := r.keep(t.Context(), small(1000, 100_000)); err != nil {
		t.Fatal(err)
	}
	if !r.holds(small(1000, 100_000)) || r.Stats().Dirs[0].Evicted == 0 {
		t.Fatalf("not kept by evicting: %+v", r.Stats())
	}
	if used := r.area(0).used(); used > 4<<20 {
		t.Fatalf("%d used of %d", used, 4<<20)
	}
}

// fill puts 100 KB objects from start on until the directory is full.
func fill(r *rig, start int) (n int) {
	r.t.Helper()
	for n = 0; n < 1000; n++ {
		err := r.put(small(start+n, 100_000))
		if isFull(err) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		r.flush()
	}
	return n
}

func TestReplacedMakesRoom(t *testing.T) {
	// Blocks of a replaced version make room for a Put, and nothing else does; a version that comes back is not replaced any more.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}})
	n := fill(r, 0)
	old, back := small(3, 100_000), small(4, 100_000)
	r.Replaced(old)
	if !r.holds(old) {
		t.Fatal("a replaced block is missed although nothing needs its room")
	}
	if err := r.put(small(2000, 100_000)); err != nil {
		t.Fatal(err)
	}
	r.flush()
	if r.holds(old) || !r.holds(small(2000, 100_000)) {
		t.Fatal("the replaced block did not make room")
	}
	for i := range n {
		if i != 3 && !r.holds(small(i, 100_000)) {
			t.Fatalf("block %d, not replaced, is gone", i)
		}
	}
	r.Replaced(back)
	if err := r.put(back); err != nil && !isFull(err) {
		t.Fatal(err)
	}
	if !r.dirs[0].replaced.Empty() {
		t.Fatal("a version that was put again is still among the replaced")
	}
}

func TestForeignBlocksGoFirst(t *testing.T) {
	// What the ring says is not ours goes before what is, also where it is one block of thirteen: ours are neither declined nor evicted.
	const filled, more = 1000, 4
	theirs := func(i int) bool { return i < filled && i%13 == 0 }
	foreign := map[hearth.ID]bool{}
	for i := range filled {
		foreign[small(i, 100_000).Block(0).ID()] = theirs(i)
	}
	var full atomic.Bool // until then all is theirs, so that nothing is evicted for it
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20}}, Owns: func(id hearth.ID) bool { return full.Load() && !foreign[id] }})
	n := fill(r, 0)
	full.Store(true)
	for i := filled; i < filled+more; i++ {
		take := r.put
		if i%2 == 0 {
			take = func(o *hearth.Object) error { return r.keep(t.Context(), o) }
		}
		if err := take(small(i, 100_000)); err != nil {
			t.Fatalf("block %d beside %d, one of thirteen another's: %v", i, n, err)
		}
		r.flush()
		if !r.holds(small(i, 100_000)) {
			t.Fatalf("block %d was declined beside others': %+v", i, r.Stats())
		}
	}
	for i := range n {
		if !theirs(i) && !r.holds(small(i, 100_000)) {
			t.Errorf("our block %d of %d went before others': %+v", i, n, r.Stats())
		}
	}
}

func TestFloorWinsOverBudget(t *testing.T) {
	// When others fill the file system the directory shrinks, far below its budget, and grows again when there is room.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20, Floor: 1 << 30}}})
	fill(r, 0)
	if used := r.area(0).used(); used < 7<<20 {
		t.Fatalf("only %d used of 8 MiB", used)
	}
	before := r.area(0).used()
	if n := r.heard("short: true"); n != 0 {
		t.Errorf("told %d times that there is no room", n)
	}
	r.free.Store(1<<30 - 5<<20) // 5 MiB below the floor: our evictions are not seen in it, so all goes
	r.until("5 MiB given back", func() bool { return r.area(0).used() <= before-5<<20 })
	r.until("no room", func() bool { return isFull(r.put(small(9000, 100_000))) })
	r.until("told so, a few times at most", func() bool { n := r.heard("short: true"); return n > 0 && n < 30 }) // 8 MiB can be halved so often
	r.free.Store(1 << 40)
	r.until("room again", func() bool { return r.put(small(9000, 100_000)) == nil })
}

func TestEachDirectoryHasItsFloor(t *testing.T) {
	// Two directories, one with a floor that its file system cannot give: it may hold nothing, never less than that, and the other all of its budget. Told nothing, a tenth stays free.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20, Floor: 2 << 40}, {Budget: 8 << 20, Floor: 1 << 20}}})
	for i, want := range []int64{0, 8 << 20} {
		if st := r.Stats().Dirs[i]; st.Limit != want {
			t.Errorf("limit of directory %d: %d, want %d", i, st.Limit, want)
		}
	}
	for _, o := range placed(r, 3) {
		if err := r.put(o); !isFull(err) {
			t.Errorf("put where nothing may be held: %v", err)
		}
	}
	d := directory{path: r.paths[0], opt: r.dirs[0].opt}
	if err := d.setLimits(); err != nil || d.floor != 1<<40/10 || d.budget != 1<<40/10 {
		t.Errorf("the defaults for 1 TiB: floor %d, budget %d, %v", d.floor, d.budget, err)
	}
}

func TestFullFileSystemIsNoFailure(t *testing.T) {
	// ENOSPC declines blocks, whatever the figures say; reads go on and nothing is ejected.
	r := newRig(t, Options{})
	if err := r.put(small(0, 1000)); err != nil {
		t.Fatal(err)
	}
	r.flush()
	for i := range 20 {
		r.area(0).setFail(unix.ENOSPC)
		r.dirs[0].full.Store(nil) // as if ten seconds had passed
		if err := r.keep(t.Context(), small(1+i, 1000)); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("keep on a full disk: %v", err)
		}
		r.area(0).setFail(nil)
		if !r.holds(small(0, 1000)) {
			t.Fatal("a held block is missed on a full disk")
		}
	}
	if err := r.put(small(100, 1000)); !isFull(err) {
		t.Fatalf("put right after ENOSPC: %v", err)
	}
	if st := r.Stats().Dirs[0]; st.Ejected || st.Errors != 20 || r.heard("full") != 20 {
		t.Fatalf("%+v, told %d times", st, r.heard("full"))
	}
}

// placed returns n small objects that the rig's first directory is to hold.
func placed(r *rig, n int) (objects []*hearth.Object) {
	for i := 0; len(objects) < n; i++ {
		if o := small(i, 1000); r.place(&o.Version) == 0 {
			objects = append(objects, o)
		}
	}
	return objects
}

// unwell keeps an ejected directory from returning until the function it returns
// is called: the name of the probe's file is taken.
func unwell(t *testing.T, path string) func() {
	t.Helper()
	name := filepath.Join(path, LabelFile+".probe.tmp")
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailedWritesEject(t *testing.T) {
	// A directory whose writes fail is ejected and named; what it holds is still read, others take its objects; when it is well it comes back.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 16 << 20}, {Budget: 16 << 20}}})
	sick, mine := r.area(0), placed(r, 20)
	if err := r.keep(t.Context(), mine[0]); err != nil || !sick.has(mine[0].Block(0).ID()) {
		t.Fatalf("the object does not lie where it was placed: %v", err)
	}
	heal := unwell(t, r.paths[0])
	sick.setPutFail(unix.EROFS)
	for i := range ejectAfter {
		if err := r.keep(t.Context(), mine[1+i]); !errors.Is(err, unix.EROFS) {
			t.Fatalf("write %d to a sick disk: %v", i, err)
		}
	}
	if st := r.Stats().Dirs[0]; !st.Ejected || !st.Reading || st.Errors != ejectAfter || !strings.Contains(st.Cause, unix.EROFS.Error()) {
		t.Fatalf("after %d failed writes: %+v", ejectAfter, st)
	}
	if got := r.Samples(); !slices.Equal(got, []string{filepath.Join(r.paths[1], LabelFile)}) {
		t.Fatalf("local files may come from %s", got)
	}
	if got := r.NamesDirs(); !r.holds(mine[0]) || !slices.Equal(got, []string{filepath.Join(r.paths[1], NamesDir)}) {
		t.Fatalf("a held block is missed, or the namespace is to lie in %s", got)
	}
	for _, o := range mine[1:] {
		if err := r.keep(t.Context(), o); err != nil || !r.area(1).has(o.Block(0).ID()) {
			t.Fatalf("not written to the other directory: %v", err)
		}
	}
	_ = r.Flush(t.Context()) // who flushes meanwhile holds nothing of it
	heal()
	sick.setPutFail(nil)
	r.until("returned", func() bool { return r.heard("returned") == 1 && r.heard("ejected") == 1 && !r.Stats().Dirs[0].Ejected })
	for _, o := range mine {
		if !r.holds(o) {
			t.Fatal("a block is missed after the return")
		}
	}
}

func TestFreeIsWhatEvictsNothing(t *testing.T) {
	// What is kept as long as it is said to be free pushes nothing out, and fills the directory
	// but for a write unit; one that is out of use has nothing free.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 16 << 20}}})
	n := 0
	for ; r.Free()[0] >= allocated(100_000); n++ {
		if err := r.keep(t.Context(), small(n, 100_000)); err != nil {
			t.Fatal(err)
		}
		r.flush()
	}
	if st := r.Stats().Dirs[0]; st.Evicted != 0 || r.area(0).used() < 16<<20-writeUnit-200_000 {
		t.Fatalf("after %d blocks: %+v", n, st)
	}
	r.dirs[0].eject(unix.EROFS, false)
	if got := r.Free(); got[0] != 0 {
		t.Fatalf("%d bytes free of what is out of use", got)
	}
}

func TestAFlushSaysWhatIsNotOnItsDevice(t *testing.T) {
	// Of two directories one cannot be flushed: what it alone holds is named. Out of use it
	// still says so, until it is back; one that was flushed before has nothing to say.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 16 << 20}, {Budget: 16 << 20}}})
	mine := placed(r, ejectAfter+1)
	var other *hearth.Object
	for i := 0; other == nil; i++ {
		if o := small(i, 1000); r.place(&o.Version) == 1 {
			other = o
		}
	}
	if err := errors.Join(r.keep(t.Context(), mine[0]), r.keep(t.Context(), other)); err != nil {
		t.Fatal(err)
	}
	says := func(cause error) {
		t.Helper()
		err := r.Flush(t.Context())
		var some hearth.Unflushed
		if !errors.Is(err, cause) || !strings.Contains(err.Error(), r.paths[0]) || !errors.As(err, &some) {
			t.Fatalf("%v, want %v", err, cause)
		}
		if !some.Concerns(mine[0].Block(0).ID()) || some.Concerns(other.Block(0).ID()) || some.Concerns(small(1_000_000, 10).Block(0).ID()) {
			t.Fatalf("%v concerns what it should not, or not what it should", err)
		}
	}
	sick := r.area(0)
	sick.mu.Lock()
	sick.ill = unix.EIO
	sick.mu.Unlock()
	says(unix.EIO)
	heal := unwell(t, r.paths[0])
	sick.setPutFail(unix.EROFS)
	for _, o := range mine[1:] {
		_ = r.keep(t.Context(), o)
	}
	if !r.Stats().Dirs[0].Ejected {
		t.Fatalf("in use: %+v", r.Stats())
	}
	says(ErrEjected)
	sick.setPutFail(nil)
	sick.mu.Lock()
	sick.ill = nil
	sick.mu.Unlock()
	says(ErrEjected)
	heal()
	r.until("returned", func() bool { return !r.Stats().Dirs[0].Ejected })
	r.flush()
	defer unwell(t, r.paths[0])()
	r.dirs[0].eject(unix.EROFS, false)
	r.flush() // all of it is on the device
}

func TestReadOnlyDirectoryUnmounted(t *testing.T) {
	// What failed writes left readable goes away below the node, as by umount -l: it is let go, so that the disk can be repaired, and used again once it is there.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 16 << 20}, {Budget: 16 << 20}}})
	mine := placed(r, ejectAfter)
	r.area(0).setPutFail(unix.EROFS)
	for _, o := range mine {
		if err := r.keep(t.Context(), o); !errors.Is(err, unix.EROFS) {
			t.Fatalf("write to a sick disk: %v", err)
		}
	}
	if st := r.Stats().Dirs[0]; !st.Ejected || !st.Reading {
		t.Fatalf("after failed writes: %+v", st)
	}
	text, err := os.ReadFile(filepath.Join(r.paths[0], LabelFile))
	if err != nil {
		t.Fatal(err)
	}
	// A file stands in its place, where no directory can be made; both swap at once, since
	// the writer makes anew what is missing.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	swap := func() {
		if err := unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, r.paths[0], unix.RENAME_EXCHANGE); err != nil {
			t.Fatal(err)
		}
	}
	swap()
	r.until("let go", func() bool { st := r.Stats().Dirs[0]; return st.Ejected && !st.Reading })
	if err := errors.Join(os.RemoveAll(other), os.Mkdir(other, 0o700), os.WriteFile(filepath.Join(other, LabelFile), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	swap()
	r.until("returned", func() bool { return r.heard("returned") == 1 && !r.Stats().Dirs[0].Ejected })
}

func TestFailedReadsEject(t *testing.T) {
	// A device that cannot be read gives misses, never errors; after eight it is ejected altogether, and let go of.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 16 << 20}, {Budget: 16 << 20}}})
	o := placed(r, 1)[0]
	if err := r.keep(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	heal := unwell(t, r.paths[0])
	r.area(0).setFail(unix.EIO)
	for range ejectAfter {
		if r.holds(o) {
			t.Fatal("a block came from a device that cannot be read")
		}
	}
	if st := r.Stats().Dirs[0]; !st.Ejected || st.Reading || !strings.Contains(st.Cause, unix.EIO.Error()) {
		t.Fatalf("%+v", st)
	}
	if err := r.keep(t.Context(), o); err != nil || !r.area(1).has(o.Block(0).ID()) || !r.holds(o) {
		t.Fatalf("not kept in the other directory: %v", err)
	}
	r.until("closed", func() bool { return r.dirs[0].volume.Load() == nil })
	heal()
	r.area(0).setFail(nil)
	r.until("returned", func() bool { return r.heard("returned") == 1 })
}

func TestScatteredErrorsDoNotEject(t *testing.T) {
	// Seven errors, a success, seven errors: the directory stays in use.
	r := newRig(t, Options{})
	for round := range 3 {
		r.area(0).setFail(unix.EIO)
		for i := range ejectAfter - 1 {
			if r.keep(t.Context(), small(10*round+i, 1000)) == nil {
				t.Fatal("written to a failing device")
			}
		}
		r.area(0).setFail(nil)
		if err := r.keep(t.Context(), small(10*round, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if st := r.Stats().Dirs[0]; st.Ejected || st.Errors != 3*(ejectAfter-1) {
		t.Fatalf("%+v", st)
	}
}

func TestRendezvousIsWeighted(t *testing.T) {
	// Objects spread in proportion to the budgets, and one directory less moves only its own.
	budgets := []int64{1 << 30, 2 << 30, 5 << 30}
	count, moved := make([]int, 3), 0
	const n = 20_000
	for i := range n {
		o := small(i, 1)
		best, second := -1, -1
		score := []float64{math.Inf(1), math.Inf(1), math.Inf(1)}
		for d, b := range budgets {
			score[d] = rendezvousScore(&o.Version, uint64(d)*0x9e3779b97f4a7c15+1, b)
			if best < 0 || score[d] < score[best] {
				best = d
			}
			if d < 2 && (second < 0 || score[d] < score[second]) {
				second = d
			}
		}
		count[best]++
		if best != 2 && second != best {
			moved++
		}
	}
	for d, b := range budgets {
		want := float64(n) * float64(b) / float64(8<<30)
		if got := float64(count[d]); math.Abs(got-want) > 0.05*want+50 {
			t.Errorf("directory %d has %v objects, want about %v", d, got, want)
		}
	}
	if moved > 0 {
		t.Errorf("%d objects of other directories moved", moved)
	}
}

func TestNeedsAreOfTheDirectoryThatTakes(t *testing.T) {
	// What belongs to a directory that is out of use is taken by another, and needs room there.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20}, {Budget: 8 << 20}}})
	of := [2]int{}
	for i := range 50 {
		dir, _ := r.Needs(small(i, 1000))
		of[dir]++
	}
	if of[0] == 0 || of[1] == 0 {
		t.Errorf("of 50 objects %v", of)
	}
	r.dirs[0].eject(errors.New("sick"), false)
	for i := range 50 {
		if dir, n := r.Needs(small(i, 1000)); dir != 1 || n <= 0 {
			t.Errorf("object %d needs %d bytes in directory %d", i, n, dir)
		}
	}
	r.dirs[1].eject(errors.New("sick"), false)
	if dir, _ := r.Needs(small(1, 1000)); dir != 0 {
		t.Errorf("without any: directory %d", dir)
	}
}

func TestJobsCount(t *testing.T) {
	// The list of a job lies in the directory, and takes of its budget.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 8 << 20}}})
	jobs := filepath.Join(r.paths[0], JobsDir)
	if err := errors.Join(os.Mkdir(jobs, 0o700), os.WriteFile(filepath.Join(jobs, "x.list"), make([]byte, 3<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	r.until("3 MiB of a list used", func() bool {
		_ = r.put(small(1, 100)) // whatever is written, it is looked at again
		return r.Stats().Dirs[0].Used >= 3<<20
	})
}

func TestRefusesWhatIsNotWhole(t *testing.T) {
	// Half a block, and a block without a strong ETag, are not stored.
	r := newRig(t, Options{})
	o := small(0, 1000)
	v := hearthtest.View(t, r.pool, o.Block(0), 1)
	defer v.Release()
	half := v.Slice(0, 500)
	defer half.Release()
	if r.Put(o.Block(0), half) == nil || r.Keep(t.Context(), o.Block(0), half) == nil {
		t.Error("half a block was taken")
	}
	weak := *o
	weak.ETag = `W/"1"`
	if r.Put(weak.Block(0), v) == nil {
		t.Error("a block of a weak version was taken")
	}
}

func TestTakesTellsWhetherPutHasRoom(t *testing.T) {
	// A fetcher asks before it fetches whole blocks: yes while there is free space,
	// no once Put declines for want of it.
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}})
	if !r.Takes(small(0, 100_000).Block(0)) {
		t.Fatal("an empty directory takes nothing")
	}
	n := fill(r, 0)
	declined := r.Stats().Dirs[0].Declined
	if r.Takes(small(n, 100_000).Block(0)) {
		t.Fatal("Takes promises room that Put does not have")
	}
	if n := r.Stats().Dirs[0].Declined; n != declined {
		t.Errorf("%d declined, %d before: what lies there is worth more, and the device is not behind", n, declined)
	}
}

func TestWhatADeviceIsTooSlowForIsCounted(t *testing.T) {
	// The device takes nothing: Takes waits a while for room in the queue, says no, and that
	// is a block declined. Once all is written it says yes, and nothing is.
	r := newRig(t, Options{QueueBytes: 1 << 20})
	r.area(0).stall = make(chan struct{})
	for i := range 9 {
		if err := r.put(small(i, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	if r.Takes(small(10, 100_000).Block(0)) || r.Stats().Dirs[0].Declined != 1 {
		t.Errorf("a full queue: %+v", r.Stats().Dirs[0])
	}
	close(r.area(0).stall)
	r.flush()
	if !r.Takes(small(10, 100_000).Block(0)) || r.Stats().Dirs[0].Declined != 1 {
		t.Errorf("an empty queue: %+v", r.Stats().Dirs[0])
	}
}
