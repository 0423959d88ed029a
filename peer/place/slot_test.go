package place

import (
	"fmt"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestBlocksOfAnExtentGoTogether(t *testing.T) {
	// Sixteen blocks have one slot, the next sixteen another, and objects have their own.
	a, b := object("/", "d/a", 1<<40), object("/", "d/b", 1<<40)
	slots := map[Slot]bool{}
	for e := range int64(100) {
		for _, o := range []*hearth.Object{a, b} {
			s := Of(o.Block(e * hearth.ExtentBlocks))
			slots[s] = true
			for i := range int64(hearth.ExtentBlocks) {
				if Of(o.Block(e*hearth.ExtentBlocks+i)) != s {
					t.Fatalf("block %d of extent %d lies elsewhere", i, e)
				}
			}
		}
	}
	if len(slots) < 198 {
		t.Errorf("200 extents lie in %d slots", len(slots))
	}
}

func TestSmallObjectsAreSpread(t *testing.T) {
	// The files of a directory lie all over the slots, evenly. An object has the same
	// slot by any link.
	const files, parts = 50_000, 64
	var n [parts]int
	for i := range files {
		o := object("/", fmt.Sprint("d/", i), 100<<10)
		s := Of(o.Block(0))
		n[int(s)*parts/Slots]++
		other := *o
		if other.Link = "/elsewhere"; Of(other.Block(0)) != s || OfID(o.Block(0).ID()) != s {
			t.Fatalf("%s lies elsewhere by another link", o.Key)
		}
	}
	for i, n := range n { // 781 fall into each, with a deviation of 28
		if n < 640 || n > 920 {
			t.Errorf("part %d has %d files", i, n)
		}
	}
}
