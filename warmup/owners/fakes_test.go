package owners

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
	"github.com/hearthfs/hearth/warmup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeOrigin is the bucket of all nodes: a flat directory that counts its requests. It is
// also the warmup.Names of each node.
type fakeOrigin struct {
	mu      sync.Mutex // guards the rest
	objects []hearth.Object
	gone    map[string]bool
	bytes   int64
	gets    int
	onGet   func(n int) // called before each request, without the lock
}

func (f *fakeOrigin) put(key string, size int64) *hearth.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects = append(f.objects, hearth.Object{Link: "l", Key: key, ETag: "e", Size: size, Version: hearth.VersionOf("id", key, "e", size)})
	slices.SortFunc(f.objects, func(a, b hearth.Object) int { return strings.Compare(a.Key, b.Key) })
	o := hearth.Object{Link: "l", Key: key, ETag: "e", Size: size, Version: hearth.VersionOf("id", key, "e", size)}
	return &o
}

// fill puts many small objects and two that have several extents; it returns their bytes.
func (f *fakeOrigin) fill() (files, bytes int64) {
	for i := range 300 {
		f.put(fmt.Sprintf("f%03d", i), int64(1000+i))
		bytes += int64(1000 + i)
	}
	f.put("large", 40<<20+5)
	f.put("other", 17<<20)
	return 302, bytes + 57<<20 + 5
}

// Get is hearth.Source's.
func (f *fakeOrigin) Get(ctx context.Context, b hearth.Block, off, n int) (v *hearth.View, err error) {
	if err := f.ask(b); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += int64(n)
	return hearth.NewView(make([]byte, n)), nil
}

func (f *fakeOrigin) ask(b hearth.Block) error {
	f.mu.Lock()
	f.gets++
	n, told, gone := f.gets, f.onGet, f.gone[b.Object.Key]
	f.mu.Unlock()
	if told != nil {
		told(n)
	}
	if gone {
		return hearth.ErrStale
	}
	return nil
}

// Has and FromPeer are hearth.Source's.
func (f *fakeOrigin) Has(hearth.ID) bool         { return false }
func (f *fakeOrigin) FromPeer(hearth.Block) bool { return false }

// GetMany is hearth.Source's: one request.
func (f *fakeOrigin) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	err := f.ask(first)
	for i := range n {
		b := first.Object.Block(first.Index + int64(i))
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			each(b, nil, err)
			return
		}
		f.mu.Lock()
		f.bytes += int64(b.Len())
		f.mu.Unlock()
		if !each(b, hearth.NewView(make([]byte, b.Len())), nil) {
			return
		}
	}
}

func (f *fakeOrigin) asked() (gets int, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gets, f.bytes
}

const rootDir = 1

// Find is warmup.Names': there is the root alone.
func (f *fakeOrigin) Find(context.Context, string) ([]warmup.Entry, error) {
	return []warmup.Entry{{ID: rootDir, Dir: true}}, nil
}

// ReadSince is warmup.Names'.
func (f *fakeOrigin) ReadSince(_ context.Context, _ uint64, _ int64, after string, each func(warmup.Entry) bool) error {
	f.mu.Lock()
	objects := slices.Clone(f.objects)
	f.mu.Unlock()
	for _, o := range objects {
		if o.Key > after && !each(warmup.Entry{Name: o.Key, Object: o}) {
			break
		}
	}
	return nil
}

// Lookup is warmup.Names'.
func (f *fakeOrigin) Lookup(_ context.Context, _ uint64, name string) (warmup.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects {
		if o.Key == name {
			return warmup.Entry{Name: name, Object: o}, nil
		}
	}
	return warmup.Entry{}, errors.New("no such name")
}

// Hidden and Now are warmup.Names'.
func (f *fakeOrigin) Hidden(uint64) (int64, error) { return 0, nil }
func (f *fakeOrigin) Now() int64                   { return 1 }

// fakeDisk is a disk tier in memory.
type fakeDisk struct {
	mu     sync.Mutex // guards the rest
	blocks map[hearth.ID]bool
	bad    map[hearth.ID]bool
	full   bool
	// declines is the block that is not kept.
	declines hearth.ID
	flushes  int
	flush    error // the error of a flush
}

// Takes and Keep are hearth.Store's.
func (d *fakeDisk) Takes(hearth.Block) bool { return true }

func (d *fakeDisk) Keep(_ context.Context, b hearth.Block, v *hearth.View) error { return d.Put(b, v) }

// Put is hearth.Store's.
func (d *fakeDisk) Put(b hearth.Block, _ *hearth.View) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.ID() == d.declines {
		return errors.New("declined")
	}
	if d.full {
		return errors.New("no room")
	}
	d.blocks[b.ID()] = true
	return nil
}

// Get is hearth.Source's.
func (d *fakeDisk) Get(_ context.Context, b hearth.Block, _, n int) (*hearth.View, error) {
	if !d.Has(b.ID()) {
		return nil, hearth.ErrMiss
	}
	return hearth.NewView(make([]byte, n)), nil
}

// Has and Flush are hearth.Store's, Spare is Disk's.
func (d *fakeDisk) Has(id hearth.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.blocks[id]
}

func (d *fakeDisk) Flush(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes++
	return d.flush
}

func (d *fakeDisk) Spare(hearth.Block, time.Time) (bool, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.full, true
}

func (d *fakeDisk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.blocks)
}

// set changes the disk.
func (d *fakeDisk) set(do func(*fakeDisk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do(d)
}

// Verify and what follows are warmup.Checker's.
func (d *fakeDisk) Verify(_ context.Context, o *hearth.Object, first, n int64, _ warmup.Pace) (v warmup.Verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := first; i < first+n; i++ {
		switch b := o.Block(i); {
		case d.bad[b.ID()]:
			v.Corrupt += int64(b.Len())
			v.Cause = "checksum mismatch"
		case !d.blocks[b.ID()]:
			v.Missing += int64(b.Len())
			v.Cause = "not in the disk cache"
		default:
			v.Whole += int64(b.Len())
		}
	}
	return v
}

func (d *fakeDisk) Files(context.Context, warmup.Pace, func(file, cause string)) error { return nil }
func (d *fakeDisk) Refresh(context.Context, uint64, int64) error                       { return nil }
func (d *fakeDisk) Parent(context.Context, string) (warmup.Entry, error) {
	return warmup.Entry{ID: rootDir, Dir: true}, nil
}
func (d *fakeDisk) Changes(func(dir uint64, name string, was func() (warmup.Entry, error))) func() {
	return func() {}
}

// fakeRoom has one directory.
type fakeRoom int64

func (fakeRoom) Needs(o *hearth.Object) (int, int64)   { return 0, o.Size }
func (r fakeRoom) Rooms([]string) []int64              { return []int64{int64(r)} }
func (r fakeRoom) Free() []int64                       { return []int64{int64(r) / 2} }
func (fakeRoom) Covered(string, []string) bool         { return true }
func (fakeRoom) Within(targets []string) []*warmup.Set { return []*warmup.Set{nil} }

// fakeNode is a node of a ring: fake tiers, and a real server.
type fakeNode struct {
	id       string
	pool     *hearth.Pool
	disk     *fakeDisk
	own      *cache.Tier
	served   *Served
	owners   *Owners
	router   *route.Router
	slowed   atomic.Int64
	fills    atomic.Int64 // that were answered, each for a block
	peeks    atomic.Int64 // that were answered
	room     fakeRoom
	listener net.Listener
	end      func()
	serving  sync.WaitGroup

	mu    sync.Mutex // guards peers
	peers map[string]*wire.Peer
}

// Names are the names of the nodes that it knows, by id.
func (n *fakeNode) Names() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]string{n.id: "name-" + n.id}
	for id := range n.peers {
		all[id] = "name-" + id
	}
	return all
}

// peekAt is ServedOptions.Peek.
func (n *fakeNode) peekAt(ctx context.Context, id string, b hearth.Block) (*hearth.View, error) {
	n.mu.Lock()
	p := n.peers[id]
	n.mu.Unlock()
	if p == nil {
		return nil, wire.ErrDown
	}
	return p.Peek(ctx, b, 0, b.Len())
}

// rig is some nodes with one origin.
type rig struct {
	t      testing.TB
	origin *fakeOrigin
	nodes  []*fakeNode
}

func newRig(t testing.TB, n int) *rig {
	r := &rig{t: t, origin: &fakeOrigin{gone: map[string]bool{}}}
	for i := range n {
		x := &fakeNode{id: fmt.Sprintf("n%d", i), pool: hearth.NewPool(64 << 20), room: fakeRoom(math.MaxInt64 / 1024),
			disk: &fakeDisk{blocks: map[hearth.ID]bool{}, bad: map[hearth.ID]bool{}}}
		x.router = route.New(x.id)
		x.own = cache.Through(x.disk, r.origin, cache.Always)
		x.served = NewServed(ServedOptions{Own: x.own, Ahead: x.own, Disk: x.disk, Known: r.known, Peek: x.peekAt,
			Readers: func() int64 { return 0 }, Throttled: x.slowed.Load, Connections: func() int { return 56 }})
		x.owners = New(Options{Router: x.router, Names: x.Names, Disk: x.disk, Served: x.served})
		r.serve(x)
		r.nodes = append(r.nodes, x)
		t.Cleanup(func() {
			x.owners.Close()
			x.mu.Lock()
			peers := x.peers
			x.mu.Unlock()
			for _, p := range peers {
				p.Close()
			}
			x.end()
			x.served.Close()
			x.own.Close()
		})
	}
	r.join(r.nodes...)
	return r
}

func (r *rig) known(o *hearth.Object) error {
	if o.Version != hearth.VersionOf("id", o.Key, o.ETag, o.Size) {
		return &wire.Error{Class: wire.Mismatch, Text: "another version"}
	}
	return nil
}

// serve answers peers until end.
func (r *rig) serve(x *fakeNode) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	x.listener = l
	server := wire.NewServer(wire.ServerOptions{Pool: x.pool, Handler: wire.Handler{
		Fill: func(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
			x.fills.Add(1)
			return nil, x.served.Load(ctx, b)
		},
		Run: func(ctx context.Context, first hearth.Block, n int, load bool, each func(hearth.Block, *hearth.View, error) bool) {
			x.fills.Add(int64(n))
			x.served.Run(ctx, first, n, each)
		},
		Peek: func(_ context.Context, b hearth.Block, _, n int) (*hearth.View, error) {
			if b.Object.Key == "lost" {
				return nil, hearth.ErrMiss
			}
			x.peeks.Add(1)
			return hearth.NewView(make([]byte, n)), nil
		},
		Calls: x.served.Calls(),
	}})
	ctx, cancel := context.WithCancel(context.Background())
	x.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			x.serving.Go(func() { _ = server.Serve(ctx, conn, "a peer") })
		}
	})
	x.end = func() {
		cancel()
		l.Close()
		x.serving.Wait()
	}
}

// join makes these nodes the ring, as all of them see it.
func (r *rig) join(nodes ...*fakeNode) {
	var all []place.Node
	for _, x := range nodes {
		all = append(all, place.Node{ID: x.id, Weight: 1 << 30})
	}
	where, err := place.New(all)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, x := range nodes {
		x.mu.Lock()
		gone := x.peers
		x.peers = map[string]*wire.Peer{}
		for _, y := range nodes {
			if y == x {
				continue
			}
			if x.peers[y.id] = gone[y.id]; gone[y.id] == nil {
				at := y.listener.Addr().String()
				x.peers[y.id] = wire.NewPeer(y.id, wire.PeerOptions{Pool: x.pool, Dial: func(ctx context.Context) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "tcp", at)
				}})
			}
			delete(gone, y.id)
		}
		table := route.Table{Map: where, Peers: map[string]route.Peer{}}
		for id, p := range x.peers {
			table.Peers[id] = p
		}
		x.mu.Unlock()
		x.router.Set(table)
		for _, p := range gone {
			p.Close()
		}
	}
}

// engine is warm-up at a node.
func (r *rig) engine(x *fakeNode) *warmup.Engine { return r.engineOf(x, x.owners) }

// engineOf is warm-up at a node with these owners.
func (r *rig) engineOf(x *fakeNode, owners *Owners) *warmup.Engine {
	r.t.Helper()
	checker, room := owners.Join(x.disk, x.room)
	files := &warmup.Files{Dir: r.t.TempDir(), Log: func(what string, err error) { r.t.Log(what, err) }}
	e, err := warmup.Open(warmup.Options{Source: x.own, Keeper: x.disk, Owners: owners, Checker: checker, Room: room, Names: r.origin, Files: files,
		Readers: func() int64 { return 0 }, Connections: func() int { return 56 },
		Throttled: func() int64 { return owners.Throttled(x.slowed.Load()) }, Log: func(what string, err error) { r.t.Log(what, err) }})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(e.Close)
	return e
}

// start begins a job over everything.
func (r *rig) start(e *warmup.Engine, q warmup.Request) string {
	r.t.Helper()
	q.Targets = []string{"/"}
	j, err := e.Submit(q, nil, false, func(s string) string { return s })
	if err != nil {
		r.t.Fatal(err)
	}
	return j.ID
}

// over waits until a job is.
func (r *rig) over(e *warmup.Engine, id string) warmup.View {
	r.t.Helper()
	for {
		v, changed, err := e.Get(id)
		if err != nil {
			r.t.Fatal(err)
		}
		if v.State.Over() {
			return v
		}
		<-changed
	}
}

// find is the node of an id.
func (r *rig) find(id string) *fakeNode {
	return r.nodes[slices.IndexFunc(r.nodes, func(x *fakeNode) bool { return x.id == id })]
}

// blocks calls each for every block there is.
func (r *rig) blocks(each func(b hearth.Block)) {
	for i := range r.origin.objects {
		o := &r.origin.objects[i]
		for k := range o.Blocks() {
			each(o.Block(k))
		}
	}
}
