package segment

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// Format is the version that is written. Older ones are read, a newer one is refused. Magic,
// version and checksum keep their places in every version of the header page and the trailer. So a
// newer file is not taken for a damaged one.
const Format = 1

const (
	sealSize = 64 // the used part of the header page, and the trailer

	segmentMagic = "hearthsg"
	trailerMagic = "hearthix"
	deathsMagic  = "hearthxx"
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

// Needs estimates the bytes that an object's blocks take on disk: their records and footer entries.
// A packed block adds its share of the half page that ends a batch of about four.
func Needs(o *hearth.Object) int64 {
	full, rest := o.Size/hearth.BlockSize, int(o.Size%hearth.BlockSize)
	n := full * (record.Size(hearth.BlockSize) + record.NoteSize)
	if rest > 0 {
		n += record.Size(rest) + record.NoteSize
	}
	if record.Packed(rest) && rest > 0 {
		n += record.PageSize / 2 / 4
	}
	return n
}

// footerSize returns the bytes of a footer of count entries: the entries, padding, and the trailer
// in the file's last 64 bytes.
func footerSize(count int) int64 {
	return record.RoundUp(int64(count)*record.NoteSize+sealSize, record.PageSize)
}

// putFooter completes dst, of footerSize and with the entries at its beginning.
func putFooter(dst []byte, s seal) {
	entries := dst[:int(s.count)*record.NoteSize]
	clear(dst[len(entries):])
	s.sum = xxh3.HashSeed(entries, s.salt)
	putSeal(dst[len(dst)-sealSize:], trailerMagic, s)
}

// parseFooter checks a footer against its trailer and yields its entries.
func parseFooter(b []byte, s seal, each func(record.Note)) bool {
	entries := int64(s.count) * record.NoteSize
	if int64(len(b)) < entries || xxh3.HashSeed(b[:entries], s.salt) != s.sum {
		return false
	}
	for at := int64(0); at < entries; at += record.NoteSize {
		if n := record.ParseNote(b[at:]); n.Valid(s.offset) {
			each(n)
		}
	}
	return true
}
