package waits

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func seconds(t *testing.T, l *Ledger, want map[string]float64) {
	t.Helper()
	whole := map[string]float64{"origin": 0, "throttled": 0, "volume": 0, "disk": 0, "list": 0}
	maps.Copy(whole, want)
	if got := l.Seconds(); !maps.Equal(got, whole) {
		t.Errorf("waited %v, not %v", got, whole)
	}
}

func begin(l *Ledger, of uint32, cause Cause, about any) *Wait {
	w := &Wait{}
	w.Begin(l, of, cause, about)
	return w
}

// left is how many threads still wait, and the number of their subjects.
func (l *Ledger) left() (threads, things int) {
	for i := range l.shards {
		threads += len(l.shards[i].threads)
	}
	return threads, len(l.pauses.of)
}

func TestThreadWaitsOnce(t *testing.T) {
	// The kernel reads ahead for a thread. Three of its requests wait, the thread waits once, and
	// another thread waits by itself. Waits that go on are counted, too.
	synctest.Test(t, func(t *testing.T) {
		l := New()
		a := begin(l, 7, Origin, "v")
		time.Sleep(time.Second)
		b, c := begin(l, 7, Origin, "v"), begin(l, 7, List, "link")
		other := begin(l, 8, Origin, "v")
		time.Sleep(2 * time.Second)
		seconds(t, l, map[string]float64{"origin": 5})
		b.End()
		time.Sleep(4 * time.Second)
		c.End()
		a.End()
		seconds(t, l, map[string]float64{"origin": 7 + 6})
		time.Sleep(time.Second) // nobody of thread 7
		other.End()
		seconds(t, l, map[string]float64{"origin": 7 + 7})
		x, y := begin(l, 0, List, nil), begin(l, 0, List, nil) // threads that are not known are two
		time.Sleep(time.Second)
		x.End()
		y.End()
		begin(l, 7, Disk, nil).End() // at once
		z := begin(l, 7, Disk, nil)
		time.Sleep(time.Second / 2)
		z.End()
		z.End() // nothing, like the End of what never began
		seconds(t, l, map[string]float64{"origin": 7 + 7, "list": 2, "disk": 0.5})
		if threads, things := l.left(); threads+things != 0 {
			t.Errorf("%d threads and %d pauses are left", threads, things)
		}
	})
}

func TestReadAheadWaitsOnce(t *testing.T) {
	// READs of many threads overlap and end in another order than they began. Each thread's time
	// counts once, whoever waits beside it or reuses its entry afterwards.
	synctest.Test(t, func(t *testing.T) {
		l := New()
		const threads = 3 * shards
		for range 2 {
			var all [threads][3]Wait
			for of := range all {
				all[of][0].Begin(l, uint32(of+1), Disk, nil)
			}
			time.Sleep(time.Second)
			for of := range all {
				all[of][1].Begin(l, uint32(of+1), Disk, nil)
				all[of][2].Begin(l, uint32(of+1), Disk, nil)
			}
			time.Sleep(time.Second)
			for of := range all {
				all[of][(of+1)%3].End()
			}
			time.Sleep(time.Second)
			for of := range all {
				all[of][of%3].End()
				all[of][(of+2)%3].End()
			}
			time.Sleep(time.Second)
		}
		seconds(t, l, map[string]float64{"disk": 2 * 3 * threads})
		if threads, things := l.left(); threads+things != 0 {
			t.Errorf("%d threads and %d things are left", threads, things)
		}
	})
}

func TestThrottledIsTheInnermostCause(t *testing.T) {
	// Work elsewhere slows down twice, once for two at a time. That part of a wait for the same
	// subject is throttled. A reader that came later has its own part, and a reader of another
	// subject has none.
	synctest.Test(t, func(t *testing.T) {
		l := New()
		ctx := l.About(t.Context(), "v")
		a, other := begin(l, 1, Origin, "v"), begin(l, 2, List, "link")
		time.Sleep(time.Second)
		end, again := SlowDown(ctx), SlowDown(context.WithoutCancel(ctx))
		time.Sleep(2 * time.Second)
		seconds(t, l, map[string]float64{"origin": 1, "throttled": 2, "list": 3})
		late := begin(l, 3, Origin, "v")
		end()
		time.Sleep(time.Second)
		again()
		time.Sleep(3 * time.Second)
		a.End()
		other.End()
		seconds(t, l, map[string]float64{"origin": 4 + 3, "throttled": 3 + 1, "list": 7})
		end = SlowDown(ctx)
		time.Sleep(5 * time.Second)
		late.End()
		end()
		seconds(t, l, map[string]float64{"origin": 4 + 3, "throttled": 3 + 6, "list": 7})
		SlowDown(t.Context())() // nobody is told
		if threads, things := l.left(); threads+things != 0 {
			t.Errorf("%d threads and %d pauses are left", threads, things)
		}
	})
}

func TestAVolumeIsNoOrigin(t *testing.T) {
	// A reader waits for an object of which a volume has a part: two reads of the volume at once count once, the origin
	// counts before and behind them, and a pause that the origin asks for meanwhile counts as throttling.
	synctest.Test(t, func(t *testing.T) {
		l := New()
		a, other := begin(l, 1, Origin, "v"), begin(l, 2, Origin, "w")
		time.Sleep(time.Second)
		end, again := l.Reads("v"), l.Reads("v")
		time.Sleep(2 * time.Second)
		end()
		time.Sleep(time.Second)
		seconds(t, l, map[string]float64{"origin": 1 + 4, "volume": 3})
		slow := SlowDown(l.About(t.Context(), "v"))
		time.Sleep(4 * time.Second)
		slow()
		again()
		time.Sleep(5 * time.Second)
		a.End()
		other.End()
		seconds(t, l, map[string]float64{"origin": 1 + 5 + 13, "throttled": 4, "volume": 3})
		if threads, things := l.left(); threads+things != 0 {
			t.Errorf("%d threads and %d things are left", threads, things)
		}
	})
}

func TestNoLedgerCountsNothing(t *testing.T) {
	// Code without a node has no ledger.
	var l *Ledger
	begin(l, 1, Disk, nil).End()
	l.Reads("v")()
	if ctx := l.About(t.Context(), "v"); ctx != t.Context() {
		t.Error("the context was marked")
	}
}

// BenchmarkWait is the cost of one counted wait.
func BenchmarkWait(b *testing.B) {
	l := New()
	var w Wait // lies in its request
	for b.Loop() {
		w.Begin(l, 1, Origin, [16]byte{1})
		w.End()
	}
}

// BenchmarkHit is what a wait adds to a READ that a disk answers, with parallel threads.
func BenchmarkHit(b *testing.B) {
	l := New()
	var threads atomic.Uint32
	b.RunParallel(func(p *testing.PB) {
		thread := threads.Add(1)
		var w Wait // lies in its request
		for p.Next() {
			w.Begin(l, thread, Disk, nil)
			w.End()
		}
	})
}
