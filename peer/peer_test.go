package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/peer/wire"
)

// patience is how long a test waits for a fact on a busy machine.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	// memberlist does not wait for its last probe, which takes up to eight intervals.
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err = goleak.Find(); err == nil {
			break
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// quick is the timing of a ring in tenths of a second. A node has five seconds to deny
// that it is dead, though: one that waits for its processor would leave the ring, and its
// blocks would be read once more.
func quick() members.Timing {
	return members.Timing{Probe: 200 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond, Gossip: 20 * time.Millisecond,
		PushPull: time.Second, Suspicion: 25, Forget: 300 * time.Millisecond, Batch: 20 * time.Millisecond,
		Rejoin: 300 * time.Millisecond, Retry: 100 * time.Millisecond, Dial: 2 * time.Second}
}

// bucket is the origin of all nodes.
type bucket struct{ gets atomic.Int64 }

// of is the bucket as a node reads it.
func (k *bucket) of(p *hearth.Pool) hearth.Source {
	return hearthtest.Source(sourceFunc(func(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
		k.gets.Add(1)
		v, err := p.Alloc(ctx, n)
		if err == nil {
			hearthtest.Fill(v.Bytes(), b.Object.Key, b.Offset()+int64(off), 1)
		}
		return v, err
	}))
}

type sourceFunc func(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)

func (f sourceFunc) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return f(ctx, b, off, n)
}

// node is a node of the ring: the tiers that a node has, without a disk.
type node struct {
	*Ring
	router *route.Router
	mem    *cache.RAM
	first  *route.Table // what it knew before it announced itself
	pool   *hearth.Pool
	own    *cache.Tier
	theirs *cache.Tier
}

func (n *node) reads(t *testing.T, b hearth.Block) {
	t.Helper()
	from := n.theirs
	if n.router.Mine(b) {
		from = n.own
	}
	hearthtest.CheckGet(t, from, b, 0, b.Len(), 1)
}

func clusterOf(t *testing.T, key, name string) *secret.Cluster {
	t.Helper()
	k, err := secret.Parse(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.Cluster(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start starts a node that asks others for the ring.
func start(t *testing.T, k *bucket, cluster *secret.Cluster, id byte, seeds ...*node) *node {
	t.Helper()
	n := &node{pool: hearth.NewPool(64 << 20)}
	c := members.Config{ID: members.ID{15: id}, Name: fmt.Sprint("node-", id), Cluster: "test", Listen: "127.0.0.1:0", Donated: 1 << 30,
		Protocol: members.Protocol{Speaks: 1}, Log: slog.New(slog.DiscardHandler), Timing: quick()}
	for _, s := range seeds {
		c.Seeds = append(c.Seeds, s.members.Address().String())
	}
	identity, err := cluster.Identity(c.ID.String(), secret.Options{Within: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	n.router = route.New(c.ID.String())
	n.mem = cache.NewRAM(n.pool, 32<<20)
	n.own = cache.Memory(n.mem, n.router.Former(k.of(n.pool)), cache.Always)
	n.theirs = cache.Through(nil, n.router.Fill(n.own, k.of(n.pool)), cache.Always)
	fill := func(ctx context.Context, b hearth.Block, off, size int) (*hearth.View, error) {
		if size > 0 {
			return n.own.Get(ctx, b, off, size)
		}
		v, err := n.own.Get(ctx, b, 0, b.Len())
		if err == nil {
			v.Release()
		}
		return nil, err
	}
	held := cache.Local(n.mem)
	peek := func(ctx context.Context, b hearth.Block, off, size int) (*hearth.View, error) {
		if size == 0 && n.mem.Has(b.ID()) {
			return nil, nil
		}
		return held.Get(ctx, b, off, size)
	}
	n.Ring, err = Start(t.Context(), Config{Members: c, GossipKey: cluster.GossipKey(), Identity: identity, Pool: n.pool, Router: n.router, Silence: patience,
		Handler: wire.Handler{Fill: fill, Peek: peek, Calls: map[uint16]wire.Answer{
			7: func(context.Context, []byte) (*hearth.View, error) { return hearth.NewView([]byte{id}), nil },
		}}})
	if err != nil {
		t.Fatalf("start node %d: %v", id, err)
	}
	for _, s := range seeds {
		if _, ok := s.router.Table().Map.Node(c.ID.String()); ok {
			t.Errorf("node %d is an owner before it says that it can be asked", id)
		}
	}
	if n.first = n.router.Table(); n.first == nil {
		t.Fatalf("node %d does not know what it owns before the others ask it", id)
	}
	if _, ok := n.first.Map.Node(c.ID.String()); !ok {
		t.Errorf("node %d announces itself and does not take itself for an owner yet", id)
	}
	if err := n.Announce(t.Context()); err != nil {
		t.Errorf("announce node %d: %v", id, err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close node %d: %v", id, err)
		}
		n.theirs.Close()
		n.own.Close()
		n.mem.Close()
	})
	return n
}

func TestWhoIsShownIsAsked(t *testing.T) {
	// A ring that shows another node as an owner already reads by it: both are one Table,
	// which is there as soon as a snapshot was taken.
	self, other := members.ID{1}, members.ID{2}
	r := &Ring{c: Config{Members: members.Config{ID: self}, Pool: hearth.NewPool(1 << 20), Router: route.New(self.String())}, stop: t.Context(), peers: map[members.ID]*neighbour{}}
	t.Cleanup(func() {
		for _, p := range r.peers {
			p.Close()
		}
	})
	s := &members.Snapshot{Members: []members.Member{{ID: self, State: members.Active, Donated: 1 << 30}}}
	r.take(s)
	if table := r.c.Router.Table(); len(table.Map.Nodes()) != 1 || len(table.Peers) != 0 || table.Changed.IsZero() {
		t.Errorf("alone: %+v", table)
	}
	s.Members = append(s.Members, members.Member{ID: other, State: members.Active, Donated: 1 << 62})
	r.take(s)
	if id, at := r.c.Router.Owner(1); id != other.String() || at != route.There || r.c.Router.Peer(id) == nil {
		t.Errorf("%q owns nearly all, and is at %v", id, at)
	}
	before := r.c.Router.Table()
	r.take(s)
	if after := r.c.Router.Table(); after.Map != before.Map || after.Changed != before.Changed || after.Peers[other.String()] != before.Peers[other.String()] {
		t.Errorf("nothing changed: %+v, then %+v", before, after)
	}
}

// asked is what a node asked of another.
func (n *node) asked(id members.ID) wire.Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Ring.peers[id].Stats()
}

// agree waits until all nodes know the same number of owners.
func agree(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		if !hearthtest.Eventually(t.Context(), patience, func() bool { return len(n.router.Table().Map.Nodes()) == len(nodes) }) {
			t.Fatalf("%v, want %d", n.router.Table().Map.Nodes(), len(nodes))
		}
	}
}

const theKey = "6f1c5e0c2b9d4a7788e3f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6"

func blocks(n int) (list []hearth.Block) {
	for i := range n {
		list = append(list, hearthtest.NewObject(fmt.Sprintf("d%d/x", i), int64(10_000+i), 1).Block(0))
	}
	return list
}

func TestARing(t *testing.T) {
	// Three nodes read each block from the bucket once. A node that joins finds its
	// blocks at their former owners. A node that leaves or falls silent makes no read
	// fail.
	k, cluster, set := &bucket{}, clusterOf(t, theKey, "test"), blocks(60)
	a := start(t, k, cluster, 1)
	b := start(t, k, cluster, 2, a)
	c := start(t, k, cluster, 3, a)
	agree(t, a, b, c)
	for _, n := range []*node{a, b, c} {
		for _, x := range set {
			n.reads(t, x)
		}
	}
	if got := k.gets.Load() - int64(len(set)); got != 0 {
		t.Errorf("the bucket was read %d times more than there are blocks", got)
	}
	asked := a.asked(members.ID{15: 2})
	if _, served := b.Ring.Stats(); asked.Answers == 0 || served.Answers == 0 {
		t.Errorf("node 1 asked node 2: %+v; which answered %+v", asked, served)
	}
	if v, err := a.router.Call(t.Context(), members.ID{15: 3}.String(), 7, nil); err != nil || v.Bytes()[0] != 3 {
		t.Errorf("call: %v, %v", v, err)
	} else {
		v.Release()
	}
	if _, err := a.router.Call(t.Context(), members.ID{15: 9}.String(), 7, nil); !errors.Is(err, wire.ErrDown) {
		t.Errorf("call nobody: %v", err)
	}

	d := start(t, k, cluster, 4, b)
	// The others ask the joiner for what it owns as soon as they take it for one of them.
	suspects := slices.ContainsFunc(b.Members().Members, func(m members.Member) bool { return m.Health != members.Alive })
	if !suspects && (len(d.first.Map.Nodes()) != 4 || len(d.first.Peers) != 3) {
		t.Errorf("before it announced itself the joiner knew %v", d.first.Map.Nodes())
	}
	agree(t, a, b, c, d)
	before := k.gets.Load()
	for _, x := range set {
		d.reads(t, x)
	}
	s := d.router.Stats()
	if got := k.gets.Load() - before; got > s.Late || s.Found+s.Late == 0 {
		t.Errorf("the one who joined read the bucket %d times: %+v", got, s)
	}

	if err := d.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	agree(t, a, b, c)
	if err := c.Ring.Close(); err != nil { // without telling the others
		t.Error(err)
	}
	for _, n := range []*node{a, b} {
		for _, x := range set {
			n.reads(t, x)
		}
	}
	agree(t, a, b)
}

func TestLoadAtTheOwner(t *testing.T) {
	// A block is loaded at its owner, and its bytes do not travel.
	k, cluster := &bucket{}, clusterOf(t, theKey, "test")
	a := start(t, k, cluster, 1)
	b := start(t, k, cluster, 2, a)
	agree(t, a, b)
	for _, x := range blocks(20) {
		if a.router.Mine(x) {
			continue
		}
		if mine, err := a.router.Load(t.Context(), x); mine || err != nil || !b.mem.Has(x.ID()) || a.mem.Has(x.ID()) {
			t.Errorf("load %v: %v, %v; held there: %v, here: %v", x.ID(), mine, err, b.mem.Has(x.ID()), a.mem.Has(x.ID()))
		}
	}
	if s := a.router.Stats(); s.Loaded == 0 || s.Loaded != k.gets.Load() {
		t.Errorf("%+v, and the bucket was read %d times", s, k.gets.Load())
	}
}

func TestStrangersGetNothing(t *testing.T) {
	// Another cluster's node does not join. If it knows the address of reads, its
	// connection ends before anything is answered.
	k, cluster := &bucket{}, clusterOf(t, theKey, "test")
	a := start(t, k, cluster, 1)
	other := clusterOf(t, "0"+theKey[1:], "test")
	identity, err := other.Identity(members.ID{15: 2}.String(), secret.Options{Within: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := members.Config{ID: members.ID{15: 2}, Name: "b", Cluster: "test", Listen: "127.0.0.1:0", Donated: 1 << 30, Protocol: members.Protocol{Speaks: 1},
		Seeds: []string{a.members.Address().String()}, Log: slog.New(slog.DiscardHandler), Timing: quick()}
	if _, err := Start(t.Context(), Config{Members: c, GossipKey: other.GossipKey(), Identity: identity, Pool: a.pool, Router: route.New(c.ID.String()),
		Handler: wire.Handler{Fill: a.own.Get, Peek: a.mem.Get}}); !errors.Is(err, members.ErrRefused) {
		t.Errorf("start with another key: %v", err)
	}
	conn, err := net.Dial("tcp", a.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := identity.Client(t.Context(), conn, ""); !errors.Is(err, secret.ErrKey) {
		t.Errorf("a connection with another key: %v", err)
	}
	if _, s := a.Ring.Stats(); s.Requests != 0 {
		t.Errorf("%+v", s)
	}
	c.ID = members.ID{15: 3}
	if _, err := Start(t.Context(), Config{Members: c, Identity: identity}); err == nil {
		t.Error("a node has another's identity")
	}
}
