package fuse

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	names "github.com/hearthfs/hearth/namespace/record"
)

// fakeTree is a tree in memory, its bytes, and its local files: what a mount
// consumes, with switches to change, stall and lose things.
type fakeTree struct {
	ttl    time.Duration
	strict bool // Open asks the origin
	pool   *hearth.Pool

	mu        sync.Mutex // guards the rest
	nodes     map[uint64]*fakeNode
	last      uint64
	subs      map[int]func(namespace.Change)
	literal   map[string][]byte        // content by key, else hearthtest.Fill
	stalled   map[string]chan struct{} // keys whose reads wait
	stalledIn map[uint64]chan struct{} // directories whose look-ups wait
	truth     map[string]int           // versions at the origin that the tree has not seen yet
	gone      map[[16]byte]bool        // versions that the origin has no more
	local     map[string]bool          // keys that are whole in a local file
	localDir  string
	absentTTL time.Duration

	gets, looked, opened, forgot, lent, waiting atomic.Int64
}

type fakeNode struct {
	node     namespace.Node
	parent   uint64
	children map[string]uint64
	sorted   []string // the names of children
}

func newFakeTree(ttl time.Duration) *fakeTree {
	t := &fakeTree{
		ttl: ttl, pool: hearth.NewPool(1 << 30), nodes: map[uint64]*fakeNode{}, last: 1, subs: map[int]func(namespace.Change){},
		literal: map[string][]byte{}, stalled: map[string]chan struct{}{}, stalledIn: map[uint64]chan struct{}{},
		truth: map[string]int{}, gone: map[[16]byte]bool{}, local: map[string]bool{}, absentTTL: ttl,
	}
	t.nodes[1] = &fakeNode{node: namespace.Node{ID: 1, Dir: true, ModTime: time.Unix(1e9, 0)}, children: map[string]uint64{}}
	return t
}

// fakeObject is the object of a version, as readers expect it.
func fakeObject(key string, version int, size int64) hearth.Object {
	etag := "v" + strconv.Itoa(version)
	return hearth.Object{Link: "fake", Key: key, ETag: etag, Size: size, ModTime: time.Unix(1.5e9+int64(version), 0),
		Version: hearth.VersionOf("fake", key, etag, size)}
}

func versionOf(o *hearth.Object) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(o.ETag, "v"))
	return n
}

// put makes key mean a version now; directories appear as needed.
func (t *fakeTree) put(key string, version int, size int64) {
	t.mu.Lock()
	dir := t.dirLocked(path.Dir(key))
	name := path.Base(key)
	t.last++
	o := fakeObject(key, version, size)
	t.nodes[t.last] = &fakeNode{node: namespace.Node{ID: t.last, Name: name, Object: o, ModTime: o.ModTime}, parent: dir}
	d := t.nodes[dir]
	old := d.setLocked(name, t.last)
	d.node.ModTime = d.node.ModTime.Add(time.Second)
	t.mu.Unlock()
	t.tell(namespace.Change{Dir: dir, Name: name, Old: old})
}

func (t *fakeTree) remove(key string) {
	t.mu.Lock()
	dir := t.dirLocked(path.Dir(key))
	name := path.Base(key)
	d := t.nodes[dir]
	old := d.setLocked(name, 0)
	d.node.ModTime = d.node.ModTime.Add(time.Second)
	t.mu.Unlock()
	t.tell(namespace.Change{Dir: dir, Name: name, Old: old})
}

func (t *fakeTree) dirLocked(p string) uint64 {
	if p == "." {
		return 1
	}
	parent := t.dirLocked(path.Dir(p))
	name := path.Base(p)
	id := t.nodes[parent].children[name]
	if id == 0 {
		t.last++
		id = t.last
		t.nodes[id] = &fakeNode{node: namespace.Node{ID: id, Dir: true, Name: name, ModTime: time.Unix(1e9, 0)}, parent: parent, children: map[string]uint64{}}
		t.nodes[parent].setLocked(name, id)
	}
	return id
}

func (t *fakeTree) tell(c namespace.Change) {
	t.mu.Lock()
	subs := slices.Collect(maps.Values(t.subs))
	t.mu.Unlock()
	for _, f := range subs {
		f(c)
	}
}

func (t *fakeTree) Lookup(ctx context.Context, dir uint64, name string) (namespace.Node, error) {
	t.looked.Add(1)
	t.mu.Lock()
	gate := t.stalledIn[dir]
	t.mu.Unlock()
	if err := t.wait(ctx, gate); err != nil {
		return namespace.Node{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.nodes[dir]
	if d == nil {
		return namespace.Node{}, hearth.ErrStale
	}
	id := d.children[name]
	if id == 0 {
		return namespace.Node{}, fmt.Errorf("look up %s: %w", name, &namespace.Absent{TTL: t.absentTTL})
	}
	return t.nodeLocked(id), nil
}

func (t *fakeTree) nodeLocked(id uint64) namespace.Node {
	n := t.nodes[id].node
	n.TTL = t.ttl
	return n
}

func (t *fakeTree) Node(_ context.Context, id uint64) (namespace.Node, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[id] == nil {
		return namespace.Node{}, fmt.Errorf("node %d: %w", id, hearth.ErrStale)
	}
	return t.nodeLocked(id), nil
}

func (t *fakeTree) Open(ctx context.Context, id uint64) (namespace.Node, error) {
	t.opened.Add(1)
	n, err := t.Node(ctx, id)
	if err != nil || !t.strict {
		return n, err
	}
	t.Forget(&n.Object)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodeLocked(t.nodes[t.nodes[id].parent].children[n.Name]), nil
}

func (t *fakeTree) ReadDir(_ context.Context, dir uint64, after string, each func(namespace.Node) bool) error {
	t.mu.Lock()
	d := t.nodes[dir]
	if d == nil {
		t.mu.Unlock()
		return hearth.ErrStale
	}
	after = strings.TrimSuffix(strings.TrimSuffix(after, names.BesideTag), "/") // as Node.Behind has it
	at, _ := slices.BinarySearch(d.sorted, after)
	nodes := make([]namespace.Node, 0, 64) // about what the kernel asks for at once
	for _, name := range d.sorted[at:min(len(d.sorted), at+cap(nodes))] {
		if name != after {
			nodes = append(nodes, t.nodeLocked(d.children[name]))
		}
	}
	t.mu.Unlock()
	for _, n := range nodes {
		if !each(n) {
			return nil
		}
	}
	if len(nodes) > 0 {
		return t.ReadDir(context.Background(), dir, nodes[len(nodes)-1].Behind(), each)
	}
	return nil
}

// setLocked makes a name of a directory mean an id, or nothing (0).
func (d *fakeNode) setLocked(name string, id uint64) (old uint64) {
	old = d.children[name]
	i, found := slices.BinarySearch(d.sorted, name)
	switch {
	case id == 0 && found:
		d.sorted = slices.Delete(d.sorted, i, i+1)
		delete(d.children, name)
	case id != 0:
		d.children[name] = id
		if !found {
			d.sorted = slices.Insert(d.sorted, i, name)
		}
	}
	return old
}

// Forget learns what the origin has now.
func (t *fakeTree) Forget(o *hearth.Object) {
	t.forgot.Add(1)
	t.mu.Lock()
	version, changed := t.truth[o.Key]
	delete(t.truth, o.Key)
	t.mu.Unlock()
	if changed {
		t.put(o.Key, version, o.Size)
	}
}

// Hold is for trees that drop versions; this one keeps all.
func (t *fakeTree) Hold(func(id uint64) bool) func() { return func() {} }

func (t *fakeTree) Subscribe(f func(namespace.Change)) func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.subs)
	for t.subs[n] != nil {
		n++
	}
	t.subs[n] = f
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.subs, n)
	}
}

func (t *fakeTree) wait(ctx context.Context, gate chan struct{}) error {
	if gate == nil {
		return nil
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get is the Source: a version that the origin has no more is stale.
func (t *fakeTree) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	t.gets.Add(1)
	o := b.Object
	t.mu.Lock()
	literal, gate := t.literal[o.Key], t.stalled[o.Key]
	gone := t.gone[o.Version]
	t.mu.Unlock()
	if err := t.wait(ctx, gate); err != nil {
		return nil, err
	}
	if gone {
		return nil, fmt.Errorf("get %s: %w", o.Key, hearth.ErrStale)
	}
	at := b.Offset() + int64(off)
	if literal != nil {
		return hearth.NewView(literal[at : at+int64(n)]), nil
	}
	v, err := t.pool.Alloc(ctx, n)
	if err != nil {
		return nil, err
	}
	hearthtest.Fill(v.Bytes(), o.Key, at, versionOf(o))
	return v, nil
}

// reads is a node's read side that keeps nothing.
func reads(g hearth.Getter) *cache.Tier {
	return cache.Through(nil, hearthtest.Source(g), cache.Always)
}

func (t *fakeTree) has(hearth.ID) bool { return true }

// Samples knows of no place.
func (t *fakeTree) Samples() []string { return nil }

// LocalFile writes the object's bytes where asked to have them whole.
func (t *fakeTree) LocalFile(o *hearth.Object) (*os.File, func(), error) {
	t.mu.Lock()
	whole := t.local[o.Key]
	t.mu.Unlock()
	if !whole {
		return nil, nil, hearth.ErrMiss
	}
	data := make([]byte, o.Size)
	hearthtest.Fill(data, o.Key, 0, versionOf(o))
	name := path.Join(t.localDir, strings.ReplaceAll(o.Key, "/", "_")+"."+o.ETag)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		return nil, nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	t.lent.Add(1)
	return f, func() { t.lent.Add(-1) }, nil
}
