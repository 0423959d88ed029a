package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hearthfs/hearth"
)

// ReaderOptions are how a Reader reads ahead; the zero value works.
type ReaderOptions struct {
	// Ahead is the most bytes to read ahead of one sequential reader. 0 means 32 MiB, which covers
	// 20 ms at over 1 GB/s. A negative value means no read-ahead.
	Ahead int64
	// Until is the byte up to which the reader has promised to read in order. Such a reader is
	// trusted from its first read on, and nothing behind Until is read ahead. 0 means no promise.
	Until int64
	// Pool is the Pool whose free memory read-ahead watches. nil means that of src, if src is a
	// Tier over memory.
	Pool *hearth.Pool
	// Has reports whether a block lies on this node; such blocks are not read ahead. nil means
	// src's own Has, if src has a Store. Without either nothing is read ahead, since it would be
	// dropped.
	Has func(id hearth.ID) bool
}

const (
	aheadDefault = 2 * hearth.ExtentBlocks * hearth.BlockSize
	// aheadRuns is the least bound on the runs in flight for one Reader. A longer read-ahead raises
	// it to one for each extent. Each run holds a block or two in memory at a time.
	aheadRuns = 4
	// aheadSpare is the free memory in bytes below which no run begins: a quarter of the smallest
	// budget. A run in flight ends with less than aheadShort free; what is fetched at that moment
	// may be fetched again.
	aheadSpare = hearth.MinRAM / 4
	aheadShort = hearth.BlockSize
	// aheadLeast is the least that read-ahead shrinks to, in bytes, when its blocks are not kept:
	// two blocks, one of which is read while the other comes.
	aheadLeast = 2 * hearth.BlockSize
	// aheadPause is how many bytes a Reader reads without read-ahead when even aheadLeast was not
	// kept.
	aheadPause = 64 << 20
)

// errClosed is the cause with which a closed Reader's read-ahead ends.
var errClosed = errors.New("reader is closed")

// Reader reads one object. It is safe for use by many goroutines, and small. Between calls it holds
// no View, and it runs no goroutines except for read-ahead.
type Reader struct {
	src   *Tier
	o     *hearth.Object
	has   func(hearth.ID) bool
	spare func() (int64, bool)
	most  int64 // most read-ahead in bytes; 0 means none
	end   int64 // read-ahead ends before this block

	mu      sync.Mutex // guards the rest; never held while src is asked
	streams *streams   // made at the first read of an object of several blocks
	reach   int64      // present bound of read-ahead in bytes, at most most
	lost    int        // blocks in a row that came ahead and were not kept
	pause   int64      // bytes to be read before read-ahead is tried again
	runs    int
	closed  bool
	ctx     context.Context // of read-ahead; made with the first run
	cancel  context.CancelCauseFunc
	working sync.WaitGroup // Add under mu while not closed
}

// NewReader returns a Reader of an object. The caller closes it.
func NewReader(src *Tier, o *hearth.Object, opts ReaderOptions) *Reader {
	r := &Reader{src: src, o: o, has: opts.Has, spare: src.spare, end: o.Blocks()}
	if opts.Until > 0 {
		r.end, r.streams = min(r.end, (opts.Until+hearth.BlockSize-1)/hearth.BlockSize), &streams{sure: true}
	}
	if r.has == nil && src.store != nil {
		r.has = src.Has
	}
	if r.has != nil && opts.Ahead >= 0 && o.Blocks() > 1 && o.Cacheable() {
		if r.most = opts.Ahead; r.most == 0 {
			r.most = aheadDefault
		}
		r.reach = r.most
	}
	if pool := opts.Pool; pool != nil {
		r.spare = func() (int64, bool) {
			s := pool.Stats()
			return s.Budget - (s.Used - s.Idle), true
		}
	}
	return r
}

// ReadAt reads len(p) bytes from off on, as io.ReaderAt does.
func (r *Reader) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	switch {
	case off < 0:
		return 0, fmt.Errorf("read %s at %d: negative offset", r.o.Key, off)
	case len(p) == 0:
		return 0, nil
	case off >= r.o.Size:
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), r.o.Size-off)]
	if r.most > 0 {
		r.readAhead(off, int64(len(want)))
	}
	for n := 0; n < len(want); {
		got, err := r.step(ctx, want[n:], off+int64(n))
		if n += got; err != nil {
			return n, fmt.Errorf("read %s at %d: %w", r.o.Key, off+int64(n), err)
		}
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// ViewAt lends n bytes from off on, which lie in one block. It reads ahead as ReadAt does. The
// caller releases the View.
func (r *Reader) ViewAt(ctx context.Context, off int64, n int) (*hearth.View, error) {
	if r.most > 0 {
		r.readAhead(off, int64(n))
	}
	b := r.o.Block(off / hearth.BlockSize)
	v, err := r.view(ctx, b, int(off-b.Offset()), n)
	if err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", r.o.Key, off, err)
	}
	return v, nil
}

// view gets exactly n bytes of a block.
func (r *Reader) view(ctx context.Context, b hearth.Block, at, n int) (*hearth.View, error) {
	v, err := r.src.Get(ctx, b, at, n)
	if err == nil && v.Len() != n {
		err = fmt.Errorf("block %v: %d bytes instead of %d", b.ID(), v.Len(), n)
		v.Release()
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// step reads as much of p as lies in one block or in one run of missing blocks.
func (r *Reader) step(ctx context.Context, p []byte, off int64) (int, error) {
	b := r.o.Block(off / hearth.BlockSize)
	at := int(off - b.Offset())
	if at+len(p) > b.Len() && r.o.Cacheable() {
		if run := r.wanted(p, off); run > 1 {
			return r.readRun(ctx, p, off, run)
		}
	}
	n := min(len(p), b.Len()-at)
	v, err := r.view(ctx, b, at, n)
	if err != nil {
		return 0, err
	}
	defer v.Release()
	return copy(p, v.Bytes()), nil
}

// wanted counts the blocks from off on that are best fetched as one run: all are missing, and at
// least half of their bytes are wanted now. Where nothing is kept, only blocks that are wanted
// whole count.
func (r *Reader) wanted(p []byte, off int64) int {
	first, end := off/hearth.BlockSize, off+int64(len(p))
	if r.has == nil {
		if off%hearth.BlockSize != 0 {
			return 0
		}
		if end < r.o.Size {
			return len(p) / hearth.BlockSize
		}
		return int(r.o.Blocks() - first)
	}
	run := r.missing(first, (end-1)/hearth.BlockSize)
	if stop := (first + int64(run)) * hearth.BlockSize; 2*(min(stop, end)-off) < int64(run)*hearth.BlockSize {
		return 0
	}
	return run
}

// missing counts the blocks from first to last that are not on this node, up to the first that is.
func (r *Reader) missing(first, last int64) int {
	run := 0
	for i := first; i <= last && !r.has(r.o.Block(i).ID()); i++ {
		run++
	}
	return run
}

// readRun reads from a run of n blocks, of which off lies in the first.
func (r *Reader) readRun(ctx context.Context, p []byte, off int64, n int) (done int, err error) {
	first := r.o.Block(off / hearth.BlockSize)
	r.src.GetMany(ctx, first, n, func(b hearth.Block, v *hearth.View, failed error) bool {
		if failed != nil {
			err = failed
			return false
		}
		defer v.Release()
		if v.Len() != b.Len() {
			err = fmt.Errorf("block %v: %d bytes instead of %d", b.ID(), v.Len(), b.Len())
			return false
		}
		n := copy(p[done:], v.Bytes()[off+int64(done)-b.Offset():])
		done += n
		r.src.read(b.ID(), n)
		return done < len(p)
	})
	if done == 0 && err == nil {
		err = errShort
	}
	return done, err
}

// readAhead reports a read to the streams, and starts fetching what they ask for and is missing.
func (r *Reader) readAhead(off, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams == nil {
		r.streams = &streams{}
	}
	if r.pause > 0 {
		r.pause -= n
		return
	}
	if r.closed || r.runs == r.mostRuns() || !r.roomy(aheadSpare) {
		r.streams.read(off, n, 0, r.end)
		return
	}
	a := r.streams.read(off, n, r.reach, r.end)
	if a.n == 0 {
		return
	}
	if r.ctx == nil {
		r.ctx, r.cancel = context.WithCancelCause(context.Background())
	}
	r.runs++
	r.working.Add(1)
	go r.bring(a)
}

// mostRuns is how many runs may be under way.
func (r *Reader) mostRuns() int {
	return max(aheadRuns, int(r.most/(hearth.ExtentBlocks*hearth.BlockSize)))
}

// roomy reports whether n bytes of memory are unused, as far as is known.
func (r *Reader) roomy(n int64) bool {
	spare, known := r.spare()
	return !known || spare >= n
}

// bring fetches the missing blocks of a run and releases them; by then they are in the tiers. It
// ends at the first block that failed, and when two in a row were not kept. A single one may have
// been read and dropped at once.
func (r *Reader) bring(a ask) {
	defer r.working.Done()
	more := true
	for i, end := a.first, a.first+int64(a.n); i < end && more && r.ctx.Err() == nil; {
		n := r.missing(i, end-1)
		if n == 0 {
			i++
			continue
		}
		r.src.GetMany(r.ctx, r.o.Block(i), n, func(b hearth.Block, v *hearth.View, err error) bool {
			if err == nil {
				v.Release()
			}
			more = r.came(b, a, err) && r.roomy(aheadShort)
			return more
		})
		i += int64(n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs--
}

// came adapts read-ahead to whether a fetched block was kept, and returns whether to go on.
func (r *Reader) came(b hearth.Block, a ask, err error) bool {
	held := err == nil && r.has(b.ID())
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.streams.forget()
		return false
	case held:
		r.lost = 0
		r.reach = min(r.most, r.reach+hearth.BlockSize/4)
		return true
	}
	if r.lost++; r.lost < 2 {
		return true
	}
	if r.reach <= aheadLeast {
		r.pause = aheadPause
	}
	r.lost = 0
	r.reach = max(aheadLeast, min(r.reach, int64(a.n)*hearth.BlockSize)/2)
	r.streams.unask(max(a.first, b.Index-1))
	return false
}

// Close stops read-ahead and returns when it has ended. Reads go on without it.
func (r *Reader) Close() {
	r.mu.Lock()
	r.closed = true
	if r.cancel != nil {
		r.cancel(errClosed)
	}
	r.mu.Unlock()
	r.working.Wait()
}
