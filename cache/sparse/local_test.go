package sparse

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

func TestFileIsHandedOutWhenWhole(t *testing.T) {
	// An object is put block by block, out of order. LocalFile is a miss until the last one, and
	// then lends the file at once, since this process wrote it. EvictObject waits for the release;
	// until then readers are served and the bytes count.
	x := start(t, Options{})
	o, data := sample(1, 18*mib+70_003)
	for n, i := range []int64{18, 3, 0, 1, 2, 4, 5, 6, 7, 8, 9, 17, 16, 10, 11, 12, 13, 15, 14} {
		if x.local(o, data) != nil {
			t.Fatalf("handed out after %d blocks", n)
		}
		x.put(o, data, i)
	}
	first, second := x.local(o, data), x.local(o, data)
	if first == nil || second == nil || x.Stats().Handed != 2 || x.Stats().Units != 0 {
		t.Fatalf("not handed out, stats %+v", x.Stats())
	}
	if x.EvictExtent(o.Block(0).ID()) != 0 || x.EvictObject(o.Version) != 0 {
		t.Fatal("something was freed under an open file")
	}
	if !x.has(o, data, 7) || x.local(o, data) != nil {
		t.Fatal("a doomed file serves readers, and is not handed out again")
	}
	first()
	if x.checkUsed(); x.Used() < o.Size {
		t.Fatalf("%d bytes used while it is open", x.Used())
	}
	second()
	if x.Used() != 0 || x.onDevice() != 0 || x.has(o, data, 7) {
		t.Fatalf("%d used, %d on the device after the last release", x.Used(), x.onDevice())
	}
	x.put(o, data, 7)
	if !x.has(o, data, 7) {
		t.Fatal("an evicted object cannot begin again")
	}
}

func TestHandedOutFileOutlivesClose(t *testing.T) {
	// The node stops while the kernel still has the file. It stays readable, and the late release
	// does no harm.
	x := start(t, Options{})
	o, data := sample(1, mib+9)
	x.putAll(o, data)
	file, release, err := x.LocalFile(o)
	if err != nil {
		t.Fatal(err)
	}
	x.EvictObject(o.Version)
	files := x.Files
	x.stop()
	x.inspect(file, data)
	_ = file.Close()
	release()
	if err := files.Close(); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("second Close: %v", err)
	}
	if _, err := files.Get(context.Background(), o.Block(0), 0, 1); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("Get after Close: %v", err)
	}
	if err := files.Put(o, 0, data[:mib]); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("Put after Close: %v", err)
	}
}

func TestReopenedFileIsVerifiedFirst(t *testing.T) {
	// After a restart the first LocalFile is a miss and starts one pass; then the file is lent.
	// Blocks that readers read completely meanwhile are not read again.
	modes(t, func(t *testing.T, opt Options) {
		x := start(t, opt)
		o, data := sample(1, 5*mib+100)
		x.putAll(o, data)
		x.reopen()
		x.has(o, data, 2)
		//lint:ignore SA4000 twice: the first changes what the second finds
		if x.local(o, data) != nil || x.local(o, data) != nil {
			t.Fatal("handed out unverified")
		}
		if !<-x.verified {
			t.Fatal("not verified")
		}
		release := x.local(o, data)
		if release == nil {
			t.Fatal("verified, and not handed out")
		}
		release()
		if got := x.Stats().VerifiedBytes; !opt.Buffered && got != o.Size-mib {
			t.Errorf("%d bytes of %d were read to verify", got, o.Size)
		}
	})
}

func TestVerificationLosesBadBlocks(t *testing.T) {
	// A byte rotted unnoticed. The pass drops only that block and reports it, and the file is lent
	// after the block was put again.
	var damaged atomic.Int64
	damaged.Store(-1)
	x := &fixture{t: t, verified: make(chan bool, 1)}
	x.opt = Options{Dir: t.TempDir(), Pool: hearth.NewPool(0), Events: Events{
		Damaged:  func(_ string, block int64, _ error) { damaged.Store(block) },
		Verified: func(_ [16]byte, whole bool) { x.verified <- whole },
	}}
	x.reopen()
	defer x.stop()
	o, data := sample(1, 6*mib+4097)
	x.putAll(o, data)
	file, err := os.OpenFile(x.dataFile(o), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte{^data[3*mib]}, 3*mib); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	x.reopen()
	if x.local(o, data) != nil {
		t.Fatal("handed out unverified")
	}
	if <-x.verified || damaged.Load() != 3 || x.Stats().Damaged != 1 {
		t.Fatalf("block %d was dropped, stats %+v", damaged.Load(), x.Stats())
	}
	for i := range o.Blocks() {
		if x.Has(o.Block(i).ID()) != (i != 3) {
			t.Fatalf("block %d", i)
		}
	}
	x.put(o, data, 3)
	release := x.local(o, data)
	if release == nil {
		t.Fatal("healed, and not handed out")
	}
	release()
}

func TestCloseEndsVerification(t *testing.T) {
	// The node stops during a pass that would take an hour.
	x := start(t, Options{VerifyRate: 1000})
	o, data := sample(1, 4*mib)
	other, more := sample(2, 4*mib)
	x.putAll(o, data)
	x.putAll(other, more)
	x.reopen()
	if x.local(o, data) != nil || x.local(other, more) != nil {
		t.Fatal("handed out unverified")
	}
	x.stop()
}

func TestEvictionDoesNotWaitForVerification(t *testing.T) {
	// The pass sleeps for minutes between two blocks. The object can be evicted meanwhile, and the
	// pass ends.
	synctest.Test(t, func(t *testing.T) {
		x := start(t, Options{VerifyRate: 1000})
		o, data := sample(1, 4*mib)
		x.putAll(o, data)
		x.reopen()
		x.local(o, data)
		synctest.Wait() // the pass sleeps
		begun := time.Now()
		x.EvictObject(o.Version)
		if x.Used() != 0 || !time.Now().Equal(begun) {
			t.Fatalf("%d bytes left after %v", x.Used(), time.Since(begun))
		}
		if <-x.verified {
			t.Fatal("an evicted object was verified")
		}
	})
}

// crowd is a number of goroutines that use the same few objects at once.
type crowd struct {
	*fixture
	set          []*hearth.Object
	data         [][]byte
	handed, hits atomic.Int64
}

type deed func(rng *rand.Rand, o *hearth.Object, data []byte)

// work does deeds on random objects while more says so.
func (c *crowd) work(seed uint64, do deed, more func() bool) {
	rng := rand.New(rand.NewPCG(seed, 9))
	for more() {
		i := rng.IntN(len(c.set))
		do(rng, c.set[i], c.data[i])
	}
}

func (c *crowd) write(rng *rand.Rand, o *hearth.Object, data []byte) {
	first := rng.Int64N(o.Blocks())
	var run [][]byte
	for i := first; i < min(o.Blocks(), first+8); i++ {
		run = append(run, blockOf(o, data, i))
	}
	if err := c.PutMany(o, first, run); err != nil && !errors.Is(err, ErrBusy) {
		c.t.Error(err)
	}
}

func (c *crowd) read(rng *rand.Rand, o *hearth.Object, data []byte) {
	b := o.Block(rng.Int64N(o.Blocks()))
	off := rng.IntN(b.Len())
	if c.hasRange(b, data, off, 1+rng.IntN(b.Len()-off)) {
		c.hits.Add(1)
	}
}

func (c *crowd) take(rng *rand.Rand, o *hearth.Object, data []byte) {
	file, release, err := c.LocalFile(o)
	if err != nil {
		return
	}
	c.handed.Add(1)
	if rng.IntN(8) == 0 {
		c.EvictExtent(o.Block(rng.Int64N(o.Blocks())).ID())
	}
	c.inspect(file, data)
	_ = file.Close()
	release()
}

func (c *crowd) evict(rng *rand.Rand, o *hearth.Object, _ []byte) {
	if rng.IntN(20) == 0 {
		c.EvictObject(o.Version)
	} else {
		c.EvictExtent(o.Block(rng.Int64N(o.Blocks())).ID())
	}
}

func TestHolesAreNeverHandedOut(t *testing.T) {
	// Writers, readers, evictors and the kernel's side work on three objects at once. Every lent
	// file is whole and right, and stays so until its release. Every read is right or a miss.
	c := &crowd{fixture: start(t, Options{MaxOpen: 2})}
	for i, size := range []int64{17*mib + 13, 2 * mib, 3*mib + 5000} {
		o, data := sample(uint64(i), size)
		c.set, c.data = append(c.set, o), append(c.data, data)
	}
	var finite, endless sync.WaitGroup
	var done atomic.Bool
	times := func(n int) func() bool { return func() bool { n--; return n >= 0 } }
	untilDone := func() bool { return !done.Load() }
	for seed := range uint64(2) {
		finite.Go(func() { c.work(seed, c.write, times(50)) })
		endless.Go(func() { c.work(seed+10, c.read, untilDone) })
		endless.Go(func() { c.work(seed+20, c.take, untilDone) })
	}
	finite.Go(func() { c.work(30, c.evict, times(20)) })
	finite.Wait()
	done.Store(true)
	endless.Wait()
	if s := c.Stats(); s.Damaged != 0 || s.Handed != 0 {
		t.Errorf("stats %+v", s)
	}
	if c.handed.Load() == 0 || c.hits.Load() == 0 {
		t.Errorf("%d files handed out, %d hits: nothing was tested", c.handed.Load(), c.hits.Load())
	}
	c.checkUsed()
}

func TestReaderDuringEvictionGetsAMiss(t *testing.T) {
	// An extent is punched while a reader is between index and device. The reader's zeros are a
	// miss and not damage.
	x := start(t, Options{})
	o, data := sample(1, 17*mib)
	x.put(o, data, 0, 16)
	held, err := x.acquire(context.Background(), o.Version)
	if err != nil {
		t.Fatal(err)
	}
	holes, _, err := x.hit(held, span{index: 0, n: 1})
	if err != nil {
		t.Fatal(err)
	}
	x.EvictExtent(o.Block(0).ID())
	if err := x.lose(held, 0, holes, unix.EIO); err != hearth.ErrMiss || x.Stats().Damaged != 0 {
		t.Fatalf("%v, stats %+v", err, x.Stats())
	}
	x.unpin(held)
}
