package scaling

import (
	"fmt"
	"testing"
	"time"

	"github.com/hearthfs/hearth/peer/place"
)

func TestAWarmUpIsAsFastAsTheNarrowestLink(t *testing.T) {
	// Few nodes wait for their own links, many for the bucket's; a node that owns more than
	// its share holds the few up.
	for _, c := range []struct {
		n       int
		busiest float64
		want    time.Duration
	}{{10, 1, 10 * time.Second}, {10, 1.5, 15 * time.Second}, {1000, 1, 5 * time.Second}} {
		if got := Warm(1000, c.n, 200, 10, c.busiest); got != c.want {
			t.Errorf("%d nodes: %v, want %v", c.n, got, c.want)
		}
	}
}

func TestWhatALargerRingCosts(t *testing.T) {
	// A node's gossip grows with what it knows, connections with the others, and the exchange
	// of all that is known ends a ring's growth where it does not fit.
	g := RingGossip(40)
	few, many := Ahead(g, 100), Ahead(g, 1000)
	if few.Gossip >= many.Gossip || few.Join >= many.Join || many.Connections != 2*4*999 || many.Buffers != 2*4*999*(32<<10) || many.Share != 0.001 {
		t.Errorf("%+v, %+v", few, many)
	}
	if n := Largest(g); g.State(n) > maxState || g.State(n+1) <= maxState {
		t.Errorf("%d nodes are too many or too few", n)
	}
}

func TestTheBusiestNodeIsAsBusyAsByChance(t *testing.T) {
	// Of all slots, placed as nodes place them, the node with the most has no more than the
	// model says, and more than a half of that beyond its share.
	for _, n := range []int{10, 50} {
		var nodes []place.Node
		for i := range n {
			nodes = append(nodes, place.Node{ID: fmt.Sprint("node", i), Weight: 1 << 30})
		}
		m, err := place.New(nodes)
		if err != nil {
			t.Fatal(err)
		}
		counts, most := map[string]int{}, 0
		for s := range place.Slot(place.Slots) {
			owner, _ := m.Owner(s)
			counts[owner.ID]++
			most = max(most, counts[owner.ID])
		}
		got, want := float64(most)*float64(n)/place.Slots, Busiest(n)
		if got > want || got-1 < (want-1)/2 {
			t.Errorf("%d nodes: the busiest has %.3f times its share, the model says %.3f", n, got, want)
		}
	}
}
