package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKeysAreATree(t *testing.T) {
	// A bucket's keys show as directories and files, in the bucket's order.
	w := open(t, nil)
	for _, k := range []string{"a/b/c", "a/d", "a-x", "z", "m/n"} {
		w.b.put(k, "e"+k, 3)
	}
	equal(t, w.names("/"), []string{"a-x", "a/", "m/", "z"})
	equal(t, w.names("/a"), []string{"b/", "d"})
	n := w.resolve("/a/b/c")
	if n.Dir || n.Object != w.b.objects["a/b/c"] || n.Name != "c" || n.TTL <= 0 || n.TTL > time.Minute {
		t.Fatalf("%+v", n)
	}
	got, err := w.tree.Node(context.Background(), n.ID)
	if err != nil || got.Object != n.Object {
		t.Fatalf("%+v, %v", got, err)
	}
	w.settle() // the listing beside what was asked for alone
	before := w.b.requests()
	w.names("/")
	w.resolve("/a/b/c")
	w.absent("/a/nothing")
	if n := w.b.requests() - before; n != 0 {
		t.Errorf("%d requests for what is known", n)
	}
	var walked []string
	if _, err := w.tree.Below(context.Background(), rootID, func(p string, n Node) error {
		walked = append(walked, p)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	equal(t, walked, []string{"/a-x", "/a", "/a/b", "/a/b/c", "/a/d", "/m", "/m/n", "/z"})
	if _, err := w.tree.Lookup(context.Background(), n.ID, "x"); err == nil {
		t.Error("a file has names in it")
	}
}

func TestColdStat(t *testing.T) {
	// A cold stat in a directory of 20,000 keys, twenty pages, is answered after three requests,
	// though the HEAD takes its time.
	w := open(t, nil)
	for i := range 20_000 {
		w.b.put(fmt.Sprintf("big/%06d", i), "e", 1)
	}
	big := w.resolve("/big")
	w.idle("/")
	listed := make(chan struct{})
	var once sync.Once
	w.b.onPage = func(prefix string, page int) {
		if prefix == "big/" {
			once.Do(func() { close(listed) })
		}
	}
	w.b.onHead = func(string) { <-listed }
	before := w.b.requests()
	answered := 0
	n, err := w.tree.Lookup(context.Background(), big.ID, "017777")
	answered = w.b.requests() - before
	if err != nil || n.Object.Key != "big/017777" {
		t.Fatalf("%+v, %v", n, err)
	}
	if answered > 3 {
		t.Errorf("%d requests", answered)
	}
	w.idle("/big")
	before = w.b.requests()
	if w.resolve("/big/012345").ID == 0 || w.absent("/big/x") <= 0 || w.b.requests() != before {
		t.Error("the listing that began beside it did not bring the other names")
	}
}

func TestStreaming(t *testing.T) {
	// The first names of a huge directory arrive while it is being listed, and two
	// readers share the listing.
	w := open(t, nil)
	const n = 10_000
	for i := range n {
		w.b.put(fmt.Sprintf("f%06d", i), "e", 1)
	}
	first := make(chan struct{})
	var once sync.Once
	w.b.onPage = func(_ string, page int) {
		if page == 3 {
			<-first // the fourth page waits until a name was read
		}
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			got := 0
			err := w.tree.ReadDir(context.Background(), rootID, "", func(n Node) bool {
				once.Do(func() { close(first) })
				if n.Name != fmt.Sprintf("f%06d", got) {
					t.Errorf("name %d is %s", got, n.Name)
					return false
				}
				got++
				return true
			})
			if err != nil || got != n {
				t.Errorf("%d names, %v", got, err)
			}
		})
	}
	wg.Wait()
	if w.b.lists != n/1000 {
		t.Errorf("%d pages", w.b.lists)
	}
	if s := w.tree.Stats(); s.Listings != 1 || s.Entries != n {
		t.Errorf("%+v", s)
	}
	// It resumes behind any name.
	var rest []string
	if err := w.tree.ReadDir(context.Background(), rootID, "f009997", func(n Node) bool {
		rest = append(rest, n.Name)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	equal(t, rest, []string{"f009998", "f009999"})
}

func TestVersionsHaveIDs(t *testing.T) {
	// Another version of a name has another id. The old id still means the old version until it is
	// forgotten. When the first version comes back, it has a third id.
	w := open(t, nil)
	var changes []Change
	var mu sync.Mutex
	cancel := w.tree.Subscribe(func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		changes = append(changes, c)
	})
	defer cancel()
	ctx := context.Background()
	a := w.b.put("d/x", "A", 1)
	first := w.resolve("/d/x")
	w.names("/d")
	b := w.b.put("d/x", "B", 1)
	w.later(2 * time.Minute)
	second := w.resolve("/d/x")
	w.b.put("d/x", "A", 1)
	w.later(2 * time.Minute)
	third := w.resolve("/d/x")
	if first.Object != a || second.Object != b || third.Object != a {
		t.Fatal("not the versions put")
	}
	if first.ID == second.ID || second.ID == third.ID || first.ID == third.ID {
		t.Fatal("an id was used twice")
	}
	for id, want := range map[uint64]hearth.Object{first.ID: a, second.ID: b, third.ID: a} {
		if n, err := w.tree.Node(ctx, id); err != nil || n.Object != want {
			t.Errorf("id %d: %+v, %v", id, n, err)
		}
	}
	if n, err := w.tree.Open(ctx, first.ID); err != nil || n.ID != third.ID {
		t.Errorf("open of a superseded id gives %+v, %v", n, err)
	}
	mu.Lock()
	defer mu.Unlock()
	dir := w.resolve("/d").ID
	for _, old := range []uint64{first.ID, second.ID} {
		if !slices.Contains(changes, Change{Dir: dir, Name: "x", Old: old}) {
			t.Errorf("no change of %d in %v", old, changes)
		}
	}
}

func TestForget(t *testing.T) {
	// A reader found a version gone: the name is not believed from then on, and the
	// kernel hears of it at once.
	w := open(t, nil)
	o := w.b.put("x", "A", 1)
	w.names("/")
	n := w.resolve("/x")
	told := make(chan Change, 10)
	defer w.tree.Subscribe(func(c Change) { told <- c })()
	b := w.b.put("x", "B", 1)
	w.tree.Forget(&o)
	if c := <-told; c != (Change{Dir: rootID, Name: "x", Old: n.ID}) {
		t.Fatalf("%+v", c)
	}
	if got := w.resolve("/x"); got.Object != b {
		t.Fatalf("%+v", got)
	}
	w.b.remove("x")
	w.tree.Forget(&b)
	w.absent("/x")
	if _, err := w.tree.Open(context.Background(), n.ID); !errors.Is(err, hearth.ErrStale) {
		t.Errorf("open of a version whose name is gone: %v", err)
	}
	w.tree.Forget(&hearth.Object{Link: "no", Key: "x"})
	w.tree.Forget(&hearth.Object{Link: "/", Key: "no/such/key"})
}

func TestFreshness(t *testing.T) {
	// A bounded name is asked for again after its bound. A brief listing of its directory does that for all
	// names at once; else it costs one HEAD. In the last quarter of the bound it happens in the background.
	w := open(t, nil)
	w.b.put("x", "A", 1)
	w.names("/")
	before := w.b.requests()
	w.later(20 * time.Second)
	if n := w.resolve("/x"); n.TTL != 40*time.Second || w.b.requests() != before {
		t.Fatalf("TTL %v, %d requests", n.TTL, w.b.requests()-before)
	}
	w.later(25 * time.Second)
	w.resolve("/x")
	if w.idle("/"); w.b.requests() != before {
		t.Fatalf("%d requests with a quarter of the bound left", w.b.requests()-before)
	}
	w.later(time.Second)
	w.resolve("/x")
	w.idle("/")
	if n := w.resolve("/x"); n.TTL != time.Minute || w.b.requests() != before+1 {
		t.Fatalf("TTL %v, %d requests", n.TTL, w.b.requests()-before)
	}
	w.later(2 * time.Minute)
	b, before := w.b.put("x", "B", 1), w.b.requests()
	w.b.put("y", "A", 1)
	w.b.onPage = func(string, int) { w.clock.add(briefListing + time.Millisecond) }
	if n := w.resolve("/x"); n.Object != b || w.resolve("/y").ID == 0 || w.b.heads != 0 || w.b.requests() != before+1 {
		t.Fatalf("%+v after %d requests, %d HEADs", n, w.b.requests()-before, w.b.heads)
	}
	w.b.onPage = nil
	w.later(2 * time.Minute)
	b = w.b.put("x", "C", 1)
	if n := w.resolve("/x"); n.Object != b || w.b.heads != 1 || w.b.requests() != before+2 || n.TTL != time.Minute {
		t.Fatalf("%+v after %d requests, %d HEADs", n, w.b.requests()-before, w.b.heads)
	}
	w.later(2 * time.Minute)
	w.b.remove("y")
	w.b.put("new", "A", 1)
	equal(t, w.names("/"), []string{"new", "x"})
}

func TestDirectoriesAreAskedForTogether(t *testing.T) {
	// When the bound of a directory of directories has passed, its listing tells of all of them. None is
	// asked for by itself.
	w := open(t, nil)
	for i := range 20 {
		w.b.put(fmt.Sprintf("d%02d/x", i), "A", 1)
	}
	w.names("/")
	w.later(2 * time.Minute)
	before := w.b.requests()
	for i := range 20 {
		if n := w.resolve(fmt.Sprintf("/d%02d", i)); !n.Dir || n.TTL != time.Minute {
			t.Errorf("%+v", n)
		}
	}
	if n := w.b.requests() - before; n != 1 {
		t.Errorf("%d requests for 20 directories, want the listing alone", n)
	}
	w.b.remove("d03/x")
	w.later(2 * time.Minute)
	w.absent("/d03")
}

func TestSlowListingsLastLonger(t *testing.T) {
	// A directory is believed for twenty times what its listing took.
	w := open(t, nil)
	w.b.put("x", "A", 1)
	w.b.onPage = func(string, int) { w.clock.add(10 * time.Second) }
	w.names("/")
	if n := w.resolve("/x"); n.TTL != 190*time.Second {
		t.Fatal(n.TTL)
	}
	if s := w.tree.Stats(); s.Slowest != 10_000 {
		t.Fatalf("the slowest listing took %d ms", s.Slowest)
	}
}

func TestAJumpOfTheClockIsNotWhatAListingTook(t *testing.T) {
	// While a directory is listed the wall clock jumps, as when a machine was asleep. The listing still
	// took only a moment, and is believed no longer than its bound.
	w := open(t, func(o *Options) { o.monotonic = nil })
	w.b.put("x", "A", 1)
	w.b.onPage = func(string, int) { w.clock.add(26 * time.Hour) }
	w.names("/")
	w.b.onPage = nil
	if s := w.tree.Stats(); s.Slowest > time.Minute.Milliseconds() {
		t.Errorf("the slowest listing took %d ms", s.Slowest)
	}
	b := w.b.put("x", "B", 1)
	if n := w.resolve("/x"); n.Object != b || n.TTL > time.Minute {
		t.Errorf("believed for %v: %+v", n.TTL, n)
	}
}

func TestNegative(t *testing.T) {
	// A name that is not there is asked for once per bound.
	w := open(t, nil)
	w.b.put("d/x", "A", 1)
	w.resolve("/d")
	w.idle("/")
	w.b.onPage = func(prefix string, _ int) {
		if prefix == "d/" {
			w.b.down(errDown) // the listing does not help
		} else {
			w.b.down(nil)
		}
	}
	if ttl := w.absent("/nope"); ttl <= 0 || ttl > time.Minute {
		t.Fatal(ttl)
	}
	before := w.b.requests()
	w.absent("/nope")
	if w.b.requests() != before {
		t.Error("asked again")
	}
	w.later(2 * time.Minute)
	w.b.put("nope", "A", 1)
	w.resolve("/nope")
}

func TestImmutable(t *testing.T) {
	// Immutable names are never asked for again.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Immutable} })
	w.b.put("x", "A", 1)
	w.names("/")
	before := w.b.requests()
	w.later(1000 * time.Hour)
	w.resolve("/x")
	w.absent("/y")
	w.names("/")
	if n := w.b.requests() - before; n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestStrict(t *testing.T) {
	// A strict link asks each time, gives no time to believe it, and fails when the
	// origin is away.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Strict} })
	ctx := context.Background()
	w.b.put("x", "A", 1)
	equal(t, w.names("/"), []string{"x"})
	b := w.b.put("x", "B", 1)
	n := w.resolve("/x")
	if n.Object != b || n.TTL != 0 {
		t.Fatalf("%+v", n)
	}
	c := w.b.put("x", "C", 1)
	got, err := w.tree.Open(ctx, n.ID)
	if err != nil || got.Object != c || got.ID == n.ID {
		t.Fatalf("%+v, %v", got, err)
	}
	w.b.put("y", "A", 1)
	equal(t, w.names("/"), []string{"x", "y"})
	if ttl := w.absent("/z"); ttl != 0 {
		t.Error(ttl)
	}
	w.b.down(errDown)
	if _, err := w.tree.Lookup(ctx, rootID, "x"); !errors.Is(err, errDown) {
		t.Error(err)
	}
	if _, err := w.tree.Open(ctx, got.ID); !errors.Is(err, errDown) {
		t.Error(err)
	}
	if err := w.tree.ReadDir(ctx, rootID, "", func(Node) bool { return true }); !errors.Is(err, errDown) {
		t.Error(err)
	}
}

// heldHead is a bucket of which one answer about a key comes late.
type heldHead struct {
	Origin
	armed          atomic.Bool
	asked, release chan struct{}
}

func (h *heldHead) Head(ctx context.Context, key string) (hearth.Object, error) {
	o, err := h.Origin.Head(ctx, key)
	if h.armed.CompareAndSwap(true, false) {
		close(h.asked)
		<-h.release
	}
	return o, err
}

func TestAPageThatIsReadAfterHEADKnowsBetter(t *testing.T) {
	// A file is put after HEAD has not found it, and before the listing's page is read. It is found, and
	// stays.
	h := &heldHead{asked: make(chan struct{}), release: make(chan struct{})}
	close(h.release)
	h.armed.Store(true)
	w := open(t, func(o *Options) { h.Origin, o.Links[0].Origin = o.Links[0].Origin, h })
	w.b.put("other", "A", 1)
	var once sync.Once
	listings := make(chan *listing, 1)
	w.b.onPage = func(prefix string, _ int) {
		if prefix == "late/" { // whether there is a directory is known last
			l := <-listings
			l.hurryUp()
			_ = l.Wait(context.Background())
			return
		}
		once.Do(func() {
			d, err := w.tree.dirs.get(w.tree, rootID)
			if err != nil {
				t.Error(err)
				return
			}
			defer d.release()
			listings <- d.running.Load()
		})
		<-h.asked // HEAD has its answer
		w.b.put("late", "A", 1)
	}
	for range 2 {
		if n := w.resolve("/late"); n.Object.ETag != "A" {
			t.Errorf("%+v", n)
		}
	}
	if names := w.names("/"); len(names) != 2 {
		t.Errorf("%q", names)
	}
}

func TestALateAnswerIsOlder(t *testing.T) {
	// Two callers ask a strict link for a name. The first is answered last, with what was true before a
	// change that the second saw. What the second saw stays.
	ctx := context.Background()
	for _, etags := range [][2]string{{"A", "B"}, {"", "B"}, {"A", ""}} {
		h := &heldHead{asked: make(chan struct{}), release: make(chan struct{})}
		w := open(t, func(o *Options) {
			o.Links[0].Freshness = Freshness{Mode: Strict}
			h.Origin, o.Links[0].Origin = o.Links[0].Origin, h
		})
		put := func(etag string) {
			if w.b.remove("x"); etag != "" {
				w.b.put("x", etag, 1)
			}
		}
		put(etags[0])
		w.names("/")
		h.armed.Store(true)
		first := make(chan Node)
		go func() {
			n, _ := w.tree.Lookup(ctx, rootID, "x") // absent: none
			first <- n
		}()
		<-h.asked
		put(etags[1])
		second, err := w.tree.Lookup(ctx, rootID, "x")
		if (err == nil) != (etags[1] != "") || second.Object.ETag != etags[1] {
			t.Fatalf("%q: the second sees %+v, %v", etags, second, err)
		}
		close(h.release)
		if n := <-first; n.Object.ETag != etags[1] || n.ID != second.ID {
			t.Errorf("%q: the first sees %+v", etags, n)
		}
		if err == nil {
			if _, superseded, err := w.tree.node(second.ID); superseded || err != nil {
				t.Errorf("%q: what the second saw is superseded: %v, %v", etags, superseded, err)
			}
		}
	}
}

func TestALateFailureIsOfAnOutageThatIsOver(t *testing.T) {
	// A listing waits for an origin that is silent and comes back meanwhile. When the listing fails at last,
	// other questions have been answered: the link does not count as down.
	w := open(t, nil)
	w.b.put("slow/x", "A", 1)
	w.b.put("e/y", "A", 1)
	w.names("/")
	slow := w.resolve("/slow")
	reached, release, failed := make(chan struct{}), make(chan struct{}), make(chan error)
	var once sync.Once
	w.b.onPage = func(prefix string, _ int) {
		if prefix == "slow/" {
			once.Do(func() { close(reached); <-release })
		}
	}
	go func() { failed <- w.tree.ReadDir(context.Background(), slow.ID, "", func(Node) bool { return true }) }()
	<-reached
	w.clock.add(time.Second)
	w.resolve("/e/y")
	w.idle("/e") // what was asked behind it is of now
	w.b.down(errDown)
	close(release)
	if err := <-failed; !errors.Is(err, errDown) {
		t.Errorf("the listing that waited: %v", err)
	}
	if s := w.tree.Stats(); s.Stale != nil {
		t.Errorf("stale after an answer: %v", s.Stale)
	}
	if _, err := w.tree.Resolve(context.Background(), "/slow/new"); !errors.Is(err, errDown) || w.tree.Stats().Stale == nil {
		t.Errorf("a question of now: %v, stale %v", err, w.tree.Stats().Stale)
	}
}

func TestStaleIfError(t *testing.T) {
	// While the origin is unreachable, the last known names are served, and Stats says why. A name that was
	// never known is an error. A link without StaleIfError gets errors only.
	for _, believes := range []bool{true, false} {
		w := open(t, func(o *Options) { o.Links[0].StaleIfError = believes })
		ctx := context.Background()
		w.b.put("d/x", "A", 1)
		w.b.put("e/y", "A", 1)
		w.names("/")
		w.names("/d")
		e := w.resolve("/e")
		w.b.down(errDown)
		w.later(time.Hour)
		if !believes {
			if _, err := w.tree.Resolve(ctx, "/d/x"); !errors.Is(err, errDown) {
				t.Error(err)
			}
			continue
		}
		for range 3 {
			if n := w.resolve("/d/x"); n.TTL != 0 {
				t.Errorf("%v more for a stale name", n.TTL)
			}
			equal(t, w.names("/d"), []string{"x"})
			w.absent("/d/z")
		}
		if _, err := w.tree.Lookup(ctx, e.ID, "y"); !errors.Is(err, errDown) {
			t.Errorf("never listed: %v", err)
		}
		if s := w.tree.Stats(); !errors.Is(s.Stale, errDown) || s.StaleAnswers == 0 {
			t.Errorf("%+v", s)
		}
		x := w.resolve("/d/x")
		w.tree.Forget(&x.Object) // whoever reads it was told that it is gone, and is told so once
		for range 2 {
			if n, err := w.tree.Resolve(ctx, "/d/x"); !errors.Is(err, errDown) {
				t.Errorf("%+v, %v of a version that was found gone", n, err)
			}
		}
		w.b.down(nil)
		w.b.put("d/x", "B", 1)
		w.later(time.Hour)
		w.resolve("/e/y")
		if n := w.resolve("/d/x"); n.Object.ETag != "B" {
			t.Errorf("%+v after the origin came back", n)
		}
		if s := w.tree.Stats(); s.Stale != nil {
			t.Error(s.Stale)
		}
	}
}

func TestRestart(t *testing.T) {
	// Names outlive a restart, and fresh ones need no question. Ids continue. A clock that went back makes
	// nothing fresh.
	w := open(t, func(o *Options) { o.Dir = t.TempDir() + "/names" })
	w.b.put("d/x", "A", 1)
	w.names("/")
	w.names("/d")
	x, d := w.resolve("/d/x"), w.resolve("/d")
	mtime := d.ModTime
	before := w.b.requests()
	w.reopen()
	if n := w.resolve("/d/x"); n.ID != x.ID || n.Object != x.Object {
		t.Errorf("%+v became %+v", x, n)
	}
	if n := w.resolve("/d"); n.ID != d.ID || !n.ModTime.Equal(mtime) || mtime.IsZero() {
		t.Errorf("%+v became %+v", d, n)
	}
	if n := w.b.requests() - before; n != 0 {
		t.Errorf("%d requests", n)
	}
	w.b.put("d/new", "A", 1)
	if n := w.resolve("/d"); n.ID != d.ID {
		t.Error("a directory changed its id")
	}
	w.later(-30 * time.Second)
	w.reopen()
	b := w.b.put("d/x", "B", 1)
	n := w.resolve("/d/x")
	if n.Object != b {
		t.Error("the clock went back, and a stale name was believed")
	}
	if n.ID <= store.IDBlock {
		t.Errorf("id %d may have been used before the restart", n.ID)
	}
	if _, err := w.tree.Node(context.Background(), 1<<50); !errors.Is(err, hearth.ErrStale) {
		t.Error(err)
	}
}

func TestLinks(t *testing.T) {
	// Several links stand in one tree, and the longest path wins. What leads to a link is a directory,
	// though no bucket has it.
	w := open(t, func(o *Options) { o.Links = nil })
	equal(t, w.names("/"), nil)
	w.absent("/x")
	outer, inner := newBucket(), newBucket()
	inner.put("pre/fix/i", "A", 1)
	bounded := Freshness{Mode: Bounded, Bound: time.Minute}
	if err := w.tree.AddLink(Link{Path: "/data/sets/i", Name: "i", Prefix: "pre/", Origin: inner, Freshness: bounded}); err != nil {
		t.Fatal(err)
	}
	equal(t, w.names("/"), []string{"data/"})
	equal(t, w.names("/data/sets"), []string{"i/"})
	equal(t, w.names("/data/sets/i"), []string{"fix/"})
	w.absent("/data/x")
	for _, k := range []string{"data/sets/i/hidden", "data/sets/h", "data/sets/j", "data/sets", "z"} {
		outer.put(k, "A", 1)
	}
	if err := w.tree.AddLink(Link{Path: "/", Name: "/", Origin: outer, Freshness: bounded}); err != nil {
		t.Fatal(err)
	}
	if w.resolve("/").ID != rootID {
		t.Error("the root's id changed")
	}
	equal(t, w.names("/"), []string{"data/", "z"})
	equal(t, w.names("/data"), []string{"sets%F", "sets/"})
	equal(t, w.names("/data/sets"), []string{"h", "i/", "j"})
	equal(t, w.names("/data/sets/i"), []string{"fix/"})
	if n := w.resolve("/data/sets/i/fix/i"); n.Object.Key != "pre/fix/i" {
		t.Errorf("%+v", n)
	}
	w.resolve("/data/sets%F")
	var rest []string
	_ = w.tree.ReadDir(context.Background(), w.resolve("/data/sets").ID, "i", func(n Node) bool {
		rest = append(rest, n.Name)
		return true
	})
	equal(t, rest, []string{"j"})
	if err := w.tree.AddLink(Link{Path: "/", Name: "other", Origin: outer}); err == nil {
		t.Error("two links at one path")
	}
}

func TestDirectoriesComeAndGo(t *testing.T) {
	// When the last key of a directory goes, the directory goes with all below it. When it is back, it has
	// the same id.
	w := open(t, nil)
	w.b.put("a/b/c", "A", 1)
	w.b.put("z", "A", 1)
	w.names("/")
	w.names("/a")
	w.names("/a/b")
	a, b, c := w.resolve("/a"), w.resolve("/a/b"), w.resolve("/a/b/c")
	w.b.remove("a/b/c")
	w.later(time.Hour)
	equal(t, w.names("/"), []string{"z"})
	w.absent("/a")
	w.absent("/a/b/c")
	if n, err := w.tree.Node(context.Background(), c.ID); err != nil || n.Object != c.Object {
		t.Errorf("a kernel may hold it: %+v, %v", n, err)
	}
	w.settle()
	if _, err := w.tree.Lookup(Quiet(context.Background()), b.ID, "c"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("what was below is known still: %v", err)
	}
	w.b.put("a/b/c", "A", 1)
	w.later(time.Hour)
	if n := w.resolve("/a"); n.ID != a.ID {
		t.Error("another id for the same path")
	}
	if n := w.resolve("/a/b/c"); n.ID == c.ID {
		t.Error("the same id for a name that was gone")
	}
	w.names("/a/b")
	w.b.remove("a/b/c")
	w.later(time.Hour)
	if err := w.tree.ReadDir(context.Background(), a.ID, "", func(Node) bool { return true }); err != nil {
		t.Fatal(err)
	}
	w.absent("/a")
}

func TestUnorderedOrigin(t *testing.T) {
	// An origin that lists in no order shows the same names.
	w := open(t, nil)
	w.b.shuffled, w.b.pageSize = true, 7
	var want []string
	for i := range 3000 {
		k := fmt.Sprintf("f%05d", i)
		w.b.put(k, "A", 1)
		want = append(want, k)
	}
	equal(t, w.names("/"), want)
	w.b.remove(want[10])
	w.b.remove(want[2999])
	want = slices.Delete(want[:2999], 10, 11)
	w.later(time.Hour)
	equal(t, w.names("/"), want)
}

func TestOddKeys(t *testing.T) {
	// Each odd key has one name in the mount, which leads to its object by listing
	// and, on a cold tree, by look-up.
	long := fmt.Sprintf("%0300d", 7)
	keys := map[string]string{
		"a": "/a%F", "a/b": "/a/b", "x//y": "/x/%_/y", "/lead": "/%_/lead", "./p": "/%2E/p", "../etc/passwd": "/%2E%2E/etc/passwd",
		"new\nline": "/new\nline", "ctl\x01\x7f": "/ctl\x01\x7f", "nul\x00": "/nul%00", "%2F": "/%252F", "100%": "/100%", "a%F": "/a%25F",
		"e\u0301": "/e\u0301", "\u00e9": "/\u00e9", "t2/": "/t2/%_", "t2/u": "/t2/u", "x//": "/x/%_/%_", "q/": "/q/%_%F", "q//r": "/q/%_/r",
		"%_": "/%25_", "%~0123456789abcdef": "/%25~0123456789abcdef",
	}
	w := open(t, nil)
	w.b.put("t/", "A", 0)
	for k := range keys {
		w.b.put(k, "A", 1)
	}
	w.b.put(long, "A", 1)
	w.b.put(long+"/in", "A", 1)
	w.b.put("bad\xff", "A", 1)
	for k, p := range keys {
		if n := w.resolve(p); n.Object.Key != k {
			t.Errorf("cold: %s is %q, not %q", p, n.Object.Key, k)
		}
	}
	paths := map[string]string{}
	dirs := 0
	if _, err := w.tree.Below(context.Background(), rootID, func(p string, n Node) error {
		if n.Dir {
			dirs++
		} else {
			paths[n.Object.Key] = p
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for k, p := range keys {
		if paths[k] != p {
			t.Errorf("%q is at %q, not %q", k, paths[k], p)
		}
		delete(paths, k)
	}
	if len(paths) != 2 || paths[long] == "" || paths[long+"/in"] == "" {
		t.Errorf("left: %q", paths)
	}
	if n := w.resolve(paths[long]); n.Object.Key != long || len(n.Name) > record.MaxName {
		t.Errorf("%+v", n)
	}
	if !w.resolve("/t").Dir || w.names("/t") != nil {
		t.Error("t/ is no empty directory")
	}
	w.idle("/")
	if s := w.tree.Stats(); s.Refused != 1 {
		t.Errorf("%d keys reported", s.Refused)
	}
	for _, p := range []string{"/.", "/..", "/%2e", "/%", "/%25", "/a%F%F", "/%2E%F"} {
		if _, err := w.tree.Lookup(context.Background(), rootID, p[1:]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
	// A cold tree finds shortened names by the listing.
	cold := open(t, nil)
	cold.b.objects = maps.Clone(w.b.objects)
	if n := cold.resolve(paths[long+"/in"]); n.Object.Key != long+"/in" {
		t.Errorf("%+v", n)
	}
	// The file gets its plain name back when the directory beside it goes.
	w.b.remove("a/b")
	w.later(time.Hour)
	w.names("/")
	if n := w.resolve("/a"); n.Object.Key != "a" {
		t.Errorf("%+v", n)
	}
	w.absent("/a%F")
}

func TestOriginPanics(t *testing.T) {
	// A panic in an origin is an error for those who asked, and the next question is answered.
	w := open(t, nil)
	w.b.put("x", "A", 1)
	w.b.onHead = func(string) { panic("head") }
	w.b.onPage = func(string, int) { panic("list") }
	if _, err := w.tree.Resolve(context.Background(), "/x"); err == nil {
		t.Error("no error")
	}
	if err := w.tree.ReadDir(context.Background(), rootID, "", func(Node) bool { return true }); err == nil {
		t.Error("no error")
	}
	w.settle()
	w.b.mu.Lock()
	w.b.onHead, w.b.onPage = nil, nil
	w.b.mu.Unlock()
	w.resolve("/x")
	equal(t, w.names("/"), []string{"x"})
}
