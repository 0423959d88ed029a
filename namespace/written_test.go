package namespace

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hearthfs/hearth"
)

// filling is an origin in which something happens right after it has listed.
type filling struct {
	*bucket
	listed func(prefix string)
}

func (o *filling) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	err := o.bucket.List(ctx, q, each)
	o.listed(q.Prefix)
	return err
}

// emptied is a world with a known directory whose only name, d/f, has gone since.
func emptied(t *testing.T) (w *world, o *filling, dir Node) {
	o = &filling{listed: func(string) {}}
	w = open(t, func(x *Options) { o.bucket, _ = x.Links[0].Origin.(*bucket); x.Links[0].Origin = o })
	w.b.put("d/f", "1", 3)
	w.names("/")
	w.names("/d")
	dir = w.resolve("/d")
	w.b.remove("d/f")
	w.clock.add(time.Second)
	return w, o, dir
}

func TestADirectoryIsFilledWhileItIsFoundEmpty(t *testing.T) {
	// A listing finds a directory empty, and before it ends a name is written there. The directory stays,
	// and has the name.
	w, o, dir := emptied(t)
	o.listed = func(prefix string) {
		if prefix == "d/" {
			w.clock.add(time.Second)
			w.b.put("d/f", "2", 4)
			w.tree.Written(context.Background(), "/", "d/f")
		}
	}
	if err := w.tree.Refresh(t.Context(), dir.ID, w.tree.Now()); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if n, err := w.tree.File(t.Context(), "/", "d/f"); err != nil || n.Object.ETag != "2" {
		t.Errorf("%v %v", n.Object.ETag, err)
	}
}

// late is an origin whose answers to HEADs can be held back once they are known. It lists no directory as
// a whole.
type late struct {
	*bucket
	answered func(key string) // nil: they come at once
}

func (o *late) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	if q.Limit == 0 {
		return errors.New("not listed")
	}
	return o.bucket.List(ctx, q, each)
}

func (o *late) Head(ctx context.Context, key string) (hearth.Object, error) {
	x, err := o.bucket.Head(ctx, key)
	if o.answered != nil {
		o.answered(key)
	}
	return x, err
}

func TestADirectoryThatIsFoundAgainWhileItIsFoundEmpty(t *testing.T) {
	// A listing finds a directory empty. Before it ends the directory is asked for by itself, and is there
	// again. It stays, though nothing in it is known.
	w, o, dir := emptied(t)
	o.listed = func(prefix string) {
		if prefix == "d/" {
			o.listed = func(string) {}
			w.clock.add(time.Second)
			w.b.put("d/f", "2", 4)
			root, err := w.tree.dirs.get(w.tree, rootID)
			if err != nil {
				t.Error(err)
				return
			}
			defer root.release()
			if !(&inquiry{t: w.tree, d: root, segment: "d"}).ask(context.Background()) {
				t.Error("nobody says whether it is there")
			}
		}
	}
	if err := w.tree.Refresh(t.Context(), dir.ID, w.tree.Now()); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if n, err := w.tree.Resolve(t.Context(), "/d"); err != nil || !n.Dir {
		t.Errorf("%+v %v", n, err)
	}
}

func TestWhatCameBackIsNotSweptAway(t *testing.T) {
	// What is known of a directory that went away is removed in the background. What was found there since
	// stays: the directory is back.
	w := open(t, nil)
	w.b.put("d/old", "1", 3)
	w.resolve("/d/old")
	gone := w.tree.Now()
	w.clock.add(time.Second)
	w.b.put("d/new", "1", 3)
	w.tree.Written(t.Context(), "/", "d/new")
	dir := w.resolve("/d")
	w.settle()
	asked := w.b.requests()
	w.tree.sweep(dir.ID, gone)
	if w.resolve("/d/new"); w.b.requests() != asked {
		t.Error("what was found later is asked for again")
	}
	if w.resolve("/d/old"); w.b.requests() == asked {
		t.Error("what was known before is known still")
	}
}

func TestWhatIsWrittenWhileItIsAskedFor(t *testing.T) {
	// A question and a listing that began before a write, and end after it, leave nothing that is older
	// than the write.
	for _, there := range []bool{false, true} {
		o := &late{}
		w := open(t, func(x *Options) { o.bucket, _ = x.Links[0].Origin.(*bucket); x.Links[0].Origin = o })
		w.b.put("d/z", "1", 3)
		if there {
			w.b.put("d/a", "1", 3)
		}
		asked, release := make(chan struct{}), make(chan struct{})
		held := false
		o.answered = func(key string) {
			if key == "d/a" && !held {
				held = true
				close(asked)
				<-release
			}
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = w.tree.File(context.Background(), "/", "d/a")
		}()
		<-asked
		w.b.put("d/a", "2", 4)
		w.tree.Written(context.Background(), "/", "d/a")
		close(release)
		<-ended
		if n, err := w.tree.File(context.Background(), "/", "d/a"); err != nil || n.Object.ETag != "2" {
			t.Errorf("there before %v: %v %v", there, n.Object.ETag, err)
		}
	}
}

func TestWhatIsWrittenWhileItIsListed(t *testing.T) {
	// Keys are written after a listing has passed them. When it has ended, they are there in their new
	// versions, or gone if they were deleted.
	w := open(t, nil)
	w.b.pageSize = 2
	for _, key := range []string{"d/b", "d/c", "d/x", "d/y", "d/z"} {
		w.b.put(key, "1", 3)
	}
	passed, release := make(chan struct{}), make(chan struct{})
	w.b.onPage = func(_ string, page int) {
		if page == 1 {
			close(passed)
			<-release
		}
	}
	var got []string
	names := func() {
		got = nil
		_, err := w.tree.Keys(context.Background(), "/", "d/", "", func(o *hearth.Object) bool { got = append(got, o.Key+o.ETag); return true })
		if err != nil {
			t.Error(err)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		names()
	}()
	<-passed
	w.b.put("d/a", "2", 4)
	w.b.put("d/b", "2", 4)
	w.b.remove("d/c")
	for _, key := range []string{"d/a", "d/b", "d/c"} {
		w.tree.Written(context.Background(), "/", key)
	}
	close(release)
	<-ended
	if names(); !slices.Equal(got, []string{"d/a2", "d/b2", "d/x1", "d/y1", "d/z1"}) {
		t.Errorf("%q", got)
	}
}

func TestWhatIsWrittenWhenNobodyCanBeAsked(t *testing.T) {
	// A file that was written, and could not be asked for then, is asked for by its next reader, even where
	// names hold for ever.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Immutable} })
	w.b.put("d/a", "1", 3)
	etag := func() string {
		n, err := w.tree.File(context.Background(), "/", "d/a")
		if err != nil {
			return err.Error()
		}
		return n.Object.ETag
	}
	if got := etag(); got != "1" {
		t.Fatal(got)
	}
	w.b.put("d/a", "2", 4)
	w.b.down(errors.New("away"))
	w.tree.Written(context.Background(), "/", "d/a")
	w.b.down(nil)
	if hidden, err := w.tree.Keys(context.Background(), "/", "d/", "", func(*hearth.Object) bool { return true }); hidden != 1 || err != nil {
		t.Errorf("%d keys are not sure, %v", hidden, err)
	}
	if got := etag(); got != "2" {
		t.Errorf("once it is back: %s", got)
	}
}

func TestWhatComesWhileTheOriginIsSlow(t *testing.T) {
	// A name that was believed to be absent, and a directory, are written while the origin takes longer than
	// the write waits. Names hold for ever. The next reader that lists sees them, also where a listing that
	// began before the write ends after it. Until the origin answers, the names from before are told.
	for _, listed := range []bool{false, true} {
		w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Immutable} })
		for _, key := range []string{"d/b", "d/c"} {
			w.b.put(key, "1", 3)
		}
		keys := func(prefix string) (got []string) {
			hidden, err := w.tree.Keys(context.Background(), "/", prefix, "", func(o *hearth.Object) bool { got = append(got, o.Key); return true })
			if err != nil || hidden != 0 {
				t.Errorf("listed %v: %d hidden, %v", listed, hidden, err)
			}
			return got
		}
		ended := make(chan struct{})
		release := make(chan struct{})
		if listed {
			passed := make(chan struct{})
			w.b.pageSize = 1
			w.b.onPage = func(prefix string, page int) {
				if prefix == "d/" && page == 1 {
					close(passed)
					<-release
				}
			}
			go func() {
				defer close(ended)
				_, _ = w.tree.Keys(context.Background(), "/", "d/", "", func(*hearth.Object) bool { return true })
			}()
			<-passed
		} else {
			keys("d/")
			close(ended)
		}
		w.b.put("d/a", "1", 3)
		w.b.put("d/e/f", "1", 3)
		over, cancel := context.WithCancel(context.Background())
		cancel()
		for _, key := range []string{"d/a", "d/e/f"} {
			w.tree.Written(over, "/", key)
		}
		close(release)
		<-ended
		if listed {
			w.b.mu.Lock()
			w.b.onPage = nil
			w.b.mu.Unlock()
		} else {
			w.b.down(errDown)
			if got := keys("d/"); !slices.Equal(got, []string{"d/b", "d/c"}) {
				t.Errorf("while the origin is away: %q", got)
			}
			w.b.down(nil)
			w.tree.Asked("/", nil) // it is back
		}
		if got := keys("d/"); !slices.Equal(got, []string{"d/a", "d/b", "d/c", "d/e/"}) {
			t.Errorf("listed %v: %q", listed, got)
		}
		if got := keys("d/e/"); !slices.Equal(got, []string{"d/e/f"}) {
			t.Errorf("listed %v: %q", listed, got)
		}
	}
}

func TestClassesOfObjectsThatStayTheSame(t *testing.T) {
	// A rule of the bucket moves an object to another storage class, and back: its version stays, and listings
	// and look-ups that ask again tell of the move.
	w := open(t, nil)
	o := w.b.put("d/a", "1", 3)
	w.b.put("d/b", "1", 3)
	for i, class := range []string{"", "GLACIER", "STANDARD_IA", ""} {
		w.b.mu.Lock()
		o.Class = class
		w.b.objects[o.Key] = o
		w.b.mu.Unlock()
		w.clock.add(time.Hour)
		if i%2 == 0 {
			w.tree.Written(context.Background(), "/", "d/a")
		}
		var got []string
		if _, err := w.tree.Keys(context.Background(), "/", "d/", "", func(o *hearth.Object) bool { got = append(got, o.Key+" "+o.Class); return true }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, []string{"d/a " + class, "d/b "}) {
			t.Errorf("of class %q: %q", class, got)
		}
		if n, err := w.tree.File(context.Background(), "/", "d/a"); err != nil || n.Object.Class != class || n.Object.Version != o.Version {
			t.Errorf("of class %q: %+v, %v", class, n.Object, err)
		}
	}
}

func TestWhatAWriterWasToldIsNotAskedFor(t *testing.T) {
	// A front end has written, replaced and removed a name, and knows the origin's answers. The tree has them at once, with
	// no request where the directory is known, and each version has an id of its own.
	w := open(t, nil)
	w.b.put("d/other", "1", 3)
	w.names("/d")
	before := w.b.requests()
	var ids []uint64
	for _, etag := range []string{"A", "B"} {
		w.clock.add(time.Second)
		o := w.b.put("d/new", etag, 5)
		w.tree.Wrote(t.Context(), "/", "d/new", &o, 0)
		n := w.resolve("/d/new")
		if n.Object.ETag != etag || slices.Contains(ids, n.ID) {
			t.Errorf("%+v after %v", n, ids)
		}
		ids = append(ids, n.ID)
	}
	w.b.remove("d/new")
	w.clock.add(time.Second)
	w.tree.Wrote(t.Context(), "/", "d/new", nil, 0)
	if n, err := w.tree.File(t.Context(), "/", "d/new"); err == nil {
		t.Errorf("%+v is there still", n)
	}
	if now := w.b.requests(); now != before {
		t.Errorf("%d requests, not %d", now, before)
	}
}

func TestTheSameBytesAreWrittenAgain(t *testing.T) {
	// A file is emptied that was empty, and written: its version and its node id stay as they are. The id leads to the file when nobody
	// holds it, too, and after a restart. (It was taken for a superseded one, and its record swept: who opened the file got ESTALE.)
	w := open(t, func(o *Options) { o.Dir, o.fs = "names", vfs.NewMem() })
	o := w.b.put("d/f", "A", 0)
	id := w.resolve("/d/f").ID
	w.tree.Wrote(t.Context(), "/", "d/f", &o, id)
	for range 2 {
		if err := w.tree.sweepSuperseded(math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		n, err := w.tree.Open(t.Context(), id)
		if err != nil || n.ID != id || w.resolve("/d/f").ID != id {
			t.Errorf("%+v, %v", n, err)
		}
		w.reopen()
	}
}

func TestTheIDOfARenamedFileIsItsNewNames(t *testing.T) {
	// The new name of a file is told before the old one is gone, or has what somebody else wrote. The file's id stands for the new one.
	for _, rival := range []bool{false, true} {
		w := open(t, nil)
		w.b.put("d/a", "A", 3)
		w.b.put("e/x", "X", 3)
		w.resolve("/e/x")
		id := w.resolve("/d/a").ID
		o := w.b.put("e/b", "A", 3)
		w.tree.Wrote(t.Context(), "/", "e/b", &o, id)
		if rival {
			w.b.put("d/a", "other", 5)
			w.tree.Written(t.Context(), "/", "d/a")
		} else {
			w.b.remove("d/a")
			w.tree.Wrote(t.Context(), "/", "d/a", nil, 0)
		}
		if n, err := w.tree.Node(t.Context(), id); err != nil || n.Object.Key != "e/b" {
			t.Errorf("rival %v: %s, %v", rival, n.Object.Key, err)
		}
		if n, err := w.tree.Resolve(t.Context(), "/d/a"); rival != (err == nil) || rival && (n.ID == id || n.Object.ETag != "other") {
			t.Errorf("rival %v: the old name is %+v, %v", rival, n, err)
		}
	}
}

func TestKeysOfNames(t *testing.T) {
	// Each name in a mount stands for one key, or says why there is none.
	w := open(t, nil)
	w.b.put("d/x", "1", 3)
	dir := w.resolve("/d")
	for name, want := range map[string]string{"new": "d/new", "a b+%": "d/a b+%", "%2E": "d/.", "x%F": "d/x"} {
		if link, key, err := w.tree.KeyOf(dir.ID, name); link != "/" || key != want || err != nil {
			t.Errorf("%q is %q %q, %v", name, link, key, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "\xff", "%41"} {
		if _, key, err := w.tree.KeyOf(dir.ID, name); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%q is %q, %v", name, key, err)
		}
	}
	if _, key, err := w.tree.KeyOf(dir.ID, strings.Repeat("x", 256)); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("a name that is too long is %q, %v", key, err)
	}
	if key, err := KeyIn(strings.Repeat("d", 1000)+"/", strings.Repeat("x", 23)); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("a key that is too long is %q, %v", key, err)
	}
}
