package disk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// testPatience passes in a bubble of testing/synctest only: its clock goes on when all of
// the bubble waits for something of its own, so that no machine is too slow for it.
const testPatience = 40 * time.Millisecond

// looks are the looks in a patience, closePatience is how long Close stands by a writer that hangs, in patiences.
const looks, closePatience = device.Looks, 15

func TestStalledReadIsAMiss(t *testing.T) {
	// The device stops answering: eight readers go on with a miss, the next ones do
	// not ask it, nothing is written to it, and it is used again when it has answered.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Patience: testPatience})
		o := small(1, 5000)
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.flush()
		hang := make(chan struct{})
		r.area(0).setHang(hang)
		var readers sync.WaitGroup
		begun := time.Now()
		for range 8 {
			readers.Go(func() {
				if v, err := r.Get(context.Background(), o.Block(0), 0, 5000); !errors.Is(err, hearth.ErrMiss) {
					t.Errorf("a stalled directory answered %v, %v", v, err)
				}
			})
		}
		readers.Wait()
		if waited := time.Since(begun); waited < testPatience || waited > testPatience*(looks+1)/looks { // a look finds it begun
			t.Errorf("readers with a patience of %v went on after %v", testPatience, waited)
		}
		r.until("the stall is counted", func() bool { return r.Stats().Dirs[0].Stalls > 0 }) // just behind the readers
		s := r.Stats().Dirs[0]
		if !s.Ejected || s.Reading || !strings.Contains(s.Cause, "stalled") || s.Stalls != 1 || s.Hanging == 0 || s.Errors == 0 {
			t.Errorf("stats say %+v", s)
		}
		// A worker may begin after its reader has left.
		r.until("each call is at the device or over", func() bool { return r.area(0).gets() == int(r.Stats().Dirs[0].Hanging) })
		asked := r.area(0).gets()
		if r.holds(o) || r.Has(o.Block(0).ID()) || r.area(0).gets() != asked {
			t.Error("the stalled directory was asked again")
		}
		if err := r.put(small(2, 100)); !errors.Is(err, ErrEjected) {
			t.Errorf("a Put to it: %v", err)
		}
		r.area(0).setHang(nil)
		if r.heard("returned") != 0 {
			t.Error("it came back before what hung did")
		}
		close(hang)
		r.until("it is in use again", func() bool { return r.heard("returned") > 0 })
		if s := r.Stats().Dirs[0]; s.Hanging != 0 || s.Ejected || r.heard("ejected") != 1 {
			t.Errorf("%+v, ejected %d times", s, r.heard("ejected"))
		}
		if !r.holds(o) {
			t.Error("what it held is gone")
		}
	})
}

func TestStalledWriterEjects(t *testing.T) {
	// A write that does not come back takes the directory out of use; what was
	// queued stays readable, and all is well when it has come back.
	synctest.Test(t, func(t *testing.T) {
		stall := make(chan struct{})
		r := newRig(t, Options{Patience: testPatience})
		r.area(0).stall = stall
		o := small(1, 5000)
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.until("the directory is ejected", func() bool { return r.heard("ejected") > 0 })
		if !r.holds(o) {
			t.Error("what is queued cannot be read")
		}
		if r.Takes(small(2, 100).Block(0)) {
			t.Error("a directory that hangs takes blocks")
		}
		close(stall)
		r.until("it is in use again", func() bool { return r.heard("returned") > 0 })
	})
}

func TestReaderLeavesAStalledRead(t *testing.T) {
	// A reader who is killed leaves at once, and the directory is judged without it.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Patience: testPatience})
		o := small(1, 5000)
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.flush()
		hang := make(chan struct{})
		r.area(0).setHang(hang)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Get(ctx, o.Block(0), 0, 5000); !errors.Is(err, context.Canceled) {
			t.Errorf("the reader's error is %v", err)
		}
		r.until("the directory is ejected", func() bool { return r.heard("ejected") > 0 })
		close(hang)
		r.until("it is in use again", func() bool { return r.heard("returned") > 0 })
	})
}

func TestAnEjectedDirectoryIsTriedAgainMoreAndMoreRarely(t *testing.T) {
	// A directory whose disk stays sick is tried again after 10 s, after 10 s more, and then after twice as long each time, up to 320 s.
	opens := 0
	o := Options{Pool: hearthtest.Pool(t, 64<<20), Dirs: []DirOptions{{Path: t.TempDir(), Budget: 16 << 20, Floor: -1}}}
	o.open = func(*directory) (*volume, error) {
		if opens++; opens > 1 {
			return nil, unix.EIO
		}
		return newVolume(newFakeArea(), newFakeArea()), nil
	}
	o.setDefaults()
	d, err := newDirectory(o.Dirs[0], &o, "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.letGo()
	d.eject(unix.EIO, false)
	begun := d.ejection.Load().at
	var tries []int
	for second := range 1400 {
		before := opens
		if d.tryReturn(begun.Add(time.Duration(second) * time.Second)); opens > before {
			tries = append(tries, second)
		}
	}
	if want := []int{10, 20, 40, 80, 160, 320, 640, 960, 1280}; !slices.Equal(tries, want) || d.writable() {
		t.Errorf("tried after %v seconds, not %v; in use: %v", tries, want, d.writable())
	}
}

func TestASlowDeviceIsToldOf(t *testing.T) {
	// A read that waits once for most of the patience is not told of, the next one is, though the directory stays in use, and for ten seconds.
	synctest.Test(t, func(t *testing.T) {
		const tick = testPatience / looks
		begun := time.Now() // the lookout looks at whole ticks from here on
		r := newRig(t, Options{Patience: testPatience})
		o := small(1, 5000)
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.flush()
		waits := func() {
			hang, ended, before := make(chan struct{}), make(chan struct{}), r.area(0).gets()
			r.area(0).setHang(hang)
			<-time.After(tick - time.Since(begun)%tick + tick/4)
			go func() {
				defer close(ended)
				if !r.holds(o) {
					t.Error("what is held is a miss")
				}
			}()
			r.until("the device is asked", func() bool { return r.area(0).gets() > before })
			<-time.After(looks*tick - tick/4) // the first look sees where it is
			r.area(0).setHang(nil)
			close(hang)
			<-ended
		}
		waits()
		if s := r.Stats().Dirs[0]; s.Waited != 0 {
			t.Errorf("after a single wait: %v", s.Waited)
		}
		waits()
		if s := r.Stats().Dirs[0]; s.Waited < testPatience/2 || s.Ejected || s.Stalls != 0 {
			t.Errorf("after two: %+v", s)
		}
		<-time.After(10 * time.Second)
		if late := r.Stats().Dirs[0].Waited; late != 0 {
			t.Errorf("ten seconds later: %v", late)
		}
	})
}

func TestWaitForMemoryIsNoStall(t *testing.T) {
	// Readers of a full Pool wait longer than the patience with a device: it is not
	// the disk's fault, and they get their bytes.
	synctest.Test(t, func(t *testing.T) {
		pool := hearthtest.Pool(t, 0)
		var ejected atomic.Int32
		s, err := Open(Options{Pool: pool, Patience: testPatience, Dirs: []DirOptions{{Path: t.TempDir(), Budget: 64 << 20, Floor: -1}},
			Events: Events{Ejected: func(string, error) { ejected.Add(1) }}})
		if err != nil {
			t.Fatal(err)
		}
		defer hearthtest.Close(t, s)
		o := small(1, 5000)
		v := hearthtest.View(t, pool, o.Block(0), 1)
		err = s.Keep(t.Context(), o.Block(0), v)
		v.Release()
		if err != nil {
			t.Fatal(err)
		}
		var all []*hearth.View
		for _, n := range []int{hearth.BlockSize, 64 << 10, 8 << 10, 4096} {
			for v := pool.TryAlloc(n); v != nil; v = pool.TryAlloc(n) {
				all = append(all, v)
			}
		}
		got := make(chan error, 1)
		go func() {
			v, err := s.Get(context.Background(), o.Block(0), 0, 5000)
			if err == nil {
				v.Release()
			}
			got <- err
		}()
		select {
		case err := <-got:
			t.Errorf("the reader did not wait for memory: %v", err)
			got <- err // for below
		case <-time.After(4 * testPatience): // longer than any stall may last
		}
		for _, v := range all {
			v.Release()
		}
		if err := <-got; err != nil || ejected.Load() != 0 {
			t.Errorf("the reader got %v, the directory was ejected %d times", err, ejected.Load())
		}
	})
}

func TestCloseDoesNotWaitForAStalledDevice(t *testing.T) {
	// A node ends although its disk does not answer, and says so.
	synctest.Test(t, func(t *testing.T) {
		stall := make(chan struct{})
		r := newRig(t, Options{Patience: testPatience})
		r.area(0).stall = stall
		if err := r.put(small(1, 5000)); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := r.dirs[0].await(); err == nil {
			t.Error("closed a directory whose writer hangs")
		}
		if waited := time.Since(begun); waited < closePatience*testPatience || waited > (closePatience+1)*testPatience {
			t.Errorf("Close with a patience of %v stood by for %v", testPatience, waited)
		}
		close(stall)
	})
}

func TestACheckThatIsLeftKeepsItsFilesOpen(t *testing.T) {
	// A step of a check hangs and is left: the directory goes out of use, and what the step works on is closed once it has ended, not before.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Patience: testPatience})
		d, run := r.dirs[0], &check.Run{}
		if err := d.verify(t.Context(), run, scrubPlace{}, func(scrubPlace) {}); err != nil {
			t.Fatal(err)
		}
		vol, hang := d.volume.Load(), make(chan struct{})
		if err := run.Do(func() { <-hang }, nil); !errors.Is(err, check.ErrLeft) {
			t.Errorf("a step that hangs: %v", err)
		}
		r.until("the directory has let go of it", func() bool { return d.volume.Load() == nil })
		select {
		case <-vol.closed:
			t.Error("it is closed under the step")
		default:
		}
		close(hang)
		<-vol.closed
		r.until("it is in use again", func() bool { return r.heard("returned") > 0 })
	})
}

func TestWhoReadsOnHisOwnThreadIsReplaced(t *testing.T) {
	// A reader on his own thread gets what is held; where the device hangs another is told to
	// take his place, once, and what he brings when the device lets go of him is nobody's. Close
	// waits for him.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Patience: testPatience})
		o := small(1, 5000)
		if err := r.put(o); err != nil {
			t.Fatal(err)
		}
		r.flush()
		none := func() { t.Error("replaced though the device answers") }
		v := r.GetHere(t.Context(), o.Block(0), 1000, 4000, none)
		if v == nil || v.Len() != 4000 {
			t.Fatalf("it has %v", v)
		}
		v.Release()
		if v := r.GetHere(t.Context(), small(2, 100).Block(0), 0, 100, none); v != nil {
			t.Errorf("of what is not held: %v", v)
		}
		hang := make(chan struct{})
		r.area(0).setHang(hang)
		replaced, ended := make(chan struct{}, 2), make(chan *hearth.View)
		go func() {
			ended <- r.GetHere(context.Background(), o.Block(0), 0, 5000, func() { replaced <- struct{}{} })
		}()
		<-replaced
		r.until("the directory is ejected", func() bool { return r.heard("ejected") > 0 })
		if v := r.GetHere(t.Context(), o.Block(0), 0, 5000, none); v != nil {
			t.Errorf("of a directory that hangs: %v", v)
		}
		r.area(0).setHang(nil)
		close(hang)
		if v := <-ended; v != nil {
			t.Errorf("who was replaced has %v", v)
		}
		r.until("it is in use again", func() bool { return r.heard("returned") > 0 })
		if len(replaced) > 0 {
			t.Error("replaced twice")
		}
	})
}

func TestWhoReadsOnHisOwnThreadWaitsForNoMemory(t *testing.T) {
	// Others wait behind him: without memory there is nothing for him, at once, and no disk is
	// blamed.
	pool := hearthtest.Pool(t, 16<<20)
	g := device.New(device.Options{MaxLeft: maxLeft})
	defer g.Close()
	get := func() (v *hearth.View) {
		var c *device.Call
		c = device.NewCall(func() {
			var err error
			v, err = alloc(pool)(c, hearth.BlockSize)
			if (v == nil) != errors.Is(err, hearth.ErrMiss) {
				t.Errorf("%v, %v", v, err)
			}
		}, nil)
		if !g.Here(t.Context(), c, func() {}) {
			t.Error("it was left")
		}
		return v
	}
	n := 0
	for v := get(); v != nil; v = get() {
		defer v.Release()
		n++
	}
	if n != 16 {
		t.Errorf("%d blocks in 16 MiB", n)
	}
}
