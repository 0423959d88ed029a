package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/volume/nvmetcp"
)

const (
	defaultQueue = 16 << 20
	// defaultPatience is that of internal/device.
	defaultPatience = 2 * time.Second
	// maxLeft bounds the operations that were abandoned on a device that does not answer.
	maxLeft = 64
	// failures in a row of reads take a volume out of use, those of writes end writing. Then it is tried
	// again, after retryFirst, and each time after twice as long, up to retryLast.
	failures              = 4
	retryFirst, retryLast = time.Second, 30 * time.Second
)

// Options say what a node does with a volume.
type Options struct {
	// Pool is where the index and all buffers are claimed.
	Pool *hearth.Pool
	// Cluster is the node's cluster. A volume of another one is refused.
	Cluster [16]byte
	// Node is noted in the segments that this node writes.
	Node [16]byte
	// Mine reports whether this node answers for a block, so that its place is kept in memory. nil means
	// that it answers for all.
	Mine func(hearth.ID) bool
	// Owns reports whether this node appends to a range of segments. nil means to all. Two nodes that both
	// do so waste room, and serve no wrong byte.
	Owns func(volume [16]byte, span int) bool
	// Queue bounds the bytes of blocks that wait to be written. 0 means 16 MiB.
	Queue int64
	// Patience is how long an operation may take without a sign of life. 0 means 2 s.
	Patience time.Duration
	// Changed is called when State changes. It must not block or call the Volume. nil means that nobody
	// wants to know.
	Changed func(State)
	// Now tells the time. nil means time.Now.
	Now func() time.Time
}

// State is what a volume is to its node.
type State struct {
	// Learned segments, of All, have been read for the places of blocks. When both are equal, the volume
	// is known.
	Learned, All int
	// Used is what the learned segments take in which anything was written, in bytes.
	Used int64
	// Away says why the volume is out of use. nil means that it is in use.
	Away error
	// Stopped says why it takes no writes. Reads go on, and it is tried again. nil means that it takes them.
	Stopped error
}

// segment is what this node knows of a segment of the volume.
type segment struct {
	salt   atomic.Uint64 // of its records; 0: unknown, or nothing is there
	unread atomic.Bool   // its header or its index cannot be read, so that nobody knows what lies in it

	// The holder of Volume.turn owns the rest.
	generation uint64
	began      int64 // Unix ms
	learned    bool
}

// Volume is a volume that a node has attached. It is a hearth.Store.
type Volume struct {
	dev      Device
	o        Options
	g        geometry
	guard    *device.Guard
	index    *record.Index
	segments []segment
	stats    counters

	away    atomic.Pointer[error] // why it is out of use; nil: it is in use
	paused  atomic.Pointer[pause] // writes are; nil: they are not
	learned atomic.Int64
	reading atomic.Int32 // how many times the indexes are or will be read; 0: they have been
	failed  atomic.Int32 // reads in a row

	verifies   *semaphore.Weighted // of verifiers
	verifyPace atomic.Int64        // mean time of a read of Verify, in ns

	learning sync.Mutex    // held while the indexes are read
	turn     chan struct{} // capacity 1; whoever has put into it may change segments and owns writer
	writer   writer
	queue    queue

	ctx    context.Context
	cancel context.CancelCauseFunc
	outage chan struct{} // capacity 1: the volume went out of use
	news   news          // told when State changes
	work   sync.WaitGroup
	ending sync.Mutex    // guards ended
	ended  bool          // nothing is added to work any more
	wrote  chan struct{} // closed when the writer has ended
	reads  sync.Pool     // of *read
	gone   chan struct{} // closed once the device has another volume, or none: away says which
	lose   func()        // closes gone, once
	close  func() error  // end, once
}

// Attach reads a volume's superblock and begins to learn its blocks' places in the background. The device
// is the caller's, who closes it after Close. The errors are ErrNoVolume, ErrForeign, ErrNewer, or the
// device's.
func Attach(d Device, o Options) (*Volume, error) {
	if o.Mine == nil {
		o.Mine = func(hearth.ID) bool { return true }
	}
	if o.Owns == nil {
		o.Owns = func([16]byte, int) bool { return true }
	}
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	v := &Volume{dev: d, o: o, index: record.NewIndex(o.Pool), turn: make(chan struct{}, 1), wrote: make(chan struct{}), gone: make(chan struct{}),
		verifies: semaphore.NewWeighted(verifiers)}
	v.verifyPace.Store(int64(o.Patience)) // nothing is known of it
	v.lose = sync.OnceFunc(func() { close(v.gone) })
	v.guard = device.New(device.Options{Patience: o.Patience, MaxLeft: maxLeft, Usable: v.usable, Hangs: v.hangs})
	v.reads.New, v.close = v.newRead, sync.OnceValue(v.end)
	v.ctx, v.cancel = context.WithCancelCause(context.Background())
	v.outage = make(chan struct{}, 1)
	go v.guard.LookOut()
	joined := make(chan geometry, 1) // an abandoned op has room for its result
	came := make(chan struct{})
	err := v.aside(v.ctx, func() error {
		defer close(came)
		g, err := join(d, o.Cluster)
		joined <- g
		return err
	})
	if err == nil {
		v.g = <-joined
	}
	if err == nil && d.BlockSize() > pageSize {
		err = fmt.Errorf("the device has blocks of %d bytes: at most %d", d.BlockSize(), pageSize)
	}
	if err == nil && !o.Pool.Press(stageSize+indexSize(v.most())) {
		err = errors.New("no memory for writing: give the cache more RAM")
	}
	if err != nil {
		v.cancel(err)
		v.guard.Close()
		return nil, &attachError{err, came}
	}
	if readOnly(d) {
		v.paused.Store(v.protected())
	}
	v.segments = make([]segment, v.g.count)
	v.writer.begin(v)
	v.queue.begin(o.Queue)
	go v.write()
	v.reading.Add(1)
	v.work.Go(v.learn)
	v.work.Go(v.stay)
	return v, nil
}

// attachError says why a volume is not attached. came is closed once its device is asked for nothing any more.
type attachError struct {
	error
	came <-chan struct{}
}

func (e *attachError) Error() string { return "attach the volume: " + e.error.Error() }
func (e *attachError) Unwrap() error { return e.error }

// most is how many records a segment has at most.
func (v *Volume) most() int { return int(min(v.g.segment/1024, maxRecords)) }

// Close closes the open segment and flushes, if the device answers. Blocks that are queued are written
// before. It waits for everything that does not hang. A second call returns the same.
func (v *Volume) Close() error { return v.close() }

// begin runs something that end waits for. It returns false behind the end.
func (v *Volume) begin(do func()) bool {
	v.ending.Lock()
	defer v.ending.Unlock()
	if !v.ended {
		v.work.Go(do)
	}
	return !v.ended
}

func (v *Volume) end() error {
	v.ending.Lock()
	v.ended = true
	v.ending.Unlock()
	v.queue.close()
	v.cancel(errClosed)
	v.work.Wait()
	release := func() {
		v.index.Drop()
		v.o.Pool.Unreserve(stageSize + indexSize(v.most()))
	}
	if !v.guard.Await(v.wrote) {
		go func() { // as long as the device has the writer
			<-v.wrote
			release()
		}()
		return errors.New("close the volume: its device does not answer")
	}
	release()
	return v.writer.err
}

var errClosed = errors.New("the volume is closed")

// Info is what the superblock says.
func (v *Volume) Info() Info { return v.g.info() }

// State is the present one.
func (v *Volume) State() State {
	s := State{Learned: int(v.learned.Load()), All: len(v.segments)}
	for i := range v.segments {
		if v.segments[i].salt.Load() != 0 {
			s.Used += v.g.segment
		}
	}
	if p := v.paused.Load(); p != nil {
		s.Stopped = p.cause
	}
	if err := v.away.Load(); err != nil {
		s.Away = *err
	}
	return s
}

func (v *Volume) usable() bool { return v.away.Load() == nil }

func (v *Volume) tell() {
	v.news.tell()
	if v.o.Changed != nil {
		v.o.Changed(v.State())
	}
}

// hangs takes the volume out of use, since an operation does not come back.
func (v *Volume) hangs(what string, since time.Duration) {
	v.leave(fmt.Errorf("%s has not come back for %v", what, since))
}

// leave takes the volume out of use. From then on it is tried whether it is back.
func (v *Volume) leave(err error) {
	if !v.away.CompareAndSwap(nil, &err) {
		return
	}
	v.stats.outages.Add(1)
	v.tell()
	if isGone(err) {
		v.lose()
		return
	}
	select {
	case v.outage <- struct{}{}:
	default:
	}
}

// stay brings the volume back into use each time that it went out of it.
func (v *Volume) stay() {
	for {
		select {
		case <-v.outage:
			select {
			case v.turn <- struct{}{}: // a writer that hangs still would take it out of use again
				<-v.turn
				v.comeBack()
			case <-v.ctx.Done():
			}
		case <-v.ctx.Done():
			return
		}
	}
}

// check takes the volume out of use if its device has another one now, none, or only a part of it: a target that keeps
// its namespace in memory comes back empty, and then a flush would promise what nobody finds again. It notes whether
// the device says that it takes writes.
func (v *Volume) check(ctx context.Context) {
	err := v.aside(ctx, v.same)
	if isGone(err) || errors.Is(err, errSmaller) {
		v.leave(err)
	}
	if err != nil {
		return
	}
	p, locked := v.paused.Load(), readOnly(v.dev)
	if locked && p == nil && v.paused.CompareAndSwap(nil, v.protected()) ||
		!locked && p != nil && errors.Is(p.cause, ErrReadOnly) && v.paused.CompareAndSwap(p, nil) {
		v.tell()
	}
}

// protected is the pause of writes to a device that says that it takes none. It is tried all the same, in case that
// nobody tells of the change.
func (v *Volume) protected() *pause {
	return &pause{cause: ErrReadOnly, until: v.o.Now().Add(retryLast), wait: retryLast}
}

// isGone reports whether an error of same means that the volume is there no more. It does not come back by itself.
func isGone(err error) bool {
	return errors.Is(err, ErrNoVolume) || errors.Is(err, ErrForeign) || errors.Is(err, ErrNewer) || errors.Is(err, errOther) ||
		errors.Is(err, nvmetcp.ErrReplaced)
}

// same reads the superblock, and reports whether it is this volume's.
func (v *Volume) same() error {
	g, err := join(v.dev, v.o.Cluster)
	if err == nil && g.volume != v.g.volume {
		err = errOther
	}
	return err
}

var errOther = errors.New("another volume is there now")

// comeBack tries whether the device answers again, with the same volume on it.
func (v *Volume) comeBack() {
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		select {
		case <-time.After(wait):
		case <-v.ctx.Done():
			return
		}
		if err := v.try(v.same); err != nil {
			if old := v.away.Swap(&err); (*old).Error() != err.Error() {
				v.tell()
			}
			if isGone(err) {
				v.lose()
				return
			}
			continue
		}
		v.failed.Store(0)
		v.reading.Add(1)
		v.away.Store(nil)
		v.tell()
		v.learn() // others may have written over segments meanwhile
		return
	}
}

// aside runs an operation that waits for the device, for a caller that can leave.
func (v *Volume) aside(ctx context.Context, op func() error) error {
	done := make(chan error, 1) // an abandoned op has room for its result
	if !v.guard.Do(ctx, device.NewCall(func() { done <- op() }, func() {})) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errAway
	}
	return <-done
}

// try is aside for a device that is out of use: the guard would abandon that at once.
func (v *Volume) try(op func() error) error {
	done := make(chan error, 1)
	go func() { done <- op() }()
	select {
	case err := <-done:
		return err
	case <-v.ctx.Done():
		return context.Cause(v.ctx)
	}
}

// why says why the device cannot be asked.
func (v *Volume) why() error {
	if err := v.away.Load(); err != nil {
		return *err
	}
	return errAway
}

var errAway = errors.New("the volume's device does not answer")

// failure counts a read that failed, and takes the volume out of use after some in a row.
func (v *Volume) failure(err error) {
	v.stats.errors.Add(1)
	if isGone(err) {
		v.leave(err)
	} else if errors.Is(err, errSmaller) { // others lie behind the end, too
		v.leave(fmt.Errorf("%w (the volume needs %d)", err, v.g.size))
	} else if v.failed.Add(1) >= failures {
		v.leave(err)
	}
}
