package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

func TestKeysAreFoundByteForByte(t *testing.T) {
	// Every key is found byte for byte, whatever its name in the mount. A prefix is the directory of the
	// keys below it.
	w := open(t, nil)
	keys := []string{"a", "a/b", "x//y", "/lead", "//two", "./p", "../etc/passwd", "t/", strings.Repeat("n", 300), "a%2Fb", "%_", "new\nline", "..", "a%F"}
	for _, k := range keys {
		w.b.put(k, "e"+k, 3)
	}
	for _, warm := range []bool{false, true} {
		for _, k := range keys {
			if n, err := w.tree.File(context.Background(), "/", k); err != nil || n.Object.Key != k {
				t.Errorf("warm %v: %q is %q, %v", warm, k, n.Object.Key, err)
			}
		}
		for _, k := range []string{"", "a/", "x/", "x//", "/", "//", "../", "../etc/", "t/"} {
			if n, err := w.tree.Prefix(context.Background(), "/", k); err != nil || !n.Dir || k != "" && n.Object.Key != k {
				t.Errorf("warm %v: prefix %q: %+v, %v", warm, k, n, err)
			}
		}
		for _, k := range []string{"b", "x/y", "a/", "p", "etc/passwd", "lead", "a//b", "%2E%2E/etc/passwd", "%_/lead", "\xff", strings.Repeat("n", 299)} {
			if n, err := w.tree.File(context.Background(), "/", k); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("warm %v: %q, which there is not, is %+v, %v", warm, k, n, err)
			}
		}
		if n, err := w.tree.Below(context.Background(), rootID, func(string, Node) error { return nil }); n != 0 || err != nil {
			t.Errorf("%d hidden, %v", n, err)
		}
	}
}

func TestKeysOfADirectory(t *testing.T) {
	// Keys gives the keys and directories of a prefix byte for byte, in the order of keys, after any of
	// them, whatever mounts call them. Keys that cannot be given are counted.
	w := open(t, nil)
	long := strings.Repeat("n", 300)
	keys := []string{"d/", "d/%_", "d/..", "d/.x", "d//y", "d/a", "d/a-1", "d/a/b", "d/a/c", "d/a%F", "d/a0", "d/" + long, "d/" + long + "/z", "e"}
	for _, k := range keys {
		w.b.put(k, "e"+k, 3)
	}
	want := []string{"d/", "d/%_", "d/..", "d/.x", "d//", "d/a", "d/a%F", "d/a-1", "d/a/", "d/a0", "d/" + long, "d/" + long + "/"}
	for from := range len(want) + 1 {
		behind := ""
		if from > 0 {
			behind = want[from-1][len("d/"):]
		}
		var got []string
		hidden, err := w.tree.Keys(context.Background(), "/", "d/", behind, func(o *hearth.Object) bool {
			got = append(got, o.Key)
			if dir := o.Size == hearth.PrefixSize; dir != (o.Key != "d/" && strings.HasSuffix(o.Key, "/")) || !dir && o.ETag != "e"+o.Key {
				t.Errorf("%q: %+v", o.Key, o)
			}
			return true
		})
		left := want[from:]
		if behind == "" {
			left = want // an empty cursor comes before all names
		}
		if err != nil || hidden != 0 || !slices.Equal(got, left) {
			t.Errorf("behind %q: %q, want %q; %d hidden, %v", behind, got, left, hidden, err)
		}
	}
	w.b.put("d/"+strings.Repeat("k", 1025), "e", 3)
	w.clock.add(time.Hour)
	n := 0
	if hidden, err := w.tree.Keys(context.Background(), "/", "d/", "", func(*hearth.Object) bool { n++; return true }); hidden != 1 || n != len(want) || err != nil {
		t.Errorf("%d hidden of 1, %d keys, %v", hidden, n, err)
	}
	for prefix, known := range map[string]bool{"x/": true, "e/": true, "d/a/b/": true, "\xff/": false} {
		if _, err := w.tree.Keys(context.Background(), "/", prefix, "", func(*hearth.Object) bool { return true }); err == nil || errors.Is(err, fs.ErrNotExist) != known {
			t.Errorf("%q: %v", prefix, err)
		}
	}
	if _, err := w.tree.Keys(context.Background(), "none", "", "", func(*hearth.Object) bool { return true }); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no link: %v", err)
	}
}

func TestKeysThatCannotBeShownAreCountedWhileTheyAreListed(t *testing.T) {
	// A reader of a page, while the listing has not ended, is told how many keys are missing from it.
	w := open(t, nil)
	for i := range 2 * pageNames {
		w.b.put(fmt.Sprintf("d/k%04d", i), "e", 3)
	}
	w.b.put("d/a"+strings.Repeat("k", 1025), "e", 3)
	paged, release := make(chan struct{}), make(chan struct{})
	w.b.onPage = func(prefix string, page int) {
		if prefix == "d/" && page == 2 {
			close(paged)
			<-release
		}
	}
	first := ""
	hidden, err := w.tree.Keys(context.Background(), "/", "d/", "", func(o *hearth.Object) bool { first = o.Key; return false })
	if hidden != 1 || first != "d/k0000" || err != nil {
		t.Errorf("%d hidden of 1 before %s, %v", hidden, first, err)
	}
	<-paged
	close(release)
}

func TestWhatIsWrittenIsKnownAtOnce(t *testing.T) {
	// Once a key was written, the key and the directories that come and go with it are asked for again,
	// whatever the bound. A write into a directory that is known costs one question.
	w := open(t, nil)
	file := func(key string) string {
		n, err := w.tree.File(context.Background(), "/", key)
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		} else if err != nil {
			t.Error(err)
		}
		return n.Object.ETag
	}
	written := func(key string) {
		w.clock.add(time.Millisecond) // which the request takes: what is asked for after it is not as old as what was before
		w.tree.Written(context.Background(), "/", key)
	}
	names := func(prefix string) (all []string) {
		_, err := w.tree.Keys(context.Background(), "/", prefix, "", func(o *hearth.Object) bool { all = append(all, o.Key); return true })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return all
	}
	w.b.put("d/a", "1", 3)
	w.b.put("d/b", "1", 3)
	if file("d/a") != "1" || file("new/deep/x") != "" || !slices.Equal(names(""), []string{"d/"}) || len(names("d/")) != 2 {
		t.Fatal("not as it was put")
	}
	w.b.put("d/a", "2", 4)
	if file("d/a") != "1" {
		t.Fatal("it is not believed, and the test shows nothing")
	}
	heads := w.b.requests()
	written("d/a")
	if asked := w.b.requests() - heads; file("d/a") != "2" || asked > 1 {
		t.Errorf("overwritten: %q after %d questions", file("d/a"), asked)
	}
	w.b.put("new/deep/x", "3", 5)
	written("new/deep/x")
	if got := names(""); file("new/deep/x") != "3" || !slices.Equal(got, []string{"d/", "new/"}) || !slices.Equal(names("new/"), []string{"new/deep/"}) {
		t.Errorf("a new directory: %q, %q", file("new/deep/x"), got)
	}
	w.b.remove("new/deep/x")
	written("new/deep/x")
	if got := names(""); file("new/deep/x") != "" || !slices.Equal(got, []string{"d/"}) {
		t.Errorf("the last of a directory is deleted: %q, %q", file("new/deep/x"), got)
	}
	w.b.put("new/deep/x", "4", 5)
	written("new/deep/x")
	if got := names(""); file("new/deep/x") != "4" || !slices.Equal(got, []string{"d/", "new/"}) || !slices.Equal(names("new/"), []string{"new/deep/"}) {
		t.Errorf("a directory that was gone is there again: %q, %q", file("new/deep/x"), got)
	}
	w.tree.Written(context.Background(), "/", "\xff")
	w.tree.Written(context.Background(), "none", "d/a")
}

func TestAListingTellsATimeMoreFinely(t *testing.T) {
	// A HEAD tells whole seconds. The fraction that a listing tells is kept, and the file stays the same
	// version. A later HEAD does not remove the fraction, unless it tells another second.
	w := open(t, nil)
	w.b.put("d/a", "1", 3)
	at := func() (time.Time, uint64) {
		w.tree.Written(context.Background(), "/", "d/a")
		n, err := w.tree.File(context.Background(), "/", "d/a")
		if err != nil {
			t.Fatal(err)
		}
		return n.Object.ModTime, n.ID
	}
	set := func(mod time.Time) {
		w.b.mu.Lock()
		defer w.b.mu.Unlock()
		o := w.b.objects["d/a"]
		o.ModTime = mod
		w.b.objects["d/a"] = o
	}
	second := time.Unix(1_700_000_000, 0)
	_, first := at()
	for i, c := range []struct{ told, want time.Time }{
		{second, second}, {second.Add(123 * time.Millisecond), second.Add(123 * time.Millisecond)}, {second, second.Add(123 * time.Millisecond)},
		{second.Add(time.Second), second.Add(time.Second)},
	} {
		set(c.told)
		if got, id := at(); !got.Equal(c.want) || id != first {
			t.Errorf("%d: told %v, is %v, want %v; node %d was %d", i, c.told, got, c.want, id, first)
		}
	}
}

func TestAListingTellsTheTimeOfWhatWasFoundMeanwhile(t *testing.T) {
	// A name that is asked for alone while its directory is listed is no older than the listing. It takes
	// the listing's time where that is finer, and only if the version is the same.
	second := time.Unix(1_700_000_000, 0)
	fine := second.Add(123 * time.Millisecond)
	for i, c := range []struct {
		listed time.Time
		exact  bool
		etag   string
		want   time.Time
	}{
		{fine, false, "1", fine}, {second, true, "1", second}, {second, false, "1", second}, {fine, false, "2", second}, {fine.Add(time.Second), false, "1", second},
	} {
		w := open(t, nil)
		set := func(mod time.Time, exact bool, etag string) {
			w.b.put("d/a", etag, 3)
			w.b.mu.Lock()
			defer w.b.mu.Unlock()
			o := w.b.objects["d/a"]
			o.ModTime, o.Exact = mod, exact
			w.b.objects["d/a"] = o
		}
		set(second, false, "1")
		var writes atomic.Bool // which asks for the directory, too
		w.b.onPage = func(prefix string, _ int) {
			if prefix == "d/" && writes.CompareAndSwap(false, true) {
				set(second, false, "1")
				w.tree.Written(context.Background(), "/", "d/a")
				set(c.listed, c.exact, c.etag)
				writes.Store(false)
			}
		}
		var got []hearth.Object
		_, err := w.tree.Keys(context.Background(), "/", "d/", "", func(o *hearth.Object) bool { got = append(got, *o); return true })
		if err != nil || len(got) != 1 || !got[0].ModTime.Equal(c.want) || got[0].Exact != c.exact || got[0].ETag != "1" {
			t.Errorf("%d: %+v, %v", i, got, err)
		}
	}
}

func TestTheTimeOfAnUnchangedFileDoesNotMove(t *testing.T) {
	// An origin lists fractions of seconds, and its HEADs tell whole ones. A file shows one and the same
	// time, wherever it was learned from: found alone, listed, found again, and after a restart.
	second := time.Unix(1_700_000_000, 0)
	w := open(t, func(o *Options) { o.Dir = t.TempDir() })
	put := func(mod time.Time) {
		w.b.put("d/a", "1", 3)
		w.b.mu.Lock()
		defer w.b.mu.Unlock()
		o := w.b.objects["d/a"]
		o.ModTime = mod
		w.b.objects["d/a"] = o
	}
	shown := func(what string) {
		t.Helper()
		if n := w.resolve("/d/a"); !n.ModTime.Equal(second) {
			t.Errorf("%s: at %v", what, n.ModTime)
		}
		for n := range w.nodes("/d") {
			if !n.ModTime.Equal(second) {
				t.Errorf("%s: listed at %v", what, n.ModTime)
			}
		}
	}
	put(second)
	w.tree.Written(t.Context(), "/", "d/a")
	shown("found")
	w.settle()
	put(second.Add(618 * time.Millisecond))
	w.later(24 * time.Hour)
	shown("listed")
	put(second)
	w.tree.Written(t.Context(), "/", "d/a")
	shown("found again")
	w.reopen()
	shown("after a restart")
	now := time.Now()
	if got := Shown("file /data", now); !got.Equal(now) {
		t.Error("a local file's time is shown as", got)
	}
}

func TestTheFileBesideADirectoryIsWaitedFor(t *testing.T) {
	// A cold reader that asks for the file a beside a/ gets it, although the directory's answer comes
	// first.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Strict} })
	for i := range 30 {
		key := fmt.Sprint("a", i)
		w.b.put(key, "e", 3)
		w.b.put(key+"/b", "e", 3)
		listed := make(chan struct{})
		w.b.onPage = func(prefix string, _ int) {
			if prefix == key+"/" {
				close(listed)
			}
		}
		w.b.onHead = func(string) {
			<-listed
			for range 100 {
				runtime.Gosched() // the directory's answer goes first
			}
		}
		if n, err := w.tree.Lookup(context.Background(), rootID, key+"%F"); err != nil || n.Dir || n.Object.Key != key {
			t.Fatalf("%+v, %v", n, err)
		}
	}
}

func TestGoingOnBehindWhatANameWas(t *testing.T) {
	// A reader continues after a file or a directory, although the name is of the other kind by now. Names
	// that sort between a and a/ come once, and are not left out.
	for _, is := range []string{"a", "a/b"} {
		w := open(t, nil)
		for _, key := range []string{is, "a-1", "z"} {
			w.b.put(key, "e", 3)
		}
		behind := func(after string) (names string) {
			err := w.tree.ReadSince(context.Background(), rootID, 0, after, func(n Node) bool { names += n.Name + " "; return true })
			if err != nil {
				t.Error(err)
			}
			return names
		}
		all := behind("")
		want := map[string]string{"a": "a-1 z ", "a/b": "a-1 a z "}[is]
		if got := behind(record.AsFile("a")); got != want {
			t.Errorf("%q of %q: behind the file %q, want %q", is, all, got, want)
		}
		if got := behind("a/"); got != "z " {
			t.Errorf("%q of %q: behind the directory %q", is, all, got)
		}
	}
	long := strings.Repeat("x", record.MaxName-1)
	if record.AsFile(long) != long || record.AsFile("a%F") != "a%F" {
		t.Error("names that stay as they are")
	}
}

func TestGoingOnBehindANodeID(t *testing.T) {
	// A mount's listing continues after an entry by its node id alone, long after the id was given out. It
	// does so also when the name is gone, means another version, or became a directory or a file.
	w := open(t, nil)
	keys := []string{"became", "dir/x", "file", "gone", "gone-dir/x", "same", "turned/x", "two", "two/x", "a%b", strings.Repeat("l", 250) + "%00"}
	for _, key := range keys {
		w.b.put("d/"+key, "e", 3)
	}
	list := func() (nodes []Node) {
		if err := w.tree.ReadDir(context.Background(), w.resolve("/d").ID, "", func(n Node) bool { nodes = append(nodes, n); return true }); err != nil {
			t.Fatal(err)
		}
		return nodes
	}
	given := list()
	for _, key := range []string{"became", "gone", "gone-dir/x", "turned/x", "two"} {
		w.b.remove("d/" + key)
	}
	for _, key := range []string{"became/x", "turned", "file"} {
		w.b.put("d/"+key, "f", 4)
	}
	w.later(24 * time.Hour)
	if now := list(); len(now) == len(given) {
		t.Fatalf("the changes are not seen: %v", now)
	}
	w.settle()
	for _, n := range given {
		is, err := w.tree.Node(context.Background(), n.ID)
		if err != nil || is.Behind() != n.Behind() {
			t.Errorf("%q: %q, %v", n.Behind(), is.Behind(), err)
		}
	}
	w.settle()
}

func TestWhetherKeysAreToBeAskedFor(t *testing.T) {
	// Asks tells, without a question, whether reading a prefix would ask the origin. It would not while the
	// listing is believed or under way, nor while the origin is unreachable. With ahead the listing begins.
	w := open(t, nil)
	for _, k := range []string{"d/a", "d/e/b", "f/a"} {
		w.b.put(k, "e", 3)
	}
	listed, release := make(chan string, 8), make(chan struct{})
	w.b.onPage = func(prefix string, _ int) {
		if prefix == "f/" {
			listed <- prefix
			<-release
		}
	}
	read := func(prefix string) {
		t.Helper()
		if _, err := w.tree.Keys(context.Background(), "/", prefix, "", func(*hearth.Object) bool { return true }); err != nil {
			t.Error(err)
		}
	}
	asks := func(prefix string, want bool) {
		t.Helper()
		if before, got := w.b.requests(), w.tree.Asks("/", prefix, false); got != want || w.b.requests() != before {
			t.Errorf("%q: %v, want %v, %d requests", prefix, got, want, w.b.requests()-before)
		}
	}
	asks("", true)
	asks("d/", true)
	read("")
	asks("", false)
	asks("d/", true)
	read("d/")
	asks("d/", false)
	asks("d/e/", true)
	if !w.tree.Asks("/", "f/", true) {
		t.Error("it was known before it was asked for")
	}
	<-listed
	asks("f/", false) // under way
	if w.tree.Asks("/", "f/", true) {
		t.Error("it is under way")
	}
	close(release)
	before := w.b.requests()
	read("f/")
	if n := w.b.requests() - before; n != 0 {
		t.Errorf("%d more requests for what was begun", n)
	}
	asks("f/", false)
	for _, none := range [][2]string{{"none", ""}, {"/", "\xff/"}} {
		if w.tree.Asks(none[0], none[1], true) {
			t.Errorf("%q: the tree does not have it", none)
		}
	}
	w.clock.add(time.Hour)
	asks("d/", true)
	w.b.down(errors.New("away"))
	_, _ = w.tree.File(context.Background(), "/", "d/a") // finds out
	w.settle()
	asks("d/", false)
	asks("d/e/", true) // was never listed
}

func TestAStrictLinksKeysAreAlwaysAskedFor(t *testing.T) {
	// Names that are not believed are asked for, whoever listed them. None is asked for ahead.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Strict} })
	w.b.put("d/a", "e", 3)
	if _, err := w.tree.Keys(context.Background(), "/", "d/", "", func(*hearth.Object) bool { return true }); err != nil {
		t.Fatal(err)
	}
	id, known, err := w.tree.idOf(place{link: w.tree.links.Load().named("/"), path: "d/"})
	if err != nil || !known {
		t.Fatal(known, err)
	}
	d, err := w.tree.dirs.get(w.tree, id)
	if err != nil {
		t.Fatal(err)
	}
	defer d.release()
	release := make(chan struct{})
	defer close(release)
	w.b.onPage = func(string, int) { <-release }
	if !w.tree.Asks("/", "d/", true) || d.running.Load() != nil {
		t.Error("it is believed, or asked for ahead")
	}
}
