package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/piece"
)

// errMismatch means that the bytes at a place are not, or not completely, the record of the index.
var errMismatch = errors.New("block does not verify")

// skipMost is how many bytes of unwanted pieces are read along, instead of a second read. One piece
// costs 10-15 us of CPU, and less device time than another request.
const skipMost = hearth.PieceSize

// Get returns bytes [off, off+n) of the block, which is blockLen bytes long, verified.
// hearth.ErrMiss means that the block is not held, or that its bytes were bad. Other errors come
// from ctx or from the device. A block that cannot be read (EIO) is dropped, so that it can be put
// again elsewhere. The caller releases the View and holds none when calling.
func (l *Log) Get(ctx context.Context, id hearth.ID, blockLen, off, n int) (*hearth.View, error) {
	if off < 0 || n <= 0 || off+n > blockLen {
		return nil, fmt.Errorf("read [%d, %d) of block %s of %d bytes: %w", off, off+n, id, blockLen, fs.ErrInvalid)
	}
	// A block that moves during the read is looked up again. Each lost round takes an eviction or
	// compaction of this very block.
	for range 3 {
		p, ok := l.index.get(id, l.touch)
		if !ok || int(p.length) != blockLen {
			return nil, hearth.ErrMiss
		}
		r := plan(p.note(id), span{int64(off), int64(n)})
		v, err := l.alloc(ctx, int(r.head.n+r.body.n))
		if err != nil {
			return nil, err
		}
		part, err := l.read(&r, p.slot, v)
		v.Release()
		if err == nil {
			l.counters.hits.Add(1)
			l.counters.hitBytes.Add(int64(n))
			return part, nil
		}
		if !errors.Is(err, errMismatch) && !errors.Is(err, unix.EIO) {
			return nil, err // closed, or no file descriptor: not the block's fault
		}
		// Only the one who removes the entry at this very place drops the record.
		if _, ok := l.index.remove(id, &p); !ok {
			continue
		}
		_, dropErr := l.drop(id, p)
		l.settler.fail(dropErr)
		if errors.Is(err, errMismatch) {
			if !errors.Is(err, errEvicted) {
				l.corrupt(p.slot, p.note(id))
			}
			return nil, hearth.ErrMiss
		}
		return nil, err
	}
	return nil, hearth.ErrMiss
}

// corrupt counts a block that did not verify, and reports it.
func (l *Log) corrupt(slot uint32, n note) {
	l.counters.corrupt.Add(1)
	if slots := *l.slots.Load(); l.counters.damaged != nil && int(slot) < len(slots) && slots[slot] != nil {
		l.counters.damaged(l.dir.Full(slots[slot].name()), fmt.Errorf("block %v at %d: %w", n.id, n.offset(), errMismatch))
	}
}

// errEvicted means that pages of the record were punched. The tombstone was lost with the power, or
// there was no room for it.
var errEvicted = fmt.Errorf("evicted: %w", errMismatch)

// read fills v by r from the segment at slot, verifies it, and returns a Slice of
// what was wanted.
func (l *Log) read(r *ranges, slot uint32, v *hearth.View) (*hearth.View, error) {
	slots := *l.slots.Load()
	if int(slot) >= len(slots) || slots[slot] == nil {
		return nil, errMismatch
	}
	s := slots[slot]
	f, err := s.acquire()
	if err == nil {
		err = r.fill(f.ReadAt, v.Bytes())
		s.release()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, fs.ErrNotExist) {
		return nil, errMismatch // shortened or unlinked meanwhile
	}
	if err != nil {
		return nil, err
	}
	l.counters.read.Add(int64(v.Len()))
	if err := r.verify(v.Bytes(), s.salt); err != nil {
		return nil, err
	}
	got := v.Slice(int(r.at+r.want.off-int64(r.first)*hearth.PieceSize), int(r.want.n))
	if r.want.off == 0 && r.want.n == int64(r.note.length) {
		piece.Note(got.Sums(), v.Bytes()[r.header+fixedSize:][:8*(r.last+1)])
	}
	return got, nil
}

// ranges is how a range of a record is read. head are the pages from the record's header on. body
// are the pages of the pieces, if these do not follow closely. In memory body follows head.
type ranges struct {
	note        note
	want        span
	head, body  span
	first, last int   // the wanted pieces
	header      int64 // offset of the record's header in memory
	at          int64 // offset of piece first in memory
}

func plan(n note, want span) ranges {
	r := ranges{note: n, want: want, first: int(want.off / hearth.PieceSize), last: int((want.off + want.n - 1) / hearth.PieceSize)}
	start := n.offset() &^ (pageSize - 1)
	data := n.offset() + int64(headerSize(int(n.length)))
	from := data + int64(r.first)*hearth.PieceSize
	end := roundUp(data+min(int64(r.last+1)*hearth.PieceSize, int64(n.length)), pageSize)
	r.header = n.offset() - start
	if int64(r.first)*hearth.PieceSize <= skipMost {
		r.head, r.at = span{start, end - start}, from-start
		return r
	}
	// Only records with pages of their own have several pieces, so the header
	// lies in one page.
	body := from &^ (pageSize - 1)
	r.head, r.body = span{start, pageSize}, span{body, end - body}
	r.at = pageSize + from - body
	return r
}

// fill reads the pages into b, by a function that fills a buffer from an offset of the segment.
func (r *ranges) fill(readAt func(p []byte, off int64) error, b []byte) error {
	if err := readAt(b[:r.head.n], r.head.off); err != nil || r.body.n == 0 {
		return err
	}
	return readAt(b[r.head.n:], r.body.off)
}

func (r *ranges) verify(b []byte, salt uint64) error {
	header := b[r.header:r.head.n]
	n, ok := parseHeader(header, salt, r.note.offset())
	if !ok || n != r.note {
		if zero(header[:min(len(header), headerSize(int(r.note.length)))]) {
			return errEvicted
		}
		return errMismatch
	}
	data := b[r.at:]
	for i := r.first; i <= r.last; i++ {
		size := min(hearth.PieceSize, int(n.length)-i*hearth.PieceSize)
		if xxh3.Hash(data[:size]) != pieceSum(header, i) {
			if r.punched(b[r.header:]) {
				return errEvicted
			}
			return errMismatch
		}
		data = data[size:]
	}
	return nil
}

// punched reports whether a packed record that begins at b[0] was evicted though its header is
// there. The header may lie on a page that the record shares with others.
func (r *ranges) punched(b []byte) bool {
	at := r.note.offset()
	from, end := roundUp(at, pageSize), r.note.end()&^(pageSize-1)
	return packed(int(r.note.length)) && from < end && zero(b[from-at:end-at])
}

func zero(b []byte) bool { return check.Zero(b) }
