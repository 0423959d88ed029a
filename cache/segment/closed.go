package segment

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/record"
)

// leakMost is how many bytes a segment may occupy beyond what its blocks need, before that is
// reported. A write that was cut short leaves about a megabyte.
const leakMost = 2 << 20

// CheckClosed checks a directory that no Log has open; the caller holds its lock. It checks what
// Log.Check does, and what Open repairs: the file of deaths, names, writes that were cut short.
// Without r.Repair nothing is changed. With it, findings are reported after the repair: Open
// repairs what it can, and each bad block is dropped. o.Budget is the directory's, 0 if it is not
// known.
func CheckClosed(ctx context.Context, o Options, r *check.Run) error {
	c := look(ctx, o, r, func(string) bool { return true })
	err := c.all()
	if r.Repair {
		return errors.Join(err, c.repair(o))
	}
	return err
}

// closed is a check of a directory that no Log has open.
type closed struct {
	ctx   context.Context
	r     *check.Run
	log   *Log
	due   func(segment string) bool // reports by its path whether it is to be checked
	later []mend
}

func look(ctx context.Context, o Options, r *check.Run, due func(segment string) bool) *closed {
	l := &Log{dir: &directory{Path: o.Dir, Look: true}, pool: o.Pool, alloc: o.Pool.Alloc, maxOpen: 1}
	l.slots.Store(&[]*segment{})
	l.deaths = &deaths{dir: l.dir}
	return &closed{ctx: ctx, r: r, log: l, due: due}
}

// mend is a finding that is to be repaired. do does what Open did not. nil means that Open may
// have, so the file is checked again before the report.
type mend struct {
	finding check.Finding
	do      func(l *Log) error
}

func (c *closed) tell(f check.Finding, do func(l *Log) error) {
	if c.r.Repair && f.Kind != check.Refused {
		c.later = append(c.later, mend{f, do})
		return
	}
	c.r.Tell(f)
}

func (c *closed) repair(o Options) error {
	if len(c.later) == 0 {
		return nil
	}
	l, err := Open(o)
	if err == nil {
		for i := range c.later {
			m := &c.later[i]
			m.finding.Repaired = m.do != nil && m.do(l) == nil
		}
		err = l.Close()
	}
	if err == nil {
		err = c.again(o)
	}
	for _, m := range c.later {
		c.r.Tell(m.finding)
	}
	return err
}

// again checks the files that Open was to repair, and notes which of them it did.
func (c *closed) again(o Options) error {
	type what struct {
		kind check.Kind
		file string
	}
	due, left := map[string]bool{}, map[what]bool{}
	for _, m := range c.later {
		if m.do == nil {
			due[m.finding.File] = true
		}
	}
	if len(due) == 0 {
		return nil
	}
	r := &check.Run{Pace: c.r.Pace, Step: c.r.Step, Found: func(f check.Finding) { left[what{f.Kind, f.File}] = true }}
	if err := look(c.ctx, o, r, func(file string) bool { return due[file] }).all(); err != nil {
		return err
	}
	for i := range c.later {
		f := &c.later[i].finding
		f.Repaired = f.Repaired || due[f.File] && c.later[i].do == nil && !left[what{f.Kind, f.File}]
	}
	return nil
}

func (c *closed) all() error {
	defer func() {
		for _, s := range *c.log.slots.Load() {
			s.mu.Lock()
			s.closeLocked()
			s.mu.Unlock()
		}
	}()
	if err := c.names(); err != nil {
		return err
	}
	segments, err := c.log.find()
	if err != nil {
		return err
	}
	if len(segments) > 0 {
		c.log.dir.ProbeRead(segments[0].name())
	}
	dead, err := c.deaths()
	if err != nil {
		return err
	}
	for _, s := range segments {
		if !c.due(c.log.dir.Full(s.name())) {
			continue
		}
		if err := c.segment(s, dead[s.number]); err != nil {
			return err
		}
		s.mu.Lock()
		s.closeLocked()
		s.mu.Unlock()
	}
	return nil
}

// names looks for files that are not ours.
func (c *closed) names() error {
	names, err := os.ReadDir(c.log.dir.Path)
	if err != nil {
		return fmt.Errorf("list %s: %w", c.log.dir.Path, err)
	}
	ours := ours()
	for _, e := range names {
		name, full := e.Name(), c.log.dir.Full(e.Name())
		switch {
		case ours(name) && name != deathsTemp && e.Type().IsRegular():
		case ours(name) && !e.Type().IsRegular():
			c.tell(check.InFile(check.Damaged, full, -1, "it stands where a file of ours belongs"), nil)
		case name == deathsTemp || name == "probe.tmp":
			c.tell(check.InFile(check.Leftover, full, -1, "a process that ended left it behind"), func(*Log) error {
				if err := os.RemoveAll(full); !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				return nil
			})
		default:
			c.tell(check.InFile(check.Refused, full, -1, "it is not hearth's: move it away"), nil)
		}
	}
	return nil
}

// deaths reads the tombstones.
func (c *closed) deaths() (map[uint32][]death, error) {
	name := c.log.dir.Full(deathsName)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return nil, nil
	}
	c.r.Files.Add(1)
	c.r.Bytes.Add(int64(len(text)))
	if err != nil {
		return nil, c.unread(name, err)
	}
	s, ok := parseSeal(text, deathsMagic)
	switch {
	case ok && s.format > Format:
		c.tell(check.InFile(check.Refused, name, 0, newer(c.log.dir, deathsName, s.format).Error()), nil)
		return nil, nil
	case !ok:
		c.tell(check.InFile(check.Damaged, name, 0, "its header is not what was written"), nil)
		return nil, nil
	}
	notes := map[uint32][]death{}
	for at := sealSize; at+deathSize <= len(text); at += deathSize {
		n := parseDeath(text[at:])
		notes[n.number] = append(notes[n.number], n)
	}
	return notes, nil
}

// segment checks one file: its header page and footer, then its records.
func (c *closed) segment(s *segment, dead []death) error {
	c.r.Files.Add(1)
	name := c.log.dir.Full(s.name())
	f, err := s.acquire()
	if err != nil {
		return c.unread(name, err)
	}
	defer s.release()
	if size, _, err := f.Stat(); err == nil && size == 0 {
		c.tell(check.InFile(check.Leftover, name, -1, "a process that ended had only just made it"), nil)
		return nil
	}
	t, err := c.log.trailer(s, f)
	wrote := t.format > 0
	var was contents
	if err == nil {
		was, err = c.log.contents(s, f, t)
	}
	var no unix.Errno
	if err != nil && !errors.As(err, &no) { // a newer format
		c.tell(check.InFile(check.Refused, name, -1, err.Error()), nil)
		return nil
	}
	if err != nil {
		return c.unread(name, err)
	}
	s.salt = was.salt
	wrote, err = c.seals(s, f, wrote)
	if err != nil {
		return err
	}
	if !was.whole && s.salt != 0 { // without a salt no header can be told from other bytes
		if err := c.gaps(s, f, was.notes, dead, wrote); err != nil {
			return err
		}
	}
	living := bury(s, was.notes, dead)
	for run := range runsOf(living) {
		bad, err := c.log.checkRun(c.ctx, c.r, s, run)
		if err != nil {
			return err
		}
		for _, n := range bad {
			if err := c.record(s, f, n); err != nil {
				return err
			}
		}
	}
	c.leaks(s, f, living)
	return nil
}

// unread reports a file that cannot be opened or read, unless the error says nothing about it.
func (c *closed) unread(name string, err error) error {
	switch {
	case check.Unreadable(err):
		c.tell(check.Unread(name, err), nil)
	case errors.Is(err, unix.EIO):
		c.tell(check.InFile(check.Damaged, name, -1, err.Error()), nil)
	default:
		return err
	}
	return nil
}

// seals checks the header page and the footer, if there is or was one, and reports whether that is
// so.
func (c *closed) seals(s *segment, f *file, wrote bool) (bool, error) {
	if size, _, err := f.Stat(); err == nil && !wrote && size > 2*record.PageSize && size%record.PageSize == 0 {
		page := aligned(record.PageSize)
		if f.ReadAt(page, size-record.PageSize) == nil {
			wrote = sealedOnce(page[record.PageSize-sealSize:])
		}
	}
	wrong, err := c.log.readSeals(s, f, wrote)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.EIO) {
		wrong, err = seals{header: "its header page cannot be read: " + err.Error()}, nil
	}
	if err != nil {
		return wrote, err
	}
	name, number := c.log.dir.Full(s.name()), s.number
	if wrong.header != "" {
		c.tell(check.InFile(check.Damaged, name, 0, wrong.header), func(l *Log) error {
			if s := l.numbered(number); s != nil {
				return l.repairSeal(s, l.rewriteHeader)
			}
			return nil // nothing in it could be found
		})
	}
	if wrong.footer != "" {
		c.tell(check.InFile(check.Damaged, name, -1, wrong.footer), nil)
	}
	return wrote, nil
}

// sealedOnce reports whether a segment's last bytes were a trailer.
func sealedOnce(b []byte) bool {
	if bytes.HasPrefix(b, []byte(trailerMagic)) {
		return true
	}
	_, ok := parseSeal(append([]byte(trailerMagic), b[len(trailerMagic):]...), trailerMagic)
	return ok
}

// gaps looks for bytes in a segment without a footer that belong to no record. Their header is
// damaged, or, at the end, was never written completely. The last page of an evicted record is
// there as long as the next one needs it, and its header may be gone.
func (c *closed) gaps(s *segment, f *file, notes []record.Note, dead []death, footer bool) error {
	size, _, err := f.Stat()
	if err != nil {
		return err
	}
	name, notes := c.log.dir.Full(s.name()), slices.Clone(notes)
	slices.SortFunc(notes, func(a, b record.Note) int { return cmp.Compare(a.Unit, b.Unit) })
	if !footer {
		notes = append(notes, record.Note{Unit: uint32(record.RoundUp(size, record.UnitSize) / record.UnitSize)})
	}
	at := int64(record.PageSize)
	for _, n := range notes {
		if err := c.r.Read(c.ctx, n.Offset()-at); err != nil {
			return err
		}
		where := f.Content(at, min(n.Offset(), size))
		switch {
		case where < 0:
		case where >= n.Offset()&^(record.PageSize-1) && evictedIn(s, dead, at, where):
		case n.Length == 0:
			c.tell(check.InFile(check.Leftover, name, where, "bytes behind the last block: a write that was cut short, or a damaged header"), nil)
		default:
			c.tell(check.InFile(check.Damaged, name, where, "the header of a block is not what was written"), nil)
		}
		at = n.End()
	}
	return nil
}

// evictedIn reports whether a record that began in [from, to) was evicted.
func evictedIn(s *segment, dead []death, from, to int64) bool {
	return slices.ContainsFunc(dead, func(d death) bool {
		off := int64(d.unit) * record.UnitSize
		return off >= from && off < to && d == newDeath(s.number, d.unit, s.salt)
	})
}

// record reads a bad record by itself and reports it.
func (c *closed) record(s *segment, f *file, n record.Note) error {
	how := record.ReadAll(n)
	buf := aligned(how.Len())
	err := how.Fill(f.ReadAt, buf)
	if err == nil {
		err = how.Verify(buf, s.salt)
	}
	if err == nil {
		return nil
	}
	number := s.number
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the file ends before it does")
	case !errors.Is(err, record.ErrMismatch) && !errors.Is(err, unix.EIO):
		return err
	}
	c.tell(found(c.log, s, n, err), func(l *Log) error {
		s := l.numbered(number)
		if s == nil {
			return nil
		}
		p := record.Place{Slot: s.slot, Unit: n.Unit, Length: n.Length}
		if _, ok := l.index.Remove(n.ID, &p); !ok {
			_, err := l.buryUnindexed(s, n) // otherwise a later copy counts
			return err
		}
		l.counters.corrupt.Add(1)
		_, err := l.drop(n.ID, p)
		return err
	})
	return nil
}

func (l *Log) numbered(number uint32) *segment {
	for _, s := range *l.slots.Load() {
		if s != nil && s.number == number {
			return s
		}
	}
	return nil
}

// leaks looks for pages that no live record needs and that were not punched: the process was killed
// between tombstone and punch. It looks only where the file system is known to count exactly.
func (c *closed) leaks(s *segment, f *file, living []record.Note) {
	size, allocated, err := f.Stat()
	if err != nil || !f.Counts() {
		return
	}
	var free []record.Span
	var unneeded int64
	at := int64(record.PageSize)
	t, err := c.log.trailer(s, f)
	if err != nil || t.format == 0 {
		return // the next start finds its end
	}
	for _, n := range append(slices.Clone(living), record.Note{Unit: uint32(t.offset / record.UnitSize)}) {
		if gap := n.Offset()&^(record.PageSize-1) - at; gap > 0 {
			free = append(free, record.Span{Off: at, N: gap})
			unneeded += gap
		}
		at = max(at, record.RoundUp(n.End(), record.PageSize))
	}
	leaked := allocated - (size - unneeded)
	if leaked <= leakMost {
		return
	}
	number := s.number
	cause := fmt.Sprintf("%d bytes of it are no block's and were not given back", leaked)
	c.tell(check.InFile(check.Leftover, c.log.dir.Full(s.name()), -1, cause), func(l *Log) error {
		s := l.numbered(number)
		if s == nil {
			return nil
		}
		return l.repairSeal(s, func(s *segment, f *file) error {
			for _, gap := range free {
				if err := f.Punch(gap.Off, gap.N); err != nil {
					return err
				}
			}
			_, err := s.measure(f)
			return err
		})
	})
}
