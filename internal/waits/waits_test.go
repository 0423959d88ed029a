package waits

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

func seconds(t *testing.T, l *Ledger, want map[string]float64) {
	t.Helper()
	whole := map[string]float64{"origin": 0, "throttled": 0, "disk": 0, "list": 0}
	maps.Copy(whole, want)
	if got := l.Seconds(); !maps.Equal(got, whole) {
		t.Errorf("waited %v, not %v", got, whole)
	}
}

func TestThreadWaitsOnce(t *testing.T) {
	// The kernel reads ahead for a thread: three of its requests wait, the thread waits
	// once, and another thread for itself; what waits now is counted, too.
	synctest.Test(t, func(t *testing.T) {
		l := New()
		a := l.Begin(7, Origin, "v")
		time.Sleep(time.Second)
		b, c := l.Begin(7, Origin, "v"), l.Begin(7, List, "link")
		other := l.Begin(8, Origin, "v")
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
		x, y := l.Begin(0, List, nil), l.Begin(0, List, nil) // threads that are not known are two
		time.Sleep(time.Second)
		x.End()
		y.End()
		l.Add(Disk, time.Second/2)
		seconds(t, l, map[string]float64{"origin": 7 + 7, "list": 2, "disk": 0.5})
		if len(l.threads)+len(l.pauses) != 0 {
			t.Errorf("%d threads and %d pauses are left", len(l.threads), len(l.pauses))
		}
	})
}

func TestThrottledIsTheInnermostCause(t *testing.T) {
	// Work elsewhere slows down twice, once for two at a time: what a reader of the same
	// thing waited then is throttled; who came later has his part, who waits for another thing none.
	synctest.Test(t, func(t *testing.T) {
		l := New()
		ctx := l.About(t.Context(), "v")
		a, other := l.Begin(1, Origin, "v"), l.Begin(2, List, "link")
		time.Sleep(time.Second)
		end, again := SlowDown(ctx), SlowDown(context.WithoutCancel(ctx))
		time.Sleep(2 * time.Second)
		seconds(t, l, map[string]float64{"origin": 1, "throttled": 2, "list": 3})
		late := l.Begin(3, Origin, "v")
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
		if len(l.threads)+len(l.pauses) != 0 {
			t.Errorf("%d threads and %d pauses are left", len(l.threads), len(l.pauses))
		}
	})
}

func TestNoLedgerCountsNothing(t *testing.T) {
	// What works without a node has no ledger.
	var l *Ledger
	l.Begin(1, Disk, nil).End()
	l.Add(Disk, time.Second)
	if ctx := l.About(t.Context(), "v"); ctx != t.Context() {
		t.Error("the context was marked")
	}
}

// BenchmarkWait is what one wait costs that is counted.
func BenchmarkWait(b *testing.B) {
	l := New()
	for b.Loop() {
		l.Begin(1, Origin, [16]byte{1}).End()
	}
}

// BenchmarkHit is what a READ costs more that a disk answers: two looks at the clock and a sum.
func BenchmarkHit(b *testing.B) {
	l := New()
	for b.Loop() {
		began := time.Now()
		l.Add(Disk, time.Since(began))
	}
}
