package disk

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/internal/device"
)

// directory is one cache directory. Readers and Put use what is atomic and the
// queue; the rest belongs to the writer goroutine.
type directory struct {
	path   string
	opt    *Options
	events *Events
	budget int64
	floor  int64
	seed   uint64 // of the placement, fixed for the life of the Store
	queue  *writeQueue
	guard  *device.Guard
	gets   sync.Pool // of *get

	volume   atomic.Pointer[volume]   // nil: nothing can be read
	ejection atomic.Pointer[ejection] // nil: in use
	writes   streak
	reads    streak
	replaced evict.Replaced
	policy   *evict.Policy // told of each request; its memory is counted in the Pool
	scrub    scrubbing
	foreign  atomic.Bool // some of what is held may not be ours; the writer stores it
	// yields is when what the next eviction would give up for a block that nobody has
	// asked for was used last, by the clock; never: nothing would be given up.
	yields atomic.Int64
	clock  clock
	said   int64 // the limit that Events.Short was last told, 0: of none; the writer's
	counters
	writer
}

// counters are what Stats shows.
type counters struct {
	used, limit atomic.Int64 // bytes: as of the last look
	// Until full the file system is believed to be full, until slow nobody waits for the
	// writer. Kept whole, they hold out against a wall clock that is set.
	full, slow     atomic.Pointer[time.Time]
	sheds          atomic.Bool // something that no index knows may go; the writer stores it
	hits, hitBytes atomic.Int64
	putBytes       atomic.Int64
	// written groups of blocks, and how many there were when all was on the device last.
	written, flushed atomic.Int64
	declined         atomic.Int64
	evicted          atomic.Int64
	errors           atomic.Int64
	stalls           atomic.Int64
	mended           atomic.Int64
}

// newDirectory opens a directory. What a person must decide on is an error; a
// device that fails ejects the directory from the start.
func newDirectory(do DirOptions, o *Options, node string) (*directory, error) {
	path, err := filepath.Abs(do.Path)
	if err != nil {
		return nil, fmt.Errorf("open cache directory %s: %w", do.Path, err)
	}
	d := &directory{path: path, opt: o, events: &o.Events, budget: do.Budget, floor: do.Floor, clock: clock{time.Now()}}
	d.yields.Store(never)
	d.queue = newWriteQueue(max(o.QueueBytes/int64(len(o.Dirs)), hearth.BlockSize))
	d.writer = writer{node: node, stopped: make(chan struct{})}
	d.guard = device.New(device.Options{Patience: o.Patience, MaxLeft: maxLeft, Usable: d.readable, Hangs: d.hangs})
	d.gets.New = d.newGet
	if err := d.setLimits(); err != nil {
		return nil, err
	}
	d.policy = evict.NewPolicy(d.budget)
	if err := d.openFirst(); err != nil {
		if !deviceFailed(err) {
			return nil, err
		}
		d.errors.Add(1)
		d.eject(err, true)
	}
	d.scrub = d.newScrub()
	if !o.Pool.Press(evict.Bytes) {
		d.letGo()
		return nil, fmt.Errorf("open cache directory %s: no memory for its policy, %d bytes", path, evict.Bytes)
	}
	return d, nil
}

func (d *directory) openFirst() error {
	d.seed = rendezvousSeed(d.path)
	h, err := openHome(d.path, d.node, d.opt.statfs, d.mend)
	if err != nil {
		return err
	}
	d.node = h.node
	if id, err := hex.DecodeString(h.id); err == nil && len(id) >= 8 {
		d.seed = binary.LittleEndian.Uint64(id)
	}
	vol, err := d.opt.open(d)
	if err != nil {
		h.close()
		if errors.As(err, new(*device.FormatError)) {
			return refuse("cache directory %s: %v", d.path, err)
		}
		return err
	}
	d.home, d.last = h, identity{h.id, deviceOf(d.path)}
	d.volume.Store(vol)
	d.look()
	return nil
}

// mend counts a file that is well again, and tells of it.
func (d *directory) mend(file string, cause error) {
	d.mended.Add(1)
	device.Mended(d.events.Mended).Tell(file, cause)
}

// setLimits fills in the defaults that depend on the file system.
func (d *directory) setLimits() error {
	var st unix.Statfs_t
	if err := nearest(d.path, &st, d.opt.statfs); err != nil {
		return err
	}
	total := int64(st.Blocks) * st.Bsize
	if d.budget <= 0 {
		d.budget = total / 10
	}
	if d.floor == 0 {
		d.floor = total / 10
	}
	d.floor = max(d.floor, 0)
	return nil
}

// statfsFunc is unix.Statfs, or a test's.
type statfsFunc func(path string, st *unix.Statfs_t) error

// nearest is statfs of a path or, where it is still to be made, of what it will lie in.
func nearest(path string, st *unix.Statfs_t, statfs statfsFunc) error {
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		err := statfs(dir, st)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at cache directory %s: %w", path, err)
		}
		return nil
	}
}

// deviceFailed tells a sick device from a set-up that a person must mend.
func deviceFailed(err error) bool {
	var no syscall.Errno
	if errors.Is(err, ErrRefused) || !errors.As(err, &no) {
		return false
	}
	return no != unix.EACCES && no != unix.EPERM && no != unix.ENOTDIR && no != unix.ENOENT
}

// use returns the volume with a reference, or nil.
func (d *directory) use() *volume {
	if v := d.volume.Load(); v != nil && v.tryRetain() {
		return v
	}
	return nil
}

// get is Get; with stead it is read on the caller's thread, as read says.
func (d *directory) get(ctx context.Context, b hearth.Block, off, n int, stead func()) (*hearth.View, error) {
	if v := d.queue.Get(b.ID(), off, n); v != nil {
		d.hit(n)
		return v, nil
	}
	if !d.readable() {
		return nil, hearth.ErrMiss
	}
	vol := d.use()
	if vol == nil {
		return nil, hearth.ErrMiss
	}
	held := vol.mayHold(b)
	vol.release()
	if !held { // most of a cold read's questions: they ask no device
		return nil, hearth.ErrMiss
	}
	v, err := d.read(ctx, b, span{off, n}, stead)
	switch {
	case err == nil:
		d.reads.ok()
		d.hit(n)
		return v, nil
	case errors.Is(err, hearth.ErrMiss), ctx.Err() != nil:
		return nil, err
	}
	d.readFailed(err)
	return nil, hearth.ErrMiss // a sick disk costs time, never a read
}

func (d *directory) hit(n int) {
	d.hits.Add(1)
	d.hitBytes.Add(int64(n))
}

// put queues a block for free space or what the policy would replace, or declines.
func (d *directory) put(b hearth.Block, v *hearth.View) error {
	d.replaced.Remove(b.Object.Version)
	err := d.admit(b)
	if err == nil {
		err = d.queue.Push(queueItem{Block: b, View: v})
	}
	if err == nil || errors.Is(err, errQueued) {
		return nil
	}
	d.declined.Add(1)
	return fmt.Errorf("put block %v: %w", b.ID(), err)
}

// admit is a first look at the room, with figures that may be seconds old; the writer looks again.
func (d *directory) admit(b hearth.Block) error {
	if !d.holds(b) {
		return ErrTooFar
	}
	if ahead(&d.full) {
		return ErrFull
	}
	if !evict.Fits(d.used.Load()+d.queue.Pending(), allocated(b.Len()), d.limit.Load()) &&
		d.replaced.Empty() && !d.sheds.Load() && d.mayEvict(b.ID()) == nothing {
		return ErrFull
	}
	return nil
}

// holds reports whether there is an area for the block.
func (d *directory) holds(b hearth.Block) bool {
	return isWhole(b.Object, d.budget) || segment.Holds(b.ID())
}

func ahead(at *atomic.Pointer[time.Time]) bool {
	until := at.Load()
	return until != nil && time.Now().Before(*until)
}

// victims says which entries a block may push out, beside those of replaced versions.
type victims int

const (
	nothing victims = iota // it goes into free space only
	foreign                // what is not ours
	anything
)

// mayEvict is the policy's word on a Put. Others' blocks give way to ours at once,
// and ours never to theirs: their owner has them too.
func (d *directory) mayEvict(id hearth.ID) victims {
	if d.opt.Owns == nil {
		if d.policy.Replaces() {
			return anything
		}
		return nothing
	}
	ours := d.opt.Owns(id)
	switch {
	case ours && d.policy.Replaces():
		return anything
	case d.foreign.Load() && (ours || d.policy.Replaces()):
		return foreign
	}
	return nothing
}

const (
	// roomWait for who is about to fetch: a quarter of the queue, 16 MiB, takes a disk of 50 MB/s a third of a second.
	roomWait = 500 * time.Millisecond
	// slowFor nobody waits after one has waited in vain: a disk that is far slower than the origin must hold nobody up.
	slowFor = 5 * time.Second
)

// roomSoon reports whether the queue has room for n bytes and a quarter of it to spare, waiting a little for the writer:
// an origin that is faster than the disk would else be asked again for what was declined. Who waits holds at most one
// block of a run, and the writer that is waited for needs no memory of the Pool.
func (d *directory) roomSoon(n int64) bool {
	need := n + d.queue.Max()/4
	if d.queue.Pending()+need <= d.queue.Max() {
		return true
	}
	if ahead(&d.slow) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), roomWait)
	defer cancel()
	for d.queue.Pending() > 0 && d.queue.Pending()+need > d.queue.Max() {
		if d.queue.Wait(ctx, need) != nil {
			until := time.Now().Add(slowFor)
			d.slow.Store(&until)
			return false
		}
	}
	return true
}

func (d *directory) has(id hearth.ID) bool {
	if d.queue.Has(id) {
		return true
	}
	if !d.readable() {
		return false
	}
	vol := d.use()
	if vol == nil {
		return false
	}
	held, known := vol.knows(id)
	vol.release()
	if known {
		return held
	}
	ended := d.aside(func() {
		if vol := d.use(); vol != nil {
			defer vol.release()
			held = vol.has(id)
		}
	}, func() {})
	return ended && held
}

func (d *directory) localFile(o *hearth.Object) (*os.File, func(), error) {
	if !d.readable() {
		return nil, nil, hearth.ErrMiss
	}
	var file *os.File
	var release func()
	err := hearth.ErrMiss
	ended := d.aside(func() {
		vol := d.use()
		if vol == nil {
			return
		}
		defer vol.release()
		if lf, ok := vol.whole.(lender); ok {
			file, release, err = lf.LocalFile(o)
		}
	}, func() {
		if err == nil {
			_ = file.Close() // it was only to be read
			release()
		}
	})
	if !ended {
		return nil, nil, hearth.ErrMiss
	}
	return file, release, err
}

// useWhole tells the policy that the kernel will read an object by itself: all of
// it, as far as we know. Of a huge one some blocks of each extent stand for it.
func (d *directory) useWhole(o *hearth.Object) {
	const most = 1 << 14 // blocks, well below a millisecond
	now := d.clock.seconds()
	for i := int64(0); i < o.Blocks(); i += 1 + o.Blocks()/most {
		b := o.Block(i)
		d.policy.Use(b.ID(), b.Len(), now)
	}
}
