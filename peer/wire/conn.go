package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

// errGone says that a connection ended before a call was sent over it.
var errGone = errors.New("connection gone")

// conn is one connection at the side that asks. One goroutine reads. One writes the calls
// that their callers do not write themselves.
type conn struct {
	peer     *Peer
	raw      net.Conn
	in       input
	out      *output
	seed     uint64 // of requests
	places   int    // how many items may be unanswered, as the peer said
	load     atomic.Int64
	answered atomic.Bool // an answer has come

	mu    sync.Mutex // guards the rest, and the fields of calls marked so; locked before output's and the Peer's
	err   error      // set once: the connection is over
	last  uint64     // number of the last request
	calls map[uint64]*call
	open  int // items that are unanswered
	usual int // calls in flight at a send, in sixteenths, averaged over about as many sends
}

// call is a request in flight.
type call struct {
	kind   kind
	number uint16 // of a Call
	items  int
	wants  []Want
	one    [1]Want // backs wants, most often
	body   *hearth.View
	room   *semaphore.Weighted // counts the body's bytes
	head   []byte
	inline [384]byte // backs head, most often

	results chan result // has room for one per item, so nobody waits to put it there

	spare *sync.Pool   // where the call goes to be used again, if it does
	users atomic.Int32 // the caller until it is answered, and the writer

	// Guarded by the conn's lock.
	id, question uint64
	open         uint64 // a bit for each item without an answer
	left         bool   // the caller is gone
}

// result is the result of one item.
type result struct {
	item int
	view *hearth.View
	err  error
}

// itemLoad is what an item counts beside its bytes.
const itemLoad = 1 << 10

func (c *call) loadOf(item int) int64 {
	if c.kind == kindCall {
		return itemLoad
	}
	return itemLoad + int64(c.wants[item].N)
}

// encode makes the request's head, without what the connection adds.
func (c *call) encode(ctx context.Context) {
	var left time.Duration
	if deadline, ok := ctx.Deadline(); ok {
		left = max(time.Until(deadline), time.Millisecond)
	}
	head := c.inline[:headerSize]
	if c.kind != kindCall {
		c.head = appendRequest(head, left, c.wants)
		return
	}
	head = binary.LittleEndian.AppendUint32(head, milliseconds(left))
	if c.body != nil {
		head = piece.Append(head, c.body.Bytes(), c.body.Sums())
	}
	c.head = head
}

// parts is outgoing's.
func (c *call) parts() ([]byte, *hearth.View) { return c.head, c.body }

// gone is outgoing's.
func (c *call) gone() {
	if c.body != nil {
		c.room.Release(int64(c.body.Len()))
		c.body.Release()
		c.body = nil
	}
	c.done()
}

// newCall makes a call for one range. The memory of such calls is pooled: it is most of
// what a read of 4 KiB would leave to the garbage collector.
func (p *Peer) newCall(v Verb, w Want) *call {
	c, _ := p.spare.Get().(*call)
	if c == nil {
		c = &call{items: 1, spare: &p.spare, results: make(chan result, 1)}
	}
	c.kind, c.one[0] = kind(v), w
	c.wants = c.one[:]
	c.users.Store(2)
	return c
}

// done ends one use. A caller that leaves without an answer never calls it: an answer may
// come.
func (c *call) done() {
	if c.users.Add(-1) == 0 {
		c.one[0] = Want{}
		c.spare.Put(c)
	}
}

func newConn(p *Peer, raw net.Conn, asker, answerer hello) *conn {
	c := &conn{peer: p, raw: raw, out: newOutput(raw, &p.counters, p.o.Pool), calls: map[uint64]*call{}, places: int(answerer.places)}
	asked, answered := seeds(asker, answerer)
	c.in, c.seed = newInput(raw, &p.counters, p.hear, answered), asked
	return c
}

// close ends a conn that nobody used.
func (c *conn) close() {
	c.raw.Close()
	c.peer.o.Pool.Unreserve(connBytes)
}

// send queues a call. errGone means that it was not sent over this connection.
func (c *conn) send(x *call) error {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return errGone
	}
	if c.open+x.items > c.places {
		c.mu.Unlock()
		return c.peer.fault(fmt.Errorf("%w: it takes %d requests at a time", hearth.ErrRefused, c.places))
	}
	c.last++
	x.id, x.open = c.last, uint64(1)<<x.items-1
	h := header{id: x.id, kind: x.kind, item: x.number, payload: size(x.body)}
	unsealed := len(x.head)
	x.head, x.question = seal(x.head, h, c.seed, 0)
	c.calls[x.id] = x
	c.open += x.items
	for i := range x.items {
		c.load.Add(x.loadOf(i))
	}
	c.usual += len(c.calls) - c.usual/16
	queue, alone := c.out.put, x.body == nil && c.usual <= 16*fewOpen
	if alone {
		queue = c.out.hold
	}
	if !queue(x) { // a write has just failed
		delete(c.calls, x.id)
		c.open -= x.items // nobody needs its load any more
		x.head = x.head[:unsealed]
		c.mu.Unlock()
		_ = c.fail(c.down(errGone)) // the caller gets errGone
		return errGone
	}
	c.mu.Unlock()
	if alone {
		if err := c.out.write(); err != nil {
			_ = c.fail(c.down(err)) // fail tells the call
		}
	}
	return nil
}

func (c *conn) down(err error) error { return c.peer.fault(fmt.Errorf("%w: %w", ErrDown, err)) }

// leave ends a caller's wait. The caller takes what is delivered already.
func (c *conn) leave(x *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.left = true
	if x.open != 0 && c.err == nil {
		frame, _ := seal(make([]byte, headerSize), header{id: x.id, kind: kindCancel}, c.seed, 0)
		c.out.put(plain(frame))
	}
}

func (c *conn) write() {
	if err := c.out.run(); err != nil {
		_ = c.fail(c.down(err)) // fail tells the calls
	}
}

func (c *conn) read() {
	for {
		h, sum, meta, err := c.in.next()
		if err == nil {
			err = c.take(h, sum, meta)
		}
		if err != nil {
			_ = c.fail(c.down(err)) // fail tells the calls
			return
		}
	}
}

// take takes an answer. An error means that the connection is broken.
func (c *conn) take(h header, sum uint64, meta []byte) error {
	x, question, err := c.claim(h)
	if err != nil || x == nil {
		return err
	}
	if !c.answered.Swap(true) {
		c.peer.recovered()
	}
	v, err, broken := c.result(x, h, sum+question, meta)
	if broken != nil {
		err = c.fail(c.down(broken))
	}
	c.deliver(x, result{int(h.item), v, err})
	return broken
}

// claim finds the call that an answer belongs to, and takes the item off it. It returns
// nil for a frame which only says that its sender is there.
func (c *conn) claim(h header) (x *call, question uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, 0, c.err
	}
	x = c.calls[h.id]
	switch {
	case !h.kind.isAnswer():
		return nil, 0, fmt.Errorf("%w: a request from the side that answers", ErrProtocol)
	case h.kind == kindFilling && h.id <= c.last:
		c.peer.counters.answers[kindFilling].Add(1)
		return nil, 0, nil
	case x == nil || h.kind == kindFilling:
		return nil, 0, fmt.Errorf("%w: an answer to request %d, which was not asked, or is answered", ErrProtocol, h.id)
	case h.kind == kindCancelled && !x.left:
		return nil, 0, fmt.Errorf("%w: request %d was not cancelled", ErrProtocol, h.id)
	}
	if int(h.item) >= x.items || x.open&(1<<h.item) == 0 {
		return nil, 0, fmt.Errorf("%w: an answer to item %d of request %d, which was not asked, or is answered", ErrProtocol, h.item, h.id)
	}
	if n := h.payload; h.kind == kindData && x.kind != kindCall && n != x.wants[h.item].N {
		return nil, 0, fmt.Errorf("%w: %d bytes in answer to request %d, which asked for %d", ErrProtocol, n, h.id, x.wants[h.item].N)
	}
	if x.open &^= 1 << h.item; x.open == 0 {
		delete(c.calls, h.id)
	}
	c.open--
	return x, x.question, nil
}

// result makes an item's result from its answer. broken is an error of the connection.
func (c *conn) result(x *call, h header, sum uint64, meta []byte) (v *hearth.View, err, broken error) {
	p := c.peer
	p.counters.answers[h.kind].Add(1)
	switch h.kind {
	case kindMiss:
		return nil, hearth.ErrMiss, nil
	case kindStale:
		return nil, p.fault(hearth.ErrStale), nil
	case kindRefused:
		return nil, p.fault(hearth.ErrRefused), nil
	case kindCancelled:
		return nil, p.fault(errCancelled), nil
	case kindError:
		inner, _, err := unseal(meta, sum, 0)
		if err != nil {
			p.counters.mismatches.Add(1)
			return nil, p.fault(err), nil
		}
		return nil, p.fault(&Error{Class: Class(h.code), Text: string(inner)}), nil
	}
	v, err, broken = c.payload(x, h, sum, meta)
	if errors.Is(err, ErrChecksum) {
		p.counters.mismatches.Add(1)
	}
	return v, err, broken
}

// payload reads and verifies the bytes of a block.
func (c *conn) payload(x *call, h header, sum uint64, meta []byte) (v *hearth.View, err, broken error) {
	p := c.peer
	inner, _, err := unseal(meta, sum, 0)
	if err != nil {
		err = p.fault(err)
	}
	if err != nil || h.payload == 0 || c.hasLeft(x) {
		return nil, err, c.in.discard(h.payload)
	}
	var room [maxSums]byte
	sums := room[:copy(room[:], inner)]
	if v = p.o.Pool.TryAlloc(h.payload); v == nil {
		v = take(p.ctx, p.o.Pool, h.payload)
		p.hear() // bytes that came meanwhile have not been read yet
	}
	if v == nil {
		return nil, p.fault(fmt.Errorf("%w: %d bytes", ErrMemory, h.payload)), c.in.discard(h.payload)
	}
	if broken = c.in.payload(v.Bytes()); broken == nil && piece.Match(v.Bytes(), sums, v.Sums()) {
		return v, nil, nil
	}
	v.Release()
	return nil, p.fault(ErrChecksum), broken
}

func (c *conn) hasLeft(x *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return x.left
}

// deliver frees the place of an item, and then gives its result to the caller, if that is still there: who has all
// answers has nothing in flight.
func (c *conn) deliver(x *call, r result) {
	c.load.Add(-x.loadOf(r.item))
	c.peer.settle(1)
	c.mu.Lock()
	if !x.left {
		x.results <- r
	} else if r.view != nil {
		r.view.Release()
	}
	c.mu.Unlock()
}

// fail ends the connection with err, which all calls in flight get. It returns the first
// error.
func (c *conn) fail(err error) error {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.err = err
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()
	c.out.close()
	c.peer.lost(c, err)
	for _, x := range calls {
		for open := x.open; open != 0; open &= open - 1 {
			c.deliver(x, result{item: bits.TrailingZeros64(open), err: err})
		}
	}
	if t, ok := c.raw.(interface{ NetConn() net.Conn }); ok && errors.Is(err, ErrSilent) {
		t.NetConn().Close() // TLS would wait 5 s for a hanging peer to take its goodbye
	}
	c.raw.Close()
	return err
}
