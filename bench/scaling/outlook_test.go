package scaling

import (
	"testing"
	"time"
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
