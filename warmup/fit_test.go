package warmup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeRooms are two directories. The first letter of an object's key says in which it
// lies.
type fakeRooms struct {
	fakeRoom
	of [2]int64
}

// Needs is Room's.
func (fakeRooms) Needs(o *hearth.Object) (int, int64) { return int(o.Key[0] - '0'), o.Size }

// Rooms is Room's.
func (r fakeRooms) Rooms([]string) []int64 { return r.of[:] }

// Free is Room's.
func (r fakeRooms) Free() []int64 { return r.of[:] }

// roomOf is the room of a keeper with a budget: what it does not hold is free.
type roomOf struct {
	fakeRoom
	keeper *fakeKeeper
	times  *int
	asked  chan struct{} // closed when the second asks
}

// Free is Room's.
func (r roomOf) Free() []int64 {
	r.keeper.mu.Lock()
	defer r.keeper.mu.Unlock()
	if *r.times++; *r.times == 2 {
		close(r.asked)
	}
	return []int64{r.keeper.budget - r.keeper.used}
}

func TestARefusalLeavesTheCacheAsItWas(t *testing.T) {
	// A cache has room for one more file. Until the last directory is listed, a set loads
	// that one file, and the others wait. A set that does not fit is refused, and nothing
	// was evicted. A set that fits is loaded, and evicts what was there.
	for last, state := range map[int64]State{2001: Failed, 2000: Done} {
		w := newWorld(t)
		for i := range 4 {
			w.bucket.put(fmt.Sprintf("old/%d", i), "e", 1000)
		}
		for i := range 3 {
			w.bucket.put(fmt.Sprintf("set/a/%d", i), "e", 1000)
		}
		w.bucket.put("set/z/1", "e", last)
		w.keeper.budget = 5000
		w.room = fakeRoom(5000)
		w.open()
		w.over(w.start("/old"))
		room := roomOf{fakeRoom(5000), w.keeper, new(int), make(chan struct{})}
		w.engine.o.Room, w.keeper.evicts = room, true
		gets := w.bucket.gets
		toomany := make(chan struct{})
		w.bucket.onGet = func(n int, _ string) {
			if n == gets+2 {
				close(toomany)
			}
		}
		w.bucket.unlist = func(prefix string) error {
			if prefix == "set/z/" {
				w.bucket.mu.Unlock()
				defer w.bucket.mu.Lock()
				select {
				case <-room.asked:
				case <-toomany:
					t.Error("it loads what has no free room before it is known to fit")
				}
			}
			return nil
		}
		v := w.over(w.start("/set"))
		if v.State != state || (state == Failed) != (w.keeper.pushed == 0) || state == Failed && (v.Kind != kindRefused || w.bucket.gets != gets+1) {
			t.Errorf("%d: %s %s, %d blocks pushed out, %d requests", last, v.State, v.Error, w.keeper.pushed, w.bucket.gets-gets)
		}
	}
}

// blocked submits a job whose first request for bytes waits until release is closed.
func (w *world) blocked(path string) (id string, release chan struct{}) {
	w.t.Helper()
	release, reached := make(chan struct{}), make(chan struct{}, 1)
	w.bucket.mu.Lock()
	w.bucket.onGet = func(int, string) {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-release
	}
	w.bucket.mu.Unlock()
	id = w.start(path)
	<-reached
	return id, release
}

func TestTwoJobsThatFitOnlyAlone(t *testing.T) {
	// While a job is at work, another one without room beside it is refused, with the
	// numbers. One that has room, or shares its objects with the first, is loaded. Once
	// the first is over, all may have the room.
	w := newWorld(t)
	w.pins = &Pins{}
	for _, key := range []string{"a/1", "a/2", "b/1", "b/2", "c/1"} {
		w.bucket.put(key, "e", 1000)
	}
	w.room = fakeRoom(3000)
	w.open()
	first, release := w.blocked("/a")
	v := w.over(w.start("/b"))
	if v.State != Failed || v.Kind != kindRefused || !strings.Contains(v.Error, "takes 2.0 KiB of a cache directory in which 2.9 KiB can be held") || !strings.Contains(v.Error, "claimed 2.0 KiB more") || !strings.Contains(v.Error, ": that is 1000 B too much; ") {
		t.Errorf("beside the first: %s %s %s", v.State, v.Kind, v.Error)
	}
	plan := func(targets ...string) *View {
		t.Helper()
		r, err := w.engine.Submit(Request{Targets: targets, DryRun: true}, nil, false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		v := w.over(r.ID)
		return &v
	}
	if p := plan("/b").Plan; !strings.Contains(p.Lacks, "claimed 2.0 KiB") || p.Claimed != 2000 || p.Needs != 2000 || p.Room != 3000 {
		t.Errorf("dry run beside the first: %+v", p)
	}
	if p := plan("/a", "/c").Plan; p.Lacks != "" || p.Claimed != 0 || p.Needs != 3000 {
		t.Errorf("dry run of what is shared: %+v", p)
	}
	close(release)
	r, err := w.engine.Submit(Request{Targets: []string{"/a", "/c"}}, nil, false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{first, r.ID} {
		if v := w.over(id); v.State != Done {
			t.Errorf("%+v", v)
		}
	}
	if v := w.over(w.start("/b")); v.State != Done {
		t.Errorf("alone: %+v", v)
	}
}

func TestAClaimLastsOverARestart(t *testing.T) {
	// The node is killed while a job that has counted is at work. In the next process,
	// the job's claim is as before.
	w := newWorld(t)
	w.pins = &Pins{}
	for _, key := range []string{"a/1", "a/2", "b/1", "b/2"} {
		w.bucket.put(key, "e", 1000)
	}
	w.room = fakeRoom(3000)
	w.open()
	first, release := w.blocked("/a")
	for {
		v, changed, err := w.engine.Get(first)
		if err != nil || v.Plan.Counted {
			break
		}
		<-changed
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { // else the next process would count anew, and claim later
		w.records.mu.Lock()
		defer w.records.mu.Unlock()
		return w.records.last[first].Plan.Counted
	}) {
		t.Fatal("the count is not saved")
	}
	close(release)
	w.bucket.mu.Lock()
	again := make(chan struct{})
	w.bucket.onGet = func(int, string) { <-again }
	w.bucket.mu.Unlock()
	w.records.mu.Lock()
	w.records.dead = true
	w.records.mu.Unlock()
	w.kill()
	w.open()
	hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { // its claim is open before the other one's
		_, open := w.engine.o.claims.Open(nil, 0, false)
		return len(open) == 1
	})
	if v := w.over(w.start("/b")); v.Kind != kindRefused {
		t.Errorf("beside the first: %s %s", v.State, v.Error)
	}
	close(again)
	if v := w.over(first); v.State != Done {
		t.Errorf("%+v", v)
	}
}

func TestAClaimLastsOverARestartWhileVerifying(t *testing.T) {
	// The node is killed in a job's second walk, which loads what was evicted. The job
	// goes on in that walk. What lies before its cursor is pinned, and other jobs know
	// its claim.
	w := newWorld(t)
	w.every = time.Millisecond
	w.pins = &Pins{}
	for _, key := range []string{"a/1", "a/2", "b/1", "b/2"} {
		w.bucket.put(key, "e", 1000)
	}
	w.room = fakeRoom(3000)
	evicted := false
	w.records.saved = func() {
		for _, r := range w.records.last {
			if !evicted && r.Counters.Done.Files == 2 {
				evicted = w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "a/2" }) > 0
			}
		}
	}
	release, again := make(chan struct{}), make(chan struct{}, 2)
	w.bucket.onGet = func(n int, key string) {
		if n > 2 && key[0] == 'a' {
			again <- struct{}{}
			<-release
		}
	}
	w.open()
	id := w.start("/a")
	<-again
	hearthtest.Eventually(t.Context(), 20*time.Second, func() bool {
		v, _, _ := w.engine.Get(id)
		return v.Pass == 1 && v.Cursor.Path == "1"
	})
	w.records.mu.Lock()
	w.records.dead = true
	w.records.mu.Unlock()
	close(release)
	w.kill()
	w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "a/2" }) // it may have come meanwhile
	release = make(chan struct{})
	w.open()
	<-again
	v, _, err := w.engine.Get(id)
	if err != nil || v.Phase != "verifying" || v.Cursor.Path != "1" {
		t.Errorf("after a restart: %+v, %v", v, err)
	}
	first := w.bucket.objects["a/1"].Version
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return w.pins.Has(first) }) {
		t.Error("what was loaded before the restart is not pinned")
	}
	if v := w.over(w.start("/b")); v.Kind != kindRefused {
		t.Errorf("beside the first: %s %s", v.State, v.Error)
	}
	close(release)
	if v := w.over(id); v.State != Done || v.Reloaded != 1000 {
		t.Errorf("%+v", v)
	}
}

func TestADryRunOfSeveral(t *testing.T) {
	// Each cache directory must have room, not just all together. A target below another
	// counts once. A path of a list that does not exist is named, and there is nothing to
	// load for it.
	w := newWorld(t)
	w.bucket.put("0/a", "e", 1500)
	w.bucket.put("0/d/b", "e", 1000)
	w.bucket.put("1/c", "e", 100)
	w.room = fakeRooms{of: [2]int64{2000, 5000}}
	w.open()
	r, err := w.engine.Submit(Request{Targets: []string{"/0/d", "/1", "/0", "/1"}, DryRun: true}, nil, false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	v := w.over(r.ID)
	if !slices.Equal(v.Targets, []string{"/1", "/0"}) || v.Plan.Total != (Tally{Files: 3, Bytes: 2600}) || !strings.Contains(v.Plan.Lacks, "2.4 KiB of a cache directory in which 2.0 KiB") {
		t.Errorf("%+v", v)
	}
	r, err = w.engine.Submit(Request{List: "-", DryRun: true}, strings.NewReader("/1/c\n/nothing\n/0/none"), false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	v = w.over(r.ID)
	if v.Plan.Missing != 2 || len(v.Samples) != 2 || v.Plan.Lacks != "" || v.Plan.Requests != 1 || v.Plan.Total.Files != 3 {
		t.Errorf("a list: %+v", v)
	}
	if got := outermost([]string{"s3://b/x", "/", "/a", "s3://b/x/y", "s3://b/xy", "/"}); !slices.Equal(got, []string{"s3://b/x", "/", "s3://b/xy"}) {
		t.Errorf("%q", got)
	}
}
