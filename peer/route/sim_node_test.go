//go:build !race

package route

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
)

// simStore keeps what it was given.
type simStore struct {
	sim  *sim
	mu   sync.Mutex // guards held
	held map[hearth.ID]bool
	full bool // takes nothing
}

func (s *simStore) Has(id hearth.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[id]
}

func (s *simStore) Get(_ context.Context, b hearth.Block, _, n int) (*hearth.View, error) {
	if !s.Has(b.ID()) {
		return nil, hearth.ErrMiss
	}
	return s.sim.view(n), nil
}

func (s *simStore) Put(b hearth.Block, _ *hearth.View) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[b.ID()] = !s.full
	return nil
}

// Takes, Keep and Flush are hearth.Store's.
func (s *simStore) Takes(hearth.Block) bool { return true }

func (s *simStore) Keep(_ context.Context, b hearth.Block, v *hearth.View) error { return s.Put(b, v) }

func (s *simStore) Flush(context.Context) error { return nil }

// trail is the nodes that a request has gone through.
type trail struct{}

// simPeer is the way to a node.
type simPeer struct {
	Peer // nil: nobody calls its other methods
	to   *simNode
}

// travel is a hop, which a dead node does not answer.
func (p simPeer) travel(ctx context.Context) (context.Context, error) {
	way, _ := ctx.Value(trail{}).([]string)
	time.Sleep(distance(way[len(way)-1], p.to.id))
	if p.to.isDead(p.to.id) {
		select {
		case <-time.After(simSilence):
			return nil, wire.ErrSilent
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if way[len(way)-1] == p.to.id {
		p.to.fault("a node asks itself")
		return nil, hearth.ErrRefused
	}
	return context.WithValue(ctx, trail{}, append(slices.Clone(way), p.to.id)), nil
}

func (p simPeer) Fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if err := p.first(ctx); err != nil {
		return nil, err
	}
	ctx, err := p.travel(ctx)
	if err != nil {
		return nil, err
	}
	return p.to.own.Get(ctx, b, off, n)
}

// first refuses a request that has made more than one hop.
func (p simPeer) first(ctx context.Context) error {
	if way := ctx.Value(trail{}).([]string); len(way) > 1 {
		p.to.fault("a Fill leads to a Fill")
		return hearth.ErrRefused
	}
	return nil
}

func (p simPeer) Peek(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	ctx, err := p.travel(ctx)
	if err != nil {
		return nil, err
	}
	return p.to.store.Get(ctx, b, off, n)
}

// Many asks for a run of blocks. A Fill of it is one read of the owner's, a Peek is one
// look.
func (p simPeer) Many(ctx context.Context, v wire.Verb, wants []wire.Want, each func(int, *hearth.View, error)) {
	if v == wire.Peek {
		ctx, err := p.travel(ctx)
		for i, w := range wants {
			var x *hearth.View
			failed := err
			if failed == nil {
				x, failed = p.to.store.Get(ctx, w.Block, w.Off, w.N)
			}
			each(i, x, failed)
		}
		return
	}
	err := p.first(ctx)
	if err == nil {
		ctx, err = p.travel(ctx)
	}
	i := 0
	if err == nil {
		p.to.own.GetMany(ctx, wants[0].Block, len(wants), func(_ hearth.Block, v *hearth.View, failed error) bool {
			if err = failed; err != nil {
				return false
			}
			i++
			each(i-1, v, nil)
			return true
		})
	}
	for ; i < len(wants); i++ {
		each(i, nil, err)
	}
}

// simBucket is a node's way to the bucket. It notes each request. A run of blocks is one
// request.
type simBucket struct {
	*sim
	node  string
	notes map[hearth.ID][]fetch // guarded by the sim's mu
}

func (s *simBucket) Get(_ context.Context, b hearth.Block, _, n int) (*hearth.View, error) {
	s.note(b)
	time.Sleep(s.bucketTakes)
	return s.view(n), nil
}

func (s *simBucket) GetMany(_ context.Context, first hearth.Block, n int, each each) {
	for i := range n {
		s.note(first.Object.Block(first.Index + int64(i)))
	}
	time.Sleep(s.bucketTakes)
	for i := range n {
		if b := first.Object.Block(first.Index + int64(i)); !each(b, s.view(b.Len()), nil) {
			return
		}
	}
}

func (s *simBucket) Has(hearth.ID) bool { return false }

func (s *simBucket) FromPeer(hearth.Block) bool { return false }

func (s *simBucket) note(b hearth.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes[b.ID()] = append(s.notes[b.ID()], fetch{s.node, time.Now()})
}

// readAll reads objects at random, until the node dies.
func (n *simNode) readAll(ctx context.Context, rng *rand.Rand, reads int) {
	ctx = context.WithValue(ctx, trail{}, []string{n.id})
	for range reads {
		time.Sleep(random(rng, time.Second))
		if n.isDead(n.id) {
			return
		}
		began, extents := time.Now(), 1
		var err error
		if rng.IntN(8) == 0 {
			extents, err = n.readRun(ctx, rng)
		} else {
			_, err = n.reads.Get(ctx, object(rng.IntN(simObjects)).Block(0), 0, 1)
		}
		if err != nil {
			n.fault("a read fails: %v", errors.Unwrap(err))
		}
		if took := time.Since(began); took > time.Duration(extents)*(2*simSilence+n.bucketTakes+20*time.Millisecond) {
			n.fault("a read of %d extents took %v", extents, took.Round(100*time.Millisecond))
		}
	}
}

// readRun reads one extent or both of a large object by one call.
func (n *simNode) readRun(ctx context.Context, rng *rand.Rand) (extents int, err error) {
	o := largeObject(rng.IntN(simLarge))
	first := o.Block(hearth.ExtentBlocks * rng.Int64N(2))
	count, got := int(o.Blocks()-first.Index), 0
	if rng.IntN(2) == 0 {
		count = min(count, hearth.ExtentBlocks)
	}
	n.reads.GetMany(ctx, first, count, func(b hearth.Block, v *hearth.View, failed error) bool {
		if b.Index != first.Index+int64(got) {
			n.fault("a run yields another block than is due")
		}
		if err = failed; err == nil {
			v.Release()
			got++
		}
		return err == nil
	})
	if err == nil && got != count {
		n.fault("a run ends early")
	}
	return (count + hearth.ExtentBlocks - 1) / hearth.ExtentBlocks, err
}

// largeObject is an object of an extent and a quarter.
func largeObject(i int) *hearth.Object {
	o := object(simObjects + i)
	o.Size = 20 << 20
	o.Version = hearth.VersionOf("o", o.Key, o.ETag, o.Size)
	return o
}
