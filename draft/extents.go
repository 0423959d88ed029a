package draft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/btree"
	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth/internal/device"
)

// A draft that changes an object has a sparse file of the object's size. What was written lies there; all else is still the
// base's. Which is which stands in a journal beside the file, since a file system may make a hole of zeros, and the other way
// round. A row is written behind each write and before that is answered, so that it is there after a kill. After a power cut
// only what a Sync has covered counts: of the rest nobody knows whether the bytes came to the disk. What is lost is then the
// base's again, as an unsynced write is on any file system.
//
// The journal is rows of two numbers of 64 bits, little-endian: an extent [from, to); or overRow and a size, to which less of the
// base shows since the file was truncated; or markRow and a number: so many rows are synced. Zeros are a row that was not written.

const (
	rowSize = 16
	overRow = -1
	markRow = -2
)

// extent is a range of bytes, [from, to).
type extent struct{ from, to int64 }

// extents are what a draft has of its own below over.
type extents struct {
	over   int64 // the size below which the base shows between them
	tree   *btree.BTreeG[extent]
	rows   int64  // in the journal
	last   extent // of the last row, to which the next write may add; empty means that it may not
	marked bool   // no row is behind the last mark
}

func newExtents(over int64) *extents {
	return &extents{over: over, tree: btree.NewG(32, func(a, b extent) bool { return a.from < b.from }), marked: true}
}

// load reads a journal. Where the machine was started since, rows that no Sync has covered do not count, and the journal is
// written anew.
func (e *extents) load(file string, rebooted bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	e.rows, e.marked = int64(len(text)/rowSize), false
	rows := text[:e.rows*rowSize] // the next row replaces a torn one
	if rebooted {
		synced := int64(0)
		for at := range e.rows {
			if r := rowOf(rows[at*rowSize:]); r.from == markRow && r.to <= at {
				synced = max(synced, r.to)
			}
		}
		rows = rows[:synced*rowSize]
	}
	for ; len(rows) > 0; rows = rows[rowSize:] {
		switch r := rowOf(rows); {
		case r.from == markRow, r == extent{}:
		case r.from == overRow && r.to >= 0:
			e.over = min(e.over, r.to)
		case r.from >= 0 && r.to > r.from:
			e.insert(r)
		default:
			return errors.New("its journal is damaged")
		}
	}
	if rebooted {
		return e.rewrite(file)
	}
	return nil
}

// rewrite writes the journal of what is known, all of it synced.
func (e *extents) rewrite(file string) error {
	text := rowBytes(extent{overRow, e.over})
	e.tree.Ascend(func(x extent) bool { text = append(text, rowBytes(x)...); return true })
	text = append(text, rowBytes(extent{markRow, int64(len(text) / rowSize)})...)
	e.rows, e.marked = int64(len(text)/rowSize), true
	return device.WriteDurably(file, text)
}

func rowOf(b []byte) extent {
	return extent{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))}
}

func rowBytes(x extent) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(x.from)), uint64(x.to))
}

// add notes that [from, to) was written. Only what was the base's needs a row.
func (e *extents) add(f *os.File, from, to int64) error {
	x := extent{from, min(to, e.over)}
	if x.from >= x.to || len(e.holes(x)) == 0 {
		return nil
	}
	row, at := x, e.rows
	if e.last != (extent{}) && x.from <= e.last.to && x.to >= e.last.from { // most writers go on where they were
		row, at = extent{min(x.from, e.last.from), max(x.to, e.last.to)}, e.rows-1
	}
	if err := e.put(f, row, at); err != nil {
		return err
	}
	e.last = row
	e.insert(x)
	return nil
}

func (e *extents) put(f *os.File, row extent, at int64) error {
	if _, err := f.WriteAt(rowBytes(row), at*rowSize); err != nil {
		return fmt.Errorf("note what was written: %w", err)
	}
	e.rows, e.last, e.marked = max(e.rows, at+1), extent{}, false
	return nil
}

func (e *extents) insert(x extent) {
	e.tree.DescendLessOrEqual(x, func(y extent) bool {
		if y.to >= x.from {
			x.from, x.to = y.from, max(x.to, y.to)
		}
		return false
	})
	var gone []extent
	e.tree.AscendGreaterOrEqual(extent{from: x.from}, func(y extent) bool {
		if y.from > x.to {
			return false
		}
		x.to = max(x.to, y.to)
		gone = append(gone, y)
		return true
	})
	for _, y := range gone {
		e.tree.Delete(y)
	}
	e.tree.ReplaceOrInsert(x)
}

// shrink notes that the file was truncated: what is grown again is zeros.
func (e *extents) shrink(f *os.File, size int64) error {
	if size >= e.over {
		return nil
	}
	e.over = size // the file has been truncated
	return e.put(f, extent{overRow, size}, e.rows)
}

// seal returns how many rows there are, which no write changes any more. due is false if all of them are marked as synced.
func (e *extents) seal() (rows int64, due bool) {
	e.last = extent{}
	return e.rows, !e.marked
}

// mark notes that so many rows are synced.
func (e *extents) mark(f *os.File, rows int64) error {
	all := e.rows == rows
	if err := e.put(f, extent{markRow, rows}, e.rows); err != nil {
		return err
	}
	e.marked = all
	return nil
}

// holes are the ranges within one that are the base's. nil has none.
func (e *extents) holes(in extent) (holes []extent) {
	if e == nil {
		return nil
	}
	in.to = min(in.to, e.over)
	at := in.from
	e.tree.DescendLessOrEqual(extent{from: in.from}, func(y extent) bool {
		at = max(at, y.to)
		return false
	})
	e.tree.AscendGreaterOrEqual(extent{from: in.from}, func(y extent) bool {
		if y.from >= in.to {
			return false
		}
		if y.from > at {
			holes = append(holes, extent{at, y.from})
		}
		at = max(at, y.to)
		return true
	})
	if at < in.to {
		holes = append(holes, extent{at, in.to})
	}
	return holes
}

// untouched reports whether a file of that size is its base.
func (e *extents) untouched(size int64) bool { return e != nil && e.tree.Len() == 0 && e.over == size }

// hasher hashes bytes of a draft's file, and in the place of the base's where they lie: these do not change.
type hasher struct {
	*xxh3.Hasher128
	hole extent // that was not hashed yet, since it may go on
}

func newHasher() *hasher { return &hasher{Hasher128: xxh3.New128()} }

// add hashes bytes at an offset, but for those in holes.
func (h *hasher) add(p []byte, off int64, holes []extent) {
	for _, x := range holes {
		h.data(p[:x.from-off])
		p, off = p[x.to-off:], x.to
		h.skip(x)
	}
	h.data(p)
}

func (h *hasher) skip(x extent) {
	if h.hole == (extent{}) || h.hole.to != x.from {
		h.flush()
		h.hole.from = x.from
	}
	h.hole.to = x.to
}

func (h *hasher) data(p []byte) {
	if len(p) > 0 {
		h.flush()
		_, _ = h.Write(p) // it never fails
	}
}

func (h *hasher) flush() {
	if h.hole != (extent{}) {
		_, _ = h.Write(append([]byte("hole"), rowBytes(h.hole)...)) // it never fails
		h.hole = extent{}
	}
}

func (h *hasher) sum() []byte {
	h.flush()
	sum := h.Sum128().Bytes()
	return sum[:]
}

// thisBoot names the time since the machine was started.
func thisBoot() ([]byte, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("find out whether the machine was started since: %w", err)
	}
	return bytes.TrimSpace(id), nil
}
