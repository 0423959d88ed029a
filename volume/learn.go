package volume

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

const (
	// learners is how many segments are read at a time.
	learners = 8
	// learnFirst is after how long a segment that could not be read is read once more. It is twice as long each time.
	learnFirst = 50 * time.Millisecond
)

// learn reads the indexes of all segments, and keeps the places of this node's blocks. Segments that no
// index closes were open when a node ended; their records are found by their headers, and where the range
// is this node's, the writer closes them by an index. The caller has counted it in reading.
func (v *Volume) learn() {
	v.learning.Lock()
	defer v.learning.Unlock()
	v.learned.Store(0)
	left := make([]bool, v.g.count) // open, by a node that went away
	var work errgroup.Group
	work.SetLimit(learners)
	for n := range v.g.count {
		if v.ctx.Err() != nil || !v.usable() {
			break
		}
		work.Go(func() error {
			known := false
			if known, left[n] = v.learnSegment(n); known {
				v.learned.Add(1)
			}
			return nil
		})
	}
	_ = work.Wait() // none fails
	v.drop(func(_ hearth.ID, p record.Place, state uint32) bool { return !v.current(p, state) })
	v.reading.Add(-1)
	v.tell()
	v.queue.offer(item{do: v.yield})
	for n := range v.g.count {
		if left[n] {
			v.queue.offer(item{do: func([]error) error { return v.closeFor(n) }})
		}
	}
}

// Relearn reads the indexes again, since Mine or Owns have other answers now. Places of blocks that are not
// this node's any more are forgotten. It waits for that, or for ctx.
func (v *Volume) Relearn(ctx context.Context) error {
	v.reading.Add(1) // before anything is forgotten
	v.drop(func(id hearth.ID, _ record.Place, _ uint32) bool { return !v.o.Mine(id) })
	done := make(chan struct{})
	if !v.begin(func() {
		defer close(done)
		v.learn()
	}) {
		v.reading.Add(-1)
		return errClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// learnSegment reads one segment's index, up to failures times. It reports whether all is known of it that can be
// read, and whether it should be closed. If the device does not give it, the volume goes out of use, and all is learned
// again once it is back. What cannot be read of a device that gives its superblock is noted as unread.
func (v *Volume) learnSegment(n uint32) (known, left bool) {
	aside := func(op func() error) error { return v.aside(v.ctx, op) }
	h, notes, err := v.look(n, aside)
	for try, wait := 1, learnFirst; err != nil && v.usable() && try < failures; try, wait = try+1, 2*wait {
		select {
		case <-time.After(wait):
		case <-v.ctx.Done():
		}
		h, notes, err = v.look(n, aside)
	}
	switch {
	case err != nil && (v.ctx.Err() != nil || err == errAway):
		return false, false
	case v.spoiled(err, aside):
		v.segments[n].unread.Store(true)
		return true, false
	case err != nil:
		v.stats.errors.Add(1)
		v.leave(err)
		return false, false
	}
	v.failed.Store(0)
	if !v.enter() {
		return false, false
	}
	defer func() { <-v.turn }()
	return true, v.adopt(n, h, notes) && h.salt != 0 && !h.closed && v.owns(n)
}

// spoiled reports whether an error is of the bytes of a segment alone: the device gives its superblock. If it does not,
// the volume is taken out of use. run runs the operation.
func (v *Volume) spoiled(err error, run func(op func() error) error) bool {
	if !harmed(err) {
		return false
	}
	if err := run(v.same); err != nil {
		if v.ctx.Err() == nil {
			v.leave(err)
		}
		return false
	}
	v.stats.errors.Add(1)
	return true
}

// enter takes the turn, unless the volume goes out of use meanwhile: then the writer may hang in its turn.
func (v *Volume) enter() bool {
	for v.usable() {
		changed := v.news.next()
		if !v.usable() {
			break
		}
		select {
		case v.turn <- struct{}{}:
			return true
		case <-changed:
		case <-v.ctx.Done():
			return false
		}
	}
	return false
}

// adopt takes over what was read of a segment, unless the writer knows better. The caller has the turn.
func (v *Volume) adopt(n uint32, h looked, notes []record.Note) bool {
	w, s := &v.writer, &v.segments[n]
	switch known := s.salt.Load() == h.salt; {
	case s.learned && s.generation > h.generation, known && (n == w.open || n == w.spare):
		return false
	case n == w.open: // another node has begun it anew
		w.open = none
	case n == w.spare:
		w.spare = none
	}
	s.generation, s.began, s.learned = h.generation, h.began, true
	s.salt.Store(h.salt)
	s.unread.Store(false)
	for _, x := range notes {
		if !v.o.Mine(x.ID) {
			continue
		}
		p := record.Place{Slot: n, Unit: x.Unit, Length: x.Length}
		if old, held := v.find(x.ID, 0); held && (old == p || old.Slot != n && v.segments[old.Slot].began > h.began) {
			continue // and stays hit, if it was
		}
		if !v.index.Room(x.ID) {
			v.stats.unindexed.Add(1)
			continue
		}
		v.index.Put(x.ID, p, cold(h.salt), func(record.Place) bool { return true })
	}
	return true
}

// closeFor closes a segment by an index for a node that went away, so that it is read at once from now on. The writer
// does it in its turn, so that nobody of this node begins the segment anew meanwhile. If that other node is there still
// and appends to it, its own index takes this one's place. If it fails, the segment is found by its headers again.
func (v *Volume) closeFor(n uint32) error {
	w := &v.writer
	if n == w.open || n == w.spare || !v.owns(n) || !v.usable() || v.stopped() != nil || v.ctx.Err() != nil {
		return nil
	}
	h, notes, err := v.look(n, v.here) // anew: much may have happened since it was learned
	if err != nil || h.salt == 0 || h.closed || h.salt != v.segments[n].salt.Load() {
		return err
	}
	end := int64(pageSize)
	for _, x := range notes {
		end = max(end, record.RoundUp(x.End(), pageSize))
	}
	size := indexSize(len(notes))
	if end+size > v.g.segment {
		return nil
	}
	b := device.Aligned(int(size))
	for i, x := range notes {
		record.AppendNote(b[:i*record.NoteSize], x)
	}
	putIndex(b, &h.header, len(notes), v.g.segment)
	return v.writeAt(b, n, v.g.segment-size)
}

// looked is what look found of a segment. A salt of 0 means that nothing is there.
type looked struct {
	header
	closed bool
	// harm says what is not as it was written, and harmAt where that is in the segment. "" means nothing.
	harm   string
	harmAt int64
}

// look reads a segment of the volume. run runs each operation of the device.
func (v *Volume) look(n uint32, run func(op func() error) error) (looked, []record.Note, error) {
	base := v.g.offset(n)
	return v.g.look(n, func(b []byte, off int64) error {
		return run(func() error {
			_, err := v.dev.ReadAt(b, base+off)
			v.stats.read.Add(int64(len(b)))
			return err
		})
	})
}

// look reads a segment's header, and its index or, where none closes it, the headers of its records. read fills a
// buffer from an offset of the segment.
func (g *geometry) look(n uint32, read func(b []byte, off int64) error) (l looked, notes []record.Note, err error) {
	head, last := device.Aligned(pageSize), device.Aligned(pageSize)
	if err := read(head, 0); err != nil {
		return l, nil, err
	}
	h, ok := parseHeader(head)
	switch {
	case check.Zero(head) || ok && h.volume != g.volume:
		return l, nil, nil
	case ok && h.segment != n:
		l.harm = fmt.Sprintf("the header is that of segment %d", h.segment)
		return l, nil, nil
	case !ok:
		l.harm = "the segment's header does not verify"
	}
	if err := read(last, g.segment-pageSize); err != nil {
		return l, nil, err
	}
	t, whole := parseTrailer(last[pageSize-trailerSize:])
	if !ok && whole { // the header is damaged: what the trailer says of it is enough
		h = header{segment: n, generation: t.generation, salt: t.salt}
	} else if !ok {
		return l, nil, nil
	}
	l.header = h
	if whole && t.closes(&h, g.segment) {
		b := device.Aligned(int(g.segment - t.offset))
		if err := read(b, t.offset); err != nil {
			return l, nil, err
		}
		if parseIndex(b, &t, func(x record.Note) { notes = append(notes, x) }) {
			l.closed = true
			return l, notes, nil
		}
		notes, l.harm, l.harmAt = nil, "the segment's index does not verify", t.offset
	}
	notes, err = record.Scan(read, h.salt, g.segment, maxRecords)
	return l, notes, err
}
