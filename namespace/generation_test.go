package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// corruptNow makes the next read of the database find it corrupt, so that an empty one replaces it.
func (r *rebuiltWorld) corruptNow() { r.corrupts(1) }

// rebuild does that now.
func (r *rebuiltWorld) rebuild() {
	r.Helper()
	before := r.tree.db.Generation()
	r.corruptNow()
	var rows store.Rows
	if err := r.tree.db.Scan(&rows, []byte{record.KindEntry}, []byte{record.KindEntry + 1}, 1); err != nil || r.tree.db.Generation() != before+1 {
		r.Errorf("generation %d after %d, %v", r.tree.db.Generation(), before, err)
	}
}

// inEachMode runs a test in each mode, with a tree that knows all names of three directories.
func inEachMode(t *testing.T, test func(t *testing.T, r *rebuiltWorld, d *directory, name string)) {
	for _, f := range []Freshness{{Mode: Bounded, Bound: time.Hour}, {Mode: Immutable}} {
		t.Run(f.String(), func(t *testing.T) {
			r := newRebuiltWorld(t, f)
			d, err := r.tree.dirs.get(r.tree, r.dirs["top/d0"])
			if err != nil {
				t.Fatal(err)
			}
			defer d.release()
			test(t, r, d, strings.TrimPrefix(rebuiltKey(0), "top/d0/"))
		})
	}
}

func TestABeliefIsOfOneDatabase(t *testing.T) {
	// A belief was formed with one database. It says nothing about what is read from the next one, which
	// is empty.
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, name string) {
		x, ok, err := d.entry(r.tree, name)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		b, m := d.belief(r.tree), record.Meaning{Segment: "none"}
		if b.name(name, &x) <= 0 || b.absence(d, m) <= 0 || !d.whole(r.tree) || d.listingLeft(r.tree) <= 0 || d.listedAt(r.tree, name) == 0 {
			t.Fatal("a directory that was just listed is not believed")
		}
		r.rebuild()
		if ttl := b.name(name, &x); ttl != 0 {
			t.Errorf("a name is believed for %v", ttl)
		}
		if ttl := b.absence(d, m); ttl != 0 {
			t.Errorf("that a name is not there is believed for %v", ttl)
		}
		if d.whole(r.tree) || d.listingLeft(r.tree) != 0 || d.listedAt(r.tree, name) != 0 {
			t.Errorf("whole %v, believed for %v, listed at %d", d.whole(r.tree), d.listingLeft(r.tree), d.listedAt(r.tree, name))
		}
	})
}

// looks are ways to find a file. Each must find it.
func looks(r *rebuiltWorld, d *directory, name string) map[string]func() error {
	found := func(o hearth.Object, err error) error {
		if err == nil && o.Key != d.prefix()+name {
			err = fmt.Errorf("it is %+v", o)
		}
		return err
	}
	in := hearth.Directory{ID: d.hash, Link: "/", Identity: "test", Prefix: d.prefix()}
	return map[string]func() error{
		"Lookup": func() error {
			n, err := r.tree.Lookup(r.Context(), d.id, name)
			return found(n.Object, err)
		},
		"File": func() error {
			n, err := r.tree.File(r.Context(), "/", d.prefix()+name)
			return found(n.Object, err)
		},
		"Find": func() error {
			f, err := r.tree.Find(r.Context(), in, name, time.Hour)
			if err == nil && f.Object == nil {
				return errors.New("another node is told that there is none")
			}
			return err
		},
		"ReadDir": func() error {
			n := 0
			err := r.tree.ReadDir(r.Context(), d.id, "", func(Node) bool { n++; return true })
			if err == nil && n != rebuiltFiles {
				return fmt.Errorf("%d names", n)
			}
			return err
		},
		"Names": func() error {
			n := 0
			_, err := r.tree.Names(r.Context(), in, "", time.Hour, func(*hearth.Object) bool { n++; return true })
			if err == nil && n != rebuiltFiles {
				return fmt.Errorf("another node is told %d names", n)
			}
			return err
		},
		"Refresh": func() error { return r.tree.Refresh(r.Context(), d.id, 0) },
	}
}

func TestNamesOfADatabaseThatIsGivenUp(t *testing.T) {
	// The database is dropped before names are looked up, or by the very read that looks for them. What the
	// next one lacks is asked for, and is never taken to be absent. While the origin is unreachable the
	// answer is an error, and not an empty directory.
	for _, way := range []string{"Lookup", "File", "Find", "ReadDir", "Names", "Refresh"} {
		for _, away := range []bool{false, true} {
			for _, during := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/%v", way, away, during), func(t *testing.T) {
					inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, name string) {
						if away {
							r.b.down(errDown)
							r.tree.Asked("/", errDown)
						}
						if during {
							r.corruptNow()
						} else {
							r.rebuild()
						}
						err := looks(r, d, name)[way]()
						r.settle()
						if away && err != nil && !errors.Is(err, errDown) || !away && err != nil {
							t.Errorf("%v", err)
						}
					})
				})
			}
		}
	}
}

func TestAListingIsOfOneDatabase(t *testing.T) {
	// The database is dropped between two pages of a listing. The names before the listing's cursor are not
	// in the next database. They are found all the same, by their own names and as part of the directory.
	for _, way := range []string{"Lookup", "File", "Find", "ReadDir", "Names"} {
		t.Run(way, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, name string) {
				passed, goOn := make(chan struct{}), make(chan struct{})
				var once sync.Once
				r.b.mu.Lock()
				r.b.pageSize = rebuiltFiles - 1
				r.b.onPage = func(prefix string, page int) {
					if prefix == d.prefix() && page == 1 {
						once.Do(func() { close(passed); <-goOn })
					}
				}
				r.b.mu.Unlock()
				free := sync.OnceFunc(func() { close(goOn) })
				defer free()
				l, err := r.tree.list(t.Context(), d, r.tree.Now()+1, nil)
				if err != nil {
					t.Fatal(err)
				}
				<-passed
				l.Advance(strings.TrimPrefix(rebuiltKey(rebuiltDirs*(rebuiltFiles-2)), d.prefix())) // a page of the fake is less than one of a listing
				if b := d.belief(r.tree); !b.any {
					t.Fatal("the listing has passed nothing")
				}
				r.rebuild()
				if b := d.belief(r.tree); b.any || d.listedAt(r.tree, name) != 0 {
					t.Errorf("a listing of another database is believed up to %q", b.upTo)
				}
				done := make(chan error)
				go func() { done <- looks(r, d, name)[way]() }()
				free()
				if err := <-done; err != nil {
					t.Error(err)
				}
				r.settle()
				if err := looks(r, d, name)["ReadDir"](); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

func TestAPageGoesIntoTheDatabaseOfItsListing(t *testing.T) {
	// The database is dropped while a listing's second page is asked for. That page alone does not count
	// as the whole directory.
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, _ string) {
		for i := range pageNames + 10 {
			r.b.put(fmt.Sprintf("top/many/%05d", i), "A", 1)
		}
		r.b.put("top/d1/new", "A", 1)
		var once sync.Once
		many, err := r.tree.Lookup(t.Context(), r.dirs["top"], "many")
		if errors.Is(err, fs.ErrNotExist) { // the directory was listed before
			if err = r.tree.Refresh(t.Context(), r.dirs["top"], r.tree.Now()+1); err == nil {
				many, err = r.tree.Lookup(t.Context(), r.dirs["top"], "many")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		r.settle()
		r.b.mu.Lock()
		r.b.onPage = func(prefix string, page int) {
			if prefix == "top/many/" && page == 1 {
				once.Do(func() {
					if err := r.tree.db.Flush(); err != nil {
						t.Error(err)
					}
					r.rebuild()
				})
			}
		}
		r.b.mu.Unlock()
		for range 2 {
			n := 0
			if err := r.tree.ReadDir(t.Context(), many.ID, "", func(Node) bool { n++; return true }); err != nil || n != pageNames+10 {
				t.Errorf("%d names, %v", n, err)
			}
		}
		if n, err := r.tree.Lookup(t.Context(), many.ID, "00001"); err != nil || n.Object.Key != "top/many/00001" {
			t.Errorf("%+v, %v", n, err)
		}
	})
}

func TestAReaderGoesOnInTheNextDatabase(t *testing.T) {
	// The database is dropped while a reader of a directory has some of its names. The others come, and
	// none comes twice.
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, _ string) {
		var names []string
		err := r.tree.ReadDir(t.Context(), d.id, "", func(n Node) bool {
			if names = append(names, n.Object.Key); len(names) == 1 {
				r.rebuild()
			}
			return true
		})
		if err != nil || len(names) != rebuiltFiles || !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != rebuiltFiles {
			t.Errorf("%d names, %v", len(names), err)
		}
	})
}

func TestAnAnswerThatIsGivenUpIsAskedForAgain(t *testing.T) {
	// A name was asked for and written down, and the database is dropped before the asker reads it.
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, _ string) {
		if _, err := r.tree.Lookup(t.Context(), d.id, "new"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		r.b.put(d.prefix()+"new", "A", 1)
		var once sync.Once
		defer r.tree.Subscribe(func(c Change) {
			if c.Name == "new" {
				once.Do(r.rebuild)
			}
		})()
		q := &inquiry{t: r.tree, d: d, segment: "new"}
		if !q.ask(context.Background()) {
			t.Fatal("it could not be asked for")
		}
		if n, err := r.tree.Lookup(t.Context(), d.id, "new"); err != nil || n.Object.Key != d.prefix()+"new" {
			t.Errorf("%+v, %v", n, err)
		}
	})
}

func TestWhatWasJustGivenUpIsNotAbsent(t *testing.T) {
	// The read that looks for a name finds the database corrupt. The name is a long one, found by its hash,
	// or another node asks for it. It is not reported absent because the next database is empty.
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, _ string) {
		long := strings.Repeat("long", 100)
		r.b.put(d.prefix()+long, "A", 1)
		if err := r.tree.Refresh(t.Context(), d.id, r.tree.Now()+1); err != nil {
			t.Fatal(err)
		}
		if err := r.tree.db.Flush(); err != nil {
			t.Fatal(err)
		}
		r.corruptNow()
		if n, err := r.tree.Lookup(t.Context(), d.id, mountNameOf(long)); err != nil || n.Object.Key != d.prefix()+long {
			t.Errorf("a long name: %+v, %v", n, err)
		}
		if n := r.tree.Stats().Rebuilds; n != 1 {
			t.Errorf("a long name: %d databases were given up", n)
		}
	})
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, d *directory, name string) {
		r.corruptNow()
		f, ok, err := r.tree.found(d, record.Meaning{Segment: name}, r.tree.Now(), time.Hour)
		if ok && f.Object == nil || err != nil || r.tree.Stats().Rebuilds != 1 {
			t.Errorf("another node is told %+v, %v", f, err)
		}
	})
}

func TestAFoundNameThatIsGivenUpIsLookedUpAgain(t *testing.T) {
	// A look-up has written its answer down, and the database is dropped before the look-up reads it.
	inEachMode(t, func(t *testing.T, r *rebuiltWorld, _ *directory, _ string) {
		r.b.put("top/d0/sub/new", "A", 1)
		if err := r.tree.Refresh(t.Context(), r.dirs["top/d0"], r.tree.Now()+1); err != nil {
			t.Fatal(err)
		}
		sub := r.resolve("/top/d0/sub")
		d, err := r.tree.dirs.get(r.tree, sub.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer d.release()
		r.b.failing("LIST top/d0/sub/", errDenied)                                                 // no listing knows it
		r.tree.neg.Add(absence{Dir: d.hash, Sort: "new"}, r.tree.Now()-2*time.Hour.Milliseconds()) // so that it is news
		var once sync.Once
		defer r.tree.Subscribe(func(c Change) {
			if c.Name == "new" {
				once.Do(func() {
					r.rebuild()
				})
			}
		})()
		before := r.tree.Stats().Rebuilds
		if n, err := r.tree.Lookup(t.Context(), sub.ID, "new"); err != nil || n.Object.Key != "top/d0/sub/new" {
			t.Errorf("%+v, %v", n, err)
		}
		if n := r.tree.Stats().Rebuilds - before; n != 1 {
			t.Errorf("%d databases were given up", n)
		}
	})
}
