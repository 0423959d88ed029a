//go:build !race

package scaling

import (
	"fmt"
	"testing"

	"github.com/hearthfs/hearth/peer/place"
)

// One goroutine works here after another: the race detector finds nothing in it, and makes it take
// several times as long.

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
