package fuse

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	paths     map[string]uint64 // of directories, for ever
	last      uint64
	subs      map[int]func(namespace.Change)
	literal   map[string][]byte        // content by key, else hearthtest.Fill
	stalled   map[string]chan struct{} // keys whose reads wait
	stalledIn map[uint64]chan struct{} // directories whose look-ups wait
	truth     map[string]int           // versions at the origin that the tree has not seen yet
	gone      map[[16]byte]bool        // versions that the origin has no more
	local     map[string]bool          // keys that are whole in a local file
	markers   map[string]bool          // directories that have an object of their own
	attrs     map[uint64]namespace.Attr
	localDir  string
	absentTTL time.Duration

	gets, looked, opened, forgot, lent, waiting atomic.Int64
}

type fakeNode struct {
	node     namespace.Node
	parent   uint64
	children map[string]uint64 // by sort name: a directory's has a "/" at its end
	sorted   []string          // those names
}

func newFakeTree(ttl time.Duration) *fakeTree {
	t := &fakeTree{
		ttl: ttl, pool: hearth.NewPool(1 << 30), nodes: map[uint64]*fakeNode{}, paths: map[string]uint64{}, last: 1, subs: map[int]func(namespace.Change){},
		literal: map[string][]byte{}, stalled: map[string]chan struct{}{}, stalledIn: map[uint64]chan struct{}{},
		truth: map[string]int{}, gone: map[[16]byte]bool{}, local: map[string]bool{}, markers: map[string]bool{}, attrs: map[uint64]namespace.Attr{}, absentTTL: ttl,
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
	t.putObject(fakeObject(key, version, size), 0)
}

// putObject makes a key mean an object. id, if it is not 0, stands for that, too.
func (t *fakeTree) putObject(o hearth.Object, id uint64) {
	key := o.Key
	t.mu.Lock()
	dir := t.dirLocked(path.Dir(key))
	name := path.Base(key)
	t.last++
	if id != 0 {
		t.nodes[id] = &fakeNode{node: namespace.Node{ID: id, Name: name, Object: o, ModTime: o.ModTime}, parent: dir}
	}
	t.nodes[t.last] = &fakeNode{node: namespace.Node{ID: t.last, Name: name, Object: o, ModTime: o.ModTime}, parent: dir}
	d := t.nodes[dir]
	if a, ok := t.attrs[id]; ok {
		t.attrs[t.last] = a
	}
	old := d.setLocked(name, t.last)
	d.node.ModTime = d.node.ModTime.Add(time.Second)
	t.mu.Unlock()
	t.tell(namespace.Change{Dir: dir, Name: name, Old: old})
}

// remove takes the name of a key away; that of a directory ends in "/".
func (t *fakeTree) remove(key string) {
	t.mu.Lock()
	name := path.Base(key)
	dir := t.dirLocked(path.Dir(strings.TrimSuffix(key, "/")))
	d := t.nodes[dir]
	old := d.setLocked(key[len(strings.TrimSuffix(key, "/"))-len(name):], 0)
	d.node.ModTime = d.node.ModTime.Add(time.Second)
	delete(t.markers, key)
	for p := path.Dir(strings.TrimSuffix(key, "/")); p != "." && len(t.nodes[t.dirLocked(p)].children) == 0 && !t.markers[p+"/"]; p = path.Dir(p) {
		t.nodes[t.dirLocked(path.Dir(p))].setLocked(path.Base(p)+"/", 0) // what has no key is gone
	}
	t.mu.Unlock()
	t.tell(namespace.Change{Dir: dir, Name: name, Old: old})
}

func (t *fakeTree) dirLocked(p string) uint64 {
	if p == "." {
		return 1
	}
	parent := t.dirLocked(path.Dir(p))
	name := path.Base(p)
	id := t.nodes[parent].children[name+"/"]
	if id == 0 {
		if id = t.paths[p]; id == 0 { // a directory's id is its path's, for ever
			t.last++
			id = t.last
			t.paths[p] = id
		}
		t.nodes[id] = &fakeNode{node: namespace.Node{ID: id, Dir: true, Name: name, ModTime: time.Unix(1e9, 0)}, parent: parent, children: map[string]uint64{}}
		t.nodes[parent].setLocked(name+"/", id)
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
	id := d.children[name+"/"]
	if id == 0 {
		id = d.children[strings.TrimSuffix(name, names.BesideTag)]
	}
	if id == 0 {
		return namespace.Node{}, fmt.Errorf("look up %s: %w", name, &namespace.Absent{TTL: t.absentTTL})
	}
	return t.nodeLocked(id), nil
}

func (t *fakeTree) nodeLocked(id uint64) namespace.Node {
	n := t.nodes[id].node
	if p := t.nodes[t.nodes[id].parent]; p != nil && !n.Dir && p.children[n.Name+"/"] != 0 {
		n.Name += names.BesideTag
	}
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
	return t.nodeLocked(t.nodes[t.nodes[id].parent].children[t.nodes[id].node.Name]), nil
}

func (t *fakeTree) ReadDir(_ context.Context, dir uint64, after string, each func(namespace.Node) bool) error {
	t.mu.Lock()
	d := t.nodes[dir]
	if d == nil {
		t.mu.Unlock()
		return hearth.ErrStale
	}
	after = strings.TrimSuffix(after, names.BesideTag) // as Node.Behind has it
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

// KeyOf, DirKey and NewID are Keys'.
func (t *fakeTree) KeyOf(dir uint64, name string) (link, key string, err error) {
	m, ok := names.ParseName(name)
	if !ok || m.Hashed || m.Segment == "" {
		return "", "", fmt.Errorf("no key can be named %q: %w", name, syscall.EINVAL)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key = m.Segment; dir != 1; dir = t.nodes[dir].parent {
		if t.nodes[dir] == nil {
			return "", "", hearth.ErrStale
		}
		key = t.nodes[dir].node.Name + "/" + key
	}
	return "fake", key, nil
}

func (t *fakeTree) DirKey(dir uint64) (link, prefix string, err error) {
	link, key, err := t.KeyOf(dir, "x")
	return link, strings.TrimSuffix(key, "x"), err
}

// Keys gives what is in a directory by its keys, the directory's own among them. A directory without any goes, as in the real tree.
func (t *fakeTree) Keys(_ context.Context, _, prefix, _ string, each func(*hearth.Object) bool) (int64, error) {
	t.mu.Lock()
	var keys []string
	if t.markers[prefix] {
		keys = append(keys, prefix)
	}
	for _, sort := range t.nodes[t.dirLocked(path.Dir(prefix+"x"))].sorted {
		keys = append(keys, prefix+sort)
	}
	t.mu.Unlock()
	for _, key := range keys {
		if !each(&hearth.Object{Key: key}) {
			break
		}
	}
	return 0, nil
}

func (t *fakeTree) File(ctx context.Context, _, key string) (namespace.Node, error) {
	t.mu.Lock()
	dir := t.dirLocked(path.Dir(key))
	t.mu.Unlock()
	return t.Lookup(ctx, dir, path.Base(key))
}

func (t *fakeTree) Attr(id uint64) (namespace.Attr, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.attrs[id]
	return a, ok
}

func (t *fakeTree) SetAttr(id uint64, a namespace.Attr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attrs[id] = a
	if n := t.nodes[id]; n != nil && !n.node.Dir { // its name may have another id
		now := t.nodes[n.parent].children[n.node.Name]
		if t.nodes[now] != nil && t.nodes[now].node.Object.Version == n.node.Object.Version {
			t.attrs[now] = a
		}
	}
	return nil
}

func (t *fakeTree) NewID() (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last, nil
}

// wrote is told what a key has; a key that ends in "/" is a directory's.
func (t *fakeTree) wrote(key string, o *hearth.Object, id uint64) {
	switch dir, isDir := strings.CutSuffix(key, "/"); {
	case o == nil:
		t.remove(key)
	case isDir:
		t.mu.Lock()
		t.dirLocked(dir)
		t.markers[key] = true
		t.mu.Unlock()
	default:
		t.putObject(*o, id)
	}
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

// fakeBucket is an origin in memory, without uploads in parts.
type fakeBucket struct {
	hearth.Uploader
	// meets is called before each request, without a lock; an error of it is the answer. nil means that all work.
	meets func(ctx context.Context, request string) error

	mu      sync.Mutex // guards the rest
	objects map[string]fakeStored
	puts    int
	asked   []string // requests that were done, such as "PUT key"
}

type fakeStored struct{ data, etag, draft string }

func (b *fakeBucket) do(ctx context.Context, request string, work func() error) error {
	if b.meets != nil {
		if err := b.meets(ctx, request); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, request)
	return work()
}

func (b *fakeBucket) PartSize(int64) int64 { return 1 << 20 }

func (b *fakeBucket) Put(ctx context.Context, u *hearth.Upload, body io.ReaderAt) (o hearth.Object, err error) {
	data := make([]byte, u.Size)
	if n, err := body.ReadAt(data, 0); int64(n) < u.Size {
		return o, err
	}
	err = b.do(ctx, "PUT "+u.Key, func() error {
		old, there := b.objects[u.Key]
		if u.IfNone && there || u.IfMatch != "" && u.IfMatch != old.etag {
			return hearth.ErrConflict
		}
		o = b.putLocked(u.Key, string(data), u.Draft)
		return nil
	})
	return o, err
}

func (b *fakeBucket) Copy(ctx context.Context, u *hearth.Upload, from *hearth.Object) (o hearth.Object, err error) {
	err = b.do(ctx, "COPY "+from.Key+" "+u.Key, func() error {
		source, there := b.objects[from.Key]
		if !there || source.etag != from.ETag {
			return hearth.ErrStale
		}
		if x, taken := b.objects[u.Key]; u.IfNone && taken && (!u.Again || x.etag != source.etag) {
			return hearth.ErrConflict
		}
		b.objects[u.Key] = source // an ETag is of the bytes
		o = b.objectLocked(u.Key)
		return nil
	})
	return o, err
}

func (b *fakeBucket) putLocked(key, data, draft string) hearth.Object {
	b.puts++
	b.objects[key] = fakeStored{data, "e" + strconv.Itoa(b.puts), draft}
	return b.objectLocked(key)
}

func (b *fakeBucket) objectLocked(key string) hearth.Object {
	x := b.objects[key]
	size := int64(len(x.data))
	return hearth.Object{Link: "fake", Key: key, ETag: x.etag, Size: size, Version: hearth.VersionOf("fake", key, x.etag, size)}
}

func (b *fakeBucket) Written(ctx context.Context, u *hearth.Upload) (o hearth.Object, err error) {
	err = b.do(ctx, "HEAD "+u.Key, func() error {
		if x, there := b.objects[u.Key]; !there || x.draft != u.Draft {
			return hearth.ErrConflict
		}
		o = b.objectLocked(u.Key)
		return nil
	})
	return o, err
}

func (b *fakeBucket) Delete(ctx context.Context, key, etag string) error {
	return b.do(ctx, "DELETE "+key, func() error {
		if x, there := b.objects[key]; there && etag != "" && etag != x.etag {
			return hearth.ErrConflict
		}
		delete(b.objects, key)
		return nil
	})
}

// base reads an object as a node does, as long as the bucket has that version.
func (b *fakeBucket) base(_ context.Context, o *hearth.Object, p []byte, off int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	x, there := b.objects[o.Key]
	if !there || x.etag != o.ETag {
		return hearth.ErrStale
	}
	copy(p, x.data[off:])
	return nil
}

// object is what a key has, nil for nothing.
func (b *fakeBucket) object(key string) *hearth.Object {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, there := b.objects[key]; !there {
		return nil
	}
	o := b.objectLocked(key)
	return &o
}

// put is what another node writes.
func (b *fakeBucket) put(key, data string) hearth.Object {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.putLocked(key, data, "")
}

// requests returns what was asked since the last call.
func (b *fakeBucket) requests() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := strings.Join(b.asked, ", ")
	b.asked = nil
	return all
}

// has returns an object's bytes, or "none".
func (b *fakeBucket) has(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x, there := b.objects[key]; there {
		return x.data
	}
	return "none"
}
