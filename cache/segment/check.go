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
func (l *Log) indexed(segments []*segment) map[uint32][]note {
	notes := make(map[uint32][]note, len(segments))
	for _, s := range segments {
		notes[s.slot] = nil
	}
	l.index.each(func(id hearth.ID, p place) {
		if _, want := notes[p.slot]; want {
			notes[p.slot] = append(notes[p.slot], p.note(id))
		}
	})
	return notes
}

func (l *Log) checkSegment(ctx context.Context, r *check.Run, s *segment, notes []note) error {
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
func runsOf(notes []note) func(yield func([]note) bool) {
	slices.SortFunc(notes, func(a, b note) int { return cmp.Compare(a.unit, b.unit) })
	return func(yield func([]note) bool) {
		for len(notes) > 0 {
			start, n := notes[0].offset()&^(pageSize-1), 1
			for n < len(notes) && notes[n].offset()-notes[n-1].end() <= runGap &&
				roundUp(notes[n].end(), pageSize)-start <= runMost {
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
func (l *Log) checkRun(ctx context.Context, r *check.Run, s *segment, run []note) (bad []note, err error) {
	off := run[0].offset() &^ (pageSize - 1)
	size := roundUp(run[len(run)-1].end(), pageSize) - off
	if err := r.Read(ctx, size); err != nil {
		return nil, err
	}
	v, err := l.alloc(ctx, int(size))
	if err != nil {
		return nil, err
	}
	var wrong []note
	err = r.Do(func() {
		defer v.Release()
		f, err := s.acquire()
		if err == nil {
			defer s.release()
			err = f.ReadAt(v.Bytes(), off)
		}
		for _, n := range run {
			if err != nil || verifyAll(n, s.salt, v.Bytes()[n.offset()-off:]) != nil {
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

// verifyAll verifies a record that begins at b[0].
func verifyAll(n note, salt uint64, b []byte) error {
	p := plan(n, span{0, int64(n.length)})
	p.header, p.at = 0, int64(headerSize(int(n.length)))
	p.head.n = n.end() - n.offset()
	return p.verify(b, salt)
}

// confirm reads a record by itself as Get does, as long as it is where the index says.
func (l *Log) confirm(ctx context.Context, r *check.Run, s *segment, n note) error {
	p := place{slot: s.slot, unit: n.unit, length: n.length}
	how := plan(n, span{0, int64(n.length)})
	if at, ok := l.index.get(n.id, nil); !ok || at != p {
		return nil // evicted or moved meanwhile
	}
	v, err := l.alloc(ctx, int(how.head.n))
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

func (l *Log) readAgain(r *check.Run, s *segment, n note, v *hearth.View) (*check.Finding, error) {
	p := place{slot: s.slot, unit: n.unit, length: n.length}
	how := plan(n, span{0, int64(n.length)})
	err := l.stands(r, s, &how)
	if err == nil {
		var part *hearth.View
		if part, err = l.read(&how, p.slot, v); err == nil {
			part.Release()
			return nil, nil
		}
	}
	if at, ok := l.index.get(n.id, nil); !ok || at != p {
		return nil, nil
	}
	if !errors.Is(err, errMismatch) && !errors.Is(err, unix.EIO) {
		return nil, err // closed, or no file descriptor: not the block's fault
	}
	f := found(l, s, n, err)
	if !r.Repair {
		return &f, nil
	}
	if _, ok := l.index.remove(n.id, &p); ok {
		_, err := l.drop(n.id, p)
		f.Repaired = err == nil
		l.counters.corrupt.Add(1)
		l.settler.fail(err)
	}
	return &f, nil
}

func found(l *Log, s *segment, n note, bad error) check.Finding {
	switch {
	case errors.Is(bad, errRemoved):
		bad = errors.New("its segment was removed: what is held of it is gone at the next start")
	case errors.Is(bad, errEvicted):
		bad = errors.New("its bytes are zero: it was evicted and there was no time or room to note it, or the device lost it")
	case errors.Is(bad, errMismatch):
		bad = errors.New("its bytes are not what was written")
	}
	return check.InBlock(l.dir.Full(s.name()), n.offset(), n.id.Version, n.id.Index, bad)
}

// errRemoved means that a segment has no name any more, though this process did not remove it.
var errRemoved = fmt.Errorf("removed: %w", errMismatch)

// stands makes sure that a record is read from the device, and that the next start will find its
// file.
func (l *Log) stands(r *check.Run, s *segment, how *ranges) error {
	var st unix.Stat_t
	if err := unix.Lstat(l.dir.Full(s.name()), &st); errors.Is(err, unix.ENOENT) {
		return errRemoved
	}
	f, err := s.acquire()
	if err != nil {
		return nil // the read that follows reports why
	}
	defer s.release()
	if f.Forget(how.head.off, how.head.n) {
		r.Buffered.Add(1)
	}
	return nil
}

// CheckBlock reads one block, if it is held, and compares checksums as Check does. held means that
// the block is there, or was and is damaged, which is reported.
func (l *Log) CheckBlock(ctx context.Context, r *check.Run, id hearth.ID) (held bool, err error) {
	for range 3 { // each lost round takes a compaction of this very block
		p, ok := l.index.get(id, nil)
		slots := *l.slots.Load()
		if !ok || int(p.slot) >= len(slots) || slots[p.slot] == nil {
			return false, nil
		}
		n, told := p.note(id), r.Bad.Load()
		if err := r.Read(ctx, n.end()-n.offset()); err != nil {
			return true, err
		}
		if err := l.confirm(ctx, r, slots[p.slot], n); err != nil {
			return true, err
		}
		at, ok := l.index.get(id, nil)
		if r.Bad.Load() > told || ok && at == p {
			r.Blocks.Add(1)
			r.Bytes.Add(n.end() - n.offset())
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
	page := aligned(pageSize)
	if err := f.ReadAt(page, 0); err != nil {
		return wrong, err
	}
	h, ok := parseSeal(page, segmentMagic)
	switch {
	case !ok, h.number != s.number, h.format <= Format && !zero(page[sealSize:]):
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
	if err := r.Read(ctx, 2*pageSize); err != nil {
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
			slices.SortFunc(notes, func(a, b note) int { return cmp.Compare(a.unit, b.unit) })
			if err := l.reseal(s, file, notes); err != nil {
				return err
			}
			again, err := l.readSeals(s, file, true)
			if err == nil && again.footer != "" {
				err = fmt.Errorf("write footer of %s: %w", name, errMismatch)
			}
			return err
		}) == nil
		bad = append(bad, f)
	}
	return bad, nil
}

// held returns the live records of a segment, from the index or, for an unindexed one, from its
// file. The caller has the turn.
func (l *Log) held(s *segment, f *file) ([]note, error) {
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
	page := aligned(pageSize)
	putSeal(page, segmentMagic, seal{format: Format, number: s.number, salt: s.salt})
	return f.WriteAt(page, 0)
}
