package prefetch

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

const (
	// ways words of a set fill one line of a processor's cache.
	ways = 8
	// A word is a tag (35 bits), an area (8) and a size (21). A word of size 0 is free.
	sizeBits, areaBits = 21, 8
	mostAreas          = 1 << areaBits
	// The table takes one part in tableShare of the memory. Of 256 MiB it takes 2 MiB, so
	// that 65,000 objects may be unread; with the 4 GiB of a large node it is a million.
	tableShare         = 128
	leastSets, maxSets = 1 << 7, 1 << 19
)

// unread has a word for each object that was prefetched and not read: a set-associative
// table of fixed size. Words are taken and given without a lock.
type unread struct {
	sets  [][ways]atomic.Uint64
	words atomic.Int64
}

// setsFor is the number of sets for so many bytes of memory in all.
func setsFor(memory int64) int {
	sets := max(leastSets, min(memory/tableShare/ways/8, maxSets))
	return 1 << (bits.Len64(uint64(sets)) - 1)
}

func newUnread(sets int) *unread { return &unread{sets: make([][ways]atomic.Uint64, sets)} }

func (u *unread) bytes() int64 { return int64(len(u.sets)) * ways * 8 }

// full reports whether more objects would make sets overflow. With two words in a set on
// average, one set in some thousand does.
func (u *unread) full() bool { return u.words.Load() >= int64(len(u.sets))*ways/4 }

// hashOf is a hash of the object's version.
func hashOf(o *hearth.Object) uint64 { return binary.LittleEndian.Uint64(o.Version[:8]) }

func (u *unread) set(hash uint64) *[ways]atomic.Uint64 { return &u.sets[hash&uint64(len(u.sets)-1)] }

func tag(hash uint64) uint64 { return hash >> (sizeBits + areaBits) }

// put notes an object. It returns false if there is no room, or the object is noted
// already.
func (u *unread) put(hash uint64, area int, size int64) bool {
	word := tag(hash)<<(sizeBits+areaBits) | uint64(area)<<sizeBits | uint64(size)
	set := u.set(hash)
	for i := range set {
		if w := set[i].Load(); w != 0 && w>>(sizeBits+areaBits) == tag(hash) {
			return false
		}
	}
	for i := range set {
		if set[i].CompareAndSwap(0, word) {
			u.words.Add(1)
			return true
		}
	}
	return false
}

// take forgets an object and returns its area and size. A size of 0 means that it is not
// noted.
func (u *unread) take(hash uint64) (area int, size int64) {
	set := u.set(hash)
	for i := range set {
		w := set[i].Load()
		if w != 0 && w>>(sizeBits+areaBits) == tag(hash) && set[i].CompareAndSwap(w, 0) {
			u.words.Add(-1)
			return split(w)
		}
	}
	return 0, 0
}

func split(w uint64) (area int, size int64) {
	return int(w >> sizeBits % mostAreas), int64(w % (1 << sizeBits))
}

// sweep forgets all objects of an area and returns the sum of their sizes.
func (u *unread) sweep(area int) (bytes int64) {
	for s := range u.sets {
		for i := range u.sets[s] {
			w := u.sets[s][i].Load()
			if a, size := split(w); w != 0 && a == area && u.sets[s][i].CompareAndSwap(w, 0) {
				u.words.Add(-1)
				bytes += size
			}
		}
	}
	return bytes
}
