// Package sparse keeps large objects on a local file system. Each object is one sparse file with
// exact bytes at exact offsets, so a file without holes is the object and can be lent to the
// kernel.
//
// Beside the data file VERSION.data lies a sidecar VERSION.sums: a header, then one record of fixed
// size per block with the checksums of its sixteen pieces.
//
//   - Put writes the data (O_DIRECT, many blocks in one write), then the records. A block is held
//     when its record is valid. A write that was cut short, by kill -9 or by a full disk, leaves
//     blocks that are not held.
//   - Get reads the covering 64 KiB pieces into a pooled aligned View, compares them with the
//     record, and lends a slice. A mismatch drops the block: cache data may vanish at a power
//     failure and may rot, but it is never wrong.
//   - Open lists names and sizes only. An object's sidecar is read at its first use, into an index
//     of twelve bytes per extent (which blocks are held, which were verified since, the policy's
//     state). The checksums stay in the sidecar: a Get reads its record again, mostly from the page
//     cache, so memory does not grow with the data. Indexes count in the Pool, and the least
//     recently used one goes when the Pool refuses. Descriptors are bounded the same way. An object
//     without memory even for its entry stays on disk, unindexed.
//
// Holes and the kernel: a file with holes is never lent, and a file that is lent never gets holes.
//
//   - As long as a file is not whole, eviction punches its extents freely.
//   - A whole file is evicted as a whole, by unlink, once nobody reads it or has it open. With
//     Options.Shared its extents are evicted one by one, as before.
//   - EvictTo reads what goes before it goes, and gives it away.
//   - LocalFile lends a file that is whole and verified. A block is verified if this process wrote
//     it by O_DIRECT: it computed the checksums from the bytes that it wrote, and the device took
//     them. It is also verified if this process read it back from the device and found it right.
//     Other blocks are not: a page-cache write may still fail later, and a write of an earlier
//     process may have been lost with the power. A whole file that is not verified yet is a miss,
//     and one paced pass verifies it in the background.
//   - While a file is lent it is not written, punched or unlinked. If a read finds damage in it, the
//     block is lost to Get and to later LocalFiles, and its bytes stay.
//   - The same holds until the kernel says that nobody else has the file open (lent.go). A mapping
//     outlives its release, and files that an earlier Files or a killed process lent are still open.
//     So the kernel is asked about each file that this Files did not make, before its first change.
//     If a file system cannot tell, the file is only unlinked, which leaves readers their bytes.
//
// Names that are not ours are left alone and counted.
package sparse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
)

var (
	// ErrBusy is returned by Put if an object takes no bytes at the moment: it is being removed, or
	// the extent is being evicted.
	ErrBusy = errors.New("busy")
	// ErrLent is returned by Put for a missing block of a file that may be read directly, and so
	// must not change. The block must be kept elsewhere.
	ErrLent = errors.New("its file is lent")
	// ErrMemory means that the Pool has no room for an index.
	ErrMemory = errors.New("no memory for the index")
)

// Options say where the files lie and how they are used. Dir and Pool are required; the rest may be
// zero.
type Options struct {
	// Dir is made if it is missing. Nobody else may use it at the same time; cache/disk holds the
	// lock.
	Dir string
	// Pool gives the memory of Views and counts the indexes.
	Pool *hearth.Pool
	// Alloc waits for memory of the Pool, for Get. Default: Pool.Alloc.
	Alloc func(ctx context.Context, n int) (*hearth.View, error)
	// Fresh returns the policy's state of a new block, Touch the state after a hit. Both get the
	// time from Now. Default: the time itself.
	Fresh func(now uint32) uint32
	Touch func(state, now uint32) uint32
	// Now is a monotonic clock in seconds. Default: the time since Open.
	Now func() uint32
	// Shared means that some of an object's extents may have to stay while others go, as in a ring
	// whose nodes own one each. Then no file is evicted as a whole, unless the file system cannot
	// punch holes.
	Shared bool
	// MaxOpen bounds the objects whose two descriptors stay open while nobody uses them. Default
	// 256.
	MaxOpen int
	// VerifyRate paces the verification of whole files, in bytes per second.
	// Default 256 MiB/s: a 5 GiB file in 20 s, with most of a device left to readers.
	VerifyRate int64
	// Buffered means never O_DIRECT, for file systems where it misbehaves. A mere refusal of
	// O_DIRECT is noticed without it.
	Buffered bool
	// Events are called without locks, and must not block for long.
	Events Events
}

// Events tell what happened in the background; each may be nil.
type Events struct {
	// Damaged means that a block, or with -1 the whole object, was dropped because the file did not
	// hold what was written there.
	Damaged func(file string, block int64, err error)
	// Mended means that a damaged file was repaired.
	Mended device.Mended
	// Verified means that the verification pass over an object ended; whole means that the object
	// can be lent now.
	Verified func(version [16]byte, whole bool)
}

// Files is a directory of sparse files. Its methods are safe for concurrent use.
type Files struct {
	opt     Options
	dir     int         // descriptor of Dir: names are resolved below it
	direct  atomic.Bool // O_DIRECT works here, as far as is known
	used    atomic.Int64
	counts  counters
	limiter *rate.Limiter
	ask     func(fd int) readers // asker's, or a test's
	ctx     context.Context      // ended by Close
	cancel  context.CancelCauseFunc
	passes  sync.WaitGroup // the verification pass

	// mu guards everything below, and the fields of objects that say so. It is taken after an
	// object's accounting lock and before the Pool's, and never held across I/O.
	mu      sync.Mutex
	objects map[[16]byte]*object
	sample  sampler
	handles recency // objects with open descriptors
	indexes recency // objects with an index in memory
	// unindexed objects are on disk, and there is no memory for them.
	unindexed unindexed
	queue     []*object
	passing   bool // the verification pass runs; it ends when queue is empty
	// waiting are doomed objects that are still read. sweptAt is when they were last checked, by
	// Options.Now.
	waiting []*object
	sweptAt uint32
	pins    int // sum of refs
	closed  bool
	drained chan struct{} // closed when closed and pins is 0
}

// Open lists the directory. It reads no file but FORMAT.
func Open(opt Options) (*Files, error) {
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make cache directory: %w", err)
	}
	if err := checkFormat(opt.Dir, opt.Events.Mended); err != nil {
		return nil, err
	}
	dir, err := unix.Open(opt.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cache directory %s: %w", opt.Dir, err)
	}
	opt = opt.withDefaults()
	f := &Files{
		opt: opt, dir: dir, ask: asker(dir),
		limiter: rate.NewLimiter(rate.Limit(opt.VerifyRate), hearth.BlockSize),
		objects: make(map[[16]byte]*object),
		sample:  sampler{shared: opt.Shared},
		drained: make(chan struct{}),
	}
	f.handles.which, f.indexes.which = ofHandles, ofIndexes
	f.direct.Store(!opt.Buffered)
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	if err := f.scan(); err != nil {
		unix.Close(dir)
		return nil, err
	}
	return f, nil
}

func (opt Options) withDefaults() Options {
	if opt.Now == nil {
		began := time.Now()
		opt.Now = func() uint32 { return uint32(time.Since(began) / time.Second) }
	}
	if opt.Fresh == nil {
		opt.Fresh = func(now uint32) uint32 { return now }
	}
	if opt.Touch == nil {
		opt.Touch = func(_, now uint32) uint32 { return now }
	}
	if opt.Alloc == nil {
		opt.Alloc = opt.Pool.Alloc
	}
	if opt.MaxOpen <= 0 {
		opt.MaxOpen = 256
	}
	if opt.VerifyRate <= 0 {
		opt.VerifyRate = 256 << 20
	}
	return opt
}

func (f *Files) fresh() uint32 { return f.opt.Fresh(f.opt.Now()) }

// errClosed is the error of calls that Close interrupts.
var errClosed = fmt.Errorf("sparse files: %w", fs.ErrClosed)

// Close ends the verification pass, waits for calls in flight and closes all descriptors. Lent
// files stay readable, and may be released later. Those that were to be unlinked then are there
// again after Open. Everything is on its way to the disk already, so nothing is flushed.
func (f *Files) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return errClosed
	}
	f.closed = true
	if f.pins == 0 {
		close(f.drained)
	}
	f.mu.Unlock()
	f.cancel(errClosed)
	f.passes.Wait()
	<-f.drained

	f.mu.Lock()
	var open []*handle
	for _, x := range f.objects {
		open = append(open, f.takeHandleLocked(x))
		f.dropIndexLocked(x)
		f.opt.Pool.Unclaim(objectBytes)
	}
	f.objects, f.waiting = nil, nil
	f.mu.Unlock()
	for _, h := range open {
		h.close()
	}
	if err := unix.Close(f.dir); err != nil {
		return fmt.Errorf("close cache directory %s: %w", f.opt.Dir, err)
	}
	return nil
}

// Used returns the bytes that the files occupy on the device (st_blocks), data and sidecars, until
// their last user is gone. It first unlinks the files whose last reader has gone.
func (f *Files) Used() int64 {
	f.sweep()
	return f.used.Load()
}

// Has reports whether the block is held, without reading it. The first call for an object reads its
// sidecar.
func (f *Files) Has(id hearth.ID) bool {
	x, err := f.acquire(context.Background(), id.Version)
	if err != nil {
		return false
	}
	defer f.unpin(x)
	f.mu.Lock()
	defer f.mu.Unlock()
	return x.holds(id.Index)
}

// Knows is Has without any read. known is false if Has must read the sidecar.
func (f *Files) Knows(id hearth.ID) (held, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.objects[id.Version]
	if f.closed || x == nil || x.reaping || x.doomed && x.opens == 0 {
		return false, true
	}
	return x.extents != nil && x.holds(id.Index), x.extents != nil
}

// Stats are figures since Open; sizes are in bytes.
type Stats struct {
	// Objects counts the objects, and Units the units that eviction can choose from.
	Objects, Units int64
	// Used is Files.Used.
	Used int64
	// Unindexed objects lie on disk, too, and count in Used. There is no memory to hold them: they
	// are misses until Recall. UnindexedBytes are the bytes of these.
	Unindexed, UnindexedBytes int64
	// Open and Indexed count objects with open descriptors and with an index.
	Open, Indexed int64
	// IndexBytes counts in the Pool, beside Views.
	IndexBytes int64
	// Foreign counts names in the directory that are not ours. Orphans counts files that Open
	// removed because their other half was missing.
	Foreign, Orphans int64
	// Reads counts Gets that were answered, ReadBytes their bytes. DeviceBytes were read for them.
	Reads, ReadBytes, DeviceBytes int64
	// Writes counts blocks, WriteBytes their bytes.
	Writes, WriteBytes int64
	// Damaged counts blocks and objects that were dropped because they were not what was written.
	Damaged int64
	// Errors counts failed system calls.
	Errors int64
	// Evicted is the bytes freed by eviction, and by the removal of damaged objects.
	Evicted int64
	// VerifiedBytes were found right by verification passes. Handed counts the files that are lent
	// now.
	VerifiedBytes, Handed int64
}

type counters struct {
	foreign, orphans              atomic.Int64
	reads, readBytes, deviceBytes atomic.Int64
	writes, writeBytes            atomic.Int64
	damaged, errors, evicted      atomic.Int64
	verified, handed, index       atomic.Int64
}

// Stats returns the present figures.
func (f *Files) Stats() Stats {
	f.mu.Lock()
	s := Stats{
		Objects: int64(len(f.objects)), Units: f.sample.total(),
		Open: int64(f.handles.list.Len()), Indexed: int64(f.indexes.list.Len()),
		Unindexed: f.unindexed.objects, UnindexedBytes: f.unindexed.bytes,
	}
	f.mu.Unlock()
	c := &f.counts
	s.Used, s.IndexBytes = f.used.Load(), c.index.Load()
	s.Foreign, s.Orphans = c.foreign.Load(), c.orphans.Load()
	s.Reads, s.ReadBytes, s.DeviceBytes = c.reads.Load(), c.readBytes.Load(), c.deviceBytes.Load()
	s.Writes, s.WriteBytes = c.writes.Load(), c.writeBytes.Load()
	s.Damaged, s.Errors, s.Evicted = c.damaged.Load(), c.errors.Load(), c.evicted.Load()
	s.VerifiedBytes, s.Handed = c.verified.Load(), c.handed.Load()
	return s
}
