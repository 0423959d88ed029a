package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
)

// input reads a connection's frames.
type input struct {
	r    *bufio.Reader // of from
	from *stream
	seed uint64
	left int // bytes of the last frame's meta that are still in r
}

func newInput(from *stream, seed uint64) input {
	return input{r: bufio.NewReaderSize(from, bufferSize), from: from, seed: seed}
}

// stream counts what is read, and tells that something was.
type stream struct {
	net.Conn
	counters *counters
	heard    func() // may be nil
	brief    bool   // a frame's beginning is read, of which not much is wanted
}

// briefMost bytes have the header and the meta of an answer of one item.
const briefMost = 512

func (s *stream) Read(p []byte) (int, error) {
	if s.brief {
		p = p[:min(len(p), briefMost)]
	}
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.counters.received.Add(int64(n))
		if s.heard != nil {
			s.heard()
		}
	}
	return n, err
}

// whole reports whether the next frame can be read, but for a payload, without waiting.
func (in *input) whole() bool {
	n := in.r.Buffered()
	if n < in.left+headerSize {
		return false
	}
	b, _ := in.r.Peek(in.left + headerSize) // it is there
	meta := binary.LittleEndian.Uint32(b[in.left:])
	return meta > maxMeta || in.left+headerSize+int(meta) <= n // too much meta is an error at once
}

// next returns a frame's header and meta, valid until the payload or the next frame is
// read. io.EOF is an end between two frames.
func (in *input) next() (h header, sum uint64, meta []byte, err error) {
	in.skipMeta()
	b, err := in.r.Peek(headerSize)
	if err != nil {
		return h, 0, nil, cutOff(err, len(b))
	}
	if h, sum, err = parseHeader(b, in.seed); err != nil {
		return h, 0, nil, err
	}
	in.r.Discard(headerSize)
	in.from.brief = h.payload > smallMost // so is the next one, likely
	if meta, err = in.r.Peek(h.meta); err != nil {
		return h, 0, nil, cutOff(err, headerSize)
	}
	in.left = h.meta
	return h, sum, meta, nil
}

func cutOff(err error, got int) error {
	if err == io.EOF && got > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (in *input) skipMeta() {
	in.r.Discard(in.left) // it was peeked: this cannot fail
	in.left = 0
}

// payload reads as many bytes as p has. Of a large one only what came with the frame's
// beginning is copied.
func (in *input) payload(p []byte) error {
	in.skipMeta()
	if len(p) <= smallMost {
		_, err := io.ReadFull(in.r, p)
		return cutOff(err, 1)
	}
	in.from.brief = false
	defer func() { in.from.brief = true }()
	n := min(len(p), in.r.Buffered())
	_, _ = io.ReadFull(in.r, p[:n]) // it is there
	_, err := io.ReadFull(in.from, p[n:])
	return cutOff(err, 1)
}

// discard reads a payload that nobody wants, or that there is no memory for.
func (in *input) discard(n int) error {
	in.skipMeta()
	in.from.brief = false // the next frame's header says again
	_, err := in.r.Discard(n)
	return cutOff(err, 1)
}

// take returns memory for a payload, or nil if there is none soon. The caller holds
// no View.
func take(ctx context.Context, pool *hearth.Pool, n int) *hearth.View {
	if v := pool.TryAlloc(n); v != nil {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	v, _ := pool.Alloc(ctx, n) // its error says no more than nil
	return v
}

func size(v *hearth.View) int {
	if v == nil {
		return 0
	}
	return v.Len()
}

// outgoing is something to be written. parts is called once or never, right before
// that; afterwards, or if it never will be, gone is called, once. The bytes stay as they
// are in between.
type outgoing interface {
	parts() (head []byte, v *hearth.View)
	gone()
}

// plain is a frame without meta that nobody waits for.
type plain []byte

func (p plain) parts() ([]byte, *hearth.View) { return p, nil }
func (p plain) gone()                         {}

// joiner is a connection that is no socket, and yet writes several buffers at once.
type joiner interface {
	WriteParts(parts ...[]byte) (int64, error)
}

// output writes a connection's frames, on the goroutine that runs it, or on one that has
// something to send and finds nobody at it: to wake another for it costs as much as the
// write. Whoever puts something there keeps it within bounds.
type output struct {
	conn     net.Conn
	joins    joiner // is conn, if it is one
	counters *counters
	// idle is asked when it said, and when it was woken, what is to be sent for want of
	// anything else, and when it is to be asked again (0: when woken). It may be nil.
	idle func(now, sent time.Time) (plain, time.Duration)

	mu     sync.Mutex // guards the rest; held for some instructions
	queue  []outgoing
	woken  bool // the writer will look at the queue
	closed bool

	wake  chan struct{} // capacity 1
	turn  chan struct{} // capacity 1: who puts something there may write, and use what follows
	w     writer
	spare []outgoing // memory for the queue
}

func newOutput(conn net.Conn, c *counters, pool *hearth.Pool) *output {
	o := &output{conn: conn, counters: c, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	o.joins, _ = conn.(joiner)
	own := make([]byte, 0, bufferSize)
	o.w = writer{output: o, pool: pool, own: own, buf: own, sent: time.Now()}
	return o
}

// put queues something to be written soon; false: it is closed, and what was to be written
// is still the caller's.
func (o *output) put(f outgoing) bool {
	queued, wake := o.add(f, true)
	if wake {
		o.nudge()
	}
	return queued
}

// hold is put of what may wait until something else is written, or for write.
func (o *output) hold(f outgoing) bool {
	queued, _ := o.add(f, false)
	return queued
}

func (o *output) add(f outgoing, soon bool) (queued, wake bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false, false
	}
	o.queue = append(o.queue, f)
	wake = soon && !o.woken
	o.woken = o.woken || soon
	return true, wake
}

// write writes what is queued, unless somebody is at it: who is looks at the queue once more
// when he has given his turn back, and nobody need be woken.
func (o *output) write() error {
	for {
		select {
		case o.turn <- struct{}{}:
		default:
			return nil
		}
		_, closed, err := o.writeQueue() // if it is closed, who reads the connection finds out
		<-o.turn
		if closed || err != nil || !o.waits() {
			return err
		}
	}
}

// waits reports whether something is queued.
func (o *output) waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) > 0
}

// writeQueue writes what is queued, and says how much that was. The caller has the turn.
func (o *output) writeQueue() (n int, closed bool, err error) {
	batch, closed := o.swap(o.spare[:0])
	if o.spare = nil; closed {
		letGo(batch)
		return 0, true, nil
	}
	err = o.w.writeAll(batch)
	clear(batch)
	o.spare = batch
	return len(batch), false, err
}

// nudge has the writer look again.
func (o *output) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// close ends run, which lets go of what is queued.
func (o *output) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.nudge()
}

// fewOpen requests or answers, and one more hardly ever finds others to go out with: who has
// it writes it. With more of them the writer, who is woken once for all, makes a write of many.
const fewOpen = 4

// smallMost is the largest payload that is copied to be written with others: below it a
// copy is cheaper than an entry of writev, and than a record of its own where TLS is used.
const smallMost = 8 << 10

// run writes until it is closed or a write fails.
func (o *output) run() error {
	defer o.drain()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	for {
		runtime.Gosched() // others that are about to put something do, and it goes out in one write
		n, closed, sent, err := o.round()
		if closed || err != nil {
			return err
		}
		if n > 0 || o.waits() {
			continue
		}
		if o.idle != nil {
			p, again := o.idle(time.Now(), sent)
			if p != nil {
				o.hold(p) // if it is closed the next round says so
				continue
			}
			if again > 0 {
				timer.Reset(again)
			}
		}
		select {
		case <-o.wake:
		case <-timer.C:
		}
	}
}

// round is what run does again and again; sent is when something was written last.
func (o *output) round() (n int, closed bool, sent time.Time, err error) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	n, closed, err = o.writeQueue()
	return n, closed, o.w.sent, err
}

// swap takes what is queued and leaves the memory of what was written.
func (o *output) swap(empty []outgoing) (batch []outgoing, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch, o.queue, o.woken = o.queue, empty, false
	return batch, o.closed
}

func (o *output) drain() {
	o.close()
	batch, _ := o.swap(nil)
	letGo(batch)
}

func letGo(batch []outgoing) {
	for _, f := range batch {
		f.gone()
	}
}

// gatherMost bytes of small answers go out in one write, if there is memory for them beside
// the connection's own: each write costs as much as the bytes of several answers, and wakes
// who reads. It is 46 answers of 4 KiB: in three writes what 32 readers have asked for costs
// a ninth more CPU time (bench, W6 blocks).
const gatherMost = 192 << 10

// writer gathers what is small.
type writer struct {
	*output
	pool    *hearth.Pool
	own     []byte
	lent    *hearth.View // of the pool, until a batch is written
	buf     []byte       // is own, or lent's
	sent    time.Time    // the end of the last write
	vector  [2][]byte
	buffers net.Buffers // of vector; here, since a local one would be allocated each time
}

// writeAll writes a batch and lets go of it, also if that fails.
func (w *writer) writeAll(batch []outgoing) error {
	defer w.shrink()
	for i, f := range batch {
		err := w.add(f)
		f.gone()
		if err != nil {
			letGo(batch[i+1:])
			return err
		}
	}
	return w.flush(nil)
}

func (w *writer) add(f outgoing) error {
	head, v := f.parts()
	if len(w.buf)+len(head) > cap(w.buf) {
		if err := w.flush(nil); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, head...)
	switch {
	case v == nil:
		return nil
	case v.Len() <= smallMost && w.fits(v.Len()):
		w.buf = append(w.buf, v.Bytes()...)
		return nil
	}
	return w.flush(v.Bytes())
}

// fits makes room for n bytes more, if there is any.
func (w *writer) fits(n int) bool {
	if n > cap(w.buf)-len(w.buf) && w.lent == nil {
		if w.lent = w.pool.TryAlloc(gatherMost); w.lent != nil {
			w.buf = append(w.lent.Bytes()[:0], w.buf...)
		}
	}
	return n <= cap(w.buf)-len(w.buf)
}

// shrink gives back what was lent.
func (w *writer) shrink() {
	if w.lent != nil {
		w.lent.Release()
		w.lent, w.buf = nil, w.own[:0]
	}
}

// flush writes what was gathered, and payload behind it.
func (w *writer) flush(payload []byte) error {
	if len(w.buf)+len(payload) == 0 {
		return nil
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(stallAfter)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var n int64
	var err error
	if len(payload) == 0 {
		var m int
		m, err = w.conn.Write(w.buf)
		n = int64(m)
	} else {
		w.vector = [2][]byte{w.buf, payload}
		w.buffers = w.vector[:]
		if w.joins != nil {
			n, err = w.joins.WriteParts(w.buffers...)
		} else {
			n, err = w.buffers.WriteTo(w.conn)
		}
		w.vector = [2][]byte{}
	}
	w.buf, w.sent = w.buf[:0], time.Now()
	w.counters.sent.Add(n)
	if err != nil {
		return fmt.Errorf("write: %w", stalled(err))
	}
	return nil
}

// stalled says what a timeout of a write means.
func stalled(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("it takes nothing for %v", stallAfter)
	}
	return err
}

// exchange sends and reads hellos, each side in its turn: over a pipe a write waits for
// its reader. The one who asks is first, so that a port scanner is told nothing.
func exchange(conn net.Conn, asks bool, mine hello, within time.Duration) (theirs hello, err error) {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return theirs, fmt.Errorf("hello: %w", err)
	}
	send := func() error {
		_, err := conn.Write(mine.append(nil))
		return err
	}
	if asks {
		err = send()
	}
	var b [helloSize]byte
	if err == nil {
		_, err = io.ReadFull(conn, b[:])
	}
	if err != nil {
		return theirs, fmt.Errorf("hello: %w", err)
	}
	if theirs, err = parseHello(b[:]); err != nil {
		return theirs, err
	}
	if !asks {
		if err := send(); err != nil {
			return theirs, fmt.Errorf("hello: %w", err)
		}
	}
	if err := mine.agree(theirs); err != nil {
		return theirs, err
	}
	if theirs.refused {
		return theirs, fmt.Errorf("%w: connections enough", ErrRefused)
	}
	return theirs, conn.SetDeadline(time.Time{})
}
