package device

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file reads and writes files past the page cache, where the file system takes O_DIRECT. Then
// offsets and memory are aligned to 4 KiB.

// pageSize is the alignment that O_DIRECT wants on every file system that we know.
const pageSize = 4096

// Aligned returns n bytes of memory that O_DIRECT takes. n is a multiple of 4 KiB.
func Aligned(n int) []byte {
	b := make([]byte, n+pageSize)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) % pageSize)
	return b[skip : skip+n : skip+n]
}

// Directory is a directory whose files may be read and written past the page cache.
type Directory struct {
	Path string
	// Direct says that O_DIRECT works here.
	Direct bool
	// Look says that nothing is changed: files are opened for reading only.
	Look bool
	// Tap sees every change before it is made, and may forbid it. Only tests set it.
	Tap func(Change) error
	// TapSync is the same for each sync of a file, or of the names ("."). Any goroutine may call it.
	TapSync func(name string) error
	// Mended is told of a file that was harmed and is in order again.
	Mended Mended
}

// Change is one change of a Directory, as a crash test replays it.
type Change struct {
	// What is one of probe, create, write, punch, remove and rename.
	What, Name string
	Off        int64
	Data       []byte // of a write
	N          int64  // of a punch
	To         string // of a rename
}

func (d *Directory) announce(c Change) error {
	if d.Tap == nil {
		return nil
	}
	return d.Tap(c)
}

func (d *Directory) announceSync(name string) error {
	if d.TapSync == nil {
		return nil
	}
	return d.TapSync(name)
}

// Full is the path of a file of that name.
func (d *Directory) Full(name string) string { return filepath.Join(d.Path, name) }

// Clear removes entries that have one of our names and are no regular files, since they stand in
// the way of our files. It also removes the file temp, which a process was writing when it ended:
// it may be large, and nobody would count it.
func (d *Directory) Clear(ours func(name string) bool, temp string) error {
	names, err := os.ReadDir(d.Path)
	if err != nil {
		return fmt.Errorf("list %s: %w", d.Path, err)
	}
	for _, e := range names {
		if e.Type().IsRegular() && e.Name() != temp || !ours(e.Name()) {
			continue
		}
		if err := os.RemoveAll(d.Full(e.Name())); err != nil {
			return fmt.Errorf("clear %s: %w", d.Full(e.Name()), err)
		}
	}
	return nil
}

// Probe tests whether this file system takes O_DIRECT. Some file systems accept it at open and
// refuse it at the first write. Where there is no room to write, a read must tell; where there is
// none for a file either, the page cache serves as well.
func (d *Directory) Probe() error {
	name := d.Full("probe.tmp")
	if err := d.announce(Change{What: "probe"}); err != nil {
		return nil // a test wants to do without O_DIRECT
	}
	defer func() { _ = os.Remove(name) }() // it is empty, and the next probe writes it anew
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_DIRECT, 0o600)
	if errors.Is(err, unix.EINVAL) || noRoom(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, Aligned(pageSize), 0)
	if noRoom(err) {
		_, err = unix.Pread(fd, Aligned(pageSize), 0)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	d.Direct = err == nil
	return nil
}

// noRoom reports whether a file system is full, which is no failure of its device.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// ProbeRead tests by an existing file whether O_DIRECT works for reading.
func (d *Directory) ProbeRead(name string) {
	d.Direct = true
	f, err := d.Open(name, 0, true)
	if err == nil {
		err = f.ReadAt(Aligned(pageSize), 0)
		f.Close()
	}
	d.Direct = !errors.Is(err, unix.EINVAL)
}

// Counts reports whether this file system is known to count a file's allocated bytes exactly,
// without metadata of its own.
func (f *File) Counts() bool {
	var st unix.Statfs_t
	if unix.Fstatfs(f.FD, &st) != nil {
		return false
	}
	return st.Type == unix.EXT4_SUPER_MAGIC || st.Type == unix.XFS_SUPER_MAGIC || st.Type == unix.TMPFS_MAGIC
}

// File is an open file of a Directory.
type File struct {
	// Name is the name in the directory, and FD the descriptor.
	Name   string
	FD     int
	dir    *Directory
	direct bool
}

// Open opens a file, with O_DIRECT if the caller wants it and it works here.
func (d *Directory) Open(name string, flags int, direct bool) (*File, error) {
	if flags&unix.O_CREAT != 0 {
		if err := d.announce(Change{What: "create", Name: name}); err != nil {
			return nil, fmt.Errorf("create %s: %w", d.Full(name), err)
		}
	}
	direct = direct && d.Direct
	if direct {
		flags |= unix.O_DIRECT
	}
	access := unix.O_RDWR
	if d.Look {
		access = unix.O_RDONLY
	}
	for {
		fd, err := d.open(name, access|flags)
		if err == nil {
			return &File{dir: d, Name: name, FD: fd, direct: direct}, nil
		}
		if err != unix.EINTR {
			return nil, fmt.Errorf("open %s: %w", d.Full(name), err)
		}
	}
}

// open opens a file of ours. A Directory that only looks changes nothing.
func (d *Directory) open(name string, flags int) (int, error) {
	if d.Look {
		return unix.Open(d.Full(name), flags|unix.O_CLOEXEC, 0)
	}
	return OpenAt(unix.AT_FDCWD, d.Full(name), flags, 0o600, d.Mended)
}

// Remove unlinks a file.
func (d *Directory) Remove(name string) error {
	if err := d.announce(Change{What: "remove", Name: name}); err != nil {
		return fmt.Errorf("remove %s: %w", d.Full(name), err)
	}
	if err := unix.Unlink(d.Full(name)); err != nil {
		return fmt.Errorf("remove %s: %w", d.Full(name), err)
	}
	return nil
}

// Rename gives a file another name.
func (d *Directory) Rename(name, to string) error {
	if err := d.announce(Change{What: "rename", Name: name, To: to}); err != nil {
		return fmt.Errorf("rename %s: %w", d.Full(name), err)
	}
	if err := unix.Rename(d.Full(name), d.Full(to)); err != nil {
		return fmt.Errorf("rename %s: %w", d.Full(name), err)
	}
	return nil
}

// Sync makes the names in the directory durable.
func (d *Directory) Sync() error {
	if err := d.announceSync("."); err != nil {
		return fmt.Errorf("sync %s: %w", d.Path, err)
	}
	fd, err := unix.Open(d.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", d.Path, err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync %s: %w", d.Path, err)
	}
	return nil
}

// ReadAt fills p from off. It returns io.ErrUnexpectedEOF if the file ends before.
func (f *File) ReadAt(p []byte, off int64) error {
	for done := 0; done < len(p); {
		n, err := unix.Pread(f.FD, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read %s at %d: %w", f.dir.Full(f.Name), off, err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		done += n
	}
	if !f.direct {
		// The tier above is the cache; a second copy in the page cache is waste.
		_ = unix.Fadvise(f.FD, off, int64(len(p)), unix.FADV_DONTNEED)
	}
	return nil
}

// Forget drops the pages of [off, off+n) from the page cache, if reads go through it, and reports
// whether they do. Pages that are not written back yet stay.
func (f *File) Forget(off, n int64) (buffered bool) {
	if !f.direct {
		_ = unix.Fadvise(f.FD, off, n, unix.FADV_DONTNEED)
	}
	return !f.direct
}

// WriteAt writes all of p at off.
func (f *File) WriteAt(p []byte, off int64) error {
	if err := f.dir.announce(Change{What: "write", Name: f.Name, Off: off, Data: p}); err != nil {
		return fmt.Errorf("write %s at %d: %w", f.dir.Full(f.Name), off, err)
	}
	for done := 0; done < len(p); {
		n, err := unix.Pwrite(f.FD, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s at %d: %w", f.dir.Full(f.Name), off, err)
		}
		done += n
	}
	return nil
}

// Punch frees [off, off+n). It is no error if the file system cannot: the space comes back when the
// segment is compacted or unlinked.
func (f *File) Punch(off, n int64) error {
	if err := f.dir.announce(Change{What: "punch", Name: f.Name, Off: off, N: n}); err != nil {
		return fmt.Errorf("punch %s at %d: %w", f.dir.Full(f.Name), off, err)
	}
	for {
		err := unix.Fallocate(f.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err == nil || err == unix.EOPNOTSUPP {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("punch %s at %d: %w", f.dir.Full(f.Name), off, err)
		}
	}
}

// Sync makes the file's bytes durable.
func (f *File) Sync() error {
	if err := f.dir.announceSync(f.Name); err != nil {
		return fmt.Errorf("sync %s: %w", f.dir.Full(f.Name), err)
	}
	if err := unix.Fdatasync(f.FD); err != nil {
		return fmt.Errorf("sync %s: %w", f.dir.Full(f.Name), err)
	}
	return nil
}

// Stat returns the file's size and its allocated bytes. It does not ask the device.
func (f *File) Stat() (size, allocated int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.FD, &st); err != nil {
		return 0, 0, fmt.Errorf("stat %s: %w", f.dir.Full(f.Name), err)
	}
	return st.Size, st.Blocks * 512, nil
}

// Close closes the descriptor, once nothing else uses f. Its error is dropped: writes have reported
// their own errors, and nothing is buffered here that could be lost.
func (f *File) Close() { _ = unix.Close(f.FD) }

// contentWindow is how many bytes Content reads at once.
const contentWindow = 256 << 10

// Content returns the offset of the first byte in [from, to) that is not zero or cannot be read. -1
// means that there is none.
func (f *File) Content(from, to int64) int64 {
	buf := Aligned(contentWindow)
	for base := from &^ (pageSize - 1); base < to; base += contentWindow {
		n := min(contentWindow, (to-base+pageSize-1)&^(pageSize-1))
		clear(buf)
		if err := f.ReadAt(buf[:n], base); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return base
		}
		for i := max(0, from-base); i < min(n, to-base); i++ {
			if buf[i] != 0 {
				return base + i
			}
		}
	}
	return -1
}
