package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// pieceFirst and pieceMost are how much is written at once, in bytes: little before
	// anything is known of the client, so that it may be as slow as 1 KiB/s.
	pieceFirst = 64 << 10
	pieceMost  = 256 << 10
	// slowAfter is how long a piece takes that is written to a slow client: longer than
	// the next is read in. What it lends then is pieceSlow, which is verified as one.
	slowAfter = 100 * time.Millisecond
	pieceSlow = hearth.PieceSize
	// quickAgain is how many small pieces in a row make a slow client a quick one.
	quickAgain = 16
)

// sender sends a range of an object. It is used by one goroutine.
type sender struct {
	s   *Server
	ctx context.Context
	w   http.ResponseWriter
	c   *http.ResponseController
	o   *hearth.Object
	rd  Bytes // nil: Views from the Source

	lender Lender // rd, if it is one

	at, end int64        // of the object: what is not taken yet
	got     []byte       // taken and not yet written
	view    *hearth.View // whose bytes got is, or a buffer for it
	lent    int64        // bytes of the server's large that view stands for
	copies  bool         // view is a buffer from the server's small

	slow  bool
	quick int // small pieces in a row that were not slow
	n     int64
}

func (s *Server) sender(w http.ResponseWriter, r *http.Request, o *hearth.Object, p part) *sender {
	d := &sender{s: s, ctx: r.Context(), w: w, c: http.NewResponseController(w), o: o, at: p.off, end: p.off + p.n}
	if s.o.Open == nil || p.off/hearth.BlockSize == (p.off+p.n-1)/hearth.BlockSize {
		return d
	}
	d.rd = s.o.Open(o)
	d.lender, _ = d.rd.(Lender)
	return d
}

// run writes all that is left. After an error the connection is of no more use.
func (d *sender) run() error {
	for {
		for len(d.got) > 0 {
			if err := d.write(); err != nil {
				return err
			}
		}
		if d.at == d.end {
			break
		}
		if err := d.take(); err != nil {
			d.cut()
			if d.ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", ErrGone, err)
			}
			return err
		}
	}
	d.release() // the last bytes are copied or gone
	if d.slow { // else the last piece's deadline is as good as new
		d.s.allow(d.c)
	}
	return end(d.c)
}

// write writes a piece of what was taken.
func (d *sender) write() error {
	most := pieceMost
	if d.n == 0 {
		most = pieceFirst
	}
	p := d.got[:min(len(d.got), most)]
	begun := time.Now()
	d.s.allow(d.c)
	n, err := d.w.Write(p)
	d.n += int64(n)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		d.cut()
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	d.got = d.got[n:]
	switch {
	case time.Since(begun) >= d.s.slow:
		d.slow, d.quick = true, 0
		if !d.copies { // what is left is read again
			d.at -= int64(len(d.got))
			d.release()
		}
	case d.slow:
		d.quick++
		d.slow = d.quick < quickAgain
	}
	return nil
}

// take gets the next bytes: to the block's end, or a small piece for a slow client and where
// much is lent already.
func (d *sender) take() error {
	if !d.slow {
		size := int64(hearth.BlockSize)
		if d.lends() { // a View of a part may hold all of its block
			size = int64(d.block().Len())
		}
		if d.lent >= size || d.s.large.TryAcquire(size-d.lent) {
			if d.copies {
				d.release()
			}
			d.lent = max(d.lent, size)
			return d.takeLarge()
		}
	}
	if !d.copies {
		d.release()
		if err := d.s.small.Acquire(d.ctx, pieceSlow); err != nil {
			return fmt.Errorf("wait for slower clients: %w", err)
		}
		d.copies = true
		var err error
		if d.view, err = d.s.o.Pool.Alloc(d.ctx, pieceSlow); err != nil {
			return err
		}
	}
	return d.fill(min(d.end-d.at, pieceSlow-d.at%pieceSlow))
}

// takeLarge takes from a block, of which it has a View, or up to as many bytes by the reader.
func (d *sender) takeLarge() error {
	if d.lends() {
		d.drop()
		v, err := d.get(min(d.end-d.at, d.block().Offset()+int64(d.block().Len())-d.at))
		if err != nil {
			return err
		}
		d.view, d.got, d.at = v, v.Bytes(), d.at+int64(v.Len())
		return nil
	}
	if d.view == nil {
		v, err := d.s.o.Pool.Alloc(d.ctx, int(min(d.end-d.at, hearth.BlockSize)))
		if err != nil {
			return err
		}
		d.view = v
	}
	return d.fill(min(d.end-d.at, int64(d.view.Len()), hearth.BlockSize-d.at%hearth.BlockSize)) // blocks as they lie
}

// fill copies the next n bytes, which lie in one block where there is no reader, into the buffer.
func (d *sender) fill(n int64) error {
	p := d.view.Bytes()[:n]
	if d.lends() {
		v, err := d.get(n)
		if err != nil {
			return err
		}
		copy(p, v.Bytes())
		v.Release()
	} else if got, err := d.rd.ReadAt(d.ctx, p, d.at); got < len(p) {
		return fmt.Errorf("read at %d: %d bytes instead of %d: %w", d.at, got, n, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	d.got, d.at = p, d.at+n
	return nil
}

// get gets the next n bytes, which lie in one block.
func (d *sender) get(n int64) (*hearth.View, error) {
	b := d.block()
	var v *hearth.View
	var err error
	if d.lender != nil {
		v, err = d.lender.ViewAt(d.ctx, d.at, int(n))
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

// lends reports whether bytes come as Views.
func (d *sender) lends() bool { return d.rd == nil || d.lender != nil }

func (d *sender) block() hearth.Block { return d.o.Block(d.at / hearth.BlockSize) }

// drop gives the memory back, but not the right to as much.
func (d *sender) drop() {
	if d.view != nil {
		d.view.Release()
		d.view, d.got = nil, nil
	}
}

// release gives back what is held.
func (d *sender) release() {
	d.drop()
	if d.lent > 0 {
		d.s.large.Release(d.lent)
		d.lent = 0
	}
	if d.copies {
		d.s.small.Release(pieceSlow)
		d.copies = false
	}
}

func (d *sender) close() {
	d.release()
	if d.rd != nil {
		d.rd.Close()
	}
}

// cut has the connection (of HTTP/2: the stream) end: what is still to be written fails at once,
// and net/http goes on with no connection whose answer was shorter than announced.
func (d *sender) cut() { _ = d.c.SetWriteDeadline(time.Unix(1, 0)) } // without deadlines the length alone has to tell

// allow gives the client StallAfter from now on.
func (s *Server) allow(c *http.ResponseController) {
	_ = c.SetWriteDeadline(time.Now().Add(s.o.StallAfter)) // a test's recorder has none
}

// end sends what is still buffered while the deadline holds and lifts it: on the same connection
// the next answer may begin whenever it likes.
func end(c *http.ResponseController) error {
	if err := c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		_ = c.SetWriteDeadline(time.Unix(1, 0))
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	_ = c.SetWriteDeadline(time.Time{})
	return nil
}
