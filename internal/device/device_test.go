package device

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testPatience passes only in a bubble of testing/synctest.
const testPatience = 40 * time.Millisecond

// start makes a Guard with a running lookout. It is closed at the test's end.
func start(t *testing.T, o Options) *Guard {
	t.Helper()
	if o.MaxLeft == 0 {
		o.MaxLeft = 64
	}
	g := New(o)
	ended := make(chan struct{})
	go func() { defer close(ended); g.LookOut() }()
	t.Cleanup(func() { g.Close(); <-ended })
	return g
}

func TestOperationsLeftAreBounded(t *testing.T) {
	// However many readers are killed, the abandoned operations are bounded by MaxLeft.
	for _, most := range []int{1, 64} {
		synctest.Test(t, func(t *testing.T) {
			g := start(t, Options{Patience: time.Minute, MaxLeft: most})
			hang := make(chan struct{})
			var begun, undone atomic.Int32
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for range 3 * most {
				if g.Do(ctx, NewCall(func() { begun.Add(1); <-hang }, func() { undone.Add(1) })) {
					t.Fatal("an operation that hangs has ended")
				}
			}
			if g.Left() != most || !g.Busy() {
				t.Errorf("%d were left, bound %d; busy: %v", g.Left(), most, g.Busy())
			}
			close(hang)
			synctest.Wait() // all have come back
			if n := int32(most); begun.Load() != n || undone.Load() != n || g.Left() != 0 || g.Busy() {
				t.Errorf("%d began, %d were undone, %d are left, bound %d", begun.Load(), undone.Load(), g.Left(), most)
			}
			if !g.Do(t.Context(), NewCall(func() {}, nil)) {
				t.Error("a device that answers again is not asked")
			}
		})
	}
}

func TestWhatHangsIsLeftWhenItsPatienceIsOver(t *testing.T) {
	// An operation hangs, and so does one that is granted seven looks. Each is abandoned at that
	// look or the next, and reported.
	for looks, granted := range map[int]int{0: Looks, 1: Looks, 7: 7} {
		synctest.Test(t, func(t *testing.T) {
			var told []time.Duration
			hang := make(chan struct{})
			g := start(t, Options{Patience: testPatience, Hangs: func(what string, since time.Duration) {
				if what != "an operation" {
					t.Errorf("%s hangs", what)
				}
				told = append(told, since)
			}})
			c := NewCall(func() { <-hang }, func() {})
			c.Looks = looks
			begun := time.Now()
			if g.Do(t.Context(), c) {
				t.Error("an operation that hangs has ended")
			}
			const look = testPatience / Looks
			if took := time.Since(begun); took < time.Duration(granted)*look || took > time.Duration(granted+1)*look {
				t.Errorf("left after %v, with %d looks of %v", took, granted, look)
			}
			synctest.Wait()
			if len(told) != 1 || told[0] != testPatience {
				t.Errorf("told of %v", told)
			}
			close(hang)
		})
	}
}

func TestStepsAndRestsAreNoHang(t *testing.T) {
	// An operation takes many patiences, with steps in between, and then rests. It is not abandoned,
	// and nothing is reported.
	synctest.Test(t, func(t *testing.T) {
		g := start(t, Options{Patience: testPatience, Hangs: func(what string, _ time.Duration) { t.Errorf("%s hangs", what) }})
		var c *Call
		c = NewCall(func() {
			for range 20 {
				<-time.After(testPatience / 2)
				c.Work()
			}
			c.Rest()
			<-time.After(10 * testPatience)
			c.Work()
		}, nil)
		if !g.Do(t.Context(), c) {
			t.Error("it was left")
		}
	})
}

func TestOfADeviceOutOfUseAllLeave(t *testing.T) {
	// The device is taken out of use. Every operation that waits for it is abandoned within two
	// looks, and no hang is reported.
	synctest.Test(t, func(t *testing.T) {
		var unusable atomic.Bool
		hang := make(chan struct{})
		g := start(t, Options{Patience: testPatience, Usable: func() bool { return !unusable.Load() },
			Hangs: func(what string, _ time.Duration) { t.Errorf("%s hangs", what) }})
		unusable.Store(true)
		begun := time.Now()
		if g.Do(t.Context(), NewCall(func() { <-hang }, func() {})) {
			t.Error("an operation that hangs has ended")
		}
		if took := time.Since(begun); took > 2*testPatience/Looks {
			t.Errorf("left after %v", took)
		}
		close(hang)
	})
}

func TestWhoCannotLeaveIsReplaced(t *testing.T) {
	// A caller runs the operation itself, and hangs. Another goroutine is started in its place,
	// once. The caller learns that when the device lets go of it.
	synctest.Test(t, func(t *testing.T) {
		g := start(t, Options{Patience: testPatience})
		hang, ended := make(chan struct{}), make(chan bool)
		var stead, undone atomic.Int32
		c := NewCall(func() { <-hang }, func() { undone.Add(1) })
		go func() { ended <- g.Here(context.Background(), c, func() { stead.Add(1) }) }()
		<-time.After(10 * testPatience)
		if stead.Load() != 1 || undone.Load() != 0 || g.Left() != 1 {
			t.Errorf("replaced %d times, undone %d times, %d left", stead.Load(), undone.Load(), g.Left())
		}
		close(hang)
		if <-ended || undone.Load() != 1 || g.Left() != 0 {
			t.Errorf("it has ended, or is undone %d times, %d left", undone.Load(), g.Left())
		}
	})
}

func TestCloseWaitsForWhatDoesNotHang(t *testing.T) {
	// One operation was abandoned, another is in flight when the Guard is closed. Close waits only
	// for the second one, and no new one begins. The abandoned one is undone when it comes back.
	synctest.Test(t, func(t *testing.T) {
		g := start(t, Options{Patience: time.Minute})
		hang, works, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var undone atomic.Bool
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if g.Do(gone, NewCall(func() { <-hang }, func() { undone.Store(true) })) {
			t.Error("an operation that hangs has ended")
		}
		go func() {
			if !g.Do(t.Context(), NewCall(func() { <-works }, nil)) {
				t.Error("an operation that works was left")
			}
		}()
		synctest.Wait()
		go func() { defer close(closed); g.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed under an operation")
		default:
		}
		if g.Do(t.Context(), NewCall(func() { t.Error("begun") }, nil)) {
			t.Error("a closed Guard runs operations")
		}
		close(works)
		<-closed
		if undone.Load() {
			t.Error("undone before it came back")
		}
		close(hang)
		synctest.Wait()
		if !undone.Load() {
			t.Error("what was left is not undone")
		}
	})
}

func TestCloseLeavesWhatHangs(t *testing.T) {
	// An operation begins to hang just before the Guard is closed: Close waits for its patience, and no longer.
	synctest.Test(t, func(t *testing.T) {
		g := start(t, Options{Patience: testPatience})
		hang := make(chan struct{})
		go g.Do(context.Background(), NewCall(func() { <-hang }, func() {}))
		synctest.Wait()
		begun := time.Now()
		g.Close()
		if took := time.Since(begun); took < testPatience || took > testPatience*(Looks+1)/Looks {
			t.Errorf("Close took %v", took)
		}
		close(hang)
	})
}

func TestAWriterHangsLater(t *testing.T) {
	// A writer makes no step. It is reported after five patiences, and Await waits for it for
	// fifteen.
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		begun := time.Now()
		g := start(t, Options{Patience: testPatience, Hangs: func(what string, since time.Duration) {
			if what != "the writer" || since != 5*testPatience {
				t.Errorf("%s hangs for %v", what, since)
			}
			told.CompareAndSwap(0, int64(time.Since(begun)))
		}})
		g.Writer.Work()
		if g.Await(make(chan struct{})) {
			t.Error("a writer that hangs has ended")
		}
		if took := time.Since(begun); took < 15*testPatience || took > 16*testPatience {
			t.Errorf("stood by for %v", took)
		}
		if at := time.Duration(told.Load()); at < 5*testPatience || at > 6*testPatience {
			t.Errorf("told after %v", at)
		}
		g.Writer.Rest()
	})
}

func TestASlowDeviceIsToldOf(t *testing.T) {
	// A wait of most of the patience is not reported the first time. The next one is, for ten
	// seconds, though neither operation is abandoned.
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Patience: testPatience, MaxLeft: 64, Hangs: func(what string, _ time.Duration) { t.Errorf("%s hangs", what) }})
		defer g.Close()
		waits := func() {
			hang, ended := make(chan struct{}), make(chan bool)
			go func() { ended <- g.Do(context.Background(), NewCall(func() { <-hang }, nil)) }()
			synctest.Wait()
			for range Looks { // the first sees where it is
				g.look()
			}
			close(hang)
			if !<-ended {
				t.Error("it was left")
			}
		}
		waits()
		if g.Waited() != 0 {
			t.Errorf("after a single wait: %v", g.Waited())
		}
		waits()
		if g.Waited() < testPatience/2 {
			t.Errorf("after two: %v", g.Waited())
		}
		if late := g.slow.waited(time.Now().Add(slowWithin)); late != 0 {
			t.Errorf("ten seconds later: %v", late)
		}
	})
}
