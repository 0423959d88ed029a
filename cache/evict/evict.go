// Package evict decides for one cache directory which misses are worth writing (admission), and
// which entries go when there is no room (eviction). It is arithmetic over (ID, size, now): no I/O
// and no clock.
//
// Eviction. Each entry has a State of 32 bits, which the store keeps with its index: when it was
// last used, its usual interval between two uses, and from how many uses that is known. Fresh makes
// the State of a new entry, Touch updates it at each hit. When room is needed the store draws some
// entries at random (Samples) and evicts the one that Worst names:
//
//  1. never an entry that is pinned;
//
//  2. first blocks of a Version that the namespace replaced, since an open of the name no longer
//     leads to them;
//
//  3. then blocks that belong to another node of the ring: their owner has them too;
//
//  4. else the entry of the least hit density: what keeping it saves per byte and second. A miss
//     costs the entry's bytes and one request, weighed as MissCost bytes, so
//
//     density = (size + MissCost) / size  x  2 / (interval + idle)
//
// where interval is the mean time between uses so far and idle the time since the last use. A busy
// entry that falls silent loses its worth as fast as it was used. So the score ages without a walk
// over all entries. An entry that was never used has no interval of its own. It gets the mean
// interval of the used candidates, times a factor. With factor 1 this is close to LRU; with factor
// 30 an entry must be used again soon, or it goes.
//
// Admission, by set dueling. No rule is right for every load. An epoch in random order over a set
// of twice the cache hits half of the time if misses go into free space only, and some 15 % of the
// time if each miss replaces another entry. If two jobs follow one another through a set, the
// second always hits when misses replace, and half of the time when they do not. A cache full of
// yesterday's set must be replaced.
//
// So a Policy lets three rules compete on one small sample of the IDs, the group, which is chosen
// by hash. They run without bytes: a ghost remembers what a cache of the group's share of the limit
// would hold. One rule admits into free space only; two always admit, with different factors. What
// each saves, in bytes and requests, is summed up and aged, and the directory follows the winner.
// All ghosts see the same requests, so a few popular objects cannot decide the duel by falling into
// one group.
//
// A ghost that never replaces would hold yesterday's set for ever. So when it loses, it starts
// again from what the winner holds, as the directory would if it stopped replacing now. And the
// directory stops replacing only once it has replaced as much as it holds.
package evict

import "math/bits"

const (
	// MissCost is the cost of one request to the next tier, in bytes, beside the bytes that it
	// brings: about what a connection moves in the time to first byte.
	MissCost = 256 << 10
	// Samples is how many candidates a store draws for one eviction. With sixteen, one of the worst
	// sixteenth is among them two times in three. More cost time and gain little.
	Samples = 16
)

// A State holds, from the high bits: 23 bits of the second of the last use, 6 bits of the interval
// in half octaves of a second, and 3 bits of the number of intervals seen (saturated). The second
// wraps after 97 days: an entry that was not used for 73 days looks young until then.
const (
	hitBits      = 3
	intervalBits = 6
	timeBits     = 32 - hitBits - intervalBits
	maxHits      = 1<<hitBits - 1
	timeMask     = 1<<timeBits - 1
	// ahead is how far in the future a use may lie: a quarter of the range of the second. A
	// goroutine that read the clock first may look at an entry that was used meanwhile. It must not
	// take that entry for the oldest of all.
	ahead = 1 << (timeBits - 2)
)

// Fresh is the State of an entry that is written now. now is in seconds of any clock, as long as
// the store always uses the same.
func Fresh(now uint32) uint32 { return (now & timeMask) << (hitBits + intervalBits) }

// Touch is the State after a use. Uses within one second count as one: they are most often one
// reader that walks through the block.
func Touch(state, now uint32) uint32 {
	idle := idleOf(state, now)
	if idle == 0 {
		return state
	}
	hits := state & maxHits
	interval := int64(intervalOf(state))
	if hits == 0 {
		interval = int64(idle)
	} else { // a mean of the first four, then a moving average with weight 1/4
		interval += (int64(idle) - interval) / int64(min(hits+1, 4))
	}
	return Fresh(now) | quantise(uint32(max(interval, 1)))<<hitBits | min(hits+1, maxHits)
}

// Hits is the number of uses that the State still remembers, at most 7.
func Hits(state uint32) int { return int(state & maxHits) }

// Idle is the number of seconds since an entry's last use or its writing; 0 if that lies in the
// future.
func Idle(state, now uint32) int64 { return int64(idleOf(state, now)) }

func idleOf(state, now uint32) uint32 {
	idle := (now - state>>(hitBits+intervalBits)) & timeMask
	if idle > timeMask-ahead {
		return 0
	}
	return idle
}

// intervalOf is 2^(q/2) seconds.
func intervalOf(state uint32) uint32 {
	q := state >> hitBits & (1<<intervalBits - 1)
	v := uint64(1) << (q / 2)
	if q%2 == 1 {
		v = v * 181 / 128 // the root of two
	}
	return uint32(min(v, timeMask))
}

// quantise rounds seconds to the nearest half octave.
func quantise(seconds uint32) uint32 {
	s := uint64(seconds) * 1218 / 1024 // times the fourth root of two: floor becomes round
	e := uint32(bits.Len64(s)) - 1
	q := 2 * e
	if s*s >= 1<<(2*e+1) {
		q++
	}
	return q
}

// A Candidate is one entry that could be evicted.
type Candidate struct {
	// Size is the number of bytes that evicting it frees.
	Size int64
	// State is the entry's State.
	State uint32
	// Replaced says that the namespace knows a newer version of the name.
	Replaced bool
	// Foreign says that the block belongs to another node of the ring.
	Foreign bool
	// Pinned says that it never goes.
	Pinned bool
}

// Worst returns the index of the candidate to evict, or -1 if none may go. fresh is the factor for
// candidates that were never used.
func Worst(candidates []Candidate, now uint32, fresh float64) int {
	prior := fresh * meanInterval(candidates)
	worst, worstClass, worstDensity := -1, 0, 0.0
	for i := range candidates {
		c := &candidates[i]
		if c.Pinned {
			continue
		}
		class, density := 2, 0.0
		switch {
		case c.Replaced:
			class = 0
		case c.Foreign:
			class = 1
		}
		density = Density(c.Size, c.State, now, prior)
		if worst < 0 || class < worstClass || class == worstClass && density < worstDensity {
			worst, worstClass, worstDensity = i, class, density
		}
	}
	return worst
}

// Density is what keeping an entry is worth per byte and second. prior is the assumed interval in
// seconds of an entry that was never used.
func Density(size int64, state, now uint32, prior float64) float64 {
	interval := prior
	if state&maxHits > 0 {
		interval = float64(intervalOf(state))
	}
	size = max(size, 1)
	return float64(size+MissCost) / float64(size) * 2 / (interval + float64(idleOf(state, now)) + 1)
}

// meanInterval is the mean interval of the used candidates, or 0 if there are none. With 0, only
// idle times and sizes decide.
func meanInterval(candidates []Candidate) float64 {
	sum, n := 0.0, 0
	for i := range candidates {
		if candidates[i].State&maxHits > 0 {
			sum += float64(intervalOf(candidates[i].State))
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// Fits reports whether there is free space: used and need together stay within
// limit (all in bytes).
func Fits(used, need, limit int64) bool { return used+need <= limit }
