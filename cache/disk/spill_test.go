package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeSpill takes what it is offered, as far as it is told to, and holds the Views until its end.
type fakeSpill struct {
	wants  func(hearth.ID) bool // nil means all
	refuse atomic.Bool          // it declines what it wants

	mu      sync.Mutex // guards the rest
	asked   int        // calls of Wants
	offered int        // calls of Spill
	taken   map[hearth.ID][]*hearth.View
}

func newFakeSpill(t *testing.T) *fakeSpill {
	f := &fakeSpill{taken: map[hearth.ID][]*hearth.View{}}
	t.Cleanup(f.release)
	return f
}

func (f *fakeSpill) Wants(id hearth.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.wants == nil || f.wants(id)
}

func (f *fakeSpill) Spill(id hearth.ID, v *hearth.View) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.offered++
	if f.refuse.Load() {
		return errors.New("no room")
	}
	f.taken[id] = append(f.taken[id], v.Retain())
	return nil
}

func (f *fakeSpill) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, views := range f.taken {
		for _, v := range views {
			v.Release()
		}
		delete(f.taken, id)
	}
}

// counts returns how often it was asked, and how many blocks it was offered.
func (f *fakeSpill) counts() (asked, offered int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked, f.offered
}

// took returns how often it took a block, and fails the test if it was not whole and right.
func (f *fakeSpill) took(t *testing.T, b hearth.Block) int {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.taken[b.ID()] {
		if v.Len() != b.Len() {
			t.Errorf("block %v of %d bytes was spilled with %d", b.ID(), b.Len(), v.Len())
		}
		if err := hearthtest.Check(v.Bytes(), b.Object.Key, b.Offset(), 1); err != nil {
			t.Errorf("block %v was spilled wrong: %v", b.ID(), err)
		}
		hearthtest.CheckSums(t, v)
	}
	return len(f.taken[b.ID()])
}

// spillRig is a Store over real areas that spills, with a file system whose free space is told.
type spillRig struct {
	*Store
	t     *testing.T
	pool  *hearth.Pool
	spill *fakeSpill
	dir   string
	free  atomic.Int64
	bad   atomic.Int64 // Events.Damaged
}

func newSpillRig(t *testing.T, o Options, budget int64) *spillRig {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	r := &spillRig{t: t, dir: t.TempDir()}
	r.pool = hearthtest.Pool(t, 128<<20)
	r.spill = newFakeSpill(t)
	r.free.Store(1 << 40)
	o.Pool, o.Spill = r.pool, r.spill
	o.Dirs = []DirOptions{{Path: r.dir, Budget: budget, Floor: 1 << 30}}
	o.Events.Damaged = func(string, error) { r.bad.Add(1) }
	o.statfs = func(path string, st *unix.Statfs_t) error {
		err := unix.Statfs(path, st)
		st.Bavail = uint64(r.free.Load() / st.Bsize)
		return err
	}
	r.Store = openReal(t, o)
	return r
}

// keep writes all of an object, and evicts what is worth least for it.
func (r *spillRig) keep(o *hearth.Object) {
	r.t.Helper()
	for i := range o.Blocks() {
		v := hearthtest.View(r.t, r.pool, o.Block(i), 1)
		err := r.Keep(r.t.Context(), o.Block(i), v)
		if v.Release(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// empty lets others fill the file system, so that everything is evicted.
func (r *spillRig) empty() {
	r.t.Helper()
	r.free.Store(0)
	empty := func() bool { s := r.stats(); return s.Limit == 0 && s.Blocks == 0 }
	if !hearthtest.Eventually(r.t.Context(), watchdog, empty) {
		r.t.Fatalf("what is over the limit stays: %+v", r.stats())
	}
}

func (r *spillRig) stats() DirStats { return r.Stats().Dirs[0] }

// read returns the bytes that the areas have read from the device.
func (r *spillRig) read() int64 {
	vol := r.dirs[0].use()
	defer vol.release()
	return vol.packed.(*packedArea).log.Stats().Read + vol.whole.(wholeArea).files.Stats().DeviceBytes
}

// checkSpilled compares every block of the objects with what is held and what was spilled: it is in
// one of both, and was spilled at most once. It returns how many were spilled, and their bytes.
func (r *spillRig) checkSpilled(objects []*hearth.Object) (blocks, size int64) {
	r.t.Helper()
	for _, o := range objects {
		for i := range o.Blocks() {
			b := o.Block(i)
			n := r.spill.took(r.t, b)
			if held := r.Has(b.ID()); n > 1 || held == (n > 0) {
				r.t.Errorf("block %d of %s is held: %v, and was spilled %d times", i, o.Key, held, n)
			}
			blocks, size = blocks+int64(n), size+int64(n*b.Len())
		}
	}
	return blocks, size
}

// sized makes one object of each size.
func sized(sizes ...int64) (all []*hearth.Object) {
	for i, size := range sizes {
		all = append(all, hearthtest.NewObject(fmt.Sprintf("sized/%d", i), size, 1))
	}
	return all
}

// one and two blocks, a whole extent, more than one, and too large for a file of its own.
func spillSizes() []*hearth.Object {
	const mib = hearth.BlockSize
	return sized(1, 700, 4096, 30_000, 65_536, 65_537, 300_000, mib, mib+1, 3*mib+5, 16*mib, 18*mib+77, 26*mib)
}

func TestWhatIsEvictedIsSpilled(t *testing.T) {
	// Twice what fits is kept. Every block that had to go went to the volume, once, whole and right,
	// and so does the rest when others fill the file system. Alone a node evicts files as a whole, in
	// a ring by extents.
	for _, ring := range []bool{false, true} {
		t.Run(fmt.Sprintf("ring=%v", ring), func(t *testing.T) {
			o := Options{}
			if ring {
				o.Owns = func(hearth.ID) bool { return true }
			}
			r := newSpillRig(t, o, 80<<20)
			objects := spillSizes()
			for _, o := range objects {
				r.keep(o)
			}
			for i := range 40 {
				objects = append(objects, small(i, 5000+i), small(100+i, 700_000))
				r.keep(objects[len(objects)-2])
				r.keep(objects[len(objects)-1])
			}
			blocks, _ := r.checkSpilled(objects)
			if blocks == 0 {
				t.Error("nothing was evicted")
			}
			r.empty()
			blocks, size := r.checkSpilled(objects)
			s := r.stats()
			_, offered := r.spill.counts()
			if int64(offered) != blocks || s.Spilled != blocks || s.SpilledBytes != size {
				t.Errorf("offered %d, taken %d blocks of %d bytes: %+v", offered, blocks, size, s)
			}
			if s.Hits != 0 || s.HitBytes != 0 || s.Errors != 0 || s.Corrupt != 0 {
				t.Errorf("reads for a spill are hits or errors: %+v", s)
			}
		})
	}
}

func TestEachEvictedEntryIsSpilled(t *testing.T) {
	// Of small objects each evicted entry is one spilled block.
	r := newSpillRig(t, Options{}, 8<<20)
	for i := range 150 {
		r.keep(small(i, 100_000))
	}
	if s := r.stats(); s.Evicted < 50 || s.Spilled != s.Evicted || s.SpilledBytes != 100_000*s.Spilled {
		t.Errorf("evicted %d, spilled %d of %d bytes", s.Evicted, s.Spilled, s.SpilledBytes)
	}
}

func TestWhatTheVolumeDoesNotWantIsNotRead(t *testing.T) {
	// A volume that wants nothing is asked about each block, and the device is not read. One that
	// wants some of a file gets these.
	r := newSpillRig(t, Options{}, 80<<20)
	r.spill.wants = func(hearth.ID) bool { return false }
	objects := spillSizes()
	for _, o := range objects {
		r.keep(o)
	}
	r.empty()
	asked, offered := r.spill.counts()
	blocks := 0
	for _, o := range objects {
		blocks += int(o.Blocks())
	}
	if r.read() != 0 || offered != 0 || asked != blocks || r.stats().Spilled != 0 {
		t.Errorf("asked about %d of %d blocks, offered %d, %d bytes were read", asked, blocks, offered, r.read())
	}

	r.free.Store(1 << 40)
	r.spill.mu.Lock()
	r.spill.wants = func(id hearth.ID) bool { return id.Index%4 == 1 }
	r.spill.mu.Unlock()
	large := objects[len(objects)-2]
	r.keep(large)
	r.empty()
	for i := range large.Blocks() {
		if n := r.spill.took(t, large.Block(i)); n > 0 != (i%4 == 1) {
			t.Errorf("block %d was spilled %d times", i, n)
		}
	}
}

func TestReplacedForeignAndForgottenAreNotSpilled(t *testing.T) {
	// Blocks of replaced versions, of other nodes and of what was dropped go and are not even asked
	// about.
	theirs := func(o *hearth.Object) bool { return o.Size%2 == 0 }
	objects := sized(1000, 1001, 300_000, 300_001, 2<<20, 2<<20+1, 17<<20, 17<<20+1)
	for _, what := range []string{"foreign", "replaced", "dropped"} {
		t.Run(what, func(t *testing.T) {
			o := Options{}
			if what == "foreign" {
				o.Owns = func(id hearth.ID) bool {
					is := func(o *hearth.Object) bool { return o.Version == id.Version && theirs(o) }
					return !slices.ContainsFunc(objects, is)
				}
			}
			r := newSpillRig(t, o, 160<<20)
			want := int64(0)
			for _, o := range objects {
				r.keep(o)
				switch {
				case !theirs(o):
					want += o.Blocks()
				case what == "replaced":
					r.Replaced(o)
				case what == "dropped":
					r.Drop(o)
				}
			}
			r.empty()
			for _, o := range objects {
				for i := range o.Blocks() {
					if n := r.spill.took(t, o.Block(i)); n > 0 == theirs(o) {
						t.Errorf("block %d of %s was spilled %d times", i, o.Key, n)
					}
				}
			}
			if asked, offered := r.spill.counts(); int64(asked) != want || int64(offered) != want {
				t.Errorf("asked about %d blocks, offered %d, want %d", asked, offered, want)
			}
		})
	}
}

func TestWhatIsReplacedMeanwhileIsNotSpilled(t *testing.T) {
	// A version is replaced after it was drawn for eviction, or while its blocks are read.
	r := newSpillRig(t, Options{}, 80<<20)
	o := small(1, 5000)
	d, id := r.dirs[0], o.Block(0).ID()
	if !d.spills(id) {
		t.Error("a block of ours is not spilled")
	}
	r.Replaced(o)
	if d.spills(id) {
		t.Error("a block of a replaced version is spilled")
	}
}

func TestWithoutMemoryEvictionGoesOn(t *testing.T) {
	// Readers hold all memory: everything goes, nothing is offered, and nobody waits for memory.
	r := newSpillRig(t, Options{}, 80<<20)
	objects := spillSizes()
	for _, o := range objects {
		r.keep(o)
	}
	var all []*hearth.View
	for _, n := range []int{hearth.BlockSize, 64 << 10, 8 << 10, 4096, 512} {
		for v := r.pool.TryAlloc(n); v != nil; v = r.pool.TryAlloc(n) {
			all = append(all, v)
		}
	}
	r.empty()
	for _, v := range all {
		v.Release()
	}
	s := r.stats()
	asked, offered := r.spill.counts()
	if asked == 0 || offered != 0 || s.Spilled != 0 || s.Corrupt != 0 || s.Ejected {
		t.Errorf("asked %d times, offered %d blocks: %+v", asked, offered, s)
	}
}

// spoil flips a bit in the middle of a block, wherever its bytes lie below the directory.
func (r *spillRig) spoil(b hearth.Block) {
	r.t.Helper()
	want := make([]byte, min(b.Len(), 4096))
	hearthtest.Fill(want, b.Object.Key, b.Offset(), 1)
	for _, dir := range []string{segmentsPath(r.dir), objectsPath(r.dir)} {
		files, err := os.ReadDir(dir)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, f := range files {
			name := filepath.Join(dir, f.Name())
			text, err := os.ReadFile(name)
			if err != nil {
				r.t.Fatal(err)
			}
			if at := bytes.Index(text, want); at >= 0 {
				hearthtest.FlipByte(r.t, name, int64(at+b.Len()/2), 4)
				return
			}
		}
	}
	r.t.Fatalf("block %v lies nowhere", b.ID())
}

func TestABadBlockIsNotSpilled(t *testing.T) {
	// A bit has flipped in one block of each object. It is evicted, counted and reported as damage,
	// and only the others are offered.
	r := newSpillRig(t, Options{}, 80<<20)
	objects := sized(5000, 300_000, hearth.BlockSize, 3<<20+5, 18<<20+77)
	var bad []hearth.Block
	blocks := 0
	for _, o := range objects {
		r.keep(o)
		blocks += int(o.Blocks())
		bad = append(bad, o.Block(o.Blocks()/2))
	}
	r.flush()
	for _, b := range bad {
		r.spoil(b)
	}
	r.empty()
	for _, o := range objects {
		for i := range o.Blocks() {
			if n := r.spill.took(t, o.Block(i)); n > 0 != (i != o.Blocks()/2) {
				t.Errorf("block %d of %s was spilled %d times", i, o.Key, n)
			}
		}
	}
	s := r.stats()
	n := int64(len(bad))
	if _, offered := r.spill.counts(); offered != blocks-len(bad) || s.Corrupt != n || r.bad.Load() != n {
		t.Errorf("%d of %d blocks are bad: offered %d, reported %d: %+v", n, blocks, offered, r.bad.Load(), s)
	}
	all := func() bool { return r.stats().Evicted == int64(len(objects)) } // alone a node evicts files as a whole
	if !hearthtest.Eventually(t.Context(), watchdog, all) {
		t.Errorf("of %d objects it counts %+v", len(objects), r.stats())
	}
}

func (r *spillRig) flush() {
	r.t.Helper()
	if err := r.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// makeSick makes each read of the directory's open segments fail with EIO: the descriptors get to read
// our own memory, where nothing is mapped.
func (r *spillRig) makeSick() {
	r.t.Helper()
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = memory.Close() }()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		r.t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(segmentsPath(r.dir))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range fds {
		name, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if fd, err := strconv.Atoi(e.Name()); err == nil && filepath.Dir(name) == dir {
			if err := unix.Dup3(int(memory.Fd()), fd, unix.O_CLOEXEC); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func TestADeviceThatFailsReadsBeforeEvictionsIsOut(t *testing.T) {
	// Eight reads in a row fail that were for the volume only. The directory is out of use as after
	// reads of readers, nothing more is read for the volume, and eviction goes on.
	var ejected, returned atomic.Int64
	var f atomic.Pointer[fakeSpill]
	asked := func() int64 { n, _ := f.Load().counts(); return int64(n) }
	r := newSpillRig(t, Options{Events: Events{
		Ejected:  func(string, error) { ejected.CompareAndSwap(0, asked()) },
		Returned: func(string) { returned.CompareAndSwap(0, asked()) },
	}}, 80<<20)
	f.Store(r.spill)
	for i := range 3 * ejectAfter {
		r.keep(small(i, 100_000))
	}
	r.makeSick()
	r.empty()
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return returned.Load() > 0 }) {
		t.Fatalf("it never returned: %+v", r.stats())
	}
	if ejected.Load() != ejectAfter || returned.Load() != ejectAfter || r.stats().Errors < ejectAfter {
		t.Errorf("asked %d times before it was ejected, %d before it returned: %+v", ejected.Load(), returned.Load(), r.stats())
	}
}

func TestAVolumeThatDeclinesCostsNothing(t *testing.T) {
	// It wants each block and then has no room for it. Eviction goes on, nothing counts as spilled,
	// and no memory stays with it.
	r := newSpillRig(t, Options{}, 80<<20)
	r.spill.refuse.Store(true)
	objects := spillSizes()
	for _, o := range objects {
		r.keep(o)
	}
	r.empty()
	s := r.stats()
	if _, offered := r.spill.counts(); offered == 0 || s.Spilled != 0 || s.SpilledBytes != 0 || s.Declined != 0 {
		t.Errorf("offered %d: %+v", offered, s)
	}
	if n := r.pool.Stats().Views; n != 0 {
		t.Errorf("%d Views are still held", n)
	}
}

func TestSpillUnderLoad(t *testing.T) {
	// Four goroutines put, keep and read three times the budget, while another one writes the volume.
	// No byte is wrong, and each block that was evicted was wanted, or there was no memory.
	r := newSpillRig(t, Options{}, 32<<20)
	stop := make(chan struct{})
	var volume, work sync.WaitGroup
	volume.Go(func() { // it frees what was taken, as a volume does that has written it
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				r.spill.release()
			}
		}
	})
	var next atomic.Int64
	for g := range 4 {
		work.Go(func() {
			for i := next.Add(1); i < 300; i = next.Add(1) {
				o := mixed(int(i))
				for j := range min(o.Blocks(), 3) {
					v := hearthtest.View(t, r.pool, o.Block(j), 1)
					if g == 0 {
						_ = r.Put(o.Block(j), v)
					} else if err := r.Keep(t.Context(), o.Block(j), v); err != nil {
						t.Errorf("keep: %v", err)
					}
					v.Release()
					old := mixed(int(i/2 + 1)).Block(0)
					hearthtest.CheckGet(t, r.Store, old, 0, old.Len(), 1)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	volume.Wait()
	s := r.stats()
	asked, offered := r.spill.counts()
	if offered == 0 || int64(offered) != s.Spilled || offered > asked || s.Corrupt != 0 || s.Ejected {
		t.Errorf("asked %d times, offered %d: %+v", asked, offered, s)
	}
}

func TestALongSpillIsNoHang(t *testing.T) {
	// A large object is spilled, and each of its blocks takes most of the patience with a writer. The
	// writer makes steps.
	synctest.Test(t, func(t *testing.T) {
		f, hangs := newFakeSpill(t), 0
		d := &directory{opt: &Options{Spill: f}}
		d.guard = device.New(device.Options{Patience: testPatience, Hangs: func(string, time.Duration) { hangs++ }})
		lookout := make(chan struct{})
		go func() { defer close(lookout); d.guard.LookOut() }()
		for i := range int64(10) {
			id := hearth.ID{Index: i}
			if !d.spills(id) {
				t.Error("a block is not wanted")
			}
			<-time.After(4 * testPatience) // its read
			v := hearth.NewView(make([]byte, 10))
			d.spill(id, v)
			v.Release()
			<-time.After(4 * testPatience) // its hole
		}
		d.guard.Writer.Rest()
		d.guard.Close()
		<-lookout
		if hangs != 0 || d.spilled.Load() != 10 || d.spilledBytes.Load() != 100 {
			t.Errorf("%d hangs, %d blocks of %d bytes spilled", hangs, d.spilled.Load(), d.spilledBytes.Load())
		}
	})
}
