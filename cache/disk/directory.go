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

// directory is one cache directory. Readers and Put use the atomic fields and the queue; the rest
// belongs to the writer goroutine.
type directory struct {
	path   string
	opt    *Options
	events *Events
	budget int64
	floor  int64
	seed   uint64 // for rendezvous hashing, fixed for the life of the Store
	queue  *writeQueue
	guard  *device.Guard
	gets   sync.Pool // of *get

	volume   atomic.Pointer[volume]   // nil means that nothing can be read
	ejection atomic.Pointer[ejection] // nil means that it is in use
	writes   streak
	reads    streak
	replaced evict.Replaced
	policy   *evict.Policy // sees each request; its memory is counted in the Pool
	scrub    scrubbing
	foreign  atomic.Bool // some held blocks may belong to other nodes; the writer stores it
	// yields is the last use, by the clock, of the entry that the next eviction would give up for a
	// block that nobody has asked for. never means that no entry would be given up.
	yields atomic.Int64
	clock  clock
	said   int64 // the limit of the last Events.Short, or 0; only the writer uses it
	counters
	writer
}

// counters are what Stats shows.
type counters struct {
	used, limit atomic.Int64 // bytes, as of the last look
	// marked means that the label has LabelFormat as long as drafts may come.
	marked atomic.Bool
	// beside is what the namespace, jobs and drafts had allocated then, and drafted what drafts were given since.
	beside, drafted atomic.Int64
	measuring       sync.Mutex         // held while beside is measured
	blocks          atomic.Int64       // allocated by blocks when the writer last looked
	crowded         chan chan struct{} // asks the writer to make room; it closes what it gets
	// Until the time full, the file system is believed to be full. Until slow, nobody waits for the
	// writer. The pointers keep the monotonic clock, so that a change of the wall clock does no
	// harm.
	full, slow     atomic.Pointer[time.Time]
	sheds          atomic.Bool // some unindexed blocks may go; the writer stores it
	hits, hitBytes atomic.Int64
	putBytes       atomic.Int64
	// written counts groups of blocks; flushed is its value when everything was last on the device.
	written, flushed atomic.Int64
	declined         atomic.Int64
	evicted          atomic.Int64
	errors           atomic.Int64
	stalls           atomic.Int64
	mended           atomic.Int64

	spilled, spilledBytes atomic.Int64
}

// newDirectory opens a directory. It fails if a person must decide. A device that fails ejects the
// directory from the start.
func newDirectory(do DirOptions, o *Options, node string) (*directory, error) {
	path, err := filepath.Abs(do.Path)
	if err != nil {
		return nil, fmt.Errorf("open cache directory %s: %w", do.Path, err)
	}
	d := &directory{path: path, opt: o, events: &o.Events, budget: do.Budget, floor: do.Floor, clock: clock{time.Now()}}
	d.yields.Store(never)
	d.crowded = make(chan chan struct{})
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

// mend counts a file that is in order again, and reports it.
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
	total := int64(st.Blocks-st.Bfree+st.Bavail) * st.Bsize // without what is reserved for other users
	if d.budget <= 0 {
		d.budget = total / 10
	}
	if d.floor == 0 {
		d.floor = total / 10
	}
	d.floor = max(d.floor, 0)
	return nil
}

// statfsFunc is unix.Statfs, or a test's replacement.
type statfsFunc func(path string, st *unix.Statfs_t) error

// nearest is statfs of a path or, if the path does not exist yet, of the nearest directory above
// it.
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

// deviceFailed reports whether an error is of a failing device, and not of a set-up that a person
// must mend.
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

// get is Get. With stead it reads on the caller's thread, as read says.
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
	if !held { // the usual case of a cold read; it asks no device
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

// put queues a block, or declines it. It goes into free space, or into the room of entries that the
// policy would replace.
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

// admit checks for room, with figures that may be seconds old. The writer checks again.
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

// holds reports whether an area can hold the block.
func (d *directory) holds(b hearth.Block) bool {
	return isWhole(b.Object, d.budget) || segment.Holds(b.ID())
}

func ahead(at *atomic.Pointer[time.Time]) bool {
	until := at.Load()
	return until != nil && time.Now().Before(*until)
}

// victims says which entries a block may evict, beside those of replaced versions.
type victims int

const (
	nothing victims = iota // it goes into free space only
	foreign                // only blocks of other nodes
	anything
)

// mayEvict is the policy's decision about a Put. Blocks of other nodes give way to ours at once,
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
	// roomWait is the most that a caller waits before it fetches. A disk of 50 MB/s takes a quarter
	// of the queue, 16 MiB, in a third of a second.
	roomWait = 500 * time.Millisecond
	// slowFor is how long nobody waits after one caller has waited in vain: a disk far slower than
	// the origin must delay nobody.
	slowFor = 5 * time.Second
)

// roomSoon reports whether the queue has room for n bytes and a quarter of it to spare. It waits a
// little for the writer. Otherwise an origin that is faster than the disk would be asked again for
// declined blocks. A caller that waits holds at most one block of a run, and the writer needs no
// memory of the Pool.
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

// useWhole reports to the policy that the kernel will read an object by itself: all of it, as far
// as we know. In a huge object some blocks of each extent stand for the rest.
func (d *directory) useWhole(o *hearth.Object) {
	const most = 1 << 14 // blocks, well below a millisecond
	now := d.clock.seconds()
	for i := int64(0); i < o.Blocks(); i += 1 + o.Blocks()/most {
		b := o.Block(i)
		d.policy.Use(b.ID(), b.Len(), now)
	}
}
