package sparse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

// Get returns bytes [off, off+n) of a block, verified, or ErrMiss. It may wait for memory, and for
// another caller that opens the same object, at most until ctx ends.
func (f *Files) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	x, err := f.acquire(ctx, b.Object.Version)
	if err != nil {
		return nil, err
	}
	defer f.unpin(x)
	if b.Object.Size != x.size {
		return nil, hearth.ErrMiss
	}
	v, err := f.read(ctx, x, span{index: b.Index, off: off, n: n, hit: true})
	if err == nil {
		f.counts.reads.Add(1)
		f.counts.readBytes.Add(int64(n))
	}
	return v, err
}

// span is a range of one block.
type span struct {
	index  int64
	off, n int
	// hit means that the policy counts the read as a use.
	hit bool
	// last means that the block is about to be evicted. The read waits for no memory, and a bad block
	// is only reported.
	last bool
	// flushed means that the page cache was written and dropped before, so that even a buffered
	// read comes from the device.
	flushed bool
}

// read reads the pieces that cover s, verifies them and lends the range. The caller holds a ref.
func (f *Files) read(ctx context.Context, x *object, s span) (*hearth.View, error) {
	holes, known, err := f.hit(x, s)
	if err != nil {
		return nil, err
	}
	var want sums
	if err := f.readRecord(x, s.index, &want); err != nil {
		return nil, f.bad(x, s, holes, err)
	}
	length := x.blockLen(s.index)
	lo := s.off &^ (hearth.PieceSize - 1)
	hi := min((s.off+s.n+hearth.PieceSize-1)&^(hearth.PieceSize-1), length)
	v, err := f.alloc(ctx, s, alignUp(hi-lo))
	if err != nil {
		return nil, err
	}
	direct, err := f.readData(x, v.Bytes(), s.index*hearth.BlockSize+int64(lo), hi-lo)
	if err == nil && !matches(v.Bytes()[:hi-lo], want[lo/hearth.PieceSize:]) {
		err = fmt.Errorf("bytes %d-%d: %w", lo, hi, errDamaged)
	}
	if err != nil {
		v.Release()
		return nil, f.bad(x, s, holes, err)
	}
	f.counts.deviceBytes.Add(int64(v.Len()))
	if !known && hi-lo == length && (direct || s.flushed) {
		f.vouch(x, s.index, holes)
	}
	got := v
	if s.off != lo || s.n != v.Len() {
		defer v.Release()
		got = v.Slice(s.off-lo, s.n)
	}
	if s.off == lo && s.off+s.n == hi {
		sums := slices.Clone(want[lo/hearth.PieceSize : piece.Count(hi)])
		got.Sums().Store(&sums)
	}
	return got, nil
}

func (f *Files) alloc(ctx context.Context, s span, n int) (*hearth.View, error) {
	if !s.last {
		return f.opt.Alloc(ctx, n)
	}
	if v := f.opt.Pool.TryAlloc(n); v != nil {
		return v, nil
	}
	return nil, hearth.ErrMiss
}

// hit looks the block up. known means that it was verified already.
func (f *Files) hit(x *object, s span) (holes uint64, known bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !x.holds(s.index) {
		return 0, false, hearth.ErrMiss
	}
	if s.off < 0 || s.n <= 0 || s.off+s.n > x.blockLen(s.index) {
		return 0, false, fmt.Errorf("read bytes %d+%d of a block of %d: %w", s.off, s.n, x.blockLen(s.index), unix.EINVAL)
	}
	e := &x.extents[s.index/hearth.ExtentBlocks]
	if s.hit {
		now := f.opt.Now()
		x.state = f.opt.Touch(x.state, now)
		e.state = f.opt.Touch(e.state, now)
	}
	return x.holes, e.good&bit(s.index) != 0, nil
}

// readRecord reads a block's record. That costs a microsecond from the page cache, and saves 128
// bytes of memory per block.
func (f *Files) readRecord(x *object, index int64, s *sums) error {
	var buf [recordSize]byte
	n, err := descriptor(x.handle.sums).ReadAt(buf[:], recordOffset(index))
	if n == recordSize {
		if decodeRecord(buf[:], x.id(index), s) {
			return nil
		}
		return fmt.Errorf("record in %s: %w", x.sumsName(), errDamaged)
	}
	if err == io.EOF {
		err = errDamaged
	}
	return fmt.Errorf("record in %s: %w", x.sumsName(), err)
}

// readData reads n bytes into buf, which is longer, as O_DIRECT needs.
func (f *Files) readData(x *object, buf []byte, off int64, n int) (direct bool, err error) {
	got, err := pread(x.handle.data, buf, off)
	direct = x.handle.direct
	if direct && err == unix.EINVAL { // opened, but refused for this length or memory
		direct = false
		f.direct.Store(false)
		var plain int
		if plain, err = f.openPlain(x); err == nil {
			got, err = descriptor(plain).ReadAt(buf[:n], off)
			unix.Close(plain)
		}
	}
	if err == nil && got < n {
		err = fmt.Errorf("%d of %d bytes at %d: %w", got, n, off, errDamaged)
	}
	return direct, err
}

// openPlain opens the data file without O_DIRECT. The name stays the object's as long as the caller
// holds a ref.
func (f *Files) openPlain(x *object) (int, error) {
	return unix.Openat(f.dir, x.dataName(), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func matches(data []byte, want []uint64) bool {
	for i := range piece.Count(len(data)) {
		if piece.Sum(data, i) != want[i] {
			return false
		}
	}
	return true
}

// vouch notes that a whole block was read from the device and found right.
func (f *Files) vouch(x *object, index int64, holes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x.holes == holes && x.holds(index) {
		x.add(index, true)
	}
}

// bad reports a block that a read has found bad, and drops it unless it is about to be evicted.
func (f *Files) bad(x *object, s span, holes uint64, err error) error {
	if !s.last {
		return f.lose(x, s.index, holes, err)
	}
	f.mu.Lock()
	stands := x.holes == holes && x.holds(s.index)
	f.mu.Unlock()
	if !stands {
		return hearth.ErrMiss
	}
	return f.damaged(x, s.index, err)
}

// lose drops a block whose bytes or record are damaged, or cannot be read. If the index changed
// during the read, the bytes may just have been punched: a miss. The bytes of a file that may be
// read directly stay. Damage is a miss, too. An error of the device is returned, since a device
// that fails often is to be ejected.
func (f *Files) lose(x *object, index int64, holes uint64, err error) error {
	f.mu.Lock()
	if x.holes != holes || !x.holds(index) {
		f.mu.Unlock()
		return hearth.ErrMiss
	}
	e := &x.extents[index/hearth.ExtentBlocks]
	x.remove(e, bit(index))
	claimed := e.writers == 0
	if claimed {
		e.writers = punching
	}
	who := f.readersLocked(x)
	f.sample.update(x)
	f.mu.Unlock()
	if claimed {
		f.punch(x, run{first: index, n: 1}, who)
		f.mu.Lock()
		e.writers = 0
		f.mu.Unlock()
	}
	return f.damaged(x, index, err)
}

// damaged counts and reports a bad block. The error is that of its read.
func (f *Files) damaged(x *object, index int64, err error) error {
	f.noteDamage(x.dataName(), index, err, 1)
	if errors.Is(err, errDamaged) {
		return hearth.ErrMiss
	}
	return f.failed(fmt.Errorf("read %s: %w", f.path(x.dataName()), err))
}
