package place

import (
	"math"
	"slices"
	"sync/atomic"
)

// mostJoined is how many owners may join at once while earlier draws are kept; each takes one or
// two milliseconds. Beyond that, slots are drawn anew when they are asked for, at 1,000 nodes 4 us
// each.
const mostJoined = 16

// Next returns the Map of other nodes. It answers as New's does, and keeps the draws of this one
// that still hold. An owner with a new weight or zone counts as one that left and one that joined.
// Everything is drawn anew if zones begin to count or cease to, or if more than 16 owners joined.
// If no owner changed, the two Maps share their draws; if nothing changed, they are one. Next takes
// milliseconds if all slots were drawn, so hold no lock meanwhile. Errors are those of New.
func (m *Map) Next(nodes []Node) (*Map, error) {
	next, err := newMap(nodes)
	switch {
	case err != nil:
		return nil, err
	case slices.Equal(m.nodes, next.nodes):
		return m, nil
	case slices.Equal(m.owners, next.owners):
		next.cells = m.cells
		return next, nil
	}
	next.cells = new([Slots]cell)
	c := compare(m, next)
	if m.zoned == next.zoned && len(c.joined) <= mostJoined {
		c.carry()
	}
	return next, nil
}

// change is the difference between the owners of two Maps.
type change struct {
	from, to *Map
	// moved maps the place of each old owner that is the same to its new place; a place is the
	// index + 1. It is 0 for all others, and for place 0, which belongs to nobody.
	moved  []uint16
	joined []uint16 // the new indexes of owners that are new or changed
	draws  []draw   // theirs
}

func compare(from, to *Map) *change {
	c := &change{from: from, to: to, moved: make([]uint16, len(from.owners)+1)}
	i := 0
	for j, n := range to.owners {
		for i < len(from.owners) && from.owners[i].ID < n.ID {
			i++
		}
		if i < len(from.owners) && from.owners[i] == n {
			c.moved[i+1] = uint16(j + 1)
		} else {
			c.joined = append(c.joined, uint16(j))
			c.draws = append(c.draws, to.draws[j])
		}
	}
	return c
}

// carry takes over what has been drawn. Nobody else has the new Map yet.
func (c *change) carry() {
	for s := range Slot(Slots) {
		old := &c.from.cells[s]
		first := atomic.LoadUint64(&old[0])
		if first == 0 {
			continue
		}
		was := cell{first, atomic.LoadUint64(&old[1])}
		if now, known := c.revise(s, was); known {
			c.to.cells[s] = now
		}
	}
}

// revise makes a slot's cell from the one before. It is false if too little of that is left.
func (c *change) revise(s Slot, was cell) (cell, bool) {
	seed, reach := s.seed(), was.reach()
	now, all := c.move(was)
	for i := 0; all && i < len(c.draws); i++ {
		d := &c.draws[i]
		all = d.uniform(seed) > reach*d.reach
	}
	if all {
		return now, true
	}
	r, known := c.merge(seed, was.ranking())
	return r.cell(), known
}

// move gives a cell's owners their new places, and reports whether all of them stayed.
func (c *change) move(was cell) (now cell, all bool) {
	all = true
	now[1] = was[1] &^ (1<<32 - 1)
	for rank := range kept {
		word, shift := rank/Ranks, 16*(rank%Ranks)
		place := uint16(was[word] >> shift)
		to := c.moved[place]
		now[word] |= uint64(to) << shift
		all = all && (to != 0 || place == 0)
	}
	return now, all
}

// known has the candidates for a slot's ranks. Other owners that stayed are not known; each scores
// above bound, and above outside if it lies outside of the zone of the former first.
type known struct {
	bound, outside float64
	zone           string // of the former first
	best           best   // up to bound
	other          scored // the best outside of zone, up to outside
}

func (k *known) add(x scored, zone string) {
	if x.score <= k.bound {
		k.best.add(x)
	}
	if x.score <= k.outside && zone != k.zone && x.before(k.other) {
		k.other = x
	}
}

// merge makes a slot's ranks from the owners that stayed and those that joined.
func (c *change) merge(seed uint64, was ranking) (ranking, bool) {
	inf := math.Inf(1)
	k := known{bound: inf, outside: inf, zone: c.from.owners[was.at[0]].Zone, other: scored{score: inf}}
	if was.n < len(c.from.draws) {
		k.bound = c.from.draws[was.at[was.n-1]].score(seed)
		k.outside = max(k.bound, c.from.draws[was.at[1]].score(seed))
	}
	for _, i := range was.at[:was.n] {
		if place := c.moved[i+1]; place != 0 {
			j := place - 1
			k.add(scored{c.to.draws[j].score(seed), j}, c.to.owners[j].Zone)
		}
	}
	for i, j := range c.joined {
		x := scored{c.draws[i].score(seed), j}
		if x.score == k.bound || x.score == k.outside {
			return ranking{}, false // an unknown owner may have the same score and a lower id
		}
		k.add(x, c.to.owners[j].Zone)
	}
	n := k.best.n
	if n == 0 {
		return ranking{}, false
	}
	if c.to.zoned && c.to.outside(&k.best) == 0 {
		// All up to bound lie in one zone. If it is not the zone of before, those outside of it are
		// not known beyond bound.
		if k.other.score == inf || c.to.owners[k.best.at[0].index].Zone != k.zone {
			return ranking{}, false
		}
		n++
	}
	if n < min(Ranks, len(c.to.draws)) {
		return ranking{}, false
	}
	return c.to.arrange(&k.best, k.other), true
}
