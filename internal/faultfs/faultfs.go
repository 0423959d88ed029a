// Package faultfs is a FUSE file system of one file that can be made to fail. It is the test tool
// for sick disks.
//
// Mount shows a directory with the file Name in it. Its bytes are in a file on another file system,
// to which reads and writes are passed while no fault is set. A test puts a loop device over it,
// ext4 on that, and a cache directory there, since a cache directory within a FUSE mount is
// refused.
//
// Set chooses the fault that reads and writes meet from then on: none, EIO, ENOSPC or EROFS for
// writes, reads that take 100 ms, or a stall. Stalled requests get no answer until another fault is
// set, or until Options.Watchdog has passed. The watchdog is needed because a process that waits in
// the kernel for a disk cannot be killed.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Name of the one file in the mount.
const Name = "disk"

// Fault is the fault that reads and writes meet.
type Fault string

// The faults.
const (
	None     Fault = "none"
	IOError  Fault = "eio"      // reads and writes fail with EIO
	NoSpace  Fault = "enospc"   // writes fail with ENOSPC
	ReadOnly Fault = "readonly" // writes fail with EROFS
	Slow     Fault = "slow"     // each read takes slowRead
	Stall    Fault = "stall"    // no answer, until the fault is taken away
)

// slowRead is many times what a busy disk takes, and much less than a stall.
const slowRead = 100 * time.Millisecond

// ErrUnknown says that there is no such fault.
var ErrUnknown = errors.New("unknown fault: none, eio, enospc, readonly, slow or stall")

// Options of a mount.
type Options struct {
	// Dir is the mount point, an empty directory.
	Dir string
	// File has the bytes. It exists, and its size stays.
	File string
	// Watchdog is how long a stall lasts at most. 0 means 60 s.
	Watchdog time.Duration
}

// FS is a mounted fault file system.
type FS struct {
	server   *fuse.Server
	watchdog time.Duration
	file     *os.File
	stalled  atomic.Int64

	mu     sync.Mutex // guards what follows
	fault  Fault
	change chan struct{} // closed at the next Set
	timer  *time.Timer   // of the watchdog; nil means that nothing stalls
}

// Mount mounts the file system. The process that calls Mount must not use the file system: its own
// threads could wait for each other.
func Mount(o Options) (*FS, error) {
	if o.Watchdog <= 0 {
		o.Watchdog = time.Minute
	}
	file, err := os.OpenFile(o.File, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("mount fault file system: %w", err)
	}
	f := &FS{watchdog: o.Watchdog, file: file, fault: None, change: make(chan struct{})}
	f.server, err = fs.Mount(o.Dir, &root{fs: f}, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "faultfs", Name: "faultfs", DirectMount: true, MaxBackground: 256, DisableXAttrs: true,
		MaxWrite: 1 << 20, // and reads: a large one is to take slowRead as a small one does
	}})
	if err != nil {
		_ = file.Close() // it was only looked at
		return nil, fmt.Errorf("mount fault file system: %w", err)
	}
	return f, nil
}

// Set changes the fault. Stalled requests go on with the new one.
func (f *FS) Set(fault Fault) error {
	switch fault {
	case None, IOError, NoSpace, ReadOnly, Slow, Stall:
	default:
		return ErrUnknown
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if fault == Stall {
		f.timer = time.AfterFunc(f.watchdog, func() { _ = f.Set(None) })
	}
	f.fault = fault
	close(f.change)
	f.change = make(chan struct{})
	return nil
}

// Stalled is the number of requests that are waiting for the end of a stall.
func (f *FS) Stalled() int64 { return f.stalled.Load() }

// meet returns the error that a read or a write meets, once it gets an answer.
func (f *FS) meet(write bool) syscall.Errno {
	for {
		f.mu.Lock()
		fault, change := f.fault, f.change
		f.mu.Unlock()
		switch {
		case fault == Stall:
			f.stalled.Add(1)
			<-change
			f.stalled.Add(-1)
			continue
		case fault == Slow && !write:
			time.Sleep(slowRead)
		case fault == IOError:
			return syscall.EIO
		case fault == NoSpace && write:
			return syscall.ENOSPC
		case fault == ReadOnly && write:
			return syscall.EROFS
		}
		return 0
	}
}

// Close unmounts the file system. Nobody may use it any more.
func (f *FS) Close() error {
	_ = f.Set(None)
	if err := f.server.Unmount(); err != nil {
		return fmt.Errorf("unmount fault file system: %w", err)
	}
	f.server.Wait()
	return f.file.Close()
}

// Control answers POST /FAULT, and GET with the number of stalled requests.
func (f *FS) Control() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if err := f.Set(Fault(r.URL.Path[1:])); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
			return
		}
		_, _ = fmt.Fprintln(w, f.Stalled()) // the client went away
	})
}

// root is the directory of the one file.
type root struct {
	fs.Inode
	fs *FS
}

// OnAdd puts the file in its place.
func (r *root) OnAdd(ctx context.Context) {
	r.AddChild(Name, r.NewPersistentInode(ctx, &node{fs: r.fs}, fs.StableAttr{Mode: syscall.S_IFREG}), true)
}

// node is the file. It needs no handles.
type node struct {
	fs.Inode
	fs *FS
}

// Getattr returns the size of the file with the bytes.
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(n.fs.file.Fd()), &st); err != nil {
		return fs.ToErrno(err)
	}
	out.FromStat(&st)
	out.Mode = syscall.S_IFREG | 0o600
	return 0
}

// Setattr changes nothing: the size stays.
func (n *node) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return n.Getattr(ctx, h, out)
}

// Open turns the page cache off: each access meets the fault.
func (n *node) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Read reads from the file with the bytes, or meets the fault.
func (n *node) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if no := n.fs.meet(false); no != 0 {
		return nil, no
	}
	got, err := syscall.Pread(int(n.fs.file.Fd()), dest, off)
	if err != nil {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(dest[:got]), 0
}

// Write writes to the file with the bytes, or meets the fault.
func (n *node) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if no := n.fs.meet(true); no != 0 {
		return 0, no
	}
	put, err := syscall.Pwrite(int(n.fs.file.Fd()), data, off)
	return uint32(max(put, 0)), fs.ToErrno(err)
}

// Fsync does nothing: the tests cut no power.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return 0 }
