package segment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

// ErrDeclined is returned by Append if the Pool has no memory to index some blocks. The other
// blocks of the batch are kept.
var ErrDeclined = errors.New("no memory for the index")

// Options of a Log.
type Options struct {
	// Dir is made if it is missing. It belongs to the Log alone: a file with the name of one of its
	// own is removed if it is not valid. The caller holds a lock on it.
	Dir string
	// Pool counts the Views of Get, the index, and the write buffer.
	Pool *hearth.Pool
	// Alloc waits for memory of the Pool, for Get; nil means Pool.Alloc.
	Alloc func(ctx context.Context, n int) (*hearth.View, error)
	// Budget in bytes of the directory; it only sets the size of segments.
	Budget int64
	// SegmentSize in bytes; at most 256 MiB. 0 means 16 MiB, and more from a Budget of 64 GiB on,
	// so that there are about 4,096 files.
	SegmentSize int64
	// OpenFiles bounds the segments held open while nobody reads them; 0 means 512.
	OpenFiles int
	// Touch returns the next State of a block that Get found; nil leaves the State. It is called
	// under a lock of the index, so it must only do arithmetic.
	Touch func(state uint32) uint32
	// Fresh is the State of blocks found by Open.
	Fresh uint32
	// Step is called now and then during Open, Recall and Shed, which may take long, so that a
	// watcher sees progress. It may be called on any goroutine, and must not block. May be nil.
	Step func()
	// Damaged is called when Get or Compact dropped a block whose bytes are not what was written.
	// It must not block. May be nil.
	Damaged func(file string, cause error)
	// Mended is called when a damaged file was repaired.
	Mended device.Mended

	tap     func(change) error      // lets tests see and forbid changes
	tapSync func(name string) error // the same for syncs
}

// Log is the packed store of one directory. All methods are safe for many
// goroutines.
type Log struct {
	dir       *directory
	pool      *hearth.Pool
	alloc     func(ctx context.Context, n int) (*hearth.View, error)
	index     *record.Index
	fresh     uint32 // the State of blocks found on disk
	deaths    *deaths
	touch     func(uint32) uint32
	stepped   func() // nil means that nobody watches
	maxOpen   int64
	slots     atomic.Pointer[[]*segment] // a nil entry is free; replaced as a whole
	slotsMu   sync.Mutex                 // guards freeSlots and the replacement of slots
	freeSlots []uint32

	turn   chan struct{} // capacity 1; whoever has put into it owns writer
	writer writer

	clock     atomic.Int64 // ticks at each use of a file
	opened    atomic.Int64 // files of segments
	used      atomic.Int64 // allocated bytes of segments
	pageBytes atomic.Int64 // of segment.pages
	closed    atomic.Bool
	ending    sync.RWMutex // held for reading by drop, so that Close comes before or after it
	settler   settler
	counters  counters
}

type counters struct {
	appended, appendedBytes, written, declined   atomic.Int64
	hits, hitBytes, read, corrupt, evicted       atomic.Int64
	compacted, rewritten, recovered, opened, bad atomic.Int64
	unindexed, unindexedBytes                    atomic.Int64
	damaged                                      func(file string, cause error) // nil means that nobody is told
}

// Stats are a Log's figures since Open.
type Stats struct {
	Blocks   int64 // held now
	Used     int64 // allocated bytes on disk, also of unlinked files that are still read
	Memory   int64 // bytes of RAM for index and page counts
	Segments int   // files
	// Unindexed blocks are on disk, and count in Used, but there is no memory to index them: they
	// are misses until Recall. UnindexedBytes are the bytes of their records.
	Unindexed, UnindexedBytes int64

	Appended, AppendedBytes int64 // blocks kept, and their bytes
	Written                 int64 // bytes written: headers, padding, footers, rewriting
	Declined                int64 // blocks without memory for the index
	Hits, HitBytes, Read    int64 // Gets answered, bytes returned, bytes read from the device for them
	Corrupt                 int64 // blocks dropped because they did not verify
	Evicted                 int64
	Compacted, Rewritten    int64 // segments, and bytes copied for them
	Recovered               int64 // segments that Open found without a footer
	Damaged                 int64 // segments that Open removed
	OpenRead                int64 // bytes that Open read
}

// Open opens or makes the log in a directory. It reads footers only, and the
// record headers of a segment that was not closed.
func Open(o Options) (*Log, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w", o.Dir, err)
	}
	dir := &directory{Path: o.Dir, Tap: o.tap, TapSync: o.tapSync, Mended: o.Mended}
	if err := dir.Clear(ours(), deathsTemp); err != nil {
		return nil, err
	}
	if err := dir.Probe(); err != nil {
		return nil, err
	}
	size := o.SegmentSize
	if size == 0 {
		size = segmentSize(o.Budget)
	}
	l := &Log{dir: dir, pool: o.Pool, alloc: o.Alloc, index: record.NewIndex(o.Pool), fresh: o.Fresh, deaths: &deaths{dir: dir},
		touch: o.Touch, stepped: o.Step, maxOpen: int64(o.OpenFiles), turn: make(chan struct{}, 1)}
	if l.alloc == nil {
		l.alloc = o.Pool.Alloc
	}
	if l.maxOpen == 0 {
		l.maxOpen = 512
	}
	l.slots.Store(&[]*segment{})
	l.counters.damaged = o.Damaged
	if err := l.writer.init(o.Pool, size); err != nil {
		return nil, err
	}
	l.settler.start(l)
	if err := l.load(); err != nil {
		_ = l.shut() // the error of load is returned
		return nil, err
	}
	return l, nil
}

// segmentSize keeps the number of files near 4,096 for large budgets and near sixteen for tiny
// ones. Within that, smaller is better: an open segment is read whole after a crash.
func segmentSize(budget int64) int64 {
	size := int64(16 << 20)
	for size < 256<<20 && budget/4096 > size {
		size *= 2
	}
	for budget > 0 && size > 4<<20 && budget/16 < size {
		size /= 2
	}
	return size
}

// Close writes the footer of the open segment and closes all files. Gets in flight return their
// bytes or fs.ErrClosed.
func (l *Log) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.closed.Load() {
		return nil
	}
	err := l.sealLocked()
	return errors.Join(err, l.shut())
}

func (l *Log) shut() error {
	err := l.settler.stop()
	l.ending.Lock()
	l.closed.Store(true)
	l.ending.Unlock()
	for _, s := range *l.slots.Load() {
		if s == nil {
			continue
		}
		s.mu.Lock()
		if s.users == 0 {
			s.closeLocked()
		}
		s.mu.Unlock()
	}
	l.deaths.close()
	l.index.Drop()
	l.pool.Unclaim(l.pageBytes.Swap(0))
	l.pool.Unreserve(l.writer.memory)
	l.writer.stage, l.writer.footer = nil, nil
	return err
}

// Sync returns when what was appended and evicted before is on the device.
func (l *Log) Sync() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.closed.Load() {
		return l.errClosed("sync")
	}
	l.settler.wait()
	err := l.settler.unsynced()
	if s := l.writer.segment; s != nil {
		err = errors.Join(err, s.sync(l.writer.file))
	}
	return errors.Join(err, l.deaths.sync(), l.dir.Sync())
}

func (l *Log) errClosed(verb string) error {
	return fmt.Errorf("%s %s: %w", verb, l.dir.Path, fs.ErrClosed)
}

// Has reports whether the block is held, without reading it.
func (l *Log) Has(id hearth.ID) bool {
	_, ok := l.index.Get(id, nil)
	return ok
}

// SetState replaces a block's State, and reports whether the block is held.
func (l *Log) SetState(id hearth.ID, state uint32) bool { return l.index.SetState(id, state) }

// Used returns the allocated bytes of all files, also of unlinked ones that are still read.
func (l *Log) Used() int64 {
	if l.closed.Load() {
		return l.used.Load()
	}
	return l.used.Load() + l.deaths.bytes()
}

// Stats returns the present figures.
func (l *Log) Stats() Stats {
	c := &l.counters
	unindexed, bytes := c.unindexed.Load(), c.unindexedBytes.Load() // first, since Recall counts there last
	s := Stats{Blocks: l.index.Len(), Used: l.Used(), Memory: l.index.Memory() + l.pageBytes.Load(),
		Appended: c.appended.Load(), AppendedBytes: c.appendedBytes.Load(), Written: c.written.Load(),
		Declined: c.declined.Load(), Hits: c.hits.Load(), HitBytes: c.hitBytes.Load(), Read: c.read.Load(),
		Corrupt: c.corrupt.Load(), Evicted: c.evicted.Load(), Compacted: c.compacted.Load(),
		Rewritten: c.rewritten.Load(), Recovered: c.recovered.Load(), Damaged: c.bad.Load(), OpenRead: c.opened.Load(),
		Unindexed: unindexed, UnindexedBytes: bytes}
	for _, seg := range *l.slots.Load() {
		if seg != nil {
			s.Segments++
		}
	}
	return s
}

// step tells the watcher that a long call makes progress.
func (l *Log) step() {
	if l.stepped != nil {
		l.stepped()
	}
}

// settler syncs closed segments behind the writer. It keeps the first error of background work
// until somebody asks: once for the writer, and once for Sync. So Sync does not call durable what
// Append heard was not.
type settler struct {
	queue  chan *segment
	open   sync.WaitGroup // segments in the queue or in hand
	done   chan struct{}
	mu     sync.Mutex // guards the rest
	err    error
	unsaid error // not yet returned by Sync
}

// start runs the one goroutine of a Log; stop waits for it.
func (t *settler) start(l *Log) {
	// Four segments: a writer so far ahead of its device has to wait.
	t.queue, t.done = make(chan *segment, 4), make(chan struct{})
	go func() {
		defer close(t.done)
		for s := range t.queue {
			t.fail(l.settle(s))
			t.open.Done()
		}
	}()
}

func (l *Log) settle(s *segment) error {
	f, err := s.acquire()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // evicted meanwhile
	}
	if err != nil {
		return err
	}
	defer s.release()
	return l.makeLast(s, f)
}

// makeLast makes a segment and its name durable. Nobody writes to it meanwhile.
func (l *Log) makeLast(s *segment, f *file) error {
	err := errors.Join(s.sync(f), l.dir.Sync())
	s.mu.Lock()
	s.lasts = err == nil
	s.mu.Unlock()
	return err
}

func (t *settler) add(s *segment) {
	t.open.Add(1)
	t.queue <- s
}

func (t *settler) fail(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	if t.unsaid == nil {
		t.unsaid = err
	}
}

// failure returns the kept error, and clears it.
func (t *settler) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.err
	t.err = nil
	return err
}

// unsynced returns the kept error to Sync; then nobody else needs to hear of it.
func (t *settler) unsynced() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.unsaid
	t.err, t.unsaid = nil, nil
	return err
}

func (t *settler) wait() { t.open.Wait() }

func (t *settler) stop() error {
	close(t.queue)
	<-t.done
	return t.failure()
}

// aligned returns n bytes that O_DIRECT accepts; n is a multiple of a page.
func aligned(n int) []byte { return device.Aligned(n) }

// wait gets the turn unless ctx ends first.
func (l *Log) wait(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait to write %s: %w", l.dir.Path, context.Cause(ctx))
	}
}
