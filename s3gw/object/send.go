package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// pieceFirst and pieceMost are how much is written at once, in bytes: little before anything is
	// known of the client. An answer of at most pieceFirst is written without asking the kernel.
	pieceFirst = 64 << 10
	pieceMost  = 512 << 10
	// slowAfter is how long a block is kept for a client whose connection has no room. It is longer
	// than a read of the next block takes. After that the client gets copies of pieceSlow bytes,
	// the unit of checksums.
	slowAfter = 100 * time.Millisecond
	pieceSlow = hearth.PieceSize
	// quickAgain is how many pieces in a row must find room before a slow client counts as quick
	// again.
	quickAgain = 16
)

// sender sends a range of an object. It is used by one goroutine.
type sender struct {
	s    *Server
	ctx  context.Context
	w    http.ResponseWriter
	c    *http.ResponseController
	o    *hearth.Object
	rd   Bytes // nil means Views from the Source
	line line  // nil means that the connection's room is not known

	at, end int64        // the part of the object that is not taken yet
	got     []byte       // taken, and not yet written
	view    *hearth.View // holds got; nil means that own holds it
	lent    int64        // bytes of Server.large acquired for view
	own     *[pieceSlow]byte

	slow  bool
	quick int // pieces in a row that found room
	room  int // bytes that the connection takes at once
	n     int64
}

func (s *Server) sender(w http.ResponseWriter, r *http.Request, o *hearth.Object, p part) *sender {
	d := &sender{s: s, ctx: r.Context(), w: w, c: http.NewResponseController(w), o: o, at: p.off, end: p.off + p.n, room: pieceFirst}
	if p.n > pieceFirst {
		d.line, _ = d.ctx.Value(lineKey{}).(line)
	}
	if s.o.Open != nil && p.off/hearth.BlockSize != (p.off+p.n-1)/hearth.BlockSize {
		d.rd = s.o.Open(o, d.end)
	}
	return d
}

// run writes all that is left. After an error the connection cannot be used again.
func (d *sender) run() error {
	if d.line != nil {
		d.room = 0 // so that the kernel is asked first
	}
	for len(d.got) > 0 || d.at < d.end {
		d.s.allow(d.c)
		err := d.await()
		if err == nil && len(d.got) == 0 {
			if err = d.take(); err != nil && d.ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", ErrGone, err)
			}
		}
		if err == nil {
			err = d.write()
		}
		if err != nil {
			d.cut()
			return err
		}
	}
	d.release() // the last bytes are copied to the kernel, or gone
	if d.slow { // otherwise the deadline of the last piece was set just now
		d.s.allow(d.c)
	}
	return end(d.c)
}

// await waits until the connection has room. The block is kept for slowAfter only.
func (d *sender) await() (err error) {
	if d.line == nil {
		if d.n > 0 {
			d.room = pieceMost
		}
		return nil
	}
	if d.room >= pieceSlow { // a wake-up for each piece costs a tenth of the CPU time
		return nil
	}
	if d.room, err = d.line.room(false); d.room == 0 && err == nil && (d.view != nil || len(d.got) > 0) {
		_ = d.c.SetWriteDeadline(time.Now().Add(d.s.slow))
		if d.room, err = d.line.room(true); errors.Is(err, os.ErrDeadlineExceeded) {
			d.at -= int64(len(d.got)) // got is read again later
			d.release()
			d.slow, d.quick, err = true, 0, nil
		}
		d.s.allow(d.c)
	}
	if d.room == 0 && err == nil {
		err = d.awaitSlow()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// awaitSlow waits without memory, as long as the client takes anything within StallAfter. The
// kernel finds room again only when a third of its buffer is free, which may be megabytes.
func (d *sender) awaitSlow() (err error) {
	begun := time.Now()
	for before := d.line.queued(); ; {
		d.room, err = d.line.room(true)
		if time.Since(begun) >= d.s.slow {
			d.slow, d.quick = true, 0
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		now := d.line.queued()
		if now >= before {
			return err
		}
		before = now
		d.s.allow(d.c)
	}
}

// write writes one piece of got.
func (d *sender) write() error {
	p := d.got[:min(len(d.got), d.room, pieceMost)]
	begun := time.Now()
	n, err := d.w.Write(p)
	d.n += int64(n)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	d.got = d.got[n:]
	d.room -= n
	switch {
	case time.Since(begun) >= d.s.slow:
		d.slow, d.quick = true, 0
		d.at -= int64(len(d.got)) // the rest is read again
		d.release()
	case len(d.got) == 0 && d.view == nil:
		d.release()
	}
	if d.slow {
		d.quick++
		d.slow = d.quick < quickAgain
	}
	return nil
}

// take gets the next bytes: up to the end of the block, or a copied piece. It copies for a slow
// client, and if too much is lent already.
func (d *sender) take() error {
	if !d.slow {
		size := int64(d.block().Len()) // a View of a part may hold the whole block
		if d.lent >= size || d.s.large.TryAcquire(size-d.lent) {
			d.lent = max(d.lent, size)
			d.drop()
			v, err := d.get(min(d.end-d.at, d.block().Offset()+size-d.at))
			if err != nil {
				return err
			}
			d.view, d.got, d.at = v, v.Bytes(), d.at+int64(v.Len())
			return nil
		}
	}
	d.release()
	v, err := d.get(min(d.end-d.at, pieceSlow-d.at%pieceSlow, int64(d.room)))
	if err != nil {
		return err
	}
	if d.own, _ = d.s.spare.Get().(*[pieceSlow]byte); d.own == nil {
		d.own = new([pieceSlow]byte)
	}
	d.got = d.own[:copy(d.own[:], v.Bytes())]
	d.at += int64(len(d.got))
	v.Release()
	return nil
}

// get gets the next n bytes, which lie in one block.
func (d *sender) get(n int64) (*hearth.View, error) {
	b := d.block()
	var v *hearth.View
	var err error
	if d.rd != nil {
		v, err = d.rd.ViewAt(d.ctx, d.at, int(n))
	} else {
		v, err = d.s.o.Source.Get(d.ctx, b, int(d.at-b.Offset()), int(n))
	}
	if err != nil {
		return nil, fmt.Errorf("read at %d: %w", d.at, err)
	}
	if int64(v.Len()) != n {
		got := v.Len()
		v.Release()
		return nil, fmt.Errorf("read at %d: %d bytes instead of %d", d.at, got, n)
	}
	return v, nil
}

func (d *sender) block() hearth.Block { return d.o.Block(d.at / hearth.BlockSize) }

// drop releases the memory, but keeps what is acquired of Server.large.
func (d *sender) drop() {
	if d.view != nil {
		d.view.Release()
	}
	if d.own != nil {
		d.s.spare.Put(d.own)
	}
	d.view, d.own, d.got = nil, nil, nil
}

// release releases all that is held.
func (d *sender) release() {
	d.drop()
	if d.lent > 0 {
		d.s.large.Release(d.lent)
		d.lent = 0
	}
}

func (d *sender) close() {
	d.release()
	if d.rd != nil {
		d.rd.Close()
	}
}

// cut ends the connection (of HTTP/2: the stream). Further writes fail at once, and net/http does
// not reuse a connection whose answer was shorter than announced.
func (d *sender) cut() { _ = d.c.SetWriteDeadline(time.Unix(1, 0)) } // without deadlines only the length tells

// allow gives the client StallAfter from now on.
func (s *Server) allow(c *http.ResponseController) {
	_ = c.SetWriteDeadline(time.Now().Add(s.o.StallAfter)) // a test's recorder has none
}

// end flushes what is still buffered while the deadline holds, and lifts the deadline: the next
// answer on the same connection may begin at any time.
func end(c *http.ResponseController) error {
	if err := c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		_ = c.SetWriteDeadline(time.Unix(1, 0))
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	_ = c.SetWriteDeadline(time.Time{})
	return nil
}
