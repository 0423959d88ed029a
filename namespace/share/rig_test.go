package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const identity = "test"

// patience is how long a node may be silent: on a busy machine none is to be taken for dead.
const patience = time.Minute

// bucket is an origin in memory that counts what it is asked.
type bucket struct {
	mu           sync.Mutex
	objects      map[string]hearth.Object
	heads, lists int                    // lists are pages
	asked        func()                 // before each request, without the lock
	listed       func(q hearth.Listing) // before each page, likewise
	headed       func()                 // before each HEAD, likewise
	answered     func()                 // after each HEAD, likewise
	says         func(o *hearth.Object) // changes an object to what a listing says of it; nil means no change
}

func newBucket() *bucket { return &bucket{objects: map[string]hearth.Object{}} }

func (b *bucket) put(key, etag string) hearth.Object {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := hearth.Object{Link: "/", Key: key, ETag: etag, Size: 7, ModTime: time.Unix(1700000000, 5), Version: hearth.VersionOf(identity, key, etag, 7)}
	b.objects[key] = o
	return o
}

func (b *bucket) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, key)
}

func (b *bucket) requests() (heads, lists int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heads, b.lists
}

func (b *bucket) count(n *int) error {
	b.mu.Lock()
	*n++
	asked := b.asked
	b.mu.Unlock()
	if asked != nil {
		asked()
	}
	return nil
}

func (b *bucket) Head(ctx context.Context, key string) (hearth.Object, error) {
	_ = b.count(&b.heads)
	if b.headed != nil {
		b.headed()
	}
	if b.answered != nil {
		defer b.answered()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[key]
	if !ok {
		return o, fmt.Errorf("head %s: %w", key, fs.ErrNotExist)
	}
	return o, context.Cause(ctx)
}

func (b *bucket) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	after, left := q.After, q.Limit
	for more := true; more; {
		var page []hearth.Object
		_ = b.count(&b.lists)
		if b.listed != nil {
			b.listed(q)
		}
		page, more = b.page(q, after)
		for _, o := range page {
			if err := errors.Join(context.Cause(ctx), each(o)); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
			after = o.Key
		}
	}
	return context.Cause(ctx)
}

func (b *bucket) page(q hearth.Listing, after string) (page []hearth.Object, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[string]bool{}
	for key, o := range b.objects {
		rest, ok := strings.CutPrefix(key, q.Prefix)
		if !ok {
			continue
		}
		if i := strings.IndexByte(rest, '/'); i >= 0 && !q.Recursive {
			o = hearth.Object{Link: "/", Key: q.Prefix + rest[:i+1], Size: hearth.PrefixSize}
		}
		if o.Key > after && !seen[o.Key] {
			seen[o.Key] = true
			if b.says != nil && !o.IsPrefix() {
				b.says(&o)
				o.Version = hearth.VersionOf(identity, o.Key, o.ETag, o.Size)
			}
			page = append(page, o)
		}
	}
	slices.SortFunc(page, func(a, b hearth.Object) int { return strings.Compare(a.Key, b.Key) })
	if len(page) > 1000 {
		return page[:1000], true
	}
	return page, false
}

// rig is nodes that share a bucket.
type rig struct {
	*testing.T
	b     *bucket
	nodes []*node
	stop  context.CancelFunc
	work  sync.WaitGroup
	past  atomic.Int64 // nanoseconds that have passed besides, as news is timed by the machine's clock
	begun atomic.Int64 // when the clocks began to run, Unix ns; 0: they stand

	freshness namespace.Freshness
	news      atomic.Bool // nodes tell each other news; else only age ends what they believe
}

// node is one of them: a tree, and connections to the others.
type node struct {
	r      *rig
	number int
	pool   *hearth.Pool
	names  *Names
	tree   *namespace.Tree
	server *wire.Server
	peers  []*wire.Peer
	skew   time.Duration // of its clock
	dir    string        // of its database; "": memory

	// owner is the map of this node: the number of a directory's owner.
	owner atomic.Pointer[func(dir [16]byte) int]
	// call stands between this node and the others; nil means that nothing does.
	call atomic.Pointer[func(to int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error)]
}

func (x *node) now() time.Time {
	past := time.Duration(x.r.past.Load())
	if begun := x.r.begun.Load(); begun != 0 {
		past += time.Since(time.Unix(0, begun))
	}
	return time.Unix(1750000000, 0).Add(x.skew + past)
}

// run lets the nodes' clocks run from now on, for what is younger or older than news is by that.
func (r *rig) run() { r.begun.Store(time.Now().UnixNano()) }

// newRing makes nodes that each own the part that placement gives them.
func newRing(t *testing.T, n int) *rig {
	return newFreshRing(t, n, namespace.Freshness{Mode: namespace.Bounded, Bound: time.Minute})
}

func newFreshRing(t *testing.T, n int, f namespace.Freshness) *rig {
	r := &rig{T: t, b: newBucket(), freshness: f}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	var weights []place.Node
	for i := range n {
		weights = append(weights, place.Node{ID: fmt.Sprint(i), Weight: 1})
	}
	where, err := place.New(weights)
	if err != nil {
		t.Fatal(err)
	}
	byPlace := func(dir [16]byte) (owner int) {
		o, _ := where.Owner(place.OfDirectory(dir))
		_, _ = fmt.Sscan(o.ID, &owner)
		return owner
	}
	for i := range n {
		x := &node{r: r, number: i, pool: hearth.NewPool(64 << 20), skew: time.Duration(i) * time.Hour}
		x.owner.Store(&byPlace)
		x.names = New(Options{Pool: x.pool, Call: x.ask, Others: x.others, Owner: func(dir [16]byte) (string, bool) {
			owner := (*x.owner.Load())(dir)
			return fmt.Sprint(owner), owner == x.number
		}})
		x.server = wire.NewServer(wire.ServerOptions{Pool: x.pool, Handler: wire.Handler{Calls: x.names.Calls()}})
		r.nodes = append(r.nodes, x)
	}
	for _, x := range r.nodes {
		for _, y := range r.nodes {
			x.peers = append(x.peers, wire.NewPeer(fmt.Sprint(y.number), wire.PeerOptions{Pool: x.pool, Silence: patience, Dial: func(context.Context) (net.Conn, error) {
				a, b := net.Pipe()
				r.work.Go(func() { _ = y.server.Serve(ctx, b, fmt.Sprint(x.number)) })
				return a, nil
			}}))
		}
		x.open()
	}
	t.Cleanup(r.close)
	return r
}

// others are all nodes but this one.
func (x *node) others() (ids []string) {
	for _, y := range x.r.nodes {
		if y != x {
			ids = append(ids, fmt.Sprint(y.number))
		}
	}
	return ids
}

func (r *rig) close() {
	for _, x := range r.nodes {
		x.names.Close()
	}
	for _, x := range r.nodes {
		if err := x.tree.Close(); err != nil {
			r.Error(err)
		}
	}
	r.stop()
	for _, x := range r.nodes {
		for _, p := range x.peers {
			p.Close()
		}
	}
	r.work.Wait()
	for _, x := range r.nodes {
		if s := x.pool.Stats(); s.Views != 0 {
			r.Errorf("node %d: %d Views are left", x.number, s.Views)
		}
		if len(x.names.uses) != 0 {
			r.Errorf("node %d: left over: %v", x.number, x.names.uses)
		}
	}
}

func (x *node) open() {
	x.r.Helper()
	var err error
	x.tree, err = namespace.Open(namespace.Options{Dir: x.dir, Clock: x.now, Links: []namespace.Link{{
		Path: "/", Name: "/", Origin: x.names.Over(x.r.b), Identity: identity, StaleIfError: true,
		Freshness: x.r.freshness}}})
	if err != nil {
		x.r.Fatal(err)
	}
	x.names.Serve(x.tree)
}

// ask calls another node.
func (x *node) ask(ctx context.Context, id string, number uint16, body *hearth.View) (*hearth.View, error) {
	if number == CallNews && !x.r.news.Load() {
		return nil, wire.ErrDown
	}
	var to int
	_, _ = fmt.Sscan(id, &to)
	do := func() (*hearth.View, error) { return x.peers[to].Call(ctx, number, body) }
	if call := x.call.Load(); call != nil {
		return (*call)(to, number, do)
	}
	return do()
}

// between puts f between the node and the others.
func (x *node) between(f func(to int, number uint16, do func() (*hearth.View, error)) (*hearth.View, error)) {
	x.call.Store(&f)
}

// owns makes the node believe that one node owns all directories.
func (x *node) owns(owner int) {
	f := func([16]byte) int { return owner }
	x.owner.Store(&f)
}

// resolve returns the ETag of the file at a path; "dir" for a directory, or "" where there is nothing.
func (x *node) resolve(path string) string {
	n, err := x.tree.Resolve(context.Background(), path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		x.r.Errorf("node %d: %s: %v", x.number, path, err)
	case n.Dir:
		return "dir"
	}
	return n.Object.ETag
}

// list returns the names in a directory, with the ETags of files.
func (x *node) list(path string) map[string]string {
	all := map[string]string{}
	dir, err := x.tree.Resolve(context.Background(), path)
	if err == nil {
		err = x.tree.ReadDir(context.Background(), dir.ID, "", func(n namespace.Node) bool {
			all[n.Name] = n.Object.ETag
			if o := n.Object; !n.Dir && o.Version != hearth.VersionOf(identity, o.Key, o.ETag, o.Size) {
				x.r.Errorf("node %d: %s has a wrong version", x.number, o.Key)
			}
			return true
		})
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.r.Errorf("node %d: list %s: %v", x.number, path, err)
	}
	return all
}

// walk counts what is below the root.
func (x *node) walk() (dirs, files int) {
	root, err := x.tree.Root(context.Background(), "/")
	if err == nil {
		_, err = x.tree.Below(context.Background(), root.ID, func(_ string, n namespace.Node) error {
			if n.Dir {
				dirs++
			} else {
				files++
			}
			return nil
		})
	}
	if err != nil {
		x.r.Errorf("node %d: walk: %v", x.number, err)
	}
	return dirs, files
}

// all runs f for every node at once.
func (r *rig) all(f func(x *node)) {
	var work sync.WaitGroup
	for _, x := range r.nodes {
		work.Go(func() { f(x) })
	}
	work.Wait()
}

// told adds up the figures of all nodes.
func (r *rig) told() (s Stats) {
	for _, x := range r.nodes {
		y := x.names.Stats()
		s.Listings += y.Listings
		s.Pages += y.Pages
		s.Finds += y.Finds
		s.Elsewhere += y.Elsewhere
		s.Old += y.Old
		s.ToldPages += y.ToldPages
		s.ToldFinds += y.ToldFinds
		s.Refused += y.Refused
		s.Failed += y.Failed
	}
	return s
}
