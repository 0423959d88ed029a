// Package piece makes the checksums of a block's pieces: an XXH3 of each Size bytes. They are the
// same on disk and on the way between nodes. So bytes that were verified once need not be summed
// again; summing takes a ninth of the time of sending them.
package piece

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// Size is hearth.PieceSize.
const Size = 64 << 10

// Count is the number of pieces of n bytes.
func Count(n int) int { return (n + Size - 1) / Size }

// Sum is the checksum of the i-th piece.
func Sum(data []byte, i int) uint64 { return xxh3.Hash(data[i*Size : min((i+1)*Size, len(data))]) }

// Noted are checksums that were computed from the bytes, or verified against them.
type Noted = atomic.Pointer[[]uint64]

// Known returns the noted checksums. nil means that there are none.
func Known(n *Noted) []uint64 {
	if s := n.Load(); s != nil {
		return *s
	}
	return nil
}

// notedFrom is the least number of bytes whose checksums are noted. For fewer bytes, computing them
// again is faster than allocating memory for them.
const notedFrom = 16 << 10

// Append appends the checksums of the bytes, 8 bytes each. They are computed at most once.
func Append(dst, data []byte, noted *Noted) []byte {
	known := Known(noted)
	if known == nil {
		at := len(dst)
		for i := range Count(len(data)) {
			dst = binary.LittleEndian.AppendUint64(dst, Sum(data, i))
		}
		note(noted, len(data), dst[at:])
		return dst
	}
	for _, s := range known {
		dst = binary.LittleEndian.AppendUint64(dst, s)
	}
	return dst
}

// Match reports whether bytes have the checksums that Append gave, and notes these if they have.
func Match(data, sums []byte, noted *Noted) bool {
	for i := range Count(len(data)) {
		if Sum(data, i) != binary.LittleEndian.Uint64(sums[8*i:]) {
			return false
		}
	}
	note(noted, len(data), sums)
	return true
}

func note(noted *Noted, n int, sums []byte) {
	if n >= notedFrom {
		Note(noted, sums[:8*Count(n)])
	}
}

// Note notes checksums of 8 bytes each that the bytes were verified against.
func Note(noted *Noted, sums []byte) {
	var few struct { // one allocation
		all  []uint64
		room [4]uint64
	}
	n := len(sums) / 8
	if few.all = few.room[:]; n > len(few.room) {
		few.all = make([]uint64, n)
	}
	few.all = few.all[:n]
	for i := range few.all {
		few.all[i] = binary.LittleEndian.Uint64(sums[8*i:])
	}
	noted.Store(&few.all)
}
