package draft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
)

// Name is where a draft is to be published: a link and the whole key at its origin. A key that ends in "/" is a directory's,
// whose draft has no bytes.
type Name struct{ Link, Key string }

// IsDir reports whether it is a directory's.
func (n Name) IsDir() bool { return strings.HasSuffix(n.Key, "/") }

// Attr are a file's attributes. They are this node's alone: the bucket does not get them.
type Attr struct {
	Mode, UID, GID uint32
	ModTime, ATime time.Time
	// Exclusive is O_EXCL, and New that the name was not to have an object, either: the draft is first published only if
	// its key has none. They count at Create.
	Exclusive, New bool
}

// State is what becomes of a draft.
type State string

// The states.
const (
	Opened     State = "open"       // being written; nothing was sent but parts ahead
	Staged     State = "staged"     // closed under a temporary name: it is not published before it is renamed
	Waiting    State = "waiting"    // publishing failed, and may succeed the next time: Why says more
	Publishing State = "publishing" // bytes or a Complete are under way, or were when the node ended
	Failed     State = "failed"     // publishing was refused, and is again until somebody does what Why says
	Published  State = "published"  // the bucket has it. It goes when nobody holds it

	removed State = "removed" // in a record alone: uploads are left to be aborted
)

// Info tells of a draft.
type Info struct {
	Name
	ID    uint64
	Size  int64 // in bytes
	Attr  Attr
	State State
	Why   string    // the last error; "" means none
	Since time.Time // when it got this state
	Dirty bool      // something was written since the last publish; after a restart it is not known, and true
	// Untouched says that nothing was written since Create. Removed says that it has no name any more.
	Untouched, Removed bool
	Appends            bool           // somebody has opened it to append to it
	Object             *hearth.Object // the last one that was published and that Options.Published was told of; nil means none
	Base               *hearth.Object // that, whoever was told of it, or the one that the draft changes; nil means none
	Users, Writers     int            // that hold it, and of those that can write it
	Sent               int64          // bytes sent since the start, those that were sent again included
	// Sending says that bytes of it are to go to the origin now, or those of the draft that its rename is to replace. Moved changes while they do; where they wait for their turn,
	// while any draft's do.
	Sending bool
	Moved   int64
	// Conflict says that it is kept under this name since the bucket has another object under its own: it is published by Claim
	// and Publish, or by Rename.
	Conflict bool
	File     string // with its bytes
}

// Draft is a file that is being written. Its methods may be called at the same time.
type Draft struct {
	s      *Store
	id     uint64
	link   string // of its name, for ever
	dir    string
	random string // 128 bits in hex, the beginning of all tokens, and the files' name

	// busy is held by whoever publishes, sends ahead, renames or removes: one at a time, over the network, too. It is
	// the first of all locks. What stands under "the upload" is changed under busy and mu, and read under either.
	busy   chan struct{}
	wanted atomic.Int32 // callers that wait for busy: who sends ahead gives way to them
	// unheard are the tokens of attempts whose answers were lost, and which the origin had not done when it was asked; who has busy has them.
	unheard []string
	record  sync.Mutex // held while the record is written; before mu
	// recorded is the length of a record that the next one may be written over; notRecorded: there is none yet; 0: it is to be
	// a new file. The lock of the record guards it.
	recorded int
	sent     atomic.Int64
	moved    atomic.Int64 // bytes that were read to be sent
	queued   atomic.Int32 // waits for the semaphores of the store, and for connections
	silent   atomic.Int32 // requests that the origin works on without a byte
	// awaits is the draft that it is to replace, while its rename waits for what makes that one's object.
	awaits atomic.Pointer[Draft]

	// mu guards what follows, and the bytes: a writer holds it for its pwrite, and who takes bytes to be sent reads
	// under it. So these are of one moment. It is not held over the network.
	mu        sync.RWMutex
	name      Name      // changed under Store.mu, too
	named     time.Time // when it got it
	removed   bool      // never published, and no files any more, unless it is held
	held      bool      // it was removed while somebody had it open: its files stay for them, over a restart, too
	tombstone bool      // the record says that it was removed
	nameless  bool      // another draft has its name; its files stay
	outnamed  bool      // nameless for good
	replaced  bool      // removed, since another draft began under its name: whoever writes on would do so into no file
	moving    string    // the key to which this directory and all below it are being renamed; "" means that they are not
	gone      bool      // published, and no files any more
	back      bool      // moving is the old key, since the rename failed
	beside    bool      // in conflict: kept under a name beside the one that another object has, and not published before Claim
	attr      Attr
	wroteAt   time.Time // when bytes or size changed last
	size      int64
	file      *os.File       // open while pins > 0
	ext       *extents       // what the file has of its own; nil means all
	began     int64          // the size of the object with which it began, if ext is not nil
	under     *hearth.Object // whose bytes are between the extents: that one, or what was published since
	journal   *os.File       // of ext, open with file
	users     int            // handles
	writers   int            // of those, that can write
	appends   bool           // by one of them, now or before
	pins      int            // those, and a publish that runs
	seeds     int            // that keep the files, and no file open
	blocks    int64          // bytes allocated, when file was closed
	anew      bool           // it was emptied when it was published: whatever the bucket has by then is overwritten
	durable   bool           // a Sync has answered
	changed   bool           // the record is older than what it tells
	state     State
	why       string
	since     time.Time

	gen       uint64         // of the bytes: one more with each write
	clean     uint64         // the generation that base was made of; 0 means none
	base      *hearth.Object // the last object that was published under its name, or that the draft began with
	published *attempt       // what base was made of
	told      *hearth.Object // of which Options.Published has returned
	recovered bool           // since the restart the file was not compared with what was published or sent
	left      bool           // it was there at the restart, and may have been written before

	next   int64 // the end of the last write
	run    int64 // where the sequence of writes that ends at next began
	wakeAt int64 // sending ahead begins when next reaches it

	// The upload.
	up      *upload
	pending *attempt
	begins  []begin // without an answer
	seq     uint64
	abort   []uploadRef
	cancel  context.CancelCauseFunc // of the publish that runs
	asking  bool                    // a request that makes the object is under way

	// unwritten is an object of the draft that is to be deleted before it is published again; nil means none.
	unwritten *hearth.Object

	// What the last publish that failed was: those who waited for it get its error, too.
	runs   uint64 // publishes that ended
	failed error
	tried  uint64 // the generation when it began
}

// ErrRemoved says that a draft was removed or replaced, and is not published.
var ErrRemoved = errors.New("the draft was removed") // not fs.ErrNotExist: that is an upload's

// Link is the link of its name, which no rename changes. It waits for nobody.
func (d *Draft) Link() string { return d.link }

// Hold is one handle more. It is syscall.ESTALE if the draft was published and has gone since it was found, or was
// removed while nobody held it.
func (d *Draft) Hold() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed && !d.held && d.users == 0 { // though a publish may have the file open still
		return syscall.ESTALE
	}
	if err := d.pinLocked(); err != nil {
		return err
	}
	d.users++
	return nil
}

// Writes says that n more of those who hold it can write it; less, if n is negative.
func (d *Draft) Writes(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writers += n
}

// Append says that somebody has opened it to append to it: it grows, and may stay open for long.
func (d *Draft) Append() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.appends = true
}

// Release is one handle less. With the last one a draft that was published goes.
func (d *Draft) Release() {
	d.mu.Lock()
	d.users--
	d.mu.Unlock()
	d.unpin()
}

func (d *Draft) pinLocked() error {
	if d.gone || d.removed && !d.held && d.file == nil {
		return syscall.ESTALE
	}
	if d.pins == 0 {
		f, err := os.OpenFile(d.path(".data"), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open draft: %w", err)
		}
		if d.ext != nil {
			if d.journal, err = os.OpenFile(d.path(extentsName), os.O_RDWR, 0); err != nil {
				_ = f.Close() // nothing was written
				return fmt.Errorf("open draft: %w", err)
			}
		}
		d.file = f
	}
	d.pins++
	return nil
}

// unpin is one pin less.
func (d *Draft) unpin() { d.leave(&d.pins) }

// leave is one pin or seed less. The file is closed with the last pin. A draft that is published and clean goes with the last of
// both.
func (d *Draft) leave(of *int) {
	s := d.s
	d.mu.Lock()
	if of == &d.pins && d.pins > 1 { // whoever waits for a write that hangs is not to hold Store.mu
		d.pins--
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	s.mu.Lock()
	d.mu.Lock()
	*of--
	going, left := false, false
	if d.pins == 0 {
		if err := d.closeLocked(); err != nil {
			s.log("close draft %s: %v", d.name.Key, err)
		}
		if going = d.seeds == 0 && !d.removed && !d.gone && d.isCleanLocked() && d.state == Published; going {
			// What was sent ahead since may have been cut off again.
			d.gone, left = true, d.up != nil || len(d.abort)+len(d.begins) > 0
			d.removed = left // its record stays until they are aborted
			s.unnameLocked(d)
		}
		left = left || d.held
		s.settleLocked(d)
	}
	d.mu.Unlock()
	s.mu.Unlock()
	switch {
	case left:
		if err := d.vanish(); err != nil {
			s.log("%v", err)
		}
	case going:
		// The id is taken until the files are gone.
		if err := d.erase(); err != nil {
			s.log("%v", err)
		}
		s.forget(d)
	}
}

func (d *Draft) closeLocked() error {
	if d.file == nil {
		return nil
	}
	if fi, err := d.file.Stat(); err == nil && !d.removed {
		d.blocks = allocated(fi)
	} else {
		d.blocks = 0
	}
	err := d.file.Close()
	if d.journal != nil {
		err = errors.Join(err, d.journal.Close())
	}
	d.file, d.journal = nil, nil
	return err
}

// noteLocked changes the journal of the extents, which it opens if the draft's file is not open.
func (d *Draft) noteLocked(change func(journal *os.File) error) error {
	if d.ext == nil {
		return nil
	}
	f := d.journal
	if f == nil {
		opened, err := os.OpenFile(d.path(extentsName), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { _ = opened.Close() }() // who needs what was written syncs it
		f = opened
	}
	return change(f)
}

// fileLocked is the open file, or opens it for one operation.
func (d *Draft) fileLocked() (f *os.File, done func(), err error) {
	if d.file != nil {
		return d.file, func() {}, nil
	}
	if d.gone || d.removed && !d.held {
		return nil, nil, syscall.ESTALE
	}
	opened, err := os.OpenFile(d.path(".data"), os.O_RDWR, 0) // not f, which would be on the heap for each write
	if err != nil {
		return nil, nil, fmt.Errorf("open draft: %w", err)
	}
	return opened, func() {
		_ = opened.Close() // who needs what was written syncs it
	}, nil
}

// changingLocked is fileLocked for who changes the bytes.
func (d *Draft) changingLocked() (f *os.File, done func(), err error) {
	if d.replaced {
		return nil, nil, syscall.ESTALE
	}
	return d.fileLocked()
}

// WriteAt is one pwrite. Its error is Room's or the disk's, or syscall.ESTALE if Create or Change has replaced the draft; what was
// written before it counts.
func (d *Draft) WriteAt(p []byte, off int64) (int, error) {
	switch {
	case off < 0 || off > math.MaxInt64-int64(len(p)):
		return 0, syscall.EINVAL
	case len(p) == 0:
		return 0, nil
	}
	if d.s.o.Room != nil {
		if err := d.s.o.Room(d.dir, int64(len(p))); err != nil {
			return 0, err
		}
	}
	d.mu.Lock()
	f, done, err := d.changingLocked()
	if err != nil {
		d.mu.Unlock()
		return 0, err
	}
	n, err := pwrite(f, p, off)
	end := off + int64(n)
	if noted := d.noteLocked(func(journal *os.File) error { return d.ext.add(journal, off, end) }); noted != nil {
		n, end, err = 0, off, noted
	}
	d.measureLocked(f)
	done()
	d.wroteLocked(min(off, d.size), off+int64(len(p))) // a disk that fails may have changed more than it says
	if n > 0 {                                         // else nothing has grown
		d.size = max(d.size, end)
		if off != d.next {
			d.run = off
		}
		d.next = end
	}
	ahead := d.next >= d.wakeAt && !d.removed
	if ahead {
		d.wakeAt = math.MaxInt64
	}
	d.mu.Unlock()
	if ahead {
		d.s.ahead(d)
	}
	return n, err
}

// pwrite tells, other than os.File, how much was written before an error: it is in the file.
func pwrite(f *os.File, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := syscall.Pwrite(int(f.Fd()), p[n:], off+int64(n))
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return n, fmt.Errorf("write draft: %w", err)
		default:
			n += m
		}
	}
	return n, nil
}

// measureLocked notes what a file takes that is open for one operation.
func (d *Draft) measureLocked(f *os.File) {
	if d.file != nil {
		return
	}
	if fi, err := f.Stat(); err == nil {
		d.blocks = allocated(fi)
	}
}

// wroteLocked notes that [from, to) has other bytes than before.
func (d *Draft) wroteLocked(from, to int64) {
	d.gen++
	d.attr.ModTime = d.s.o.Now()
	d.wroteAt, d.changed = d.attr.ModTime, true
	if d.state == Published || d.state == Staged {
		d.setLocked(Opened, "")
	}
	if d.up != nil {
		d.up.mark(from, to, d.gen)
	}
}

// Read reads bytes; what was never written is zeros, or the base's. It is io.EOF at the end, and hearth.ErrStale if the bucket
// has not got the base any more, nor anybody of the ring.
func (d *Draft) Read(ctx context.Context, p []byte, off int64) (n int, err error) {
	for range rounds {
		d.mu.RLock()
		n, err = d.readLocked(p, off)
		holes, base, pending := d.ext.holes(extent{off, off + int64(n)}), d.under, d.pending != nil
		d.mu.RUnlock()
		if len(holes) == 0 {
			return n, err
		}
		failed := d.s.fill(ctx, base, p[:n], off, holes)
		if failed == nil {
			return n, err
		}
		d.mu.RLock()
		same := d.under == base
		d.mu.RUnlock()
		switch {
		case !errors.Is(failed, hearth.ErrStale):
			return 0, failed
		case !same: // it was published meanwhile
		case pending: // it was, perhaps, and nobody has heard of it
			if asked := d.ask(ctx); asked != nil {
				return 0, errors.Join(failed, asked)
			}
		default:
			return 0, failed
		}
	}
	return 0, fmt.Errorf("read %s: it is published faster than it is read: %w", d.Info().Key, hearth.ErrStale)
}

// ReadAt is Read until the store is closed.
func (d *Draft) ReadAt(p []byte, off int64) (int, error) { return d.Read(d.s.ctx, p, off) }

// readLocked reads the draft's file. Its holes are zeros.
func (d *Draft) readLocked(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	if off >= d.size {
		return 0, io.EOF
	}
	f, done, err := d.fileLocked()
	if err != nil {
		return 0, err
	}
	defer done()
	return f.ReadAt(p, off)
}

// fill puts bytes of a base into the holes of what was read at off.
func (s *Store) fill(ctx context.Context, base *hearth.Object, p []byte, off int64, holes []extent) error {
	for _, x := range holes {
		if s.o.Base == nil {
			return fmt.Errorf("read %s, which is being changed: nobody reads the bucket", base.Key)
		}
		if err := s.o.Base(ctx, base, p[x.from-off:x.to-off], x.from); err != nil {
			return fmt.Errorf("read what is not being changed of %s: %w", base.Key, err)
		}
	}
	return nil
}

// Truncate sets the size in bytes. What is new is zeros. A draft that has no change yet and is emptied is a new file: it overwrites
// what the bucket has when it is published.
func (d *Draft) Truncate(size int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f, done, err := d.changingLocked()
	if err != nil {
		return err
	}
	defer done()
	anew := size == 0 && d.base != nil && (d.isCleanLocked() || d.recovered && d.state == Published)
	switch d.anew = d.anew || anew; {
	case size == d.size && anew: // somebody else may have written it
		d.wroteLocked(0, 0)
		return nil
	case size == d.size:
		return nil
	}
	// First the file: what a kill leaves then is shorter, and no zeros stand where the base does.
	if err := f.Truncate(size); err != nil {
		return err
	}
	noted := d.noteLocked(func(journal *os.File) error { return d.ext.shrink(journal, size) })
	d.measureLocked(f)
	d.wroteLocked(min(size, d.size), max(size, d.size))
	d.size = size
	return noted
}

// SetAttr changes the attributes, which outlive the process once it returns nil. The bytes stay published, if they were.
func (d *Draft) SetAttr(change func(*Attr)) error {
	d.record.Lock()
	defer d.record.Unlock()
	d.mu.Lock()
	was := d.attr
	change(&d.attr)
	d.attr.Exclusive, d.attr.New = was.Exclusive, was.New
	set := d.attr
	d.changed = d.changed || set != was
	due := d.changed && !d.gone && (!d.removed || d.held)
	d.mu.Unlock()
	if !due {
		return nil
	}
	err := d.saveRecorded(false)
	if err != nil {
		d.mu.Lock()
		if d.attr == set { // else it was written meanwhile
			d.attr = was
		}
		d.mu.Unlock()
	}
	return err
}

// Sync returns nil when the bytes, size, name and attributes are on the disk: after a kill or a power cut the draft is there. Of one
// that was removed and is not open nothing is left: the last RELEASE of a file may come behind its UNLINK.
func (d *Draft) Sync() error {
	d.record.Lock() // a record that is being written may fail
	d.mu.Lock()
	gone := d.removed && d.file == nil
	changed, files := d.changed || !d.durable, !d.removed && !d.gone
	d.mu.Unlock()
	d.record.Unlock()
	if gone {
		return nil
	}
	if err := d.syncBytes(); err != nil {
		return err
	}
	if !files || !changed {
		return nil
	}
	return d.save(true)
}

// syncBytes has the disk take the bytes, and which are the draft's own.
func (d *Draft) syncBytes() error {
	d.mu.Lock()
	err := d.pinLocked()
	f, journal := d.file, d.journal
	var rows int64
	var due bool
	if d.ext != nil {
		rows, due = d.ext.seal()
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	defer d.unpin()
	if err = f.Sync(); err == nil && due { // the rows, before the row that says so
		if err = journal.Sync(); err == nil {
			d.mu.Lock()
			err = d.ext.mark(journal, rows)
			d.mu.Unlock()
		}
		err = errors.Join(err, journal.Sync())
	}
	if err != nil {
		return fmt.Errorf("sync draft: %w", err)
	}
	return nil
}

// Stage is the close of a draft with a temporary name: it is on the disk, as Sync has it, and stays there.
func (d *Draft) Stage() error {
	d.mu.Lock()
	was, staged := d.state, d.state != Publishing
	if staged {
		d.state, d.why, d.since, d.changed = Staged, "", d.s.o.Now(), true
	}
	d.mu.Unlock()
	err := d.Sync()
	if err != nil && staged && was != Staged {
		d.mu.Lock()
		if d.state == Staged { // the next close is not to think that it is on the disk
			d.state, d.changed = was, true
		}
		d.mu.Unlock()
	}
	return err
}

// Info tells of the draft as it is now.
func (d *Draft) Info() Info {
	d.mu.RLock()
	defer d.mu.RUnlock()
	sending, moved := d.cancel != nil && d.silent.Load() == 0, d.progress()
	if r := d.awaits.Load(); r != nil {
		sending, moved = r.silent.Load() == 0, r.progress()
	}
	return Info{Name: d.name, ID: d.id, Size: d.size, Attr: d.attr, State: d.state, Why: d.why, Since: d.since, Dirty: !d.isCleanLocked(),
		Users: d.users, Writers: d.writers, Untouched: d.gen == 1 && (!d.recovered && !d.left || d.isBaseLocked()), Removed: d.removed || d.nameless, Conflict: d.beside, Appends: d.appends, Object: d.told, Base: d.base, Sent: d.sent.Load(),
		File: d.path(".data"), Sending: sending, Moved: moved}
}

func (d *Draft) progress() int64 {
	if d.queued.Load() > 0 {
		return -1 - d.s.moved.Load() // so that its turn is a change
	}
	return d.moved.Load()
}

// queue takes n of a semaphore of the store.
func (d *Draft) queue(ctx context.Context, of *semaphore.Weighted, n int64) error {
	d.queued.Add(1)
	defer d.queued.Add(-1)
	return of.Acquire(ctx, n)
}

// body counts what is sent of a draft. Until it is read it waits for its turn: there are so many connections to the origin.
type body struct {
	io.ReaderAt
	d    *Draft
	once sync.Once
}

// turn is the end of the wait.
func (b *body) turn() {
	b.once.Do(func() { b.d.queued.Add(-1) })
}

// ReadAt is an io.ReaderAt's.
func (b *body) ReadAt(p []byte, off int64) (int, error) {
	b.turn()
	n, err := b.ReaderAt.ReadAt(p, off)
	b.d.moved.Add(int64(n))
	b.d.s.moved.Add(int64(n))
	return n, err
}

func (d *Draft) body(data []byte) *body {
	d.queued.Add(1)
	return &body{ReaderAt: bytes.NewReader(data), d: d}
}

// isBaseLocked reports whether a draft that was never published is the object that it was begun with, byte for byte.
func (d *Draft) isBaseLocked() bool {
	return d.base != nil && d.published == nil && d.base.Size == d.size && (d.ext.untouched(d.size) || d.ext == nil && d.size == 0)
}

func (d *Draft) isCleanLocked() bool { return d.clean == d.gen }

func (d *Draft) isPublished() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.isCleanLocked()
}

func (d *Draft) allocated() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.file != nil {
		if fi, err := d.file.Stat(); err == nil {
			return allocated(fi)
		}
	}
	return d.blocks
}

// lock takes busy. who waits for it is heard by what sends ahead.
func (d *Draft) lock(ctx context.Context) error {
	d.wanted.Add(1)
	defer d.wanted.Add(-1)
	select {
	case d.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-d.s.ctx.Done():
		return ErrClosed
	}
}

func (d *Draft) unlock() { <-d.busy }

// removeLocked takes a draft's name away for good; Store.mu is held. vanish does the rest.
func (s *Store) removeLocked(d *Draft) {
	s.unnameLocked(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removed, d.held = true, d.pins > 0
	d.stopLocked()
}

// answerWait is how long a request that makes the object of a removed draft may go on. An origin that is there answers in that time.
const answerWait = 2 * time.Second

// stopLocked ends what is sent of a draft that was removed or replaced. A request that makes the object gets a moment for its answer:
// were it broken off, the origin could still do it, behind the HEAD that finds nothing to be deleted, or behind the next
// object of that name.
func (d *Draft) stopLocked() {
	stop := d.cancel
	switch {
	case stop == nil:
	case d.asking:
		time.AfterFunc(answerWait, func() {
			d.mu.RLock()
			gone := d.removed || d.nameless // a rename that was taken back has given it its name again
			d.mu.RUnlock()
			if gone {
				stop(ErrRemoved)
			}
		})
	default:
		stop(ErrRemoved)
	}
}

// leavesLocked reports whether a draft that is removed leaves something at the origin that is to be cleaned up.
func (d *Draft) leavesLocked() bool {
	return d.up != nil || d.pending != nil || d.unwritten != nil || len(d.abort)+len(d.begins) > 0
}

// vanish removes the files of a draft that was removed, but for a record of what is left at the origin. They stay as long as somebody
// holds it.
func (d *Draft) vanish() error {
	d.mu.Lock()
	left := d.leavesLocked() || len(d.busy) > 0
	d.held = d.pins > 0
	durable, held := d.durable, d.held
	due := left || held || durable && !d.tombstone
	d.mu.Unlock()
	if due {
		if err := d.save(durable); err != nil { // else it could be there again after a crash, and be published
			return err
		}
	}
	d.mu.Lock()
	d.tombstone = d.tombstone || due
	if d.file == nil {
		d.blocks = 0
	}
	held = held && d.held // the last one may have let it go meanwhile
	d.mu.Unlock()
	if held {
		return nil // it is called again when the last one lets it go
	}
	if !left {
		if err := d.erase(); err != nil {
			return err
		}
	} else if err := d.eraseBytes(); err != nil {
		return err
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.s.settleLocked(d)
	if left { // for Clean: whoever has busy now may have nothing at the origin, and the record stays
		d.s.drafts[d] = struct{}{}
	}
	return nil
}

// Remove unlinks the draft: it has no name from now on, a publish that runs ends, and nothing more is published. Whoever
// holds it reads and writes on. Its upload is aborted; if a lost answer left an object of it, that is deleted. An error of
// the origin is not the caller's: Clean tries it again. An object that was published before is the caller's.
func (d *Draft) Remove(ctx context.Context) error {
	d.s.mu.Lock()
	d.s.removeLocked(d)
	d.s.mu.Unlock()
	if err := d.vanish(); err != nil {
		return err
	}
	if err := d.cleanUp(ctx); err != nil {
		d.s.log("removed draft %s: %v: it is tried again", d.Info().Key, err)
	}
	return nil
}

// Restore gives a draft that Remove has taken the name from that name again, since what was to go with it did not. Whoever calls it has
// held the draft since before; was is what it was then. It is syscall.EEXIST if another draft has the name by now.
func (d *Draft) Restore(was Info) error {
	if err := d.lock(d.s.ctx); err != nil { // Clean may be at it
		return err
	}
	defer d.unlock()
	d.s.mu.Lock()
	d.mu.Lock()
	at, taken := d.s.findLocked(d.name)
	taken = taken && d.s.names[at] != d
	gone := taken || d.gone || !d.removed
	if !gone {
		d.removed, d.held, d.tombstone, d.changed = false, false, false, true
		switch {
		case d.isCleanLocked(): // a publish that was under way
			d.setLocked(Published, "")
		case was.State == Publishing, was.State == Published, was.State == Staged && d.state == Opened: // by a write since
			d.setLocked(Opened, "")
		default:
			d.state, d.why, d.since = was.State, was.Why, was.Since
		}
		d.s.nameLocked(d)
		d.s.ids[d.id], d.s.drafts[d] = d, struct{}{}
	}
	durable := d.durable
	d.mu.Unlock()
	d.s.mu.Unlock()
	switch {
	case taken:
		return syscall.EEXIST
	case gone:
		return nil
	}
	if err := d.save(durable); err != nil {
		return err
	}
	d.tellOnce()
	return nil
}

// syncNames makes the names in the draft's directory durable, if it is.
func (d *Draft) syncNames() error {
	d.mu.RLock()
	durable := d.durable
	d.mu.RUnlock()
	if !durable {
		return nil
	}
	return device.SyncDir(d.dir)
}
