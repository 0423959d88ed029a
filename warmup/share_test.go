package warmup

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// soon waits for a job's end that must not wait for another job's.
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
	// A job that waits for its rate, with as many large objects and small ones as are
	// let through, leaves the places to another job, whose objects are large, too.
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
	// A flush finds blocks of eight files gone that were taken: they are asked for again
	// beside each other.
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
