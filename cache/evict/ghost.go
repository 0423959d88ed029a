package evict

const (
	// ghostEntries bounds what a ghost remembers. It is enough that chance moves the share of hits
	// by only a point or two. It is small enough that all ghosts fit into a core's cache.
	ghostEntries = 4096
	// ghostSlots is the size of a ghost's hash table, which is at most half full.
	ghostSlots = 2 * ghostEntries
)

// ghostEntry is a block that a ghost would hold: 16 bytes, no pointers.
type ghostEntry struct {
	key   uint64
	size  uint32
	state uint32
}

// rule is one policy of admission and eviction.
type rule struct {
	replaces bool    // always admits; else into free space only
	fresh    float64 // the factor for entries that were never used
}

// ghost is a simulated cache without bytes: entries in no order, and a hash table with open
// addressing from key to the entry's position plus 1.
type ghost struct {
	n        int
	used     int64
	admitted int64   // bytes since the start (halved with the group)
	saved    float64 // what its hits were worth in bytes, aged
	doubt    float64 // the variance of the difference to the free ghost: the sum of squares where they differ
	random   uint64
	entries  [ghostEntries]ghostEntry
	slots    [ghostSlots]uint16
}

func (g *ghost) home(key uint64) int { return int(key % ghostSlots) }

// find returns the slot of key, or the free slot where it belongs.
func (g *ghost) find(key uint64) (slot int, ok bool) {
	for i := g.home(key); ; i = (i + 1) % ghostSlots {
		at := g.slots[i]
		if at == 0 {
			return i, false
		}
		if g.entries[at-1].key == key {
			return i, true
		}
	}
}

// usedAt reports whether the block is held and was last used in this second.
func (g *ghost) usedAt(key uint64, now uint32) bool {
	slot, ok := g.find(key)
	return ok && idleOf(g.entries[g.slots[slot]-1].state, now) == 0
}

// use is one request; e is the block as a new entry. full means that the ghost has space for the
// block, but no entry left.
func (g *ghost) use(r rule, e ghostEntry, limit int64) (hit, full bool) {
	now, need := e.state>>(hitBits+intervalBits), int64(e.size)
	slot, ok := g.find(e.key)
	if ok {
		held := &g.entries[g.slots[slot]-1]
		held.state = Touch(held.state, now)
		return true, false
	}
	for i := 0; i < Samples && g.used > limit && g.n > 0; i++ { // it has shrunk: a few at a time
		g.evict(now, r.fresh)
	}
	if need > limit || !r.replaces && !Fits(g.used, need, limit) {
		return false, false
	}
	for !Fits(g.used, need, limit) {
		g.evict(now, r.fresh)
	}
	if g.n == ghostEntries {
		return false, true
	}
	g.insert(e)
	return false, false
}

func (g *ghost) insert(e ghostEntry) {
	slot, _ := g.find(e.key)
	g.entries[g.n] = e
	g.n++
	g.slots[slot] = uint16(g.n)
	g.used += int64(e.size)
	g.admitted += int64(e.size)
}

// evict evicts an entry by the rule of the package, as a store does.
func (g *ghost) evict(now uint32, fresh float64) {
	var picks [Samples]int
	var candidates [Samples]Candidate
	for i := range picks {
		g.random = mix(g.random)
		picks[i] = int(g.random % uint64(g.n))
		e := &g.entries[picks[i]]
		candidates[i] = Candidate{Size: int64(e.size), State: e.state}
	}
	g.remove(picks[Worst(candidates[:], now, fresh)])
}

// remove removes entry i; the last entry fills its place.
func (g *ghost) remove(i int) {
	g.used -= int64(g.entries[i].size)
	slot, _ := g.find(g.entries[i].key)
	g.closeGap(slot)
	g.n--
	if i == g.n {
		return
	}
	slot, _ = g.find(g.entries[g.n].key)
	g.slots[slot] = uint16(i + 1)
	g.entries[i] = g.entries[g.n]
}

// closeGap frees a slot, and shifts the entries that probing would no longer find behind it.
func (g *ghost) closeGap(gap int) {
	for i := (gap + 1) % ghostSlots; g.slots[i] != 0; i = (i + 1) % ghostSlots {
		home := g.home(g.entries[g.slots[i]-1].key)
		if (i-home+ghostSlots)%ghostSlots >= (i-gap+ghostSlots)%ghostSlots {
			g.slots[gap] = g.slots[i]
			gap = i
		}
	}
	g.slots[gap] = 0
}

// filter removes the entries that keep does not name.
func (g *ghost) filter(keep func(key uint64) bool) {
	for i := g.n - 1; i >= 0; i-- {
		if !keep(g.entries[i].key) {
			g.remove(i)
		}
	}
}

// mix is SplitMix64.
func mix(r uint64) uint64 {
	r += 0x9e3779b97f4a7c15
	r = (r ^ r>>30) * 0xbf58476d1ce4e5b9
	r = (r ^ r>>27) * 0x94d049bb133111eb
	return r ^ r>>31
}
