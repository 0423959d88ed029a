package volume

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth/cache/record"
)

// This file is the format of a volume; docs/volume-format.md has it byte by byte. Numbers are little
// endian. Each header fills a page and ends with the XXH3-64 of all that stands before.

// Format is the version that is written. Older ones are read, a newer one is refused. Magic, version and
// checksum keep their places in every version, so that a newer volume is not taken for a damaged one.
const Format = 1

const (
	pageSize = record.PageSize
	// firstSegment is where segments begin: partitions are aligned to 1 MiB as well.
	firstSegment = 1 << 20
	sumAt        = pageSize - 8 // the checksum of a header page
	trailerSize  = 64
	// maxRecords of a segment bound the memory for its index: 1.8 MiB.
	maxRecords = 64 << 10

	superMagic   = "hearthvl"
	headerMagic  = "hearthvs"
	trailerMagic = "hearthvx"
)

// geometry is what a superblock says. Both copies say the same.
type geometry struct {
	format  uint32
	copy    uint32 // 0: the first page; 1: the last
	volume  [16]byte
	cluster [16]byte
	size    int64  // bytes that the volume uses, both superblocks included
	segment int64  // bytes of a segment
	count   uint32 // segments
	span    uint32 // segments in a range; the last range may be shorter
	created int64  // Unix seconds
	label   string // at most 32 bytes
}

const labelSize = 32

func (g *geometry) put(page []byte) {
	clear(page[:pageSize])
	copy(page, superMagic)
	binary.LittleEndian.PutUint32(page[8:], g.format)
	binary.LittleEndian.PutUint32(page[12:], g.copy)
	copy(page[16:], g.volume[:])
	copy(page[32:], g.cluster[:])
	binary.LittleEndian.PutUint64(page[48:], uint64(g.size))
	binary.LittleEndian.PutUint64(page[56:], uint64(g.segment))
	binary.LittleEndian.PutUint32(page[64:], g.count)
	binary.LittleEndian.PutUint32(page[68:], g.span)
	binary.LittleEndian.PutUint64(page[72:], uint64(g.created))
	copy(page[80:80+labelSize], g.label)
	seal(page)
}

// parseGeometry reads a superblock. ok is false unless it is whole. A newer one is whole, and only its
// format is known.
func parseGeometry(page []byte) (g geometry, ok bool) {
	if !sealed(page, superMagic) {
		return g, false
	}
	g.format = binary.LittleEndian.Uint32(page[8:])
	if g.format > Format {
		return g, true
	}
	g.copy = binary.LittleEndian.Uint32(page[12:])
	g.volume, g.cluster = [16]byte(page[16:32]), [16]byte(page[32:48])
	g.size = int64(binary.LittleEndian.Uint64(page[48:]))
	g.segment = int64(binary.LittleEndian.Uint64(page[56:]))
	g.count = binary.LittleEndian.Uint32(page[64:])
	g.span = binary.LittleEndian.Uint32(page[68:])
	g.created = int64(binary.LittleEndian.Uint64(page[72:]))
	label := page[80 : 80+labelSize]
	for i, c := range label {
		if c == 0 {
			label = label[:i]
			break
		}
	}
	g.label = string(label)
	return g, g.format > 0 && g.valid()
}

// valid reports whether segments and superblocks lie inside of the volume, and its numbers inside of
// what places can name.
func (g *geometry) valid() bool {
	return g.segment >= minSegment && g.segment <= maxSegment && g.segment%pageSize == 0 && g.count > 0 &&
		g.count < maxSegments && g.span > 0 && g.size%pageSize == 0 && g.size > 0 &&
		firstSegment+int64(g.count)*g.segment+pageSize <= g.size
}

const (
	// minSegment holds a header, a block of 1 MiB, an index and some more; maxSegment is what places name.
	minSegment = 4 << 20
	maxSegment = record.MaxUnits * record.UnitSize
	// maxSegments is what a place's 24 bits can number.
	maxSegments = 1 << 24
	// Of a volume of usual size so many segments and ranges are made. More segments are reclaimed in
	// smaller steps; more ranges are shared more evenly by the nodes of a ring.
	usualSegments, usualRanges = 4096, 512
	usualMost                  = 64 << 20 // the largest segment that is chosen by itself
)

// plan is the geometry of a new volume of that many bytes. segment is the size of a segment in bytes; 0
// has it chosen: a 4,096th of the volume, between 4 and 64 MiB.
func plan(size, segment int64) (g geometry, err error) {
	size = size &^ (pageSize - 1)
	if segment == 0 {
		segment = min(max(record.RoundUp(size/usualSegments, 1<<20), minSegment), usualMost)
	}
	count := (size - firstSegment - pageSize) / segment
	g = geometry{format: Format, size: size, segment: segment, count: uint32(min(max(count, 0), maxSegments-1))}
	g.span = max(1, g.count/usualRanges)
	if !g.valid() {
		return g, fmt.Errorf("a volume of %s with segments of %s: a segment has 4 MiB to 1 GiB in steps of 4 KiB, "+
			"and the volume must hold at least one behind its first MiB", sizeText(size), sizeText(segment))
	}
	return g, nil
}

// sizeText is a size for people, without a loss.
func sizeText(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// offset is where a segment begins on the device.
func (g *geometry) offset(segment uint32) int64 { return firstSegment + int64(segment)*g.segment }

// last is where the second superblock lies.
func (g *geometry) last() int64 { return g.size - pageSize }

// ranges is how many ranges the volume has.
func (g *geometry) ranges() int { return int((g.count + g.span - 1) / g.span) }

// header is the header page of a segment. A segment begins anew with each: then its records are those
// with the header's salt, and no others.
type header struct {
	format     uint32
	segment    uint32
	volume     [16]byte
	generation uint64 // one more at each new beginning
	salt       uint64 // of the records' headers and the index
	node       [16]byte
	began      int64 // Unix ms
}

func (h *header) put(page []byte) {
	clear(page[:pageSize])
	copy(page, headerMagic)
	binary.LittleEndian.PutUint32(page[8:], h.format)
	binary.LittleEndian.PutUint32(page[12:], h.segment)
	copy(page[16:], h.volume[:])
	binary.LittleEndian.PutUint64(page[32:], h.generation)
	binary.LittleEndian.PutUint64(page[40:], h.salt)
	copy(page[48:], h.node[:])
	binary.LittleEndian.PutUint64(page[64:], uint64(h.began))
	seal(page)
}

func parseHeader(page []byte) (h header, ok bool) {
	if !sealed(page, headerMagic) {
		return h, false
	}
	h = header{
		format:     binary.LittleEndian.Uint32(page[8:]),
		segment:    binary.LittleEndian.Uint32(page[12:]),
		volume:     [16]byte(page[16:32]),
		generation: binary.LittleEndian.Uint64(page[32:]),
		salt:       binary.LittleEndian.Uint64(page[40:]),
		node:       [16]byte(page[48:64]),
		began:      int64(binary.LittleEndian.Uint64(page[64:])),
	}
	return h, h.format > 0 && h.format <= Format
}

// trailer is the last 64 bytes of a closed segment: magic 8, format 4, segment 4, generation 8, salt 8,
// records 4, zero 4, offset of the index 8, its XXH3 seeded with the salt 8, XXH3 of the 56 bytes before.
// The index lies right before it and ends with the segment.
type trailer struct {
	format     uint32
	segment    uint32
	generation uint64
	salt       uint64
	count      uint32
	offset     int64 // in the segment
	sum        uint64
}

func (t *trailer) put(dst []byte) {
	clear(dst[:trailerSize])
	copy(dst, trailerMagic)
	binary.LittleEndian.PutUint32(dst[8:], t.format)
	binary.LittleEndian.PutUint32(dst[12:], t.segment)
	binary.LittleEndian.PutUint64(dst[16:], t.generation)
	binary.LittleEndian.PutUint64(dst[24:], t.salt)
	binary.LittleEndian.PutUint32(dst[32:], t.count)
	binary.LittleEndian.PutUint64(dst[40:], uint64(t.offset))
	binary.LittleEndian.PutUint64(dst[48:], t.sum)
	binary.LittleEndian.PutUint64(dst[56:], xxh3.Hash(dst[:56]))
}

func parseTrailer(b []byte) (t trailer, ok bool) {
	if len(b) < trailerSize || string(b[:8]) != trailerMagic || binary.LittleEndian.Uint64(b[56:]) != xxh3.Hash(b[:56]) {
		return t, false
	}
	t = trailer{
		format:     binary.LittleEndian.Uint32(b[8:]),
		segment:    binary.LittleEndian.Uint32(b[12:]),
		generation: binary.LittleEndian.Uint64(b[16:]),
		salt:       binary.LittleEndian.Uint64(b[24:]),
		count:      binary.LittleEndian.Uint32(b[32:]),
		offset:     int64(binary.LittleEndian.Uint64(b[40:])),
		sum:        binary.LittleEndian.Uint64(b[48:]),
	}
	return t, t.format > 0 && t.format <= Format
}

// closes reports whether a trailer closes the segment that a header began, and lies inside of it.
func (t *trailer) closes(h *header, segment int64) bool {
	return t.segment == h.segment && t.generation == h.generation && t.salt == h.salt &&
		t.count <= maxRecords && t.offset >= pageSize && t.offset%pageSize == 0 && t.offset == segment-indexSize(int(t.count))
}

// indexSize is the bytes of an index with so many records, trailer included.
func indexSize(count int) int64 {
	return record.RoundUp(int64(count)*record.NoteSize+trailerSize, pageSize)
}

// putIndex completes b, of indexSize and with the notes at its beginning, as the index of a segment.
func putIndex(b []byte, h *header, count int, segment int64) {
	n := count * record.NoteSize
	clear(b[n:])
	t := trailer{format: Format, segment: h.segment, generation: h.generation, salt: h.salt, count: uint32(count),
		offset: segment - int64(len(b)), sum: xxh3.HashSeed(b[:n], h.salt)}
	t.put(b[len(b)-trailerSize:])
}

// parseIndex calls each for the notes of an index, if all of it is as it was written.
func parseIndex(b []byte, t *trailer, each func(record.Note)) bool {
	n := int(t.count) * record.NoteSize
	if n > len(b) || xxh3.HashSeed(b[:n], t.salt) != t.sum {
		return false
	}
	for at := 0; at < n; at += record.NoteSize {
		if x := record.ParseNote(b[at:]); x.Valid(t.offset) {
			each(x)
		}
	}
	return true
}

func seal(page []byte) {
	binary.LittleEndian.PutUint64(page[sumAt:], xxh3.Hash(page[:sumAt]))
}

func sealed(page []byte, magic string) bool {
	return len(page) >= pageSize && string(page[:8]) == magic &&
		binary.LittleEndian.Uint64(page[sumAt:]) == xxh3.Hash(page[:sumAt])
}
