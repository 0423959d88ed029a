package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// listsAs sets what listings say from now on; nil means the truth.
func (b *bucket) listsAs(says func(*hearth.Object)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.says = says
}

func (b *bucket) asked() (heads, lists int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heads, b.lists
}

// read does what a reader of a file does: it tells the tree when the version is gone.
func (w *world) read(path string) (n Node, err error) {
	w.Helper()
	n = w.resolve(path)
	w.b.mu.Lock()
	is := w.b.objects[n.Object.Key]
	w.b.mu.Unlock()
	if n.Object.ETag != is.ETag || n.Object.Size != is.Size {
		w.tree.Forget(&n.Object)
		w.settle()
		return n, hearth.ErrStale
	}
	return n, nil
}

// other ways to list a file, all wrong.
var otherWords = map[string]func(*hearth.Object){
	"another ETag": func(o *hearth.Object) { o.ETag += "!" },
	"no ETag":      func(o *hearth.Object) { o.ETag = "" },
	"a weak ETag":  func(o *hearth.Object) { o.ETag = "W/" + o.ETag },
	"one ETag":     func(o *hearth.Object) { o.ETag = "the same for all" },
	"another size": func(o *hearth.Object) { o.Size += 7 },
}

func TestListingsThatNameOtherVersions(t *testing.T) {
	// An origin lists other versions than can be read. The first reader who meets one gets an error. From
	// then on versions come from HEADs, and no file of an unchanged bucket changes its version again. That
	// holds whatever is listed, however much time passes, and over a restart. Real changes are seen.
	for name, says := range otherWords {
		for _, f := range []Freshness{{Mode: Bounded, Bound: time.Minute}, {Mode: Immutable}} {
			t.Run(name+" "+f.String(), func(t *testing.T) {
				var mu sync.Mutex
				var told []string
				w := open(t, func(o *Options) {
					o.Dir = t.TempDir()
					o.Links[0].Freshness = f
					o.Events.Differs = func(link, says string) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, says)
					}
				})
				for _, k := range []string{"a", "b", "c"} {
					w.b.put("d/"+k, "E"+k, 3)
				}
				w.b.listsAs(says)
				equal(t, w.names("/d"), []string{"a", "b", "c"})
				if _, err := w.read("/d/a"); !errors.Is(err, hearth.ErrStale) {
					t.Fatal("the listing is right:", err)
				}
				mu.Lock()
				if len(told) != 1 || !strings.HasPrefix(told[0], "d/a: ") {
					t.Errorf("told %q", told)
				}
				mu.Unlock()
				ids := map[string]uint64{}
				for round := range 4 {
					heads, _ := w.b.asked()
					for _, k := range []string{"a", "b", "c"} {
						n, err := w.read("/d/" + k)
						if err != nil || n.TTL <= 0 || n.Unsure {
							t.Errorf("round %d: %s: %+v, %v", round, k, n, err)
						}
						if was, ok := ids[k]; ok && was != n.ID {
							t.Errorf("round %d: %s is another file now", round, k)
						}
						ids[k] = n.ID
					}
					if again, _ := w.b.asked(); again-heads > 3 {
						t.Errorf("round %d: %d HEADs for three files", round, again-heads)
					}
					heads, _ = w.b.asked()
					w.later(24 * time.Hour)
					if equal(t, w.names("/d"), []string{"a", "b", "c"}); round == 1 {
						w.reopen()
					}
					w.settle()
					if again, _ := w.b.asked(); again-heads > 1 { // a restart looks at one again
						t.Errorf("round %d: %d HEADs for a listing", round, again-heads)
					}
				}
				if f.Mode == Immutable {
					return
				}
				w.b.put("d/b", "new", 4)
				w.b.remove("d/c")
				w.later(24 * time.Hour)
				equal(t, w.names("/d"), []string{"a", "b"})
				if n, err := w.read("/d/b"); err != nil || n.Object.ETag != "new" {
					t.Errorf("it changed: %+v, %v", n, err)
				}
				w.absent("/d/c")
			})
		}
	}
}

func TestListingsThatAreRightAgain(t *testing.T) {
	// What was found out about an origin is kept, and checked again by the next start. Once its listings
	// are mended, they are believed again, and names cost no HEADs.
	var told []string
	w := open(t, func(o *Options) {
		o.Dir = t.TempDir()
		o.Links[0].Differs, o.Links[0].DiffersBy = "d/a", "as the probe found"
		o.Events.Differs = func(_, says string) { told = append(told, says) }
	})
	w.b.put("d/a", "A", 3)
	w.b.listsAs(otherWords["another ETag"])
	w.names("/d")
	if n, err := w.read("/d/a"); err != nil || n.Object.ETag != "A" { // also the first time
		t.Errorf("%+v, %v", n, err)
	}
	w.o.Links[0].Differs = ""
	w.reopen()
	w.settle()
	w.later(24 * time.Hour)
	w.names("/d")
	if n, err := w.read("/d/a"); err != nil || n.Object.ETag != "A" {
		t.Errorf("after a restart: %+v, %v", n, err)
	}
	w.b.listsAs(nil)
	w.reopen()
	w.settle()
	w.later(24 * time.Hour)
	heads, _ := w.b.asked()
	w.names("/d")
	if n, err := w.read("/d/a"); err != nil || n.Object.ETag != "A" {
		t.Errorf("once it is mended: %+v, %v", n, err)
	}
	if again, _ := w.b.asked(); again != heads {
		t.Errorf("%d HEADs", again-heads)
	}
	if want := []string{"d/a: as the probe found", "d/a: as was found before", "d/a: as was found before", ""}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
}

func TestNamesOfWhichOnlyListingsTellWhileTheOriginIsAway(t *testing.T) {
	// Nobody knows the version of a file that no HEAD has confirmed. While the origin is unreachable such a
	// file is an error. A file that a HEAD has confirmed is served.
	w := open(t, func(o *Options) { o.Links[0].Differs = "d/a" })
	w.b.put("d/a", "A", 3)
	w.b.put("d/b", "B", 3)
	w.b.listsAs(otherWords["another ETag"])
	w.names("/d")
	w.resolve("/d/a")
	w.later(24 * time.Hour)
	w.b.down(errDown)
	if n, err := w.tree.Resolve(t.Context(), "/d/b"); !errors.Is(err, errDown) {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := w.tree.Resolve(t.Context(), "/d/a"); err != nil || n.Object.ETag != "A" {
		t.Errorf("%+v, %v", n, err)
	}
	w.settle()
}

func TestAChangeIsNoDisagreement(t *testing.T) {
	// The bucket changes while it is compared, once or with each question. Its listings are believed as
	// before.
	for name, changes := range map[string]func(question int) bool{
		"before the first":  func(n int) bool { return n == 0 },
		"before the second": func(n int) bool { return n == 1 },
		"before the third":  func(n int) bool { return n == 2 },
		"before the fourth": func(n int) bool { return n == 3 },
		"before the last":   func(n int) bool { return n == 4 },
		"with each":         func(int) bool { return true },
		"with each second":  func(n int) bool { return n%2 == 1 },
		"with each third":   func(n int) bool { return n%3 == 1 },
		"not at all":        func(int) bool { return false },
	} {
		b := newBucket()
		etags := [2]string{"A", "B"}
		b.put("d/x", "A", 3)
		asked, at := 0, 0
		change := func() {
			if changes(asked) {
				at = 1 - at
				b.put("d/x", etags[at], 3)
			}
			asked++
		}
		b.onHead = func(string) { change() }
		b.onPage = func(string, int) { change() }
		if says, err := Compare(t.Context(), b, "d/x", nil, nil); says != "" || err != nil {
			t.Errorf("%s: %q, %v", name, says, err)
		}
	}
	b := newBucket()
	b.put("d/x", "A", 3)
	for name, says := range otherWords {
		b.listsAs(says)
		if how, err := Compare(t.Context(), b, "d/x", nil, nil); how == "" || err != nil {
			t.Errorf("%s: %q, %v", name, how, err)
		}
	}
	if how, err := Compare(t.Context(), b, "d/y", nil, nil); how != "" || err != nil {
		t.Errorf("of what is not there: %q, %v", how, err)
	}
}

func TestAReaderOfWhatChangedHasNothingTakenForWrong(t *testing.T) {
	// Files change after they were listed and before they are read. Their readers are told so, and listings
	// are believed as before.
	w := open(t, func(o *Options) {
		o.Events.Differs = func(link, says string) { t.Error(link, says) }
	})
	for i := range 5 {
		key := fmt.Sprint("d/", i)
		w.b.put(key, "old", 3)
		w.names("/d")
		w.b.put(key, "new", 4)
		if _, err := w.read("/" + key); !errors.Is(err, hearth.ErrStale) {
			t.Error(err)
		}
		if n, err := w.read("/" + key); err != nil || n.Object.ETag != "new" {
			t.Errorf("%+v, %v", n, err)
		}
		w.later(24 * time.Hour)
	}
	heads, _ := w.b.asked()
	w.names("/d")
	if n, err := w.read("/d/3"); err != nil {
		t.Errorf("%+v, %v", n, err)
	}
	if again, _ := w.b.asked(); again != heads {
		t.Errorf("%d HEADs", again-heads)
	}
}

func TestListingsInNoOrderThatAreWrong(t *testing.T) {
	// Pages come in no order, so only the end of a listing tells what is gone. No name is removed that is
	// there, whether listings name other versions or no sizes. Each file is what HEADs say.
	for name, says := range map[string]func(*hearth.Object){"ETags": otherWords["another ETag"], "sizes": func(o *hearth.Object) { o.Size = 0 }} {
		w := open(t, func(o *Options) {
			if name == "ETags" {
				o.Links[0].Differs = "d/0"
			}
		})
		w.b.pageSize, w.b.shuffled = 3, true
		var want []string
		for i := range 9 {
			want = append(want, fmt.Sprint(i))
			w.b.put("d/"+want[i], "E", 3)
		}
		w.b.listsAs(says)
		for round := range 4 {
			equal(t, w.names("/d"), want)
			for _, k := range want {
				if n, err := w.read("/d/" + k); err != nil {
					t.Errorf("%s: round %d: %+v, %v", name, round, n, err)
				}
			}
			equal(t, w.names("/d"), want)
			w.later(24 * time.Hour)
		}
	}
}

func TestLookUpsDoNotListForWhatHeadsTell(t *testing.T) {
	// What HEADs told expires. While the directory's listing has not expired, no look-up lists it again.
	w := open(t, func(o *Options) { o.Links[0].Differs = "d/a" })
	w.b.put("d/a", "A", 3)
	w.b.onPage = func(string, int) { w.clock.add(10 * time.Second) } // it is believed for 200 s
	w.b.listsAs(otherWords["another ETag"])
	w.names("/d")
	w.resolve("/d/a")
	w.settle()
	_, before := w.b.asked()
	for range 4 {
		w.clock.add(8 * time.Second)
		w.resolve("/d/a")
	}
	w.clock.add(23 * time.Second) // 55 of the minute
	for range 10 {
		w.resolve("/d/a")
		w.settle()
	}
	if _, lists := w.b.asked(); lists != before {
		t.Errorf("%d listings", lists-before)
	}
}

func TestAFileThatIsListedAsEmpty(t *testing.T) {
	// A listing tells no sizes, or zeros. Such a file is asked for once, at a look-up, and not while a
	// directory is read. An empty file may have any ETag. A file whose ETag is the MD5 of nothing is empty.
	const nothing = "d41d8cd98f00b204e9800998ecf8427e"
	w := open(t, nil)
	w.b.put("d/full", "A", 3)
	w.b.put("d/kms", "K", 0)
	w.b.put("d/void", nothing, 0)
	w.b.put("d/t/", "M", 5)
	w.b.put("d/t/x", "X", 5)
	w.b.put("d/k/", "K", 0)
	w.b.put("d/k/x", "X", 5)
	w.b.listsAs(func(o *hearth.Object) { o.Size = 0 })
	unsure := map[string]bool{}
	w.resolve("/d")
	before, _ := w.b.asked()
	for n := range w.nodes("/d") {
		if unsure[n.Name] = n.Unsure; !n.Dir && n.Unsure && n.TTL != 0 {
			t.Errorf("%+v", n)
		}
	}
	if heads, _ := w.b.asked(); heads != before || !unsure["full"] || !unsure["kms"] || unsure["void"] || unsure["t"] {
		t.Errorf("%d HEADs, unsure %v", heads, unsure)
	}
	for name, size := range map[string]int64{"full": 3, "kms": 0, "void": 0} {
		if n := w.resolve("/d/" + name); n.Object.Size != size || n.TTL == 0 || n.Unsure {
			t.Errorf("%s: %+v", name, n)
		}
	}
	if heads, _ := w.b.asked(); heads != before+2 {
		t.Errorf("%d HEADs", heads)
	}
	w.later(24 * time.Hour)
	w.names("/d")
	for name, size := range map[string]int64{"full": 3, "kms": 0, "void": 0} {
		if n := w.resolve("/d/" + name); n.Object.Size != size {
			t.Errorf("%s: %+v", name, n)
		}
	}
	if heads, _ := w.b.asked(); heads != before+2 {
		t.Errorf("%d HEADs: the ETag is as it was", heads)
	}
	equal(t, w.names("/d/t"), []string{"%_", "x"})
	equal(t, w.names("/d/k"), []string{"x"})
	w.b.put("d/full", "B", 4)
	w.later(24 * time.Hour)
	w.names("/d")
	if n := w.resolve("/d/full"); n.Object.Size != 4 || n.Object.ETag != "B" {
		t.Errorf("it changed: %+v", n)
	}
	if hidden, err := w.tree.Keys(t.Context(), "/", "d/", "", func(*hearth.Object) bool { return true }); hidden != 0 || err != nil {
		t.Errorf("all is known: %d, %v", hidden, err)
	}
}

func TestKeysAreNotToldOfAnOriginThatListsOtherVersions(t *testing.T) {
	// A front end that lists keys for S3 clients must ask the origin: its listings have other ETags than
	// names here.
	w := open(t, func(o *Options) { o.Links[0].Differs = "d/a" })
	w.b.put("d/a", "A", 3)
	w.b.put("d/e/x", "A", 3)
	w.b.listsAs(otherWords["another ETag"])
	for _, c := range []struct {
		prefix string
		hidden int64
	}{{"d/", 1}, {"", 0}} {
		w.names("/" + c.prefix)
		w.resolve("/d/a")
		hidden, err := w.tree.Keys(t.Context(), "/", c.prefix, "", func(*hearth.Object) bool { return true })
		if hidden != c.hidden || err != nil {
			t.Errorf("%q: %d, %v", c.prefix, hidden, err)
		}
	}
}

// insists is an owner that answers from its listing, whatever it is asked.
type insists struct{ fakeOwner }

func (f insists) Find(_ context.Context, dir hearth.Directory, segment string, _ time.Duration) (hearth.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, ok := f.objects[dir.Prefix+segment]
	if !ok {
		return hearth.Found{Dir: segment == "d"}, nil
	}
	if f.says != nil {
		f.says(&o)
		o.Version = hearth.VersionOf("test", o.Key, o.ETag, o.Size)
	}
	return hearth.Found{Object: &o}, nil
}

func TestAnOwnerThatInsistsOnWhatIsGone(t *testing.T) {
	// A file was found gone, and its directory's owner says that it is as it was: the origin is asked. Once
	// the origin shows that its listings name other versions, no other node is asked for a version.
	w := open(t, func(o *Options) { o.Links[0].Origin = insists{fakeOwner{o.Links[0].Origin.(*bucket)}} })
	w.b.put("d/x", "A", 3)
	w.b.put("d/y", "B", 3)
	w.b.listsAs(otherWords["another ETag"])
	w.names("/d")
	if _, err := w.read("/d/x"); !errors.Is(err, hearth.ErrStale) {
		t.Error(err)
	}
	for range 3 {
		for _, name := range []string{"/d/x", "/d/y"} {
			if n, err := w.read(name); err != nil {
				t.Errorf("%+v, %v", n, err)
			}
		}
		w.later(24 * time.Hour)
		w.names("/d")
	}
}

func TestWhoIsAskedByAnotherNodeAsksByHead(t *testing.T) {
	// A directory's owner knows the names from a listing that names other versions. Of a file it tells what
	// a HEAD says.
	w := open(t, func(o *Options) { o.Links[0].Differs = "d/x" })
	w.b.put("d/x", "A", 3)
	w.b.listsAs(otherWords["another ETag"])
	w.names("/d")
	d := hearth.Directory{ID: place{link: w.tree.links.Load().named("/"), path: "d/"}.hash(), Link: "/", Identity: "test", Prefix: "d/"}
	f, err := w.tree.Find(t.Context(), d, "x", time.Minute)
	if err != nil || f.Object == nil || f.Object.ETag != "A" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestKernelsForgetWhatNobodyCanRead(t *testing.T) {
	// A reader finds that listings name other versions. Mounts are told of all names in memory that only
	// listings told of, so that the next readers look them up.
	w := open(t, nil)
	for i := range 20 {
		w.b.put(fmt.Sprintf("d%d/x", i%4), "A", 3)
		w.b.put(fmt.Sprintf("d%d/%02d", i%4, i), "A", 3)
	}
	w.b.listsAs(otherWords["another ETag"])
	old := map[uint64]bool{}
	for i := range 4 {
		for n := range w.nodes(fmt.Sprint("/d", i)) {
			old[n.ID] = true
		}
	}
	var mu sync.Mutex
	told := map[uint64]bool{}
	defer w.tree.Subscribe(func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		told[c.Old] = true
	})()
	if _, err := w.read("/d2/x"); !errors.Is(err, hearth.ErrStale) {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for id := range old {
		if !told[id] {
			t.Errorf("nobody was told that node %d is no version", id)
		}
	}
}
