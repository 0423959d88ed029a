package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// directory is the one way to the device. tap, set by tests only, sees every
// change before it is made and may forbid it.
type directory struct {
	path   string
	direct bool // O_DIRECT works here
	tap    func(change) error
}

// change is one change of the directory as a crash test replays it.
type change struct {
	what string // create, write, punch, remove, rename
	name string
	off  int64
	data []byte // write
	n    int64  // punch
	to   string // rename
}

func (d *directory) announce(c change) error {
	if d.tap == nil {
		return nil
	}
	return d.tap(c)
}

func (d *directory) full(name string) string { return filepath.Join(d.path, name) }

func segmentPattern() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{8}\.segment$`) }

// clear removes what has a name of ours and is no file: it would stand in the way
// of one. So does what a process was writing in the deaths' place when it ended:
// it may be large, and nobody would count it.
func (d *directory) clear() error {
	names, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("list %s: %w", d.path, err)
	}
	segments := segmentPattern()
	for _, e := range names {
		ours := segments.MatchString(e.Name()) || e.Name() == deathsName || e.Name() == deathsTemp
		if e.Type().IsRegular() && e.Name() != deathsTemp || !ours {
			continue
		}
		if err := os.RemoveAll(d.full(e.Name())); err != nil {
			return fmt.Errorf("clear %s: %w", d.full(e.Name()), err)
		}
	}
	return nil
}

// probe finds out whether this file system takes O_DIRECT, which some accept at
// open and refuse at the first write.
func (d *directory) probe() error {
	name := d.full("probe.tmp")
	if err := d.announce(change{what: "probe"}); err != nil {
		return nil // a test wants to go without
	}
	defer os.Remove(name)
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_DIRECT, 0o600)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, aligned(pageSize), 0)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	d.direct = err == nil
	return nil
}

// file is an open file of the directory; its offsets and buffers are aligned to
// pages but for the file of deaths, which is never direct.
type file struct {
	dir    *directory
	name   string
	fd     int
	direct bool
}

func (d *directory) open(name string, flags int, direct bool) (*file, error) {
	if flags&unix.O_CREAT != 0 {
		if err := d.announce(change{what: "create", name: name}); err != nil {
			return nil, fmt.Errorf("create %s: %w", d.full(name), err)
		}
	}
	direct = direct && d.direct
	if direct {
		flags |= unix.O_DIRECT
	}
	for {
		fd, err := unix.Open(d.full(name), unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600)
		if err == nil {
			return &file{dir: d, name: name, fd: fd, direct: direct}, nil
		}
		if err != unix.EINTR {
			return nil, fmt.Errorf("open %s: %w", d.full(name), err)
		}
	}
}

func (d *directory) remove(name string) error {
	if err := d.announce(change{what: "remove", name: name}); err != nil {
		return fmt.Errorf("remove %s: %w", d.full(name), err)
	}
	if err := unix.Unlink(d.full(name)); err != nil {
		return fmt.Errorf("remove %s: %w", d.full(name), err)
	}
	return nil
}

func (d *directory) rename(name, to string) error {
	if err := d.announce(change{what: "rename", name: name, to: to}); err != nil {
		return fmt.Errorf("rename %s: %w", d.full(name), err)
	}
	if err := unix.Rename(d.full(name), d.full(to)); err != nil {
		return fmt.Errorf("rename %s: %w", d.full(name), err)
	}
	return nil
}

// sync makes the names in the directory durable.
func (d *directory) sync() error {
	fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", d.path, err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync %s: %w", d.path, err)
	}
	return nil
}

// readAt fills p from off. io.ErrUnexpectedEOF: the file ends before.
func (f *file) readAt(p []byte, off int64) error {
	for done := 0; done < len(p); {
		n, err := unix.Pread(f.fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read %s at %d: %w", f.dir.full(f.name), off, err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		done += n
	}
	if !f.direct {
		// The tier above is the cache; a second copy in the page cache is waste.
		_ = unix.Fadvise(f.fd, off, int64(len(p)), unix.FADV_DONTNEED)
	}
	return nil
}

func (f *file) writeAt(p []byte, off int64) error {
	if err := f.dir.announce(change{what: "write", name: f.name, off: off, data: p}); err != nil {
		return fmt.Errorf("write %s at %d: %w", f.dir.full(f.name), off, err)
	}
	for done := 0; done < len(p); {
		n, err := unix.Pwrite(f.fd, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s at %d: %w", f.dir.full(f.name), off, err)
		}
		done += n
	}
	return nil
}

// punch frees [off, off+n). A file system that cannot is no error: the space
// comes back when the segment is compacted or unlinked.
func (f *file) punch(off, n int64) error {
	if err := f.dir.announce(change{what: "punch", name: f.name, off: off, n: n}); err != nil {
		return fmt.Errorf("punch %s at %d: %w", f.dir.full(f.name), off, err)
	}
	for {
		err := unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err == nil || err == unix.EOPNOTSUPP {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("punch %s at %d: %w", f.dir.full(f.name), off, err)
		}
	}
}

func (f *file) sync() error {
	if err := unix.Fdatasync(f.fd); err != nil {
		return fmt.Errorf("sync %s: %w", f.dir.full(f.name), err)
	}
	return nil
}

// stat returns the file's size and its allocated bytes; no device is asked.
func (f *file) stat() (size, allocated int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, 0, fmt.Errorf("stat %s: %w", f.dir.full(f.name), err)
	}
	return st.Size, st.Blocks * 512, nil
}

func (f *file) close() { _ = unix.Close(f.fd) } // nothing buffered can be lost here
