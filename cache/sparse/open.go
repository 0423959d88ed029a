package sparse

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
)

const (
	dataSuffix = ".data"
	sumsSuffix = ".sums"
)

// parseName parses a name of ours; ok is false for a foreign one.
func parseName(name string) (version [16]byte, data, ok bool) {
	stem, data := strings.CutSuffix(name, dataSuffix)
	if !data {
		if stem, ok = strings.CutSuffix(name, sumsSuffix); !ok {
			return version, false, false
		}
	}
	raw, err := hex.DecodeString(stem)
	if err != nil || len(raw) != len(version) || strings.ToLower(stem) != stem {
		return version, false, false
	}
	return [16]byte(raw), data, true
}

// halves describes the files that were found of an object.
type halves struct {
	size, alloc int64
	whole       bool
	data, sums  bool
}

// scan learns objects and sizes from names and inodes. A crash between two unlinks or creates
// leaves half of a pair, which is removed.
func (f *Files) scan() error {
	dir, err := os.Open(f.opt.Dir)
	if err != nil {
		return fmt.Errorf("list cache directory: %w", err)
	}
	defer func() { _ = dir.Close() }() // it was only read
	found := make(map[[16]byte]halves)
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			f.scanName(found, name)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("list cache directory: %w", err)
		}
	}
	state := f.fresh()
	f.mu.Lock()
	defer f.mu.Unlock()
	for version, h := range found {
		x := &object{version: version, index: index{size: h.size, whole: h.whole}, alloc: h.alloc, state: state, lent: true}
		switch {
		case !h.data || !h.sums || h.size == 0:
			f.counts.orphans.Add(1)
			_ = unix.Unlinkat(f.dir, x.dataName(), 0) // the next start finds files that stay
			_ = unix.Unlinkat(f.dir, x.sumsName(), 0)
		case !f.opt.Pool.Claim(objectBytes):
			f.unindexed.add(1, h.alloc)
			f.used.Add(h.alloc)
		default:
			f.insertLocked(x)
		}
	}
	return nil
}

func (f *Files) scanName(found map[[16]byte]halves, name string) {
	if !f.learn(found, name) && name != formatName && name != formatName+".tmp" {
		f.counts.foreign.Add(1)
	}
}

// learn adds what is found under a name of ours.
func (f *Files) learn(found map[[16]byte]halves, name string) (ours bool) {
	version, data, ours := parseName(name)
	var st unix.Stat_t
	if !ours || unix.Fstatat(f.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	h := found[version]
	h.alloc += allocated(&st)
	if data {
		h.data, h.size = true, st.Size
		h.whole = allocated(&st) >= st.Size
	} else {
		h.sums = true
	}
	found[version] = h
	return true
}

func (f *Files) insertLocked(x *object) {
	f.objects[x.version] = x
	f.sample.add(x)
	f.used.Add(x.alloc)
	f.counts.index.Add(objectBytes)
}

// acquire takes a ref to an object that is held, with its descriptors open and its index in memory.
// It returns ErrMiss if the object is not held or being removed.
func (f *Files) acquire(ctx context.Context, version [16]byte) (*object, error) {
	f.mu.Lock()
	x := f.objects[version]
	if f.closed {
		f.mu.Unlock()
		return nil, errClosed
	}
	if x == nil || x.reaping || x.doomed && x.opens == 0 {
		f.mu.Unlock()
		return nil, hearth.ErrMiss
	}
	return x, f.pinLocked(ctx, x)
}

// pinLocked takes a ref and makes sure that descriptors and index are there: the first caller opens
// them, the others wait for that (singleflight). It unlocks. After an error no ref is held.
func (f *Files) pinLocked(ctx context.Context, x *object) error {
	x.refs++
	f.pins++
	var err error
	for err == nil && (x.handle == nil || x.extents == nil) {
		wait := x.opening
		switch {
		case x.doomed && x.opens == 0:
			err = hearth.ErrMiss
		case wait != nil:
			f.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			f.mu.Lock()
		default:
			x.opening = make(chan struct{})
			f.mu.Unlock()
			err = f.prepare(x)
			f.mu.Lock()
			close(x.opening)
			x.opening = nil
		}
	}
	if err == nil {
		f.handles.touch(x)
		f.indexes.touch(x)
	}
	f.mu.Unlock()
	if err != nil {
		f.unpin(x)
	}
	return err
}

// unpin releases a ref. The last one of a doomed or empty object unlinks it; unpin returns the
// bytes that this freed.
func (f *Files) unpin(x *object) (freed int64) {
	f.mu.Lock()
	x.refs--
	f.pins--
	if x.refs == 0 && x.extents != nil && x.held == 0 {
		x.doomed = true
	}
	reap := x.doomed && x.refs == 0 && x.opens == 0 && !x.reaping && !f.closed
	var h *handle
	if reap {
		x.reaping = true
		h = f.takeHandleLocked(x)
		f.dropIndexLocked(x)
		f.sample.update(x)
		f.pins++ // Close waits for the unlink
	}
	if f.closed && f.pins == 0 {
		close(f.drained)
	}
	f.mu.Unlock()
	if !reap {
		return 0
	}
	spared := f.spared(x, h)
	h.close()
	return f.reap(x, spared)
}

// reap unlinks a doomed object that nobody uses, or lets it wait for its readers. The data goes
// first: if that fails nothing has changed, and a later eviction tries again.
func (f *Files) reap(x *object, spared bool) (freed int64) {
	var err error
	if !spared && !x.unmade {
		err = f.unlink(x.dataName())
		if err == nil {
			err = f.unlink(x.sumsName())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins--
	if f.closed && f.pins == 0 {
		close(f.drained)
	}
	switch { // reaping stays true of a removed object, which waiting may still hold
	case spared:
		x.reaping = false
		f.waiting = append(f.waiting, x)
		return 0
	case err != nil:
		x.reaping = false
		f.counts.errors.Add(1)
		return 0
	}
	f.sample.remove(x)
	delete(f.objects, x.version)
	f.opt.Pool.Unclaim(objectBytes)
	f.counts.index.Add(-objectBytes)
	f.used.Add(-x.alloc)
	f.counts.evicted.Add(x.alloc)
	return x.alloc
}

func (f *Files) unlink(name string) error {
	err := unix.Unlinkat(f.dir, name, 0)
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// prepare opens what the object lacks. Only the goroutine that set x.opening calls it, and holds a
// ref, so nobody else changes handle and extents meanwhile.
func (f *Files) prepare(x *object) error {
	h, err := x.handle, error(nil)
	if h == nil {
		if x.unmade {
			h, err = f.create(x)
		} else {
			h, err = f.open(x)
		}
	}
	if err != nil {
		f.mu.Lock()
		x.doomed = x.doomed || x.unmade || errors.Is(err, unix.ENOENT)
		f.sample.update(x)
		f.mu.Unlock()
		if errors.Is(err, unix.ENOENT) {
			return hearth.ErrMiss // somebody removed it by hand
		}
		f.counts.errors.Add(1)
		return err
	}
	f.mu.Lock()
	x.handle = h
	f.handles.touch(x)
	var old []*handle
	for f.handles.list.Len() > f.opt.MaxOpen {
		o := f.handles.oldest()
		if o == nil {
			break // all are in use: as many as there are callers, no more
		}
		old = append(old, f.takeHandleLocked(o))
	}
	load := x.extents == nil
	f.mu.Unlock()
	for _, o := range old {
		o.close()
	}
	if load {
		return f.load(x)
	}
	return nil
}

func (f *Files) takeHandleLocked(x *object) *handle {
	h := x.handle
	x.handle = nil
	f.handles.remove(x)
	return h
}

// path is for messages; files are reached by their names below f.dir.
func (f *Files) path(name string) string { return filepath.Join(f.opt.Dir, name) }

func (f *Files) mended(name string, cause error) { f.opt.Events.Mended.Tell(f.path(name), cause) }

// open opens both descriptors.
func (f *Files) open(x *object) (*handle, error) {
	data, odirect, err := f.openData(x, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.path(x.dataName()), err)
	}
	sums, err := device.OpenAt(f.dir, x.sumsName(), unix.O_RDWR|unix.O_NOFOLLOW, 0, f.mended)
	if err != nil {
		unix.Close(data)
		return nil, fmt.Errorf("open %s: %w", f.path(x.sumsName()), err)
	}
	return &handle{data: data, sums: sums, direct: odirect}, nil
}

// openData opens the data file, without O_DIRECT if that is refused.
func (f *Files) openData(x *object, flags int) (fd int, odirect bool, err error) {
	flags |= unix.O_RDWR | unix.O_NOFOLLOW
	if f.direct.Load() {
		fd, err = device.OpenAt(f.dir, x.dataName(), flags|unix.O_DIRECT, 0o600, f.mended)
		if err != unix.EINVAL {
			return fd, true, err
		}
		f.direct.Store(false)
	}
	fd, err = device.OpenAt(f.dir, x.dataName(), flags&^unix.O_EXCL, 0o600, f.mended)
	return fd, false, err
}

// create makes both files of a new object; after a failure it leaves nothing behind. The sidecar
// comes first: alone it is an orphan, which takes one block of the file system.
func (f *Files) create(x *object) (*handle, error) {
	flags := unix.O_CREAT | unix.O_EXCL | unix.O_RDWR | unix.O_CLOEXEC
	sums, err := unix.Openat(f.dir, x.sumsName(), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", f.path(x.sumsName()), err)
	}
	h := &handle{sums: sums, data: -1}
	err = pwrite(sums, header{formatVersion, x.version, x.size}.encode(), 0)
	if err == nil {
		h.data, h.direct, err = f.openData(x, unix.O_CREAT|unix.O_EXCL)
	}
	if err == nil {
		err = unix.Ftruncate(h.data, x.size)
	}
	if err != nil {
		h.close()
		if h.data >= 0 {
			_ = f.unlink(x.dataName()) // the next start finds a file that stays
		}
		_ = f.unlink(x.sumsName())
		return nil, fmt.Errorf("create %s: %w", f.path(x.dataName()), err)
	}
	f.mu.Lock()
	x.unmade = false
	f.mu.Unlock()
	return h, nil
}
