package share

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
)

func TestNoFileOfAColdDirectoryIsListedFor(t *testing.T) {
	// Five nodes look up forty files of a cold directory at once. Its listing does not answer until all
	// look-ups have ended: HEADs answer them, and no name has a LIST of its own.
	r := newRing(t, 5)
	const files = 40
	for f := range files {
		r.b.put(fmt.Sprintf("d/f%02d", f), "e")
	}
	found := r.b.hold("d/")
	r.lookUp(files, func(f int) string { return fmt.Sprintf("d/f%02d", f) }, "e")
	defer close(found)
	// Beside the two pages the directory has a LIST of one key where the root's page is late.
	if heads, lists := r.b.requests(); heads > files+1 || lists > 3 {
		t.Errorf("%d HEADs of %d names, %d LISTs of 2 directories: %+v", heads, files+1, lists, r.told())
	}
}

func TestADirectoryInAColdOneIsListedForOnce(t *testing.T) {
	// Five nodes look up twenty directories at once, and the listing of their parent does not answer until
	// all look-ups have ended. Each has one LIST of one key, since somebody waits for it.
	r := newRing(t, 5)
	const dirs = 20
	for d := range dirs {
		r.b.put(fmt.Sprintf("d%02d/f", d), "e")
	}
	found := r.b.hold("")
	r.lookUp(dirs, func(d int) string { return fmt.Sprintf("d%02d", d) }, "dir")
	defer close(found)
	if heads, lists := r.b.requests(); heads > dirs || lists > dirs+1 {
		t.Errorf("%d HEADs and %d LISTs of %d names and one directory: %+v", heads, lists, dirs, r.told())
	}
}

func TestTheFirstPageTellsOfColdDirectories(t *testing.T) {
	// Five nodes look up twenty directories at once, and the listing is slower than HEADs: its
	// first page answers them all.
	r := newRing(t, 5)
	const dirs = 20
	for d := range dirs {
		r.b.put(fmt.Sprintf("d%02d/f", d), "e")
	}
	var all sync.WaitGroup
	all.Add(dirs)
	r.b.headed = all.Done
	r.b.listed = func(hearth.Listing) { all.Wait() }
	r.lookUp(dirs, func(d int) string { return fmt.Sprintf("d%02d", d) }, "dir")
	if heads, lists := r.b.requests(); heads > dirs || lists > 1+dirs/2 { // on a machine that stands still for half a second some are asked for
		t.Errorf("%d HEADs and %d LISTs of %d names and one directory: %+v", heads, lists, dirs, r.told())
	}
}

func TestAPageThatIsReadAfterHEADKnowsBetter(t *testing.T) {
	// A file is put after HEAD has not found it, and before the listing's page is read. It is found, and
	// stays.
	r := newRing(t, 2)
	r.b.put("other", "e")
	asked := make(chan struct{})
	r.b.answered = sync.OnceFunc(func() { close(asked) })
	r.b.listed = func(q hearth.Listing) {
		if q.Prefix == "" && !q.Recursive {
			<-asked
			r.b.put("late", "e")
		}
	}
	x := r.nodes[0]
	x.owns(0)
	if got := x.resolve("late"); got != "e" {
		t.Errorf("when it was looked up: %q", got)
	}
	if got := x.resolve("late"); got != "e" || len(x.list("/")) != 2 {
		t.Errorf("once it is listed: %q", got)
	}
}

func TestAFileOfAHugeDirectoryWaitsForNoSecondPage(t *testing.T) {
	// A file after a directory's first page is found by HEAD while the listing goes on. That a name is not
	// there is found by a LIST of one key. A directory beside a file is seen with the listing's page.
	r := newRing(t, 2)
	for f := range 2500 {
		r.b.put(fmt.Sprintf("f%05d", f), "e")
	}
	r.b.put("f02400/g", "e")
	found := make(chan struct{})
	pages := 0
	r.b.listed = func(q hearth.Listing) {
		if !q.Recursive {
			if pages++; pages == 2 {
				<-found
			}
		}
	}
	x := r.nodes[0]
	x.owns(0)
	if got := x.resolve("f02300"); got != "e" {
		t.Errorf("a file: %q", got)
	}
	if got := x.resolve("g"); got != "" {
		t.Errorf("a name that is not there: %q", got)
	}
	if got := x.resolve("f02400"); got != "e" {
		t.Errorf("a file beside a directory: %q", got)
	}
	close(found)
	if got := x.list("/"); got["f02400%F"] != "e" || len(got) != 2501 {
		t.Errorf("the file beside a directory is listed as %q, of %d names", got["f02400%F"], len(got))
	}
	if got := x.resolve("f02400"); got != "dir" {
		t.Errorf("a directory beside a file, once it is listed: %q", got)
	}
	if heads, lists := r.b.requests(); heads != 3 || lists != 3+1 {
		t.Errorf("%d HEADs and %d LISTs", heads, lists)
	}
}

func TestAnOwnerIsAskedForANameThatItListedLately(t *testing.T) {
	// A name that was not there is asked for when a node's copy of the directory has expired. The owner's
	// listing is too old to copy, but still believed at the owner. The owner asks the bucket for the name,
	// by a HEAD alone where there is a file.
	r := newRing(t, 2)
	x, owner := r.nodes[0], r.nodes[1]
	x.owns(1)
	owner.owns(1)
	r.b.put("f", "e")
	if n := len(x.list("/")); n != 1 {
		t.Fatal(n)
	}
	r.past.Add(int64(15 * time.Second))
	root, err := owner.tree.Root(t.Context(), "/")
	if err == nil {
		err = owner.tree.Refresh(t.Context(), root.ID, owner.tree.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	r.past.Add(int64(46 * time.Second))
	r.b.put("new", "n")
	x.between(func(_ int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error) {
		if number == CallNames {
			return nil, wire.ErrDown
		}
		return do()
	})
	heads, _ := r.b.requests()
	if got := x.resolve("new"); got != "n" {
		t.Errorf("%q", got)
	}
	now, lists := r.b.requests()
	if now-heads != 1 || lists > 3 {
		t.Errorf("%d HEADs, and %d LISTs in all", now-heads, lists)
	}
	if s := owner.names.Stats(); s.Failed != 0 || s.ToldFinds != 1 {
		t.Errorf("%+v", s)
	}
}

// hold makes the listing of a directory wait until the channel is closed.
func (b *bucket) hold(prefix string) chan struct{} {
	found := make(chan struct{})
	b.listed = func(q hearth.Listing) {
		if q.Prefix == prefix && !q.Recursive {
			<-found
		}
	}
	return found
}

// lookUp makes each node look up n paths at once. want is what each of them is.
func (r *rig) lookUp(n int, path func(i int) string, want string) {
	r.all(func(x *node) {
		var work sync.WaitGroup
		for i := range n {
			work.Go(func() {
				if got := x.resolve(path(i)); got != want {
					r.Errorf("node %d: %s: %q", x.number, path(i), got)
				}
			})
		}
		work.Wait()
	})
}
