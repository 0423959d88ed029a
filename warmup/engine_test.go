package warmup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestEverythingIsLoadedOnce(t *testing.T) {
	// A whole tree with odd names is loaded: each byte and each directory is asked for
	// once, the sums are those of the bucket, and a second job finds all of it present.
	w := newWorld(t)
	w.fill()
	w.open()
	v := w.over(w.start("/"))
	want := w.bucket.total()
	if v.State != Done || v.Counters.Sum() != want || v.Plan.Total != want || v.FilesDone != want.Files || v.BytesDone != want.Bytes || v.BytesTotal != want.Bytes {
		t.Fatalf("want %+v\n%+v", want, v)
	}
	if v.Counters.Present.Bytes != 0 || v.Counters.Present.Files != 6 { // the empty ones
		t.Errorf("present before: %+v", v.Counters.Present)
	}
	w.holds()
	const dirs = 15 // the root, d0 to d5, a, a/y, "sp ace", ü, dots, dots/.., t and the empty segment in it
	if w.bucket.bytes != want.Bytes || w.bucket.lists != dirs {
		t.Errorf("%d bytes of %d asked for, by %d listings", w.bucket.bytes, want.Bytes, w.bucket.lists)
	}
	v = w.over(w.start("/d3"))
	if v.State != Done || v.Counters.Present != (Tally{Files: 41, Bytes: 17<<20 + 1000*40*39/2}) || v.Counters.Done.Files != 0 || w.bucket.bytes != want.Bytes {
		t.Errorf("again: %+v, %d bytes asked for", v.Counters, w.bucket.bytes)
	}
}

func TestKillsAtAnyMoment(t *testing.T) {
	// Processes are killed while they list and load, and what was not flushed is lost.
	// The job goes on under its id, its counters never fall and add up in the end.
	random := rand.New(rand.NewPCG(hearthtest.Seed(t), 0))
	for round := range 4 { // each seed has its own moments
		w := newWorld(t)
		w.every = time.Millisecond
		w.fill()
		want := w.bucket.total()
		w.open()
		id := ""
		if round%2 == 0 {
			id = w.start("/")
		} else {
			for _, key := range []string{"a-b", "100%25", "%41", "sp ace/new\nline", "ü/ö", "dots/../up", "t//empty segment"} {
				w.bucket.remove(key)
			}
			want = w.bucket.total()
			r, err := w.engine.Submit(Request{List: "-"}, strings.NewReader("/d3\n/a\n/large\n/d0\n/d1\n/d2\n/d4\n/d5"), false, asIs)
			if err != nil {
				t.Fatal(err)
			}
			id = r.ID
		}
		kills := 0
		for range 5 {
			killed := make(chan struct{})
			var once sync.Once
			w.bucket.mu.Lock()
			gets, pages := w.bucket.gets+random.IntN(80), w.bucket.lists+random.IntN(30)
			w.bucket.onGet = func(n int, _ string) {
				if n > gets {
					once.Do(func() { close(killed) })
				}
			}
			w.bucket.onPage = func(n int) {
				if n > pages {
					once.Do(func() { close(killed) })
				}
			}
			w.bucket.mu.Unlock()
			if !w.until(id, killed) {
				break
			}
			w.kill()
			w.open()
			kills++
		}
		v := w.over(id)
		if v.State != Done || v.Counters.Sum() != want || v.Plan.Total != want {
			t.Fatalf("want %+v\n%+v", want, v)
		}
		w.holds()
		t.Logf("%d kills, %d bytes of %d, %d listings", kills, w.bucket.bytes, want.Bytes, w.bucket.lists)
	}
}

func TestWhatChangesMeanwhile(t *testing.T) {
	// Small and large objects change or vanish between the listing and their loading, and
	// while they are loaded. Each is counted once, and the new version is loaded.
	w := newWorld(t)
	w.fill()
	w.bucket.put("mid", "e", 33<<20)
	w.open()
	if _, err := w.engine.Submit(Request{Targets: []string{"/"}, MetadataOnly: true}, nil, false, asIs); err != nil {
		t.Fatal(err)
	}
	w.over(w.engine.List()[0].ID)
	before := w.bucket.total()
	w.bucket.put("d5/f07", "new", 9999)
	w.bucket.remove("d5/f08")
	var once sync.Once
	began := make(chan struct{})
	large := 0
	w.bucket.onGet = func(_ int, key string) {
		w.bucket.mu.Lock()
		if key == "large" {
			large++
		}
		late := large == 2
		w.bucket.mu.Unlock()
		if late {
			once.Do(func() {
				w.bucket.put("large", "new", 50<<20)
				w.bucket.remove("mid")
				close(began)
			})
		}
		if key == "mid" {
			<-began
		}
	}
	v := w.over(w.start("/"))
	<-began
	c := v.Counters
	if v.State != Done || c.Changed.Files != 2 || c.Vanished.Files != 2 || c.Vanished.Bytes != 33<<20+8000 {
		t.Errorf("%+v", v)
	}
	if sum, want := c.Sum(), (Tally{Files: before.Files, Bytes: before.Bytes + 10<<20 - 5 + 2999}); sum != want {
		t.Errorf("sum %+v, want %+v", sum, want)
	}
	w.holds()
}

func TestWhatIsEvictedBeforeTheEnd(t *testing.T) {
	// A block is evicted after it was counted: it is loaded again.
	w := newWorld(t)
	w.fill()
	evicted := 0
	w.records.saved = func() {
		if evicted == 0 {
			evicted = w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "d3/large" && h.flushed })
		}
	}
	w.open()
	v := w.over(w.start("/"))
	if evicted == 0 || v.State != Done || v.Lost != 0 || v.Reloaded != 17<<20 || v.Counters.Sum() != w.bucket.total() {
		t.Errorf("%d evicted: %+v", evicted, v)
	}
	w.holds()
}

func TestLostIsSaid(t *testing.T) {
	// What a tier evicts as soon as it was counted is reported, and nothing is called
	// done.
	w := newWorld(t)
	w.bucket.put("keeps", "e", 10)
	w.bucket.put("loses", "e", 10)
	w.records.saved = func() {
		w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "loses" })
	}
	w.open()
	if v := w.over(w.start("/")); v.State != Partly || v.Lost != 10 || v.Reloaded != 10 || len(v.Samples) == 0 || v.BytesDone != 10 || v.Counters.Done != (Tally{Files: 2, Bytes: 20}) {
		t.Errorf("%+v", v)
	}
}

func TestLostIsSaidOfWhatIsLoadedInPart(t *testing.T) {
	// A file that is not kept and one that does not exist do not end the later passes.
	// What was evicted before the end is named once, and those two files are not tried
	// again.
	w := newWorld(t)
	w.bucket.put("d/keeps", "e", 10)
	w.bucket.put("d/loses", "e", 1000)
	w.bucket.put("d/weak", "W/x", 30)
	w.bucket.put("d/fails", "e", 500)
	w.source = kept{failing{w.bucket, "d/fails"}, w.keeper}
	w.records.saved = func() {
		w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "d/loses" })
	}
	w.open()
	r, err := w.engine.Submit(Request{List: "-"}, strings.NewReader("/d\n/none"), false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	v := w.over(r.ID)
	c := v.Counters
	if v.State != Partly || v.Lost != 1000 || v.Reloaded != 0 || v.BytesDone != 10 || c.Done != (Tally{Files: 2, Bytes: 1010}) || c.NotKept != (Tally{Files: 1, Bytes: 30}) || c.Failed != (Tally{Files: 2, Bytes: 500}) {
		t.Errorf("%+v", v)
	}
	said := func(s Sample) bool {
		return s.Path == "/d/loses" && strings.Contains(s.Cause, "evicted before the job's end")
	}
	if !slices.ContainsFunc(v.Samples, said) || len(v.Samples) != 4 || w.bucket.gets != 2 {
		t.Errorf("%+v after %d requests", v.Samples, w.bucket.gets)
	}
}

// failing is a source that lacks one object.
type failing struct {
	*fakeBucket
	key string
}

// GetMany is hearth.Source's.
func (f failing) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	if first.Object.Key == f.key {
		each(first, nil, errors.New("it cannot be fetched"))
		return
	}
	f.fakeBucket.GetMany(ctx, first, n, each)
}

func TestWhatAFlushLoses(t *testing.T) {
	// A tier takes blocks and lacks them after the flush. They are loaded once more. What
	// is lost again is not kept, whatever the tier said.
	for _, again := range []bool{false, true} {
		w := newWorld(t)
		w.fill()
		lost := 0
		w.keeper.loses = func(key string) bool {
			if key != "d2/f30" || lost > 0 && !again {
				return false
			}
			lost++
			return true
		}
		w.open()
		v := w.over(w.start("/"))
		total := w.bucket.total()
		if again && (v.State != Partly || v.Counters.NotKept != (Tally{Files: 1, Bytes: 30_000}) || len(v.Samples) != 1) ||
			!again && (v.State != Done || v.Counters.Done.Bytes != total.Bytes) || v.Counters.Sum() != total || w.bucket.bytes != total.Bytes+30_000 {
			t.Errorf("again %v: %+v, %d bytes asked for", again, v, w.bucket.bytes)
		}
	}
}

func TestHowALoadOfWhatWasLostEnds(t *testing.T) {
	// A tier takes a file and lacks it after the flush. The second attempt cannot fetch
	// it, finds no room, or finds another version. That is reported as if it were the
	// first attempt.
	for name, c := range map[string]struct {
		before func(w *world) error
		state  State
		want   func(*Counters) *Tally
		cause  string
	}{
		"origin away": {func(*world) error { return errors.New("nobody answers") }, Partly, func(c *Counters) *Tally { return &c.Failed }, "nobody answers"},
		"no room": {func(w *world) error {
			w.keeper.mu.Lock()
			defer w.keeper.mu.Unlock()
			w.keeper.budget = 1
			return nil
		}, Partly, func(c *Counters) *Tally { return &c.NotKept }, errFakeFull.Error()},
		"replaced": {func(w *world) error {
			w.bucket.put("d/loses", "new", 30_000)
			return nil
		}, Done, func(c *Counters) *Tally { return &c.Changed }, ""},
	} {
		w := newWorld(t)
		w.bucket.put("d/keeps", "e", 10)
		w.bucket.put("d/loses", "e", 30_000)
		lost := false
		w.keeper.loses = func(key string) bool {
			if lost || key != "d/loses" {
				return false
			}
			lost = true
			return true
		}
		w.bucket.onGet = func(n int, _ string) {
			if n != 3 {
				return
			}
			err := c.before(w)
			w.bucket.mu.Lock()
			w.bucket.fail = err
			w.bucket.mu.Unlock()
		}
		w.open()
		v := w.over(w.start("/d"))
		if !lost || v.State != c.state || *c.want(&v.Counters) != (Tally{Files: 1, Bytes: 30_000}) || v.Counters.Sum() != (Tally{Files: 2, Bytes: 30_010}) || v.Lost != 0 {
			t.Errorf("%s: %s, %+v", name, v.State, v.Counters)
		}
		if c.cause != "" && (len(v.Samples) != 1 || v.Samples[0].Path != "/d/loses" || !strings.Contains(v.Samples[0].Cause, c.cause)) {
			t.Errorf("%s: %+v", name, v.Samples)
		}
	}
}

// fakeUnflushed is an error of a flush that concerns the objects of some versions.
type fakeUnflushed struct {
	error
	of map[[16]byte]bool
}

// Concerns is hearth.Unflushed's.
func (f fakeUnflushed) Concerns(id hearth.ID) bool { return f.of[id.Version] }

func TestWhatCannotBeFlushedIsNotDone(t *testing.T) {
	// A device fails while what was loaded is flushed, though the tier says that it has
	// it. If it fails once, the next attempt is well. If it fails for ever, nothing is
	// done, and a later job does not find it present. If the directory of one file alone
	// fails, the others are done.
	failed := errors.New("the device says no")
	for _, c := range []struct {
		what string
		err  func(w *world, n int) error
		lost func(total Tally) Tally
	}{
		{"once", func(_ *world, n int) error {
			if n == 1 {
				return failed
			}
			return nil
		}, func(Tally) Tally { return Tally{} }},
		{"for ever", func(*world, int) error { return failed }, func(total Tally) Tally { return Tally{Files: total.Files - 6, Bytes: total.Bytes} }}, // six are empty
		{"of one directory", func(w *world, _ int) error {
			return fmt.Errorf("flush: %w", fakeUnflushed{failed, map[[16]byte]bool{w.bucket.objects["d2/f30"].Version: true}})
		}, func(Tally) Tally { return Tally{Files: 1, Bytes: 30_000} }},
	} {
		w := newWorld(t)
		w.fill()
		n := 0
		w.keeper.flush = func() error {
			n++
			return c.err(w, n)
		}
		w.open()
		total := w.bucket.total()
		lost := c.lost(total)
		for _, again := range []bool{false, true} {
			v := w.over(w.start("/"))
			if v.Counters.NotKept != lost || v.Counters.Sum() != total || v.BytesDone != total.Bytes-lost.Bytes || (v.State == Done) != (lost.Files == 0) {
				t.Errorf("%s, again %v: not kept %+v, want %+v: %+v", c.what, again, v.Counters.NotKept, lost, v)
			}
			if lost.Files > 0 && (v.State != Partly || len(v.Samples) == 0 || !strings.HasPrefix(v.Samples[0].Cause, "it could not be flushed to the disk: ")) {
				t.Errorf("%s, again %v: %s, %+v", c.what, again, v.State, v.Samples)
			}
		}
	}
}

func TestTwoJobsFetchEachByteOnce(t *testing.T) {
	// Two overlapping jobs, and a reader, share what is under way through the tier.
	w := newWorld(t)
	w.fill()
	tier := cache.Through(w.keeper, w.bucket, cache.Always)
	t.Cleanup(tier.Close)
	w.source = tier
	w.open()
	a, b := w.start("/"), w.start("/d3")
	x := w.over(a)
	y := w.over(b)
	if want := w.bucket.total(); x.State != Done || y.State != Done || w.bucket.bytes != want.Bytes {
		t.Errorf("%d of %d bytes: %+v, %+v", w.bucket.bytes, want.Bytes, x.Counters, y.Counters)
	}
	w.holds()
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	// A set one percent too large is refused with the numbers. With one percent to spare
	// it is loaded.
	for spare, state := range map[float64]State{0.99: Failed, 1.01: Done} {
		w := newWorld(t)
		w.fill()
		w.room = fakeRoom(float64(w.bucket.total().Bytes) * spare)
		w.open()
		v := w.over(w.start("/"))
		if v.State != state || (state == Failed) != (v.Kind == kindRefused && strings.Contains(v.Error, "--cache-disks")) {
			t.Errorf("%v: %s %s %s", spare, v.State, v.Kind, v.Error)
		}
	}
}

func TestWhatNoTierKeeps(t *testing.T) {
	// A full tier and objects without a strong ETag: what is not kept is counted, with
	// its reason.
	w := newWorld(t)
	w.fill()
	w.bucket.put("weak", "W/x", 1234)
	w.keeper.budget = 50 << 20
	w.open()
	v := w.over(w.start("/"))
	c := v.Counters
	if v.State != Partly || v.Lost != 0 || c.Sum() != w.bucket.total() || c.NotKept.Bytes < 7<<20 || c.Done.Bytes > 50<<20 {
		t.Errorf("%+v", v)
	}
	weak := slices.ContainsFunc(v.Samples, func(s Sample) bool { return s.Path == "/weak" && s.Cause == causeWeak })
	full := slices.ContainsFunc(v.Samples, func(s Sample) bool { return strings.Contains(s.Cause, errFakeFull.Error()) })
	if !full || !weak && len(v.Samples) < maxSamples {
		t.Errorf("%+v", v.Samples)
	}
}

func TestAnOriginThatIsAwayFailsTheJob(t *testing.T) {
	// The origin goes away in the middle. The job fails with the reason instead of trying
	// all that is left. A retry goes on with what is there.
	w := newWorld(t)
	for i := range 600 {
		w.bucket.put("f"+strings.Repeat("x", i%200)+string(rune('a'+i/200)), "e", 10)
	}
	w.open()
	away := errors.New("nobody answers")
	w.bucket.onGet = func(n int, _ string) {
		if n == 300 {
			w.bucket.mu.Lock()
			w.bucket.fail = away
			w.bucket.mu.Unlock()
		}
	}
	id := w.start("/")
	v := w.over(id)
	if v.State != Failed || !strings.Contains(v.Error, away.Error()) || v.Counters.Done.Files == 0 {
		t.Fatalf("%+v", v)
	}
	w.bucket.mu.Lock()
	w.bucket.fail, w.bucket.onGet = nil, nil
	w.bucket.mu.Unlock()
	w.records.mu.Lock()
	clear(w.records.last) // a retry begins anew
	w.records.mu.Unlock()
	if err := w.engine.Retry(id); err != nil {
		t.Fatal(err)
	}
	v = w.over(id)
	if v.State != Done || v.Counters.Sum().Files != 600 || v.Counters.Present.Files == 0 {
		t.Errorf("%+v", v)
	}
}

func TestLists(t *testing.T) {
	// A list with missing, duplicate and odd names, by lines and by NUL: what is there
	// is loaded once, what is not is named, and the job ends in part.
	for _, nul := range []bool{false, true} {
		w := newWorld(t)
		w.fill()
		w.open()
		items := []string{"/d1/f05", "/nothing", "/d1/f05", "", "/%2541", "/d2", "/sp ace/new\nline"}
		end := "\n"
		if nul {
			end = "\x00"
		}
		r, err := w.engine.Submit(Request{List: "-"}, strings.NewReader(strings.Join(items, end)), nul, asIs)
		if err != nil {
			t.Fatal(err)
		}
		v := w.over(r.ID)
		missing := int64(1)
		if !nul {
			missing = 3 // the two halves of a name
		}
		if c := v.Counters; v.State != Partly || c.Failed != (Tally{Files: missing, Bytes: 0}) || c.Sum().Files != 43+missing+(1-(missing-1)/2) ||
			v.Samples[0] != (Sample{Path: "/nothing", Cause: "no such file or directory"}) {
			t.Errorf("nul %v: %+v", nul, v)
		}
	}
}

func TestAListThatIsSeparatedOtherwise(t *testing.T) {
	// A list with NUL that is not declared to have it is refused, and leaves nothing.
	w := newWorld(t)
	w.open()
	r, err := w.engine.Submit(Request{List: "-"}, strings.NewReader("/d1\x00/d2\x00"), false, asIs)
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "(-0)") {
		t.Errorf("%+v, %v", r, err)
	}
	if entries, err := os.ReadDir(w.files.Dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestNamesAlone(t *testing.T) {
	// --metadata-only lists everything and loads nothing. --dry-run counts what a job
	// would ask for. Without a disk tier the first goes on, and the other is refused.
	w := newWorld(t)
	w.fill()
	w.open()
	want := w.bucket.total()
	submit := func(q Request) View {
		t.Helper()
		q.Targets = []string{"/"}
		r, err := w.engine.Submit(q, nil, false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		return w.over(r.ID)
	}
	if v := submit(Request{MetadataOnly: true}); v.State != Done || v.Counters.Done.Files != want.Files || w.bucket.gets != 0 {
		t.Errorf("names alone: %+v, %d requests for bytes", v, w.bucket.gets)
	}
	plan := submit(Request{DryRun: true}).Plan
	if plan.Total != want || plan.Requests != want.Files-6-2+11+5 || plan.Held.Bytes != 0 || w.bucket.gets != 0 {
		t.Errorf("dry run: %+v", plan)
	}
	w.over(w.start("/"))
	if plan = submit(Request{DryRun: true}).Plan; plan.Held != want || plan.Requests != 0 {
		t.Errorf("dry run of what is there: %+v", plan)
	}
	w.engine.o.Keeper = nil
	if _, err := w.engine.Submit(Request{}, nil, false, asIs); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "--cache-disks") {
		t.Errorf("without a tier: %v", err)
	}
	submit(Request{MetadataOnly: true})
}

func TestCancel(t *testing.T) {
	// A job is cancelled while it loads: it ends, keeps what it has, and stays ended
	// over a restart.
	w := newWorld(t)
	w.fill()
	w.open()
	reached, go1 := make(chan struct{}), make(chan struct{})
	w.bucket.onGet = func(n int, _ string) {
		if n == 20 {
			close(reached)
		}
		if n >= 20 {
			<-go1
		}
	}
	id := w.start("/")
	<-reached
	if err := w.engine.Retry(id); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("retry of a job that runs: %v", err)
	}
	cancelled := make(chan error)
	go func() { cancelled <- w.engine.Cancel(t.Context(), id) }()
	close(go1)
	if err := <-cancelled; err != nil {
		t.Fatal(err)
	}
	if v := w.over(id); v.State != Cancelled || v.Ended == nil {
		t.Errorf("%+v", v)
	}
	if err := w.engine.Cancel(t.Context(), id); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("cancel of a job that is over: %v", err)
	}
	if err := w.engine.Cancel(t.Context(), "nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cancel of no job: %v", err)
	}
	w.kill()
	w.open()
	if v, _, err := w.engine.Get(id); err != nil || v.State != Cancelled {
		t.Errorf("after a restart: %+v, %v", v, err)
	}
}

func TestOnlySomeJobsAreAtWork(t *testing.T) {
	// Of ten jobs eight are at work and two queued; a queued one can be cancelled, and
	// the other is begun once there is room.
	w := newWorld(t)
	w.fill()
	w.open()
	release := make(chan struct{})
	w.bucket.onGet = func(int, string) { <-release }
	var ids []string
	for range mostJobs + 2 {
		ids = append(ids, w.start("/"))
	}
	queued := func() (q []string) {
		for _, v := range w.engine.List() {
			if v.State == Queued {
				q = append(q, v.ID)
			}
		}
		return q
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return len(queued()) == 2 }) {
		t.Fatalf("%d jobs are queued", len(queued()))
	}
	gone := queued()[0]
	if err := w.engine.Cancel(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if v := w.over(gone); v.State != Cancelled || v.Worked > 60 {
		t.Errorf("%+v", v)
	}
	close(release)
	for _, id := range ids {
		if v := w.over(id); id != gone && v.State != Done {
			t.Errorf("%+v", v)
		}
	}
	w.holds()
}

func TestAPanicEndsItsJobAlone(t *testing.T) {
	// A step panics: its job fails and says so, also after a restart. Another job goes
	// on.
	w := newWorld(t)
	w.fill()
	w.open()
	w.bucket.onGet = func(_ int, key string) {
		if key == "d5/f07" {
			panic("a bug")
		}
	}
	id := w.start("/d5")
	if v := w.over(id); v.State != Failed || !strings.Contains(v.Error, "a bug") {
		t.Errorf("%+v", v)
	}
	if v := w.over(w.start("/d4")); v.State != Done {
		t.Errorf("%+v", v)
	}
	w.kill()
	w.open()
	if v, _, err := w.engine.Get(id); err != nil || v.State != Failed {
		t.Errorf("after a restart: %+v, %v", v, err)
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	// A file that the disk does not give is left as it is, with its list, and stops
	// nothing.
	f := &Files{Dir: t.TempDir()}
	told := 0
	f.Log = func(string, error) { told++ }
	if err := errors.Join(os.Mkdir(filepath.Join(f.Dir, "x.json"), 0o700), os.WriteFile(filepath.Join(f.Dir, "x.list"), []byte("/a\x00"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if all, err := f.Load(); err != nil || len(all) != 0 || told != 1 {
		t.Errorf("%d records, told %d times, %v", len(all), told, err)
	}
	if entries, err := os.ReadDir(f.Dir); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	f.Dir = filepath.Join(f.Dir, "x.list")
	if all, err := f.Load(); err != nil || len(all) != 0 || told != 2 {
		t.Errorf("no directory: %d records, told %d times, %v", len(all), told, err)
	}
}

func TestRecordsThatAreNone(t *testing.T) {
	// Damaged and foreign records are set aside. Saves and lists that broke off are
	// removed. Only a hundred ended jobs are remembered.
	f := &Files{Dir: t.TempDir()}
	for i := range maxHistory + 10 {
		r := Record{ID: newID(), State: Done, Times: Times{Created: time.Unix(int64(1000+i), 0)}}
		if err := f.Save(r); err != nil {
			t.Fatal(err)
		}
	}
	running := Record{ID: "running", State: Loading, Times: Times{Created: time.Unix(1, 0)}}
	if err := f.Save(running); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"bad.json": "{", "other.json": `{"id":"another","state":"done"}`, "none.json": `{"id":"none"}`,
		"x.json.new": "{", "left.list": "/a", "running.list": "/a\x00"} {
		if err := os.WriteFile(filepath.Join(f.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := 0
	f.Log = func(string, error) { told++ }
	all, err := f.Load()
	if err != nil || len(all) != maxHistory+1 || told != 3 || all[maxHistory].ID != "running" || all[maxHistory-1].Created.Unix() != 1010 {
		t.Errorf("%d records, told %d times, %v", len(all), told, err)
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil || len(entries) != maxHistory+1+3+1 {
		t.Errorf("%d files, %v", len(entries), err)
	}
}

func TestDryRunsPushNoJobOut(t *testing.T) {
	// Dry runs, however many, push no job out of the history, over a start, too. The last
	// dry runs are remembered beside it.
	w := newWorld(t)
	w.bucket.put("a", "e", 10)
	w.open()
	w.over(w.start("/"))
	for range maxDryRuns + 5 {
		r, err := w.engine.Submit(Request{Targets: []string{"/"}, DryRun: true}, nil, false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		w.over(r.ID)
	}
	if all := w.engine.List(); len(all) < 1+maxDryRuns || len(all) > 2+maxDryRuns || all[len(all)-1].DryRun { // the last one may not be looked at yet
		t.Errorf("%d remembered, the first a dry run %v", len(all), all[len(all)-1].DryRun)
	}
	f := &Files{Dir: t.TempDir()}
	for i := range maxHistory + 3*maxDryRuns {
		r := Record{ID: newID(), State: Done, Times: Times{Created: time.Unix(int64(1000+i), 0)}, Request: Request{DryRun: i >= maxHistory}}
		if err := f.Save(r); err != nil {
			t.Fatal(err)
		}
	}
	all, err := f.Load()
	if err != nil || len(all) != maxHistory+maxDryRuns || all[len(all)-1].Created.Unix() != 1000 {
		t.Errorf("%d records, %v", len(all), err)
	}
}

func TestLostIsCountedOnce(t *testing.T) {
	// Two files are evicted before the job's end. One comes back, so a further pass looks
	// at everything once more. The other does not, and its loss is reported once.
	w := newWorld(t)
	w.bucket.put("back", "e", 10)
	w.bucket.put("gone", "e", 1000)
	evicted := false
	w.keeper.loses = func(key string) bool { return evicted && key == "gone" }
	w.records.saved = func() {
		if !evicted {
			evicted = w.keeper.evict(func(h *fakeHeld) bool { return h.flushed }) == 2
		}
	}
	w.open()
	if v := w.over(w.start("/")); v.State != Partly || v.Lost != 1000 || v.Reloaded != 10 || len(v.Samples) != 1 {
		t.Errorf("%+v", v)
	}
}

func TestWhatIsForgottenGoes(t *testing.T) {
	// While the engine is open, the oldest ended jobs beyond a hundred are dropped with
	// their files. So are those whose lists are too large together. The latest stay. A
	// job that is not over takes no other's place.
	w := newWorld(t)
	w.bucket.put("f", "e", 1)
	for i := range maxHistory {
		r := Record{ID: fmt.Sprintf("old%05d", i), State: Done, Times: Times{Created: time.Unix(int64(1000+i), 0)}}
		if err := w.files.Save(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{90, 95} { // holes: they take no room
		name := filepath.Join(w.files.Dir, fmt.Sprintf("old%05d.list", i))
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, MaxList*2/3)); err != nil {
			t.Fatal(err)
		}
	}
	w.open()
	for range 3 {
		r, err := w.engine.Submit(Request{List: "-"}, strings.NewReader("/f"), false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		w.over(r.ID)
	}
	entries, err := os.ReadDir(w.files.Dir)
	if all := w.engine.List(); err != nil || len(all) != maxHistory+1 || all[maxHistory].ID != "old00001" || len(entries) != maxHistory+1+4 ||
		slices.ContainsFunc(all, func(v View) bool { return v.ID == "old00090" }) {
		t.Errorf("%d jobs, %d files, %v", len(all), len(entries), err)
	}
}
