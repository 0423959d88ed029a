package sparse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/piece"
)

// A sidecar is a header of 64 bytes and one record of 144 bytes per block, both little endian. A
// record of zeros, or none, is a block that is not held.
//
//	header  0 magic  8 format version (4)  16 Version (16)  32 object size (8)  56 checksum of 0..56
//	record  0 state (1: held)  8 sixteen piece checksums  136 checksum of 0..136, seeded by Version and index
//
// Checksums are XXH3-64. In every later format the header keeps magic, version and checksum at
// these places, so that a newer file is not taken for a damaged one. The seed makes a record valid
// only at its own place.
const (
	formatVersion = 1
	headerSize    = 64
	recordSize    = 144
	pieces        = hearth.BlockSize / hearth.PieceSize
	stateHeld     = 1
	sumsAt        = 8
	ownSumAt      = recordSize - 8
	magic         = "HEARTHSP"
	formatName    = "FORMAT"
	formatLine    = "hearth sparse %d %016x\n" // format, sum
)

// errDamaged means that bytes on disk are not what was written.
var errDamaged = errors.New("damaged")

// FormatError means that a file was written by a newer version of Hearth.
type FormatError = device.FormatError

func newer(file string, format uint32) error {
	return &FormatError{File: file, Format: format, Known: formatVersion}
}

// Needs returns the bytes that an object of a size takes on disk: its data and its sidecar.
func Needs(size int64) int64 {
	page := func(n int64) int64 { return (n + 4095) &^ 4095 }
	return page(size) + page(headerSize+recordSize*((size+hearth.BlockSize-1)/hearth.BlockSize))
}

// formatText returns the content of FORMAT. With the sum a flipped bit does not look like a newer
// format; every later format has it.
func formatText(format uint32) string {
	return fmt.Sprintf(formatLine, format, xxh3.HashString(fmt.Sprint(format)))
}

// checkFormat refuses a directory of a newer format and marks a new one. A FORMAT that cannot be
// parsed is written anew: every sidecar holds its format, too.
func checkFormat(dir string, mended device.Mended) error {
	name := filepath.Join(dir, formatName)
	if err := device.ClearWay(name, false, mended); err != nil {
		return err
	}
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read cache format: %w", err)
	}
	var format uint32
	var check uint64
	_, err = fmt.Sscanf(string(data), formatLine, &format, &check)
	switch known := err == nil && string(data) == formatText(format); {
	case known && format > formatVersion:
		return newer(name, format)
	case known && format == formatVersion:
		return nil
	case data != nil:
		mended.Tell(name, errDamaged)
	}
	temp := name + ".tmp"
	if err := os.WriteFile(temp, []byte(formatText(formatVersion)), 0o600); err != nil {
		return fmt.Errorf("write cache format: %w", err)
	}
	if err := os.Rename(temp, name); err != nil {
		return fmt.Errorf("write cache format: %w", err)
	}
	return nil
}

type header struct {
	format  uint32
	version [16]byte
	size    int64
}

func (h header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], h.format)
	copy(b[16:], h.version[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(h.size))
	binary.LittleEndian.PutUint64(b[56:], xxh3.Hash(b[:56]))
	return b
}

// decodeHeader returns errDamaged for bytes that no Hearth wrote. The caller refuses a newer
// format; then the other fields mean nothing.
func decodeHeader(b []byte) (header, error) {
	if len(b) < headerSize || string(b[:8]) != magic ||
		binary.LittleEndian.Uint64(b[56:]) != xxh3.Hash(b[:56]) {
		return header{}, fmt.Errorf("sidecar's header: %w", errDamaged)
	}
	h := header{
		format:  binary.LittleEndian.Uint32(b[8:]),
		version: [16]byte(b[16:32]),
		size:    int64(binary.LittleEndian.Uint64(b[32:])),
	}
	if h.format == 0 || h.format <= formatVersion && h.size <= 0 {
		return header{}, fmt.Errorf("sidecar's header: %w", errDamaged)
	}
	return h, nil
}

// sums are the checksums of a block's pieces; those past its end are zero.
type sums [pieces]uint64

func sumsOf(data []byte) (s sums) {
	for i := range piece.Count(len(data)) {
		s[i] = piece.Sum(data, i)
	}
	return s
}

// encodeRecord fills b, recordSize bytes, with the record of a held block.
func encodeRecord(b []byte, id hearth.ID, s *sums) {
	clear(b[:sumsAt])
	b[0] = stateHeld
	for i, sum := range s {
		binary.LittleEndian.PutUint64(b[sumsAt+8*i:], sum)
	}
	binary.LittleEndian.PutUint64(b[ownSumAt:], recordSum(b, id))
}

// decodeRecord reports whether b is a valid record of the block, and sets s to its sums.
func decodeRecord(b []byte, id hearth.ID, s *sums) bool {
	if b[0] != stateHeld || binary.LittleEndian.Uint64(b[ownSumAt:]) != recordSum(b, id) {
		return false
	}
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[sumsAt+8*i:])
	}
	return true
}

func recordSum(b []byte, id hearth.ID) uint64 {
	seed := binary.LittleEndian.Uint64(id.Version[:8]) + uint64(id.Index)
	return xxh3.HashSeed(b[:ownSumAt], seed)
}

func recordOffset(index int64) int64 { return headerSize + index*recordSize }

// readRecords calls held for each valid record among the first blocks of a sidecar, and returns how
// many were damaged. Records torn off at the end are not held, and not damage: the file, or its
// writer, was cut short.
func readRecords(sidecar io.ReaderAt, version [16]byte, blocks int64, held func(index int64)) (damaged int64, err error) {
	const batch = 448 // records in 63 KiB
	buf := make([]byte, min(batch, blocks)*recordSize)
	var s sums
	for first := int64(0); first < blocks; first += batch {
		n, err := sidecar.ReadAt(buf, recordOffset(first))
		if err != nil && err != io.EOF {
			return damaged, err
		}
		for i := range min(int64(n/recordSize), blocks-first) {
			b := buf[i*recordSize:][:recordSize]
			if decodeRecord(b, hearth.ID{Version: version, Index: first + i}, &s) {
				held(first + i)
			} else if b[0] != 0 {
				damaged++
			}
		}
		if err == io.EOF {
			break
		}
	}
	return damaged, nil
}
