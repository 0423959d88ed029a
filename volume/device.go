package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Device is what a volume lies on: a namespace of an NVMe/TCP target, a block device, a plain file.
// Offsets, lengths and memory are multiples of BlockSize, and memory is aligned to 4 KiB.
type Device interface {
	io.ReaderAt
	io.WriterAt
	// Flush returns once all writes that have returned are durable.
	Flush() error
	// Discard says that nobody needs [off, off+n) any more. What it reads then is undefined.
	Discard(off, n int64) error
	// Size is the device's in bytes, as it was last seen.
	Size() int64
	// BlockSize is the unit of reads and writes in bytes: 512 to 4096.
	BlockSize() int
}

var (
	// ErrReadOnly means that a device takes no writes.
	ErrReadOnly = errors.New("the device is read-only")
	// ErrInUse means that another process, or the kernel, uses a device.
	ErrInUse = errors.New("the device is in use")
)

// readOnly reports whether a device says that it takes no writes.
func readOnly(d Device) bool {
	says, ok := d.(interface{ ReadOnly() bool })
	return ok && says.ReadOnly()
}

// File is a block device or a plain file, past the page cache where that works.
type File struct {
	name     string
	file     *os.File     // what it does last ends before its number is given back
	size     atomic.Int64 // as it was last seen
	block    int
	plain    bool // not a block device
	readOnly bool
}

// OpenFile opens a block device or a plain file. What may only be read is opened so, and takes no writes. It is locked
// against formatting while it is open, where the file system knows flock(2). That holds on this machine, and on
// others that share the file system.
func OpenFile(name string) (*File, error) {
	f := &File{name: name, block: pageSize}
	var err error
	for _, flags := range []int{unix.O_RDWR | unix.O_DIRECT, unix.O_RDWR, unix.O_RDONLY | unix.O_DIRECT, unix.O_RDONLY} {
		f.readOnly = flags&unix.O_RDWR == 0
		var fd int
		if fd, err = unix.Open(name, flags|unix.O_CLOEXEC, 0); err == nil {
			f.file = os.NewFile(uintptr(fd), name)
			break
		}
		if err != unix.EINVAL && err != unix.EROFS && err != unix.EACCES && err != unix.EPERM {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", name, err)
	}
	if err = f.lock(unix.LOCK_SH); err == unix.EWOULDBLOCK {
		err = fmt.Errorf("open volume %s: %w: another process formats it, or has locked it by flock", name, ErrInUse)
	} else { // another error: the file system has no locks
		err = f.measure()
	}
	if err != nil {
		_ = f.file.Close()
		return nil, err
	}
	return f, nil
}

// own takes the file or device for this process alone. A file system without locks gives it to everybody. share gives
// it back.
func (f *File) own() error {
	if f.lock(unix.LOCK_EX) == unix.EWOULDBLOCK {
		return fmt.Errorf("%w: another process has a lock on it (flock), as a node that has it attached does; "+
			"detach it there (hearth volume detach), or end that process (fuser -v names it)", ErrInUse)
	}
	if f.plain {
		return nil
	}
	fd, err := unix.Open(f.name, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0) // open(2): EBUSY if the kernel uses it
	if err == unix.EBUSY {
		return fmt.Errorf("%w: it is mounted, or a part of another device, as lsblk tells", ErrInUse)
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	return nil
}

func (f *File) share() { _ = f.lock(unix.LOCK_SH) } // nobody else has it

func (f *File) lock(how int) error {
	return f.with(func(fd int) error { return unix.Flock(fd, how|unix.LOCK_NB) })
}

// with calls do with the file's number, which stays the file's meanwhile. After Close the error is fs.ErrClosed.
func (f *File) with(do func(fd int) error) error {
	raw, err := f.file.SyscallConn()
	if err != nil {
		return err
	}
	if raw.Control(func(fd uintptr) { err = do(int(fd)) }) != nil { // the one reason that it has
		return fs.ErrClosed
	}
	return err
}

// cause is an error of a file without its name, which stands in the message already.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (f *File) stat(st *unix.Stat_t) error {
	return f.with(func(fd int) error { return unix.Fstat(fd, st) })
}

// end is where a block device ends. Reads and writes name their place, whatever the offset.
func (f *File) end() (size int64, err error) {
	err = f.with(func(fd int) (err error) {
		size, err = unix.Seek(fd, 0, io.SeekEnd)
		return err
	})
	return size, err
}

// ReadOnly reports whether the file was opened without the right to write.
func (f *File) ReadOnly() bool { return f.readOnly }

// measure finds the size and the block size.
func (f *File) measure() error {
	var st unix.Stat_t
	if err := f.stat(&st); err != nil {
		return fmt.Errorf("stat volume %s: %w", f.name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.plain = true
		f.size.Store(st.Size)
		return nil
	case unix.S_IFBLK:
	default:
		return fmt.Errorf("volume %s: neither a block device nor a plain file: %w", f.name, fs.ErrInvalid)
	}
	size, err := f.end()
	if err != nil {
		return fmt.Errorf("find the size of volume %s: %w", f.name, err)
	}
	err = f.with(func(fd int) (err error) {
		f.block, err = unix.IoctlGetInt(fd, unix.BLKSSZGET)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the block size of volume %s: %w", f.name, err)
	}
	f.size.Store(size)
	return nil
}

// Size is the file's or device's size in bytes now.
func (f *File) Size() int64 {
	var st unix.Stat_t
	if !f.plain {
		if size, err := f.end(); err == nil {
			f.size.Store(size)
		}
	} else if f.stat(&st) == nil {
		f.size.Store(st.Size)
	}
	return f.size.Load()
}

// BlockSize is the device's logical block size in bytes, and 4096 for a file.
func (f *File) BlockSize() int { return f.block }

// ReadAt fills p, or returns an error.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.file.ReadAt(p, off)
	if err == io.EOF {
		err = fmt.Errorf("the device ends at %d: %w", f.Size(), errSmaller)
	}
	if err != nil {
		return n, fmt.Errorf("read volume %s at %d: %w", f.name, off, cause(err))
	}
	return n, nil
}

// WriteAt writes all of p, or returns an error.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if f.readOnly {
		return 0, fmt.Errorf("write volume %s: %w", f.name, ErrReadOnly)
	}
	if size := f.Size(); off < 0 || off+int64(len(p)) > size { // a file would grow
		return 0, fmt.Errorf("write volume %s at %d: the device ends at %d: %w", f.name, off, size, errSmaller)
	}
	n, err := f.file.WriteAt(p, off)
	if err != nil {
		return n, fmt.Errorf("write volume %s at %d: %w", f.name, off, cause(err))
	}
	return n, nil
}

// Flush makes all writes durable.
func (f *File) Flush() error {
	if f.readOnly {
		return nil
	}
	if err := f.with(unix.Fdatasync); err != nil {
		return fmt.Errorf("flush volume %s: %w", f.name, err)
	}
	return nil
}

// Discard frees a range, where the file system or the device can. It is no error if it cannot.
func (f *File) Discard(off, n int64) error {
	if f.readOnly {
		return fmt.Errorf("discard of volume %s: %w", f.name, ErrReadOnly)
	}
	err := f.with(func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if err != nil && err != unix.EOPNOTSUPP && err != unix.ENODEV && err != unix.ENOSYS {
		return fmt.Errorf("discard of volume %s at %d: %w", f.name, off, err)
	}
	return nil
}

// Close closes the file, once the last operation on it has come back. Nothing is buffered here that could be lost.
func (f *File) Close() error { return f.file.Close() }
