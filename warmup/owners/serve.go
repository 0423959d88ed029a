package owners

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
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

// Kept is what keeps this node's own blocks for later.
type Kept struct {
	// Own brings blocks and has Store keep them.
	Own   warmup.Loader
	Store hearth.Store
	// Known waits until Store knows what it holds. nil means that it does. An error means that it holds nothing.
	Known func(ctx context.Context) error
}

// ServedOptions are what Served works with. All but the tiers are required.
type ServedOptions struct {
	// Own brings this node's own blocks to Disk for warm-ups; Ahead prefetches them for
	// readers. A nil Disk means that there is no disk tier.
	Own   warmup.Loader
	Ahead Tier
	Disk  Disk
	// Volumes keep blocks for warm-ups of volumes. nil means that this node has none.
	Volumes *Kept
	// Peek asks another node for a whole block that it holds.
	Peek func(ctx context.Context, node string, b hearth.Block) (*hearth.View, error)
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
	offers chan struct{} // capacity mostTaken: a semaphore for offers and seeds

	disk, volumes *side // nil means that this node has none

	mu      sync.Mutex // guards the rest, and next of both sides
	closed  bool
	share   *warmup.GateShare
	working int // for others now; at 0 the share has left
}

// side is what Served does for one tier.
type side struct {
	Kept
	of    *Served
	parts atomic.Pointer[parts] // nil means not known yet
	turn  chan struct{}         // capacity 1: held by the flush that runs
	next  *flush                // a flush that has not begun
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
	s := &Served{o: o, gate: warmup.NewGate(), offers: make(chan struct{}, mostTaken)}
	if o.Disk != nil {
		s.disk = &side{Kept: Kept{Own: o.Own, Store: o.Disk}, of: s, turn: make(chan struct{}, 1)}
	}
	if o.Volumes != nil {
		s.volumes = &side{Kept: *o.Volumes, of: s, turn: make(chan struct{}, 1)}
	}
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
	calls := map[uint16]wire.Answer{callSlowed: s.slowed}
	if x := s.disk; x != nil {
		calls[callOffered], calls[callSeeded] = s.offered, s.seeded
		maps.Copy(calls, map[uint16]wire.Answer{callHeld: x.held, callFlush: x.flush, callRoom: x.room, callCheck: x.check})
	}
	if x := s.volumes; x != nil {
		maps.Copy(calls, map[uint16]wire.Answer{callHeld + ofVolumes: x.held, callFlush + ofVolumes: x.flush,
			callRoom + ofVolumes: x.room, callCheck + ofVolumes: x.check, callKeep + ofVolumes: x.keep})
	}
	return calls
}

// side is what Served does for volumes, or for the disk tier.
func (s *Served) side(volumes bool) *side {
	if volumes {
		return s.volumes
	}
	return s.disk
}

// has tells what is held, once that is known.
func (x *side) has(ctx context.Context) func(hearth.ID) bool {
	if x.Known != nil && x.Known(ctx) != nil {
		return func(hearth.ID) bool { return false }
	}
	return x.Store.Has
}

// Load serves a Fill without payload. It returns once the disk tier keeps the block, or
// says why not by a *wire.Error of class NotKept. The object is known to be one of this
// node's.
func (s *Served) Load(ctx context.Context, b hearth.Block) error {
	if s.o.Disk.Has(b.ID()) {
		return nil
	}
	var failed error
	s.disk.load(ctx, b, 1, func(_ hearth.Block, err error) bool {
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
func (x *side) load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error) bool) {
	_, exit, err := x.of.enter(ctx, n > 1)
	if err != nil {
		each(first, err)
		return
	}
	loaded := int64(0)
	defer func() { exit(loaded) }()
	x.Own.Load(ctx, first, n, func(b hearth.Block, err error) bool {
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
	s.disk.run(ctx, first, n, each)
}

func (x *side) run(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, v *hearth.View, err error) bool) {
	o, end, has := first.Object, first.Index+int64(n), x.has(ctx)
	held := func(i int64) int64 {
		if has(o.Block(i).ID()) {
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
		x.load(ctx, o.Block(at), int(missing), func(b hearth.Block, err error) bool {
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
func (x *side) held(ctx context.Context, body []byte) (*hearth.View, error) {
	ids, err := parseIDs(body)
	if err != nil {
		return nil, err
	}
	answer, has := newBits(len(ids)), x.has(ctx)
	if ctx.Err() != nil { // it is not known yet
		return nil, hearth.ErrRefused
	}
	for i, id := range ids {
		if has(id) {
			answer.set(i)
		}
	}
	return hearth.NewView(answer), nil
}

// keep answers callKeep: it loads a run of blocks, and answers how many of its first blocks are kept. An error
// concerns the first block.
func (x *side) keep(ctx context.Context, body []byte) (*hearth.View, error) {
	first, n, err := parseRun(body)
	if err == nil {
		err = x.of.o.Known(first.Object)
	}
	if err != nil {
		return nil, err
	}
	kept := byte(0)
	x.run(ctx, first, n, func(_ hearth.Block, _ *hearth.View, failed error) bool {
		if err = failed; err == nil {
			kept++
		}
		return err == nil
	})
	if kept == 0 {
		return nil, err
	}
	return hearth.NewView([]byte{kept}), nil
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
func (x *side) flush(ctx context.Context, _ []byte) (*hearth.View, error) {
	s := x.of
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, hearth.ErrRefused
	}
	f := x.next
	if f == nil {
		f = &flush{done: make(chan struct{})}
		x.next = f
		s.work.Go(func() { x.flushes(f) })
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		return nil, said(s.ctx, f.err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (x *side) flushes(f *flush) {
	x.turn <- struct{}{}
	defer func() { <-x.turn }()
	x.of.mu.Lock()
	x.next = nil
	x.of.mu.Unlock()
	f.err = x.Store.Flush(x.of.ctx)
	close(f.done)
}

// room answers callRoom.
func (x *side) room(context.Context, []byte) (*hearth.View, error) {
	p := x.parts.Load()
	if p == nil || p.room == nil {
		return nil, errStarts
	}
	return view(roomOf(p.room, nil))
}

// check answers callCheck.
func (x *side) check(ctx context.Context, body []byte) (*hearth.View, error) {
	first, n, err := parseRun(body)
	if err == nil {
		err = x.of.o.Known(first.Object)
	}
	if err != nil {
		return nil, err
	}
	p := x.parts.Load()
	if p == nil || p.checker == nil {
		return nil, hearth.ErrRefused
	}
	pass, exit, err := x.of.enter(ctx, true)
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
	v.Cause, v.Unable = cut(v.Cause), cut(v.Unable)
	return view(v)
}

// slowed answers callSlowed.
func (s *Served) slowed(context.Context, []byte) (*hearth.View, error) {
	return hearth.NewView(binary.LittleEndian.AppendUint64(nil, uint64(max(0, s.o.Throttled())))), nil
}

var errStarts = errors.New("the node starts and does not know yet")

func parseCount(answer []byte) (int64, bool) {
	if len(answer) != 8 {
		return 0, false
	}
	n := int64(binary.LittleEndian.Uint64(answer))
	return n, n >= 0
}

func parseVerdict(answer []byte, most int64) (v warmup.Verdict, err error) {
	if json.Unmarshal(answer, &v) != nil || min(v.Whole, v.Missing, v.Corrupt, v.Unread, v.Read, v.Buffered) < 0 ||
		max(v.Whole, v.Missing, v.Corrupt, v.Unread) > most || v.Whole+v.Missing+v.Corrupt+v.Unread > most {
		return warmup.Verdict{}, errBody
	}
	return v, nil
}
