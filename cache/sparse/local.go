package sparse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// LocalFile lends a whole, verified object as a file opened read-only, as fuse.LocalFiler says.
// ErrMiss means that it is not whole, being removed, or not verified yet; then its verification
// starts in the background.
func (f *Files) LocalFile(o *hearth.Object) (file *os.File, release func(), err error) {
	x, err := f.acquire(context.Background(), o.Version)
	if err != nil {
		return nil, nil, err
	}
	defer f.unpin(x)
	if !f.handOut(x, o.Size) {
		return nil, nil, hearth.ErrMiss
	}
	file, err = f.openLocal(x)
	if errors.Is(err, errDamaged) || errors.Is(err, unix.ENOENT) {
		f.condemn(x, err) // somebody else changed the file
	}
	if err != nil {
		f.takeBack(x)
		return nil, nil, f.failed(err)
	}
	var once sync.Once
	return file, func() { once.Do(func() { f.takeBack(x) }) }, nil
}

// Whole reports whether an object is whole, and whether LocalFile would lend it at once, as far as
// memory tells. Nothing is read, and no verification begins.
func (f *Files) Whole(o *hearth.Object) (whole, verified bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.objects[o.Version]
	if f.closed || x == nil || x.doomed || x.size != o.Size || !x.whole {
		return false, false
	}
	return true, x.extents != nil && x.good == x.blocks() && x.writing == 0
}

// handOut counts an open if the file may be lent. From here on nobody writes to it or punches it,
// and until takeBack nobody unlinks it.
func (f *Files) handOut(x *object, size int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x.size != size || !x.whole || x.doomed || x.writing > 0 {
		return false
	}
	if x.good < x.blocks() {
		f.verifyLocked(x)
		return false
	}
	x.opens++
	x.lent = true // even after takeBack: a mapping stays
	f.counts.handed.Add(1)
	x.state = f.opt.Touch(x.state, f.opt.Now())
	f.sample.update(x)
	return true
}

func (f *Files) takeBack(x *object) {
	f.mu.Lock()
	x.opens--
	f.counts.handed.Add(-1)
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.sample.update(x)
	x.refs++
	f.pins++
	f.mu.Unlock()
	f.unpin(x)
}

func (f *Files) openLocal(x *object) (*os.File, error) {
	name := f.path(x.dataName())
	fd, err := unix.Openat(f.dir, x.dataName(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != x.size {
		unix.Close(fd)
		return nil, fmt.Errorf("open %s: size %d, not %d: %w", name, st.Size, x.size, errDamaged)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// verifyLocked queues a whole object for verification. One pass runs at a time, so that a thousand
// files are not all read at once; it ends with its queue.
func (f *Files) verifyLocked(x *object) {
	if x.queued || f.closed {
		return
	}
	x.queued = true
	f.queue = append(f.queue, x)
	if !f.passing {
		f.passing = true
		f.passes.Go(f.pass)
	}
}

func (f *Files) pass() {
	for {
		f.mu.Lock()
		if len(f.queue) == 0 || f.closed {
			f.passing, f.queue = false, nil
			f.mu.Unlock()
			return
		}
		x := f.queue[0]
		f.queue = f.queue[1:]
		f.mu.Unlock()

		whole := f.verify(x.version)
		f.mu.Lock()
		x.queued = false
		f.mu.Unlock()
		if f.opt.Events.Verified != nil && f.ctx.Err() == nil {
			f.opt.Events.Verified(x.version, whole)
		}
	}
}

// verify reads every block that is not verified yet, at the configured pace, and reports whether
// the object can be lent. Between two blocks it holds nothing, so it never delays an eviction. A
// damaged block is dropped. Another error ends the pass, and the next LocalFile goes on where it
// stopped.
func (f *Files) verify(version [16]byte) (whole bool) {
	flushed := false
	for index := int64(0); ; index++ {
		x, err := f.acquire(f.ctx, version)
		if err != nil {
			return false
		}
		if index == 0 && !x.handle.direct {
			flushed = flush(x.handle.data)
		}
		index = f.unverified(x, index)
		if index == x.blocks() {
			f.mu.Lock()
			whole = x.whole && x.good == x.held
			f.mu.Unlock()
			f.unpin(x)
			return whole
		}
		n := x.blockLen(index)
		err = f.check(x, span{index: index, n: n, flushed: flushed})
		f.unpin(x)
		if err != nil || f.limiter.WaitN(f.ctx, n) != nil {
			return false
		}
	}
}

// unverified returns the first block from index on that is held and not verified, or the number of
// blocks.
func (f *Files) unverified(x *object, index int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ; index < x.blocks(); index++ {
		e := &x.extents[index/hearth.ExtentBlocks]
		if e.have&^e.good&bit(index) != 0 {
			break
		}
	}
	return index
}

func (f *Files) check(x *object, s span) error {
	v, err := f.read(f.ctx, x, s)
	if errors.Is(err, hearth.ErrMiss) {
		return nil // lost, or evicted: the others are still worth verifying
	}
	if err == nil {
		f.counts.verified.Add(int64(v.Len()))
		v.Release()
	}
	return err
}

// flush writes the page cache of a file to the device and drops it, for files without O_DIRECT.
func flush(fd int) bool {
	return unix.Fdatasync(fd) == nil && unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) == nil
}
