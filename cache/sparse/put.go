package sparse

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// maxRun bounds the blocks of one write: an extent, beyond which a larger write is no faster.
const maxRun = hearth.ExtentBlocks

// Put stores one whole block. Data that is aligned to 4 KiB, as Views of whole blocks are, is
// written by O_DIRECT.
func (f *Files) Put(o *hearth.Object, index int64, data []byte) error {
	return f.PutMany(o, index, [][]byte{data})
}

// PutMany stores consecutive whole blocks in as few writes as possible. Blocks that are held
// already are skipped. After an error the blocks before the failed write are held.
func (f *Files) PutMany(o *hearth.Object, first int64, blocks [][]byte) error {
	err := f.putMany(o, first, blocks)
	if err != nil {
		return fmt.Errorf("put %d blocks from %s: %w", len(blocks), o.Block(first).ID(), err)
	}
	return nil
}

func (f *Files) putMany(o *hearth.Object, first int64, blocks [][]byte) error {
	if first < 0 || first+int64(len(blocks)) > o.Blocks() {
		return fmt.Errorf("object has %d blocks: %w", o.Blocks(), unix.EINVAL)
	}
	for i, data := range blocks {
		if b := o.Block(first + int64(i)); len(data) != b.Len() {
			return fmt.Errorf("block of %d bytes, not %d: %w", len(data), b.Len(), unix.EINVAL)
		}
	}
	x, err := f.acquireNew(o)
	if err != nil {
		return err
	}
	defer f.unpin(x)
	if x.size != o.Size {
		return fmt.Errorf("object of %d bytes, not %d: %w", x.size, o.Size, unix.EINVAL)
	}
	for len(blocks) > 0 {
		skip, n, err := f.claim(x, first, len(blocks))
		if err != nil {
			return err
		}
		first, blocks = first+int64(skip), blocks[skip:]
		if n == 0 {
			continue
		}
		good, err := f.writeRun(x, first, blocks[:n])
		f.commit(x, run{first, n, good}, err)
		if err != nil {
			return f.failed(err)
		}
		first, blocks = first+int64(n), blocks[n:]
	}
	return nil
}

// acquireNew is acquire, but makes a missing object.
func (f *Files) acquireNew(o *hearth.Object) (*object, error) {
	f.mu.Lock()
	x := f.objects[o.Version]
	switch {
	case f.closed:
		f.mu.Unlock()
		return nil, errClosed
	case x != nil && (x.doomed || x.reaping):
		f.mu.Unlock()
		return nil, ErrBusy
	case x != nil:
		return x, f.pinLocked(context.Background(), x)
	}
	f.mu.Unlock()
	if err := f.forPut(o.Version); err != nil {
		return nil, err
	}
	if !f.reserve(objectBytes) {
		return nil, ErrMemory
	}
	f.mu.Lock()
	if f.closed || f.objects[o.Version] != nil { // another goroutine was faster
		f.mu.Unlock()
		f.opt.Pool.Unclaim(objectBytes)
		return f.acquireNew(o)
	}
	x = &object{version: o.Version, index: index{size: o.Size}, unmade: true, state: f.fresh()}
	f.insertLocked(x)
	return x, f.pinLocked(context.Background(), x)
}

// claim skips the held blocks at the front of [first, first+n) and claims the missing ones behind
// them, at most maxRun. Until commit their extents are not punched and the file is not lent.
func (f *Files) claim(x *object, first int64, n int) (skip, run int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for skip < n && x.holds(first+int64(skip)) {
		skip++
	}
	first += int64(skip)
	for run < min(n-skip, maxRun) && !x.holds(first+int64(run)) {
		run++
	}
	if run == 0 {
		return skip, 0, nil
	}
	extents := x.covering(first, run)
	for i := range extents {
		if extents[i].writers == punching {
			return 0, 0, ErrBusy
		}
	}
	if x.doomed {
		return 0, 0, ErrBusy
	}
	if f.readersLocked(x) != noReaders {
		return 0, 0, ErrLent
	}
	for i := range extents {
		extents[i].writers++
	}
	x.writing++
	return skip, run, nil
}

// covering returns the extents of n blocks from first on.
func (x *index) covering(first int64, n int) []extent {
	return x.extents[first/hearth.ExtentBlocks : (first+int64(n)-1)/hearth.ExtentBlocks+1]
}

// run is n consecutive blocks that were written. The first good of them count as verified.
type run struct {
	first   int64
	n, good int
}

// commit publishes a written run, or undoes a failed write, and releases the claim.
func (f *Files) commit(x *object, r run, err error) {
	if err != nil {
		f.undo(x, r)
	}
	f.settle(x)
	f.mu.Lock()
	defer f.mu.Unlock()
	extents := x.covering(r.first, r.n)
	if err == nil {
		state := f.fresh()
		for i := range extents {
			if extents[i].have == 0 {
				extents[i].state = state
			}
		}
		for i := range r.n {
			x.add(r.first+int64(i), i < r.good)
			f.counts.writeBytes.Add(int64(x.blockLen(r.first + int64(i))))
		}
		f.counts.writes.Add(int64(r.n))
		if x.whole { // from now on its state counts; its completion is a use
			x.state = f.opt.Touch(x.state, f.opt.Now())
		}
	}
	for i := range extents {
		extents[i].writers--
	}
	x.writing--
	f.sample.update(x)
}

// undo punches what a failed write may have allocated, unless another writer works in the same
// extents: then it stays until load or eviction finds it.
func (f *Files) undo(x *object, r run) {
	f.mu.Lock()
	extents := x.covering(r.first, r.n)
	for i := range extents {
		if extents[i].writers != 1 {
			f.mu.Unlock()
			return
		}
	}
	for i := range r.n {
		if x.holds(r.first + int64(i)) {
			f.mu.Unlock()
			return
		}
	}
	for i := range extents {
		extents[i].writers = punching
	}
	f.mu.Unlock()
	f.punchData(x, r.first, int64(r.n))
	f.mu.Lock()
	for i := range extents {
		extents[i].writers = 1
	}
	f.mu.Unlock()
}

// writeRun writes data, then records. good is the number of leading blocks that the device has
// taken.
func (f *Files) writeRun(x *object, first int64, blocks [][]byte) (good int, err error) {
	var records [maxRun * recordSize]byte
	var last sums
	for i, data := range blocks {
		last = sumsOf(data)
		encodeRecord(records[i*recordSize:][:recordSize], x.id(first+int64(i)), &last)
	}
	off := first * hearth.BlockSize
	if x.handle.direct && aligned(blocks) {
		good, err = f.writeDirect(x, first, blocks)
		if err == nil && good < len(blocks) && f.reread(x, first+int64(good), &last) {
			good++
		}
	}
	if err == unix.EINVAL {
		f.direct.Store(false) // refused by this device: not tried again
	}
	if !x.handle.direct || !aligned(blocks) || err == unix.EINVAL {
		good, err = 0, f.writePlain(x, blocks, off)
	}
	if err == nil {
		err = pwrite(x.handle.sums, records[:len(blocks)*recordSize], recordOffset(first))
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", f.path(x.dataName()), err)
	}
	return good, nil
}

func aligned(blocks [][]byte) bool {
	for _, data := range blocks {
		if uintptr(unsafe.Pointer(unsafe.SliceData(data)))%align != 0 {
			return false
		}
	}
	return true
}

// writeDirect writes whole 4 KiB units by O_DIRECT. The odd end of an object's last block goes
// through the page cache. A padded write would have to be truncated again, and a file that is too
// long for a moment is a danger in a crash. The last block then does not count as good.
func (f *Files) writeDirect(x *object, first int64, blocks [][]byte) (good int, err error) {
	bufs := make([][]byte, 0, maxRun)
	bufs = append(bufs, blocks...)
	end := len(bufs) - 1
	tail := bufs[end]
	whole := len(tail) &^ (align - 1)
	bufs[end], tail = tail[:whole], tail[whole:]
	if whole == 0 {
		bufs = bufs[:end]
	}
	if err := pwritev(x.handle.data, bufs, first*hearth.BlockSize); err != nil {
		return 0, err
	}
	if len(tail) == 0 {
		return len(blocks), nil
	}
	return end, f.writePlain(x, [][]byte{tail}, (first+int64(end))*hearth.BlockSize+int64(whole))
}

// writePlain writes through the page cache.
func (f *Files) writePlain(x *object, bufs [][]byte, off int64) error {
	fd := x.handle.data
	if x.handle.direct {
		var err error
		if fd, err = f.openPlain(x); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	for _, data := range bufs {
		if err := pwrite(fd, data, off); err != nil {
			return err
		}
		off += int64(len(data))
	}
	return nil
}

// reread compares the last piece of an object with its checksum by a direct read, which first waits
// until the page cache is on the device. So an object is verified once its last block was written,
// and only one piece of 64 KiB was read again for that.
func (f *Files) reread(x *object, index int64, want *sums) bool {
	length := x.blockLen(index)
	lo := (length - 1) &^ (hearth.PieceSize - 1)
	v := f.opt.Pool.TryAlloc(alignUp(length - lo))
	if v == nil {
		return false
	}
	defer v.Release()
	direct, err := f.readData(x, v.Bytes(), index*hearth.BlockSize+int64(lo), length-lo)
	return err == nil && direct && matches(v.Bytes()[:length-lo], want[lo/hearth.PieceSize:])
}
