package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// Ways in which one question fails, or all do.
var (
	errBroken   = errors.New("500 InternalError")
	errSlowDown = errors.New("503 SlowDown")
	errTimeout  = fmt.Errorf("no answer: %w", context.DeadlineExceeded)
	errNoBucket = errors.New("404 no such bucket")
	allErrors   = []error{errDenied, errBroken, errSlowDown, errTimeout, errNoBucket}
)

// mode is how a link believes.
type mode struct {
	Freshness
	believes bool
}

var allModes = []mode{
	{Freshness{Mode: Bounded, Bound: time.Minute}, true}, {Freshness{Mode: Bounded, Bound: time.Minute}, false},
	{Freshness{Mode: Immutable}, true}, {Freshness{Mode: Strict}, true},
}

// each runs a test for each way to fail and each mode. It does so once with listings so brief that one
// takes the place of a question about a name, and once without.
func eachFailure(t *testing.T, test func(t *testing.T, w *failing)) {
	for _, err := range allErrors {
		for _, m := range allModes {
			for _, brief := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%v/%v/%v", err, m.Freshness, m.believes, brief), func(t *testing.T) {
					f := &failing{err: err, mode: m, brief: brief}
					f.world = open(t, func(o *Options) {
						o.Links[0].Freshness, o.Links[0].StaleIfError = m.Freshness, m.believes
						o.Events.Origin = func(_ string, err error) { f.turns.Add(1) }
						o.Events.Name = func(string, error) { f.told.Add(1) }
					})
					if !brief {
						f.b.onPage = func(string, int) { f.clock.add(time.Second) }
					}
					test(t, f)
				})
			}
		}
	}
}

type failing struct {
	*world
	err error
	mode
	brief       bool
	turns, told atomic.Int64 // of the origin, and names
}

// list is the names in a directory.
func (f *failing) list(dir uint64) (names []string, err error) {
	err = f.tree.ReadDir(context.Background(), dir, "", func(n Node) bool { names = append(names, n.Name); return true })
	return names, err
}

func TestANameThatFailsAgesNoOther(t *testing.T) {
	// A file, or all below a prefix, fails for ever in one way, and is asked for again and again. Other
	// names are as fresh as ever: a file that changed, one that came and was known to be absent, one that
	// went, and listings. Nobody is told that the origin is unreachable.
	for what, at := range map[string]string{"HEAD e/bad": "/e/bad", "LIST bad/*": "/bad", "* bad/*": "/bad/z", "LIST ": "/", "LIST e/": "/e"} {
		t.Run(what, func(t *testing.T) {
			eachFailure(t, func(t *testing.T, f *failing) {
				for _, key := range []string{"d/x", "d/gone", "e/bad", "bad/z", "bad-not/q"} {
					f.b.put(key, "A", 1)
				}
				root := f.resolve("/").ID
				ids := map[string]uint64{"/": root}
				for _, dir := range []string{"/", "/d", "/e", "/bad"} {
					f.names(dir)
					ids[dir] = f.resolve(dir).ID
				}
				f.absent("/d/new")
				f.later(24 * time.Hour)
				if what == "* bad/*" {
					f.b.failing("HEAD bad/*", f.err)
					f.b.failing("LIST bad/*", f.err)
				} else {
					f.b.failing(what, f.err)
				}
				for round := range 3 {
					want := fmt.Sprint("B", round)
					f.b.put("d/x", want, 1)
					f.b.put(fmt.Sprint("d/new", round), "A", 1)
					f.later(24 * time.Hour)
					if id, ok := ids[at]; ok {
						_, _ = f.list(id)
					} else {
						_, _ = f.tree.Lookup(context.Background(), ids["/"+at[1:len(at)-len("/z")]], "z")
						_, _ = f.tree.Lookup(context.Background(), ids["/e"], "bad")
					}
					if f.Mode != Immutable {
						n, err := f.tree.Lookup(context.Background(), ids["/d"], "x")
						if err != nil || n.Object.ETag != want || n.TTL == 0 && f.Mode != Strict {
							t.Errorf("round %d: d/x is %q for %v, %v", round, n.Object.ETag, n.TTL, err)
						}
						if n, err := f.tree.Lookup(context.Background(), ids["/d"], fmt.Sprint("new", round)); err != nil || n.Object.ETag != "A" {
							t.Errorf("round %d: a new file: %+v, %v", round, n, err)
						}
						if names, err := f.list(ids["/d"]); err != nil || len(names) != 3+round {
							t.Errorf("round %d: d has %q, %v", round, names, err)
						}
					}
					f.settle()
					if s := f.tree.Stats(); s.Stale != nil || f.turns.Load() != 0 {
						t.Errorf("round %d: the origin answers, and is said to be away: %v, %d times", round, s.Stale, f.turns.Load())
					}
				}
			})
		})
	}
}

func TestWhatADeniedNameIs(t *testing.T) {
	// The origin answers for other names and denies one, which is known and too old. The name is what the
	// directory's listing tells, where that may be asked for. Else it is an error, however long the name
	// was known.
	for _, m := range allModes {
		for _, brief := range []bool{true, false} {
			w := open(t, func(o *Options) { o.Links[0].Freshness, o.Links[0].StaleIfError = m.Freshness, m.believes })
			if !brief {
				w.b.onPage = func(string, int) { w.clock.add(time.Second) }
			}
			for _, key := range []string{"d/x", "d/y", "d/sub/q", "ok"} {
				w.b.put(key, "A", 1)
			}
			w.names("/")
			w.names("/d")
			d, sub := w.resolve("/d").ID, w.resolve("/d/sub").ID
			w.names("/d/sub")
			w.later(24 * time.Hour)
			w.b.put("d/x", "B", 1)
			w.b.remove("d/y")
			w.b.failing("HEAD d/*", errDenied)
			w.b.failing("LIST d/sub*", errDenied)
			ask := func(dir uint64, name string) (string, error) {
				n, err := w.tree.Lookup(t.Context(), dir, name)
				w.settle()
				return n.Object.ETag, err
			}
			if m.Mode != Immutable {
				if etag, err := ask(d, "x"); etag != "B" || err != nil {
					t.Errorf("%v: listed, and denied to HEAD: %q, %v", m, etag, err)
				}
				if _, err := ask(d, "y"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%v: gone, and denied to HEAD: %v", m, err)
				}
				if n, err := w.tree.Lookup(t.Context(), d, "sub"); err != nil || !n.Dir {
					t.Errorf("%v: a directory that is listed, and may not be: %v", m, err)
				}
			}
			w.later(24 * time.Hour)
			w.b.failing("LIST d/*", errDenied)
			for range 3 {
				for dir, name := range map[uint64]string{d: "x", sub: "q"} {
					etag, err := ask(dir, name)
					switch {
					case m.Mode == Immutable && (etag != "A" || err != nil):
						t.Errorf("%v: a name that holds for ever: %q, %v", m, etag, err)
					case m.Mode != Immutable && (!errors.Is(err, fs.ErrPermission) || !denied(err)):
						t.Errorf("%v: a denied name: %q, %v", m, etag, err)
					}
				}
				if err := w.tree.ReadDir(t.Context(), d, "", func(Node) bool { return true }); m.Mode != Immutable && !denied(err) {
					t.Errorf("%v: a denied directory: %v", m, err)
				}
				w.settle()
				if _, err := ask(d, "never-seen"); m.Mode != Immutable && !denied(err) {
					t.Errorf("%v: a denied name that was never seen: %v", m, err)
				}
			}
			if s := w.tree.Stats(); s.Stale != nil || s.StaleAnswers != 0 {
				t.Errorf("%v: %v, %d stale answers", m, s.Stale, s.StaleAnswers)
			}
			w.b.failing("HEAD d/*", nil)
			w.b.failing("LIST d/*", nil)
			if etag, err := ask(d, "x"); m.Mode != Immutable && (etag != "B" || err != nil) {
				t.Errorf("%v: granted again: %q, %v", m, etag, err)
			}
		}
	}
}

func TestANameThatFailsWithoutADenialGoesOn(t *testing.T) {
	// The HEAD of one file fails for ever without an answer, while others are answered. It alone is served
	// as it was last known, with a TTL of 0, where the link allows that.
	for _, fails := range allErrors[1:] {
		for _, m := range allModes {
			w := open(t, func(o *Options) { o.Links[0].Freshness, o.Links[0].StaleIfError = m.Freshness, m.believes })
			w.b.onPage = func(string, int) { w.clock.add(time.Second) } // no listing takes its place
			w.b.put("d/x", "A", 1)
			w.b.put("d/y", "A", 1)
			w.names("/")
			w.names("/d")
			d := w.resolve("/d").ID
			w.later(24 * time.Hour)
			w.b.failing("HEAD d/x", fails)
			for round := range 3 {
				n, err := w.tree.Lookup(t.Context(), d, "x")
				goesOn := m.Mode == Immutable || m.Mode == Bounded && m.believes
				if goesOn != (err == nil) || err != nil && !errors.Is(err, fails) || err == nil && m.Mode == Bounded && (n.TTL != 0 || n.Object.ETag != "A") {
					t.Errorf("%v, %v: %+v, %v", fails, m, n, err)
				}
				w.settle()
				w.b.put("d/y", fmt.Sprint("B", round), 1)
				w.later(24 * time.Hour)
				if n, err := w.tree.Lookup(t.Context(), d, "y"); m.Mode != Immutable && (err != nil || n.Object.ETag != fmt.Sprint("B", round)) {
					t.Errorf("%v, %v: the other: %+v, %v", fails, m, n, err)
				}
				if s := w.tree.Stats(); s.Stale != nil {
					t.Errorf("%v, %v: %v", fails, m, s.Stale)
				}
			}
		}
	}
}

func TestAbsentKeysThatAreDenied(t *testing.T) {
	// Credentials may list some prefixes only: S3 denies each key that is not there. Such a key is absent,
	// whatever is known of its directory, and also where its own prefix may not be listed. No other name is
	// older because of it.
	for _, m := range allModes {
		for _, known := range []bool{true, false} {
			w := open(t, func(o *Options) { o.Links[0].Freshness, o.Links[0].StaleIfError = m.Freshness, m.believes })
			w.b.onPage = func(string, int) { w.clock.add(time.Second) }
			w.b.unlisted = errDenied
			w.b.failing("LIST no*", errDenied)
			w.b.put("d/x", "A", 1)
			w.b.put("e", "A", 1)
			d := w.resolve("/d").ID
			if known {
				w.names("/")
				w.names("/d")
			}
			for round := range 3 {
				w.later(24 * time.Hour)
				w.absent("/nothing")
				w.absent("/d/nothing")
				w.b.put("d/x", fmt.Sprint("B", round), 1)
				w.later(24 * time.Hour)
				w.absent("/nothing")
				w.absent("/d/nothing")
				n, err := w.tree.Lookup(t.Context(), d, "x")
				if err != nil || m.Mode != Immutable && n.Object.ETag != fmt.Sprint("B", round) {
					t.Errorf("%v: %+v, %v", m, n, err)
				}
				w.settle()
			}
			w.b.remove("d/x")
			w.later(24 * time.Hour)
			if _, err := w.tree.Lookup(t.Context(), d, "x"); m.Mode != Immutable && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v: it is gone, and denied therefore: %v", m, err)
			}
			w.settle()
			if s := w.tree.Stats(); s.Stale != nil || s.StaleAnswers != 0 {
				t.Errorf("%v: %v, %d stale answers", m, s.Stale, s.StaleAnswers)
			}
		}
	}
}

func TestAnOriginThatFailsAllCannotBeAsked(t *testing.T) {
	// All questions fail in one way, as when credentials are revoked. Known names are served where the link
	// allows that, and the failure is told once. Later somebody asks only for a name that stays denied. It
	// is found all the same that the origin is back.
	eachFailure(t, func(t *testing.T, f *failing) {
		for _, key := range []string{"d/x", "bad/z"} {
			f.b.put(key, "A", 1)
		}
		f.names("/")
		f.names("/d")
		d, bad := f.resolve("/d").ID, f.resolve("/bad").ID
		f.later(24 * time.Hour)
		f.b.down(f.err)
		goesOn := f.Mode == Immutable || f.Mode == Bounded && f.believes
		for range 3 {
			n, err := f.tree.Lookup(t.Context(), d, "x")
			if goesOn != (err == nil) || err != nil && (!errors.Is(err, f.err) || denied(err)) {
				t.Errorf("a known name: %+v, %v", n, err)
			}
			names, err := f.list(d)
			if goesOn != (err == nil) || err == nil && !slices.Equal(names, []string{"x"}) || denied(err) {
				t.Errorf("a known directory: %q, %v", names, err)
			}
			if _, err := f.list(bad); !errors.Is(err, f.err) || denied(err) {
				t.Errorf("what was never listed: %v", err)
			}
		}
		f.settle()
		if s := f.tree.Stats(); !errors.Is(s.Stale, f.err) || f.turns.Load() != 1 || f.told.Load() != 0 {
			t.Errorf("%v, told of the origin %d times, of names %d times", s.Stale, f.turns.Load(), f.told.Load())
		}
		f.b.down(nil)
		f.b.failing("LIST bad/*", errDenied)
		f.b.failing("HEAD bad/*", errDenied)
		if _, err := f.list(bad); !denied(err) {
			t.Errorf("what is denied still: %v", err)
		}
		f.settle()
		if s := f.tree.Stats(); s.Stale != nil || f.turns.Load() != 2 {
			t.Errorf("it is back: %v, told %d times", s.Stale, f.turns.Load())
		}
	})
}

func TestTheRootMayNotBeListed(t *testing.T) {
	// Neither the link's prefix nor the failing name may be asked for. The question that was answered last
	// tells that the origin is reachable.
	w := open(t, nil)
	w.b.put("d/x", "A", 1)
	w.b.put("bad/z", "A", 1)
	d, bad := w.resolve("/d").ID, w.resolve("/bad").ID
	w.names("/d")
	w.later(24 * time.Hour)
	w.b.failing("LIST ", errDenied)
	w.b.failing("LIST bad/*", errDenied)
	for round := range 3 {
		w.b.put("d/x", fmt.Sprint("B", round), 1)
		w.later(24 * time.Hour)
		if err := w.tree.ReadDir(t.Context(), bad, "", func(Node) bool { return true }); !denied(err) {
			t.Error(err)
		}
		if n, err := w.tree.Lookup(t.Context(), d, "x"); err != nil || n.Object.ETag != fmt.Sprint("B", round) {
			t.Errorf("%+v, %v", n, err)
		}
	}
}

func TestWhoAsksASilentOriginIsNotAlone(t *testing.T) {
	// An origin goes silent. Before the first question is given up, the witness finds that others get no
	// answer either. Readers that come then get what is known. When only one name has no answer, the origin
	// does not count as unreachable.
	for _, all := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := open(t, nil)
			w.b.put("d/x", "A", 1)
			w.b.put("d/y", "A", 1)
			w.names("/")
			w.b.onPage = func(string, int) { w.clock.add(time.Second) }
			w.names("/d")
			d := w.resolve("/d").ID
			w.later(24 * time.Hour)
			release := make(chan struct{})
			silent := func() { <-release }
			w.b.mu.Lock()
			w.b.onHead = func(key string) {
				if all || key == "d/x" {
					silent()
				}
			}
			w.b.onPage = func(string, int) {
				if all {
					time.Sleep(slowQuestion)
					w.b.down(errTimeout)
				}
			}
			w.b.mu.Unlock()
			first := make(chan error)
			go func() {
				_, err := w.tree.Lookup(t.Context(), d, "x")
				first <- err
			}()
			time.Sleep(3 * slowQuestion)
			synctest.Wait()
			if s := w.tree.Stats(); (s.Stale != nil) != all {
				t.Errorf("all are silent: %v; stale: %v", all, s.Stale)
			}
			if n, err := w.tree.Lookup(t.Context(), d, "y"); err != nil || (n.TTL == 0) != all {
				t.Errorf("all are silent: %v; %+v, %v", all, n, err)
			}
			if !all {
				w.b.failing("HEAD d/x", errTimeout)
			}
			close(release)
			if err := <-first; err != nil {
				t.Error(err)
			}
			w.settle()
			if s := w.tree.Stats(); (s.Stale != nil) != all {
				t.Errorf("at the end, all are silent: %v; stale: %v", all, s.Stale)
			}
		})
	}
}

func TestADatabaseThatFailsSaysNothingOfTheOrigin(t *testing.T) {
	// What an origin lists cannot be written down. That does not count as a failure of the origin.
	b := newBucket()
	b.put("x", "A", 1)
	tree, err := Open(Options{Links: []Link{{Path: "/", Name: "/", Origin: b, Freshness: Freshness{Mode: Bounded, Bound: time.Minute}, StaleIfError: true}}})
	if err != nil {
		t.Fatal(err)
	}
	b.onPage = func(string, int) {
		if err := tree.db.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := tree.ReadDir(t.Context(), rootID, "", func(Node) bool { return true }); !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
	if s := tree.Stats(); s.Stale != nil || s.Errors != 0 || b.requests() != 1 {
		t.Errorf("%v, %d errors of the origin in %d requests", s.Stale, s.Errors, b.requests())
	}
	_ = tree.Close() // there is nothing to close any more
}

func TestBehindWhatAKeyComes(t *testing.T) {
	// A listing begins right before a key: after all that sorts before the key, and not after the key.
	for _, key := range []string{"a", "d/x", "d/x/", "x b", "a%", "ä", "\ue000", "日本", "é/", "-", "a\x01"} {
		after, ok := before(key)
		if !ok || after >= key {
			t.Errorf("%q: %q", key, after)
		}
		b := newBucket()
		for _, k := range []string{key, key + "0", key + "/", "\x01", "%"} {
			b.put(k, "A", 1)
		}
		var first string
		if err := b.List(t.Context(), hearth.Listing{After: after, Limit: 1, Recursive: true}, func(o hearth.Object) error { first = o.Key; return nil }); err != nil || first != key {
			t.Errorf("%q: behind %q comes %q, %v", key, after, first, err)
		}
	}
	for _, none := range []string{"", "a\x00", "a\xff"} {
		if after, ok := before(none); ok {
			t.Errorf("%q: %q", none, after)
		}
	}
}

// fakeOwner is a bucket whose directories all belong to another node, which fails as the bucket does.
type fakeOwner struct{ *bucket }

func (fakeOwner) Elsewhere(hearth.Directory) (end func(), elsewhere bool) { return func() {}, true }

func (fakeOwner) Names(context.Context, hearth.Directory, string, time.Duration, func(*hearth.Object) bool) (hearth.Told, error) {
	return hearth.Told{}, errDenied
}

func (f fakeOwner) Find(ctx context.Context, dir hearth.Directory, segment string, _ time.Duration) (hearth.Found, error) {
	o, err := f.Head(ctx, dir.Prefix+segment)
	if err != nil {
		return hearth.Found{}, err
	}
	return hearth.Found{Object: &o}, nil
}

func (fakeOwner) Changed(hearth.Directory, []string, time.Duration) {}

// fakeGone is an owner that says of directories that they are gone, while gone is set, and else nothing.
type fakeGone struct {
	fakeOwner
	gone *atomic.Bool
}

func (f fakeGone) Find(context.Context, hearth.Directory, string, time.Duration) (hearth.Found, error) {
	if f.gone.Load() {
		return hearth.Found{}, nil
	}
	return hearth.Found{}, errDown
}

func TestANameThatIsWrittenWhileItsDirectoryGoes(t *testing.T) {
	// A node hears from the owner that a directory is gone. Just when it has noted that, and before it
	// forgets what it knew of the inside, a name is written there by itself: that name stays.
	var gone atomic.Bool
	w := open(t, func(o *Options) { o.Links[0].Origin = fakeGone{fakeOwner{o.Links[0].Origin.(*bucket)}, &gone} })
	w.b.put("d/f", "A", 1)
	w.resolve("/d/f")
	w.clock.add(10 * time.Second)
	w.b.remove("d/f")
	var once sync.Once
	w.tree.Subscribe(func(c Change) {
		if c.Name == "d" && gone.Swap(false) {
			once.Do(func() {
				w.clock.add(time.Second)
				w.b.put("d/f", "B", 2)
				w.tree.Written(t.Context(), "/", "d/f")
			})
		}
	})
	gone.Store(true)
	w.tree.Heard(t.Context(), hearth.Directory{ID: record.DirectoryHash("/", "\x00test", ""), Link: "/"}, "d", 0)
	w.behind.wait()
	before := w.b.requests()
	if n := w.resolve("/d/f"); n.Object.ETag != "B" || w.b.requests() != before {
		t.Errorf("%q after %d more requests", n.Object.ETag, w.b.requests()-before)
	}
}

func TestADirectoryStaysForANameThatWasFoundLater(t *testing.T) {
	// A directory's only name is removed, and written again while a listing of the directory above it, or
	// another node's answer, says still that it is gone: it stays.
	var hold func()
	w := open(t, func(o *Options) { o.Links[0].Origin = fakeLate{o.Links[0].Origin.(*bucket), &hold} })
	written := func() {
		w.clock.add(time.Second)
		w.b.put("d/e/f", "B", 2)
		w.tree.Written(t.Context(), "/", "d/e/f")
	}
	for _, late := range []func(){
		func() {
			hold = sync.OnceFunc(written)
			w.names("/d")
		},
		func() {
			id, _, err := w.tree.idOf(place{link: w.tree.links.Load().named("/"), path: "d/"})
			if err != nil {
				t.Fatal(err)
			}
			d, err := w.tree.dirs.get(w.tree, id)
			if err != nil {
				t.Fatal(err)
			}
			defer d.release()
			asked := w.tree.clock.Nano()
			q := inquiry{t: w.tree, d: d, segment: "e", copied: true, asked: asked, began: asked / 1e6, file: finding{known: true}, dir: finding{known: true}}
			written()
			if err := q.keep(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		w.b.put("d/e/f", "A", 1)
		w.b.put("d/g", "A", 1)
		w.names("/d/e")
		w.resolve("/d/e/f")
		w.clock.add(time.Hour)
		w.b.remove("d/e/f")
		late()
		w.behind.wait()
		if n := w.resolve("/d/e/f"); n.Object.ETag != "B" {
			t.Errorf("%q", n.Object.ETag)
		}
		w.clock.add(time.Hour)
	}
}

// fakeLate is a bucket whose listings of d/ end late.
type fakeLate struct {
	*bucket
	hold *func()
}

func (f fakeLate) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	err := f.bucket.List(ctx, q, each)
	if hold := *f.hold; hold != nil && q.Prefix == "d/" && !q.Recursive {
		hold()
	}
	return err
}

func TestAnOwnerThatFailsForOneName(t *testing.T) {
	// Another node owns the directories, and answers for one name with the origin's denial. The origin is
	// asked, too, and denies it. Neither counts as unreachable. Other names come from the owner, and are as
	// fresh as ever.
	w := open(t, func(o *Options) { o.Links[0].Origin = fakeOwner{o.Links[0].Origin.(*bucket)} })
	w.b.onPage = func(string, int) { w.clock.add(time.Second) }
	w.b.put("d/x", "A", 1)
	w.b.put("d/y", "A", 1)
	w.names("/")
	w.names("/d")
	d := w.resolve("/d").ID
	w.b.failing("HEAD d/y", errDenied)
	w.b.failing("LIST d/*", errDenied)
	for round := range 3 {
		w.b.put("d/x", fmt.Sprint("B", round), 1)
		w.later(24 * time.Hour)
		if n, err := w.tree.Lookup(t.Context(), d, "y"); !denied(err) {
			t.Errorf("%+v, %v", n, err)
		}
		if n, err := w.tree.Lookup(t.Context(), d, "x"); err != nil || n.Object.ETag != fmt.Sprint("B", round) || n.TTL == 0 {
			t.Errorf("%+v, %v", n, err)
		}
		w.settle()
	}
	if s := w.tree.Stats(); s.Stale != nil || s.StaleAnswers != 0 {
		t.Errorf("%v, %d stale answers", s.Stale, s.StaleAnswers)
	}
}
