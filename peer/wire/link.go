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

// take returns memory for a payload, or nil if there is none within memoryWait. The
// caller must hold no View.
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

// outgoing is something to be written. parts is called once, right before the write, or
// never. gone is called once, after the write or when there will be none. In between, the
// bytes must not change.
type outgoing interface {
	parts() (head []byte, v *hearth.View)
	gone()
}

// plain is a frame without meta that nobody waits for.
type plain []byte

func (p plain) parts() ([]byte, *hearth.View) { return p, nil }
func (p plain) gone()                         {}

// joiner is a connection that is no socket and can still write several buffers at once.
type joiner interface {
	WriteParts(parts ...[]byte) (int64, error)
}

// output writes a connection's frames. The goroutine in run writes them, or one that has
// something to send and finds nobody writing: waking another would cost as much as the
// write. The callers of put and hold keep the queue within bounds.
type output struct {
	conn     net.Conn
	joins    joiner // conn, if it is a joiner
	counters *counters
	// idle says what to send when nothing is queued, and when to ask again (0: when
	// woken). It is asked at that time, and when the writer was woken. It may be nil.
	idle func(now, sent time.Time) (plain, time.Duration)

	mu     sync.Mutex // guards the rest; held for a few instructions
	queue  []outgoing
	woken  bool // the writer will look at the queue
	closed bool

	wake  chan struct{} // capacity 1
	turn  chan struct{} // capacity 1: whoever puts something there may write, and use the fields below
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

// put queues something to be written soon. It returns false if the output is closed; f is
// still the caller's then.
func (o *output) put(f outgoing) bool {
	queued, wake := o.add(f, true)
	if wake {
		o.nudge()
	}
	return queued
}

// hold is put for something that may wait for the next write.
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

// write writes what is queued, unless another goroutine is writing. That one looks at the
// queue once more after it has given its turn back, so nobody need be woken.
func (o *output) write() error {
	for {
		select {
		case o.turn <- struct{}{}:
		default:
			return nil
		}
		_, closed, err := o.writeQueue() // if it is closed, the reader finds out
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

// writeQueue writes what is queued, and returns how many items. The caller has the turn.
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

// close ends run, which drops what is queued.
func (o *output) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.nudge()
}

// Up to fewOpen requests or answers, one more hardly ever finds others to go out with, so
// its goroutine writes it. With more of them, the writer is woken once and writes many at
// once.
const fewOpen = 4

// smallMost is the largest payload that is copied to be written with others. Below it a
// copy is cheaper than an entry of writev, and than a TLS record of its own.
const smallMost = 8 << 10

// run writes until it is closed or a write fails.
func (o *output) run() error {
	defer o.drain()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	for {
		runtime.Gosched() // others that are about to queue something do, and it goes out in the same write
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
				o.hold(p) // if it is closed, the next round says so
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

// round is one round of run. sent is when something was last written.
func (o *output) round() (n int, closed bool, sent time.Time, err error) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	n, closed, err = o.writeQueue()
	return n, closed, o.w.sent, err
}

// swap takes the queue and leaves the given memory for the next one.
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
	// gatherMost bytes of small answers go out in one write, if there is memory for that
	// beside the connection's own. Each write costs as much as the bytes of several
	// answers, and wakes the reader. It is 46 answers of 4 KiB. In three writes, what 32
	// readers have asked for costs a ninth more CPU time (bench, W6 blocks).
	gatherMost = 192 << 10
	// togetherMost bytes of large answers go out in one write, in at most partsMost
	// parts. Sent one by one, the reader takes each as it comes and waits for the next.
	// Then ten answers of 100 KiB cost both sides a fifth more.
	togetherMost = hearth.BlockSize
	partsMost    = 64
)

// writer gathers what goes out together.
type writer struct {
	*output
	pool    *hearth.Pool
	own     []byte
	lent    *hearth.View // borrowed from the pool until a batch is written
	buf     []byte       // own, or the bytes of lent
	listed  int          // how many bytes of buf are in parts
	large   int          // how many bytes of parts are not in buf
	parts   net.Buffers
	buffers net.Buffers // what is left of parts; a field, since a local variable would be allocated each time
	pending []outgoing  // in buf and parts
	sent    time.Time   // when the last write ended
}

// writeAll writes a batch and lets go of it, even if that fails.
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

// fits makes room for n more bytes, if it can.
func (w *writer) fits(n int) bool {
	if n > cap(w.buf)-len(w.buf) && w.lent == nil {
		if w.lent = w.pool.TryAlloc(gatherMost); w.lent != nil {
			w.buf = append(w.lent.Bytes()[:0], w.buf...)
		}
	}
	return n <= cap(w.buf)-len(w.buf)
}

// shrink gives the borrowed buffer back.
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
	case len(w.parts) == 1: // the race detector understands what follows a Write, but not a writev
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

// exchange sends and reads hellos, each side in turn: over a pipe a write waits for its
// reader. The asker goes first, so that a port scanner learns nothing.
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
		return theirs, fmt.Errorf("%w: it takes no further connection", hearth.ErrRefused)
	}
	return theirs, conn.SetDeadline(time.Time{})
}
