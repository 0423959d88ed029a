package segment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/record"
)

const (
	// checkAtOnce is how many places are taken out of the index at a time, 28 bytes each. They are
	// few enough for little memory, and enough for few passes over the index.
	checkAtOnce = 1 << 16
	// runMost is the most that is read at once, in bytes. runGap is how many bytes between two
	// records are read along, rather than asking the device again.
	runMost = stageSize
	runGap  = 64 << 10
)

// Check reads each held block of the segments from number on, and the header page and footer of
// closed ones, and compares checksums. What a reader, the writer or eviction does meanwhile is not
// damage. A record that does not verify is read again by itself, as long as the index says that it
// is there. With r.Repair a bad block is dropped, as by a reader, and a bad header page or footer
// is written anew. passed, if not nil, is called for each segment that is done. Of an unindexed
// segment it checks only header page and footer, and r.Unindexed counts its blocks.
func (l *Log) Check(ctx context.Context, r *check.Run, from uint32, passed func(number uint32)) error {
	var due []*segment
	for _, s := range *l.slots.Load() {
		if s != nil && s.number >= from {
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	for len(due) > 0 {
		n, records := 0, 0
		for ; n < len(due) && (n == 0 || records < checkAtOnce); n++ {
			due[n].mu.Lock()
			records += due[n].records
			if due[n].unindexed {
				r.Unindexed.Add(int64(due[n].records))
			}
			due[n].mu.Unlock()
		}
		held := l.indexed(due[:n])
		for _, s := range due[:n] {
			err := l.checkSegment(ctx, r, s, held[s.slot])
			if check.Unreadable(err) {
				r.Tell(check.Unread(l.dir.Full(s.name()), err))
			} else if err != nil {
				return err
			}
			if passed != nil {
				passed(s.number)
			}
		}
		due = due[n:]
	}
	return nil
}

// indexed returns the records that the index has in some segments, by slot.
func (l *Log) indexed(segments []*segment) map[uint32][]record.Note {
	notes := make(map[uint32][]record.Note, len(segments))
	for _, s := range segments {
		notes[s.slot] = nil
	}
	l.index.Each(func(id hearth.ID, p record.Place, _ uint32) {
		if _, want := notes[p.Slot]; want {
			notes[p.Slot] = append(notes[p.Slot], p.Note(id))
		}
	})
	return notes
}

func (l *Log) checkSegment(ctx context.Context, r *check.Run, s *segment, notes []record.Note) error {
	r.Files.Add(1)
	for run := range runsOf(notes) {
		bad, err := l.checkRun(ctx, r, s, run)
		if err != nil {
			return err
		}
		for _, n := range bad {
			if err := l.confirm(ctx, r, s, n); err != nil {
				return err
			}
		}
	}
	return l.checkSeals(ctx, r, s)
}

// runsOf cuts records into runs that one read brings.
func runsOf(notes []record.Note) func(yield func([]record.Note) bool) {
	slices.SortFunc(notes, func(a, b record.Note) int { return cmp.Compare(a.Unit, b.Unit) })
	return func(yield func([]record.Note) bool) {
		for len(notes) > 0 {
			start, n := notes[0].Offset()&^(record.PageSize-1), 1
			for n < len(notes) && notes[n].Offset()-notes[n-1].End() <= runGap &&
				record.RoundUp(notes[n].End(), record.PageSize)-start <= runMost {
				n++
			}
			if !yield(notes[:n]) {
				return
			}
			notes = notes[n:]
		}
	}
}

// checkRun reads neighbours at once and returns those that do not verify, or all of them if the
// read fails.
func (l *Log) checkRun(ctx context.Context, r *check.Run, s *segment, run []record.Note) (bad []record.Note, err error) {
	off := run[0].Offset() &^ (record.PageSize - 1)
	size := record.RoundUp(run[len(run)-1].End(), record.PageSize) - off
	if err := r.Read(ctx, size); err != nil {
		return nil, err
	}
	v, err := l.alloc(ctx, int(size))
	if err != nil {
		return nil, err
	}
	var wrong []record.Note
	err = r.Do(func() {
		defer v.Release()
		f, err := s.acquire()
		if err == nil {
			defer s.release()
			err = f.ReadAt(v.Bytes(), off)
		}
		for _, n := range run {
			if err != nil || record.VerifyAt(v.Bytes()[n.Offset()-off:], n, s.salt) != nil {
				wrong = append(wrong, n)
			}
		}
	}, v.Release)
	if err != nil {
		return nil, err
	}
	r.Bytes.Add(size)
	r.Blocks.Add(int64(len(run)))
	return wrong, nil
}

// confirm reads a record by itself as Get does, as long as it is where the index says.
func (l *Log) confirm(ctx context.Context, r *check.Run, s *segment, n record.Note) error {
	p := record.Place{Slot: s.slot, Unit: n.Unit, Length: n.Length}
	how := record.ReadAll(n)
	if at, ok := l.index.Get(n.ID, nil); !ok || at != p {
		return nil // evicted or moved meanwhile
	}
	v, err := l.alloc(ctx, how.Len())
	if err != nil {
		return err
	}
	var f *check.Finding
	var failed error
	if err := r.Do(func() {
		defer v.Release()
		f, failed = l.readAgain(r, s, n, v)
	}, v.Release); err != nil {
		return err
	}
	if f != nil {
		r.Tell(*f)
	}
	return failed
}

func (l *Log) readAgain(r *check.Run, s *segment, n record.Note, v *hearth.View) (*check.Finding, error) {
	p := record.Place{Slot: s.slot, Unit: n.Unit, Length: n.Length}
	how := record.ReadAll(n)
	err := l.stands(r, s, &how)
	if err == nil {
		var part *hearth.View
		if part, err = l.read(&how, p.Slot, v); err == nil {
			part.Release()
			return nil, nil
		}
	}
	if at, ok := l.index.Get(n.ID, nil); !ok || at != p {
		return nil, nil
	}
	if !errors.Is(err, record.ErrMismatch) && !errors.Is(err, unix.EIO) {
		return nil, err // closed, or no file descriptor: not the block's fault
	}
	f := found(l, s, n, err)
	if !r.Repair {
		return &f, nil
	}
	if _, ok := l.index.Remove(n.ID, &p); ok {
		_, err := l.drop(n.ID, p)
		f.Repaired = err == nil
		l.counters.corrupt.Add(1)
		l.settler.fail(err)
	}
	return &f, nil
}

func found(l *Log, s *segment, n record.Note, bad error) check.Finding {
	switch {
	case errors.Is(bad, errRemoved):
		bad = errors.New("its segment was removed: what is held of it is gone at the next start")
	case errors.Is(bad, record.ErrEvicted):
		bad = errors.New("its bytes are zero: it was evicted and there was no time or room to note it, or the device lost it")
	case errors.Is(bad, record.ErrMismatch):
		bad = errors.New("its bytes are not what was written")
	}
	return check.InBlock(l.dir.Full(s.name()), n.Offset(), n.ID.Version, n.ID.Index, bad)
}

// errRemoved means that a segment has no name any more, though this process did not remove it.
var errRemoved = fmt.Errorf("removed: %w", record.ErrMismatch)

// stands makes sure that a record is read from the device, and that the next start will find its
// file.
func (l *Log) stands(r *check.Run, s *segment, how *record.Plan) error {
	var st unix.Stat_t
	if err := unix.Lstat(l.dir.Full(s.name()), &st); errors.Is(err, unix.ENOENT) {
		return errRemoved
	}
	f, err := s.acquire()
	if err != nil {
		return nil // the read that follows reports why
	}
	defer s.release()
	if f.Forget(how.Head.Off, how.Head.N) {
		r.Buffered.Add(1)
	}
	return nil
}

// CheckBlock reads one block, if it is held, and compares checksums as Check does. held means that
// the block is there, or was and is damaged, which is reported.
func (l *Log) CheckBlock(ctx context.Context, r *check.Run, id hearth.ID) (held bool, err error) {
	for range 3 { // each lost round takes a compaction of this very block
		p, ok := l.index.Get(id, nil)
		slots := *l.slots.Load()
		if !ok || int(p.Slot) >= len(slots) || slots[p.Slot] == nil {
			return false, nil
		}
		n, told := p.Note(id), r.Bad.Load()
		if err := r.Read(ctx, n.End()-n.Offset()); err != nil {
			return true, err
		}
		if err := l.confirm(ctx, r, slots[p.Slot], n); err != nil {
			return true, err
		}
		at, ok := l.index.Get(id, nil)
		if r.Bad.Load() > told || ok && at == p {
			r.Blocks.Add(1)
			r.Bytes.Add(n.End() - n.Offset())
			return true, nil
		}
	}
	return false, nil
}

// CheckSeals checks the header page and footer of every closed segment, and no block.
func (l *Log) CheckSeals(ctx context.Context, r *check.Run) error {
	for _, s := range *l.slots.Load() {
		if s == nil {
			continue
		}
		r.Files.Add(1)
		err := l.checkSeals(ctx, r, s)
		if check.Unreadable(err) {
			r.Tell(check.Unread(l.dir.Full(s.name()), err))
		} else if err != nil {
			return err
		}
	}
	return nil
}

// seals describes the faults of a segment's header page and footer; "" means none.
type seals struct{ header, footer string }

// readSeals checks a segment's header page and, if closed, its footer.
func (l *Log) readSeals(s *segment, f *file, closed bool) (wrong seals, err error) {
	page := aligned(record.PageSize)
	if err := f.ReadAt(page, 0); err != nil {
		return wrong, err
	}
	h, ok := parseSeal(page, segmentMagic)
	switch {
	case !ok, h.number != s.number, h.format <= Format && !check.Zero(page[sealSize:]):
		wrong.header = "its header page is not what was written"
	case s.salt != 0 && h.salt != s.salt:
		wrong.header = "its header page is another segment's"
	}
	if !closed {
		return wrong, nil
	}
	t, err := l.trailer(s, f)
	if err != nil {
		return wrong, err
	}
	if c, err := l.contents(s, f, t); err != nil {
		return wrong, err
	} else if !c.whole {
		wrong.footer = "its index is not what was written: the next start reads every header instead"
	}
	return wrong, nil
}

// checkSeals reads the header page and footer of a closed segment.
func (l *Log) checkSeals(ctx context.Context, r *check.Run, s *segment) error {
	s.mu.Lock()
	closed := s.sealed && !s.gone
	s.mu.Unlock()
	if !closed {
		return nil
	}
	if err := r.Read(ctx, 2*record.PageSize); err != nil {
		return err
	}
	var wrong seals
	var failed error
	if err := r.Do(func() { wrong, failed = l.sealsOf(s) }, nil); err != nil {
		return err
	}
	if failed != nil || wrong == (seals{}) {
		return failed
	}
	// Its footer may just be being written, by the holder of the turn. A step that is stuck in the
	// device keeps the turn. Findings are reported without the turn.
	if err := l.wait(ctx); err != nil {
		return err
	}
	pass := func() { <-l.turn }
	var bad []check.Finding
	if err := r.Do(func() {
		defer pass()
		bad, failed = l.badSeals(s, r.Repair)
	}, pass); err != nil {
		return err
	}
	for _, f := range bad {
		r.Tell(f)
	}
	return failed
}

// sealsOf reads the header page and footer of a closed segment.
func (l *Log) sealsOf(s *segment) (seals, error) {
	f, err := s.acquire()
	if errors.Is(err, fs.ErrNotExist) { // its last block was evicted meanwhile
		return seals{}, nil
	}
	if err != nil {
		return seals{}, err
	}
	defer s.release()
	s.mu.Lock()
	bare := s.bare // the footer failed on a full disk: no bytes are damaged
	s.mu.Unlock()
	wrong, err := l.readSeals(s, f, !bare)
	if errors.Is(err, unix.EIO) || errors.Is(err, io.ErrUnexpectedEOF) {
		return seals{header: "its header page cannot be read: " + err.Error()}, nil
	}
	return wrong, err
}

// badSeals returns the faults of a segment's header page and footer, and with repair writes them
// anew. The caller has the turn.
func (l *Log) badSeals(s *segment, repair bool) (bad []check.Finding, err error) {
	if l.closed.Load() {
		return nil, l.errClosed("check")
	}
	wrong, err := l.sealsOf(s)
	if err != nil {
		return nil, err
	}
	name := l.dir.Full(s.name())
	if wrong.header != "" {
		f := check.InFile(check.Damaged, name, 0, wrong.header)
		f.Repaired = repair && l.repairSeal(s, l.rewriteHeader) == nil
		bad = append(bad, f)
	}
	if wrong.footer != "" {
		f := check.InFile(check.Damaged, name, -1, wrong.footer)
		f.Repaired = repair && l.repairSeal(s, func(s *segment, file *file) error {
			notes, err := l.held(s, file)
			if err != nil {
				return err
			}
			slices.SortFunc(notes, func(a, b record.Note) int { return cmp.Compare(a.Unit, b.Unit) })
			if err := l.reseal(s, file, notes); err != nil {
				return err
			}
			again, err := l.readSeals(s, file, true)
			if err == nil && again.footer != "" {
				err = fmt.Errorf("write footer of %s: %w", name, record.ErrMismatch)
			}
			return err
		}) == nil
		bad = append(bad, f)
	}
	return bad, nil
}

// held returns the live records of a segment, from the index or, for an unindexed one, from its
// file. The caller has the turn.
func (l *Log) held(s *segment, f *file) ([]record.Note, error) {
	s.mu.Lock()
	unindexed := s.unindexed
	s.mu.Unlock()
	if !unindexed {
		return l.indexed([]*segment{s})[s.slot], nil
	}
	dead, err := l.deathsOf(s)
	if err != nil {
		return nil, err
	}
	c, err := l.living(s, f, dead[s.number])
	return c.notes, err
}

func (l *Log) repairSeal(s *segment, write func(*segment, *file) error) error {
	f, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	return write(s, f)
}

func (l *Log) rewriteHeader(s *segment, f *file) error {
	page := aligned(record.PageSize)
	putSeal(page, segmentMagic, seal{format: Format, number: s.number, salt: s.salt})
	return f.WriteAt(page, 0)
}
