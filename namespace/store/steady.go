package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errBusy says that another process, or another Store of this process, uses the directory.
var errBusy = errors.New("another process uses it")

// steady is a file system that never reports a failed write. Until the first failure it is the disk.
// From then on the disk is not changed, so that a later start can open what is there, as after a crash.
// Writes to logs and manifests are discarded, since nobody reads those again. Other new files live in
// memory. A file that was half written is copied into memory first. Removed files are only hidden.
type steady struct {
	vfs.FS
	mem     *vfs.MemFS
	onIll   func(error)
	tooMuch func(int64)
	limit   int64
	used    atomic.Int64 // bytes of files in mem
	ill     atomic.Pointer[error]
	retired atomic.Bool // its database is not in use any more: its memory does not matter
	// idle has a log's sync do nothing but while durable is above 0. So Pebble's syncs write a log to the operating system,
	// as often as there are commits, and wait for the device only where somebody asks for that.
	idle    *atomic.Bool
	durable atomic.Int64

	mu     sync.Mutex      // guards the rest
	inMem  map[string]bool // files that are in mem, whatever the disk holds
	hidden map[string]bool // files of the disk that were removed or renamed since
}

func newSteady(disk vfs.FS, onIll func(error), tooMuch func(int64)) *steady {
	return &steady{FS: disk, mem: vfs.NewMem(), onIll: onIll, tooMuch: tooMuch, idle: new(atomic.Bool),
		inMem: map[string]bool{}, hidden: map[string]bool{}}
}

// errMemory is the cause in a store that is in memory by choice.
var errMemory = errors.New("kept in memory")

// fail makes the file system ill. A nil cause means that it is in memory by choice.
func (f *steady) fail(cause error) {
	told := f.onIll
	if cause == nil {
		cause, told = errMemory, nil
	}
	if f.ill.CompareAndSwap(nil, &cause) && told != nil {
		told(cause)
	}
}

// cause is why the file system is ill. Nil means that it is well, or in memory by choice.
func (f *steady) cause() error {
	if p := f.ill.Load(); p != nil && !errors.Is(*p, errMemory) {
		return *p
	}
	return nil
}

func (f *steady) isIll() bool { return f.ill.Load() != nil }

// Unwrap returns nil, so that Pebble has no way around us.
func (f *steady) Unwrap() vfs.FS { return nil }

// unread reports whether a file is only written, and never read, while the process lives.
func unread(name string) bool {
	base := filepath.Base(name)
	return strings.HasSuffix(base, ".log") || strings.HasPrefix(base, "MANIFEST")
}

// inMemory reports whether a name is served from memory.
func (f *steady) inMemory(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inMem[name]
}

func (f *steady) gone(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hidden[name]
}

// Create is part of vfs.FS.
func (f *steady) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !f.isIll() {
		disk, err := f.FS.Create(name, c)
		if err == nil {
			return &file{File: disk, fs: f, name: name}, nil
		}
		f.fail(err)
	}
	return f.createInMemory(name, nil)
}

// createInMemory makes a file in memory that begins with content.
func (f *steady) createInMemory(name string, content []byte) (vfs.File, error) {
	f.forgetMemory(name)
	if err := f.mem.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	m, err := f.mem.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.inMem[name] = true
	delete(f.hidden, name)
	f.mu.Unlock()
	made := &file{File: m, fs: f, name: name, mem: true}
	if len(content) > 0 {
		_, err = made.Write(content)
	}
	return made, err
}

// forgetMemory removes a file from memory, if it is there.
func (f *steady) forgetMemory(name string) bool {
	f.mu.Lock()
	was := f.inMem[name]
	delete(f.inMem, name)
	f.mu.Unlock()
	if !was {
		return false
	}
	if info, err := f.mem.Stat(name); err == nil {
		f.used.Add(-info.Size())
	}
	_ = f.mem.Remove(name)
	return true
}

// Open is part of vfs.FS.
func (f *steady) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	switch {
	case f.inMemory(name):
		return f.mem.Open(name)
	case f.gone(name):
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	return f.FS.Open(name, opts...)
}

// OpenReadWrite is part of vfs.FS.
func (f *steady) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if !f.isIll() {
		disk, err := f.FS.OpenReadWrite(name, c, opts...)
		if err == nil {
			return &file{File: disk, fs: f, name: name}, nil
		}
		f.fail(err)
	}
	if f.inMemory(name) {
		return f.mem.OpenReadWrite(name, c)
	}
	content, _ := f.read(name) // what cannot be read is not there
	return f.createInMemory(name, content)
}

// read returns the content of a file on the disk.
func (f *steady) read(name string) ([]byte, error) {
	if f.gone(name) {
		return nil, os.ErrNotExist
	}
	disk, err := f.FS.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = disk.Close() }() // it was only read
	return io.ReadAll(disk)
}

// OpenDir is part of vfs.FS.
func (f *steady) OpenDir(name string) (vfs.File, error) {
	if !f.isIll() {
		d, err := f.FS.OpenDir(name)
		if err == nil {
			return &file{File: d, fs: f, name: name, dir: true}, nil
		}
		f.fail(err)
	}
	if err := f.mem.MkdirAll(name, 0o700); err != nil {
		return nil, err
	}
	return f.mem.OpenDir(name)
}

// Remove is part of vfs.FS.
func (f *steady) Remove(name string) error {
	if f.forgetMemory(name) {
		f.hide(name)
		return nil
	}
	if !f.isIll() {
		err := f.FS.Remove(name)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return err
		}
		f.fail(err)
	}
	if f.gone(name) {
		return os.ErrNotExist
	}
	f.hide(name)
	return nil
}

func (f *steady) hide(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hidden[name] = true
}

// RemoveAll is part of vfs.FS.
func (f *steady) RemoveAll(name string) error {
	if f.isIll() {
		return f.Remove(name)
	}
	return f.FS.RemoveAll(name)
}

// Rename is part of vfs.FS.
func (f *steady) Rename(from, to string) error {
	if !f.isIll() {
		err := f.FS.Rename(from, to)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return err
		}
		f.fail(err)
	}
	return f.move(from, to)
}

// move renames by a copy in memory; what is renamed is small or was just written.
func (f *steady) move(from, to string) error {
	var content []byte
	var err error
	if f.inMemory(from) {
		var m vfs.File
		if m, err = f.mem.Open(from); err == nil {
			content, err = io.ReadAll(m)
			err = errors.Join(err, m.Close())
		}
	} else {
		content, err = f.read(from)
	}
	if err != nil {
		return err
	}
	m, err := f.createInMemory(to, content)
	if err != nil {
		return err
	}
	f.forgetMemory(from)
	f.hide(from)
	return m.Close()
}

// Link is part of vfs.FS.
func (f *steady) Link(from, to string) error {
	if !f.isIll() {
		return f.FS.Link(from, to)
	}
	content, err := f.read(from)
	if err != nil {
		return err
	}
	m, err := f.createInMemory(to, content)
	if err != nil {
		return err
	}
	return m.Close()
}

// ReuseForWrite is part of vfs.FS; only logs are reused.
func (f *steady) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !f.isIll() {
		disk, err := f.FS.ReuseForWrite(from, to, c)
		if err == nil {
			return &file{File: disk, fs: f, name: to}, nil
		}
		f.fail(err)
	}
	if err := f.Remove(from); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return f.createInMemory(to, nil)
}

// MkdirAll is part of vfs.FS.
func (f *steady) MkdirAll(dir string, perm os.FileMode) error {
	if !f.isIll() {
		if err := f.FS.MkdirAll(dir, perm); err == nil {
			return nil
		} else {
			f.fail(err)
		}
	}
	return f.mem.MkdirAll(dir, perm)
}

// Lock is part of vfs.FS. A lock that somebody else holds is the only failure that it reports.
func (f *steady) Lock(name string) (io.Closer, error) {
	if !f.isIll() {
		l, err := f.FS.Lock(name)
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES) && exists(f.FS, name),
			strings.Contains(err.Error(), "lock held by current process"):
			return nil, errBusy
		}
		f.fail(err)
	}
	if err := f.mem.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	return f.mem.Lock(name)
}

func exists(on vfs.FS, name string) bool {
	_, err := on.Stat(name)
	return err == nil
}

// List is part of vfs.FS.
func (f *steady) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	if err != nil && !f.isIll() {
		return names, err
	}
	inMem, memErr := f.mem.List(dir)
	if err != nil && memErr != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	names = slices.DeleteFunc(names, func(n string) bool {
		p := filepath.Join(dir, n)
		return f.hidden[p] || f.inMem[p]
	})
	return append(names, slices.DeleteFunc(inMem, func(n string) bool { return !f.inMem[filepath.Join(dir, n)] })...), nil
}

// Stat is part of vfs.FS.
func (f *steady) Stat(name string) (vfs.FileInfo, error) {
	switch {
	case f.inMemory(name):
		return f.mem.Stat(name)
	case f.gone(name):
		return nil, &os.PathError{Op: "stat", Path: name, Err: os.ErrNotExist}
	}
	info, err := f.FS.Stat(name)
	if err != nil && f.isIll() {
		return f.mem.Stat(name) // a directory, perhaps
	}
	return info, err
}

// GetDiskUsage is part of vfs.FS.
func (f *steady) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := f.FS.GetDiskUsage(path)
	if err != nil { // only paces deletions
		return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
	}
	return u, nil
}
