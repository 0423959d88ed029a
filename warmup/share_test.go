package warmup

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// soon waits for the end of a job that must not wait for another job.
func (w *world) soon(id string) View {
	w.t.Helper()
	var v View
	hearthtest.Eventually(w.t.Context(), 20*time.Second, func() bool {
		v, _, _ = w.engine.Get(id)
		return v.State.Over()
	})
	return v
}

func TestASlowRateHoldsNobodyUp(t *testing.T) {
	// A job that waits for its rate has all the large objects and all the small ones that
	// the gate lets through. It leaves the places to another job, whose objects are
	// large, too.
	w := newWorld(t)
	w.fill()
	for _, key := range []string{"s/0", "s/1", "s/2", "s/3", "s/4", "s/5", "s/6", "s/7"} {
		w.bucket.put(key, "e", 20<<20)
	}
	w.open()
	slow, err := w.engine.Submit(Request{Targets: []string{"/s"}, Rate: 1 << 10}, nil, false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { w.bucket.mu.Lock(); defer w.bucket.mu.Unlock(); return w.bucket.gets > 0 }) {
		t.Fatal("the slow job does not begin")
	}
	for _, path := range []string{"/d0", "/large", "/d3"} {
		if v := w.soon(w.start(path)); v.State != Done {
			t.Errorf("%s: %s", path, v.State)
		}
	}
	if v, _, _ := w.engine.Get(slow.ID); v.State.Over() {
		t.Errorf("the slow job: %+v", v)
	}
}

func TestReloadsGoTogether(t *testing.T) {
	// A flush finds that blocks of eight files which were taken are gone. They are asked
	// for again at once.
	w := newWorld(t)
	const files = 8
	for i := range files {
		w.bucket.put(fmt.Sprintf("f%d", i), "e", 1000)
	}
	lost := 0
	w.keeper.loses = func(string) bool { lost++; return lost <= files }
	var mu sync.Mutex
	again, all := 0, make(chan struct{})
	w.bucket.onGet = func(n int, _ string) {
		if n <= files {
			return
		}
		mu.Lock()
		if again++; again == files {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-time.After(20 * time.Second):
			t.Error("they go one by one")
		}
	}
	w.open()
	if v := w.over(w.start("/")); v.State != Done || v.Counters.Done.Files != files {
		t.Errorf("%+v", v)
	}
	w.holds()
}

// heavyNames are all present, and can cost a millisecond each.
type heavyNames struct {
	fakeListing
	*fakeKeeper
}

func (h heavyNames) ReadSince(ctx context.Context, dir uint64, since int64, after string, each func(Entry) bool) error {
	return h.fakeListing.ReadSince(ctx, dir, since, after, func(n Entry) bool {
		n.Object = hearth.Object{Key: n.Name, ETag: "e", Size: 10, Version: hearth.VersionOf("id", n.Name, "e", 10)}
		return each(n)
	})
}

// Has is hearth.Store's.
func (heavyNames) Has(hearth.ID) bool {
	time.Sleep(time.Millisecond)
	return true
}

func TestNamesGiveWayToReaders(t *testing.T) {
	// A walk over objects that are all present, and a count of them, take as long as they
	// take while nobody reads. While somebody reads they take half of the time at most.
	const names = 1200 // of several pages
	h := heavyNames{fakeListing{}, &fakeKeeper{}}
	for i := range names {
		h.fakeListing[1] = append(h.fakeListing[1], fmt.Sprintf("f%04d", i))
	}
	takes := func(what string, readers bool, do func(context.Context, *job) error) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			g := NewGate()
			var reads atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			var beside sync.WaitGroup
			defer beside.Wait()
			defer stop()
			beside.Go(func() {
				g.Run(ctx, Pressure{Readers: reads.Load, Throttled: func() int64 { return 0 }, Most: func() int { return 56 }})
			})
			beside.Go(func() {
				for ; readers && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
					reads.Add(1)
				}
			})
			o := Options{Names: h, Keeper: h, Explain: error.Error}
			j := &job{engine: &Engine{o: o, gate: g}, o: &o, loader: newLoader(&o, 0), share: g.Join(), rec: Record{Request: Request{Targets: []string{"/"}, DryRun: true}}}
			defer j.share.Leave()
			time.Sleep(time.Second)
			began := time.Now()
			if err := do(ctx, j); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			took = time.Since(began)
		})
		return took
	}
	for what, do := range map[string]func(context.Context, *job) error{
		"walk": func(ctx context.Context, j *job) error {
			return j.walk(ctx, Cursor{}, make(chan *item, names), func(*item, *GatePass) { t.Error("something is loaded") })
		},
		"count": func(ctx context.Context, j *job) error { return j.count(ctx) },
	} {
		if took := takes(what, false, do); took != names*time.Millisecond {
			t.Errorf("%s: %v while nobody reads", what, took)
		}
		if took := takes(what, true, do); took < 2*names*time.Millisecond-50*time.Millisecond {
			t.Errorf("%s: %v of work within %v while somebody reads", what, names*time.Millisecond, took)
		}
	}
}
