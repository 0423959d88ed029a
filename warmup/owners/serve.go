package owners

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
	"github.com/hearthfs/hearth/warmup"
)

// Disk is a disk tier, such as *disk.Store.
type Disk interface {
	hearth.Store
	// Spare reports whether the block would be taken now without evicting anything that
	// was used since then or is worth more (room). queue reports whether the writer keeps
	// up.
	Spare(b hearth.Block, since time.Time) (room, queue bool)
}

// Tier is the tier of a node's own blocks, such as *cache.Tier.
type Tier interface {
	Fill(ctx context.Context, b hearth.Block, begun func()) error
}

// ServedOptions are what Served works with. All are required.
type ServedOptions struct {
	// Own brings this node's own blocks to Disk for warm-ups; Ahead prefetches them for
	// readers.
	Own   warmup.Loader
	Ahead Tier
	Disk  Disk
	// Known says why an object that a peer names is not one of this node's origins.
	// Either its link is unknown (hearth.ErrMiss), or its Version does not follow from
	// its fields.
	Known func(o *hearth.Object) error
	// Readers, Throttled and Connections are those of this node, as in warmup.Options.
	Readers, Throttled func() int64
	Connections        func() int
}

// Served is what this node does for nodes that warm up, prefetch and check. Its methods
// are safe for concurrent use.
type Served struct {
	o      ServedOptions
	ctx    context.Context // ended by Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // Add under mu while not closed
	gate   *warmup.Gate
	parts  atomic.Pointer[parts] // nil means not known yet
	turn   chan struct{}         // capacity 1: held by the flush that runs
	offers chan struct{}         // capacity mostTaken: a semaphore for offers

	mu      sync.Mutex // guards the rest
	closed  bool
	next    *flush // a flush that has not begun
	share   *warmup.GateShare
	working int // for others now; at 0 the share has left
}

// parts are the Checker and the Room of this node.
type parts struct {
	checker warmup.Checker
	room    warmup.Room
}

// mostTaken offers are worked on at a time, each with up to 64 objects at once. One node
// has at most four in flight.
const mostTaken = 16

// mostLarge is no limit for large steps: the gate lets fewer through.
const mostLarge = 1 << 20

// NewServed returns a Served that answers. Close it once no other node asks.
func NewServed(o ServedOptions) *Served {
	s := &Served{o: o, gate: warmup.NewGate(), turn: make(chan struct{}, 1), offers: make(chan struct{}, mostTaken)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.work.Go(func() {
		s.gate.Run(s.ctx, warmup.Pressure{Readers: o.Readers, Throttled: o.Throttled, Most: o.Connections})
	})
	return s
}

// Close ends what is in flight and waits for it.
func (s *Served) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosed)
	s.work.Wait()
}

// Calls are the answers by number, for wire.Handler.
func (s *Served) Calls() map[uint16]wire.Answer {
	return map[uint16]wire.Answer{
		callHeld: s.held, callOffered: s.offered, callFlush: s.flush,
		callRoom: s.room, callCheck: s.check, callSlowed: s.slowed,
	}
}

// Load serves a Fill without payload. It returns once the disk tier keeps the block, or
// says why not by a *wire.Error of class NotKept. The object is known to be one of this
// node's.
func (s *Served) Load(ctx context.Context, b hearth.Block) error {
	if s.o.Disk.Has(b.ID()) {
		return nil
	}
	var failed error
	s.load(ctx, b, 1, func(_ hearth.Block, err error) bool {
		failed = said(ctx, err)
		return true
	})
	return failed
}

// said is an error as it travels. A block that failed because this node ended, or because
// nobody waits any more, is refused: the asking node asks others then.
func said(ctx context.Context, err error) error {
	var not hearth.NotKept
	switch {
	case err == nil:
		return nil
	case errors.As(err, &not):
		return &wire.Error{Class: wire.NotKept, Text: string(not)}
	case ctx.Err() != nil:
		return hearth.ErrRefused
	}
	return err
}

// enter waits until work for another node may begin. Without such work, the gate does not
// look at readers.
func (s *Served) enter(ctx context.Context, large bool) (p *warmup.GatePass, exit func(bytes int64), err error) {
	s.mu.Lock()
	if s.working++; s.working == 1 {
		s.share = s.gate.Join()
		s.share.Large(mostLarge)
	}
	share := s.share
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.working--; s.working == 0 {
			share.Leave()
		}
	}
	if p, err = share.Enter(ctx, large); err != nil {
		leave()
		return nil, nil, err
	}
	return p, func(bytes int64) {
		p.Exit(ctx, bytes)
		leave()
	}, nil
}

// load reads blocks that are missing and has the disk tier keep each. It calls each in
// order until each returns false, or with an error that is not NotKept.
func (s *Served) load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error) bool) {
	_, exit, err := s.enter(ctx, n > 1)
	if err != nil {
		each(first, err)
		return
	}
	loaded := int64(0)
	defer func() { exit(loaded) }()
	s.o.Own.Load(ctx, first, n, func(b hearth.Block, err error) bool {
		if err == nil {
			loaded += int64(b.Len())
		}
		return each(b, err)
	})
}

// Run is Load for a run of blocks, in order, for wire.Handler. What is missing of the run
// is one request to the origin, or as many as it has gaps. The run ends with the first
// error, which the asking node also takes as its end.
func (s *Served) Run(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, v *hearth.View, err error) bool) {
	o, end := first.Object, first.Index+int64(n)
	held := func(i int64) int64 {
		if s.o.Disk.Has(o.Block(i).ID()) {
			return 1
		}
		return 0
	}
	for from := first.Index; from < end; {
		at, missing, _ := warmup.NextRun(held, from, end, n)
		for ; from < at; from++ {
			if !each(o.Block(from), nil, nil) {
				return
			}
		}
		if missing == 0 {
			return
		}
		goesOn := true
		s.load(ctx, o.Block(at), int(missing), func(b hearth.Block, err error) bool {
			goesOn = each(b, nil, said(ctx, err)) && err == nil
			return goesOn
		})
		if !goesOn {
			return
		}
		from = at + missing
	}
}

// held answers callHeld.
func (s *Served) held(_ context.Context, body []byte) (*hearth.View, error) {
	ids, err := parseIDs(body)
	if err != nil {
		return nil, err
	}
	answer := newBits(len(ids))
	for i, id := range ids {
		if s.o.Disk.Has(id) {
			answer.set(i)
		}
	}
	return hearth.NewView(answer), nil
}

// offered answers callOffered. The objects are brought at once, since each waits for its
// first byte.
func (s *Served) offered(ctx context.Context, body []byte) (*hearth.View, error) {
	objects, since, err := parseOffer(body)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if err := s.o.Known(o); err != nil {
			return nil, err
		}
	}
	select {
	case s.offers <- struct{}{}:
		defer func() { <-s.offers }()
	default:
		return nil, hearth.ErrRefused
	}
	answer := make([]byte, len(objects))
	at := time.Now().Add(-since)
	var work sync.WaitGroup
	for i, o := range objects {
		work.Go(func() { answer[i] = s.take(ctx, o.Block(0), at) })
	}
	work.Wait()
	return hearth.NewView(answer), nil
}

// take brings one block if nothing of worth is evicted for it.
func (s *Served) take(ctx context.Context, b hearth.Block, since time.Time) byte {
	if s.o.Disk.Has(b.ID()) {
		return wasHeld
	}
	if room, queue := s.o.Disk.Spare(b, since); !room || !queue {
		return wasDeclined
	}
	_, exit, err := s.enter(ctx, false)
	if err != nil {
		return wasFailed
	}
	begun := false
	err = s.o.Ahead.Fill(ctx, b, func() { begun = true })
	brought := int64(0)
	defer func() { exit(brought) }()
	switch {
	case errors.Is(err, hearth.ErrStale):
		return wasStale
	case err != nil:
		return wasFailed
	case !begun:
		return wasHeld // a reader's attempt brought it
	}
	brought = int64(b.Len())
	if !s.o.Disk.Has(b.ID()) {
		return wasFailed // it was brought and not kept
	}
	return wasBrought
}

// flush is one flush that several callers may wait for.
type flush struct {
	done chan struct{}
	err  error
}

// flush answers callFlush. One flush runs at a time. Callers that come meanwhile share
// the next one, since what they wrote may be too late for the one that runs.
func (s *Served) flush(ctx context.Context, _ []byte) (*hearth.View, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, hearth.ErrRefused
	}
	f := s.next
	if f == nil {
		f = &flush{done: make(chan struct{})}
		s.next = f
		s.work.Go(func() { s.flushes(f) })
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		return nil, said(s.ctx, f.err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Served) flushes(f *flush) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	f.err = s.o.Disk.Flush(s.ctx)
	close(f.done)
}

// room answers callRoom.
func (s *Served) room(context.Context, []byte) (*hearth.View, error) {
	p := s.parts.Load()
	if p == nil || p.room == nil {
		return nil, hearth.ErrRefused
	}
	return view(roomOf(p.room, nil))
}

// check answers callCheck.
func (s *Served) check(ctx context.Context, body []byte) (*hearth.View, error) {
	first, n, err := parseRun(body)
	if err == nil {
		err = s.o.Known(first.Object)
	}
	if err != nil {
		return nil, err
	}
	p := s.parts.Load()
	if p == nil || p.checker == nil {
		return nil, hearth.ErrRefused
	}
	pass, exit, err := s.enter(ctx, true)
	if err != nil {
		return nil, said(ctx, err)
	}
	v := p.checker.Verify(ctx, first.Object, first.Index, int64(n), func(ctx context.Context, _ int64) error {
		pass.Rest(ctx)
		return ctx.Err()
	})
	exit(v.Read)
	if ctx.Err() != nil { // it did not look at all blocks
		return nil, hearth.ErrRefused
	}
	v.Cause = cut(v.Cause)
	return view(v)
}

// slowed answers callSlowed.
func (s *Served) slowed(context.Context, []byte) (*hearth.View, error) {
	return hearth.NewView(binary.LittleEndian.AppendUint64(nil, uint64(max(0, s.o.Throttled())))), nil
}

func parseCount(answer []byte) (int64, bool) {
	if len(answer) != 8 {
		return 0, false
	}
	n := int64(binary.LittleEndian.Uint64(answer))
	return n, n >= 0
}

func parseVerdict(answer []byte, most int64) (v warmup.Verdict, err error) {
	if json.Unmarshal(answer, &v) != nil || min(v.Whole, v.Missing, v.Corrupt, v.Read, v.Buffered) < 0 ||
		max(v.Whole, v.Missing, v.Corrupt) > most || v.Whole+v.Missing+v.Corrupt > most {
		return warmup.Verdict{}, errBody
	}
	return v, nil
}
