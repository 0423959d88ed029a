// Package piece makes the checksums of a block's pieces, XXH3s of Size bytes each. They are the
// same on disk and on the way between nodes, so that bytes which were held against them once need
// not be summed again: that is a ninth of what it takes to send them.
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

// Sum is the i-th piece's.
func Sum(data []byte, i int) uint64 { return xxh3.Hash(data[i*Size : min((i+1)*Size, len(data))]) }

// Noted are sums of bytes that somebody made of them, or held against them.
type Noted = atomic.Pointer[[]uint64]

// Known are the sums that were noted; nil: none were.
func Known(n *Noted) []uint64 {
	if s := n.Load(); s != nil {
		return *s
	}
	return nil
}

// notedFrom is the number of bytes from which on their sums are noted: those of fewer are made
// sooner than memory for them is found.
const notedFrom = 16 << 10

// Append appends sums of bytes, 8 each. They are made at most once.
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

// Match reports whether bytes have the sums that Append gave. They are noted then.
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

// Note notes sums of 8 bytes each, that bytes were held against.
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
