package disk

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/device"
)

const (
	// ejectAfter errors in a row within ejectWithin eject a directory. One bad sector must not
	// eject it; a dead device should within one batch of reads.
	ejectAfter  = 8
	ejectWithin = 30 * time.Second
	// fullFor is how long a file system that said "no space" is believed.
	fullFor = 10 * time.Second
	// maxBackoff bounds the exponential back-off between two attempts, in units of RetryAfter.
	maxBackoff = 32
)

// streak counts errors in a row.
type streak struct {
	n     atomic.Int32 // read without the lock, so that success costs one load
	mu    sync.Mutex   // guards first, and n's changes
	first time.Time
}

func (s *streak) ok() {
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n.Store(0)
}

// failed counts an error, and reports whether the streak is long enough to eject.
func (s *streak) failed(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n.Load() == 0 || now.Sub(s.first) > ejectWithin {
		s.first = now
		s.n.Store(0)
	}
	return s.n.Add(1) >= ejectAfter
}

// ejection means that a directory is out of use. If only writes failed, it may still be read.
type ejection struct {
	cause error
	reads bool // reads have ended, too
	at    time.Time
	again error // of the last attempt to take it back
}

// why returns the cause for people, with the error of the last attempt to take the directory back.
func (e *ejection) why() string {
	if e.again == nil {
		return e.cause.Error()
	}
	return fmt.Sprintf("%v; tried again: %v", e.cause, e.again)
}

// eject takes the directory out of use. The first cause stands, except that failing reads replace
// failing writes. False means that an earlier cause stands.
func (d *directory) eject(cause error, reads bool) bool {
	e := &ejection{cause: cause, reads: reads, at: time.Now()}
	for {
		old := d.ejection.Load()
		if old != nil && (old.reads || !reads) {
			return false
		}
		if !d.ejection.CompareAndSwap(old, e) {
			continue
		}
		if old == nil && d.events.Ejected != nil {
			d.events.Ejected(d.path, cause)
		}
		return true
	}
}

func (d *directory) writable() bool { return d.ejection.Load() == nil }

func (d *directory) readable() bool {
	e := d.ejection.Load()
	return e == nil || !e.reads
}

// writeFailed judges a failed write.
func (d *directory) writeFailed(err error) {
	d.errors.Add(1)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) { // the last by ulimit -f
		until := time.Now().Add(fullFor)
		d.full.Store(&until)
		if d.events.Full != nil {
			d.events.Full(d.path, err)
		}
		return
	}
	if shortOfDescriptors(err) {
		return
	}
	if d.writes.failed(time.Now()) {
		d.eject(fmt.Errorf("%d writes failed in a row: %w", ejectAfter, err), false)
	}
}

func (d *directory) readFailed(err error) {
	d.errors.Add(1)
	if shortOfDescriptors(err) {
		return
	}
	if d.reads.failed(time.Now()) {
		d.eject(fmt.Errorf("%d reads failed in a row: %w", ejectAfter, err), true)
	}
}

// shortOfDescriptors reports whether this process, or the machine, has too many open files. That
// says nothing about a directory: it causes a miss, or a block that is not kept.
func shortOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// tryReturn takes an ejected directory back if it works again. Only the writer changes homes and
// volumes.
func (d *directory) tryReturn(now time.Time) {
	if d.retryAt.IsZero() {
		d.retryAt = d.ejection.Load().at.Add(d.opt.RetryAfter)
	}
	if now.Before(d.retryAt) || d.guard.Left() > 0 || d.home != nil && !d.readable() {
		return // not yet, or hung operations have not come back, or the lock is not released
	}
	if err := d.reopen(); err != nil {
		d.backoff = min(max(d.backoff*2, d.opt.RetryAfter), maxBackoff*d.opt.RetryAfter)
		d.retryAt = now.Add(d.backoff)
		old := d.ejection.Load()
		d.ejection.CompareAndSwap(old, &ejection{old.cause, old.reads, old.at, err})
		return
	}
	d.backoff, d.retryAt = 0, time.Time{}
	d.writes.ok()
	d.reads.ok()
	d.full.Store(nil)
	d.look() // before the directory shows as in use, so that its limit is right
	d.ejection.Store(nil)
	if d.events.Returned != nil {
		d.events.Returned(d.path)
	}
}

// letGo closes the files of a directory that is neither read nor written any more. So the space of
// removed files becomes free, and a failing file system can be unmounted. The lock stays until the
// last reader has left, who may still drop a bad block.
func (d *directory) letGo() {
	d.retire()
	if d.retired != nil {
		select {
		case <-d.retired.closed:
			d.retired = nil
		default:
			return
		}
	}
	if d.home != nil {
		d.home.close()
		d.home = nil
	}
}

func (d *directory) retire() {
	if vol := d.volume.Swap(nil); vol != nil {
		d.retired = vol
		vol.release() // the directory's own reference; its errors are the cause already
	}
}

// reopen makes the volume anew, since failed writes left state in memory that cannot be trusted. It
// also makes the home anew if that was closed. Readers go on with the old volume until the device
// has proved itself.
func (d *directory) reopen() error {
	if d.home != nil {
		if err := device.Prove(filepath.Join(d.path, LabelFile+".probe")); err != nil {
			return err
		}
		d.retire()
	}
	if d.retired != nil {
		select {
		case <-d.retired.closed:
			d.retired = nil
		default: // two volumes on one directory would not know of each other
			return errors.New("readers have not left yet")
		}
	}
	if d.home == nil {
		if err := d.sameDisk(); err != nil {
			return err
		}
		h, err := openHome(d.path, d.node, d.opt.statfs, d.mend)
		if err != nil {
			return err
		}
		d.home, d.last = h, identity{h.id, deviceOf(d.path)}
		if d.marked.Load() {
			if err := relabel(d.path, LabelFormat); err != nil {
				return err
			}
		}
		if err := device.Prove(filepath.Join(d.path, LabelFile+".probe")); err != nil {
			return err
		}
	}
	vol, err := d.opt.open(d)
	if err != nil {
		return err
	}
	d.volume.Store(vol)
	return nil
}

// identity is how a directory is recognized.
type identity struct {
	id     string
	device uint64 // of its file system
}

// sameDisk keeps a directory from being made anew below a mount point whose file system is gone.
// The disk below was never meant for the cache.
func (d *directory) sameDisk() error {
	if text, err := ReadLabel(d.path); d.last.id == "" || err == nil && text.Directory == d.last.id {
		return nil
	}
	if now := deviceOf(d.path); now != d.last.device {
		return fmt.Errorf("cache directory %s lies on another file system than before: mount its own", d.path)
	}
	return nil
}

// deviceOf returns the number of the file system on which a path lies, or will lie.
func deviceOf(path string) uint64 {
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		err := unix.Stat(dir, &st)
		if err == nil {
			return st.Dev
		}
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return 0
		}
	}
}
