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

func TestSmallObjectsShareBuckets(t *testing.T) {
	// 50,000 files of a directory lie in 256 slots, evenly; those of another directory in
	// others; an object has the same slot by any link; one of two blocks has its own.
	dirs := map[string]map[Slot]int{"": {}, "d/": {}, "d/e/": {}}
	all, large := map[Slot]bool{}, map[Slot]bool{}
	for dir, slots := range dirs {
		for i := range 50_000 {
			o := object("/", fmt.Sprint(dir, i), hearth.BlockSize)
			s := Of(o.Block(0))
			slots[s]++
			all[s] = true
			if other := *o; i%100 == 0 {
				if other.Link = "/elsewhere"; Of(other.Block(0)) != s {
					t.Fatalf("%s lies elsewhere by another link", o.Key)
				}
			}
			if i < 1000 {
				large[Of(object("/", fmt.Sprint(dir, i), hearth.BlockSize+1).Block(0))] = true
			}
		}
		// 195 fall into each, with a deviation of 14; two buckets may share a slot.
		for s, n := range slots {
			if n < 125 || n > 2*270 {
				t.Errorf("%q: %d files in slot %d", dir, n, s)
			}
		}
		if len(slots) > buckets || len(slots) < buckets-2 {
			t.Errorf("%q has %d slots", dir, len(slots))
		}
	}
	if len(all) < 3*buckets-6 {
		t.Errorf("three directories have %d slots", len(all))
	}
	if len(large) < 2900 {
		t.Errorf("3000 larger objects lie in %d slots", len(large))
	}
}
