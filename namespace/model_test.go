package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

func TestAgainstMap(t *testing.T) {
	// Puts, removals, time, restarts, and readers that find versions gone come at random. The tree shows
	// the bucket as it is now, or as it was within the bound. Ids never change their meaning.
	rapid.Check(t, func(r *rapid.T) {
		m := newModel(t, r)
		defer func() { _ = m.tree.Close() }()
		r.Repeat(map[string]func(*rapid.T){
			"put":    m.put,
			"remove": m.remove,
			"wait": func(r *rapid.T) {
				m.settle() // else a listing seems to take as long as we wait
				m.clock.add(time.Duration(rapid.IntRange(1, 90).Draw(r, "seconds")) * time.Second)
			},
			"lookup": m.lookup,
			"list":   m.list,
			"walk":   m.walk,
			"forget": m.forget,
			"ids":    m.checkIDs,
			"restart": func(r *rapid.T) {
				m.reopen()
				m.ids = map[uint64]hearth.Object{} // superseded ones end with the process
			},
		})
	})
}

// model is what the bucket had, and when.
type model struct {
	*world
	ids map[uint64]hearth.Object
	// was holds for each key the versions that it had, and until when; also that it was deleted.
	was map[string][]past
}

type past struct {
	etag  string // "": none
	until time.Time
}

func newModel(t *testing.T, _ *rapid.T) *model {
	w := newWorld(t)
	w.o = Options{Clock: w.clock.Now, monotonic: w.clock.Now, behind: w.behind.add, fs: nil, Dir: t.TempDir() + "/names", Links: []Link{{Path: "/", Name: "/", Origin: w.b, Identity: "test",
		Freshness: Freshness{Mode: Bounded, Bound: time.Minute}, StaleIfError: true}}}
	w.reopen()
	return &model{world: w, ids: map[uint64]hearth.Object{}, was: map[string][]past{}}
}

func drawKey(r *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "a/x", "a/y", "a-b", "a/d/x", "b/x", "b/", "c", "c//x", "%", "a%F", "d/e/f/g"}).Draw(r, "key")
}

func (m *model) put(r *rapid.T) {
	key := drawKey(r)
	m.past(key)
	m.b.put(key, rapid.SampledFrom([]string{"A", "B", "C"}).Draw(r, "etag"), 1)
}

func (m *model) remove(r *rapid.T) {
	key := drawKey(r)
	m.past(key)
	m.b.remove(key)
}

func (m *model) past(key string) {
	m.was[key] = append(m.was[key], past{m.b.objects[key].ETag, m.clock.Now()})
}

// allowed reports whether a key may be seen with an ETag ("": absent) now.
func (m *model) allowed(key, etag string) bool {
	if m.b.objects[key].ETag == etag {
		return true
	}
	for _, p := range m.was[key] {
		if p.etag == etag && m.clock.Now().Sub(p.until) <= time.Minute {
			return true
		}
	}
	return false
}

// pathOf is a key's path when nothing stands beside it; each segment's own name
// is tried with and without the mark of a file beside a directory.
func (m *model) lookup(r *rapid.T) {
	key := drawKey(r)
	segments := strings.Split(key, "/")
	for i, s := range segments {
		segments[i] = mountNameOf(s)
	}
	p := "/" + strings.Join(segments, "/")
	seen := ""
	for _, p := range []string{p, p + "%F"} {
		n, err := m.tree.Resolve(context.Background(), p)
		switch {
		case err == nil && !n.Dir && n.Object.Key == key:
			seen = n.Object.ETag
			m.note(r, n)
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "not a directory"):
			r.Fatalf("%s: %v", p, err)
		}
	}
	if !m.allowed(key, seen) && (seen != "" || !m.shadowed(key)) {
		r.Fatalf("%s has %q, the bucket %q", key, seen, m.b.objects[key].ETag)
	}
}

// shadowed reports whether a key lies in a directory that a file of the same name may hide until the next
// listing. To ask for both at each look-up of a file would double the requests (docs/semantics.md).
func (m *model) shadowed(key string) bool {
	for i, c := range key {
		if c == '/' && (m.b.objects[key[:i]].ETag != "" || len(m.was[key[:i]]) > 0) {
			return true
		}
	}
	return false
}

func (m *model) note(r *rapid.T, n Node) {
	if old, ok := m.ids[n.ID]; ok && old != n.Object {
		r.Fatalf("id %d was %+v and is %+v", n.ID, old, n.Object)
	}
	m.ids[n.ID] = n.Object
}

func (m *model) list(r *rapid.T) {
	seen := map[string]string{}
	last := ""
	err := m.tree.ReadDir(context.Background(), rootID, "", func(n Node) bool {
		sort := n.Object.Key
		if n.Dir {
			sort = n.Name + "/"
		} else {
			seen[n.Object.Key] = n.Object.ETag
			m.note(r, n)
		}
		if !n.Dir && sort <= last {
			r.Fatalf("%q comes behind %q", sort, last)
		}
		if !n.Dir {
			last = sort
		}
		return true
	})
	if err != nil {
		r.Fatal(err)
	}
	for _, key := range []string{"a", "a-b", "c", "%", "a%F"} {
		if !m.allowed(key, seen[key]) {
			r.Fatalf("%s is listed with %q, the bucket has %q", key, seen[key], m.b.objects[key].ETag)
		}
	}
}

func (m *model) walk(r *rapid.T) {
	m.settle()
	m.clock.add(2 * time.Minute) // everything is listed anew
	seen := map[string]string{}
	paths := map[string]bool{}
	_, err := m.tree.Below(context.Background(), rootID, func(p string, n Node) error {
		if paths[p] {
			return fmt.Errorf("%s comes twice", p)
		}
		paths[p] = true
		if !n.Dir {
			seen[n.Object.Key] = n.Object.ETag
			if path.Base(p) != n.Name {
				return fmt.Errorf("%s is named %s", p, n.Name)
			}
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	for key, o := range m.b.objects {
		if seen[key] != o.ETag {
			r.Fatalf("%s has %q, the bucket %q", key, seen[key], o.ETag)
		}
		delete(seen, key)
	}
	if len(seen) > 0 {
		r.Fatalf("no such keys: %v", seen)
	}
}

func (m *model) forget(r *rapid.T) {
	if o, ok := m.b.objects[drawKey(r)]; ok {
		m.tree.Forget(&o)
	}
}

func (m *model) checkIDs(r *rapid.T) {
	for id, want := range m.ids {
		if n, err := m.tree.Node(context.Background(), id); err != nil || n.Object != want {
			r.Fatalf("id %d: %+v, %v; want %+v", id, n.Object, err, want)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	// Readers, writers of the bucket, and readers that find versions gone work at once. There is no error,
	// and no id with two meanings.
	w := open(t, func(o *Options) {
		o.Links[0].Freshness.Bound = 5 * time.Millisecond
		o.Clock = nil
	})
	for i := range 600 {
		w.b.put(fmt.Sprintf("d%d/%d", i%5, i), "A", 1)
	}
	var ids sync.Map
	note := func(n Node) {
		if old, loaded := ids.LoadOrStore(n.ID, n.Object); loaded && old != n.Object {
			t.Errorf("id %d was %+v and is %+v", n.ID, old, n.Object)
		}
	}
	defer w.tree.Hold(func(id uint64) bool { _, held := ids.Load(id); return held })()
	ctx := context.Background()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 150 {
				k := (i*7 + g*31) % 600
				key := fmt.Sprintf("d%d/%d", k%5, k)
				switch g % 4 {
				case 0:
					w.b.put(key, fmt.Sprint("v", i), 1)
				case 1:
					dir, err := w.tree.Resolve(ctx, fmt.Sprintf("/d%d", k%5))
					if err == nil && i%10 == 0 {
						err = w.tree.ReadDir(ctx, dir.ID, "", func(n Node) bool { note(n); return true })
					}
					if err != nil {
						t.Error(err)
					}
				case 2:
					n, err := w.tree.Resolve(ctx, "/"+key)
					if err != nil {
						t.Error(err)
						continue
					}
					note(n)
					if got, err := w.tree.Node(ctx, n.ID); err != nil || got.Object != n.Object {
						t.Errorf("%+v, %v", got, err)
					}
				case 3:
					if n, err := w.tree.Resolve(ctx, "/"+key); err == nil {
						w.tree.Forget(&n.Object)
						if _, err := w.tree.Open(ctx, n.ID); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
}
