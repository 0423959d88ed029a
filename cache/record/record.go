// Package record is how a block lies packed in a segment, on a disk or on a volume, and the index of
// where each lies.
//
// A segment is a range of bytes with a salt of its own. It begins with a page for its owner's header;
// records follow. A record is a header and the block's bytes right behind it. The header holds magic,
// format, ID, length, place, one XXH3-64 per 64 KiB piece, and its own checksum, which is seeded with
// the segment's salt. So no bytes inside a block pass for a record, and no record of a segment that
// was written over. Blocks of one piece are packed at 64 bytes; longer ones have pages of their own.
//
// A Note names a record and its place. Read plans which pages of a record a range of its block needs,
// in one read or two, and verifies what came. An Index maps IDs to places, without pointers, 36 to 40
// bytes a block, in memory that is claimed in the Pool.
package record

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/piece"
)

const (
	// PageSize is what O_DIRECT and hole punching want on every known file system.
	PageSize = 4096
	// UnitSize is a cache line: packed records start there, and places fit 24 bits.
	UnitSize = 64
	// NoteSize is the size of a note in bytes: version 16, index 4, unit 4, length 4.
	NoteSize = 28
	// FixedSize is the size of a record's header before piece checksums and own checksum.
	FixedSize = 40
	// MaxUnits bounds Note.Unit, which has 24 bits: a segment's data end below 1 GiB.
	MaxUnits = 1 << 24
	// MaxIndex bounds ID.Index, which has 27 bits in an index: the first 128 TiB of an object.
	MaxIndex = 1 << 27

	magic  = "hblk"
	format = 1
)

// HeaderSize is the size of a record's header: 56 bytes for one piece, 176 for
// sixteen.
func HeaderSize(length int) int { return FixedSize + 8*piece.Count(length) + 8 }

// Packed reports whether a block shares pages. A block of several pieces does not. It loses at most
// 4 KiB of 64, and its eviction frees all the room that it took.
func Packed(length int) bool { return length <= hearth.PieceSize }

// Size returns the bytes of a record in the segment, padding included.
func Size(length int) int64 {
	n := int64(HeaderSize(length) + length)
	if Packed(length) {
		return RoundUp(n, UnitSize)
	}
	return RoundUp(n, PageSize)
}

// RoundUp returns the next multiple of to, or n if it is one.
func RoundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Note says where a record lies: an entry of a footer.
type Note struct {
	ID hearth.ID
	// Unit is Offset / UnitSize.
	Unit uint32
	// Length is the block's, in bytes.
	Length uint32
}

// Offset is the place of the record in its segment, in bytes.
func (n Note) Offset() int64 { return int64(n.Unit) * UnitSize }

// End is the offset behind the record, padding included.
func (n Note) End() int64 { return n.Offset() + Size(int(n.Length)) }

// Valid reports whether a note can be of a record: inside [one page, end), and aligned.
func (n Note) Valid(end int64) bool {
	return n.Length > 0 && n.Length <= hearth.BlockSize && n.Unit < MaxUnits &&
		uint64(n.ID.Index) < MaxIndex && n.Offset() >= PageSize && n.End() <= end &&
		(Packed(int(n.Length)) || n.Offset()%PageSize == 0)
}

// PutHeader writes a record's header: magic 4, format 1, zero 3, version 16, index 8, length 4,
// unit 4, a sum per piece. Then the checksum of all that, seeded with the segment's salt. sums may
// be nil; then they are computed.
func PutHeader(dst []byte, n Note, salt uint64, data []byte, sums []uint64) {
	copy(dst, magic)
	binary.LittleEndian.PutUint32(dst[4:], format)
	copy(dst[8:24], n.ID.Version[:])
	binary.LittleEndian.PutUint64(dst[24:], uint64(n.ID.Index))
	binary.LittleEndian.PutUint32(dst[32:], n.Length)
	binary.LittleEndian.PutUint32(dst[36:], n.Unit)
	at := FixedSize
	for i := range piece.Count(len(data)) {
		sum := uint64(0)
		if sums != nil {
			sum = sums[i]
		} else {
			sum = piece.Sum(data, i)
		}
		binary.LittleEndian.PutUint64(dst[at:], sum)
		at += 8
	}
	binary.LittleEndian.PutUint64(dst[at:], xxh3.HashSeed(dst[:at], salt))
}

// ParseHeader reads the header of a record at offset. ok is false unless the header is complete,
// valid, of this segment and of this place.
func ParseHeader(b []byte, salt uint64, offset int64) (n Note, ok bool) {
	if len(b) < FixedSize || string(b[:4]) != magic {
		return Note{}, false
	}
	n = Note{
		ID:     hearth.ID{Version: [16]byte(b[8:24]), Index: int64(binary.LittleEndian.Uint64(b[24:]))},
		Length: binary.LittleEndian.Uint32(b[32:]),
		Unit:   binary.LittleEndian.Uint32(b[36:]),
	}
	if f := binary.LittleEndian.Uint32(b[4:]); f == 0 || f > format {
		return Note{}, false
	}
	if n.Length == 0 || n.Length > hearth.BlockSize || n.Offset() != offset {
		return Note{}, false
	}
	size := HeaderSize(int(n.Length))
	if len(b) < size || binary.LittleEndian.Uint64(b[size-8:]) != xxh3.HashSeed(b[:size-8], salt) {
		return Note{}, false
	}
	return n, true
}

// scanWindow is how much Scan reads at once: it skips the bytes of long blocks and takes packed ones by the
// thousand.
const scanWindow = 256 << 10

// Scan finds the records of a segment of so many bytes by their headers, behind the page of the segment's own header.
// Behind a damaged one it tries each unit; the salt keeps a block's own bytes from passing for a record. read fills
// whole pages from an offset on. What it reads behind size does not count. An error of read ends the scan. It
// ends after so many records as most says, too: who does not trust the segment bounds its memory by that.
func Scan(read func(pages []byte, off int64) error, salt uint64, size int64, most int) ([]Note, error) {
	var notes []Note
	window := device.Aligned(scanWindow)
	var base, have int64
	for at := int64(PageSize); at < size && len(notes) < most; {
		// A header must not be cut by the window's end.
		if at < base || at+int64(HeaderSize(hearth.BlockSize)) > base+have && base+have < size {
			base = at &^ (PageSize - 1)
			have = min(scanWindow, size-base)
			if err := read(window[:RoundUp(have, PageSize)], base); err != nil {
				return nil, err
			}
		}
		if n, ok := ParseHeader(window[at-base:have], salt, at); ok && n.Valid(size) {
			notes = append(notes, n)
			at = n.End()
			continue
		}
		at += UnitSize
	}
	return notes, nil
}

// pieceSum returns the checksum of piece i from a header that ParseHeader accepted.
func pieceSum(header []byte, i int) uint64 {
	return binary.LittleEndian.Uint64(header[FixedSize+8*i:])
}

// AppendNote appends a note in NoteSize bytes, as footers and indexes of segments have it.
func AppendNote(dst []byte, n Note) []byte {
	dst = append(dst, n.ID.Version[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n.ID.Index))
	dst = binary.LittleEndian.AppendUint32(dst, n.Unit)
	return binary.LittleEndian.AppendUint32(dst, n.Length)
}

// ParseNote reads what AppendNote wrote. Valid says whether it can be of a record.
func ParseNote(b []byte) Note {
	return Note{
		ID:     hearth.ID{Version: [16]byte(b[:16]), Index: int64(binary.LittleEndian.Uint32(b[16:]))},
		Unit:   binary.LittleEndian.Uint32(b[20:]),
		Length: binary.LittleEndian.Uint32(b[24:]),
	}
}
