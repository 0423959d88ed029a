// Package place says which nodes of a ring an extent belongs to. It is arithmetic only: all who
// know the same nodes get the same answer, on any processor, in whatever order they learned of
// them.
//
// An extent falls into one of 2^18 slots by a hash. For a slot each node that donates bytes draws a
// number by a hash of its id and the slot. The draws are from an exponential distribution whose
// rate is the node's weight. The node with the least draw is the slot's owner; the next ones are
// its lower ranks. That is weighted rendezvous hashing. A node owns its part of all weights. A node
// that joins takes just what it owns from then on. What belonged to a node that left goes to the
// next ranks. Rank 2 is the best node outside of the owner's zone, if there is one. So the loss of
// a zone does not take both. Apart from that, ranks follow the draws.
//
// A Map never changes. It draws a slot's ranks when they are first asked for, and keeps six of them
// in 16 bytes. A Map takes 4 MiB, and about 200 bytes for each node, whatever it is asked. Next
// makes the Map of other nodes from what the Map before has drawn. A node that joins draws for each
// slot; mostly one comparison shows that nothing changes. A node that leaves is taken out of the
// ranks. Slots with less than four ranks left are drawn anew when they are asked for.
package place

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	// Ranks is how many ranks of each slot are known, if so many nodes own anything: the owner, the
	// two that it peeks at after a change, and one more in case one of these is down.
	Ranks = 4
	// kept is how many ranks of a slot are kept: two nodes may leave before it is drawn anew.
	kept = 6
	// MaxNodes is the most nodes of a Map. A rank is a number of 16 bits, and one value says that
	// there is none.
	MaxNodes = 1<<16 - 1
)

// Node is what placement knows of a member of the ring.
type Node struct {
	// ID names the node for ever; no two nodes have the same.
	ID string
	// Zone names what fails together with the node: a rack, a building. All nodes without a zone
	// are in one zone, "".
	Zone string
	// Weight is what the node donates, in bytes. A node with 0 owns nothing, and only reads.
	Weight int64
}

// Map says who owns what, for one set of nodes. It may be used from many goroutines at once.
type Map struct {
	nodes  []Node  // by ID
	owners []Node  // the nodes that have a weight
	draws  []draw  // the owners', in their order
	total  float64 // weight
	zoned  bool    // the owners lie in at least two zones
	cells  *[Slots]cell
}

// cell is what is kept of a slot; it is zero until its first use. Its first word has ranks 1 to 4
// in 16 bits each, the best lowest: an owner's index + 1, or 0. The second word has two more ranks,
// and in its upper half the ranking's reach. The first is written after the second, so that a
// reader that sees the first also sees the second. All goroutines that draw a slot write the same.
type cell [2]uint64

// New returns the Map of some nodes, in any order. An error says which node is invalid: one without
// an id, two with the same id, one with a negative weight, too many nodes.
func New(nodes []Node) (*Map, error) {
	m, err := newMap(nodes)
	if err != nil {
		return nil, err
	}
	m.cells = new([Slots]cell)
	return m, nil
}

// newMap makes a Map without cells.
func newMap(nodes []Node) (*Map, error) {
	m := &Map{nodes: slices.Clone(nodes)}
	slices.SortFunc(m.nodes, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	if err := check(m.nodes); err != nil {
		return nil, err
	}
	zones := map[string]uint16{}
	for _, n := range m.nodes {
		if n.Weight == 0 {
			continue
		}
		if _, known := zones[n.Zone]; !known {
			zones[n.Zone] = uint16(len(zones))
		}
		m.owners = append(m.owners, n)
		m.draws = append(m.draws, newDraw(n, zones[n.Zone]))
		m.total += float64(n.Weight)
	}
	m.zoned = len(zones) > 1
	return m, nil
}

// check returns what is wrong with nodes, which are sorted by id.
func check(nodes []Node) error {
	if len(nodes) > MaxNodes {
		return fmt.Errorf("place extents on %d nodes: a ring has %d at most; split it in two", len(nodes), MaxNodes)
	}
	for i, n := range nodes {
		switch {
		case n.ID == "":
			return errors.New("place extents: a node has no id; each needs the one that its cache directory keeps")
		case i > 0 && nodes[i-1].ID == n.ID:
			return fmt.Errorf("place extents: two nodes have the id %s; one of them runs on a copied cache directory and needs one of its own", n.ID)
		case n.Weight < 0:
			return fmt.Errorf("place extents: node %s donates %d bytes; 0 is the least", n.ID, n.Weight)
		}
	}
	return nil
}

// Owner is the node that a slot belongs to: its rank 1. It is false if no node owns anything.
func (m *Map) Owner(s Slot) (Node, bool) { return m.Rank(s, 1) }

// Rank is a slot's node of a rank, from 1, its owner, to Ranks. No node has two ranks of a slot. It
// is false if there is no such rank, or if fewer nodes than that own anything.
func (m *Map) Rank(s Slot, rank int) (Node, bool) {
	if rank < 1 || rank > Ranks {
		return Node{}, false
	}
	c := &m.cells[s%Slots]
	first := atomic.LoadUint64(&c[0])
	if first == 0 {
		first = m.draw(s % Slots)
	}
	i := uint16(first >> (16 * (rank - 1)))
	if i == 0 {
		return Node{}, false
	}
	return m.owners[i-1], true
}

// draw fills a slot's cell and returns its first word.
func (m *Map) draw(s Slot) uint64 {
	if len(m.draws) == 0 {
		return 0
	}
	c := m.rank(s).cell()
	atomic.StoreUint64(&m.cells[s][1], c[1])
	atomic.StoreUint64(&m.cells[s][0], c[0])
	return c[0]
}

// Former is the node that owned a slot in an earlier Map and does not now, with its present fields.
// It is false if the owner is the same, or if that node has left and cannot be asked.
func (m *Map) Former(s Slot, before *Map) (Node, bool) {
	then, owned := before.Owner(s)
	now, _ := m.Owner(s)
	if !owned || then.ID == now.ID {
		return Node{}, false
	}
	return m.Node(then.ID)
}

// Node is the node with an id. It is false if there is none.
func (m *Map) Node(id string) (Node, bool) {
	i, found := slices.BinarySearchFunc(m.nodes, id, func(n Node, id string) int { return strings.Compare(n.ID, id) })
	if !found {
		return Node{}, false
	}
	return m.nodes[i], true
}

// Nodes are all nodes, sorted by ID. The slice belongs to the caller.
func (m *Map) Nodes() []Node { return slices.Clone(m.nodes) }

// Share is the part of all slots, from 0 to 1, that a node is expected to own: its part of all
// weights. Of 1,000 equal nodes each has 262 slots, and by chance 6 % more or less.
func (m *Map) Share(id string) float64 {
	n, _ := m.Node(id)
	if n.Weight == 0 {
		return 0
	}
	return float64(n.Weight) / m.total
}
