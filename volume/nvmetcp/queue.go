package nvmetcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// slotBits of a command identifier number the slot, the others the commands that used it. So a completion that
	// comes late or twice is told from that of the next command, until the count comes round after 64.
	slotBits = 10
	// readBuffer takes several small PDUs in one system call. Longer data goes past it.
	readBuffer = 16 << 10
	// looks is how often the watchdog sees a command before its time is over.
	looks = 4
)

// slot is a place for one command in flight. It belongs to the goroutine that took it from queue.free.
type slot struct {
	id   uint16 // of the command: the slot's number and, above it, a count
	head [maxHeadLen]byte
	tail [digestLen]byte
	done chan struct{} // filled once for each command, by the reader
	r2ts chan transfer // what the target wants; the reader never waits for room in it

	// The queue's mu guards the rest, and that the reader alone sets active to false. While active is true, the
	// reader may write into data.
	active  bool
	endless bool
	out     bool
	capsule bool // data went with the command
	data    []byte
	moved   int // bytes that came, or that were asked for
	seen    int // looks of the watchdog
	answer  completion
	err     error
}

// queue is a connection, and the commands in flight on it.
type queue struct {
	number   uint16
	conn     net.Conn
	from     *bufio.Reader // the reader's, as is tail
	tail     [digestLen]byte
	framing  framing
	maxData  int         // of an H2CData PDU
	inline   int         // bytes that a capsule takes
	fabrics  int         // the same for Fabrics and admin commands
	lost     func(error) // tells the controller that this connection is of no use any more
	free     chan *slot
	slots    []*slot
	finished chan struct{} // closed when no command can begin any more

	send sync.Mutex // held for one PDU; guards iov and bufs
	iov  [3][]byte
	bufs net.Buffers
	pdus atomic.Int64 // twice those that were sent, and one more while one is being sent

	mu    sync.Mutex // guards the rest and what slot says; never held during I/O
	cause error      // why the queue ended
	// sending is what pdus was at the watchdog's last look, and stuck at how many looks it had not moved: a target
	// can stop to read data whose command it has completed already.
	sending int64
	stuck   int
}

// adminInline is what the capsule of a Fabrics or admin command takes on every connection (TCP, 3.3.2.1).
const adminInline = 8192

// dialQueue connects to a portal and exchanges ICReq and ICResp, within Options.Timeout. The connection alone proves
// nothing: something else may accept it.
func dialQueue(ctx context.Context, o *Options, portal string, number uint16, depth int) (*queue, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("nothing within %v", o.Timeout))
	defer cancel()
	conn, err := o.Dial(ctx, "tcp", portal)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: does the target listen there?", ErrPath, unaddressed(err))
	}
	r, err := exchange(ctx, conn, digests{header: o.HeaderDigest, data: o.DataDigest})
	if err != nil {
		_ = conn.Close() // the error is known
		return nil, err
	}
	return newQueue(conn, r, number, depth), nil
}

func exchange(ctx context.Context, conn net.Conn, asked digests) (r icResp, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // which ends what waits for it
	defer stop()
	b := icReq(asked)
	if _, err = conn.Write(b); err == nil {
		_, err = io.ReadFull(conn, b)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("%w: no ICResp: %w: is it an NVMe/TCP target, and up?", ErrPath, unaddressed(err))
	}
	return parseICResp(b, asked)
}

// unaddressed is an error of a connection without the addresses that net adds: who gets it knows the portal.
func unaddressed(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

func newQueue(conn net.Conn, r icResp, number uint16, depth int) *queue {
	q := &queue{number: number, conn: conn, from: bufio.NewReaderSize(conn, readBuffer),
		framing: framing{r.digests, r.align}, maxData: r.maxData, inline: adminInline, fabrics: adminInline,
		free: make(chan *slot, depth), finished: make(chan struct{})}
	for i := range depth {
		s := &slot{id: uint16(i), done: make(chan struct{}, 1), r2ts: make(chan transfer, maxR2T)}
		q.slots = append(q.slots, s)
		q.free <- s
	}
	return q
}

// do runs a command to its end. data belongs to the queue until do returns.
func (q *queue) do(c command, data []byte) (uint64, error) {
	select {
	case s := <-q.free:
		return q.run(s, c, data)
	case <-q.finished:
		return 0, q.ended()
	}
}

// run is do in a slot that was taken already.
func (q *queue) run(s *slot, c command, data []byte) (uint64, error) {
	defer q.release(s)
	if err := q.begin(s, c, data); err != nil {
		return 0, err
	}
	if err := q.sendCommand(s, c, data); err != nil {
		q.lost(fmt.Errorf("%w: %s: %w", ErrPath, c.name(q.number == 0), unaddressed(err)))
	}
	for {
		select {
		case t := <-s.r2ts:
			if err := q.sendData(s, t); err != nil {
				q.lost(fmt.Errorf("%w: %s: %w", ErrPath, c.name(q.number == 0), unaddressed(err)))
			}
		case <-s.done:
			if s.err == nil && s.answer.status != 0 {
				return 0, &StatusError{c.name(q.number == 0), s.answer.status}
			}
			return s.answer.result, s.err
		}
	}
}

func (q *queue) begin(s *slot, c command, data []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cause != nil {
		return q.cause
	}
	s.id += 1 << slotBits
	room := q.inline
	if c.opcode == opFabrics {
		room = q.fabrics
	}
	s.out, s.endless, s.capsule = c.out, c.endless, c.out && len(data) > 0 && len(data) <= room
	s.data, s.moved, s.seen, s.answer, s.err = data, 0, 0, completion{}, nil
	s.active = true
	return nil
}

func (q *queue) release(s *slot) {
	for len(s.r2ts) > 0 { // the command ended before they were answered
		<-s.r2ts
	}
	s.data = nil
	q.free <- s
}

func (q *queue) sendCommand(s *slot, c command, data []byte) error {
	c.put(s.head[commonLen:], s.id, len(data), s.capsule)
	if !s.capsule {
		data = nil
	}
	return q.write(q.framing.command(s.head[:], len(data)), data, s.tail[:])
}

// sendData answers an R2T, in PDUs between which other commands may send theirs.
func (q *queue) sendData(s *slot, t transfer) error {
	for t.length > 0 {
		if !q.active(s) {
			return nil // the target has ended the command
		}
		part := t
		part.length = uint32(min(int(t.length), q.maxData))
		t.off, t.length = t.off+part.length, t.length-part.length
		data := s.data[part.off:][:part.length]
		if err := q.write(q.framing.h2cData(s.head[:], part, t.length == 0), data, s.tail[:]); err != nil {
			return err
		}
	}
	return nil
}

// write sends one PDU by one writev.
func (q *queue) write(head, data, tail []byte) error {
	if q.framing.digests.data && len(data) > 0 {
		binary.LittleEndian.PutUint32(tail, crc32c(data))
	} else {
		tail = nil
	}
	q.send.Lock()
	defer q.send.Unlock()
	q.pdus.Add(1)
	defer q.pdus.Add(1)
	if len(data) == 0 {
		_, err := q.conn.Write(head)
		return err
	}
	q.iov[0], q.iov[1] = head, data
	q.bufs = q.iov[:2]
	if tail != nil {
		q.iov[2] = tail
		q.bufs = q.iov[:3]
	}
	_, err := q.bufs.WriteTo(q.conn)
	q.iov = [3][]byte{} // the buffers are the callers'
	return err
}

func (q *queue) active(s *slot) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return s.active
}

// ended is why no command can begin any more.
func (q *queue) ended() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause
}

// read receives PDUs until one is against the rules or the connection ends. It is the reader goroutine.
func (q *queue) read() error {
	var head [shortLen + digestLen]byte
	for {
		if err := q.readPDU(head[:]); err != nil {
			return err
		}
	}
}

func (q *queue) readPDU(head []byte) error {
	if err := q.receive(head[:commonLen]); err != nil {
		return err
	}
	h := parseCommon(head)
	if err := h.check(q.framing.digests); err != nil {
		return err
	}
	if h.kind == pduC2HTermReq {
		if err := q.receive(head[commonLen:shortLen]); err != nil {
			return err
		}
		return termination(head)
	}
	end := shortLen + q.framing.headerLen()
	if err := q.receive(head[commonLen:end]); err != nil {
		return err
	}
	if q.framing.header && binary.LittleEndian.Uint32(head[shortLen:]) != crc32c(head[:shortLen]) {
		return fmt.Errorf("%w: a wrong header digest came from the target", ErrPath)
	}
	switch h.kind {
	case pduCapsuleResp:
		return q.complete(parseCompletion(head[commonLen:]))
	case pduR2T:
		return q.readyToTransfer(parseTransfer(head))
	}
	if _, err := q.from.Discard(h.dataOff - end); err != nil {
		return fmt.Errorf("%w: %w", ErrPath, err)
	}
	return q.receiveData(h, parseTransfer(head))
}

func (q *queue) receive(b []byte) error {
	if _, err := io.ReadFull(q.from, b); err != nil {
		return fmt.Errorf("%w: the connection ended: %w", ErrPath, unaddressed(err))
	}
	return nil
}

// find returns the slot of a command in flight.
func (q *queue) find(cid uint16, what string) (*slot, error) {
	number := int(cid & (maxDepth - 1))
	if number >= len(q.slots) || q.slots[number].id != cid || !q.slots[number].active {
		return nil, protocolError("%s for command %d, which is not in flight", what, cid)
	}
	return q.slots[number], nil
}

// complete ends a command. One that succeeded has moved all of its data.
func (q *queue) complete(c completion) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, err := q.find(c.cid, "a completion")
	if err != nil {
		return err
	}
	if c.status == 0 && !s.capsule && s.moved != len(s.data) {
		return protocolError("a completion after %d of %d bytes", s.moved, len(s.data))
	}
	s.answer, s.active = c, false
	s.done <- struct{}{}
	return nil
}

func (q *queue) readyToTransfer(t transfer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, err := q.find(t.cid, "R2T")
	switch {
	case err != nil:
		return err
	case !s.out || s.capsule || !s.next(t):
		return protocolError("R2T for %d bytes at %d, after %d of %d", t.length, t.off, s.moved, len(s.data))
	}
	select {
	case s.r2ts <- t:
		s.moved += int(t.length)
		return nil
	default:
		return protocolError("more than %d R2Ts at once", maxR2T)
	}
}

// next reports whether t has the bytes behind those that were moved.
func (s *slot) next(t transfer) bool {
	return t.length > 0 && int64(t.off) == int64(s.moved) && int64(t.off)+int64(t.length) <= int64(len(s.data))
}

// receiveData reads the data of a PDU into the buffer of its command.
func (q *queue) receiveData(h common, t transfer) error {
	to, err := q.buffer(h, t)
	if err != nil {
		return err
	}
	if err := q.receive(to); err != nil {
		return err
	}
	if q.framing.digests.data {
		if err := q.receive(q.tail[:]); err != nil {
			return err
		}
		if binary.LittleEndian.Uint32(q.tail[:]) != crc32c(to) {
			return fmt.Errorf("%w: a wrong data digest came from the target", ErrPath)
		}
	}
	return q.received(h, t)
}

// buffer finds where data goes. Its slot stays active meanwhile, since only the reader ends commands.
func (q *queue) buffer(h common, t transfer) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, err := q.find(t.cid, "data")
	switch {
	case err != nil:
		return nil, err
	case s.out || !s.next(t) || int64(t.length) != int64(h.length-h.dataOff-q.framing.dataLen()):
		return nil, protocolError("%d bytes of data at %d, after %d of %d, in a PDU of %d",
			t.length, t.off, s.moved, len(s.data), h.length)
	}
	return s.data[t.off:][:t.length], nil
}

// received counts data, and completes the command if the PDU says so.
func (q *queue) received(h common, t transfer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.slots[t.cid&(maxDepth-1)]
	s.moved += int(t.length)
	switch last := h.flags&flagLast != 0; {
	case last != (s.moved == len(s.data)):
		return protocolError("data that says last=%t after %d of %d bytes", last, s.moved, len(s.data))
	case h.flags&flagSuccess == 0:
		return nil
	case !last:
		return protocolError("data that says success and is not the last")
	}
	s.active = false
	s.done <- struct{}{}
	return nil
}

// finish fails what is in flight. The reader calls it last: nobody writes into the buffers any more.
func (q *queue) finish(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cause = cause
	close(q.finished)
	for _, s := range q.slots {
		if s.active {
			s.err, s.active = cause, false
			s.done <- struct{}{}
		}
	}
}

// overdue counts a look of the watchdog, and reports a command, or a PDU on its way, that it has seen too often.
func (q *queue) overdue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.pdus.Load(); n%2 == 1 && n == q.sending {
		q.stuck++
	} else {
		q.sending, q.stuck = n, 0
	}
	late := q.stuck >= looks
	for _, s := range q.slots {
		if s.active && !s.endless {
			s.seen++
			late = late || s.seen > looks
		}
	}
	return late
}

// inFlight is the number of commands.
func (q *queue) inFlight() int { return len(q.slots) - len(q.free) }
