package wire

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
)

// PeerOptions configure a Peer.
type PeerOptions struct {
	// Dial makes a connection to the peer, encrypted or not. It must return soon after
	// its context has ended, which is after Silence. It is required.
	Dial func(ctx context.Context) (net.Conn, error)
	// Pool gives memory for answers. It is required.
	Pool *hearth.Pool
	// Connections is how many there are at most; 0 means 4. Another is opened while each
	// has more than half a block to bring.
	Connections int
	// Requests is how many items may be unanswered; 0 means 256. It is at least MaxItems.
	// A caller beyond it waits.
	Requests int
	// QueuedBytes bounds the bodies of Calls that wait to be written. 0 means 8 MiB, or
	// an eighth of the Pool if that is less. It is never less than one body. Calls beyond
	// it are refused.
	QueuedBytes int64
	// Silence is how long a peer that owes an answer may send nothing. 0 means the
	// constant.
	Silence time.Duration
}

// Peer asks one peer. It dials when a connection is first needed, and again when one was
// lost. After a failure all requests fail at once with its error, until a dial
// succeeds. The pause before the next dial is 100 ms, and doubles up to 5 s (exponential
// back-off).
type Peer struct {
	name     string
	o        PeerOptions
	counters counters
	places   *semaphore.Weighted // semaphore for items that are unanswered
	room     *semaphore.Weighted // semaphore for the bytes of bodies
	ctx      context.Context
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup // all goroutines; Add under mu while not closed
	spare    sync.Pool      // of *call
	kick     chan struct{}  // capacity 1: makes the watch look again
	begun    time.Time
	heard    atomic.Int64 // when the last byte came, in nanoseconds from begun

	mu      sync.Mutex // guards the rest; never held across I/O; locked after a conn's lock, never before
	conns   []*conn
	dialing bool
	changed chan struct{} // closed when a dial has ended, and by Close
	debt    debt
	outage  outage
	watched watched
	closed  bool
}

// debt is what the peer owes, dials included.
type debt struct {
	items int64
	since time.Time // when the first of these was asked
}

// outage is a row of failures of the peer; an answer ends it.
type outage struct {
	fails       int
	until       time.Time // no dial before that
	since, last time.Time // when it first failed, and when last
	err         error
}

// watched says whether the watch runs, and whether it waits for a kick.
type watched struct{ runs, parked bool }

const (
	pauseFirst = 100 * time.Millisecond
	pauseMost  = 5 * time.Second
	// busyBytes asked for over the least busy connection call for one more, since a block
	// holds up what comes behind it. With twice as much, 32 readers of 100 KiB had three
	// connections and read a twentieth less.
	busyBytes = hearth.BlockSize / 2
)

// NewPeer returns a Peer without connections. name is for errors. Close it.
func NewPeer(name string, o PeerOptions) *Peer {
	if o.Connections <= 0 {
		o.Connections = 4
	}
	if o.Requests <= 0 {
		o.Requests = 256
	}
	o.Requests = max(o.Requests, MaxItems)
	if o.Silence <= 0 {
		o.Silence = Silence
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Peer{
		name: name, o: o, ctx: ctx, cancel: cancel, begun: time.Now(),
		places: semaphore.NewWeighted(int64(o.Requests)),
		room:   semaphore.NewWeighted(queuedBytes(o.QueuedBytes, o.Pool)),
		kick:   make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// Fill returns bytes [off, off+n) of a block from its owner, which may fetch it. n = 0
// has the owner load the block and returns no View. The caller must hold no View while it
// waits, and releases the one it gets. An *Error, hearth.ErrMiss and hearth.ErrStale are
// answers. All other errors are reasons to ask elsewhere: ErrSilent, ErrDown,
// hearth.ErrRefused, ErrChecksum, ErrMemory.
func (p *Peer) Fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return p.get(ctx, Fill, Want{b, off, n})
}

// Peek is Fill without a fetch: if the peer does not hold the block, it returns
// hearth.ErrMiss. n = 0 asks whether the peer holds it, and returns no View.
func (p *Peer) Peek(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return p.get(ctx, Peek, Want{b, off, n})
}

func (p *Peer) get(ctx context.Context, v Verb, w Want) (*hearth.View, error) {
	if err := w.check(); err != nil {
		return nil, p.fault(err)
	}
	return p.ask(ctx, p.newCall(v, w))
}

// Call asks by a number that both sides gave a meaning. The body has at most MaxBody
// bytes, may be nil, and stays the caller's. The caller releases the answer; an empty
// answer is nil.
func (p *Peer) Call(ctx context.Context, number uint16, body *hearth.View) (*hearth.View, error) {
	n := size(body)
	if n > MaxBody {
		return nil, p.fault(fmt.Errorf("call %d: a body of %d bytes, at most %d", number, n, MaxBody))
	}
	if !p.room.TryAcquire(int64(n)) {
		return nil, p.fault(fmt.Errorf("%w: too many bodies wait to be sent", hearth.ErrRefused))
	}
	c := &call{kind: kindCall, number: number, items: 1, room: p.room}
	if body != nil {
		c.body = body.Retain()
	}
	return p.ask(ctx, c)
}

// Many asks for many ranges, in as few frames as possible. It calls each once for each
// range, in any order, on this goroutine. each gets a View, which it releases, or an
// error as of Fill. Many does not wait for memory.
func (p *Peer) Many(ctx context.Context, v Verb, wants []Want, each func(i int, v *hearth.View, err error)) {
	for first := 0; first < len(wants); {
		n, err := fit(wants[first:])
		if n == 0 {
			each(first, nil, p.fault(err))
			first++
			continue
		}
		c := &call{kind: kind(v), items: n, wants: slices.Clone(wants[first : first+n])} // the call may outlive wants
		p.askMany(ctx, c, func(r result) { each(first+r.item, r.view, r.err) })
		first += n
	}
}

// fit is how many wants one request has room for. 0 means that the first is invalid.
func fit(wants []Want) (n int, err error) {
	meta := requestFixed + sealSize
	for n < min(len(wants), MaxItems) {
		if err = wants[n].check(); err != nil {
			break
		}
		if meta += wants[n].size(); meta > maxMeta {
			break
		}
		n++
	}
	return n, err
}

func (p *Peer) fault(err error) error { return fmt.Errorf("peer %s: %w", p.name, err) }

// ask waits for the answer of a call of one item.
func (p *Peer) ask(ctx context.Context, c *call) (*hearth.View, error) {
	on, err := p.begin(ctx, c)
	if err != nil {
		return nil, err
	}
	select {
	case r := <-c.results:
		c.done()
		return r.view, r.err
	case <-ctx.Done():
	}
	on.leave(c)
	select {
	case r := <-c.results: // it came meanwhile
		return r.view, r.err
	default:
		return nil, context.Cause(ctx)
	}
}

// askMany calls each for every item of a call.
func (p *Peer) askMany(ctx context.Context, c *call, each func(result)) {
	waiting := uint64(1)<<c.items - 1 // for 64 items the shift gives 0
	fail := func(err error) {
		for ; waiting != 0; waiting &= waiting - 1 {
			each(result{item: bits.TrailingZeros64(waiting), err: err})
		}
	}
	on, err := p.begin(ctx, c)
	if err != nil {
		fail(err)
		return
	}
	take := func(r result) {
		waiting &^= 1 << r.item
		each(r)
	}
	for waiting != 0 {
		select {
		case r := <-c.results:
			take(r)
			continue
		case <-ctx.Done():
		}
		on.leave(c)
		for len(c.results) > 0 { // nobody adds to it any more
			take(<-c.results)
		}
		fail(context.Cause(ctx))
	}
}

// begin sends a call once there is a place for it and a connection.
func (p *Peer) begin(ctx context.Context, c *call) (*conn, error) {
	n := int64(c.items)
	if err := p.places.Acquire(ctx, n); err != nil {
		c.gone()
		return nil, context.Cause(ctx)
	}
	p.counters.requests.Add(n)
	p.owe(n)
	if c.results == nil {
		c.results = make(chan result, n)
	}
	c.encode(ctx)
	for {
		on, err := p.connect(ctx)
		if err == nil {
			if err = on.send(c); err == nil {
				return on, nil
			}
			if err == errGone {
				continue
			}
		}
		p.settle(n)
		c.gone()
		return nil, err
	}
}

// owe notes that the peer owes n more items.
func (p *Peer) owe(n int64) {
	p.counters.inFlight.Add(n)
	p.mu.Lock()
	if p.debt.items == 0 {
		p.debt.since = time.Now()
	}
	p.debt.items += n
	kick := p.watched.parked
	p.watched.parked = false
	p.mu.Unlock()
	if kick {
		select {
		case p.kick <- struct{}{}:
		default: // it was kicked already, and will look
		}
	}
}

// settle frees the places of n items that are answered, or never will be.
func (p *Peer) settle(n int64) {
	p.counters.inFlight.Add(-n)
	p.mu.Lock()
	p.debt.items -= n
	p.mu.Unlock()
	p.places.Release(n)
}

// connect returns the least busy connection, dials one, or says why there is none.
func (p *Peer) connect(ctx context.Context) (*conn, error) {
	for {
		p.mu.Lock()
		c := p.leastBusyLocked()
		dials := c == nil || c.load.Load() > busyBytes && len(p.conns) < p.o.Connections
		if dials && !p.dialing && !p.closed && !time.Now().Before(p.outage.until) {
			p.dialLocked()
		}
		err, changed := p.outage.err, p.changed
		if p.closed {
			c, err = nil, p.fault(ErrClosed)
		}
		p.mu.Unlock()
		if c != nil || err != nil {
			if c != nil {
				err = nil
			}
			return c, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (p *Peer) leastBusyLocked() (best *conn) {
	for _, c := range p.conns {
		if best == nil || c.load.Load() < best.load.Load() {
			best = c
		}
	}
	return best
}

// Name is the name given to NewPeer.
func (p *Peer) Name() string { return p.name }

// Stats are the figures so far.
func (p *Peer) Stats() Stats { return p.counters.stats() }

// Close ends what is in flight with ErrClosed. It returns when no goroutine is left.
func (p *Peer) Close() {
	p.mu.Lock()
	p.closed = true
	conns := p.conns
	p.signalLocked()
	p.mu.Unlock()
	p.cancel(ErrClosed)
	for _, c := range conns {
		_ = c.fail(p.fault(ErrClosed)) // fail tells the calls
	}
	p.work.Wait()
}

func (p *Peer) signalLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}
