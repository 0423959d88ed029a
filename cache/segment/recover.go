package segment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// loaders is how many segments Open reads at once. They are enough to hide a device's latency, and
// few enough for little memory (at most 5 MiB each).
const loaders = 8

var errIndex = errors.New("its index is not what was written, and made anew from the blocks that are whole")

// load finds the segments of the directory and fills the index, the newest segments first: if the
// Pool's memory ends, the oldest stay unindexed. It reads all trailers before, so that the index
// gets its final size at once.
func (l *Log) load() error {
	segments, err := l.find()
	if err != nil {
		return err
	}
	dead, err := l.deaths.load(l.knownSegments())
	if err != nil {
		return err
	}
	trailers := make([]seal, len(segments)) // by slot
	var blocks, pages atomic.Int64
	err = forEach(segments, loaders, func(s *segment) error {
		f, err := s.acquire()
		if err != nil {
			return err
		}
		defer s.release()
		trailers[s.slot], err = l.trailer(s, f)
		blocks.Add(int64(trailers[s.slot].count) - int64(len(dead[s.number])))
		pages.Add(trailers[s.slot].offset / record.PageSize)
		return err
	})
	if err != nil {
		return err
	}
	atOnce := loaders
	if !l.index.Expect(int(blocks.Load()), pages.Load()) {
		atOnce = 1 // so that the oldest stay unindexed
	}
	return forEach(segments, atOnce, func(s *segment) error {
		f, err := s.acquire()
		if err != nil {
			return err
		}
		defer s.release()
		if _, err := s.measure(f); err != nil {
			return err
		}
		c, err := l.contents(s, f, trailers[s.slot])
		if err != nil {
			return err
		}
		s.salt = c.salt
		// A kill may have prevented the footer of the last one.
		if !c.whole && (trailers[s.slot].format > 0 || int(s.slot) < len(segments)-1) {
			l.dir.Mended.Tell(l.dir.Full(s.name()), errIndex)
		}
		if !c.whole && len(c.notes) > 0 {
			l.counters.recovered.Add(1)
			s.bare = l.reseal(s, f, c.notes) != nil
		}
		alive := bury(s, c.notes, dead[s.number])
		if err := s.tidy(f, alive, c.end); err != nil {
			return err
		}
		return l.enter(s, alive)
	})
}

// forEach calls do for all segments, several at a time, the newest first.
func forEach(segments []*segment, atOnce int, do func(*segment) error) error {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, s := range slices.Backward(segments) {
		g.Go(func() error { return do(s) })
	}
	return g.Wait()
}

// find gives each file with the name of a segment its slot, in order of number, so that a later
// segment has a larger slot during Open. It ignores other names.
func (l *Log) find() ([]*segment, error) {
	names, err := os.ReadDir(l.dir.Path)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", l.dir.Path, err)
	}
	pattern := segmentPattern()
	var segments []*segment
	for _, e := range names {
		if !e.Type().IsRegular() || !pattern.MatchString(e.Name()) {
			continue
		}
		number, err := strconv.ParseUint(e.Name()[:8], 16, 32)
		if err != nil {
			continue
		}
		segments = append(segments, &segment{log: l, number: uint32(number), slot: uint32(len(segments)), sealed: true})
	}
	slots := slices.Clone(segments)
	l.slots.Store(&slots)
	return segments, nil
}

// bury removes the records that have a tombstone.
func bury(s *segment, notes []record.Note, dead []death) []record.Note {
	if len(dead) == 0 {
		return notes
	}
	buried := make(map[uint32]bool, len(dead))
	for _, d := range dead {
		if d == newDeath(s.number, d.unit, s.salt) {
			buried[d.unit] = true
		}
	}
	return slices.DeleteFunc(notes, func(n record.Note) bool { return buried[n.Unit] })
}

// tidySlack is how many bytes a file system may have allocated to a segment for itself.
const tidySlack = 64 << 10

// tidy punches the pages that no live record needs, if more is allocated than is needed. A process
// that died between tombstone and punch left such pages, and so did one that died within a write.
// notes are in order of offset, as they were written, and the index does not know them yet. If they
// are not in order, nothing is punched.
func (s *segment) tidy(f *file, notes []record.Note, end int64) error {
	size, allocated, err := f.Stat()
	if err != nil {
		return err
	}
	free, ok := gaps(notes, record.PageSize, end)
	need := size
	for _, g := range free {
		need -= g.N
	}
	if !ok || allocated <= need+tidySlack {
		return nil
	}
	for _, g := range free {
		s.log.step()
		if err := f.Punch(g.Off, g.N); err != nil {
			return err
		}
	}
	_, err = s.measure(f)
	return err
}

// gaps returns the pages between at and end that no record of notes needs. false means that the
// notes are not in order of offset.
func gaps(notes []record.Note, at, end int64) (free []record.Span, ok bool) {
	for _, n := range notes {
		first, next := n.Offset()&^(record.PageSize-1), record.RoundUp(n.End(), record.PageSize)
		if first < at-record.PageSize { // except a page that two records share
			return nil, false
		}
		if first > at {
			free = append(free, record.Span{Off: at, N: first - at})
		}
		at = next
	}
	if at < end {
		free = append(free, record.Span{Off: at, N: end - at})
	}
	return free, true
}

// reseal closes a recovered segment by a footer behind all that the file holds, so that the next
// Open need not scan it. On a full or failing disk it stays as it is. notes are in order of offset,
// as for tidy.
func (l *Log) reseal(s *segment, f *file, notes []record.Note) error {
	size, _, err := f.Stat()
	if err != nil {
		return err
	}
	end := record.RoundUp(size, record.PageSize)
	entries := make([]byte, 0, len(notes)*record.NoteSize)
	for _, n := range notes {
		entries = record.AppendNote(entries, n)
	}
	if err := l.writeFooter(s, f, entries, end); err != nil {
		return err
	}
	l.settler.add(s)
	return nil
}

// enter counts the records as live and puts them into the index: all of them or, if there is no
// memory for that, none. Records of blocks that a later segment has, too, die.
func (l *Log) enter(s *segment, notes []record.Note) error {
	if !l.takeRoom(s, notes) {
		return nil
	}
	s.mu.Lock()
	blocks, bytes := s.toIndexLocked()
	s.mu.Unlock()
	defer func() { // only now: a caller that sees none unindexed finds all
		l.counters.unindexed.Add(-blocks)
		l.counters.unindexedBytes.Add(-bytes)
	}()
	for _, n := range notes {
		s.add(int(n.Length), n.Offset())
	}
	var err error
	for _, n := range notes {
		p := record.Place{Slot: s.slot, Unit: n.Unit, Length: n.Length}
		lost, lose := l.index.Put(n.ID, p, l.fresh, func(old record.Place) bool { return l.older(old, s, p) })
		if lose {
			err = errors.Join(err, l.dropOlder(n.ID, lost))
		}
	}
	s.mu.Lock()
	empty := s.emptyLocked()
	s.mu.Unlock()
	if empty {
		l.counters.bad.Add(1)
		_, dropErr := l.retire(s)
		err = errors.Join(err, dropErr)
	}
	return err
}

// older reports whether a record was written before the one at p in s. A place in the index always
// has its segment.
func (l *Log) older(old record.Place, s *segment, p record.Place) bool {
	if old.Slot == s.slot {
		return old.Unit < p.Unit
	}
	return (*l.slots.Load())[old.Slot].number < s.number
}

// dropOlder drops a record that the index does not name, since another segment has the block, too.
// After a power failure that other one may be incomplete on the device. Then that one is dropped
// instead, if this one is whole.
func (l *Log) dropOlder(id hearth.ID, lost record.Place) error {
	l.step()
	kept, ok := l.index.Get(id, nil)
	if ok && kept != lost && !l.stays(id, kept) && l.whole(id, lost) && l.index.Move(id, kept, lost) {
		lost = kept
	}
	_, err := l.drop(id, lost)
	return err
}

// at returns the segment in a slot; nil means that its last record was dropped meanwhile.
func (l *Log) at(slot uint32) *segment {
	if slots := *l.slots.Load(); int(slot) < len(slots) {
		return slots[slot]
	}
	return nil
}

// stays reports whether a record will be there after a power failure. A record that Open found is
// read for that: the power may have failed before all of it was written.
func (l *Log) stays(id hearth.ID, p record.Place) bool {
	s := l.at(p.Slot)
	return s != nil && (s.begun || l.whole(id, p)) && l.lasts(s)
}

// lasts makes a segment durable, if it is not, and reports whether it is. The caller has the turn,
// or is Open.
func (l *Log) lasts(s *segment) bool {
	s.mu.Lock()
	lasts := s.lasts
	s.mu.Unlock()
	if lasts {
		return true
	}
	f, err := s.acquire()
	if err != nil {
		return false
	}
	defer s.release()
	return l.makeLast(s, f) == nil
}

// whole reports whether a record verifies.
func (l *Log) whole(id hearth.ID, p record.Place) bool {
	s := l.at(p.Slot)
	if s == nil {
		return false
	}
	f, err := s.acquire()
	if err != nil {
		return false
	}
	defer s.release()
	r := record.ReadAll(p.Note(id))
	buf := aligned(r.Len())
	return r.Fill(f.ReadAt, buf) == nil && r.Verify(buf, s.salt) == nil
}

// trailer reads a segment's trailer. Format 0 means that there is none that fits the file.
func (l *Log) trailer(s *segment, f *file) (seal, error) {
	size, _, err := f.Stat()
	if err != nil {
		return seal{}, err
	}
	t, err := l.seal(f, size-record.PageSize, trailerMagic)
	if err != nil || t.number != s.number || t.offset < record.PageSize || t.offset != size-footerSize(int(t.count)) {
		return seal{}, err
	}
	return t, nil
}

// contents are a segment's records, the most that they extend to, and its salt. They come from the
// footer (whole) or, if that does not verify, from a scan.
type contents struct {
	notes []record.Note
	salt  uint64
	whole bool
	end   int64
}

func (l *Log) contents(s *segment, f *file, t seal) (contents, error) {
	if t.format > 0 {
		footer := aligned(int(footerSize(int(t.count))))
		l.counters.opened.Add(int64(len(footer)))
		if err := f.ReadAt(footer, t.offset); err == nil {
			notes := make([]record.Note, 0, t.count)
			if parseFooter(footer, t, func(n record.Note) { notes = append(notes, n) }) {
				return contents{notes: notes, salt: t.salt, whole: true, end: t.offset}, nil
			}
		}
	}
	h, err := l.seal(f, 0, segmentMagic)
	if err != nil || h.format == 0 || h.number != s.number {
		return contents{}, err
	}
	size, _, err := f.Stat()
	if err != nil {
		return contents{}, err
	}
	notes, err := l.scan(f, h.salt, size)
	return contents{notes: notes, salt: h.salt, end: record.RoundUp(size, record.PageSize)}, err
}

// seal reads the first bytes of the header page, or the last of the trailer page. A seal that is
// absent or damaged has format 0; a newer one is an error.
func (l *Log) seal(f *file, off int64, magic string) (seal, error) {
	if off < 0 || off%record.PageSize != 0 {
		return seal{}, nil
	}
	page := aligned(record.PageSize)
	l.counters.opened.Add(record.PageSize)
	err := f.ReadAt(page, off)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return seal{}, nil
	}
	if err != nil {
		return seal{}, err
	}
	if magic == trailerMagic {
		page = page[record.PageSize-sealSize:]
	}
	s, ok := parseSeal(page, magic)
	if !ok {
		return seal{}, nil
	}
	if s.format > Format {
		return seal{}, newer(l.dir, f.Name, s.format)
	}
	return s, nil
}

// scan finds the records of a segment without a footer.
func (l *Log) scan(f *file, salt uint64, size int64) ([]record.Note, error) {
	return record.Scan(func(pages []byte, off int64) error {
		l.counters.opened.Add(int64(len(pages)))
		l.step()
		if err := f.ReadAt(pages, off); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		return nil
	}, salt, size, math.MaxInt)
}
