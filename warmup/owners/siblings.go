package owners

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
)

// Store is where prefetch brings this node's own blocks. Its methods are those of
// prefetch.Store.
type Store interface {
	Fill(ctx context.Context, b hearth.Block, begun func()) error
	Has(id hearth.ID) bool
	Fetching(id hearth.ID) bool
	Held(ctx context.Context, blocks []hearth.Block) func(hearth.ID) bool
	Takes(b hearth.Block, since time.Time) (would, soon bool)
}

const (
	// mostBrought is how many blocks brought to their owners are remembered, 8 bytes
	// each.
	mostBrought = 1 << 15
	// declinedFor is how long an owner that had no room for a block is offered none.
	declinedFor = time.Second
	// mostOffers are in flight to one owner.
	mostOffers = 4
)

// Siblings is the prefetch.Store of a ring. A block that another node owns is offered to
// that node. The owner takes it if nothing of worth is evicted for it, and readers get it
// there.
type Siblings struct {
	of    *Owners
	local Store
	since atomic.Pointer[time.Time] // a block used later is worth more than one that is offered
	// brought is a table of the blocks that were brought to their owners. A block's hash
	// is its entry and also says where the entry lies. A block whose place another took
	// counts as evicted unread.
	brought [mostBrought]atomic.Uint64

	mu       sync.Mutex // guards the rest
	flying   map[hearth.ID]bool
	declined map[string]time.Time // when a node last had no room
	offers   map[string]*offers
}

// offers is the queue of offers to one node. While enough are in flight, what comes
// shares a Call.
type offers struct {
	queue  []*offered
	frames int
}

type offered struct {
	object *hearth.Object
	answer chan told // capacity 1
}

// told is what became of one object.
type told struct {
	what byte
	err  error
}

// Siblings makes a Store for prefetch. local has this node's own blocks.
func (o *Owners) Siblings(local Store) *Siblings {
	return &Siblings{of: o, local: local, flying: map[hearth.ID]bool{}, declined: map[string]time.Time{}, offers: map[string]*offers{}}
}

func hashOf(id hearth.ID) uint64 { return max(1, id.Hash()) } // 0 is an empty place

func (s *Siblings) place(id hearth.ID) (*atomic.Uint64, uint64) {
	h := hashOf(id)
	return &s.brought[h%mostBrought], h
}

// Has is prefetch.Store's. It includes blocks brought to their owners lately, as far as
// known.
func (s *Siblings) Has(id hearth.ID) bool {
	at, h := s.place(id)
	return at.Load() == h || s.local.Has(id)
}

// Fetching is prefetch.Store's.
func (s *Siblings) Fetching(id hearth.ID) bool {
	s.mu.Lock()
	flying := s.flying[id]
	s.mu.Unlock()
	return flying || s.local.Fetching(id)
}

// Held is prefetch.Store's, by a Call to each owner of some of the blocks. In a ring that
// has been warmed up, owners hold nearly all of them. Asking for each block as it is
// brought would make as many requests to the owners as their readers make.
func (s *Siblings) Held(ctx context.Context, blocks []hearth.Block) func(hearth.ID) bool {
	return s.of.Held(ctx, blocks)
}

// Takes is prefetch.Store's. Another owner decides for itself when it is offered a block.
func (s *Siblings) Takes(b hearth.Block, since time.Time) (would, soon bool) {
	if s.of.Here(b) {
		return s.local.Takes(b, since)
	}
	s.since.Store(&since)
	return true, true
}

// Fill is prefetch.Store's. It does not call begun for a block that the owner holds, or
// that is not offered because the owner just declined another.
func (s *Siblings) Fill(ctx context.Context, b hearth.Block, begun func()) error {
	w := s.of.way(b)
	id, at := s.of.step(&w)
	switch at {
	case route.Nobody:
		return w.nobody(b)
	case route.Here:
		return s.local.Fill(ctx, b, begun)
	}
	s.mu.Lock()
	full := time.Since(s.declined[id]) < declinedFor
	if !full {
		s.flying[b.ID()] = true
	}
	s.mu.Unlock()
	if full {
		return nil
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.flying, b.ID())
	}()
	held, err := s.of.heldAt(ctx, id, []*extent{{w, []hearth.Block{b}}})
	if err != nil || len(held) > 0 {
		return err
	}
	begun()
	return s.offer(ctx, id, b)
}

// offer has a node take a block.
func (s *Siblings) offer(ctx context.Context, id string, b hearth.Block) error {
	s.of.loads(id)
	x := &offered{object: b.Object, answer: make(chan told, 1)}
	s.mu.Lock()
	line := s.offers[id]
	if line == nil {
		line = &offers{}
		s.offers[id] = line
	}
	line.queue = append(line.queue, x)
	s.sendLocked(id, line)
	s.mu.Unlock()
	var t told
	select {
	case t = <-x.answer:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case t.err != nil:
		return t.err
	case t.what == wasStale:
		return hearth.ErrStale
	case t.what == wasBrought, t.what == wasHeld:
		at, h := s.place(b.ID())
		at.Store(h)
		return nil
	case t.what == wasDeclined:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.declined[id] = time.Now()
		return errDeclined
	}
	return fmt.Errorf("at node %s: it could not be brought", s.of.name(id))
}

// errDeclined says that an owner took nothing, and so made no request. prefetch counts it
// as a version that is gone.
var errDeclined = fmt.Errorf("its owner has no free room: %w", hearth.ErrStale)

// sendLocked sends from the queue, as far as more may be in flight.
func (s *Siblings) sendLocked(id string, line *offers) {
	for len(line.queue) > 0 && line.frames < mostOffers {
		n := min(len(line.queue), mostOffered)
		some := append([]*offered(nil), line.queue[:n]...)
		clear(line.queue[:n])
		line.queue = line.queue[n:]
		line.frames++
		s.of.mu.Lock()
		begun := s.of.goLocked(func() { s.send(id, line, some) })
		s.of.mu.Unlock()
		if !begun {
			line.frames--
			tell(some, told{err: errClosed})
		}
	}
	if len(line.queue) == 0 && line.frames == 0 {
		delete(s.offers, id)
	}
}

func tell(some []*offered, t told) {
	for _, x := range some {
		x.answer <- t
	}
}

// send offers some objects to a node.
func (s *Siblings) send(id string, line *offers, some []*offered) {
	body := offer{SinceS: longAgo}
	if since := s.since.Load(); since != nil {
		body.SinceS = int64(max(0, time.Since(*since)) / time.Second)
	}
	for _, x := range some {
		body.Objects = append(body.Objects, objectOf(x.object))
	}
	v, err := view(body)
	var answer []byte
	if err == nil {
		answer, err = s.of.call(s.of.ctx, id, callOffered, v)
	}
	if err == nil && len(answer) != len(some) {
		err = s.of.at(id, errBody)
	}
	if err != nil {
		tell(some, told{err: err})
	} else {
		for i, x := range some {
			x.answer <- told{what: answer[i]}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	line.frames--
	s.sendLocked(id, line)
}
