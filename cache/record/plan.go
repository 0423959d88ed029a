package record

import (
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/piece"
)

var (
	// ErrMismatch means that the bytes at a place are not, or not completely, the record that was
	// expected there.
	ErrMismatch = errors.New("block does not verify")
	// ErrEvicted means that pages of the record were punched. The tombstone was lost with the power, or
	// there was no room for it.
	ErrEvicted = fmt.Errorf("evicted: %w", ErrMismatch)
)

// skipMost is how many bytes of unwanted pieces are read along, instead of a second read. One piece
// costs 10-15 us of CPU, and less device time than another request.
const skipMost = hearth.PieceSize

// Span is a range of bytes in a segment.
type Span struct{ Off, N int64 }

// Plan is how a range of a block is read from its record. Head are the pages from the record's header
// on. The pages of the pieces follow in it, or are a second read (body) if they lie far behind. In
// memory body follows Head.
type Plan struct {
	// Head are the pages that are read first; for a whole block, all pages.
	Head Span

	note        Note
	want        Span
	body        Span
	first, last int   // the wanted pieces
	header      int64 // offset of the record's header in memory
	at          int64 // offset of piece first in memory
}

// Read plans to read bytes [off, off+n) of a block.
func Read(x Note, off, n int) Plan {
	r := Plan{note: x, want: Span{int64(off), int64(n)}, first: off / hearth.PieceSize, last: (off + n - 1) / hearth.PieceSize}
	start := x.Offset() &^ (PageSize - 1)
	data := x.Offset() + int64(HeaderSize(int(x.Length)))
	from := data + int64(r.first)*hearth.PieceSize
	end := RoundUp(data+min(int64(r.last+1)*hearth.PieceSize, int64(x.Length)), PageSize)
	r.header = x.Offset() - start
	if int64(r.first)*hearth.PieceSize <= skipMost {
		r.Head, r.at = Span{start, end - start}, from-start
		return r
	}
	// Only records with pages of their own have several pieces, so the header
	// lies in one page.
	body := from &^ (PageSize - 1)
	r.Head, r.body = Span{start, PageSize}, Span{body, end - body}
	r.at = PageSize + from - body
	return r
}

// ReadAll plans to read a whole block.
func ReadAll(x Note) Plan { return Read(x, 0, int(x.Length)) }

// Len is how many bytes of memory the plan needs, a multiple of PageSize.
func (r *Plan) Len() int { return int(r.Head.N + r.body.N) }

// Fill reads the pages into b, which has Len bytes, by a function that fills a buffer from an offset of
// the segment.
func (r *Plan) Fill(readAt func(p []byte, off int64) error, b []byte) error {
	if err := readAt(b[:r.Head.N], r.Head.Off); err != nil || r.body.N == 0 {
		return err
	}
	return readAt(b[r.Head.N:], r.body.Off)
}

// Verify reports whether b, which Fill has filled, has the record of a segment with that salt, and the
// wanted bytes as they were written: nil, or an error that is ErrMismatch.
func (r *Plan) Verify(b []byte, salt uint64) error {
	header := b[r.header:r.Head.N]
	n, ok := ParseHeader(header, salt, r.note.Offset())
	if !ok || n != r.note {
		if check.Zero(header[:min(len(header), HeaderSize(int(r.note.Length)))]) {
			return ErrEvicted
		}
		return ErrMismatch
	}
	data := b[r.at:]
	for i := r.first; i <= r.last; i++ {
		size := min(hearth.PieceSize, int(n.Length)-i*hearth.PieceSize)
		if xxh3.Hash(data[:size]) != pieceSum(header, i) {
			if r.punched(b[r.header:]) {
				return ErrEvicted
			}
			return ErrMismatch
		}
		data = data[size:]
	}
	return nil
}

// VerifyAt is Verify of a whole record that begins at b[0].
func VerifyAt(b []byte, n Note, salt uint64) error {
	r := ReadAll(n)
	r.header, r.at, r.Head.N = 0, int64(HeaderSize(int(n.Length))), n.End()-n.Offset()
	return r.Verify(b, salt)
}

// punched reports whether a packed record that begins at b[0] was evicted though its header is
// there. The header may lie on a page that the record shares with others.
func (r *Plan) punched(b []byte) bool {
	at := r.note.Offset()
	from, end := RoundUp(at, PageSize), r.note.End()&^(PageSize-1)
	return Packed(int(r.note.Length)) && from < end && check.Zero(b[from-at:end-at])
}

// Wanted is the wanted range of a View that was filled and verified, as a Slice of it. A whole block
// comes with the checksums of its pieces.
func (r *Plan) Wanted(v *hearth.View) *hearth.View {
	got := v.Slice(int(r.at+r.want.Off-int64(r.first)*hearth.PieceSize), int(r.want.N))
	if r.want.Off == 0 && r.want.N == int64(r.note.Length) {
		piece.Note(got.Sums(), v.Bytes()[r.header+FixedSize:][:8*(r.last+1)])
	}
	return got
}
