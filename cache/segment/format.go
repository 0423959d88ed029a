package segment

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

// Format is the version that is written. Older ones are read, a newer one is refused. Magic,
// version and checksum keep their places in every version of the header page and the trailer. So a
// newer file is not taken for a damaged one.
const Format = 1

const (
	pageSize  = 4096 // for O_DIRECT and hole punching on every known file system
	unitSize  = 64   // a cache line: packed records start there, and places fit 24 bits
	sealSize  = 64   // the used part of the header page, and the trailer
	fixedSize = 40   // of a record's header, before piece checksums and own checksum
	noteSize  = 28   // of a footer entry: version 16, index 4, unit 4, length 4

	maxUnits = 1 << 24 // place.unit has 24 bits: a segment's data end below 1 GiB
	maxIndex = 1 << 27 // entry has 27 bits for ID.Index: the first 128 TiB of an object
)

const (
	segmentMagic = "hearthsg"
	trailerMagic = "hearthix"
	deathsMagic  = "hearthxx"
	recordMagic  = "hblk"
	recordFormat = 1
)

// seal is the header page's or the trailer's content. On disk, little endian:
// magic 8, format 4, number 4, salt 8, count 4, zero 4, offset 8, sum 8, zero 8,
// XXH3 of the 56 bytes before.
type seal struct {
	format uint32
	number uint32
	salt   uint64
	count  uint32 // trailer: records in the footer
	offset int64  // trailer: where the footer begins
	sum    uint64 // trailer: of the footer's entries, seeded with salt
}

func putSeal(dst []byte, magic string, s seal) {
	clear(dst[:sealSize])
	copy(dst, magic)
	binary.LittleEndian.PutUint32(dst[8:], s.format)
	binary.LittleEndian.PutUint32(dst[12:], s.number)
	binary.LittleEndian.PutUint64(dst[16:], s.salt)
	binary.LittleEndian.PutUint32(dst[24:], s.count)
	binary.LittleEndian.PutUint64(dst[32:], uint64(s.offset))
	binary.LittleEndian.PutUint64(dst[40:], s.sum)
	binary.LittleEndian.PutUint64(dst[56:], xxh3.Hash(dst[:56]))
}

func parseSeal(b []byte, magic string) (seal, bool) {
	if len(b) < sealSize || string(b[:8]) != magic ||
		binary.LittleEndian.Uint64(b[56:]) != xxh3.Hash(b[:56]) {
		return seal{}, false
	}
	s := seal{
		format: binary.LittleEndian.Uint32(b[8:]),
		number: binary.LittleEndian.Uint32(b[12:]),
		salt:   binary.LittleEndian.Uint64(b[16:]),
		count:  binary.LittleEndian.Uint32(b[24:]),
		offset: int64(binary.LittleEndian.Uint64(b[32:])),
		sum:    binary.LittleEndian.Uint64(b[40:]),
	}
	return s, s.format > 0
}

// headerSize is the size of a record's header: 56 bytes for one piece, 176 for
// sixteen.
func headerSize(length int) int { return fixedSize + 8*piece.Count(length) + 8 }

// packed reports whether a block shares pages. A block of several pieces does not. It loses at most
// 4 KiB of 64, and its eviction frees all the room that it took.
func packed(length int) bool { return length <= hearth.PieceSize }

// recordSize returns the bytes of a record in the segment, padding included.
func recordSize(length int) int64 {
	n := int64(headerSize(length) + length)
	if packed(length) {
		return roundUp(n, unitSize)
	}
	return roundUp(n, pageSize)
}

// Needs estimates the bytes that an object's blocks take on disk: their records and footer entries.
// A packed block adds its share of the half page that ends a batch of about four.
func Needs(o *hearth.Object) int64 {
	full, rest := o.Size/hearth.BlockSize, int(o.Size%hearth.BlockSize)
	n := full * (recordSize(hearth.BlockSize) + noteSize)
	if rest > 0 {
		n += recordSize(rest) + noteSize
	}
	if packed(rest) && rest > 0 {
		n += pageSize / 2 / 4
	}
	return n
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// note says where a record lies: an entry of a footer.
type note struct {
	id     hearth.ID
	unit   uint32 // offset / unitSize
	length uint32 // of the block
}

func (n note) offset() int64 { return int64(n.unit) * unitSize }
func (n note) end() int64    { return n.offset() + recordSize(int(n.length)) }

// valid reports whether a note can be of a record: inside [one page, end), and aligned.
func (n note) valid(end int64) bool {
	return n.length > 0 && n.length <= hearth.BlockSize && n.unit < maxUnits &&
		uint64(n.id.Index) < maxIndex && n.offset() >= pageSize && n.end() <= end &&
		(packed(int(n.length)) || n.offset()%pageSize == 0)
}

// putHeader writes a record's header: magic 4, format 1, zero 3, version 16, index 8, length 4,
// unit 4, a sum per piece. Then the checksum of all that, seeded with the segment's salt. sums may
// be nil; then they are computed.
func putHeader(dst []byte, n note, salt uint64, data []byte, sums []uint64) {
	copy(dst, recordMagic)
	binary.LittleEndian.PutUint32(dst[4:], recordFormat)
	copy(dst[8:24], n.id.Version[:])
	binary.LittleEndian.PutUint64(dst[24:], uint64(n.id.Index))
	binary.LittleEndian.PutUint32(dst[32:], n.length)
	binary.LittleEndian.PutUint32(dst[36:], n.unit)
	at := fixedSize
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

// parseHeader reads the header of a record at offset. ok is false unless the header is complete,
// valid, of this segment and of this place.
func parseHeader(b []byte, salt uint64, offset int64) (n note, ok bool) {
	if len(b) < fixedSize || string(b[:4]) != recordMagic {
		return note{}, false
	}
	n = note{
		id:     hearth.ID{Version: [16]byte(b[8:24]), Index: int64(binary.LittleEndian.Uint64(b[24:]))},
		length: binary.LittleEndian.Uint32(b[32:]),
		unit:   binary.LittleEndian.Uint32(b[36:]),
	}
	if format := binary.LittleEndian.Uint32(b[4:]); format == 0 || format > recordFormat {
		return note{}, false
	}
	if n.length == 0 || n.length > hearth.BlockSize || n.offset() != offset {
		return note{}, false
	}
	size := headerSize(int(n.length))
	if len(b) < size || binary.LittleEndian.Uint64(b[size-8:]) != xxh3.HashSeed(b[:size-8], salt) {
		return note{}, false
	}
	return n, true
}

// pieceSum returns the checksum of piece i from a header that parseHeader accepted.
func pieceSum(header []byte, i int) uint64 {
	return binary.LittleEndian.Uint64(header[fixedSize+8*i:])
}

func appendNote(dst []byte, n note) []byte {
	dst = append(dst, n.id.Version[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n.id.Index))
	dst = binary.LittleEndian.AppendUint32(dst, n.unit)
	return binary.LittleEndian.AppendUint32(dst, n.length)
}

func parseNote(b []byte) note {
	return note{
		id:     hearth.ID{Version: [16]byte(b[:16]), Index: int64(binary.LittleEndian.Uint32(b[16:]))},
		unit:   binary.LittleEndian.Uint32(b[20:]),
		length: binary.LittleEndian.Uint32(b[24:]),
	}
}

// footerSize returns the bytes of a footer of count entries: the entries, padding, and the trailer
// in the file's last 64 bytes.
func footerSize(count int) int64 {
	return roundUp(int64(count)*noteSize+sealSize, pageSize)
}

// putFooter completes dst, of footerSize and with the entries at its beginning.
func putFooter(dst []byte, s seal) {
	entries := dst[:int(s.count)*noteSize]
	clear(dst[len(entries):])
	s.sum = xxh3.HashSeed(entries, s.salt)
	putSeal(dst[len(dst)-sealSize:], trailerMagic, s)
}

// parseFooter checks a footer against its trailer and yields its entries.
func parseFooter(b []byte, s seal, each func(note)) bool {
	entries := int64(s.count) * noteSize
	if int64(len(b)) < entries || xxh3.HashSeed(b[:entries], s.salt) != s.sum {
		return false
	}
	for at := int64(0); at < entries; at += noteSize {
		if n := parseNote(b[at:]); n.valid(s.offset) {
			each(n)
		}
	}
	return true
}
