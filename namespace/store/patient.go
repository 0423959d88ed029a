package store

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hearthfs/hearth/internal/device"
)

// syncLooks is how many looks of the watchdog (LookOut) a sync may take, since others' writes may go
// first. With the look that sees it begin, that is twice the patience of another operation.
const syncLooks = 2*device.Looks - 1

// patient is a disk that may stop answering (package device). An operation that takes longer than the
// patience fails, and is abandoned. Until it has come back, each new operation fails at once. Each
// operation has memory of its own, since an abandoned one may still complete at any later time.
type patient struct {
	vfs.FS
	guard *device.Guard
}

func newPatient(on vfs.FS, patience time.Duration) *patient {
	return &patient{on, device.New(device.Options{Patience: patience, MaxLeft: 1})}
}

// within runs op on a disk. undo, which may be nil, gets a result that came too late.
func within[T any](p *patient, what, name string, op func() (T, error), undo func(T)) (v T, err error) {
	var got T
	var failed error
	c := device.NewCall(func() { got, failed = op() }, func() {
		if failed == nil && undo != nil {
			undo(got)
		}
	})
	if what == "sync" {
		c.Looks = syncLooks
	}
	if !p.guard.Do(context.Background(), c) {
		return v, p.stalled(what, name)
	}
	return got, failed
}

// do is within for an operation without a result.
func (p *patient) do(what, name string, op func() error) error {
	_, err := within(p, what, name, func() (struct{}, error) { return struct{}{}, op() }, nil)
	return err
}

func (p *patient) stalled(what, name string) error {
	return &os.PathError{Op: what, Path: name, Err: fmt.Errorf("the disk does not answer: %w", syscall.ETIMEDOUT)}
}

func (p *patient) file(what, name string, open func() (vfs.File, error)) (vfs.File, error) {
	f, err := within(p, what, name, open, func(f vfs.File) { _ = f.Close() })
	if err != nil {
		return nil, err
	}
	return &patientFile{File: f, p: p, name: name}, nil
}

// Unwrap returns nil, so that Pebble has no way around us.
func (p *patient) Unwrap() vfs.FS { return nil }

// Create is part of vfs.FS, as is what follows.
func (p *patient) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return p.file("create", name, func() (vfs.File, error) { return p.FS.Create(name, c) })
}

// Link is part of vfs.FS.
func (p *patient) Link(from, to string) error {
	return p.do("link", to, func() error { return p.FS.Link(from, to) })
}

// Open is part of vfs.FS.
func (p *patient) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.file("open", name, func() (vfs.File, error) { return p.FS.Open(name, opts...) })
}

// OpenReadWrite is part of vfs.FS.
func (p *patient) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.file("open", name, func() (vfs.File, error) { return p.FS.OpenReadWrite(name, c, opts...) })
}

// OpenDir is part of vfs.FS.
func (p *patient) OpenDir(name string) (vfs.File, error) {
	return p.file("open", name, func() (vfs.File, error) { return p.FS.OpenDir(name) })
}

// Remove is part of vfs.FS.
func (p *patient) Remove(name string) error {
	return p.do("remove", name, func() error { return p.FS.Remove(name) })
}

// RemoveAll is part of vfs.FS.
func (p *patient) RemoveAll(name string) error {
	return p.do("remove", name, func() error { return p.FS.RemoveAll(name) })
}

// Rename is part of vfs.FS.
func (p *patient) Rename(from, to string) error {
	return p.do("rename", from, func() error { return p.FS.Rename(from, to) })
}

// ReuseForWrite is part of vfs.FS.
func (p *patient) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return p.file("reuse", from, func() (vfs.File, error) { return p.FS.ReuseForWrite(from, to, c) })
}

// MkdirAll is part of vfs.FS.
func (p *patient) MkdirAll(name string, perm os.FileMode) error {
	return p.do("make", name, func() error { return p.FS.MkdirAll(name, perm) })
}

// Lock is part of vfs.FS.
func (p *patient) Lock(name string) (io.Closer, error) {
	return within(p, "lock", name, func() (io.Closer, error) { return p.FS.Lock(name) }, func(c io.Closer) { _ = c.Close() })
}

// List is part of vfs.FS.
func (p *patient) List(dir string) ([]string, error) {
	return within(p, "list", dir, func() ([]string, error) { return p.FS.List(dir) }, nil)
}

// Stat is part of vfs.FS.
func (p *patient) Stat(name string) (vfs.FileInfo, error) {
	return within(p, "stat", name, func() (vfs.FileInfo, error) { return p.FS.Stat(name) }, nil)
}

// GetDiskUsage is part of vfs.FS.
func (p *patient) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	return within(p, "statfs", path, func() (vfs.DiskUsage, error) { return p.FS.GetDiskUsage(path) }, nil)
}

// patientFile is an open file of a patient disk.
type patientFile struct {
	vfs.File
	p    *patient
	name string
	busy sync.RWMutex // read-locked by operations that have not come back
}

// Read is part of vfs.File, as is what follows.
func (f *patientFile) Read(b []byte) (int, error) { return f.read(b, f.File.Read) }

// ReadAt is part of vfs.File.
func (f *patientFile) ReadAt(b []byte, off int64) (int, error) {
	return f.read(b, func(b []byte) (int, error) { return f.File.ReadAt(b, off) })
}

func (f *patientFile) read(b []byte, op func([]byte) (int, error)) (int, error) {
	own := make([]byte, len(b))
	n, err := within(f.p, "read", f.name, f.counted(op, own), nil)
	copy(b, own[:n])
	return n, err
}

// Write is part of vfs.File.
func (f *patientFile) Write(b []byte) (int, error) { return f.write(b, f.File.Write) }

// WriteAt is part of vfs.File.
func (f *patientFile) WriteAt(b []byte, off int64) (int, error) {
	return f.write(b, func(b []byte) (int, error) { return f.File.WriteAt(b, off) })
}

func (f *patientFile) write(b []byte, op func([]byte) (int, error)) (int, error) {
	own := append([]byte(nil), b...)
	return within(f.p, "write", f.name, f.counted(op, own), nil)
}

// counted makes Close wait for an operation on the file.
func (f *patientFile) counted(op func([]byte) (int, error), b []byte) func() (int, error) {
	return func() (int, error) {
		f.busy.RLock()
		defer f.busy.RUnlock()
		return op(b)
	}
}

// Sync is part of vfs.File.
func (f *patientFile) Sync() error { return f.p.do("sync", f.name, f.File.Sync) }

// SyncData is part of vfs.File.
func (f *patientFile) SyncData() error { return f.p.do("sync", f.name, f.File.SyncData) }

// SyncTo is part of vfs.File.
func (f *patientFile) SyncTo(n int64) (bool, error) {
	return within(f.p, "sync", f.name, func() (bool, error) { return f.File.SyncTo(n) }, nil)
}

// Stat is part of vfs.File.
func (f *patientFile) Stat() (vfs.FileInfo, error) {
	return within(f.p, "stat", f.name, f.File.Stat, nil)
}

// Preallocate is part of vfs.File.
func (f *patientFile) Preallocate(off, n int64) error {
	return f.p.do("allocate", f.name, func() error { return f.File.Preallocate(off, n) })
}

// Prefetch is part of vfs.File.
func (f *patientFile) Prefetch(off, n int64) error {
	return f.p.do("prefetch", f.name, func() error { return f.File.Prefetch(off, n) })
}

// Fd is part of vfs.File. It returns no descriptor, which would be a way around us.
func (f *patientFile) Fd() uintptr { return vfs.InvalidFd }

// Close is part of vfs.File. On a disk that hangs it returns an error, and closes the file in the
// background, once all operations on the file have come back.
func (f *patientFile) Close() error {
	if f.p.guard.Left() > 0 {
		go func() {
			f.busy.Lock()
			defer f.busy.Unlock()
			_ = f.File.Close()
		}()
		return f.p.stalled("close", f.name)
	}
	return f.p.do("close", f.name, f.File.Close)
}
