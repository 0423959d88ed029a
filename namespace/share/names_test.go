package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/peer/wire"
)

func TestARingListsEachDirectoryOnce(t *testing.T) {
	// Five nodes that know nothing walk one data set at once, then stat every file. The bucket is asked for
	// each page of each directory once, and for no single name.
	r := newRing(t, 5)
	pages, dirs, files := 1, 40, 0
	for d := range dirs {
		many := 50
		if d%10 == 0 {
			many = 2500
		}
		pages += (many + 999) / 1000
		for f := range many {
			r.b.put(fmt.Sprintf("set/d%02d/f%05d", d, f), fmt.Sprint(f))
			files++
		}
	}
	r.all(func(x *node) {
		if d, f := x.walk(); d != dirs+1 || f != files {
			t.Errorf("node %d found %d directories and %d files, not %d and %d", x.number, d, f, dirs+1, files)
		}
		for d := range dirs {
			if got := x.resolve(fmt.Sprintf("set/d%02d/f%05d", d, d)); got != fmt.Sprint(d) {
				t.Errorf("node %d: directory %d: %q", x.number, d, got)
			}
		}
	})
	heads, lists := r.b.requests()
	if pages++; heads != 0 || lists > pages {
		t.Errorf("%d HEADs and %d LISTs, of %d pages in all", heads, lists, pages)
	}
	s := r.told()
	t.Logf("%d LISTs for %d directories and %d pages; %+v", lists, dirs+2, pages, s)
	if s.Elsewhere+s.Refused+s.Failed+s.Old != 0 || s.ToldPages < 4*int64(dirs) {
		t.Errorf("%+v", s)
	}
}

func TestColdLookUpsAreAskedOnce(t *testing.T) {
	// Five nodes look up one name in a directory that none knows, and that has more pages than one answer.
	// The ring asks the bucket no more than one node would.
	r := newRing(t, 5)
	for f := range 3000 {
		r.b.put(fmt.Sprintf("d/f%05d", f), "e")
	}
	var begun sync.WaitGroup
	begun.Add(len(r.nodes))
	r.all(func(x *node) {
		begun.Done()
		begun.Wait()
		if got := x.resolve("d/f02999"); got != "e" {
			t.Errorf("node %d: %q", x.number, got)
		}
		if got := x.resolve("d/none"); got != "" {
			t.Errorf("node %d: %q", x.number, got)
		}
	})
	// A HEAD of d, its file and none; the root's page, three of d, and a LIST of one key for
	// none, which is not in d's first, and for d where the root's page is late.
	if heads, lists := r.b.requests(); heads > 3 || lists > 1+3+2 {
		t.Errorf("%d HEADs and %d LISTs: %+v", heads, lists, r.told())
	}
}

func TestAnOwnerDiesBetweenTwoPages(t *testing.T) {
	// An owner is gone after its first page. The bucket is asked for what comes after it, and no name is
	// lost or there twice.
	r := newRing(t, 2)
	r.nodes[0].owns(1)
	r.nodes[1].owns(1)
	for f := range 3500 {
		r.b.put(fmt.Sprintf("f%05d", f), "e")
	}
	var calls atomic.Int64
	r.nodes[0].between(func(_ int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
		if number == CallNames && calls.Add(1) > 1 {
			return nil, wire.ErrDown
		}
		return do()
	})
	if got := r.nodes[0].list("/"); len(got) != 3500 {
		t.Errorf("%d names", len(got))
	}
	r.close0()
	if _, lists := r.b.requests(); lists > 4+3 {
		t.Errorf("%d LISTs", lists)
	}
	if s := r.nodes[0].names.Stats(); s.Elsewhere == 0 || s.Listings != 1 {
		t.Errorf("%+v", s)
	}
}

// close0 waits for the background work of the trees.
func (r *rig) close0() {
	for _, x := range r.nodes {
		if err := x.tree.Close(); err != nil {
			r.Error(err)
		}
		x.open()
	}
}

func TestADirectoryChangesBetweenTwoPages(t *testing.T) {
	// While a node copies a directory page by page, the directory is changed, and its owner lists it anew.
	// The copy has what was there all the time, and what came after the pages copied before. The whole
	// copy counts as old as its first page.
	r := newRing(t, 2)
	x, owner := r.nodes[0], r.nodes[1]
	x.owns(1)
	owner.owns(1)
	for f := range 3500 {
		r.b.put(fmt.Sprintf("f%05d", f), "e")
	}
	if n := len(owner.list("/")); n != 3500 {
		t.Fatal(n)
	}
	calls := 0
	r.past.Add(int64(30 * time.Second))
	x.between(func(_ int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
		if calls++; calls == 3 {
			r.b.remove("f00001")
			r.b.remove("f03000")
			r.b.put("f03100", "changed")
			r.b.put("f03100a", "new")
			root, err := owner.tree.Root(context.Background(), "/")
			if err = errors.Join(err, owner.tree.Refresh(context.Background(), root.ID, owner.tree.Now())); err != nil {
				t.Error(err)
			}
		}
		return do()
	})
	got := x.list("/")
	if len(got) != 3500 || got["f00001"] != "e" || got["f03000"] != "" || got["f03100"] != "changed" || got["f03100a"] != "new" {
		t.Errorf("%d names; %q %q %q %q", len(got), got["f00001"], got["f03000"], got["f03100"], got["f03100a"])
	}
	r.past.Add(int64(29 * time.Second))
	if got := x.list("/"); got["f00001"] != "e" {
		t.Error("not believed for its bound")
	}
	r.past.Add(int64(2 * time.Second))
	if got := x.list("/"); got["f00001"] != "" || len(got) != 3499 {
		t.Errorf("believed longer than its bound: %q, %d names", got["f00001"], len(got))
	}
}

func TestACopyTakesNothingBack(t *testing.T) {
	// An owner's listing that took long is believed for long. A node that has listed the directory itself
	// since then, and believes that for less, does not go back to the older one.
	r := newRing(t, 2)
	owner, x := r.nodes[0], r.nodes[1]
	for _, n := range r.nodes {
		n.owns(0)
	}
	r.b.put("d/a", "1")
	r.b.mu.Lock()
	r.b.asked = func() { r.past.Add(int64(20 * time.Second)) }
	r.b.mu.Unlock()
	owner.list("/d")
	r.b.mu.Lock()
	r.b.asked = nil
	r.b.mu.Unlock()
	r.past.Add(int64(90 * time.Second))
	r.b.put("d/a", "2")
	r.b.put("d/b", "1")
	x.between(func(int, uint16, func() (*hearth.View, error)) (*hearth.View, error) { return nil, wire.ErrDown })
	if got := x.list("/d"); got["a"] != "2" || got["b"] != "1" {
		t.Fatalf("%v", got)
	}
	x.call.Store(nil)
	r.past.Add(int64(61 * time.Second))
	if got := x.list("/d"); got["a"] != "2" || got["b"] != "1" {
		t.Errorf("a minute later: %v", got)
	}
}

func TestACopyAgesWhileItIsMade(t *testing.T) {
	// Readers that come while a node copies a directory share that copy. So the copy may not be older
	// because time passes before the owner is asked, or on the way: a node waits for its turn, or sleeps.
	for _, when := range []string{"before it is asked", "on the way"} {
		r := newRing(t, 2)
		owner, x := r.nodes[0], r.nodes[1]
		owner.owns(0)
		x.owns(0)
		r.b.put("d/a", "1")
		owner.list("/d")
		x.list("/")
		r.b.put("d/a", "2")
		r.past.Add(int64(40 * time.Second))
		var once sync.Once
		passes := func() { once.Do(func() { r.past.Add(int64(34 * time.Second)) }) }
		if when == "on the way" {
			x.between(func(_ int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
				if number == CallNames {
					defer passes()
				}
				return do()
			})
		} else {
			f := func([16]byte) int { passes(); return 0 }
			x.owner.Store(&f)
		}
		n, err := x.tree.Resolve(context.Background(), "d")
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		err = x.tree.ReadDir(context.Background(), n.ID, "", func(n namespace.Node) bool { got = n.Object.ETag; return true })
		if err != nil || got != "2" {
			t.Errorf("it is %q, which was so 74 s ago, when time passes %s: %v", got, when, err)
		}
	}
}

func TestMapsThatDifferMakeNoCircle(t *testing.T) {
	// Two nodes each take the other for the owner of everything. Then their maps change with each request
	// at the bucket, while both list and look up more than fits into their semaphores. Everything is
	// answered.
	r := newRing(t, 2)
	const dirs = 80
	for d := range dirs {
		for f := range 20 {
			r.b.put(fmt.Sprintf("d%03d/f%02d", d, f), "e")
		}
	}
	r.nodes[0].owns(1)
	r.nodes[1].owns(0)
	r.all(func(x *node) {
		if d, f := x.walk(); d != dirs || f != 20*dirs {
			t.Errorf("node %d: %d and %d", x.number, d, f)
		}
	})
	if s := r.told(); s.ToldPages+s.ToldFinds != 0 || s.Refused == 0 {
		t.Errorf("with two maps of another mind: %+v", s)
	}
	var asked atomic.Int64
	r.b.asked = func() { n := int(asked.Add(1)); r.nodes[n%2].owns(n / 2 % 2) } // while somebody waits
	for range 3 {
		r.past.Add(int64(10 * time.Minute))
		r.all(func(x *node) {
			var work sync.WaitGroup
			for d := range dirs {
				for f := range 8 {
					work.Go(func() {
						if got := x.resolve(fmt.Sprintf("d%03d/f%02d", d, f)); got != "e" {
							t.Errorf("node %d: %q", x.number, got)
						}
					})
				}
				work.Go(func() {
					if got := x.list(fmt.Sprintf("d%03d", d)); len(got) != 20 {
						t.Errorf("node %d: %d names", x.number, len(got))
					}
				})
			}
			work.Wait()
		})
	}
	if s := r.told(); s.ToldPages == 0 {
		t.Errorf("nobody told anybody: %+v", s)
	}
}

// slow is a Tree whose answers wait.
type slow struct {
	noTree
	begun, end chan struct{}
}

func (s slow) Find(context.Context, hearth.Directory, string, time.Duration) (hearth.Found, error) {
	close(s.begun)
	<-s.end
	return hearth.Found{Dir: true}, nil
}

func TestWhoTellsOfADirectoryDoesNotAskForIt(t *testing.T) {
	// A node's map changes while it asks another node about a directory, and while it answers others about
	// it. It never does both, or two such nodes would wait for each other. Other directories are not
	// affected.
	var self atomic.Bool
	n := New(Options{Pool: hearth.NewPool(0), Owner: func([16]byte) (string, bool) { return "x", self.Load() }})
	tree := slow{begun: make(chan struct{}), end: make(chan struct{})}
	n.Serve(tree)
	s := n.Over(newBucket())
	dir, other := hearth.Directory{ID: [16]byte{1}}, hearth.Directory{ID: [16]byte{2}}
	q := question{dir: dir, behind: "f"}
	body, err := q.append(nil)
	if err != nil {
		t.Fatal(err)
	}
	end, ok := s.Elsewhere(dir)
	if !ok {
		t.Fatal("not elsewhere")
	}
	self.Store(true)
	if _, err := n.find(t.Context(), body); !errors.Is(err, ErrElsewhere) {
		t.Errorf("told while it is asked for elsewhere: %v", err)
	}
	end()
	var telling sync.WaitGroup
	telling.Go(func() {
		v, err := n.find(context.Background(), body)
		if err != nil {
			t.Error(err)
			return
		}
		v.Release()
	})
	<-tree.begun
	self.Store(false)
	if _, ok := s.Elsewhere(dir); ok {
		t.Error("asked for elsewhere while it is told of")
	}
	if end, ok := s.Elsewhere(other); !ok {
		t.Error("another directory")
	} else {
		end()
	}
	close(tree.end)
	telling.Wait()
	if end, ok := s.Elsewhere(dir); !ok {
		t.Error("not asked for after it was told of")
	} else {
		end()
	}
	if len(n.uses) != 0 {
		t.Errorf("left over: %v", n.uses)
	}
}

func TestPlacesOfTheBucketAreNotHeldForOtherNodes(t *testing.T) {
	// Two nodes own a half each, and ask each other for more than a node handles at a time. The bucket
	// answers nobody yet. If a question to the other node held a place of a semaphore that the other needs
	// to answer, nobody would ever be answered.
	r := newRing(t, 2)
	const dirs = 120
	for d := range dirs {
		r.b.put(fmt.Sprintf("d%03d/f", d), "e")
	}
	r.all(func(x *node) { x.list("/") })
	full := make(chan struct{}) // closed when both ask for as many directories as they do at a time
	r.b.asked = func() {
		select {
		case <-full:
		case <-time.After(patience):
			t.Error("nobody asks")
		}
	}
	var asked [2]atomic.Int64
	var once sync.Once
	for i, x := range r.nodes {
		x.between(func(_ int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
			if number == CallNames && asked[i].Add(1) == 32 && asked[1-i].Load() >= 32 {
				once.Do(func() { close(full) })
			}
			return do()
		})
	}
	r.all(func(x *node) {
		var work sync.WaitGroup
		for d := range dirs {
			work.Go(func() {
				if got := x.list(fmt.Sprintf("d%03d", d)); len(got) != 1 {
					t.Errorf("node %d: %v", x.number, got)
				}
			})
			for n := range 5 {
				work.Go(func() { x.resolve(fmt.Sprintf("d%03d/n%d", d, n)) })
			}
		}
		work.Wait()
	})
	if _, lists := r.b.requests(); lists > 2+dirs+5*dirs {
		t.Errorf("%d LISTs: %+v", lists, r.told())
	}
}

func TestWhatOneLearnsTheOwnerLearns(t *testing.T) {
	// A reader finds a version gone. Its node asks the owner for what is true since then. So the owner
	// knows as soon as the reader's node does, and a third node within its bound.
	r := newRing(t, 3)
	for _, x := range r.nodes {
		x.owns(0)
	}
	was := r.b.put("d/f", "1")
	r.all(func(x *node) {
		x.list("d")
		if got := x.resolve("d/f"); got != "1" {
			t.Errorf("node %d: %q", x.number, got)
		}
	})
	r.past.Add(int64(5 * time.Second))
	heads, lists := r.b.requests()
	before := heads + lists
	r.b.put("d/f", "2")
	r.nodes[1].tree.Forget(&was)
	if got := r.nodes[1].resolve("d/f"); got != "2" {
		t.Errorf("the reader's node: %q", got)
	}
	heads, lists = r.b.requests()
	if asked := heads + lists - before; asked < 1 || asked > 2 { // the root's listing may have begun late
		t.Errorf("%d requests", asked)
	}
	if got := r.nodes[0].resolve("d/f"); got != "2" {
		t.Errorf("the owner: %q", got)
	}
	r.past.Add(int64(56 * time.Second))
	if got := r.nodes[2].resolve("d/f"); got != "2" {
		t.Errorf("a third node, past the bound: %q", got)
	}
}

func TestStrictNamesAreTheBuckets(t *testing.T) {
	// The nodes of a strict link ask the bucket each time, and nobody else.
	r := newFreshRing(t, 2, namespace.Freshness{Mode: namespace.Strict})
	r.nodes[0].owns(1)
	r.nodes[1].owns(1)
	r.b.put("d/f", "1")
	if got := r.nodes[0].list("d"); len(got) != 1 || r.nodes[0].resolve("d/f") != "1" {
		t.Errorf("%v", got)
	}
	r.b.put("d/f", "2")
	if got := r.nodes[0].resolve("d/f"); got != "2" {
		t.Errorf("%q", got)
	}
	if s := r.told(); s != (Stats{}) {
		t.Errorf("%+v", s)
	}
}

func TestImmutableNamesAreAskedForOnce(t *testing.T) {
	// The names of an immutable link are copied at any age, and so is the absence of a name.
	r := newFreshRing(t, 2, namespace.Freshness{Mode: namespace.Immutable})
	x, owner := r.nodes[0], r.nodes[1]
	x.owns(1)
	owner.owns(1)
	r.b.put("d/f", "1")
	if got := owner.list("d"); len(got) != 1 {
		t.Errorf("%v", got)
	}
	heads, lists := r.b.requests()
	r.past.Add(int64(1000 * time.Hour))
	if got := x.list("d"); len(got) != 1 || x.resolve("d/f") != "1" || x.resolve("d/none") != "" {
		t.Errorf("%v", got)
	}
	if h, l := r.b.requests(); h != heads || l != lists {
		t.Errorf("%d HEADs and %d LISTs more", h-heads, l-lists)
	}
}

// find names a directory as nodes do among each other.
func (x *node) find(prefix string) hearth.Directory {
	return hearth.Directory{ID: record.DirectoryHash("/", "\x00"+identity, prefix), Link: "/", Identity: identity, Prefix: prefix}
}

func TestWhoCopiesKnowsWhatIsHidden(t *testing.T) {
	// A node that copies a directory counts the keys that no mount can show, as the owner does. A directory
	// with no key but its marker is there on both.
	r := newRing(t, 2)
	r.nodes[0].owns(1)
	r.nodes[1].owns(1)
	for _, key := range []string{"d/a", "d/\xff", "d/\xfe", "m/"} {
		r.b.put(key, "e")
	}
	r.b.objects["m/"] = hearth.Object{Link: "/", Key: "m/", ETag: "e"} // a marker is empty
	r.all(func(x *node) {
		if got := x.list("d"); len(got) != 1 {
			t.Errorf("node %d: %v", x.number, got)
		}
		dir, err := x.tree.Resolve(context.Background(), "d")
		if err != nil {
			t.Error(err)
		} else if n, err := x.tree.Hidden(dir.ID); n != 2 || err != nil {
			t.Errorf("node %d: %d hidden, %v", x.number, n, err)
		}
		if got := x.list("m"); len(got) != 0 || x.resolve("m") != "dir" {
			t.Errorf("node %d: %v in a directory of its marker", x.number, got)
		}
	})
	if s := r.nodes[0].names.Stats(); s.Elsewhere != 0 || s.Listings == 0 {
		t.Errorf("%+v", s)
	}
}

func TestNobodyIsToldOfAnotherDirectory(t *testing.T) {
	// An id that does not fit link and prefix is another link's, or made up. The owner's tree refuses it,
	// whatever its map says.
	r := newRing(t, 1)
	r.b.put("d/f", "e")
	tree := r.nodes[0].tree
	good := r.nodes[0].find("d/")
	if f, err := tree.Find(context.Background(), good, "f", time.Minute); err != nil || f.Object == nil {
		t.Fatalf("%+v, %v", f, err)
	}
	for what, change := range map[string]func(*hearth.Directory){
		"id":          func(d *hearth.Directory) { d.ID[3]++ },
		"link":        func(d *hearth.Directory) { d.Link = "/other" },
		"prefix":      func(d *hearth.Directory) { d.Prefix = "e/" },
		"no segment":  func(d *hearth.Directory) { *d = r.nodes[0].find("d") },
		"not a key":   func(d *hearth.Directory) { *d = r.nodes[0].find("\xff/") },
		"no S3's key": func(d *hearth.Directory) { *d = r.nodes[0].find(strings.Repeat("d", 2000) + "/") },
	} {
		d := good
		change(&d)
		if _, err := tree.Find(context.Background(), d, "f", time.Minute); !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("another %s: %v", what, err)
		}
		if _, err := tree.Names(context.Background(), d, "", time.Minute, func(*hearth.Object) bool { return true }); !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("another %s: %v", what, err)
		}
	}
}

func TestALinkHidesNothingElsewhere(t *testing.T) {
	// One node has a link of its own at the path of a directory of the bucket. The other node sees that
	// directory all the same, whoever owns its parent.
	r := newRing(t, 2)
	x, owner := r.nodes[0], r.nodes[1]
	x.owns(1)
	owner.owns(1)
	r.b.put("d/f", "e")
	if err := owner.tree.AddLink(namespace.Link{Path: "/d", Name: "/d", Origin: newBucket(), Identity: "other"}); err != nil {
		t.Fatal(err)
	}
	if got := x.resolve("d/f"); got != "e" {
		t.Errorf("looked up: %q", got)
	}
	if got := x.list("/"); len(got) != 1 {
		t.Errorf("listed: %v", got)
	}
	if got := owner.list("d"); len(got) != 0 {
		t.Errorf("its own link: %v", got)
	}
}

func TestAPageThatLeadsNowhereIsAskedOfTheBucket(t *testing.T) {
	// An owner answers with the same name for ever, as a page that is not the last. The bucket is asked for
	// the rest of the directory.
	r := newRing(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	x.owns(1)
	other.owns(1)
	other.names.Serve(stuck{})
	r.b.put("f", "e")
	if got := x.list("/"); got["f"] != "e" || x.names.Stats().Pages > 2 {
		t.Errorf("%v after %+v", got, x.names.Stats())
	}
}

// stuck is a Tree that tells the same name without end.
type stuck struct{ noTree }

func (stuck) Names(_ context.Context, dir hearth.Directory, _ string, _ time.Duration, each func(*hearth.Object) bool) (hearth.Told, error) {
	each(&hearth.Object{Key: dir.Prefix, Size: 7, ETag: "e"})
	return hearth.Told{}, nil
}

// history is what a name meant, and since when.
type history struct {
	at   []time.Duration
	etag []string
}

// within reports whether the name meant that at any time since then.
func (h *history) within(etag string, since time.Duration) bool {
	for i := range h.at {
		over := i+1 < len(h.at) && h.at[i+1] < since
		if h.etag[i] == etag && !over {
			return true
		}
	}
	return false
}

func TestNoNameIsOlderThanItsBound(t *testing.T) {
	// What a node says of a name was true within the last minute before it was asked. That holds whatever
	// is changed or restarted, whoever owns what, however wrong clocks are, and while time passes between
	// question and answer.
	first := hearthtest.Seed(t)
	var pages, finds atomic.Int64 // over all seeds: with some of them no single name is asked for
	t.Cleanup(func() {
		if pages.Load() == 0 || finds.Load() == 0 {
			t.Errorf("nobody told anybody: %d pages, %d names", pages.Load(), finds.Load())
		}
	})
	for i := range uint64(16) {
		seed := first + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := newRing(t, 3)
			rnd := rand.New(rand.NewPCG(seed, 1))
			names := []string{"d/a", "d/b", "e/a"}
			was := map[string]*history{}
			now := func() time.Duration { return time.Duration(r.past.Load()) }
			set := func(name string) {
				etag := fmt.Sprint(rnd.Uint32())
				if rnd.IntN(4) == 0 {
					etag = ""
					r.b.remove(name)
				} else {
					r.b.put(name, etag)
				}
				was[name].at, was[name].etag = append(was[name].at, now()), append(was[name].etag, etag)
			}
			for _, name := range names {
				was[name] = &history{at: []time.Duration{-time.Hour}, etag: []string{""}}
				r.b.put(name[:1]+"/always", "e") // a directory that went away is another story
				set(name)
			}
			var passed atomic.Uint64
			pass := func() {
				rnd := rand.New(rand.NewPCG(seed, passed.Add(1)))
				if rnd.IntN(20) == 0 {
					r.past.Add(int64(rnd.IntN(35)) * int64(time.Second))
				}
				for range rnd.IntN(50) {
					runtime.Gosched() // others ask meanwhile
				}
			}
			owns := func(x *node, owner int) {
				f := func([16]byte) int { pass(); return owner }
				x.owner.Store(&f)
			}
			for i, x := range r.nodes {
				owns(x, i)
				x.between(func(_ int, _ uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
					defer pass()
					return do()
				})
			}
			for step := range 400 {
				x := r.nodes[rnd.IntN(3)]
				name := names[rnd.IntN(len(names))]
				check := func(how string, get func() string) {
					asked := now()
					bound := time.Minute
					got := get()
					for _, x := range r.nodes { // a listing takes seconds on a busy machine, seldom
						bound = max(bound, 20*time.Duration(x.tree.Stats().Slowest)*time.Millisecond)
					}
					if !was[name].within(got, asked-bound) {
						t.Fatalf("step %d at %v: node %d %s %s: %q, but %v", step, asked, x.number, how, name, got, was[name])
					}
				}
				switch rnd.IntN(12) {
				case 0, 1:
					set(name)
				case 2, 3, 4:
					r.past.Add(int64(rnd.IntN(35)) * int64(time.Second))
				case 5, 6, 7:
					check("looks up", func() string { return x.resolve(name) })
				case 8, 9:
					check("lists", func() string { return x.list(name[:1])[name[2:]] })
				case 10:
					if rnd.IntN(3) == 0 {
						if err := x.tree.Close(); err != nil {
							t.Fatal(err)
						}
						x.open()
					}
				case 11:
					owns(x, rnd.IntN(3))
				}
			}
			s := r.told()
			pages.Add(s.ToldPages)
			finds.Add(s.ToldFinds)
		})
	}
}

func TestWhoIsNotAskedRight(t *testing.T) {
	// A node cannot answer: it does not own the directory, has no such link or no tree yet, or runs another
	// release. The bucket is asked instead.
	r := newRing(t, 2)
	x, other := r.nodes[0], r.nodes[1]
	x.owns(1)
	want := map[string]string{"f": "e"}
	r.b.put("f", "e")
	for _, c := range []struct {
		what  string
		make  func()
		fails func(err error) bool
	}{
		{"its own map says otherwise", func() { other.owns(0) }, func(err error) bool { return errors.As(err, new(*wire.Error)) }},
		{"no such link", func() { other.owns(1); other.names.Serve(noTree{hearth.ErrMiss}) }, func(err error) bool { return errors.Is(err, hearth.ErrMiss) }},
		{"its bucket is away", func() { other.names.Serve(noTree{errors.New("away")}) }, func(err error) bool { return errors.As(err, new(*wire.Error)) }},
		{"no tree yet", func() { other.names.tree.Store(nil) }, func(err error) bool { return errors.As(err, new(*wire.Error)) }},
		{"no such number", func() {
			x.between(func(int, uint16, func() (*hearth.View, error)) (*hearth.View, error) {
				return x.peers[1].Call(context.Background(), 99, nil)
			})
		}, func(err error) bool { return errors.Is(err, hearth.ErrRefused) }},
	} {
		c.make()
		r.past.Add(int64(time.Hour))
		before := x.names.Stats().Elsewhere
		if got := x.list("/"); !maps.Equal(got, want) {
			t.Errorf("%s: %v", c.what, got)
		}
		if x.names.Stats().Elsewhere == before {
			t.Errorf("%s: the bucket was not asked instead", c.what)
		}
		s := x.names.Over(r.b)
		if _, err := s.Find(context.Background(), hearth.Directory{Identity: identity, Link: "/"}, "f", time.Hour); err == nil || !c.fails(err) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if _, ok := x.names.Over(r.b).Elsewhere(hearth.Directory{Identity: "file /data"}); ok {
		t.Error("a local directory is asked for elsewhere")
	}
}

// noTree is a Tree that fails.
type noTree struct{ err error }

func (n noTree) Names(context.Context, hearth.Directory, string, time.Duration, func(*hearth.Object) bool) (hearth.Told, error) {
	return hearth.Told{}, n.err
}

func (n noTree) Find(context.Context, hearth.Directory, string, time.Duration) (hearth.Found, error) {
	return hearth.Found{}, n.err
}

func (noTree) Heard(context.Context, hearth.Directory, string, time.Duration) {}

func TestARingOverListingsThatNameOtherVersions(t *testing.T) {
	// The bucket's listings name other versions than its HEADs. A reader on each node finds at most one
	// file gone. Then the node has the versions that can be read, though it copies names of other nodes,
	// however much time passes.
	r := newRing(t, 3)
	r.b.says = func(o *hearth.Object) { o.ETag += "!" }
	for i := range 20 {
		r.b.put(fmt.Sprintf("d/%02d", i), "E")
	}
	for _, x := range r.nodes {
		x.owns(0)
	}
	gone := map[int]int{}
	for round := range 4 {
		for _, x := range r.nodes {
			if names := x.list("/d"); len(names) != 20 {
				t.Errorf("node %d: %d names", x.number, len(names))
			}
			for i := range 20 {
				path, next := fmt.Sprintf("d/%02d", i), fmt.Sprintf("d/%02d", (i+1)%20)
				n, err := x.tree.Resolve(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				if n.Object.ETag == "E" {
					continue
				}
				if gone[x.number]++; gone[x.number] > 1 {
					t.Fatalf("round %d: node %d: %s is %q, and was not the first", round, x.number, path, n.Object.ETag)
				}
				x.tree.Forget(&n.Object)
				for late := time.Now().Add(patience); x.resolve(path) != "E" || x.resolve(next) != "E"; runtime.Gosched() {
					if time.Now().After(late) {
						t.Fatalf("node %d: the file is %q, another %q", x.number, x.resolve(path), x.resolve(next))
					}
				}
			}
		}
		r.past.Add(int64(time.Hour))
	}
}

func TestSizesThatListingsDoNotTellInARing(t *testing.T) {
	// The bucket's listings say that every file is empty, and nodes copy names of each other. Each file has
	// its size all the same.
	r := newRing(t, 3)
	r.b.says = func(o *hearth.Object) { o.Size = 0 }
	for i := range 20 {
		r.b.put(fmt.Sprintf("d/%02d", i), "E")
	}
	for _, x := range r.nodes {
		x.owns(0)
	}
	for range 3 {
		for _, x := range r.nodes {
			x.list("/d")
			for i := range 20 {
				n, err := x.tree.Resolve(t.Context(), fmt.Sprintf("d/%02d", i))
				if err != nil || n.Object.Size != 7 {
					t.Errorf("node %d: %+v, %v", x.number, n, err)
				}
			}
		}
		r.past.Add(int64(time.Hour))
	}
}
