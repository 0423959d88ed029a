package node

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/node/wiring"
	"github.com/hearthfs/hearth/peer/wire"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/owners"
)

// seeding gives what was just written to those that own its blocks, before anybody reads it: to this node's disk, or to other nodes,
// which fetch it from here. A draft's files stay until that is done, so that meanwhile this node's readers have them. It is the
// last to get room, memory and time, and what it has no room for is dropped: then the first reader gets it from the bucket.
type seeding struct {
	pool *hearth.Pool
	disk owners.Disk
	// offer has another node fetch blocks of an extent from here, as owners.Owners.Seed does. nil means that there is none.
	offer func(ctx context.Context, first hearth.Block, n int) (taken int64, mine bool, err error)
	gate  *warmup.Gate
	// most is how many bytes of drafts wait or are being given away. One draft may always.
	most  int64
	queue chan *seed

	mu      sync.Mutex // guards what follows; never held across I/O
	closed  bool
	waiting int64              // bytes of what waits and is being given away
	giving  map[*seed]given    // what is being given away
	lent    map[[16]byte]*seed // of it, by version, for other nodes

	seeded, dropped atomic.Int64 // bytes of objects
}

// seed is a draft that was published. It is a draft.Seed.
type seed struct {
	draft interface {
		Object() (hearth.Object, error)
		Read(p []byte, off int64) error
		Close()
	}
	size int64
}

// given is an attempt to give a draft's blocks away.
type given struct {
	end   context.CancelFunc
	ended chan struct{}
}

const (
	// seeders work at a time. Each has one block in memory. A small file costs a round trip to its owner, or two.
	seeders = 4
	// mostSeeds wait at most, each with a draft: a kilobyte.
	mostSeeds = 1 << 14
	// givesUp bounds how long a writer waits until what is being given away has ended: a disk that hangs may hold it.
	givesUp = 2 * time.Second
	// seedShare is the part of the disk tier that drafts may take which wait for this: a sixteenth.
	seedShare = 16
)

func newSeeding(pool *hearth.Pool, disk owners.Disk, most int64) *seeding {
	return &seeding{pool: pool, disk: disk, most: most, gate: warmup.NewGate(), queue: make(chan *seed, mostSeeds), giving: map[*seed]given{}, lent: map[[16]byte]*seed{}}
}

// add takes a draft that was published, if there is room. It never waits.
func (s *seeding) add(d *draft.Draft, o *hearth.Object) {
	if o.Size <= 0 || !o.Cacheable() {
		return
	}
	x, err := d.Seed()
	if err != nil { // it was written meanwhile, or before a restart
		s.dropped.Add(o.Size)
		return
	}
	s.put(&seed{x, o.Size})
}

func (s *seeding) put(x *seed) {
	s.mu.Lock()
	room := !s.closed && (s.waiting == 0 || s.waiting+x.size <= s.most)
	if room {
		select {
		case s.queue <- x:
			s.waiting += x.size
		default:
			room = false
		}
	}
	s.mu.Unlock()
	if !room {
		s.dropped.Add(x.size)
		x.draft.Close()
	}
}

// done lets a draft go.
func (s *seeding) done(x *seed, seeded int64) {
	s.mu.Lock()
	s.waiting -= x.size
	s.mu.Unlock()
	x.draft.Close()
	s.seeded.Add(seeded) // at last: who sees the counters finds that nothing is under way
	s.dropped.Add(x.size - seeded)
}

// clear drops all that waits or is being given away, so that others have its room. It reports whether there was anything.
func (s *seeding) clear() (any bool) {
	for waits := true; waits; {
		select {
		case x := <-s.queue:
			any = true
			s.done(x, 0)
		default:
			waits = false
		}
	}
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.giving))
	s.mu.Unlock()
	for _, g := range all {
		g.end()
		any = true
	}
	late := time.NewTimer(givesUp)
	defer late.Stop()
	for _, g := range all {
		select {
		case <-g.ended:
		case <-late.C:
			return any
		}
	}
	return any
}

// run works until the context ends. Nothing waits any more when it returns.
func (s *seeding) run(ctx context.Context, p warmup.Pressure) {
	var work sync.WaitGroup
	work.Go(func() { s.gate.Run(ctx, p) })
	for range seeders {
		work.Go(func() {
			for {
				select {
				case x := <-s.queue:
					s.one(ctx, x)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	work.Wait()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.clear()
}

// one gives a draft's blocks to their owners, until that is ended.
func (s *seeding) one(ctx context.Context, x *seed) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	s.mu.Lock()
	s.giving[x] = given{cancel, ended}
	s.mu.Unlock()
	seeded := s.give(ctx, x)
	s.mu.Lock()
	delete(s.giving, x)
	s.mu.Unlock()
	s.done(x, seeded)
}

// give gives a draft's blocks to their owners, and returns how many bytes these hold then.
func (s *seeding) give(ctx context.Context, x *seed) (seeded int64) {
	o, err := x.draft.Object()
	if err != nil {
		return 0
	}
	share := s.gate.Join()
	defer share.Leave()
	defer s.lend(&o, x)()
	for first := int64(0); first < o.Blocks() && ctx.Err() == nil; first += hearth.ExtentBlocks {
		if now, err := x.draft.Object(); err != nil || now.Version != o.Version {
			break // nobody needs the rest
		}
		seeded += s.extent(ctx, share, x, o.Block(first), int(min(hearth.ExtentBlocks, o.Blocks()-first)))
	}
	return seeded
}

// extent gives the blocks of one extent away.
func (s *seeding) extent(ctx context.Context, share *warmup.GateShare, x *seed, first hearth.Block, n int) (bytes int64) {
	pass, err := share.Enter(ctx, false)
	if err != nil {
		return 0
	}
	defer func() { pass.Exit(ctx, bytes) }()
	if s.offer != nil {
		taken, mine, err := s.offer(ctx, first, n)
		if err != nil || !mine {
			return taken // who does not take it asks the bucket later
		}
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		b := first.Object.Block(first.Index + int64(i))
		if owners.Bring(ctx, pass, s.disk, b, func() (*hearth.View, error) { return s.read(ctx, x, b) }) {
			bytes += int64(b.Len())
		}
		pass.Rest(ctx)
	}
	return bytes
}

func (s *seeding) read(ctx context.Context, x *seed, b hearth.Block) (*hearth.View, error) {
	v, err := s.pool.Alloc(ctx, b.Len())
	if err != nil {
		return nil, err
	}
	if err := x.draft.Read(v.Bytes(), b.Offset()); err != nil {
		v.Release()
		return nil, err
	}
	return v, nil
}

// lend has other nodes find the bytes of a version here by Peek, until end.
func (s *seeding) lend(o *hearth.Object, x *seed) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent[o.Version] = x
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lent[o.Version] == x {
			delete(s.lent, o.Version)
		}
	}
}

func (s *seeding) lentAs(id hearth.ID) *seed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent[id.Version]
}

// local is what this node's stores hold, for Peeks, and what it seeds just now.
type local struct {
	held interface { // wiring.Answers.Local
		hearth.Getter
		Has(id hearth.ID) bool
	}
	seeds *atomic.Pointer[seeding]
}

// Get implements hearth.Getter.
func (l local) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	v, err := l.held.Get(ctx, b, off, n)
	s := l.seeds.Load()
	if err == nil || s == nil || ctx.Err() != nil {
		return v, err
	}
	x := s.lentAs(b.ID())
	if x == nil {
		return nil, err
	}
	all, failed := s.read(ctx, x, b)
	if failed != nil {
		return nil, err
	}
	defer all.Release()
	return all.Slice(off, n), nil
}

// Has reports whether Get has the block, without reading it.
func (l local) Has(id hearth.ID) bool {
	if l.held.Has(id) {
		return true
	}
	s := l.seeds.Load()
	return s != nil && s.lentAs(id) != nil
}

// lending adds what the node seeds to what it answers Peeks from.
func (n *Node) lending(a wiring.Answers) wiring.Answers {
	a.Local = local{a.Local, &n.drafts.seeds}
	return a
}

// openSeeding begins to seed what is published from now on.
func (n *Node) openSeeding() {
	most := int64(0)
	for _, d := range n.dirs {
		most += d.Budget / seedShare
	}
	s := newSeeding(n.pool, n.disk, most)
	if n.ring != nil {
		s.offer = n.ring.owners.Seed
	}
	n.drafts.seeds.Store(s)
	n.group.Go(func() error {
		s.run(n.ctx, warmup.Pressure{Readers: n.readers, Throttled: n.throttled, Most: n.forWarmUp})
		return nil
	})
}

// seed has what was published offered to the owners of its blocks.
func (n *Node) seed(d *draft.Draft, o *hearth.Object) {
	l, s := n.links.named(o.Link), n.drafts.seeds.Load()
	if l != nil && s != nil && !l.NoSeed {
		s.add(d, o)
	}
}

// room is asked before drafts get more bytes: what only waits to be seeded gives way.
func (n *Node) room(dir string, bytes int64) error {
	err := n.disk.Room(dir, bytes)
	if s := n.drafts.seeds.Load(); err != nil && s != nil && s.clear() {
		err = n.disk.Room(dir, bytes)
	}
	return err
}

// seedFrom asks the node that wrote a block for it. Where the link says seed: off, nothing is taken that is not the bucket's word.
func (n *Node) seedFrom(ctx context.Context, id string, b hearth.Block) (*hearth.View, error) {
	if l := n.links.named(b.Object.Link); l == nil || l.NoSeed {
		return nil, hearth.ErrRefused
	}
	p := n.ring.Peer(id)
	if p == nil {
		return nil, wire.ErrDown
	}
	return p.Peek(ctx, b, 0, b.Len())
}
