package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// bucket is an origin in memory that counts what it is asked, and fails or waits
// when told to.
type bucket struct {
	mu       sync.Mutex
	objects  map[string]hearth.Object
	sorted   []string // keys, or nil when they changed
	fail     error
	fails    map[string]error // of single keys and prefixes, as failing has them
	unlisted error            // for each key that is not there, as if only some prefixes may be listed; nil means 404
	heads    int
	lists    int // pages
	pageSize int
	shuffled bool                          // pages in no order
	onPage   func(prefix string, page int) // called before a page is served, without the lock
	onHead   func(key string)
	says     func(o *hearth.Object) // changes an object to what a listing says of it; nil means no change
}

func newBucket() *bucket { return &bucket{objects: map[string]hearth.Object{}, pageSize: 1000} }

func (b *bucket) put(key, etag string, size int64) hearth.Object {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := hearth.Object{Link: "/", Key: key, ETag: etag, Size: size, ModTime: time.Unix(1700000000, 0),
		Version: hearth.VersionOf("test", key, etag, size)}
	if _, ok := b.objects[key]; !ok {
		b.sorted = nil
	}
	b.objects[key] = o
	return o
}

func (b *bucket) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, key)
	b.sorted = nil
}

func (b *bucket) down(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// failing makes the HEAD of a key ("HEAD d/x") or the LIST of a prefix ("LIST d/") fail from now on, or
// those of all that begin so ("HEAD d/*"). Nil ends it.
func (b *bucket) failing(what string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails == nil {
		b.fails = map[string]error{}
	}
	b.fails[what] = err
}

// failsLocked is why a question is not answered, or nil.
func (b *bucket) failsLocked(verb, of string) error {
	if b.fail != nil {
		return b.fail
	}
	for what, err := range b.fails {
		begins, all := strings.CutSuffix(what, "*")
		if asked := verb + " " + of; err != nil && (asked == what || all && strings.HasPrefix(asked, begins)) {
			return fmt.Errorf("%s: %w", asked, err)
		}
	}
	return nil
}

func (b *bucket) requests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heads + b.lists
}

func (b *bucket) Head(ctx context.Context, key string) (hearth.Object, error) {
	b.mu.Lock()
	b.heads++
	hook := b.onHead
	b.mu.Unlock()
	if hook != nil {
		hook(key)
	}
	if err := ctx.Err(); err != nil {
		return hearth.Object{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[key]
	err := b.failsLocked("HEAD", key)
	switch {
	case err != nil:
		return hearth.Object{}, err
	case !ok && b.unlisted != nil:
		return o, fmt.Errorf("head %s: %w", key, b.unlisted)
	case !ok:
		return o, fmt.Errorf("head %s: %w", key, fs.ErrNotExist)
	}
	return o, nil
}

func (b *bucket) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	after, left := q.After, q.Limit
	for number := 0; ; number++ {
		page, more, err := b.page(ctx, q, after, number)
		if err != nil {
			return err
		}
		for _, o := range page {
			if err := each(o); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		if !more {
			return nil
		}
		after = page[len(page)-1].Key
		if b.shuffled {
			for _, o := range page {
				after = max(after, o.Key)
			}
		}
	}
}

func (b *bucket) page(ctx context.Context, q hearth.Listing, after string, number int) ([]hearth.Object, bool, error) {
	b.mu.Lock()
	b.lists++
	hook := b.onPage
	b.mu.Unlock()
	if hook != nil {
		hook(q.Prefix, number)
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.failsLocked("LIST", q.Prefix); err != nil {
		return nil, false, err
	}
	if b.sorted == nil {
		for k := range b.objects {
			b.sorted = append(b.sorted, k)
		}
		slices.Sort(b.sorted)
	}
	var page []hearth.Object
	i, _ := slices.BinarySearch(b.sorted, max(after, q.Prefix))
	for i < len(b.sorted) && strings.HasPrefix(b.sorted[i], q.Prefix) {
		o := b.objects[b.sorted[i]]
		if cut := strings.IndexByte(o.Key[len(q.Prefix):], '/'); cut >= 0 && !q.Recursive {
			o = hearth.Object{Link: "/", Key: o.Key[:len(q.Prefix)+cut+1], Size: hearth.PrefixSize}
			for i < len(b.sorted) && strings.HasPrefix(b.sorted[i], o.Key) {
				i++
			}
		} else {
			i++
		}
		if o.Key <= after && after != "" {
			continue
		}
		if len(page) == b.pageSize {
			return b.shuffle(page), true, nil
		}
		if b.says != nil && !o.IsPrefix() {
			b.says(&o)
			o.Version = hearth.VersionOf("test", o.Key, o.ETag, o.Size)
		}
		page = append(page, o)
	}
	return b.shuffle(page), false, nil
}

func (b *bucket) shuffle(page []hearth.Object) []hearth.Object {
	if b.shuffled {
		slices.Reverse(page)
	}
	return page
}

// testClock is a clock that tests move.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *testClock { return &testClock{now: time.Unix(1750000000, 0)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

var errDown = errors.New("the origin is away")

// errDenied is an origin's 403.
var errDenied = fmt.Errorf("403 AccessDenied: %w", fs.ErrPermission)

type world struct {
	*testing.T
	b      *bucket
	clock  *testClock
	behind *behind
	tree   *Tree
	o      Options
}

func newWorld(t *testing.T) *world {
	return &world{T: t, b: newBucket(), clock: newClock(), behind: newBehind()}
}

// open makes a tree over an empty bucket at /.
func open(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := newWorld(t)
	w.o = Options{Clock: w.clock.Now, monotonic: w.clock.Now, behind: w.behind.add, Links: []Link{{Path: "/", Name: "/", Origin: w.b, Identity: "test",
		Freshness: Freshness{Mode: Bounded, Bound: time.Minute}, StaleIfError: true}}}
	if change != nil {
		change(&w.o)
	}
	w.reopen()
	t.Cleanup(func() {
		if err := w.tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) reopen() {
	w.Helper()
	if w.tree != nil {
		if err := w.tree.Close(); err != nil {
			w.Fatal(err)
		}
	}
	tree, err := Open(w.o)
	if err != nil {
		w.Fatal(err)
	}
	w.tree = tree
}

func (w *world) resolve(path string) Node {
	w.Helper()
	n, err := w.tree.Resolve(context.Background(), path)
	if err != nil {
		w.Fatalf("resolve %s: %v", path, err)
	}
	return n
}

func (w *world) absent(path string) time.Duration {
	w.Helper()
	_, err := w.tree.Resolve(context.Background(), path)
	var a *Absent
	if !errors.As(err, &a) || !errors.Is(err, fs.ErrNotExist) {
		w.Fatalf("resolve %s: %v, want absent", path, err)
	}
	return a.TTL
}

// names lists a directory.
func (w *world) names(path string) []string {
	w.Helper()
	var names []string
	err := w.tree.ReadDir(context.Background(), w.resolve(path).ID, "", func(n Node) bool {
		name := n.Name
		if n.Dir {
			name += "/"
		}
		names = append(names, name)
		return true
	})
	if err != nil {
		w.Fatalf("list %s: %v", path, err)
	}
	return names
}

// nodes are the names of a directory as it lists them.
func (w *world) nodes(path string) iter.Seq[Node] {
	return func(each func(Node) bool) {
		w.Helper()
		if err := w.tree.ReadDir(context.Background(), w.resolve(path).ID, "", each); err != nil {
			w.Fatalf("list %s: %v", path, err)
		}
	}
}

// later moves the clock when everything has settled. Otherwise a listing that was read, and has not noted
// its end yet, would seem to have taken that long. It would be believed for twenty times that.
func (w *world) later(d time.Duration) {
	w.settle()
	w.clock.add(d)
}

// settle waits until no background work runs: questions, listings and the edits that follow them.
func (w *world) settle() { w.behind.wait() }

// behind counts the background work of a tree.
type behind struct {
	mu   sync.Mutex // guards n
	n    int
	idle sync.Cond // told when n is 0
}

func newBehind() *behind {
	b := &behind{}
	b.idle.L = &b.mu
	return b
}

func (b *behind) add(more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n += more; b.n == 0 {
		b.idle.Broadcast()
	}
}

func (b *behind) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.n > 0 {
		b.idle.Wait()
	}
}

// idle waits until no listing of the directory runs.
func (w *world) idle(path string) {
	w.Helper()
	d, err := w.tree.dirs.get(w.tree, w.resolve(path).ID)
	if err != nil {
		w.Fatal(err)
	}
	defer d.release()
	if l := d.running.Load(); l != nil {
		l.hurryUp()
		if err := l.Wait(context.Background()); err != nil {
			w.Fatal(err)
		}
	}
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

func mountNameOf(segment string) string { return record.MountName(segment, false) }
