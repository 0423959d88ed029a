//go:build !race

package place

// Arithmetic of one goroutine over millions of lookups: the race detector finds nothing in it and
// makes it take ten times as long.

import (
	"cmp"
	"math"
	"slices"
	"testing"
)

// five is how far a node's count of extents may be from its share by chance, as a
// fraction of the share. It is five standard deviations, of the slots that it owns and
// the extents in them.
func five(share float64, extents int) float64 {
	return 5 * math.Sqrt((1-share)/share*(1./Slots+1/float64(extents)))
}

func TestBalance(t *testing.T) {
	// Of many extents each node owns its part of all weights, as near as chance lets it.
	// With 1,000 nodes there are fewer extents, as each draws most of its slot's ranks.
	for n, many := range map[int]int{10: 300_000, 100: 300_000, 1000: 100_000} {
		slots := extents(many)
		m := mapOf(t, ring(n, 0))
		counts, busiest, idlest := ownersOf(m, slots), 0.0, math.Inf(1)
		for _, x := range m.Nodes() {
			share := m.Share(x.ID)
			ratio := float64(counts[x.ID]) / float64(many) / share
			busiest, idlest = max(busiest, ratio), min(idlest, ratio)
			if off := five(share, many); math.Abs(ratio-1) > off {
				t.Errorf("%d nodes: one of a share of %.5f has %.3fx that, off by more than %.3f", n, share, ratio, off)
			}
		}
		t.Logf("%d nodes: the busiest has %.3fx its share, the idlest %.3fx", n, busiest, idlest)
		if n <= 100 && busiest > 1.2 {
			t.Errorf("%d nodes: the busiest has %.3fx its share", n, busiest)
		}
	}
}

// most is what may move with a node, as a multiple of its share.
const most = 1.1

// part is what a node or several nodes own: what of it moved, and its share of
// everything.
type part struct{ moved, share float64 }

// tells reports whether chance is small enough to tell the share from the most that may
// move.
func (p part) tells(extents int) bool { return 1+five(p.share, extents) < most }

func TestChangeMovesAShare(t *testing.T) {
	// Nodes leave and come back one after the other. What moves is just what each owns,
	// and that is at most 1.1x its share. Chance moves more of a node whose share is
	// small, since the number of slots is fixed. So of 100 nodes and more the lighter
	// ones are checked together, as few of them as own two in a hundred. Each one alone
	// is checked against five standard deviations.
	const many = 200_000
	slots := extents(many)
	for _, c := range []struct{ nodes, leave, told int }{{10, 10, 10}, {100, 14, 4}, {1000, 13, 1}} {
		nodes := ring(c.nodes, 0)
		if c.nodes == 1000 { // what the lightest own says least
			slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Compare(b.Weight, a.Weight) })
		}
		l := newLeaves(t, nodes, slots)
		var group, sum part
		worst, told := 0.0, 0
		for _, x := range nodes[:c.leave] {
			p := l.leave(t, x)
			if off := five(p.share, many); p.moved > p.share*(1+off) {
				t.Errorf("%d nodes: one moved %.3fx its share, more than chance lets it, %.3f", c.nodes, p.moved/p.share, 1+off)
			}
			sum = part{sum.moved + p.moved, sum.share + p.share}
			if !p.tells(many) {
				group = part{group.moved + p.moved, group.share + p.share}
				if p = group; !p.tells(many) {
					continue
				}
				group = part{}
			}
			told++
			if worst = max(worst, p.moved/p.share); p.moved > most*p.share {
				t.Errorf("%d nodes: of a share of %.4f moved %.3fx that", c.nodes, p.share, p.moved/p.share)
			}
		}
		t.Logf("%d nodes: leavers and joiners move %.3fx their share, the worst of %d that tell %.3fx", c.nodes, sum.moved/sum.share, told, worst)
		if told < c.told {
			t.Errorf("%d nodes: no more than %d tell anything", c.nodes, told)
		}
	}
}

// leaves are the changes of a map by a node that leaves and comes back.
type leaves struct {
	all     *Map
	nodes   []Node
	counts  []int  // of extents, by slot
	owners  []Node // in the map, by slot
	owned   map[string]int
	extents int
}

func newLeaves(t *testing.T, nodes []Node, slots []Slot) *leaves {
	t.Helper()
	l := &leaves{mapOf(t, nodes), nodes, make([]int, Slots), make([]Node, Slots), map[string]int{}, len(slots)}
	for _, s := range slots {
		l.counts[s]++
		l.owners[s], _ = l.all.Owner(s)
		l.owned[l.owners[s].ID]++
	}
	return l
}

// leave returns what moved, which must be all that the node owns and nothing else.
func (l *leaves) leave(t *testing.T, x Node) part {
	t.Helper()
	less := next(t, l.all, slices.DeleteFunc(slices.Clone(l.nodes), func(n Node) bool { return n == x }))
	again := next(t, less, l.nodes)
	left, joined := 0, 0
	for s, before := range l.owners {
		n := l.counts[s]
		if n == 0 {
			continue
		}
		between, _ := less.Owner(Slot(s))
		after, _ := again.Owner(Slot(s))
		if before == between && between == after {
			continue
		}
		if before != between {
			left += n
		}
		if before != after || before != between && before != x {
			t.Fatalf("%d nodes: slot %d went from %v over %v to %v while %v left and came back", len(l.nodes), s, before, between, after, x)
		}
		if between != after {
			joined += n
		}
	}
	owned := l.owned[x.ID]
	if left != owned || joined != left {
		t.Fatalf("%d nodes: %d extents moved when one left, %d when it came back; it has %d", len(l.nodes), left, joined, owned)
	}
	return part{float64(left) / float64(l.extents), l.all.Share(x.ID)}
}
