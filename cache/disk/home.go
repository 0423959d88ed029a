package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/device"
)

// home is a cache directory that this process owns: it is locked, and identified by its ids.
type home struct {
	path string
	node string   // id of the node, the same in all of its directories
	id   string   // id of this directory: placement depends on it, not on the path
	lock *os.File // holds the flock
}

// openHome makes the directory at path this process's own. It refuses (ErrRefused) what a person
// must decide. That is a directory in a FUSE mount, with other content, of another process, or of a
// newer format. node is the id that a new directory gets; "" means a new id. mended is called for
// files that had been harmed.
func openHome(path, node string, statfs statfsFunc, mended device.Mended) (_ *home, err error) {
	if err := refuseFUSE(path, statfs); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make cache directory: %w", err)
	}
	if err := refuseForeign(path); err != nil {
		return nil, err
	}
	before, _ := os.ReadDir(filepath.Join(path, segmentsDir)) // empty if the directory is new
	h := &home{path: path}
	if h.lock, err = lock(path, mended); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if err = device.ClearWay(filepath.Join(path, LabelFile), false, mended); err != nil {
		return nil, err
	}
	text, err := ReadLabel(path)
	switch {
	case err == nil && text.Format > LabelFormat:
		return nil, newerHome(path, text)
	case err == nil:
	case errors.Is(err, errLabelDamaged), errors.Is(err, fs.ErrNotExist):
		// The blocks are still valid; only the ids are new.
		if len(before) > 0 {
			mended.Tell(filepath.Join(path, LabelFile), errIdentity)
		}
		if text, err = writeLabel(path, node); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	h.node, h.id = text.Node, text.Directory
	for _, dir := range []string{segmentsDir, objectsDir, NamesDir} {
		if err := device.MakeDir(filepath.Join(path, dir), mended); err != nil {
			return nil, err
		}
	}
	device.Reclaim(filepath.Join(path, NamesDir), mended)
	if err = relabel(path, formatOf(path)); err != nil { // the last process may have died with the mark, or without a draft left
		return nil, err
	}
	return h, nil
}

var errIdentity = errors.New("it is not what was written, or was removed: the directory has a new identity, and other objects belong in it")

func newerHome(path string, text Label) error {
	return refuse("cache directory %s has format %d, this version of hearth knows %d: run the newer hearth, or give this one another directory",
		path, text.Format, LabelFormat)
}

// intact returns an error if the directory is no longer ours: it was removed or replaced.
func (h *home) intact() error {
	ours, err := h.lock.Stat()
	if err != nil {
		return fmt.Errorf("check cache directory: %w", err)
	}
	there, err := os.Stat(filepath.Join(h.path, LockFile))
	if err != nil {
		return fmt.Errorf("check cache directory: %w", err)
	}
	if !os.SameFile(ours, there) {
		return fmt.Errorf("check cache directory %s: it was replaced", h.path)
	}
	for _, dir := range []string{segmentsDir, objectsDir} {
		if fi, err := os.Stat(filepath.Join(h.path, dir)); err != nil || !fi.IsDir() {
			return fmt.Errorf("check cache directory %s: %s was removed", h.path, dir)
		}
	}
	return nil
}

const (
	// lockGrace is how long to wait for a directory that another process holds: it may be about to
	// say that it ends.
	lockGrace = time.Second
	// endGrace is how long to wait for a process that said so, while it writes its queue.
	endGrace = 30 * time.Second
	lockPoll = 20 * time.Millisecond
)

// acquire takes the lock, or says who has it.
func acquire(f *os.File, path string) error {
	for start := time.Now(); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock cache directory %s: %w", path, err)
		}
		text := make([]byte, 64)
		n, _ := f.ReadAt(text, 0)
		by := ParseLockHolder(string(text[:n]))
		patience := lockGrace
		if by.Ends {
			patience = endGrace
		}
		if by.IsSelf() || time.Since(start) > patience {
			if by.Defunct() {
				return refuseAs(ErrHung, "cache directory %s is in use by process %s, which was killed and cannot end while a reader waits for its mount: run umount -f on that, as root", path, by.PID)
			}
			return refuseAs(ErrInUse, "cache directory %s is in use by process %s: stop that one, or give this one a directory of its own", path, by.PID)
		}
	}
}

// ends writes into the lock file that this process is about to give the directory up.
func (h *home) ends() {
	self := selfHolder()
	self.Ends = true
	_, _ = h.lock.WriteAt([]byte(self.String()), 0)
}

func (h *home) close() {
	if h.lock != nil {
		_ = h.lock.Close() // the lock goes with the descriptor
	}
}

// refuseFUSE keeps the cache out of FUSE mounts. In a mount of our own, a write would wait for the
// process that waits for the write.
func refuseFUSE(path string, statfs statfsFunc) error {
	var st unix.Statfs_t
	if err := nearest(path, &st, statfs); err != nil {
		return err
	}
	if st.Type == unix.FUSE_SUPER_MAGIC {
		return refuse("cache directory %s lies in a FUSE mount: choose one on a local disk", path)
	}
	return nil
}

// refuseForeign keeps us from filling, and one day emptying, a directory of somebody else.
func refuseForeign(path string) error {
	name, err := Foreign(path)
	if err != nil {
		return fmt.Errorf("look at cache directory: %w", err)
	}
	if name != "" {
		return refuse("cache directory %s is not empty and not hearth's (it holds %q): choose another, or empty it", path, name)
	}
	return nil
}

// lock locks the directory for this process. The lock is a flock: the kernel releases it when the
// process ends, however that happens.
func lock(path string, mended device.Mended) (*os.File, error) {
	name := filepath.Join(path, LockFile)
	if err := device.ClearWay(name, false, mended); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock cache directory: %w", err)
	}
	if err := acquire(f, path); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	if err := f.Truncate(0); err == nil { // the holder's name is a courtesy, not the lock
		_, _ = f.WriteAt([]byte(selfHolder().String()), 0)
	}
	return f, nil
}

// refusal is an error that needs a person. Its text says what to do.
type refusal struct {
	text string
	kind error
}

func refuse(format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...)}
}

func refuseAs(kind error, format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...), kind: kind}
}

func (r *refusal) Error() string { return r.text }

// Is makes a refusal an ErrRefused.
func (r *refusal) Is(target error) bool {
	return target == ErrRefused || r.kind != nil && target == r.kind || target == ErrInUse && r.kind == ErrHung
}
