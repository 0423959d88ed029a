package segment

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// A segment is unindexed as a whole if there is no memory for its records. Its blocks count in Used
// and are misses. Nothing punches, moves or unlinks it, except Shed when room is needed. Recall
// indexes it once there is memory, or else the next Open does. A block that is put again meanwhile
// has two records, of which the later one counts.

// takeRoom reserves the memory for the records of a segment, or leaves it unindexed. A segment that
// was unindexed counts as such until enter has put all.
func (l *Log) takeRoom(s *segment, notes []record.Note) bool {
	var end int64
	for _, n := range notes {
		if record.Packed(int(n.Length)) {
			end = max(end, n.End())
		}
	}
	ok := s.reservePages(end) && l.index.Rooms(notes)
	if !ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freePagesLocked()
		l.leaveLocked(s, notes)
	}
	return ok
}

// leaveLocked counts these records of a segment as unindexed, in place of what counted before. The
// caller holds s.mu.
func (l *Log) leaveLocked(s *segment, notes []record.Note) {
	blocks, bytes := s.toIndexLocked()
	s.unindexed, s.records, s.live = true, len(notes), 0
	for _, n := range notes {
		s.live += record.Size(int(n.Length))
	}
	l.counters.unindexed.Add(int64(s.records) - blocks) // in one step, since others read it
	l.counters.unindexedBytes.Add(s.live - bytes)
}

// uncountLocked is the inverse: no record of the segment counts.
func (l *Log) uncountLocked(s *segment) {
	blocks, bytes := s.toIndexLocked()
	l.counters.unindexed.Add(-blocks)
	l.counters.unindexedBytes.Add(-bytes)
}

// toIndexLocked makes a segment's records count one by one from now on. It returns what counts as
// unindexed until the caller subtracts it. The caller holds s.mu.
func (s *segment) toIndexLocked() (blocks, bytes int64) {
	if s.unindexed {
		blocks, bytes = int64(s.records), s.live
		s.unindexed, s.records, s.live = false, 0, 0
	}
	return blocks, bytes
}

// unindexed returns the unindexed segments, the oldest first. They stay unindexed, and there, while
// the caller has the turn.
func (l *Log) unindexed() (all []*segment) {
	if l.counters.unindexed.Load() == 0 {
		return nil
	}
	for _, s := range *l.slots.Load() {
		if s == nil {
			continue
		}
		s.mu.Lock()
		if s.unindexed {
			all = append(all, s)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b *segment) int { return int(int64(a.number) - int64(b.number)) })
	return all
}

// living reads which records of a segment live: those without a tombstone.
func (l *Log) living(s *segment, f *file, dead []death) (contents, error) {
	t, err := l.trailer(s, f)
	if err != nil {
		return contents{}, err
	}
	c, err := l.contents(s, f, t)
	c.notes = bury(s, c.notes, dead)
	return c, err
}

// deathsOf reads the tombstones of some segments.
func (l *Log) deathsOf(segments ...*segment) (map[uint32][]death, error) {
	of := make(map[uint32]bool, len(segments))
	for _, s := range segments {
		of[s.number] = true
	}
	return l.deaths.about(func(number uint32) bool { return of[number] })
}

// Recall indexes the segments that Open had no memory for, the newest first, until memory or ctx
// ends. What was done by then counts. It keeps Append waiting meanwhile.
func (l *Log) Recall(ctx context.Context) error {
	if l.counters.unindexed.Load() == 0 {
		return nil
	}
	if err := l.wait(ctx); err != nil {
		return nil // a later call tries again
	}
	defer func() { <-l.turn }()
	due := l.unindexed()
	if l.closed.Load() || len(due) == 0 || !l.affords(due[len(due)-1]) {
		return nil
	}
	dead, err := l.deathsOf(due...)
	if err != nil {
		return err
	}
	for _, s := range slices.Backward(due) {
		if ctx.Err() != nil || !l.affords(s) {
			return nil
		}
		if s.unread {
			continue
		}
		if err := l.recallLocked(ctx, s, dead[s.number]); err != nil {
			s.unread = true // one bad sector is reported once
			return err
		}
	}
	return nil
}

// affords reports whether there is memory for a segment's records, before they are read.
func (l *Log) affords(s *segment) bool {
	s.mu.Lock()
	records, pages := int64(s.records), s.allocated/record.PageSize
	s.mu.Unlock()
	n := l.index.Cost(records) + pages
	if !l.pool.Claim(n) {
		return false
	}
	l.pool.Unclaim(n)
	return true
}

func (l *Log) recallLocked(ctx context.Context, s *segment, dead []death) error {
	f, err := s.acquire()
	if errors.Is(err, fs.ErrNotExist) { // somebody removed it by hand
		_, err = l.giveUp(s)
		return err
	}
	if err != nil {
		return err
	}
	defer s.release()
	c, err := l.living(s, f, dead)
	if err != nil {
		return err
	}
	notes, done, err := l.buryDoubles(ctx, s, f, c.notes)
	if err != nil || !done {
		return err
	}
	if len(notes) == 0 {
		_, err := l.giveUp(s)
		return err
	}
	return l.enter(s, notes) // without doubles this only takes memory
}

// doublesAtOnce is how many records buryDoubles handles between two looks at its context: as many
// punches take a disk some milliseconds.
const doublesAtOnce = 256

// buryDoubles writes tombstones for the records of an unindexed segment whose blocks were put again
// meanwhile, and returns the other records. done is false if ctx ended it, after at least some.
func (l *Log) buryDoubles(ctx context.Context, s *segment, f *file, notes []record.Note) (others []record.Note, done bool, err error) {
	slices.SortFunc(notes, func(a, b record.Note) int { return cmp.Compare(a.Unit, b.Unit) })
	at := int64(record.PageSize)
	for len(notes) > 0 {
		l.step()
		some := notes[:min(doublesAtOnce, len(notes))]
		notes = notes[len(some):]
		// Neighbours may share the first page and the last one.
		pages := record.Span{Off: max(at, some[0].Offset()&^(record.PageSize-1))}
		at = record.RoundUp(some[len(some)-1].End(), record.PageSize)
		end := at
		if len(notes) > 0 {
			end = min(end, notes[0].Offset()&^(record.PageSize-1))
		}
		pages.N = end - pages.Off
		alive, err := l.buryDoublesAmong(s, f, some, pages)
		if err != nil {
			return nil, false, err
		}
		if others = append(others, alive...); len(alive) < len(some) && ctx.Err() != nil {
			return nil, false, nil
		}
	}
	return others, true, nil
}

// buryDoublesAmong is buryDoubles for some records, which share their pages with no others.
func (l *Log) buryDoublesAmong(s *segment, f *file, some []record.Note, pages record.Span) (alive []record.Note, err error) {
	var units []uint32
	var bytes int64
	for _, n := range some {
		if l.hasDouble(n.ID, record.Place{Slot: s.slot, Unit: n.Unit, Length: n.Length}) {
			units = append(units, n.Unit)
			bytes += record.Size(int(n.Length))
		} else {
			alive = append(alive, n)
		}
	}
	if len(units) == 0 {
		return alive, nil
	}
	if err := l.dieUnindexed(s, units, bytes); err != nil {
		return nil, err
	}
	free, _ := gaps(alive, pages.Off, pages.Off+pages.N)
	for _, g := range free {
		if err := f.Punch(g.Off, g.N); err != nil {
			return nil, err
		}
	}
	_, err = s.measure(f)
	return alive, err
}

// hasDouble reports whether the index names another record of a block, one that outlives a power
// failure. If that one does not, this one counts, and the other is dropped.
func (l *Log) hasDouble(id hearth.ID, p record.Place) bool {
	kept, ok := l.index.Get(id, nil)
	if !ok {
		return false
	}
	if l.stays(id, kept) || !l.whole(id, p) {
		return true
	}
	if _, ok := l.index.Remove(id, &kept); ok {
		_, err := l.drop(id, kept)
		l.settler.fail(err)
	}
	return false
}

// dieUnindexed writes tombstones for records of an unindexed segment.
func (l *Log) dieUnindexed(s *segment, units []uint32, bytes int64) error {
	if err := l.deaths.addAll(s.number, units, s.salt); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records -= len(units)
	s.live -= bytes
	l.counters.unindexed.Add(-int64(len(units)))
	l.counters.unindexedBytes.Add(-bytes)
	return nil
}

// Shed evicts the unindexed blocks of one segment, the oldest first, except pinned ones, and
// returns how many these were. A nil pinned pins none. 0 means that nothing is left that may go. An
// error of the device is reported as by Evict.
func (l *Log) Shed(pinned func(hearth.ID) bool) (blocks int64) {
	if l.counters.unindexed.Load() == 0 {
		return 0
	}
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.closed.Load() {
		return 0
	}
	all := l.unindexed()
	for _, s := range all {
		if s.spared && pinned != nil {
			continue
		}
		var err error
		blocks, err = l.shedLocked(s, pinned)
		l.settler.fail(err)
		if blocks > 0 {
			l.counters.evicted.Add(blocks)
			return blocks
		}
		s.spared = true
	}
	for _, s := range all { // at the next call other blocks may be pinned
		s.spared = false
	}
	return 0
}

func (l *Log) shedLocked(s *segment, pinned func(hearth.ID) bool) (blocks int64, err error) {
	if pinned == nil {
		return l.giveUp(s)
	}
	f, err := s.acquire()
	if errors.Is(err, fs.ErrNotExist) {
		return l.giveUp(s)
	}
	if err != nil {
		return 0, err
	}
	defer s.release()
	dead, err := l.deathsOf(s)
	if err != nil {
		return 0, err
	}
	c, err := l.living(s, f, dead[s.number])
	if err != nil {
		return 0, err
	}
	var kept []record.Note
	var units []uint32
	for _, n := range c.notes {
		if pinned(n.ID) {
			kept = append(kept, n)
		} else {
			units = append(units, n.Unit)
		}
	}
	switch {
	case len(kept) == 0:
		return l.giveUp(s)
	case len(units) == 0:
		return 0, nil
	}
	err = l.deaths.addAll(s.number, units, s.salt)
	s.mu.Lock()
	l.leaveLocked(s, kept)
	s.mu.Unlock()
	s.spared = true
	return int64(len(units)), errors.Join(err, s.tidy(f, kept, c.end))
}

// giveUp unlinks an unindexed segment.
func (l *Log) giveUp(s *segment) (blocks int64, err error) {
	s.mu.Lock()
	blocks = int64(s.records)
	l.uncountLocked(s)
	s.gone = true
	s.mu.Unlock()
	_, err = l.retire(s)
	return blocks, err
}

// buryUnindexed writes a tombstone for a record of an unindexed segment whose bytes are bad. The
// next Open frees its pages. false means that the segment or the record is indexed.
func (l *Log) buryUnindexed(s *segment, n record.Note) (bool, error) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	s.mu.Lock()
	due := s.unindexed && s.records > 0
	s.mu.Unlock()
	if !due || l.closed.Load() {
		return false, nil
	}
	err := l.dieUnindexed(s, []uint32{n.Unit}, record.Size(int(n.Length)))
	if s.records == 0 && err == nil {
		_, err = l.giveUp(s)
	}
	return true, err
}
