package place_test

import (
	"fmt"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
)

// All who know the same nodes agree on owners, in whatever order they heard of them. A node owns
// its part of all weights.
func ExampleNew() {
	const tib = 1 << 40
	a, b, c := place.Node{ID: "a", Weight: tib}, place.Node{ID: "b", Weight: tib}, place.Node{ID: "c", Weight: 2 * tib}
	here, err := place.New([]place.Node{a, b, c})
	if err != nil {
		fmt.Println(err)
		return
	}
	there, err := place.New([]place.Node{c, b, a})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The slot of a block follows from its version and its extent of 16 blocks alone.
	o := &hearth.Object{Key: "film", ETag: "v1", Size: 64 << 20}
	o.Version = hearth.VersionOf("s3://bucket", o.Key, o.ETag, o.Size)
	fmt.Println("one extent, one slot:", place.Of(o.Block(0)) == place.Of(o.Block(15)))

	agree, owned := true, map[string]int{}
	for s := range place.Slot(10_000) {
		x, _ := here.Owner(s)
		y, _ := there.Owner(s)
		agree = agree && x == y
		owned[x.ID]++
	}
	fmt.Println("both agree:", agree)
	for _, id := range []string{"a", "b", "c"} {
		fmt.Printf("%s owns about %d%%\n", id, (owned[id]+250)/500*5)
	}

	// Output:
	// one extent, one slot: true
	// both agree: true
	// a owns about 25%
	// b owns about 25%
	// c owns about 50%
}

// When a node leaves, its slots go to their next ranks, and no other slot moves.
func ExampleMap_Next() {
	nodes := []place.Node{{ID: "a", Weight: 1 << 40}, {ID: "b", Weight: 1 << 40}, {ID: "c", Weight: 1 << 40}}
	before, err := place.New(nodes)
	if err != nil {
		fmt.Println(err)
		return
	}
	after, err := before.Next(nodes[:2])
	if err != nil {
		fmt.Println(err)
		return
	}

	moved, others, next := 0, 0, 0
	for s := range place.Slot(10_000) {
		was, _ := before.Owner(s)
		is, _ := after.Owner(s)
		if was == is {
			continue
		}
		moved++
		if was.ID != "c" {
			others++
		}
		if second, _ := before.Rank(s, 2); second == is {
			next++
		}
	}
	fmt.Println("some move:", moved > 0)
	fmt.Println("of those that c did not own:", others)
	fmt.Println("to the next rank:", next == moved)

	// Output:
	// some move: true
	// of those that c did not own: 0
	// to the next rank: true
}
