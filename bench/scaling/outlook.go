package scaling

import (
	"fmt"
	"math"
	"text/tabwriter"
	"time"

	"github.com/hearthfs/hearth/peer/place"
)

// What a ring is bounded by, as packages of it say.
const (
	// connections are most that a node opens to one other (peer/wire), and connBytes what each
	// takes of the RAM budget at either end.
	connections, connBytes = 4, 32 << 10
	// maxState is how much one exchange of gossip may bring (peer/members).
	maxState = 4 << 20
	// mapBytes and nodeBytes are what a map of who owns what takes (peer/place).
	mapBytes, nodeBytes = 4 << 20, 200
)

// Outlook is what the model says of a ring of equal Nodes.
type Outlook struct {
	Nodes int
	// Gossip is what each node sends in a second while nobody comes or goes, bytes of its link.
	Gossip float64
	// Exchange is how often each node compares all it knows with another, State the bytes
	// that both send for it.
	Exchange time.Duration
	State    int
	// Join is what all links together carry of the news that a node is there and then owns
	// blocks, Leave of that it is gone, in bytes; Spread is about how long such news take.
	Join, Leave int64
	Spread      time.Duration
	// Connections are the most that a node has, opened by itself and by others, when it reads
	// of all, and Buffers what they take of its RAM budget, in bytes. Few is the same with one
	// to each, which is what readers of small files come to.
	Connections, Few    int
	Buffers, FewBuffers int64
	// Map is what a node keeps of who owns what, in bytes.
	Map int64
	// Share is a node's part of all blocks: what a leaver takes away, and nearly what a joiner
	// is given.
	Share float64
}

// Ahead is the outlook for n nodes, of which each says as many bytes of itself as g has.
func Ahead(g Gossip, n int) Outlook {
	most := 2 * connections * (n - 1)
	return Outlook{
		Nodes: n, Gossip: g.Idle(n), Exchange: g.PushPull(n), State: g.State(n),
		Join: 2 * int64(n) * g.News(n, g.Alive()), Leave: int64(n) * g.News(n, g.Dead()), Spread: g.Spread(n),
		Connections: most, Buffers: int64(most) * connBytes, Few: 2 * (n - 1), FewBuffers: int64(2*(n-1)) * connBytes,
		Map: mapBytes + nodeBytes*int64(n), Share: 1 / float64(n),
	}
}

// Largest is the ring beyond which two nodes can no longer compare all they know, in nodes.
func Largest(g Gossip) int { return g.NodesIn(maxState) }

// Busiest is how many times its share the node of n equal ones owns that owns the most, at
// about the most. Slots belong to nodes by chance (peer/place): of n counts around slots/n the
// greatest lies sqrt(2 ln n) deviations above.
func Busiest(n int) float64 {
	share := float64(n) / place.Slots
	return 1 + math.Sqrt(2*math.Log(float64(n))*share*(1-1/float64(n)))
}

// Warm is how long it takes to bring so many bytes from a bucket whose link brings origin
// bytes a second to n nodes whose links bring node each, of which the busiest owns so many
// times its share: each node loads what it owns, and nothing passes between nodes.
func Warm(bytes float64, n int, origin, node, busiest float64) time.Duration {
	seconds := max(bytes/origin, bytes/float64(n)*busiest/node)
	return time.Duration(seconds * float64(time.Second))
}

// Outlooks are tables of Markdown: of gossip, connections and memory, and of how long it takes
// to warm 100 TB, for rings of 8, 100 and 1,000 nodes; and for the Largest.
func Outlooks(w *tabwriter.Writer, g Gossip) {
	fmt.Fprint(w, "\n| nodes\t| gossip, bytes a second and node\t| exchanged each\t| bytes of an exchange\t| all links: a node comes, goes\t| known after\t| connections\t| their buffers, MiB\t| map, MiB\t|\n")
	fmt.Fprint(w, "|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	for _, n := range []int{8, 100, 1000, Largest(g)} {
		o := Ahead(g, n)
		fmt.Fprintf(w, "| %d\t| %.0f\t| %v\t| %d\t| %d, %d\t| %v\t| %d-%d\t| %.1f-%.1f\t| %.1f\t|\n", o.Nodes, o.Gossip, o.Exchange, o.State, o.Join, o.Leave, o.Spread,
			o.Few, o.Connections, mib(o.FewBuffers), mib(o.Buffers), mib(o.Map))
	}
	const all, gigabit = 100e12, 1e9 / 8
	fmt.Fprint(w, "\n| nodes\t| busiest, of its share\t| 100 TB by 100 Gbit/s of the bucket\t| by 400 Gbit/s\t| by the nodes' 25 Gbit/s alone\t| a node's part, GB\t|\n|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	for _, n := range []int{8, 100, 1000} {
		took := func(origin float64) time.Duration {
			return Warm(all, n, origin*gigabit, 25*gigabit, Busiest(n)).Round(time.Second)
		}
		fmt.Fprintf(w, "| %d\t| %.2f\t| %v\t| %v\t| %v\t| %.0f\t|\n", n, Busiest(n), took(100), took(400), took(math.Inf(1)), all/float64(n)/1e9)
	}
}
