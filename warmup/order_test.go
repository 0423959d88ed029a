package warmup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// queued notes a job for a path that was submitted and has not begun.
func (w *world) queued(id, path string, age int64) {
	w.t.Helper()
	if err := w.files.Save(Record{ID: id, Request: Request{Targets: []string{path}}, State: Queued, Times: Times{Created: time.Unix(1000-age, 0)}}); err != nil {
		w.t.Fatal(err)
	}
}

func TestARestartKeepsTheOrder(t *testing.T) {
	// When the node starts, more jobs are unfinished than may work at a time. The oldest
	// go on, and the newest are queued as before.
	w := newWorld(t)
	w.fill()
	var newest []string
	for i := range int64(mostJobs + 4) {
		id := fmt.Sprintf("age%05d", i)
		w.queued(id, "/", i)
		if i < 4 {
			newest = append(newest, id)
		}
	}
	release := make(chan struct{})
	w.bucket.onGet = func(int, string) { <-release }
	w.open()
	var queued []string
	hearthtest.Eventually(t.Context(), 20*time.Second, func() bool {
		queued = nil
		for _, v := range w.engine.List() {
			if v.State == Queued {
				queued = append(queued, v.ID)
			}
		}
		return len(queued) == 4
	})
	if slices.Sort(queued); !slices.Equal(queued, newest) {
		t.Errorf("%v are queued, and %v came last", queued, newest)
	}
	close(release)
	for _, id := range newest {
		if v := w.over(id); v.State != Done {
			t.Errorf("%+v", v)
		}
	}
}

func TestTheFirstClaimIsTheOldestJobs(t *testing.T) {
	// Of two unfinished jobs only one fits. After a restart the older one is loaded and
	// the other refused, even if both are still to be counted.
	for range 4 {
		w := newWorld(t)
		w.pins = &Pins{}
		for _, key := range []string{"a/1", "a/2", "b/1", "b/2"} {
			w.bucket.put(key, "e", 1000)
		}
		w.room = fakeRoom(3000)
		w.queued("new", "/b", 1)
		w.queued("old", "/a", 2)
		release := make(chan struct{})
		w.bucket.onGet = func(_ int, key string) {
			if key[0] == 'a' {
				<-release
			}
		}
		w.open()
		if v := w.over("new"); v.Kind != kindRefused {
			t.Errorf("the new one: %s %s", v.State, v.Error)
		}
		close(release)
		if v := w.over("old"); v.State != Done {
			t.Errorf("the old one: %s %s", v.State, v.Error)
		}
	}
}

func TestTheOrderIsNoClocks(t *testing.T) {
	// The clock was set back by a day after a hundred jobs, the first ten of which have
	// no number. A new job is still the latest. The oldest are forgotten, also by the
	// next process. A retry is the latest again.
	w := newWorld(t)
	w.bucket.put("f", "e", 1)
	tomorrow := time.Now().Add(24 * time.Hour)
	for i := range maxHistory {
		r := Record{ID: fmt.Sprintf("old%05d", i), State: Done, Times: Times{Created: tomorrow.Add(time.Duration(i) * time.Second)}}
		if i < 10 {
			r.Created = r.Created.Add(time.Hour)
		} else {
			r.Number = int64(i)
		}
		if err := w.files.Save(r); err != nil {
			t.Fatal(err)
		}
	}
	w.open()
	x, y := w.start("/"), ""
	if w.over(x); w.engine.List()[0].ID != x {
		t.Errorf("the latest is %s", w.engine.List()[0].ID)
	}
	for range 2 {
		y = w.start("/")
		w.over(y)
	}
	is := func(when string) {
		t.Helper()
		all := w.engine.List()
		if all[0].ID != y || all[2].ID != x || slices.ContainsFunc(all, func(v View) bool { return v.ID == "old00000" || v.ID == "old00001" }) || all[len(all)-1].ID > "old00003" {
			t.Errorf("%s: %d jobs, %s and then %s and %s to %s", when, len(all), all[0].ID, all[1].ID, all[2].ID, all[len(all)-1].ID)
		}
	}
	is("three later")
	w.kill()
	w.open()
	is("after a restart")
	if all := w.engine.List(); len(all) != maxHistory {
		t.Errorf("%d jobs", len(all))
	}
	clear(w.records.last) // a retry begins anew
	if err := w.engine.Retry("old00050"); err != nil {
		t.Fatal(err)
	}
	if w.over("old00050"); w.engine.List()[0].ID != "old00050" {
		t.Errorf("after a retry the latest is %s", w.engine.List()[0].ID)
	}
}
