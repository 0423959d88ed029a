package volume

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/piece"
)

var (
	errQueue    = errors.New("more blocks wait for the volume than it writes")
	errLearning = errors.New("the volume's segments are being read still")
	errNoRange  = errors.New("no range of the volume's segments is this node's to write")
	errNotMine  = errors.New("another node answers for the block")
	errMemory   = errors.New("no memory for the index of the volume")
)

// stageSize is the largest single write: a header page, a block and its header, and the rest for small
// ones.
const stageSize = hearth.BlockSize + 64<<10

// none is the number of no segment.
const none = ^uint32(0)

// writer packs records into stage and has the open segment. It belongs to the holder of Volume.turn.
type writer struct {
	open   uint32 // the open segment, or none
	spare  uint32 // a segment without blocks, which is opened next, or none
	head   header // of open
	stage  []byte
	filled int   // bytes in stage
	tail   int64 // offset of stage in the segment
	placed []placed
	index  []byte // notes of the open segment, with room for all
	count  int
	moved  bool  // blocks were moved out of spare since the last flush
	err    error // of closing

	unflushed map[uint32]int64 // segments written since the last flush, and from which offset on
	failed    [2]int           // in a row: writes, flushes
	lost      error            // why blocks were forgotten since the last Flush that was asked for
}

type placed struct {
	note record.Note
	old  *record.Place // where it lay, if it is moved
	item int           // of the batch, or -1
}

func (w *writer) begin(v *Volume) {
	w.open, w.spare, w.unflushed = none, none, map[uint32]int64{}
	w.stage = device.Aligned(stageSize)
	w.index = device.Aligned(int(indexSize(v.most())))
}

// Takes reports whether Put would take the block now.
func (v *Volume) Takes(b hearth.Block) bool { return v.Wants(b.ID()) }

// Wants is Takes for one who has only the name, as an eviction does. It never waits.
func (v *Volume) Wants(id hearth.ID) bool {
	return v.refuses(id) == nil && !v.Has(id) && v.queue.bytes() < v.o.Queue
}

// refuses says why the volume takes no block of that name now.
func (v *Volume) refuses(id hearth.ID) error {
	switch away := v.away.Load(); {
	case away != nil:
		return *away
	case v.stopped() != nil:
		return v.stopped()
	case !v.o.Mine(id):
		return errNotMine
	case uint64(id.Index) >= record.MaxIndex:
		return fmt.Errorf("block %d of an object: the format has room for %d", id.Index, record.MaxIndex)
	}
	return nil
}

// Put offers a whole block. When writes lag, it declines.
func (v *Volume) Put(b hearth.Block, view *hearth.View) error { return v.Spill(b.ID(), view) }

// Spill is Put of a block of which only the name is known, as an eviction has it.
func (v *Volume) Spill(id hearth.ID, view *hearth.View) error {
	err := v.refuses(id)
	if err == nil && v.Has(id) {
		return nil
	}
	if err == nil {
		if ok, _ := v.queue.offer(item{id: id, view: view}); !ok {
			err = errQueue
		}
	}
	if err != nil {
		v.stats.dropped.Add(1)
		return hearth.NotKept(err.Error())
	}
	return nil
}

// Keep is Put that waits, and returns once the block is written.
func (v *Volume) Keep(ctx context.Context, b hearth.Block, view *hearth.View) error {
	id := b.ID()
	err := v.refuses(id)
	if err == nil && v.holds(id) {
		return nil
	}
	if err == nil {
		err = v.queue.wait(ctx, item{id: id, view: view})
	}
	if err != nil && ctx.Err() == nil {
		return hearth.NotKept(err.Error())
	}
	return err
}

// Flush returns once everything that was given before is on the device for good, as far as it is held still. What was
// lost since the last Flush makes this one fail, and is not held (Has): whoever gave it asks for it, since the error
// may have gone to another.
func (v *Volume) Flush(ctx context.Context) error {
	if err := v.away.Load(); err != nil {
		return *err
	}
	return v.queue.wait(ctx, item{do: v.settle})
}

// settle is Flush, for the writer.
func (v *Volume) settle(errs []error) error {
	w := &v.writer
	err := v.writeStage(errs)
	if w.open != none && w.tail > 0 { // nobody finds the blocks of a segment that another node has begun anew
		same, unread := v.unchanged(w.open)
		if err = errors.Join(err, unread); unread == nil && !same {
			v.forget()
		}
	}
	err = errors.Join(err, v.flushDevice())
	err = errors.Join(err, w.lost)
	w.lost = nil
	return err
}

// write is the writer's goroutine.
func (v *Volume) write() {
	defer close(v.wrote)
	for {
		items := v.queue.take()
		v.turn <- struct{}{}
		if len(items) == 0 {
			v.guard.Writer.Work()
			v.writer.err = v.closeSegment()
			if v.usable() {
				v.writer.err = errors.Join(v.writer.err, v.flushDevice())
			}
			v.guard.Writer.Rest()
			<-v.turn
			return
		}
		v.guard.Writer.Work()
		v.append(items)
		v.guard.Writer.Rest()
		<-v.turn
	}
}

// append writes a batch. Each item is freed with what came of it.
func (v *Volume) append(items []item) {
	w := &v.writer
	errs := make([]error, len(items))
	first := make(map[hearth.ID]int, len(items)) // of a block that was given twice: it ends as its first item does
	for i, x := range items {
		if x.do != nil {
			errs[i] = x.do(errs)
			continue
		}
		if err := v.refuses(x.id); err != nil {
			errs[i] = err
			continue
		}
		if _, twice := first[x.id]; twice {
			continue
		}
		first[x.id] = i
		if _, held := v.find(x.id, 0); held {
			continue
		}
		errs[i] = v.place(errs, placed{note: record.Note{ID: x.id, Length: uint32(x.view.Len())}, item: i}, x.view.Bytes(), piece.Known(x.view.Sums()))
	}
	_ = v.writeStage(errs) // the blocks' errors say it
	for i, x := range items {
		if k, ok := first[x.id]; ok && errs[i] == nil && x.view != nil {
			errs[i] = errs[k]
		}
		if errs[i] != nil && x.view != nil {
			v.stats.dropped.Add(1)
		}
		v.queue.free(x, errs[i])
	}
	w.placed = w.placed[:0]
}

// place packs a record into stage. errs receive what writing the stage brings, by item.
func (v *Volume) place(errs []error, p placed, data []byte, sums []uint64) error {
	w := &v.writer
	if err := v.makeRoom(errs, len(data)); err != nil {
		return err
	}
	if !v.index.Room(p.note.ID) {
		v.stats.unindexed.Add(1)
		return errMemory
	}
	p.note.Unit = uint32((w.tail + int64(w.filled)) / record.UnitSize)
	head, size := record.HeaderSize(len(data)), int(record.Size(len(data)))
	room := w.stage[w.filled : w.filled+size]
	record.PutHeader(room, p.note, w.head.salt, data, sums)
	copy(room[head:], data)
	clear(room[head+len(data):])
	w.filled += size
	w.placed = append(w.placed, p)
	return nil
}

// makeRoom makes room in stage and in the open segment for the record of a block of length bytes.
func (v *Volume) makeRoom(errs []error, length int) error {
	w, size := &v.writer, int(record.Size(length))
	for {
		if err := v.yield(errs); err != nil {
			return err
		}
		if w.open == none {
			if err := v.openNext(errs); err != nil {
				return err
			}
		}
		if !record.Packed(length) {
			v.pad()
		}
		count := w.count + len(w.placed) + 1
		if end := w.tail + int64(w.filled+size); count > v.most() || record.RoundUp(end, pageSize)+indexSize(count) > v.g.segment {
			if err := errors.Join(v.writeStage(errs), v.closeSegment()); err != nil {
				return err
			}
			continue
		}
		if w.filled+size <= stageSize {
			return nil
		}
		if err := v.writeStage(errs); err != nil {
			return err
		}
	}
}

// pad fills stage up to a page.
func (v *Volume) pad() {
	w := &v.writer
	end := int(record.RoundUp(int64(w.filled), pageSize))
	clear(w.stage[w.filled:end])
	w.filled = end
}

// writeStage writes stage and publishes its records. After an error they are forgotten, and their pages stay as they
// are: the device may write them yet.
func (v *Volume) writeStage(errs []error) error {
	w := &v.writer
	if len(w.placed) == 0 {
		return nil
	}
	v.pad()
	err := v.writeAt(w.stage[:w.filled], w.open, w.tail)
	if err != nil {
		for _, p := range w.placed {
			v.index.Cancel(p.note.ID)
			if p.item >= 0 {
				errs[p.item] = err
			}
		}
		if w.tail == 0 {
			w.open = none // its header page was perhaps never written
		}
	} else {
		for _, p := range w.placed {
			v.publish(p)
		}
	}
	w.tail += int64(w.filled)
	w.placed, w.filled = w.placed[:0], 0
	return err
}

// publish enters a written record into the index. From here on it is found.
func (v *Volume) publish(p placed) {
	w := &v.writer
	record.AppendNote(w.index[:w.count*record.NoteSize], p.note)
	w.count++
	at := record.Place{Slot: w.open, Unit: p.note.Unit, Length: p.note.Length}
	v.index.Put(p.note.ID, at, cold(w.head.salt), func(record.Place) bool { return true })
	if p.old != nil {
		v.stats.moved.Add(1)
		return
	}
	v.stats.appended.Add(1)
	v.stats.appendedBytes.Add(int64(p.note.Length))
}

// closeSegment closes the open segment by its index, which the next flush makes durable.
func (v *Volume) closeSegment() error {
	w := &v.writer
	if w.open == none {
		return nil
	}
	n := w.open
	w.open = none
	if w.tail == 0 || !v.usable() {
		return nil
	}
	if _, err := v.unchanged(n); err != nil || v.segments[n].salt.Load() != w.head.salt {
		return err // another node has begun it anew
	}
	size := int(indexSize(w.count))
	putIndex(w.index[:size], &w.head, w.count, v.g.segment)
	return v.writeAt(w.index[:size], n, v.g.segment-int64(size)) // without it the headers of the records tell
}

// yield closes the open segment if its range is another node's by now. That one may have closed it already, before the
// last records were there. So this index is made durable at once.
func (v *Volume) yield(errs []error) error {
	if w := &v.writer; w.open == none || v.owns(w.open) {
		return nil
	}
	return errors.Join(v.writeStage(errs), v.closeSegment(), v.flushDevice())
}

// openNext begins a segment anew.
func (v *Volume) openNext(errs []error) error {
	w := &v.writer
	n, err := v.next(errs)
	if err != nil {
		return err
	}
	if w.moved { // their former records go now
		if err := v.flushDevice(); err != nil {
			return err
		}
	}
	s := &v.segments[n]
	w.head = header{format: Format, segment: n, volume: v.g.volume, generation: s.generation + 1, node: v.o.Node, began: v.o.Now().UnixMilli()}
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return fmt.Errorf("draw a segment's salt: %w", err)
	}
	w.head.salt = max(1, binary.LittleEndian.Uint64(salt[:]))
	w.head.put(w.stage)
	w.filled, w.tail, w.count, w.open = pageSize, 0, 0, n
	s.generation, s.began = w.head.generation, w.head.began
	s.salt.Store(w.head.salt)
	s.unread.Store(false)
	err = v.reserve(errs)
	if w.open == none { // the device did not take what moved
		return errors.Join(err, errUnwritten)
	}
	return nil // the open segment has room, whatever reserve says; the next one says it again
}

var errUnwritten = errors.New("a segment of the volume could not be begun")

// next is the segment to begin anew: the spare one if it is still this node's and as it was, or else another.
func (v *Volume) next(errs []error) (uint32, error) {
	w := &v.writer
	for range contended {
		if w.spare == none {
			if err := v.reserve(errs); err != nil {
				return none, err
			}
		}
		n := w.spare
		w.spare = none
		if same, err := v.unchanged(n); err != nil || same && v.owns(n) {
			return n, err
		}
	}
	return none, errContended
}

// writeAt writes to a segment.
func (v *Volume) writeAt(p []byte, segment uint32, off int64) error {
	if err := v.away.Load(); err != nil {
		return *err
	}
	if from, dirty := v.writer.unflushed[segment]; !dirty || off < from {
		v.writer.unflushed[segment] = off // also if the write fails: who knows what it did
	}
	_, err := v.dev.WriteAt(p, v.g.offset(segment)+off)
	v.guard.Writer.Work()
	v.noteWrite(err, false)
	if err == nil {
		v.stats.written.Add(int64(len(p)))
	}
	return err
}

// flushDevice makes durable what was written. If that fails, nobody knows what of it is there: it is forgotten, so
// that nothing counts as kept that may be lost.
func (v *Volume) flushDevice() error {
	if err := v.away.Load(); err != nil {
		return *err
	}
	w := &v.writer
	err := v.dev.Flush()
	v.guard.Writer.Work()
	v.stats.flushes.Add(1)
	v.noteWrite(err, true)
	if err == nil {
		w.moved = false
		clear(w.unflushed)
		return nil
	}
	v.forget()
	return err
}

// forget drops from the index what was written since the last flush. The open segment is given up: its header may
// be lost, and then nobody finds its records.
func (v *Volume) forget() {
	w := &v.writer
	v.stats.lost.Add(v.drop(func(_ hearth.ID, p record.Place, _ uint32) bool {
		from, dirty := w.unflushed[p.Slot]
		return dirty && int64(p.Unit)*record.UnitSize >= from
	}))
	clear(w.unflushed)
	w.open, w.moved = none, false
	w.lost = errLost
}

var errLost = errors.New("the volume has lost what was written since the last flush")

// pause says why a volume takes no writes for now.
type pause struct {
	cause error
	flush bool // flushes fail, not writes
	until time.Time
	wait  time.Duration
}

// stopped says why the volume takes no writes now. After a while it is tried again.
func (v *Volume) stopped() error {
	if p := v.paused.Load(); p != nil && v.o.Now().Before(p.until) {
		return p.cause
	}
	return nil
}

// noteWrite notes how a write or a flush went. A device that is read-only, and one that fails some times in a row, is
// left in peace for a while; it still serves reads. What failed ends that once it succeeds: a full file system flushes
// what it cannot write.
func (v *Volume) noteWrite(err error, flush bool) {
	p, failed := v.paused.Load(), &v.writer.failed[0]
	if flush {
		failed = &v.writer.failed[1]
	}
	if err == nil {
		*failed = 0
		if p != nil && p.flush == flush {
			v.paused.Store(nil)
			v.tell()
		}
		return
	}
	v.stats.errors.Add(1)
	if errors.Is(err, errSmaller) {
		v.leave(fmt.Errorf("%w (the volume needs %d)", err, v.g.size))
	}
	if *failed++; *failed < failures && p == nil && !errors.Is(err, ErrReadOnly) {
		return
	}
	next := &pause{cause: err, flush: flush, wait: retryFirst}
	if p != nil {
		next.wait = min(2*p.wait, retryLast)
	}
	next.until = v.o.Now().Add(next.wait)
	v.paused.Store(next)
	if p == nil {
		v.tell()
	}
}
