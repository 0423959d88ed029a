// Package evict decides for one cache directory which misses are worth writing,
// and what goes when there is no room. It is arithmetic over (ID, size, now): no
// I/O and no clock.
//
// Which entry goes. Each entry has a State of 32 bits, four bytes that the store
// keeps with its index: when it was last used, how long it usually waits between
// two uses, and how many uses that is known from. Fresh makes the State of a new
// entry, Touch updates it at each hit. When room is needed the store draws some
// entries at random (Samples) and gives up the one that Worst names:
//
//  1. never one that is pinned;
//
//  2. blocks of a Version that the namespace replaced, since nobody who opens
//     the name today asks for them;
//
//  3. blocks that the ring says are not ours: their owner has them too;
//
//  4. else the entry of the least hit density: what keeping it saves per byte and
//     second. A miss costs the entry's bytes and one request, weighed as MissCost
//     bytes, so
//
//     density = (size + MissCost) / size  x  2 / (interval + idle)
//
// where interval is the mean wait between uses so far and idle the time since
// the last one: a busy entry that falls silent loses its worth as fast as it was
// used, which is how the score ages without anybody walking the entries. An entry
// that was never used has no interval. It is judged by its neighbours: by the mean
// interval of the candidates that were used, times a factor. At 1 this is close to
// LRU; at 30 an entry must be used again soon, or it goes.
//
// Which miss is written. No rule is right for every load. A permutation epoch over
// twice the cache hits half of the time if misses go into free space only, and
// some 15 % if each one replaces another; of two jobs that follow one another
// through a set the second hits always in the latter case, and half of the time
// in the former; a cache of yesterday's set must be replaced. So a Policy lets the
// rules run, on one small group of the IDs that is chosen by their hash, without
// bytes: ghosts remember what a cache of the group's share of the limit would
// hold. One admits into free space only; two admit always, at either factor. What
// each saves, in bytes and requests, is summed up and aged, and the directory
// follows the winner. All see the same requests, so that a few popular objects
// cannot decide the duel by falling into one group. A ghost that never replaces
// would hold yesterday's set for ever: when it loses it starts again from what
// the winner holds, as the directory would if it stopped replacing now. And
// the directory stops replacing only once it has replaced as much as it holds.
package evict

import "math/bits"

const (
	// MissCost is what one request to the next tier weighs in bytes, beside the
	// bytes that it brings: about what a connection moves in the time to first byte.
	MissCost = 256 << 10
	// Samples is how many candidates a store draws for one eviction. Sixteen find
	// an entry of the worst sixteenth two times in three; more cost time and gain
	// little.
	Samples = 16
)

// A State is, from the high bits: 23 bits of the second of the last use (it wraps
// after 97 days: an entry that was not used for 73 looks young until then), 6 bits of
// the interval in half octaves of a second, 3 bits of the number of intervals seen
// (saturated).
const (
	hitBits      = 3
	intervalBits = 6
	timeBits     = 32 - hitBits - intervalBits
	maxHits      = 1<<hitBits - 1
	timeMask     = 1<<timeBits - 1
	// ahead is how far a use may lie in the future, a quarter of what the second can
	// tell: whoever reads the clock first, and looks at an entry that is used
	// meanwhile, must not take it for the oldest of all.
	ahead = 1 << (timeBits - 2)
)

// Fresh is the State of an entry that is written now, in seconds of any clock
// that the store uses throughout.
func Fresh(now uint32) uint32 { return (now & timeMask) << (hitBits + intervalBits) }

// Touch is the State after a use. Uses within one second are one use: they are
// most often one reader walking through the block.
func Touch(state, now uint32) uint32 {
	idle := idleOf(state, now)
	if idle == 0 {
		return state
	}
	hits := state & maxHits
	interval := int64(intervalOf(state))
	if hits == 0 {
		interval = int64(idle)
	} else { // a mean of the first four, then it forgets by a quarter
		interval += (int64(idle) - interval) / int64(min(hits+1, 4))
	}
	return Fresh(now) | quantise(uint32(max(interval, 1)))<<hitBits | min(hits+1, maxHits)
}

// Hits is the number of uses that the State still knows of, at most 7.
func Hits(state uint32) int { return int(state & maxHits) }

// Idle is how many seconds ago an entry was used last, or written; 0 if that lies in
// the future.
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

// A Candidate is one entry that could go.
type Candidate struct {
	// Size is the number of bytes that giving it up frees.
	Size int64
	// State is the entry's State.
	State uint32
	// Replaced: the namespace knows a newer version of the name.
	Replaced bool
	// Foreign: the ring says that the block is not ours.
	Foreign bool
	// Pinned: it never goes.
	Pinned bool
}

// Worst returns the index of the candidate to give up, or -1 if none may go.
// fresh is the factor for those that were never used.
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

// Density is what keeping an entry is worth per byte and second. prior is the
// interval in seconds that a never used entry is believed to have.
func Density(size int64, state, now uint32, prior float64) float64 {
	interval := prior
	if state&maxHits > 0 {
		interval = float64(intervalOf(state))
	}
	size = max(size, 1)
	return float64(size+MissCost) / float64(size) * 2 / (interval + float64(idleOf(state, now)) + 1)
}

// meanInterval is the mean interval of the candidates that were used, or 0: then
// the order is that of idle times and sizes alone.
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

// Fits tells whether there is free space: used and need together stay within
// limit (all in bytes).
func Fits(used, need, limit int64) bool { return used+need <= limit }
