package volume

import (
	"cmp"
	"slices"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// This file says what fits: what objects take on volumes, and what volumes can hold.

// usable is how many bytes of records and their notes a segment holds: what its header and the rounding of its index
// leave.
func (g *geometry) usable() int64 { return g.segment - 2*pageSize }

// charge is what a block of so many bytes takes, with its part of what stays empty at the end of a segment: the next
// record does not fit there.
func (g *geometry) charge(length int) int64 {
	n := record.Size(length) + record.NoteSize
	if record.Packed(length) {
		n += pageSize / 4 // about four records that come slowly share what is left of a page
	}
	most := min(g.usable()/n, g.segment/1024, maxRecords) // records of a segment
	return g.usable() / most
}

// Needs is about how many bytes an object takes of Room, on the volume that stores it least densely.
func (s *Set) Needs(o *hearth.Object) (bytes int64) {
	for _, v := range s.writable() {
		full := o.Size / hearth.BlockSize
		n := full * v.g.charge(hearth.BlockSize)
		if rest := o.Size % hearth.BlockSize; rest > 0 {
			n += v.g.charge(int(rest))
		}
		bytes = max(bytes, n)
	}
	return bytes
}

// Room is how many bytes, as Needs counts them, this node's ranges of the volumes hold, each block as often as it is
// written. Free is what of that they take before anything is evicted. Volumes that take no writes have no room.
func (s *Set) Room() (room, free int64) {
	var rooms, frees []int64
	for _, v := range s.writable() {
		r, f := v.room()
		rooms, frees = append(rooms, r), append(frees, f)
	}
	return spread(rooms, s.o.Copies), spread(frees, s.o.Copies)
}

// spread is how much can be written copies times, each time to another volume. The k largest volumes have one copy
// of everything at most, so the others must hold the rest of the copies.
func spread(rooms []int64, copies int) (most int64) {
	slices.SortFunc(rooms, func(a, b int64) int { return cmp.Compare(b, a) })
	for k := range min(copies, len(rooms)) {
		rest := int64(0)
		for _, n := range rooms[k:] {
			rest += n
		}
		if rest /= int64(min(copies, len(rooms)) - k); k == 0 || rest < most {
			most = rest
		}
	}
	return most
}

// writable are the volumes that take writes now.
func (s *Set) writable() (all []*Volume) {
	for _, a := range *s.all.Load() {
		if v := a.volume.Load(); v != nil && v.usable() && v.stopped() == nil {
			all = append(all, v)
		}
	}
	return all
}

// room is what this node's ranges hold, less the segment that is reserved for reclaim, and what of that is free. What
// is not read yet is not free.
func (v *Volume) room() (room, free int64) {
	all, empty := int64(0), int64(0)
	for span := range v.g.ranges() {
		if !v.o.Owns(v.g.volume, span) {
			continue
		}
		first := uint32(span) * v.g.span
		last := min(first+v.g.span, v.g.count)
		all += int64(last - first)
		for i := first; i < last; i++ {
			if v.segments[i].salt.Load() == 0 {
				empty++
			}
		}
	}
	if v.reading.Load() > 0 {
		empty = 0
	}
	return max(0, all-1) * v.g.usable(), max(0, empty-1) * v.g.usable()
}
