package segment

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/piece"
)

// Entry is a block to append.
type Entry struct {
	ID hearth.ID
	// Data is the whole block. It is not kept.
	Data []byte
	// Sums are the XXH3-64 of its 64 KiB pieces, if the caller has them already.
	Sums []uint64
	// State is the eviction policy's word for the block.
	State uint32
}

// stageSize is the largest single write: a header page, a block and its header, and the rest for
// small ones. Larger writes gained nothing measurable.
const stageSize = hearth.BlockSize + 64<<10

// writer packs records into stage and holds the open segment. It belongs to the holder of Log.turn.
type writer struct {
	segment *segment // nil means that none is open
	file    *file    // of segment, acquired
	limit   int64    // where the data of a segment end at most
	most    int      // records of a segment at most
	memory  int64    // reserved in the Pool

	stage  []byte
	filled int   // bytes in stage
	tail   int64 // offset of stage in the file
	placed []placed
	footer []byte // entries of the open segment; has the capacity for most and the trailer
}

// placed is a record in stage. from is set if Compact moves the record.
type placed struct {
	note  record.Note
	state uint32
	from  *record.Place
}

func (w *writer) init(pool *hearth.Pool, limit int64) error {
	w.limit = min(record.RoundUp(limit, record.PageSize), record.MaxUnits*record.UnitSize)
	if w.limit < 2*stageSize {
		return fmt.Errorf("segment size %d: at least %d", limit, 2*stageSize)
	}
	// One record per KiB fills 16 MiB; 64 Ki bounds the footer's memory.
	w.most = int(min(w.limit/1024, 64<<10))
	footer := footerSize(w.most)
	w.memory = stageSize + footer
	if !pool.Press(w.memory) {
		return fmt.Errorf("reserve %d bytes for writing: %w", w.memory, ErrDeclined)
	}
	w.stage = aligned(stageSize)
	w.footer = aligned(int(footer))[:0]
	return nil
}

// Append writes whole blocks; they can be read when it returns. Blocks that are held already are
// left as they are. The error is of a failed write, or ErrDeclined; other blocks of the batch may
// have been kept.
func (l *Log) Append(batch []Entry) error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.closed.Load() {
		return l.errClosed("append to")
	}
	if err := l.settler.failure(); err != nil {
		return err
	}
	var refused error // an error of single blocks
	// Blocks with pages of their own go first: short ones then share theirs densely.
	for _, short := range []bool{false, true} {
		for i := range batch {
			if record.Packed(len(batch[i].Data)) != short {
				continue
			}
			err := l.placeLocked(&batch[i], nil)
			if errors.Is(err, ErrDeclined) {
				l.counters.declined.Add(1)
			}
			if errors.Is(err, ErrDeclined) || errors.Is(err, fs.ErrInvalid) {
				refused = err
			} else if err != nil {
				return err
			}
		}
	}
	if err := l.flushLocked(); err != nil {
		return err
	}
	return refused
}

// placeLocked puts a block's record into stage, after it has written out what is in the way.
func (l *Log) placeLocked(e *Entry, from *record.Place) error {
	w := &l.writer
	if n := len(e.Data); n == 0 || n > hearth.BlockSize || !Holds(e.ID) ||
		e.Sums != nil && len(e.Sums) != piece.Count(n) {
		return fmt.Errorf("append block %s of %d bytes with %d sums: %w", e.ID, n, len(e.Sums), fs.ErrInvalid)
	}
	if from == nil && l.Has(e.ID) {
		return nil
	}
	if err := l.makeRoomLocked(len(e.Data)); err != nil {
		return err
	}
	n := record.Note{ID: e.ID, Unit: uint32((w.tail + int64(w.filled)) / record.UnitSize), Length: uint32(len(e.Data))}
	if record.Packed(len(e.Data)) && !w.segment.reservePages(n.End()) {
		return fmt.Errorf("append block %s: %w", e.ID, ErrDeclined)
	}
	if from == nil && !l.index.Room(e.ID) {
		return fmt.Errorf("append block %s: %w", e.ID, ErrDeclined)
	}
	header, size := record.HeaderSize(len(e.Data)), int(record.Size(len(e.Data)))
	room := w.stage[w.filled : w.filled+size]
	record.PutHeader(room, n, w.segment.salt, e.Data, e.Sums)
	copy(room[header:], e.Data)
	clear(room[header+len(e.Data):])
	w.filled += size
	w.placed = append(w.placed, placed{n, e.State, from})
	return nil
}

// makeRoomLocked makes room in stage and in the open segment for the record of a block of length
// bytes, with its alignment.
func (l *Log) makeRoomLocked(length int) error {
	w := &l.writer
	size := record.Size(length)
	if !record.Packed(length) {
		w.pad()
	}
	if int64(w.filled)+size > stageSize {
		if err := l.flushLocked(); err != nil {
			return err
		}
	}
	full := w.tail+int64(w.filled)+size > w.limit || len(w.footer)/record.NoteSize+len(w.placed) >= w.most
	if w.segment != nil && full {
		if err := l.flushLocked(); err != nil {
			return err
		}
		if err := l.sealLocked(); err != nil {
			return err
		}
	}
	if w.segment == nil {
		return l.beginLocked()
	}
	return nil
}

// pad fills stage up to a page.
func (w *writer) pad() {
	end := int(record.RoundUp(int64(w.filled), record.PageSize))
	clear(w.stage[w.filled:end])
	w.filled = end
}

// beginLocked makes the next segment; its header page is written with the first records.
func (l *Log) beginLocked() error {
	w := &l.writer
	number := uint32(1)
	for _, s := range *l.slots.Load() {
		if s != nil {
			number = max(number, s.number+1)
		}
	}
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return fmt.Errorf("make a salt: %w", err)
	}
	s := &segment{log: l, number: number, salt: binary.LittleEndian.Uint64(salt[:]), begun: true}
	f, err := l.dir.Open(s.name(), unix.O_CREAT|unix.O_TRUNC, true)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.adoptLocked(f)
	s.users = 1
	s.mu.Unlock()
	l.takeSlot(s)
	w.segment, w.file, w.tail = s, f, 0
	w.footer = w.footer[:0]
	clear(w.stage[:record.PageSize])
	putSeal(w.stage, segmentMagic, seal{format: Format, number: number, salt: s.salt})
	w.filled = record.PageSize
	return nil
}

// flushLocked writes stage and publishes its records. After an error they are forgotten, and the
// next batch writes the same pages again.
func (l *Log) flushLocked() error {
	w := &l.writer
	if len(w.placed) == 0 {
		return nil
	}
	w.pad()
	w.segment.mu.Lock()
	w.segment.lasts = false
	w.segment.mu.Unlock()
	err := w.file.WriteAt(w.stage[:w.filled], w.tail)
	if err == nil {
		_, err = w.segment.measure(w.file)
	}
	if moved := func(p placed) bool { return p.from != nil }; err == nil && slices.ContainsFunc(w.placed, moved) {
		err = l.makeLast(w.segment, w.file) // the old records are dropped next
	}
	if err != nil {
		for _, p := range w.placed {
			if p.from == nil {
				l.index.Cancel(p.note.ID)
			}
		}
		w.placed = w.placed[:0]
		w.filled = 0
		if w.tail == 0 {
			l.abandonLocked()
		} else {
			_, _ = w.segment.measure(w.file) // part of it may have been written
		}
		return err
	}
	l.counters.written.Add(int64(w.filled))
	w.tail += int64(w.filled)
	w.filled = 0
	for _, p := range w.placed {
		w.segment.add(int(p.note.Length), p.note.Offset())
		w.footer = record.AppendNote(w.footer, p.note)
	}
	for _, p := range w.placed {
		err = errors.Join(err, l.publish(p, w.segment))
	}
	w.placed = w.placed[:0]
	return err
}

// publish enters a written record into the index. From here on it is found, and
// may be evicted at once.
func (l *Log) publish(p placed, s *segment) error {
	at := record.Place{Slot: s.slot, Unit: p.note.Unit, Length: p.note.Length}
	lost, lose := at, false
	if p.from == nil {
		l.counters.appended.Add(1)
		l.counters.appendedBytes.Add(int64(p.note.Length))
		lost, lose = l.index.Put(p.note.ID, at, p.state, func(record.Place) bool { return false })
	} else if lose = true; l.index.Move(p.note.ID, *p.from, at) {
		l.counters.rewritten.Add(record.Size(int(p.note.Length)))
		lost = *p.from
	}
	if !lose {
		return nil
	}
	_, err := l.drop(p.note.ID, lost)
	return err
}

// abandonLocked removes a segment whose header page was never written.
func (l *Log) abandonLocked() {
	s := l.writer.segment
	l.writer.segment, l.writer.file = nil, nil
	s.mu.Lock()
	s.sealed, s.gone = true, true
	s.mu.Unlock()
	_, err := l.retire(s)
	l.settler.fail(err)
	s.release()
}

// sealLocked closes the open segment by its footer. If that fails, a later Open recovers the
// segment by its headers.
func (l *Log) sealLocked() error {
	w := &l.writer
	s, f := w.segment, w.file
	if s == nil {
		return nil
	}
	w.segment, w.file, w.filled = nil, nil, 0
	defer s.release()
	s.mu.Lock()
	s.sealed = true
	empty := s.emptyLocked()
	s.mu.Unlock()
	if empty {
		_, err := l.retire(s)
		return err
	}
	err := l.writeFooter(s, f, w.footer, w.tail)
	if err != nil {
		s.mu.Lock()
		s.bare = true
		s.mu.Unlock()
	}
	l.settler.add(s) // its records must become durable, with or without the footer
	return err
}

// writeFooter writes a footer with these entries at end, the last part of the file.
func (l *Log) writeFooter(s *segment, f *file, entries []byte, end int64) error {
	count := len(entries) / record.NoteSize
	size := int(footerSize(count))
	if cap(entries) < size {
		entries = append(aligned(size)[:0], entries...)
	}
	footer := entries[:size]
	putFooter(footer, seal{format: Format, number: s.number, salt: s.salt, count: uint32(count), offset: end})
	if err := f.WriteAt(footer, end); err != nil {
		return err
	}
	l.counters.written.Add(int64(size))
	_, err := s.measure(f)
	return err
}
