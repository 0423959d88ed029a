//go:build !race

package place // without the race detector as balance_test.go

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func TestChangesAreAsIfComputedAnew(t *testing.T) {
	// Nodes join, leave, and change their weights and zones, several at a time, while
	// slots are asked for now and then. Each Map answers as a new one does, and as the
	// plainest computation. Two successive Maps differ only by the nodes that changed.
	rapid.Check(t, func(t *rapid.T) {
		p := &plan{T: t, zones: rapid.IntRange(1, 4).Draw(t, "zones")}
		nodes := p.nodes(rapid.IntRange(0, 30).Draw(t, "nodes"))
		m, err := New(nodes)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			if err != nil {
				t.Fatal(err)
			}
			warm(m, rapid.IntRange(1, 3).Draw(t, "every"))
			before := m
			nodes = p.change(nodes)
			m, err = m.Next(nodes)
			if err == nil {
				compareAnew(t, before, m, nodes)
			}
		}
	})
}

const tried = 300 // slots

func warm(m *Map, every int) {
	for s := Slot(0); s < tried; s += Slot(every) {
		m.Owner(s)
	}
}

// plan draws nodes and their changes.
type plan struct {
	*rapid.T
	zones, made int
}

func (p *plan) nodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = p.node()
	}
	return nodes
}

func (p *plan) node() Node {
	p.made++
	return Node{
		ID:     fmt.Sprintf("%08x-%d", rapid.Uint32().Draw(p.T, "id"), p.made),
		Zone:   fmt.Sprint(rapid.IntRange(1, p.zones).Draw(p.T, "zone")),
		Weight: p.weight(),
	}
}

func (p *plan) weight() int64 {
	return rapid.SampledFrom([]int64{0, 1, 2, 3, 8, 1 << 20, 1 << 40, 1<<40 + 1<<30, 1<<63 - 1}).Draw(p.T, "weight")
}

// change leaves the slice as it is. The order of the nodes that stay does not matter.
func (p *plan) change(nodes []Node) []Node {
	nodes = slices.Clone(nodes)
	for range rapid.IntRange(0, min(5, len(nodes))).Draw(p.T, "leave") {
		i := rapid.IntRange(0, len(nodes)-1).Draw(p.T, "leaver")
		nodes = slices.Delete(nodes, i, i+1)
	}
	for range rapid.IntRange(0, 2).Draw(p.T, "differ") {
		if len(nodes) > 0 {
			n := &nodes[rapid.IntRange(0, len(nodes)-1).Draw(p.T, "who")]
			n.Weight, n.Zone = p.weight(), fmt.Sprint(rapid.IntRange(1, p.zones).Draw(p.T, "zone"))
		}
	}
	join := rapid.SampledFrom([]int{0, 1, 1, 2, 5, mostJoined + 1}).Draw(p.T, "join")
	return append(p.nodes(join), nodes...)
}

func compareAnew(t *rapid.T, before, m *Map, nodes []Node) {
	anew, err := New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	for s := range Slot(tried) {
		same(t, s, anew, m)
		for r, want := range reference(m, s) {
			if n, _ := m.Rank(s, r+1); n != want {
				t.Fatalf("slot %d: rank %d is %v, not %v", s, r+1, n, want)
			}
		}
		was, owned := before.Owner(s)
		now, owns := m.Owner(s)
		_, stays := stayed(m, was)
		_, stood := stayed(before, now)
		if owned && owns && was != now && stays && stood {
			t.Fatalf("slot %d went from %v to %v, neither of which changed", s, was, now)
		}
	}
}

// stayed reports whether a Map has exactly this node.
func stayed(m *Map, n Node) (Node, bool) {
	x, ok := m.Node(n.ID)
	return x, ok && x == n
}

func TestZonesBeginAndCeaseToCount(t *testing.T) {
	// All nodes are in one zone. A small one comes in another zone and is rank 2
	// everywhere. When it leaves, draws alone decide again.
	nodes := ring(31, 1)
	nodes[0].Zone, nodes[0].Weight = "another", 1
	m := mapOf(t, nodes[1:])
	for range 2 {
		warm(m, 1)
		m = next(t, m, nodes)
		warm(m, 1)
		both := mapOf(t, nodes)
		for s := range Slot(tried) {
			first, _ := m.Owner(s)
			if second, _ := m.Rank(s, 2); second != nodes[0] && first != nodes[0] {
				t.Fatalf("slot %d has %v and %v", s, first, second)
			}
			same(t, s, both, m)
		}
		m = next(t, m, nodes[1:])
		one := mapOf(t, nodes[1:])
		for s := range Slot(tried) {
			same(t, s, one, m)
		}
	}
}

// drawn counts the slots that a Map has drawn.
func drawn(m *Map) int {
	n := 0
	for s := range m.cells {
		if atomic.LoadUint64(&m.cells[s][0]) != 0 {
			n++
		}
	}
	return n
}

func TestAChangeKeepsWhatWasDrawn(t *testing.T) {
	// A joiner makes no slot be drawn anew. Neither do two leavers if zones do not count;
	// if they do, few slots are. More readers, and the same nodes in another order,
	// change nothing at all.
	const used = 1 << 14
	for _, zones := range []int{0, 4} {
		nodes := ring(201, zones)
		m := mapOf(t, nodes[1:])
		for s := Slot(0); s < Slots; s += Slots / used {
			m.Owner(s)
		}
		if n := drawn(next(t, m, nodes)); n != used {
			t.Errorf("%d zones: %d slots are left after a join", zones, n)
		}
		once := next(t, m, nodes[2:])
		twice := next(t, once, nodes[3:])
		if n := drawn(twice); zones == 0 && n != used || n < used*999/1000 {
			t.Errorf("%d zones: %d slots are left after two have left", zones, n)
		}
		slices.Reverse(nodes[3:])
		if next(t, twice, nodes[3:]) != twice {
			t.Errorf("%d zones: another Map of the same nodes", zones)
		}
		more := next(t, twice, append([]Node{{ID: "reader"}}, nodes[3:]...))
		if n, ok := more.Node("reader"); !ok || n.ID != "reader" || more.cells != twice.cells {
			t.Errorf("%d zones: a reader came and all was drawn anew", zones)
		}
	}
}
