package status

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func check(t *testing.T, what string, w Window, reads, held int64, from map[string]int64, ratio float64) {
	t.Helper()
	if w.Reads != reads || w.Held != held || !maps.Equal(w.From, from) || w.HitBytes == nil || *w.HitBytes != ratio {
		t.Errorf("%s: %+v, hits %v", what, w, w.HitBytes)
	}
}

func TestWindowsOfReads(t *testing.T) {
	// There is a cold epoch, nine minutes later a warm one, and then nothing. Each window shows its own. What
	// the origin sent counts as the origin's, though a tier passed it on.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var now HistorySample
		var mu sync.Mutex // guards now
		r := NewHistory(func() HistorySample {
			mu.Lock()
			defer mu.Unlock()
			return now
		})
		change := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		go r.Run(ctx)
		synctest.Wait()
		if w := r.Reads(); w.Now.HitReads != nil || w.SinceStart.HitBytes != nil || w.Now.Bytes != 0 {
			t.Errorf("nothing was read: %+v", w)
		}
		change(func() { now = HistorySample{Reads: 100, Missed: 80, Bytes: 1000, RAM: 300, Origin: 900, Lent: 3} })
		cold := map[string]int64{"ram": 100, "disk": 0, "origin": 900}
		for what, w := range map[string]Window{"now": r.Reads().Now, "10 min": r.Reads().TenMinutes, "all": r.Reads().SinceStart} {
			check(t, "cold, "+what, w, 100, 20, cold, 0.1)
		}
		time.Sleep(9 * time.Minute)
		change(func() { now.Reads, now.Bytes, now.RAM, now.Disk = 200, 2000, 600, 900 })
		time.Sleep(2 * time.Second)
		w := r.Reads()
		check(t, "warm, now", w.Now, 100, 100, map[string]int64{"ram": 250, "disk": 750, "origin": 0}, 1)
		check(t, "warm, 10 min", w.TenMinutes, 200, 120, map[string]int64{"ram": 1100 * 600 / 1500, "disk": 1100 - 1100*600/1500, "origin": 900}, 0.55)
		if w.Now.Seconds < 10 || w.Now.Seconds > 15 || w.Lent != 3 {
			t.Errorf("now is %v s, %d opens were lent", w.Now.Seconds, w.Lent)
		}
		time.Sleep(2 * time.Minute)
		if w = r.Reads(); w.Now.HitReads != nil || w.Now.Reads != 0 {
			t.Errorf("two minutes later, now: %+v", w.Now)
		}
		check(t, "the warm one alone", w.TenMinutes, 100, 100, map[string]int64{"ram": 250, "disk": 750, "origin": 0}, 1)
		check(t, "all", w.SinceStart, 200, 120, map[string]int64{"ram": 440, "disk": 660, "origin": 900}, 0.55)
		change(func() { now.Reads, now.Bytes, now.RAM, now.Volume = 300, 3000, 700, 300 })
		check(t, "from a volume", r.Reads().Now, 100, 100, map[string]int64{"ram": 250, "disk": 0, "volume": 750, "origin": 0}, 1)
		change(func() { now.Reads, now.Bytes, now.RAM, now.Volume = 301, 3100, 800, 0 })
		check(t, "it was detached", r.Reads().Now, 101, 101, map[string]int64{"ram": 1100, "disk": 0, "origin": 0}, 1)
		time.Sleep(time.Hour)
		if w = r.Reads(); w.TenMinutes.Reads != 0 || w.TenMinutes.Seconds < 600 || w.TenMinutes.Seconds > 605 {
			t.Errorf("an hour later: %+v", w.TenMinutes)
		}
		cancel()
		synctest.Wait()
	})
}
