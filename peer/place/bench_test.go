package place

import (
	"testing"

	"github.com/hearthfs/hearth"
)

// thousand is a Map of 1,000 nodes in 8 zones, all drawn, and one without the first of
// them.
func thousand(b *testing.B) (all, less *Map, nodes []Node) {
	nodes = ring(1000, 8)
	less = mapOf(b, nodes[1:])
	for s := range Slot(Slots) {
		less.Owner(s)
	}
	return next(b, less, nodes), less, nodes
}

func BenchmarkOwner(b *testing.B) {
	m, _, _ := thousand(b)
	o := object("/", "a/b/large", 1<<50)
	b.ReportAllocs()
	i := int64(0)
	for b.Loop() {
		i += hearth.ExtentBlocks
		m.Owner(Of(o.Block(i & (1<<30 - 1))))
	}
}

func BenchmarkSlotOfSmall(b *testing.B) {
	o := object("/", "datasets/images/train/n01440764/n01440764_10026.JPEG", 100<<10)
	b.ReportAllocs()
	for b.Loop() {
		Of(o.Block(0))
	}
}

func BenchmarkFirstUse1000(b *testing.B) {
	m := mapOf(b, ring(1000, 8))
	b.ReportAllocs()
	s := Slot(0)
	for b.Loop() {
		m.draw(s % Slots)
		s++
	}
}

func BenchmarkJoin1000(b *testing.B) {
	_, less, nodes := thousand(b)
	b.ReportAllocs()
	for b.Loop() {
		next(b, less, nodes)
	}
}

func BenchmarkLeave1000(b *testing.B) {
	all, _, nodes := thousand(b)
	b.ReportAllocs()
	for b.Loop() {
		next(b, all, nodes[1:])
	}
}
