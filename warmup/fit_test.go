package warmup

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup/list"
)

// fakeRooms are two directories; objects lie in the one that their key's first letter says.
type fakeRooms struct {
	fakeRoom
	of [2]int64
}

// Needs is Room's.
func (fakeRooms) Needs(o *hearth.Object) (int, int64) { return int(o.Key[0] - '0'), o.Size }

// Rooms is Room's.
func (r fakeRooms) Rooms([]string) []int64 { return r.of[:] }

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
	// While a job is at work another that has no room beside it is refused, with the numbers; one
	// that has, or that shares what it takes with the first, is loaded. Once the first is over
	// the room is everybody's.
	w := newWorld(t)
	w.pins = &Pins{}
	for _, key := range []string{"a/1", "a/2", "b/1", "b/2", "c/1"} {
		w.bucket.put(key, "e", 1000)
	}
	w.room = fakeRoom(3000)
	w.open()
	first, release := w.blocked("/a")
	v := w.over(w.start("/b"))
	if v.State != Failed || v.Kind != kindRefused || !strings.Contains(v.Error, "takes 2000 bytes") || !strings.Contains(v.Error, "3000 bytes can be held") || !strings.Contains(v.Error, "claimed 2000") {
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
	if p := plan("/b").Plan; !strings.Contains(p.Lacks, "claimed 2000") || p.Claimed != 2000 || p.Needs != 2000 || p.Room != 3000 {
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
	// The node is killed while a job is at work that has counted: the next one's claim is
	// that of the first.
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
		_, open := w.engine.claims.Open(nil, 0, false)
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

func TestADryRunOfSeveral(t *testing.T) {
	// Each cache directory must have room, not all together; a target below another is one
	// with it; what a list names and is not there is named and is nothing to load.
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
	if !slices.Equal(v.Targets, []string{"/1", "/0"}) || v.Plan.Total != (Tally{3, 2600}) || !strings.Contains(v.Plan.Lacks, "2500 bytes of a cache directory in which 2000") {
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
	if got := list.Outermost([]string{"s3://b/x", "/", "/a", "s3://b/x/y", "s3://b/xy", "/"}); !slices.Equal(got, []string{"s3://b/x", "/", "s3://b/xy"}) {
		t.Errorf("%q", got)
	}
}
