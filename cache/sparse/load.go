package sparse

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// load reads the sidecar into an index, and repairs what a crash left: a data file of the wrong
// size, and bytes without a record. Only prepare calls it.
func (f *Files) load(x *object) error {
	var st unix.Stat_t
	if err := unix.Fstat(x.handle.data, &st); err != nil {
		return f.failed(fmt.Errorf("stat %s: %w", f.path(x.dataName()), err))
	}
	size, err := f.readHeader(x)
	if errors.Is(err, errDamaged) {
		f.condemn(x, err)
		return hearth.ErrMiss
	} else if err != nil {
		return err
	}
	ix, err := f.newIndex(size)
	if err != nil {
		return err
	}
	damaged, err := readRecords(descriptor(x.handle.sums), x.version, ix.blocks(), func(i int64) {
		if end := i*hearth.BlockSize + int64(ix.blockLen(i)); end <= st.Size {
			ix.add(i, false)
		}
	})
	if err != nil {
		f.opt.Pool.Unclaim(int64(len(ix.extents)) * extentBytes)
		return f.failed(fmt.Errorf("read %s: %w", f.path(x.sumsName()), err))
	}
	if damaged > 0 {
		f.noteDamage(x.sumsName(), -1, fmt.Errorf("%d records: %w", damaged, errDamaged), damaged)
	}
	repaired := f.repair(x, ix, &st)
	f.mu.Lock()
	x.index = *ix
	f.counts.index.Add(int64(len(x.extents)) * extentBytes)
	f.indexes.touch(x)
	f.sample.update(x)
	f.mu.Unlock()
	if repaired {
		f.settle(x)
	}
	return nil
}

func (f *Files) readHeader(x *object) (size int64, err error) {
	name := f.path(x.sumsName())
	buf := make([]byte, headerSize)
	n, err := descriptor(x.handle.sums).ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return 0, f.failed(fmt.Errorf("read %s: %w", name, err))
	}
	h, err := decodeHeader(buf[:n])
	switch {
	case err != nil:
		return 0, err
	case h.format > formatVersion:
		f.mu.Lock()
		x.refused = true
		f.sample.update(x)
		f.mu.Unlock()
		return 0, f.failed(newer(name, h.format))
	case h.version != x.version:
		return 0, fmt.Errorf("sidecar of another object: %w", errDamaged)
	}
	return h.size, nil
}

// newIndex returns an empty index, counted in the Pool.
func (f *Files) newIndex(size int64) (*index, error) {
	n := extentsOf(size)
	if !f.reserve(n * extentBytes) {
		return nil, fmt.Errorf("index of %d bytes: %w", n*extentBytes, ErrMemory)
	}
	extents, state := make([]extent, n), f.fresh()
	for i := range extents {
		extents[i].state = state
	}
	return &index{size: size, extents: extents}, nil
}

// reserve counts n bytes in the Pool. If the RAM tier has given all that it may, it drops unused
// indexes.
func (f *Files) reserve(n int64) bool {
	for !f.opt.Pool.Claim(n) {
		f.mu.Lock()
		x := f.indexes.oldest()
		if x != nil {
			f.dropIndexLocked(x)
		}
		f.mu.Unlock()
		if x == nil {
			return false
		}
	}
	return true
}

// dropIndexLocked drops an index that load can read again; verification and the policy's state then
// begin anew.
func (f *Files) dropIndexLocked(x *object) {
	if x.extents == nil {
		return
	}
	n := int64(len(x.extents)) * extentBytes
	x.index = index{size: x.size, whole: x.whole}
	x.holes++
	f.indexes.remove(x)
	f.sample.update(x)
	f.counts.index.Add(-n)
	f.opt.Pool.Unclaim(n)
}

// repair gives the data file its size, and punches bytes that have no record. A file that may be
// read directly stays as it is, whatever its sidecar says: it was whole when it was lent.
func (f *Files) repair(x *object, ix *index, st *unix.Stat_t) bool {
	cut := st.Size != ix.size
	// Up to half a block may be the file system's own metadata.
	leaks := allocated(st) > ix.held*hearth.BlockSize+hearth.BlockSize/2
	if !cut && !leaks {
		return false
	}
	f.mu.Lock()
	who := f.readersLocked(x) // nor is it lent before the index is there
	f.mu.Unlock()
	if who != noReaders {
		return false
	}
	if cut {
		if err := unix.Ftruncate(x.handle.data, ix.size); err != nil {
			_ = f.failed(err) // counted
		}
	}
	if !leaks {
		return true
	}
	for first := int64(0); first < ix.blocks(); {
		n := int64(0)
		for first+n < ix.blocks() && !ix.holds(first+n) {
			n++
		}
		if n > 0 {
			f.punchData(x, first, n)
		}
		first += n + 1
	}
	return true
}

// condemn dooms an object whose sidecar is damaged.
func (f *Files) condemn(x *object, err error) {
	f.mu.Lock()
	x.doomed = true
	f.sample.update(x)
	f.mu.Unlock()
	f.noteDamage(x.sumsName(), -1, err, 1)
}

func (f *Files) noteDamage(name string, block int64, err error, n int64) {
	f.counts.damaged.Add(n)
	if f.opt.Events.Damaged != nil {
		f.opt.Events.Damaged(f.path(name), block, err)
	}
}

// failed counts an error before it is returned.
func (f *Files) failed(err error) error {
	f.counts.errors.Add(1)
	return err
}

// settle updates the object's allocated bytes and returns by how much they grew. The caller holds a
// ref.
func (f *Files) settle(x *object) (grown int64) {
	x.accounting.Lock()
	defer x.accounting.Unlock()
	var data, side unix.Stat_t
	if unix.Fstat(x.handle.data, &data) != nil || unix.Fstat(x.handle.sums, &side) != nil {
		return 0
	}
	now := allocated(&data) + allocated(&side)
	f.mu.Lock()
	defer f.mu.Unlock()
	grown = now - x.alloc
	x.alloc = now
	f.used.Add(grown)
	return grown
}
