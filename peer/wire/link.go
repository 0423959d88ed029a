package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
)

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

const (
	// gatherMost bytes of small answers go out in one write, if there is memory for them beside
	// the connection's own: each write costs as much as the bytes of several answers, and wakes
	// who reads. It is 46 answers of 4 KiB: in three writes what 32 readers have asked for costs
	// a ninth more CPU time (bench, W6 blocks).
	gatherMost = 192 << 10
	// togetherMost bytes of large ones do, in partsMost parts: one by one, who reads takes each as
	// it comes and waits for the next, and ten answers of 100 KiB cost both sides a fifth more.
	togetherMost = hearth.BlockSize
	partsMost    = 64
)

// writer gathers what goes out together.
type writer struct {
	*output
	pool    *hearth.Pool
	own     []byte
	lent    *hearth.View // of the pool, until a batch is written
	buf     []byte       // is own, or lent's
	listed  int          // bytes of buf that are in parts
	large   int          // bytes of parts that are not in buf
	parts   net.Buffers
	buffers net.Buffers // what is left of parts; here, since a local one would be allocated each time
	pending []outgoing  // in buf and parts
	sent    time.Time   // the end of the last write
}

// writeAll writes a batch and lets go of it, also if that fails.
func (w *writer) writeAll(batch []outgoing) error {
	defer w.shrink()
	for i, f := range batch {
		if err := w.add(f); err != nil {
			letGo(batch[i+1:])
			return err
		}
	}
	return w.flush()
}

func (w *writer) add(f outgoing) error {
	head, v := f.parts()
	if len(w.buf)+len(head) > cap(w.buf) || len(w.parts)+3 > partsMost || w.large > 0 && w.large+size(v) > togetherMost {
		if err := w.flush(); err != nil {
			f.gone()
			return err
		}
	}
	w.pending = append(w.pending, f)
	w.buf = append(w.buf, head...)
	switch {
	case v == nil:
	case v.Len() <= smallMost && w.fits(v.Len()):
		w.buf = append(w.buf, v.Bytes()...)
	default:
		w.parts = append(w.parts, w.buf[w.listed:], v.Bytes())
		w.listed = len(w.buf)
		w.large += v.Len()
	}
	return nil
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

func (w *writer) letGo() {
	letGo(w.pending)
	clear(w.pending)
	w.pending = w.pending[:0]
}

// flush writes what was gathered, and lets go of it.
func (w *writer) flush() error {
	defer w.letGo()
	if len(w.buf) > w.listed {
		w.parts = append(w.parts, w.buf[w.listed:])
	}
	if len(w.parts) == 0 {
		return nil
	}
	err := w.conn.SetWriteDeadline(time.Now().Add(stallAfter))
	if err == nil {
		err = w.writeParts()
	}
	clear(w.parts)
	w.parts, w.listed, w.large = w.parts[:0], 0, 0
	w.buf, w.sent = w.buf[:0], time.Now()
	if err != nil {
		return fmt.Errorf("write: %w", stalled(err))
	}
	return nil
}

func (w *writer) writeParts() (err error) {
	var n int64
	switch w.buffers = w.parts; {
	case len(w.parts) == 1: // the race detector knows what follows a Write, and not a writev
		var one int
		one, err = w.conn.Write(w.parts[0])
		n = int64(one)
	case w.joins != nil:
		n, err = w.joins.WriteParts(w.parts...)
	default:
		n, err = w.buffers.WriteTo(w.conn)
	}
	w.counters.sent.Add(n)
	return err
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
		return theirs, fmt.Errorf("%w: connections enough", hearth.ErrRefused)
	}
	return theirs, conn.SetDeadline(time.Time{})
}
