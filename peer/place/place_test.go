package place

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hearthfs/hearth"
)

// ring makes nodes with random weights from 1 to 8 GiB and random ids. With 0 zones, no
// node has one.
func ring(n, zones int) []Node {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{ID: fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64()), Weight: int64(r.IntN(8)+1) << 30}
		if zones > 0 {
			nodes[i].Zone = fmt.Sprint("zone ", r.IntN(zones))
		}
	}
	return nodes
}

func mapOf(t testing.TB, nodes []Node) *Map {
	t.Helper()
	m, err := New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func next(t testing.TB, m *Map, nodes []Node) *Map {
	t.Helper()
	n, err := m.Next(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// object is an object of so many bytes.
func object(link, key string, size int64) *hearth.Object {
	return &hearth.Object{Link: link, Key: key, ETag: "e", Size: size, Version: hearth.VersionOf("s3://b", key, "e", size)}
}

// extents are the slots of the extents of large objects, with 100 extents each.
func extents(n int) []Slot {
	slots := make([]Slot, n)
	for i := range slots {
		o := object("/", fmt.Sprint("large/", i/100), 100*hearth.ExtentBlocks*hearth.BlockSize)
		slots[i] = Of(o.Block(int64(i % 100 * hearth.ExtentBlocks)))
	}
	return slots
}

// ownersOf counts the slots of each owner.
func ownersOf(m *Map, slots []Slot) map[string]int {
	counts := map[string]int{}
	for _, s := range slots {
		n, _ := m.Owner(s)
		counts[n.ID]++
	}
	return counts
}

func TestZones(t *testing.T) {
	// Ranks 1 and 2 lie in two zones if there are two, however small one is. No node has
	// two ranks. A zone whose nodes own nothing does not count.
	for _, c := range []struct{ nodes, zones int }{{3, 2}, {5, 2}, {40, 2}, {100, 7}, {300, 1}} {
		nodes := ring(c.nodes, c.zones)
		nodes[0].Zone = "a small one"
		nodes[1].Zone, nodes[1].Weight = "an empty one", 0
		m := mapOf(t, nodes)
		zones := map[string]bool{}
		for _, n := range nodes {
			if n.Weight > 0 {
				zones[n.Zone] = true
			}
		}
		for s := Slot(0); s < Slots; s += 97 {
			first, _ := m.Rank(s, 1)
			second, ok := m.Rank(s, 2)
			if ok && len(zones) > 1 && first.Zone == second.Zone {
				t.Fatalf("%+v: slot %d has %v and %v", c, s, first, second)
			}
			seen := map[string]bool{}
			for r := 1; r <= Ranks; r++ {
				n, ok := m.Rank(s, r)
				if ok != (r <= c.nodes-1) || ok && (seen[n.ID] || n.Weight == 0) {
					t.Fatalf("%+v: slot %d has %v at rank %d, %v", c, s, n, r, ok)
				}
				seen[n.ID] = true
			}
		}
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	// A node that learned of the nodes in another order, or one after the other, gives
	// the same answers.
	nodes := ring(60, 3)
	m := mapOf(t, nodes)
	r := rand.New(rand.NewPCG(2, 3))
	for range 5 {
		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		other := mapOf(t, nodes)
		grown := mapOf(t, nil)
		for i := 0; i <= len(nodes); i += 5 {
			grown = next(t, grown, nodes[:i])
			grown.Owner(Slot(i))
		}
		for s := Slot(0); s < Slots; s += 1009 {
			same(t, s, m, other)
			same(t, s, m, grown)
		}
	}
}

// same compares all ranks of a slot.
func same(t interface {
	Helper()
	Fatalf(string, ...any)
}, s Slot, want, got *Map,
) {
	t.Helper()
	for r := 0; r <= Ranks+1; r++ {
		w, wok := want.Rank(s, r)
		g, gok := got.Rank(s, r)
		if w != g || wok != gok {
			t.Fatalf("slot %d: rank %d is %v, %v, not %v, %v", s, r, g, gok, w, wok)
		}
	}
}

func TestTheLowerIDWinsATie(t *testing.T) {
	// Nodes draw the same for every slot, so lower ids have the better ranks. That holds
	// even when some of them come later, or leave and let in others of which no rank was
	// known.
	twins := func(ids string) *Map {
		var nodes []Node
		for _, id := range strings.Split(ids, "") {
			nodes = append(nodes, Node{ID: id, Weight: 5})
		}
		m := mapOf(t, nodes)
		for i := range m.draws {
			m.draws[i].seed = 7
		}
		return m
	}
	for _, c := range []struct{ from, to string }{{"hbgaic", "hbgaicfde"}, {"hbgaick", "dhbgaick"}, {"hbgaick", "lback"}, {"hbgaick", "ldhbaick"}} {
		from, to := twins(c.from), twins(c.to)
		for _, m := range []*Map{from, to} {
			for s := range Slot(1000) {
				for r, want := range m.nodes[:Ranks] {
					if n, _ := m.Rank(s, r+1); n != want {
						t.Fatalf("%+v: slot %d: rank %d is %v", c, s, r+1, n)
					}
				}
			}
			if m == from {
				compare(from, to).carry()
			}
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	// Sixteen readers ask a fresh Map for the same slots while others are made from it.
	nodes := ring(50, 3)
	want, m := mapOf(t, nodes), mapOf(t, nodes)
	for s := range Slot(2000) {
		want.Owner(s)
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for s := range Slot(2000) {
				for r := 1; r <= Ranks; r++ {
					w, _ := want.Rank(s, r)
					if n, _ := m.Rank(s, r); n != w {
						t.Errorf("slot %d: rank %d is %v, not %v", s, r, n, w)
						return
					}
				}
			}
		})
	}
	fewer := mapOf(t, nodes[1:])
	for range 5 {
		n := next(t, m, nodes[1:])
		for s := range Slot(2000) {
			same(t, s, fewer, n)
		}
	}
	all.Wait()
}

func TestLookupsAllocateNothing(t *testing.T) {
	// The first use of a slot does not allocate either, nor does the question who owned
	// it before.
	m := mapOf(t, ring(100, 3))
	less := next(t, m, ring(100, 3)[1:])
	large, small := object("/", "a/b/large", 1<<40), object("/", "a/b/small", 1000)
	i := int64(0)
	n := testing.AllocsPerRun(1000, func() {
		s, u := Of(large.Block(i*hearth.ExtentBlocks)), Of(small.Block(0))
		m.Owner(s)
		less.Rank(s, 2)
		less.Owner(u)
		less.Former(s, m)
		m.Share("nobody")
		OfDirectory(large.Version)
		i++
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestFormer(t *testing.T) {
	// After a join the former owners are those at ranks 2 and 3 now, and known by name.
	// After a leave there is nobody to ask. A node that no longer donates still has what
	// it had.
	nodes := ring(40, 4)
	all, fewer := mapOf(t, nodes), mapOf(t, nodes[1:])
	drained := slices.Clone(nodes)
	drained[0].Weight = 0
	empty := next(t, all, drained)
	moved := 0
	for s := range Slot(5000) {
		now, _ := all.Owner(s)
		before, _ := fewer.Owner(s)
		former, ok := all.Former(s, fewer)
		if ok != (now.ID == nodes[0].ID) || ok && former != before {
			t.Fatalf("slot %d is %v's and was %v's; asked are %v, %v", s, now, before, former, ok)
		}
		if ok {
			moved++
			second, _ := all.Rank(s, 2)
			third, _ := all.Rank(s, 3)
			if former != second && former != third {
				t.Fatalf("slot %d was %v's, whose rank is neither 2 nor 3", s, former)
			}
		}
		if former, ok := fewer.Former(s, all); ok {
			t.Fatalf("%v is asked, who has left or owns slot %d", former, s)
		}
		if former, ok := empty.Former(s, all); ok != (now.ID == nodes[0].ID) || ok && former != drained[0] {
			t.Fatalf("slot %d: asked are %v, %v", s, former, ok)
		}
	}
	if moved == 0 {
		t.Error("the joiner owns nothing")
	}
}

func TestShares(t *testing.T) {
	// Shares are parts of the whole. A node that donates nothing or does not exist has
	// none.
	nodes := append(ring(30, 0), Node{ID: "reader"})
	m, sum := mapOf(t, nodes), 0.0
	for _, n := range m.Nodes() {
		sum += m.Share(n.ID)
	}
	if math.Abs(sum-1) > 1e-9 || m.Share("reader") != 0 || m.Share("nobody") != 0 {
		t.Errorf("all have %v, a reader %v, nobody %v", sum, m.Share("reader"), m.Share("nobody"))
	}
	if n, ok := m.Node("reader"); !ok || n.ID != "reader" || len(m.Nodes()) != 31 {
		t.Errorf("%v, %v of %d nodes", n, ok, len(m.Nodes()))
	}
	if n, ok := m.Node("nobody"); ok {
		t.Errorf("nobody is %v", n)
	}
}

func TestNobodyOwnsAnything(t *testing.T) {
	// Without nodes, or with readers only, no slot has an owner. Then one joins and
	// leaves.
	m := mapOf(t, nil)
	for range 2 {
		if n, ok := m.Owner(5); ok {
			t.Fatalf("%v owns a slot of nobody's", n)
		}
		if _, ok := m.Former(5, m); ok {
			t.Fatal("nobody owned it before")
		}
		one := next(t, m, []Node{{ID: "r"}, {ID: "a", Weight: 1}})
		if n, ok := one.Owner(5); !ok || n.ID != "a" {
			t.Fatalf("%v, %v", n, ok)
		}
		if n, ok := one.Rank(5, 2); ok {
			t.Fatalf("the only owner's second is %v", n)
		}
		m = next(t, one, []Node{{ID: "r"}})
	}
	if s := m.Share("r"); s != 0 {
		t.Errorf("of nothing it has %v", s)
	}
}

func TestNodesThatCannotBe(t *testing.T) {
	// The error names the node, and Next gives the same.
	many := make([]Node, MaxNodes+1)
	for i := range many {
		many[i].ID = fmt.Sprint(i)
	}
	for want, nodes := range map[string][]Node{
		"65536 nodes":              many,
		"has no id":                {{Weight: 1}},
		"two nodes have the id b;": {{ID: "b"}, {ID: "a"}, {ID: "b", Weight: 2}},
		"node c donates -1":        {{ID: "c", Weight: -1}},
	} {
		_, err := New(nodes)
		_, again := mapOf(t, nil).Next(nodes)
		if err == nil || !strings.Contains(err.Error(), want) || again == nil || again.Error() != err.Error() {
			t.Errorf("%q: %v, then %v", want, err, again)
		}
	}
	if m := mapOf(t, many[:MaxNodes]); len(m.Nodes()) != MaxNodes {
		t.Errorf("%d nodes", len(m.Nodes()))
	}
}

func TestExponential(t *testing.T) {
	// It is the logarithm, and never less than what comparisons are made with.
	r := rand.New(rand.NewPCG(4, 5))
	for i := range 100_000 {
		k := r.Uint64() >> 12 >> (i % 50)
		if i < 10 {
			k = []uint64{0, 1, 2, 1 << 51, 1<<51 - 1, 1<<52 - 1, 1<<52 - 2, 1 << 50, 3 << 50, 3}[i]
		}
		v := (float64(k) + 0.5) / (1 << 52)
		got, want := exponential(v), -math.Log1p(-v)
		if math.Abs(got-want) > 1e-12*want || v > got*(1+1e-9) {
			t.Fatalf("exponential(%v) = %v, not %v", v, got, want)
		}
	}
}

func TestPlacementStaysAsItIs(t *testing.T) {
	// Nodes of two releases agree: these owners must never change without a new version
	// of the protocol.
	m := mapOf(t, []Node{{"a", "x", 1 << 36}, {"b", "x", 3 << 36}, {"c", "y", 2 << 36}, {"d", "y", 1 << 37}, {"e", "z", 1 << 36}})
	var got strings.Builder
	for i := range int64(12) {
		for r := 1; r <= Ranks; r++ {
			n, _ := m.Rank(Of(object("/", "data/set", 1<<40).Block(i*hearth.ExtentBlocks)), r)
			got.WriteString(n.ID)
		}
		n, _ := m.Owner(Of(object("/", fmt.Sprint("data/", i), 10).Block(0)))
		d, _ := m.Owner(OfDirectory([16]byte{8: byte(i)}))
		got.WriteString(" " + n.ID + d.ID + " ")
	}
	const want = "bdce db caeb cd bdac bb edbc cc dbec cc bdac bd ebad be ebca ba bdea bd cabd ba cbad cd bced bc "
	if got.String() != want {
		t.Errorf("%q", got.String())
	}
}

// reference ranks a slot's owners in the plainest way.
func reference(m *Map, s Slot) []Node {
	type candidate struct {
		node  Node
		score float64
	}
	all := make([]candidate, len(m.owners))
	for i, n := range m.owners {
		all[i] = candidate{n, m.draws[i].score(s.seed())}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.score, b.score) })
	for i := range all {
		if all[i].node.Zone != all[0].node.Zone {
			second := all[i]
			all = slices.Insert(slices.Delete(all, i, i+1), 1, second)
			break
		}
	}
	ranks := make([]Node, 0, Ranks)
	for _, c := range all[:min(Ranks, len(all))] {
		ranks = append(ranks, c.node)
	}
	return ranks
}
