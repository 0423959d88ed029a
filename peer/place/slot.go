package place

import (
	"encoding/binary"

	"github.com/hearthfs/hearth"
)

const (
	slotBits = 18
	// Slots is the number of slots.
	Slots = 1 << slotBits
	// golden is SplitMix64's step.
	golden = 0x9e3779b97f4a7c15
)

// Slot is the unit of placement, from 0 to Slots-1.
type Slot uint32

// Of is the slot of a block, which is that of its extent. It depends on the version, which includes
// the key, and not on the link: two links may lead to one object, and the object has one owner.
//
// The first half of a Version is left to tiers, which use hearth.ID's Hash, and to disks. So the
// blocks of one node are spread evenly over its tiers and disks.
func Of(b hearth.Block) Slot { return OfID(b.ID()) }

// OfID is Of for callers that have only the ID.
func OfID(id hearth.ID) Slot {
	return slotOf(binary.LittleEndian.Uint64(id.Version[8:]) + uint64(id.Extent())*golden)
}

// OfDirectory is the slot of a directory's listing, by the directory's id in the
// namespace.
func OfDirectory(id [16]byte) Slot {
	return slotOf(binary.LittleEndian.Uint64(id[8:]))
}

func slotOf(h uint64) Slot { return Slot(mix(h) >> (64 - slotBits)) }

// seed is the slot's input to the nodes' draws.
func (s Slot) seed() uint64 { return mix((uint64(s) + 1) * golden) }

// mix spreads each bit over all (SplitMix64's last steps).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
