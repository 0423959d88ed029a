package evict

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hearthfs/hearth"
)

const (
	// groupShift sets the first size of the group: one extent in 2^groupShift. It shrinks when the
	// ghosts run out of entries. At this size three of four uses cost only one hash. For a cache of
	// 2,000 blocks, chance moves the share of hits by two points.
	groupShift = 2
	// windows is how many times the duel is judged while the ghosts' capacity is asked for once.
	// Each judgement halves what was saved before, so about two windows count. That is short enough
	// for a new set to win within its second epoch. It is long enough that the first misses of an
	// epoch, when all rules hit alike, decide nothing.
	windows = 2
	// margin is the lead that the winner needs: 1/margin of what the loser saved.
	margin = 16
	// deviations is how many standard deviations of chance the difference must exceed, too.
	deviations = 3
)

// Policy says which misses of one directory are worth writing. It takes Bytes of memory, whatever
// the directory holds, and four bytes of State for each entry. Its methods are safe for concurrent
// use; Use never waits.
type Policy struct {
	winner atomic.Int32  // index of the ghost whose rule is in force
	shift  atomic.Uint32 // the group is one extent in 2^shift
	limit  atomic.Int64  // of the directory, in bytes

	rules  [3]rule    // of the ghosts; they never change
	mu     sync.Mutex // guards what follows
	ghosts [3]ghost
	asked  int64 // bytes of the group's uses since the last judgement
	turned int64 // the directory has turned over once the winner's admitted reaches this
}

// The ghosts by their rules. The first rule is in force until it loses.
const (
	free     = iota // admits into free space only
	recent          // always admits, and evicts what was used longest ago
	frequent        // always admits, and evicts what was used once
)

// Bytes is the size of a Policy in memory.
const Bytes = int64(unsafe.Sizeof(Policy{}))

// NewPolicy returns the Policy of a directory that may hold limit bytes. Until
// the duel is decided it admits into free space only.
func NewPolicy(limit int64) *Policy {
	p := &Policy{rules: [3]rule{
		free:     {false, 3}, // this factor only matters for a Keep: it lies between the others
		recent:   {true, 1},
		frequent: {true, 30},
	}}
	p.shift.Store(groupShift)
	p.limit.Store(limit)
	return p
}

// SetLimit sets what the directory may hold now, in bytes.
func (p *Policy) SetLimit(limit int64) { p.limit.Store(max(limit, 0)) }

// Replaces reports whether a miss is worth the eviction of the candidate that Worst names. If not,
// it is written into free space only.
func (p *Policy) Replaces() bool { return p.winner.Load() != free }

// Worst returns the index of the candidate to evict by the rule in force, or -1 if none may go.
func (p *Policy) Worst(candidates []Candidate, now uint32) int {
	return Worst(candidates, now, p.rules[p.winner.Load()].fresh)
}

// Yields reports whether candidate i, the Worst, goes before a new entry of its size that nobody
// has asked for.
func (p *Policy) Yields(candidates []Candidate, i int, now uint32) bool {
	newcomer := Candidate{Size: candidates[i].Size, State: Fresh(now)}
	return p.Worst(append(candidates, newcomer), now) == i
}

// Use notes one request for a block of size bytes, hit or miss, at a second of any clock. Requests
// for a block within one second count as one. Blocks outside the group are ignored. A use that
// comes while another goroutine notes one is forgotten: the group is only a sample.
func (p *Policy) Use(id hearth.ID, size int, now uint32) {
	extent := hearth.ID{Version: id.Version, Index: id.Extent()}
	key := mix(extent.Hash())
	if !grouped(key, p.shift.Load()) || !p.mu.TryLock() {
		return
	}
	defer p.mu.Unlock()
	// The group's bits stay on top, so that the extent's blocks stay together.
	p.useLocked(key&^(1<<40-1)|mix(id.Hash())&(1<<40-1), uint32(size), now)
}

// grouped reports whether a key is in the group, by its top bits, since the hash tables use the low
// ones.
func grouped(key uint64, shift uint32) bool { return key>>(64-shift) == 0 }

func (p *Policy) useLocked(key uint64, size, now uint32) {
	if p.ghosts[recent].usedAt(key, now) {
		return // the same reader asks for its next bytes
	}
	capacity := p.limit.Load() >> p.shift.Load()
	worth := float64(size) + MissCost
	var hits [len(p.ghosts)]bool
	for i := range p.ghosts {
		g := &p.ghosts[i]
		var full bool
		if hits[i], full = g.use(p.rules[i], ghostEntry{key, size, Fresh(now)}, capacity); full {
			p.shrinkLocked()
			return // the key may be outside the group now
		}
		if hits[i] {
			g.saved += worth
		}
		if hits[i] != hits[free] {
			g.doubt += worth * worth
		}
	}
	p.asked += int64(size)
	if p.asked >= capacity/windows {
		p.asked = 0
		p.judgeLocked(capacity)
	}
}

// shrinkLocked halves the group.
func (p *Policy) shrinkLocked() {
	shift := min(p.shift.Load()+1, 24) // 24 bits of the key tell extents apart
	p.shift.Store(shift)
	in := func(key uint64) bool { return grouped(key, shift) }
	for i := range p.ghosts {
		p.ghosts[i].filter(in)
		p.ghosts[i].saved /= 2
		p.ghosts[i].doubt /= 4
		p.ghosts[i].admitted /= 2
	}
	p.turned /= 2
}

// judgeLocked ends a window of the duel.
func (p *Policy) judgeLocked(capacity int64) {
	g, now := &p.ghosts, p.winner.Load()
	best := int32(recent)
	if g[frequent].saved > g[recent].saved {
		best = frequent
	}
	switch {
	case p.beatsLocked(best, free):
		g[free] = g[best]
		if now == free {
			p.turned = g[best].admitted + capacity
			p.winner.Store(best)
		} else if p.beatsLocked(best, now) {
			p.turned += g[best].admitted - g[now].admitted
			p.winner.Store(best)
		}
	case now != free && p.beatsLocked(free, now) && g[now].admitted >= p.turned:
		g[free] = g[now]
		p.winner.Store(free)
	}
	for i := range g {
		g[i].saved /= 2
		g[i].doubt /= 4
	}
}

// beatsLocked reports whether a saved more than b by more than chance explains.
func (p *Policy) beatsLocked(a, b int32) bool {
	more := p.ghosts[a].saved - p.ghosts[b].saved
	doubt := max(p.ghosts[a].doubt, p.ghosts[b].doubt)
	return more > p.ghosts[b].saved/margin && more*more > deviations*deviations*doubt
}
