package jobs

import (
	"context"
	"encoding/binary"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/warmup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePinOrigin lists names in memory, and counts requests.
type fakePinOrigin struct {
	keys  []string
	lists atomic.Int64
}

// Head implements namespace.Origin.
func (f *fakePinOrigin) Head(_ context.Context, key string) (hearth.Object, error) {
	if !slices.Contains(f.keys, key) {
		return hearth.Object{}, fs.ErrNotExist
	}
	return fakeObject(key), nil
}

func fakeObject(key string) hearth.Object {
	return hearth.Object{Link: "l", Key: key, ETag: "e", Size: 10, Version: hearth.VersionOf("", key, "e", 10)}
}

// List implements namespace.Origin.
func (f *fakePinOrigin) List(_ context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	f.lists.Add(1)
	seen := map[string]bool{}
	for _, key := range f.keys {
		rest, ok := strings.CutPrefix(key, q.Prefix)
		o := fakeObject(key)
		if group, _, deeper := strings.Cut(rest, "/"); deeper && !q.Recursive {
			o = hearth.Object{Key: q.Prefix + group + "/", Size: hearth.PrefixSize}
		}
		if !ok || seen[o.Key] {
			continue
		}
		seen[o.Key] = true
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

// fakeDisk needs a hundred bytes for each object, in the second of two directories.
type fakeDisk struct{}

func (fakeDisk) Has(hearth.ID) bool                      { return true }
func (fakeDisk) Needs(*hearth.Object) (dir int, n int64) { return 1, 100 }
func (fakeDisk) Drop(*hearth.Object)                     {}
func (fakeDisk) Flush(context.Context) error             { return nil }

// rig is a Keeper over a tree in memory.
type rig struct {
	*Keeper
	t      *testing.T
	origin *fakePinOrigin
	mu     sync.Mutex                // guards jobs
	jobs   map[string]*warmup.Record // that were begun to follow
	sieves *warmup.Pins
	ready  chan struct{}
	ahead  atomic.Int64 // of the clock, by which it is wrong, in nanoseconds
}

func newRig(t *testing.T, keys ...string) *rig {
	r := &rig{t: t, origin: &fakePinOrigin{keys: keys}, jobs: map[string]*warmup.Record{}, sieves: &warmup.Pins{}}
	tree, err := namespace.Open(namespace.Options{MemoryBytes: 8 << 20, Links: []namespace.Link{{Path: "/", Name: "l", Origin: r.origin, Freshness: namespace.Freshness{Mode: namespace.Immutable}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	r.open(tree)
	return r
}

func (r *rig) open(tree *namespace.Tree) {
	r.ready = make(chan struct{})
	k, err := OpenPins(PinParts{Tree: tree, Sieves: r.sieves, Disk: fakeDisk{},
		Link:   func(string) (string, bool) { return "/", true },
		PathOf: func(url string) string { return strings.TrimPrefix(url, "s3://b") },
		Short:  func(path string) string { return path },
		Load: func(targets []string) (string, error) {
			id := strings.Join(targets, " ")
			r.mu.Lock()
			defer r.mu.Unlock()
			r.jobs[id] = &warmup.Record{ID: id, Request: warmup.Request{Targets: targets}}
			return id, nil
		},
		Job: func(id string) (warmup.Record, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if j := r.jobs[id]; j != nil {
				return *j, nil
			}
			return warmup.Record{}, fs.ErrNotExist
		},
		Now: r.now,
		Log: func(what string, err error) { r.t.Errorf("%s: %v", what, err) },
	}, r.ready)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Keeper = k
}

// now returns the time without a monotonic reading, as after a restart.
func (r *rig) now() time.Time { return time.Now().Round(0).Add(time.Duration(r.ahead.Load())) }

// list makes all names known to the tree.
func (r *rig) list() {
	r.t.Helper()
	root, err := r.parts.Tree.Root(r.t.Context(), "/")
	if err == nil {
		_, err = r.parts.Tree.Below(r.t.Context(), root.ID, func(string, namespace.Node) error { return nil })
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// pin does what a pinning warm-up does that ends in a state.
func (r *rig) pin(seconds int64, state warmup.State, paths ...string) {
	r.t.Helper()
	job := &warmup.Record{ID: "job of " + strings.Join(paths, " "), Request: warmup.Request{Targets: paths, PinS: seconds}, Times: warmup.Times{Created: r.now()}, State: state}
	if err := r.Begin(job); err != nil {
		r.t.Fatal(err)
	}
	if state.Over() {
		r.End(job)
	}
}

// take returns a job that was begun, and forgets all jobs.
func (r *rig) take(id string) *warmup.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer clear(r.jobs)
	return r.jobs[id]
}

func (r *rig) holds(key string) bool { return r.sieves.Has(fakeObject(key).Version) }

func TestPinsExpire(t *testing.T) {
	// A pin holds until its end, to the second, and over a restart. A pin that was made again holds until its
	// new end. A pin without an end stays.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "day/x", "ever/x", "hour/x", "hours/x")
		r.list()
		r.Start()
		r.pin(3600, warmup.Done, "/hour")
		r.pin(3600, warmup.Done, "/hours")
		r.pin(2*3600, warmup.Done, "/hours")
		r.pin(24*3600, warmup.Done, "/day")
		r.pin(warmup.Forever, warmup.Done, "/ever")
		is := func(after string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := r.paths(); !slices.Equal(got, want) {
				t.Errorf("after %s %v are pinned, not %v", after, got, want)
			}
			for _, dir := range []string{"day", "ever", "hour", "hours"} {
				if held := r.holds(dir + "/x"); held != slices.Contains(want, "/"+dir) {
					t.Errorf("after %s %s is held: %v", after, dir, held)
				}
			}
		}
		time.Sleep(time.Hour - time.Second)
		is("almost an hour", "/day", "/ever", "/hour", "/hours")
		time.Sleep(time.Second)
		is("an hour", "/day", "/ever", "/hours")
		tree := r.parts.Tree
		r.Close()
		time.Sleep(2 * time.Hour) // it ends while nobody looks
		r.sieves = &warmup.Pins{}
		r.open(tree)
		r.Start()
		<-r.ready
		is("three hours", "/day", "/ever")
		time.Sleep(22 * time.Hour)
		is("all", "/ever")
		r.Close()
	})
}

func TestPinsUnderAClockThatIsMoved(t *testing.T) {
	// If the clock goes back before a pin's end, the pin stays in force for that long. If the clock goes past
	// the end, the pin ends within a minute.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/x", "b/x")
		r.list()
		r.Start()
		r.pin(3600, warmup.Done, "/a")
		r.pin(24*3600, warmup.Done, "/b")
		began := time.Now()
		for _, x := range []struct {
			at   time.Duration // of the clock, since the pins began
			want []string
		}{{-6 * time.Hour, []string{"/a", "/b"}}, {58 * time.Minute, []string{"/a", "/b"}}, {time.Hour, []string{"/b"}}, {48 * time.Hour, nil}} {
			r.ahead.Store(int64(x.at - time.Since(began)))
			time.Sleep(lookEvery)
			synctest.Wait()
			if got := r.paths(); !slices.Equal(got, x.want) {
				t.Errorf("a clock %v later: %v are pinned, not %v", x.at, got, x.want)
			}
		}
		r.Close()
	})
}

func TestPinsAreKnownBeforeAnythingGoes(t *testing.T) {
	// A node that starts knows its pins' files without asking an origin, even those of a pin whose job is not
	// over, and only then says so. It hears of a job that ended unheard. A job whose record is lost is done
	// again.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/1", "b/1", "c/1", "d/1")
		r.list()
		select {
		case <-r.ready:
		default:
			t.Error("without pins all is known at once")
		}
		r.Start()
		r.pin(3600, warmup.Done, "/a")
		r.pin(3600, warmup.Loading, "/b")
		r.pin(3600, warmup.Loading, "/c")
		r.pin(3600, warmup.Loading, "/d")
		r.Close()
		asked := r.origin.lists.Load()
		r.jobs["job of /b"] = &warmup.Record{ID: "job of /b", State: warmup.Loading, Request: warmup.Request{Targets: []string{"/b"}, PinS: 3600}}
		r.jobs["job of /c"] = &warmup.Record{ID: "job of /c", State: warmup.Failed, Request: warmup.Request{Targets: []string{"/c"}, PinS: 3600}}
		r.sieves = &warmup.Pins{}
		r.open(r.parts.Tree)
		select {
		case <-r.ready:
			t.Error("what pins hold is known before anybody looked")
		default:
		}
		r.Start()
		defer func() { r.Close() }()
		<-r.ready
		for _, key := range []string{"a/1", "b/1", "d/1"} { // the job of c failed
			if !r.holds(key) {
				t.Errorf("%s is not held at the start", key)
			}
		}
		if n := r.origin.lists.Load() - asked; n != 0 {
			t.Errorf("%d listings for it", n)
		}
		time.Sleep(waitMost)
		synctest.Wait()
		jobs := map[string]string{}
		for _, v := range r.List() {
			jobs[v.Path] = v.Job
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(jobs) != 3 || jobs["/a"] != "" || jobs["/b"] != "job of /b" || jobs["/d"] != "" || r.jobs["/d"] == nil {
			t.Errorf("%v, begun: %v", jobs, r.jobs)
		}
	})
}

func TestWhatPinsClaim(t *testing.T) {
	// Pins below each other count once. Pins at and below a warm-up's targets do not count for that warm-up.
	// What lies below another pin costs it nothing.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/b/1", "a/b/2", "a/c/1", "d/1")
		r.list()
		r.Start()
		defer r.Close()
		for _, path := range []string{"/a", "/a/b", "/a/b/1", "/d"} {
			r.pin(3600, warmup.Done, path)
		}
		for _, c := range []struct {
			target  string
			claimed int64
			covered bool
		}{{"/x", 400, false}, {"/a", 100, false}, {"/a/b", 400, true}, {"s3://b/a/b/1", 400, true}, {"/", 0, false}, {"/d", 300, false}, {"/d/1", 400, true}} {
			claimed := append(r.Claimed([]string{c.target}), 0, 0)
			if claimed[0] != 0 || claimed[1] != c.claimed || r.Covered(c.target, []string{c.target}) != c.covered {
				t.Errorf("%s: %v, %v, want %d, %v", c.target, claimed, !c.covered, c.claimed, c.covered)
			}
		}
		r.pin(3600, warmup.Loading, "/e") // the claim is its job's
		if claimed := r.Claimed(nil); claimed[1] != 400 || r.Covered("/e", nil) {
			t.Errorf("%v are claimed beside a pin that is being loaded", claimed)
		}
		if within, none := r.Within([]string{"/a"}), r.Within([]string{"/e", "/a/c"}); len(within) != 3 || len(none) != 0 {
			t.Errorf("%d and %d pins lie in targets", len(within), len(none))
		}
		if !r.Covered("/d", nil) {
			t.Error("an item of a list that is pinned counts twice")
		}
	})
}

func TestAPinThatFails(t *testing.T) {
	// A job that is refused pins nothing, and leaves earlier pins as they were. A job that loads a part pins,
	// and says so until another loads the rest. More pins than the bound are refused.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/1", "b/1", "c/1")
		r.list()
		r.Start()
		defer r.Close()
		r.pin(3600, warmup.Partly, "/a")
		r.pin(3600, warmup.Failed, "/b", "/a")
		r.pin(3600, warmup.Cancelled, "/c")
		all := r.List()
		if len(all) != 1 || all[0].Path != "/a" || !strings.Contains(all[0].Lacks, "hearth jobs job of /a") || !r.holds("a/1") || r.holds("b/1") {
			t.Errorf("%+v", all)
		}
		r.End(&warmup.Record{ID: "c", State: warmup.Cancelled, Request: warmup.Request{Targets: []string{"/"}}})
		r.End(&warmup.Record{ID: "p", State: warmup.Partly, Request: warmup.Request{Targets: []string{"/a"}}})
		r.End(&warmup.Record{ID: "d", State: warmup.Done, Request: warmup.Request{Targets: []string{"/a/1"}}})
		if all = r.List(); !strings.Contains(all[0].Lacks, "hearth jobs job of /a") {
			t.Errorf("others' jobs say of it: %+v", all)
		}
		r.pin(3600, warmup.Done, "/a")
		if all = r.List(); len(all) != 1 || all[0].Lacks != "" || all[0].Needs != 100 {
			t.Errorf("%+v", all)
		}
		job := &warmup.Record{ID: "many", Request: warmup.Request{PinS: 1}}
		for i := range namespace.MaxPins {
			job.Targets = append(job.Targets, "/"+strings.Repeat("x", i+1))
		}
		if err := r.Begin(job); err == nil || len(r.paths()) != 1 {
			t.Errorf("%v, %d pins", err, len(r.paths()))
		}
	})
}

func TestChangesAreFollowedTogether(t *testing.T) {
	// One job loads the changes below pins after a second of quiet, and no other runs beside it. If it fails,
	// the same is tried a minute later. Very many changes are loaded by their pin.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/1", "a/2", "a/3", "b/1")
		r.list()
		r.Start()
		defer r.Close()
		r.pin(3600, warmup.Done, "/a")
		dir, err := r.parts.Tree.Root(t.Context(), "/a")
		if err != nil {
			t.Fatal(err)
		}
		root, _ := r.parts.Tree.Root(t.Context(), "/")
		begun := func(want string) {
			t.Helper()
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.jobs) != 1 && want != "" || len(r.jobs) > 0 && r.jobs[want] == nil {
				t.Fatalf("begun: %v, want %q", r.jobs, want)
			}
		}
		r.changed(namespace.Change{Dir: dir.ID, Name: "1"})
		r.changed(namespace.Change{Dir: root.ID, Name: "b"})
		time.Sleep(quietFor / 2)
		r.changed(namespace.Change{Dir: dir.ID, Name: "2"})
		time.Sleep(quietFor / 2)
		begun("")
		time.Sleep(quietFor)
		begun("/a/1 /a/2")
		r.changed(namespace.Change{Dir: dir.ID, Name: "3"})
		time.Sleep(time.Minute)
		begun("/a/1 /a/2")
		job := r.take("/a/1 /a/2")
		job.State = warmup.Failed
		r.End(job)
		time.Sleep(retryAfter / 2)
		begun("")
		time.Sleep(retryAfter)
		begun("/a/1 /a/2 /a/3")
		job = r.take("/a/1 /a/2 /a/3")
		job.State = warmup.Done
		r.End(job)
		synctest.Wait()
		last := namespace.Change{Dir: dir.ID, Name: "1"}
		r.Keeper.mu.Lock()
		r.news.heard = slices.Repeat([]namespace.Change{last}, mostNews) // faster than they are looked at
		r.Keeper.mu.Unlock()
		r.changed(last)
		time.Sleep(2 * quietFor)
		begun("/a")
	})
}

func TestAPinWithoutMemory(t *testing.T) {
	// What a pin holds counts against the RAM budget until it ends. If the budget is used up, the pin says that
	// its blocks may be evicted.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/1", "b/1")
		used, budget := int64(0), int64(8<<10)
		r.sieves.Reserve = func(n int64) bool {
			if used+n > budget {
				return false
			}
			used += n
			return true
		}
		r.sieves.Unreserve = func(n int64) { used -= n }
		r.list()
		r.Start()
		defer r.Close()
		r.pin(3600, warmup.Done, "/a")
		r.pin(3600, warmup.Done, "/b")
		r.pin(3600, warmup.Done, "/a")
		if all := r.List(); used == 0 || !r.holds("a/1") || all[0].Lacks != "" || !strings.Contains(all[1].Lacks, "--cache-ram") {
			t.Errorf("%d bytes used, %+v", used, all)
		}
		if err := r.Unpin([]string{"/a", "/c"}, 0, nil); err == nil || len(r.paths()) != 2 {
			t.Errorf("%v, %v", err, r.paths())
		}
		if err := r.Unpin([]string{"/a", "/b"}, 0, nil); err != nil || used != 0 || r.holds("a/1") {
			t.Errorf("%v, %d bytes are not given back", err, used)
		}
	})
}

func TestPinsOutliveTheNames(t *testing.T) {
	// The database of names begins anew while the node runs. What is pinned stays pinned, whatever ends
	// meanwhile. The pins are written again, and what they hold is listed again.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a/1", "b/1")
		r.list()
		r.Start()
		defer r.Close()
		r.pin(3600, warmup.Done, "/a")
		db := r.parts.Tree.Records()
		text, random := make([]byte, 1<<16), rand.NewChaCha8([32]byte{1})
		for i := uint64(0); db.Generation() == 0 && i < 1000; i++ {
			_, _ = random.Read(text)
			e := db.Edit()
			e.Set(binary.BigEndian.AppendUint64([]byte{'x'}, i), text)
			_ = e.Commit(false)
		}
		r.End(&warmup.Record{ID: "other", State: warmup.Done, Request: warmup.Request{Targets: []string{"/a/1"}}})
		time.Sleep(lookEvery + waitMost)
		synctest.Wait()
		r.End(&warmup.Record{ID: "other", State: warmup.Done, Request: warmup.Request{Targets: []string{"/a/1"}}})
		again, err := namespace.OpenPins(db)
		if db.Generation() == 0 || err != nil || len(again.All()) != 1 || !r.holds("a/1") {
			t.Errorf("generation %d, %v, %v, held: %v", db.Generation(), again.All(), err, r.holds("a/1"))
		}
		job := r.take("/a")
		if job == nil {
			t.Fatal("what is pinned is not listed again")
		}
		r.origin.keys = []string{"a/2", "b/1"}
		r.list()
		job.State = warmup.Done
		r.End(job)
		if r.holds("a/1") || !r.holds("a/2") {
			t.Error("the set is not made anew of the new names")
		}
	})
}
