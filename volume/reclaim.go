package volume

import (
	"errors"

	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

// reserve finds the segment that is opened next: one without blocks, or else the oldest of this node's
// ranges. That one's blocks that were hit since they were written move to the open segment, up to half of
// it (FIFO with reinsertion); the others are evicted.
func (v *Volume) reserve(errs []error) error {
	w := &v.writer
	for range contended {
		n, free, err := v.oldest()
		if err != nil {
			return err
		}
		same, err := v.unchanged(n)
		if err != nil {
			return err
		}
		if !same {
			continue // another node has begun it anew; it is younger now
		}
		if !free {
			if err := v.reclaim(errs, n); err != nil {
				return err
			}
		}
		w.spare = n
		return nil
	}
	return errContended
}

// contended is how many segments in a row may turn out to be begun anew by other nodes, before a block is dropped.
const contended = 64

var (
	errSpoiled   = errors.New("none of the volume's segments that are this node's can be read")
	errContended = errors.New("other nodes write to the segments of the volume that are this node's")
)

// owns reports whether this node appends to a segment.
func (v *Volume) owns(n uint32) bool { return v.o.Owns(v.g.volume, int(n/v.g.span)) }

// oldest is the free or else the oldest segment of this node's ranges.
func (v *Volume) oldest() (n uint32, free bool, err error) {
	w, best, learned := &v.writer, none, false
	for span := range v.g.ranges() {
		if !v.o.Owns(v.g.volume, span) {
			continue
		}
		if err = errLearning; v.reading.Load() == 0 {
			err = errSpoiled
		}
		first := uint32(span) * v.g.span
		for i := first; i < min(first+v.g.span, v.g.count); i++ {
			s := &v.segments[i]
			if i == w.open || !s.learned {
				continue
			}
			learned = true
			if s.salt.Load() == 0 {
				return i, true, nil
			}
			if best == none || s.began < v.segments[best].began {
				best = i
			}
		}
	}
	switch {
	case best != none:
		return best, false, nil
	case !learned && err != nil:
		return none, false, err
	}
	return none, false, errNoRange
}

// unchanged reports whether a segment is as this node knows it. What another node has made of it is noted.
func (v *Volume) unchanged(n uint32) (bool, error) {
	page := device.Aligned(pageSize)
	_, err := v.dev.ReadAt(page, v.g.offset(n))
	v.guard.Writer.Work()
	s := &v.segments[n]
	if v.spoiled(err, v.here) {
		s.learned = false // the others will do
		return false, nil
	}
	if err != nil {
		v.failure(err)
		return false, err
	}
	h, ok := parseHeader(page)
	if !ok || h.volume != v.g.volume || h.segment != n {
		if err := v.same(); err != nil { // the device was formatted anew: nothing may be written to it
			v.leave(err)
			return false, err
		}
		s.salt.Store(0)
		return true, nil
	}
	if h.salt == s.salt.Load() {
		return true, nil
	}
	if h.node != v.o.Node && h.generation >= s.generation {
		v.stats.strangers.Add(1)
	}
	s.generation, s.began = h.generation, max(h.began, s.began+1) // whatever another clock says, it is younger
	s.salt.Store(h.salt)
	return false, nil
}

// reclaim evicts the blocks of a segment, and moves those that were hit.
func (v *Volume) reclaim(errs []error, n uint32) error {
	w := &v.writer
	notes, err := v.contents(n)
	if err != nil && !v.spoiled(err, v.here) { // else it has no blocks any more
		if !harmed(err) {
			v.failure(err)
		}
		return err
	}
	v.stats.reclaimed.Add(1)
	left := v.g.segment / 2
	for _, x := range notes {
		p := record.Place{Slot: n, Unit: x.Unit, Length: x.Length}
		at, held := v.find(x.ID, 0)
		if !held || at != p {
			continue
		}
		if w.open != none && w.failed[0] == 0 && record.Size(int(x.Length)) <= left && v.index.State(x.ID)&hit != 0 && v.move(errs, x, p) {
			left -= record.Size(int(x.Length))
			continue
		}
		v.index.Remove(x.ID, &p)
	}
	err = v.writeStage(errs)
	for _, x := range notes { // those whose move failed
		v.index.Remove(x.ID, &record.Place{Slot: n, Unit: x.Unit, Length: x.Length})
	}
	return err
}

// move writes a block to the open segment, and reports whether it will.
func (v *Volume) move(errs []error, x record.Note, p record.Place) bool {
	plan := record.ReadAll(x)
	view := v.o.Pool.TryAlloc(plan.Len()) // who has all memory may wait for the writer
	if view == nil {
		return false
	}
	defer view.Release()
	err := plan.Fill(func(b []byte, off int64) error {
		_, err := v.dev.ReadAt(b, v.g.offset(p.Slot)+off)
		v.guard.Writer.Work()
		return err
	}, view.Bytes())
	if err != nil || plan.Verify(view.Bytes(), v.segments[p.Slot].salt.Load()) != nil {
		return false
	}
	block := plan.Wanted(view)
	defer block.Release()
	if v.place(errs, placed{note: record.Note{ID: x.ID, Length: x.Length}, old: &p, item: -1}, block.Bytes(), nil) != nil {
		return false
	}
	v.writer.moved = true
	return true
}

// contents are the records of a segment, by its index or by their headers.
func (v *Volume) contents(n uint32) ([]record.Note, error) {
	_, notes, err := v.look(n, v.here)
	return notes, err
}

// here runs an operation of the writer, who cannot leave.
func (v *Volume) here(op func() error) error {
	defer v.guard.Writer.Work()
	return op()
}
