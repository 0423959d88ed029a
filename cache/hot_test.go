package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestHot(t *testing.T) {
	// What a memory of 64 MiB is told to keep, by pattern: the share of asks that
	// would put a block there.
	const capacity = 64 << 20
	big := object(1024 * hearth.BlockSize)
	rng := rand.New(rand.NewPCG(1, 2))
	small := make([]*hearth.Object, 2000)
	for i := range small {
		small[i] = hearthtest.NewObject(fmt.Sprint("small/", i), 100_000, 1)
	}
	cases := []struct {
		story       string
		least, most float64
		ask         func(i int) (hearth.Block, int)
	}{
		{"each small object once, whole", 0, 0, func(i int) (hearth.Block, int) { return small[i%2000].Block(0), 100_000 }},
		{"each small object once, in two reads", 0, 0, func(i int) (hearth.Block, int) { return small[i/2%2000].Block(0), 50_000 }},
		{"sequential, in 128 KiB", 0, 0, func(i int) (hearth.Block, int) { return big.Block(int64(i / 8 % 1024)), 128 << 10 }},
		{"sequential, in blocks", 0, 0, func(i int) (hearth.Block, int) { return big.Block(int64(i % 1024)), hearth.BlockSize }},
		{"random 128 KiB of a GiB", 0, 0.01, func(int) (hearth.Block, int) { return big.Block(rng.Int64N(1024)), 128 << 10 }},
		{"random 128 KiB of 32 MiB", 0.5, 1, func(int) (hearth.Block, int) { return big.Block(rng.Int64N(32)), 128 << 10 }},
		{"twenty small objects again and again", 0.5, 1, func(i int) (hearth.Block, int) { return small[i%20].Block(0), 100_000 }},
		{"one page again and again", 0.5, 1, func(int) (hearth.Block, int) { return big.Block(7), 4096 }},
	}
	for _, c := range cases {
		admit, kept := Hot(capacity), 0
		const asks = 2000
		for i := range asks {
			if admit(c.ask(i)) {
				kept++
			}
		}
		if share := float64(kept) / asks; share < c.least || share > c.most {
			t.Errorf("%s: %.3f are kept, not %v to %v", c.story, share, c.least, c.most)
		}
	}
}

func TestHotForgets(t *testing.T) {
	// A block asked for whole again after more than fits has passed is not hot; its
	// epochs may come round, and the table is bounded.
	admit := Hot(16 << 20)
	o := object(1 << 40)
	for range 3 {
		if admit(o.Block(0), hearth.BlockSize) {
			t.Fatal("kept after a hundred other blocks")
		}
		for i := range int64(100) {
			admit(o.Block(1+i*997), hearth.BlockSize)
		}
	}
	if n := epochsBetween(254, 1); n != 2 {
		t.Errorf("from 254 to 1 are %d epochs", n)
	}
}

func BenchmarkHot(b *testing.B) {
	admit, o := Hot(64<<20), object(1<<40)
	b.ReportAllocs()
	i := int64(0)
	for b.Loop() {
		i++
		admit(o.Block(i%5000), 128<<10)
	}
}
