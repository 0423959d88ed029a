package fuse

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
)

const (
	// fewReads is how many READs may be under way and keep their buffers in memory, 1 MiB each at
	// most. It is more than the cores of a machine are busy with, and little beside any budget.
	fewReads = 32
	// letGoFrom is the size in bytes from which giving a buffer back is worth a system call. In
	// Go's heap, smaller buffers share pages with other data.
	letGoFrom = 32 << 10
)

// Read answers READ with exactly the bytes of the range that lie in the file, or with an error. The
// kernel takes a short answer for the end of the file.
func (f *fileSystem) Read(cancel <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	f.ops.reads.Add(1)
	defer f.ops.read.since(time.Now())
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	if d, ok := f.isDraft(in.NodeId); ok {
		return f.readDraft(r, d, int64(in.Offset), buf)
	}
	rec, err := f.record(r, in.NodeId)
	if err != nil {
		return nil, f.status(r, err)
	}
	if rec.node.Dir {
		return nil, gofuse.EISDIR
	}
	o, off := &rec.node.Object, int64(in.Offset)
	n := min(int64(len(buf)), o.Size-off)
	if n <= 0 {
		return noAnswer(), gofuse.OK
	}
	if n > f.ops.largestRead.Load() {
		f.ops.largestRead.Store(n)
	}
	many := f.ops.reading.Add(1) > fewReads
	defer f.ops.reading.Add(-1)
	if many {
		letGo(buf)
	}
	r.bytes = piece{has: f.o.Reader.Has, object: o, off: off, n: int(n)}
	a, err := f.read(r, rec, off, buf[:n])
	if err != nil {
		if many {
			letGo(buf)
		}
		return nil, f.readFailed(r, rec, err)
	}
	a.many = many
	f.ops.readBytes.Add(n)
	return a, gofuse.OK
}

// letGo gives the memory of a buffer back to the kernel, which makes it zeros. go-fuse makes a
// buffer of each READ's size before it calls us, and keeps it in a pool. Over a thousand READs that
// wait for a silent origin would take a gigabyte, and keep it once they are answered.
func letGo(buf []byte) {
	at, page := uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(os.Getpagesize())
	from, to := (at+page-1)&^(page-1)-at, (at+uintptr(len(buf)))&^(page-1)-at
	if len(buf) > letGoFrom {
		_ = unix.Madvise(buf[from:to], unix.MADV_DONTNEED) // on failure the memory stays, as without the call
	}
}

func (f *fileSystem) read(ctx *request, rec *record, off int64, buf []byte) (_ *answer, err error) {
	o := &rec.node.Object
	held := ctx.bytes.held()
	if tell := f.o.Events.Read; tell != nil && o.Size <= hearth.BlockSize {
		tell(o, len(buf), held)
	}
	if held {
		ctx.hold()
	} else {
		f.ops.misses.Add(1)
		if x := rec.failure.Load(); x != nil && time.Since(x.at) < askAgain {
			return nil, x.err
		}
		defer func(start time.Time) {
			if err != nil && ctx.Err() == nil && time.Since(start) >= longWait {
				rec.failure.Store(&failure{err, time.Now()})
			}
		}(time.Now())
		if ctx.bytes.across() {
			if !ctx.take(f.across) {
				return nil, ctx.Err()
			}
			defer func() { <-f.across }()
		}
		if !ctx.take(f.misses) {
			return nil, ctx.Err()
		}
		defer func() { <-f.misses }()
	}
	if o.Size <= hearth.BlockSize {
		v, err := f.o.Reads.Get(ctx, o.Block(0), int(off), len(buf))
		if err != nil {
			return nil, err
		}
		if tell := f.o.Events.Came; tell != nil && !held {
			tell(o)
		}
		if v.Len() != len(buf) {
			v.Release()
			return nil, errShort(v.Len(), len(buf))
		}
		return f.answers.view(v), nil
	}
	return f.readLarge(ctx, rec, off, buf)
}

// readLarge reads an object of several blocks. A range in one block is lent as a View, a range in
// two is copied.
func (f *fileSystem) readLarge(ctx *request, rec *record, off int64, buf []byte) (*answer, error) {
	rd := f.readers.open(rec.node.ID, &rec.node.Object)
	defer f.readers.done(rd)
	if !ctx.bytes.across() {
		v, err := rd.ViewAt(ctx, off, len(buf))
		if err != nil {
			return nil, err
		}
		return f.answers.view(v), nil
	}
	n, err := rd.ReadAt(ctx, buf, off)
	if n == len(buf) {
		return f.answers.bytes(buf), nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = errShort(n, len(buf))
	}
	return nil, err
}

func errShort(got, want int) error { return fmt.Errorf("read %d bytes: got %d", want, got) }

// piece is the range of an object that a READ wants, and the function that says which blocks this
// node holds; nil means that it holds none.
type piece struct {
	has    func(hearth.ID) bool
	object *hearth.Object
	off    int64
	n      int
}

// across reports whether the range lies in more than one block.
func (p *piece) across() bool { return p.off%hearth.BlockSize+int64(p.n) > hearth.BlockSize }

// held reports whether the range is a hit on this node. Then the READ need not wait behind misses.
func (p *piece) held() bool {
	if p.has == nil || !p.object.Cacheable() {
		return false
	}
	for i := p.off / hearth.BlockSize; i <= (p.off+int64(p.n)-1)/hearth.BlockSize; i++ {
		if !p.has(p.object.Block(i).ID()) {
			return false
		}
	}
	return true
}

// stale bounds how often a record reports that its version is gone, since a kernel retries a failed
// page at once. All READs that find it together wait until the kernel was told. The origin may have
// erred, so after staleAgain the next one reports again.
type stale struct {
	mu sync.Mutex // guards at; held while the tree forgets and the kernel is told
	at time.Time
}

const staleAgain = time.Second

func (f *fileSystem) readFailed(r *request, rec *record, err error) gofuse.Status {
	if errors.Is(err, hearth.ErrStale) {
		rec.stale.mu.Lock()
		if time.Since(rec.stale.at) > staleAgain {
			f.forget(rec)
			rec.stale.at = time.Now()
		}
		rec.stale.mu.Unlock()
	}
	return f.status(r, err)
}

// forget has the tree forget a version that is gone. It then waits a little until the kernel has
// dropped the name, so that an open after our ESTALE finds the new version. It holds no lock that a
// notification needs, except at worst the page that is being read, and notifications for names need
// the directory only.
func (f *fileSystem) forget(rec *record) {
	told := f.news.await(rec.node.ID)
	f.tree.Forget(&rec.node.Object)
	t := time.NewTimer(staleWait)
	defer t.Stop()
	select {
	case <-told:
	case <-t.C:
	}
	f.news.leave(rec.node.ID)
}

// answers recycles the small structs that answers to READ need beside their bytes.
type answers struct{ pool sync.Pool }

// answer is a vectored answer of one piece, written straight to /dev/fuse. (Plain bytes of 1 MiB
// would first fail to fit into a pipe.)
type answer struct {
	pieces [1][]byte
	lent   *hearth.View // released once the kernel has the bytes
	many   bool         // many READs are under way: the buffer is not to be kept in memory
	pool   *sync.Pool
}

func noAnswer() *answer { return &answer{} }

func (p *answers) bytes(data []byte) *answer {
	a, ok := p.pool.Get().(*answer)
	if !ok {
		a = &answer{pool: &p.pool}
	}
	a.pieces[0] = data
	return a
}

func (p *answers) view(v *hearth.View) *answer {
	a := p.bytes(v.Bytes())
	a.lent = v
	return a
}

// Slices makes go-fuse write the pieces by writev(2).
func (a *answer) Slices() ([][]byte, gofuse.Status) { return a.pieces[:], gofuse.OK }

// Bytes is part of gofuse.ReadResult.
func (a *answer) Bytes([]byte) ([]byte, gofuse.Status) { return a.pieces[0], gofuse.OK }

// Size is part of gofuse.ReadResult.
func (a *answer) Size() int { return len(a.pieces[0]) }

// Done is called after the write of the bytes, successful or not.
func (a *answer) Done() {
	switch {
	case a.lent != nil:
		a.lent.Release()
	case a.many:
		letGo(a.pieces[0])
	}
	a.pieces[0], a.lent, a.many = nil, nil, false
	if a.pool != nil {
		a.pool.Put(a)
	}
}

// readers is an LRU of the Readers of larger objects, by node id.
type readers struct {
	src     *cache.Tier
	options cache.ReaderOptions
	max     int

	mu   sync.Mutex // guards the rest; held for a look-up, never in a Reader
	byID map[uint64]*list.Element
	list list.List // of *reader, last used first
}

type reader struct {
	*cache.Reader
	id      uint64
	version [16]byte
	busy    int // calls under way; guarded by readers.mu
}

func newReaders(max int, o *Options) *readers {
	return &readers{src: o.Reads, options: o.Reader, max: max, byID: map[uint64]*list.Element{}}
}

// open returns the Reader of a node id, which done gives back.
func (rs *readers) open(id uint64, o *hearth.Object) *reader {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if e := rs.byID[id]; e != nil && e.Value.(*reader).version == o.Version {
		rs.list.MoveToFront(e)
		rd := e.Value.(*reader)
		rd.busy++
		return rd
	}
	rd := &reader{Reader: cache.NewReader(rs.src, o, rs.options), id: id, version: o.Version, busy: 1}
	rs.byID[id] = rs.list.PushFront(rd) // an older one, of what was changed in place since, goes as the last used
	return rd
}

func (rs *readers) done(rd *reader) {
	var old []*reader
	rs.mu.Lock()
	rd.busy--
	for e := rs.list.Back(); e != nil && rs.list.Len() > rs.max; {
		before := e.Prev()
		if last := e.Value.(*reader); last.busy == 0 {
			rs.list.Remove(e)
			if rs.byID[last.id] == e {
				delete(rs.byID, last.id)
			}
			old = append(old, last)
		}
		e = before
	}
	rs.mu.Unlock()
	for _, last := range old {
		last.Close()
	}
}

// close ends all Readers. No READ is under way any more.
func (rs *readers) close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for e := rs.list.Front(); e != nil; e = e.Next() {
		e.Value.(*reader).Close()
	}
	rs.list.Init()
	clear(rs.byID)
}
