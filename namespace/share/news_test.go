package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/peer/wire"
)

// changes are what a node's tree tells its mounts.
func (x *node) changes() <-chan namespace.Change {
	all := make(chan namespace.Change, 1000)
	x.r.Cleanup(x.tree.Subscribe(func(c namespace.Change) { all <- c }))
	return all
}

// shows waits until the node's tree, which is told of changes, has a path mean something.
func (x *node) shows(changes <-chan namespace.Change, path, want string) {
	x.r.Helper()
	late := time.After(patience)
	for x.resolve(path) != want {
		select {
		case <-changes:
		case <-late:
			x.r.Fatalf("node %d: %s is %q still, not %q: %+v", x.number, path, x.resolve(path), want, x.r.told())
		}
	}
}

// known has all nodes list the root, long before what comes then, and hear each other from now on.
func (r *rig) known(owner int) (changes []<-chan namespace.Change) {
	r.news.Store(true)
	for _, x := range r.nodes {
		x.owns(owner)
	}
	for _, x := range r.nodes {
		x.list("/")
		changes = append(changes, x.changes())
	}
	r.past.Add(int64(10 * time.Second))
	return changes
}

func TestAllHearOfAVersionThatOneFoundGone(t *testing.T) {
	// One of five nodes finds that a version is gone: the others have the new one long
	// before their time is over, and the bucket was asked once.
	r := newRing(t, 5)
	r.run()
	old := r.b.put("f", "A")
	r.b.put("g", "A")
	changes := r.known(0)
	r.b.put("f", "B")
	heads, lists := r.b.requests()
	r.nodes[3].tree.Forget(&old)
	for i, x := range r.nodes {
		x.shows(changes[i], "f", "B")
	}
	if h, l := r.b.requests(); h-heads+l-lists != 1 {
		t.Errorf("%d HEADs and %d LISTs", h-heads, l-lists)
	}
	for _, x := range r.nodes[1:] {
		if s := x.names.Stats(); s.NewsTold != 0 {
			t.Errorf("node %d told what it was told: %+v", x.number, s)
		}
	}
}

func TestAllHearOfAListing(t *testing.T) {
	// A node that owns nothing lists a directory anew, for a check. All nodes see a file that came, one
	// that went, and one that was replaced. Each directory is listed at most once more by its owner,
	// however many names changed.
	for _, more := range []int{0, 200} {
		r := newRing(t, 4)
		r.b.put("changed", "A")
		r.b.put("gone", "A")
		changes := r.known(0)
		for _, x := range r.nodes {
			if got := x.resolve("come"); got != "" {
				t.Fatalf("%q", got)
			}
		}
		r.b.put("come", "A")
		r.b.put("changed", "B")
		r.b.remove("gone")
		for i := range more {
			r.b.put(fmt.Sprintf("more-%d", i), "A")
		}
		heads, lists := r.b.requests()
		x := r.nodes[3]
		root, err := x.tree.Root(t.Context(), "/")
		if err == nil {
			err = x.tree.Refresh(t.Context(), root.ID, x.tree.Now())
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range r.nodes {
			x.shows(changes[i], "come", "A")
			x.shows(changes[i], "changed", "B")
			x.shows(changes[i], "gone", "")
			if n := len(x.list("/")); n != 2+more {
				t.Errorf("node %d has %d names", x.number, n)
			}
		}
		if h, l := r.b.requests(); l-lists > 2+3 || h-heads > 3 {
			t.Errorf("%d HEADs and %d LISTs with %d more names", h-heads, l-lists, more)
		}
	}
}

func TestAllHearOfAWriteOfWhatTheWriterNeverSaw(t *testing.T) {
	// A node that has looked at nothing writes a file and removes another, each by itself or many at a
	// time. Every node that knows them sees that long before their time is over.
	written := func(x *node, keys []string) {
		for _, key := range keys {
			x.tree.Written(x.r.Context(), "/", key)
		}
	}
	together := func(x *node, keys []string) {
		writes := x.tree.Writes(namespace.WritesOptions{})
		defer writes.Close()
		writes.Ended(namespace.Write{Bucket: "/", Keys: keys}, namespace.Done)
	}
	for _, write := range []func(*node, []string){written, together} {
		r := newRing(t, 3)
		r.b.put("d/f", "A")
		r.b.put("d/g", "A")
		changes := r.known(0)
		for _, x := range r.nodes[:2] {
			if x.resolve("d/f") != "A" || x.resolve("d/g") != "A" {
				t.Fatal("the files are not there")
			}
		}
		r.past.Add(int64(10 * time.Second))
		r.b.put("d/f", "B")
		r.b.remove("d/g")
		write(r.nodes[2], []string{"d/f", "d/g"})
		for i, x := range r.nodes[:2] {
			x.shows(changes[i], "d/f", "B")
			x.shows(changes[i], "d/g", "")
		}
	}
}

// apart has node 0 own the root, and node 3 all else.
func (r *rig) apart() (root [16]byte) {
	root = record.DirectoryHash("/", "\x00"+identity, "")
	owner := func(dir [16]byte) int {
		if dir == root {
			return 0
		}
		return 3
	}
	for _, x := range r.nodes {
		x.owner.Store(&owner)
	}
	return root
}

func TestADirectoryIsBackForWhoHeardThatItIsGone(t *testing.T) {
	// The only name of a directory is removed through one node and written again through another. The
	// second has heard of the name, and not yet that the directory is gone with it: for it the directory
	// was never away. The others, which have heard that, see the directory again all the same.
	r := newRing(t, 4)
	r.b.put("d/f", "A")
	changes := r.known(0)
	r.apart()
	for _, x := range r.nodes {
		if x.resolve("d/f") != "A" {
			t.Fatal("the file is not there")
		}
	}
	r.nodes[0].between(func(to int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
		if to == 1 && number == CallNews {
			return nil, wire.ErrDown
		}
		return do()
	})
	r.past.Add(int64(10 * time.Second))
	r.b.remove("d/f")
	r.nodes[2].tree.Written(t.Context(), "/", "d/f")
	for _, i := range []int{0, 2, 3} {
		r.nodes[i].shows(changes[i], "d", "")
	}
	r.nodes[1].shows(changes[1], "d/f", "")
	if got := r.nodes[1].resolve("d"); got != "dir" {
		t.Fatalf("the writer knows that the directory is gone: %q", got)
	}
	r.past.Add(int64(10 * time.Second))
	r.b.put("d/f", "B")
	_, lists := r.b.requests()
	r.nodes[1].tree.Written(t.Context(), "/", "d/f")
	for i, x := range r.nodes {
		x.shows(changes[i], "d/f", "B")
	}
	if _, l := r.b.requests(); l-lists > 4 { // the writer's and the owner's question for the directory, and listings of it
		t.Errorf("%d LISTs", l-lists)
	}
}

// resolvesAlone has the node look a path up while no other node answers it, so that it asks the bucket.
func (x *node) resolvesAlone(path, want string) {
	x.r.Helper()
	x.between(func(int, uint16, func() (*hearth.View, error)) (*hearth.View, error) { return nil, wire.ErrDown })
	if got := x.resolve(path); got != want {
		x.r.Fatalf("node %d alone: %s is %q, not %q", x.number, path, got, want)
	}
	x.between(func(_ int, _ uint16, do func() (*hearth.View, error)) (*hearth.View, error) { return do() })
}

func TestAnOwnerPassesOnWhatIsNoNewsToIt(t *testing.T) {
	// A node asked the bucket for a name by itself, while the directory's owner did not answer. Another
	// node writes the name. The owner never heard of it, or has found it by itself before the news comes.
	// It passes the news on to the first node all the same.
	for _, knows := range []bool{false, true} {
		r := newRing(t, 3)
		r.b.put("d/f", "A")
		changes := r.known(0)
		x := r.nodes[1]
		x.resolvesAlone("d/f", "A")
		r.past.Add(int64(10 * time.Second))
		r.b.put("d/f", "B")
		r.nodes[2].tree.Written(t.Context(), "/", "d/f")
		if owner := r.nodes[0]; knows && owner.list("/d")["f"] != "B" {
			t.Fatal("the owner does not find it")
		}
		x.shows(changes[1], "d/f", "B")
	}
}

func TestAnOwnerPassesOnWhatAnEarlierListingFound(t *testing.T) {
	// The owner's listing of a directory began before another node asked the bucket for a name in it
	// by itself, and ends after a third one wrote that name. What the listing told is older than what
	// the second one believes, and the writer's news is none to the owner: the second one hears of
	// the write all the same.
	r := newRing(t, 3)
	r.b.put("d/f", "A")
	changes := r.known(0)
	began, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.b.listed = func(q hearth.Listing) {
		if q.Prefix == "d/" && !q.Recursive {
			once.Do(func() { close(began); <-release })
		}
	}
	listed := make(chan map[string]string)
	go func() { listed <- r.nodes[0].list("/d") }()
	<-began
	r.past.Add(int64(10 * time.Second))
	x := r.nodes[1]
	x.resolvesAlone("d/f", "A")
	r.past.Add(int64(10 * time.Second))
	r.b.put("d/f", "B")
	close(release)
	if got := (<-listed)["f"]; got != "B" {
		t.Fatalf("the owner lists %q", got)
	}
	r.nodes[2].tree.Written(t.Context(), "/", "d/f")
	x.shows(changes[1], "d/f", "B")
}

func TestNewsOfADirectoryThatWasNeverListed(t *testing.T) {
	// A node asked for single names of a directory, one of which was there and one of which was not.
	// It hears that the directory changed: it believes neither answer any more.
	r := newRing(t, 2)
	r.b.put("d/came", "A")
	r.b.put("d/went", "A")
	changes := r.known(0)
	r.b.remove("d/came")
	var listings atomic.Int64
	r.b.listed = func(q hearth.Listing) {
		if q.Prefix == "d/" && q.Limit == 0 {
			listings.Add(1)
		}
	}
	x := r.nodes[1]
	for _, name := range []string{"d/came", "d/went"} {
		x.tree.Written(t.Context(), "/", name) // which lists nothing
	}
	if n := listings.Load(); n != 0 {
		t.Fatalf("the directory was listed %d times", n)
	}
	r.past.Add(int64(10 * time.Second))
	r.b.put("d/came", "B")
	r.b.remove("d/went")
	x.tree.Heard(t.Context(), x.find("d/"), "", 0)
	if came, went := x.resolve("d/came"), x.resolve("d/went"); came != "B" || went != "" {
		t.Errorf("%q came, %q went", came, went)
	}
	told := map[string]bool{}
	for len(changes[1]) > 0 {
		told[(<-changes[1]).Name] = true
	}
	if !told["came"] || !told["went"] {
		t.Errorf("mounts heard of %v", told)
	}
}

func TestAWriterSeesWhatItsOwnerHasNotHeardOf(t *testing.T) {
	// A directory's owner remembers that a name is not there. Another node, which does not know the name,
	// or not even the directory, writes it. The writer sees it at once, though its news is lost.
	for _, knows := range []bool{true, false} {
		r := newRing(t, 2)
		r.b.put("d/e/g", "A")
		r.known(0)
		if got := r.nodes[0].resolve("d/e/f"); got != "" {
			t.Fatal(got)
		}
		x := r.nodes[1]
		x.between(func(_ int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
			if number == CallNews {
				return nil, wire.ErrDown
			}
			return do()
		})
		if knows && x.resolve("d/e") != "dir" {
			t.Fatal("there is no directory")
		}
		r.b.put("d/e/f", "B")
		x.tree.Written(t.Context(), "/", "d/e/f")
		if got := x.resolve("d/e/f"); got != "B" {
			t.Errorf("the writer has %q", got)
		}
	}
}

func TestAWriterObjectsThatItsDirectoryIsGone(t *testing.T) {
	// The only name below two directories is removed through one node and written again through another,
	// which hears of the removal only then. The writer keeps what it has written. The others, which have
	// heard that both directories are gone, see them again.
	r := newRing(t, 4)
	r.run()
	r.b.put("d/e/f", "A")
	changes := r.known(0)
	root, inside := r.apart(), record.DirectoryHash("/", "\x00"+identity, "d/")
	for _, x := range r.nodes {
		if x.list("d"); x.resolve("d/e/f") != "A" { // e is known by a listing alone
			t.Fatal("the file is not there")
		}
	}
	var hears atomic.Bool // whether the writer hears news of the others
	for _, i := range []int{0, 3} {
		r.nodes[i].between(func(to int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
			if to == 1 && number == CallNews && !hears.Load() {
				return nil, wire.ErrDown
			}
			return do()
		})
	}
	r.past.Add(int64(10 * time.Second))
	r.b.remove("d/e/f")
	r.nodes[2].tree.Written(t.Context(), "/", "d/e/f")
	for _, i := range []int{0, 2, 3} {
		r.nodes[i].shows(changes[i], "d", "")
	}
	r.nodes[3].shows(changes[3], "d/e", "")
	r.past.Add(int64(10 * time.Second))
	r.b.put("d/e/f", "B")
	x := r.nodes[1]
	x.tree.Written(t.Context(), "/", "d/e/f")
	hears.Store(true)
	x.tree.Heard(t.Context(), hearth.Directory{ID: root, Link: "/"}, "d", 10*time.Second)
	x.tree.Heard(t.Context(), hearth.Directory{ID: inside, Link: "/", Prefix: "d/"}, "e", 10*time.Second)
	if got := x.resolve("d/e/f"); got != "B" {
		t.Errorf("the writer has %q", got)
	}
	for i, x := range r.nodes {
		x.shows(changes[i], "d/e/f", "B")
	}
}

func TestAWriteBehindLateNewsIsHeard(t *testing.T) {
	// The news of a removal reaches a node late: it asks again, and finds nothing, just before the name is written
	// elsewhere. It hears of the write all the same, as its answer is older. So is that of the owner, whom it asked.
	r := newRing(t, 3)
	r.run()
	r.b.put("d/e/f", "A")
	changes := r.known(0)
	for _, x := range r.nodes {
		if x.resolve("d/e/f") != "A" {
			t.Fatal("the file is not there")
		}
	}
	late := make(chan struct{})
	r.nodes[0].between(func(to int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
		if to == 2 && number == CallNews {
			<-late
		}
		return do()
	})
	r.past.Add(int64(10 * time.Second))
	r.b.remove("d/e/f")
	r.nodes[2].tree.Written(t.Context(), "/", "d/e/f")
	for i, x := range r.nodes {
		if i != 1 {
			x.shows(changes[i], "d", "")
		}
	}
	r.past.Add(int64(10 * time.Second))
	close(late)
	names := r.nodes[2].names
	if !hearthtest.Eventually(t.Context(), patience, func() bool {
		names.gossip.mu.Lock()
		defer names.gossip.mu.Unlock()
		return names.stats.newsAsked.Load() > 0 && len(names.gossip.heard) == 0
	}) {
		t.Fatalf("no news was heard: %+v", names.Stats())
	}
	r.b.put("d/e/f", "B")
	r.nodes[1].tree.Written(t.Context(), "/", "d/e/f")
	for i, x := range r.nodes {
		x.shows(changes[i], "d/e/f", "B")
	}
}

func TestARemovalIsHeardThoughTheOwnersListingIsOld(t *testing.T) {
	// An owner lists a directory, another node copies a name of it in the same millisecond, and the owner removes the file. What it
	// says of that then is as old as its listing, which may have missed a directory of that name. So it is asked again, and the
	// name is gone for the other node, too, long before its time is over.
	r := newRing(t, 2)
	r.b.put("d/f", "A")
	r.b.put("d/g", "A")
	r.known(0)
	owner, other := r.nodes[0], r.nodes[1]
	r.news.Store(false) // is told by hand
	owner.list("d")
	r.past.Add(int64(400 * time.Microsecond))
	if got := other.resolve("d/f"); got != "A" {
		t.Fatalf("the file is %q", got)
	}
	r.past.Add(int64(300*time.Millisecond - 400*time.Microsecond))
	r.b.remove("d/f")
	owner.tree.Wrote(t.Context(), "/", "d/f", nil, 0)
	r.past.Add(int64(100 * time.Millisecond))
	dir := hearth.Directory{ID: record.DirectoryHash("/", "\x00"+identity, "d/"), Link: "/", Prefix: "d/"}
	other.tree.Heard(t.Context(), dir, "f", 100*time.Millisecond)
	if got := other.resolve("d/f"); got != "" {
		t.Errorf("the removed file is %q", got)
	}
}

func TestNewsOfWhatNobodyKnows(t *testing.T) {
	// Some news causes no question to anybody: of directories that a node never saw, of links that it does
	// not have, and of names as fresh as its own.
	r := newRing(t, 2)
	r.b.put("d/f", "A")
	r.known(0)
	x := r.nodes[1]
	heads, lists := r.b.requests()
	finds := x.names.Stats().Finds
	root := hearth.Directory{Link: "/"}
	for _, dir := range []hearth.Directory{{ID: [16]byte{1}, Link: "/", Prefix: "d/"}, {ID: [16]byte{2}, Link: "other"}, root} {
		x.tree.Heard(t.Context(), dir, "f", time.Second)
		x.tree.Heard(t.Context(), dir, "", time.Second)
	}
	root.ID = record.DirectoryHash("/", "\x00"+identity, "")
	x.tree.Heard(t.Context(), root, "d", 11*time.Second)
	x.tree.Heard(t.Context(), root, "", 11*time.Second)
	if h, l := r.b.requests(); h != heads || l != lists || x.names.Stats().Finds != finds {
		t.Errorf("%d HEADs and %d LISTs, %+v", h-heads, l-lists, x.names.Stats())
	}
	x.tree.Heard(t.Context(), root, "d", 9*time.Second)
	if x.names.Stats().Finds != finds+1 {
		t.Error("the owner was not asked for a name that is older than the news")
	}
}

func TestNewsWhoseOwnerDoesNotAnswer(t *testing.T) {
	// A node hears news of names while the directory's owner does not answer. It does not ask the bucket for
	// that, but believes neither that the one is as it was nor that there is no other, and its kernel is told:
	// who looks them up has the bucket asked. A node that hears news after its tree was closed asks nobody.
	r := newRing(t, 2)
	r.b.put("f", "A")
	changes := r.known(0)
	x := r.nodes[1]
	if got := x.resolve("g"); got != "" {
		t.Fatal(got)
	}
	r.past.Add(int64(10 * time.Second))
	x.between(func(int, uint16, func() (*hearth.View, error)) (*hearth.View, error) { return nil, wire.ErrDown })
	r.b.put("f", "B")
	r.b.put("g", "B")
	heads, lists := r.b.requests()
	finds := x.names.Stats().Finds
	root := hearth.Directory{ID: record.DirectoryHash("/", "\x00"+identity, ""), Link: "/"}
	for _, name := range []string{"f", "g"} {
		x.tree.Heard(t.Context(), root, name, time.Second)
		if len(changes[1]) == 0 || (<-changes[1]).Name != name {
			t.Errorf("mounts did not hear of %s", name)
		}
	}
	if h, l := r.b.requests(); h != heads || l != lists || x.names.Stats().Finds != finds+2 {
		t.Errorf("%d HEADs and %d LISTs: %+v", h-heads, l-lists, x.names.Stats())
	}
	if f, g := x.resolve("f"), x.resolve("g"); f != "B" || g != "B" {
		t.Errorf("f is %q, g is %q", f, g)
	}
	finds = x.names.Stats().Finds
	if err := x.tree.Close(); err != nil {
		t.Fatal(err)
	}
	x.tree.Heard(t.Context(), root, "f", 0)
	x.open()
	if s := x.names.Stats(); s.Finds != finds {
		t.Errorf("%+v", s)
	}
}

// quiet reports whether all news was told, but for what a node did not take.
func (r *rig) quiet() bool {
	for _, x := range r.nodes {
		x.names.gossip.mu.Lock()
		waits := x.names.gossip.telling || len(x.names.gossip.heard) > 0
		x.names.gossip.mu.Unlock()
		if waits {
			return false
		}
	}
	return true
}

func TestNewsWhoseOwnerWasJustKilled(t *testing.T) {
	// A directory's owner is killed, as others have yet to hear, and is back soon, with all that it knew. A name that is
	// written meanwhile is seen by a third node at once, and by the owner when it is back. So is one that another node
	// which was away knows.
	r := newRing(t, 3)
	r.b.put("d/f", "A")
	changes := r.known(0)
	for _, x := range r.nodes {
		if x.resolve("d/f") != "A" || x.resolve("d/g") != "" {
			t.Fatal("not the names of the bucket")
		}
	}
	r.past.Add(int64(10 * time.Second))
	for away := range 2 {
		var back atomic.Bool
		var tried atomic.Int64
		for _, x := range r.nodes {
			x.between(func(to int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
				if (to == away || x.number == away) && !back.Load() {
					if to == away && number == CallNews {
						tried.Add(1)
					}
					return nil, wire.ErrDown
				}
				return do()
			})
		}
		etag := fmt.Sprint("B", away)
		r.b.put("d/f", etag)
		r.b.put("d/g", etag)
		r.nodes[2].tree.Written(t.Context(), "/", "d/f")
		r.nodes[2].tree.Written(t.Context(), "/", "d/g")
		r.nodes[1-away].shows(changes[1-away], "d/f", etag)
		r.nodes[1-away].shows(changes[1-away], "d/g", etag)
		if !hearthtest.Eventually(t.Context(), patience, func() bool { return tried.Load() > 0 && r.quiet() }) {
			t.Fatal("the killed node was not told, or others have yet more to tell")
		}
		back.Store(true)
		r.nodes[away].shows(changes[away], "d/f", etag)
		r.nodes[away].shows(changes[away], "d/g", etag)
		r.past.Add(int64(10 * time.Second))
	}
}

func TestNewsThatANodeNeverTakes(t *testing.T) {
	// A node does not take news: it is told again for ten seconds, or as long as it counts among the others. So many
	// nodes and directories are kept, and no more; each that was not told is counted.
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		var gone atomic.Bool
		others := []string{"a"}
		n := New(Options{
			Owner: func([16]byte) (string, bool) { return "me", true },
			Others: func() []string {
				if gone.Load() {
					return nil
				}
				return others
			},
			Call: func(context.Context, string, uint16, *hearth.View) (*hearth.View, error) {
				calls.Add(1)
				return nil, wire.ErrDown
			},
		})
		defer n.Close()
		s := n.Over(nil)
		tell := func(dir byte) {
			s.Changed(hearth.Directory{ID: [16]byte{dir}, Link: "/", Prefix: "d/"}, []string{"f"}, 0)
		}
		tell(1)
		time.Sleep(time.Minute)
		if c, lost := calls.Load(), n.Stats().NewsLost; c != 11 || lost != 1 {
			t.Errorf("told %d times, %d lost", c, lost)
		}
		tell(1)
		time.Sleep(2 * time.Second)
		before := calls.Load()
		gone.Store(true)
		time.Sleep(time.Minute)
		if c, lost := calls.Load()-before, n.Stats().NewsLost; c != 0 || lost != 2 {
			t.Errorf("told %d times when it was gone, %d lost", c, lost)
		}
		gone.Store(false)
		for i := range newsOwed {
			others = append(others, fmt.Sprint(i))
		}
		tell(1)
		time.Sleep(time.Second)
		if lost := n.Stats().NewsLost; lost != 3 {
			t.Errorf("%d lost with a node more than are kept", lost)
		}
		time.Sleep(time.Minute)
		if lost := n.Stats().NewsLost; lost != 3+newsOwed {
			t.Errorf("%d lost in the end", lost)
		}
	})
}

// rumours is a Tree that counts what it hears.
type rumours struct {
	noTree
	mu    sync.Mutex // guards heard
	heard map[string]int
	took  time.Duration
}

func (t *rumours) Heard(_ context.Context, dir hearth.Directory, segment string, _ time.Duration) {
	time.Sleep(t.took) // in a bubble
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard[dir.Prefix+segment]++
}

func (t *rumours) all() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.heard)
}

// said is a node's news of a directory, as bytes.
func said(prefix string, names ...string) []byte {
	x := &news{dir: hearth.Directory{ID: [16]byte{byte(len(prefix)), prefix[0], prefix[len(prefix)-2]}, Link: "/", Prefix: prefix}}
	for _, name := range names {
		x.add(name, time.Now())
	}
	body, _ := appendNews(nil, []*news{x}, time.Now())
	return body
}

func TestAFloodOfNews(t *testing.T) {
	// A node tells the same news for ten seconds, as fast as it can. The directory is asked for at once,
	// and then three times a second; the teller waits for nothing. Another directory is asked for at once all
	// the same.
	synctest.Test(t, func(t *testing.T) {
		tree := &rumours{heard: map[string]int{}, took: 10 * time.Millisecond}
		n := New(Options{Owner: func([16]byte) (string, bool) { return "me", true }})
		defer n.Close()
		n.Serve(tree)
		for i := range 10_000 {
			if _, err := n.hear(t.Context(), said("d/", fmt.Sprint("f", i%20))); err != nil {
				t.Fatal(err)
			}
			if i == 5000 {
				if _, err := n.hear(t.Context(), said("e/", "")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			time.Sleep(time.Millisecond)
			if i == 5010 && tree.all()["e/"] != 1 {
				t.Errorf("another directory is not asked for at once: %v", tree.all())
			}
		}
		time.Sleep(3 * time.Second)
		all := tree.all()
		for name, times := range all {
			if times > 32 {
				t.Errorf("%s was asked for %d times in 10 s", name, times)
			}
		}
		n.gossip.mu.Lock()
		left := len(n.gossip.heard)
		n.gossip.mu.Unlock()
		if s := n.Stats(); len(all) != 21 || s.NewsAsked > 33 || s.NewsHeard != 10_001 || s.NewsLost != 0 || left != 0 {
			t.Errorf("%d names, %+v, %d left", len(all), s, left)
		}
	})
}

func TestNewsOfTooManyDirectories(t *testing.T) {
	// News of more directories than may wait is lost and counted. More names than are told by name mean
	// that the directory changed. What waits is dropped at Close.
	synctest.Test(t, func(t *testing.T) {
		tree := &rumours{heard: map[string]int{}, took: time.Hour}
		n := New(Options{Owner: func([16]byte) (string, bool) { return "me", true }})
		n.Serve(tree)
		for i := range 2 * newsDirs {
			_, err := n.hear(t.Context(), said(fmt.Sprintf("%c%s/", 'a'+i%16, strings.Repeat("x", 1+i/16)), "f"))
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if s := n.Stats(); s.NewsHeard != newsDirs || s.NewsLost != newsDirs || s.NewsAsked != newsAsks {
			t.Errorf("%+v", s)
		}
		for i := range 2 * newsNames {
			if _, err := n.hear(t.Context(), said("ax/", fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		n.gossip.mu.Lock()
		for _, x := range n.gossip.heard {
			if x.dir.Prefix == "ax/" && (!x.all || len(x.names) > 0) {
				t.Errorf("%d names", len(x.names))
			}
		}
		n.gossip.mu.Unlock()
		n.Close()
		if _, err := n.hear(t.Context(), said("d/", "f")); err != nil || n.Stats().NewsHeard != newsDirs+2*newsNames {
			t.Errorf("what is heard behind the end: %v, %+v", err, n.Stats())
		}
	})
}

func TestANodeThatHangsIsNotWaitedFor(t *testing.T) {
	// Of twelve nodes three hang and one fails. The others hear the news once, together with what came in
	// between. Changed does not wait, and Close returns while nodes hang.
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprint(i))
		}
		var mu sync.Mutex
		heard := map[string][]*news{}
		n := New(Options{Others: func() []string { return ids }, Owner: func(dir [16]byte) (string, bool) {
			return "7", dir[0] != 2
		}, Call: func(ctx context.Context, id string, number uint16, body *hearth.View) (*hearth.View, error) {
			switch id {
			case "0", "4", "9":
				<-ctx.Done()
				return nil, context.Cause(ctx)
			case "1":
				return nil, errors.New("no such call")
			}
			list, err := parseNews(body.Bytes(), time.Now())
			if err != nil || number != CallNews {
				t.Errorf("call %d: %v", number, err)
			}
			mu.Lock()
			defer mu.Unlock()
			heard[id] = append(heard[id], list...)
			return nil, nil
		}})
		o := n.Over(newBucket())
		began := time.Now()
		ours, others := hearth.Directory{ID: [16]byte{1}, Link: "/", Prefix: "d/"}, hearth.Directory{ID: [16]byte{2}, Link: "/", Prefix: "e/"}
		o.Changed(ours, []string{"a"}, time.Second)
		o.Changed(ours, []string{"b"}, 0)
		o.Changed(others, []string{"c"}, 0)
		if !time.Now().Equal(began) {
			t.Error("who brings news waited")
		}
		time.Sleep(newsWindow + 3*newsWait)
		synctest.Wait()
		mu.Lock()
		for _, id := range ids {
			hangs := id == "0" || id == "4" || id == "9" || id == "1"
			want := 1
			if id == "7" {
				want = 2 // it owns a directory of which there are news
			}
			if !hangs && len(heard[id]) != want || hangs && len(heard[id]) > 0 {
				t.Errorf("node %s heard %d news", id, len(heard[id]))
			}
			for _, x := range heard[id] {
				if x.dir.Prefix == "d/" && (len(x.names) != 2 || began.Sub(x.names["a"]) != time.Second) {
					t.Errorf("node %s heard %+v", id, x)
				}
			}
		}
		mu.Unlock()
		if s := n.Stats(); s.NewsTold != 9 || s.NewsLost != 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(newsKept + 2*newsWait)
		if s := n.Stats(); s.NewsTold != 9 || s.NewsLost != 4 {
			t.Errorf("%+v", s)
		}
		for i := range 2 * newsDirs {
			o.Changed(hearth.Directory{ID: [16]byte{1, byte(i), byte(i >> 8)}, Link: "/", Prefix: "d/"}, []string{"a"}, 0)
		}
		if s := n.Stats(); s.NewsLost != 4+newsDirs {
			t.Errorf("%+v", s)
		}
		time.Sleep(newsWindow + newsWait/2) // nodes hang
		n.Close()
		before := n.Stats()
		o.Changed(ours, []string{"a"}, 0)
		time.Sleep(newsWindow + newsWait)
		if s := n.Stats(); s != before {
			t.Errorf("behind the end %+v became %+v", before, s)
		}
	})
}

func TestNewsThatCannotBeRead(t *testing.T) {
	// News is refused if it has another format, or ends early or late. It is refused, too, if it is about
	// no directory, about names with a "/" in them, or about too many names.
	good := said("d/", "f")
	long := &news{dir: hearth.Directory{Prefix: "d/"}, names: map[string]time.Time{}}
	for i := range newsNames + 1 {
		long.names[fmt.Sprint(i)] = time.Now()
	}
	many, _ := appendNews(nil, []*news{long}, time.Now())
	way := &news{names: map[string]time.Time{"a/b": time.Now()}}
	wayward, _ := appendNews(nil, []*news{way}, time.Now())
	none, _ := appendNews(nil, []*news{{}}, time.Now())
	for name, b := range map[string][]byte{"empty": nil, "no directory": {newsFormat}, "format": append([]byte{9}, good[1:]...), "short": good[:len(good)-1],
		"long": append(good[:len(good):len(good)], 0), "many": many, "a way": wayward, "no name": none} {
		if list, err := parseNews(b, time.Now()); err == nil {
			t.Errorf("%s: %+v", name, list[0])
		}
	}
	n := New(Options{})
	if _, err := n.hear(t.Context(), many); err == nil || n.Stats().Refused != 1 {
		t.Errorf("%v, %+v", err, n.Stats())
	}
}

func TestNewsOfManyDirectoriesTakeSeveralCalls(t *testing.T) {
	// What is told in one call is bounded by bytes.
	var list []*news
	now := time.Now()
	for i := range newsDirs {
		x := &news{dir: hearth.Directory{ID: [16]byte{byte(i)}, Prefix: strings.Repeat("d", maxKey-1) + "/"}}
		for j := range newsNames {
			x.add(fmt.Sprintf("%d%s", j, strings.Repeat("n", maxKey-2)), now)
		}
		list = append(list, x)
	}
	calls := 0
	for ; len(list) > 0; calls++ {
		body, many := appendNews(nil, list, now)
		if len(body) > hearth.BlockSize {
			t.Fatalf("%d bytes", len(body))
		}
		back, err := parseNews(body, now)
		if err != nil || len(back) != many {
			t.Fatalf("%d of %d: %v", len(back), many, err)
		}
		list = list[many:]
	}
	if calls < 2 {
		t.Errorf("%d calls", calls)
	}
}

func FuzzNews(f *testing.F) {
	f.Add(said("d/", "f", "g"))
	f.Add(said("d/", ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		now := time.Now()
		list, err := parseNews(b, now)
		if err != nil {
			return
		}
		if len(list) == 0 || len(list) > newsDirs {
			t.Fatalf("%d directories", len(list))
		}
		for _, x := range list {
			if x.none() || len(x.names) > newsNames || x.all && x.names != nil || x.at.After(now) || now.Sub(x.at) > maxAge {
				t.Fatalf("%+v", x)
			}
			for name, at := range x.names {
				if strings.Contains(name, "/") || name == "" || at.After(now) {
					t.Fatalf("%q at %v", name, at)
				}
			}
		}
		for left := list; len(left) > 0; {
			again, many := appendNews(nil, left, now)
			back, err := parseNews(again, now)
			if err != nil || len(back) != many {
				t.Fatalf("%d of %d: %v", len(back), many, err)
			}
			for i, x := range back {
				if x.dir != left[i].dir || x.all != left[i].all || !maps.Equal(x.names, left[i].names) {
					t.Fatalf("%+v, not %+v", x, left[i])
				}
			}
			left = left[many:]
		}
	})
}

// BenchmarkChanged measures how long a tree waits when it has news.
func BenchmarkChanged(b *testing.B) {
	n := New(Options{Owner: func([16]byte) (string, bool) { return "other", false },
		Call: func(context.Context, string, uint16, *hearth.View) (*hearth.View, error) { return nil, nil }})
	defer n.Close()
	o := n.Over(newBucket())
	dir, names := hearth.Directory{Link: "/", Prefix: "imagenet/train/n01440764/"}, []string{"n01440764_00001.JPEG"}
	b.ReportAllocs()
	for b.Loop() {
		o.Changed(dir, names, time.Second)
	}
}
