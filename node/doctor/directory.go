package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/node/machine"
)

// directory is a cache directory that is checked, with what was found.
type directory struct {
	disk   machine.Disk
	floor  machine.Size
	memory int64 // bytes that a directory in memory may take
	limits machine.Limits
	node   *Running // nil if no node runs

	ground
	content
	machine.Directory
	tried
}

// ground is where a directory lies.
type ground struct {
	path   string
	at     string // path itself, or the nearest directory above it that exists
	place  machine.Place
	failed error // why it cannot be a cache directory
	owner  uint32
	mode   os.FileMode
	uid    uint32 // the user that runs the doctor
}

// content is what lies in a directory.
type content struct {
	foreign string // a name that is not ours; "" means none
	format  int    // of hearth.json; 0 means that none can be read
	locked  bool   // by a process
	holder  disk.LockHolder
	used    int64 // bytes
	blind   error // why the content cannot be read
}

// tried is the result of writing and reading files in a directory.
type tried struct {
	broken              error
	direct, punch       bool
	written             int64 // bytes
	writeRate, readRate float64
}

// look checks a directory step by step. What a step finds decides whether there is a next one.
func (d *directory) look(ctx context.Context, tell func(...Finding)) {
	d.ground = lookGround(d.disk.Path)
	tell(d.judgeGround()...)
	if d.failed != nil {
		return
	}
	if d.at == d.path {
		d.content = lookContent(d.path)
	}
	d.Directory = machine.At(d.disk, d.place, d.floor, d.memory, d.limits)
	tell(d.judgeContent()...)
	if d.foreign != "" || ctx.Err() != nil {
		return
	}
	tell(d.judgeSpace())
	d.tried = tryDevice(ctx, d.at, min(mostWritten, d.place.Free/4))
	tell(d.judgeDevice()...)
}

func lookGround(path string) (g ground) {
	g.uid = uint32(os.Geteuid())
	if g.path, g.failed = filepath.Abs(path); g.failed != nil {
		return g
	}
	for g.at = g.path; ; g.at = filepath.Dir(g.at) {
		info, err := os.Stat(g.at)
		if errors.Is(err, os.ErrNotExist) && g.at != "/" {
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no directory", g.at)
		}
		if err != nil {
			g.failed = err
			return g
		}
		g.mode = info.Mode()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			g.owner = st.Uid
		}
		g.place, g.failed = machine.PlaceOf(g.path, g.at)
		return g
	}
}

// lookContent finds who uses the directory. It takes the lock for a moment, as readers take it. A node that
// starts just then tries again.
func lookContent(path string) (c content) {
	if c.foreign, c.blind = disk.Foreign(path); c.blind != nil {
		return c
	}
	if l, err := disk.ReadLabel(path); err == nil {
		c.format = l.Format
	}
	if f, err := os.Open(filepath.Join(path, disk.LockFile)); err == nil {
		defer func() { _ = f.Close() }() // it was only read
		c.locked = errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		text := make([]byte, 64)
		n, _ := f.ReadAt(text, 0)
		c.holder = disk.ParseLockHolder(string(text[:n]))
	}
	if c.foreign == "" {
		c.used = device.Usage(path)
	}
	return c
}

const (
	// mostWritten is how many bytes are written and read to measure the speed of a device. A local SSD, as
	// is recommended, takes a few hundredths of a second for it.
	mostWritten = 8 << 20
	step        = 1 << 20
	// longest bounds the time of writing, and the time of reading.
	longest = 2 * time.Second
)

// tryDevice writes and reads up to n bytes in a file without a name in dir.
func tryDevice(ctx context.Context, dir string, n int64) (d tried) {
	fd, err := nameless(dir)
	if err != nil {
		d.broken = err
		return d
	}
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	buf := device.Aligned(step)
	for i := range buf {
		buf[i] = byte(i * 7) // bytes that a device cannot compress away
	}
	d.direct = err == nil
	if d.direct { // some file systems accept O_DIRECT here and refuse the first write
		if _, err := unix.Pwrite(fd, buf[:4096], 0); errors.Is(err, unix.EINVAL) {
			d.direct = false
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
		}
	}
	d.measure(ctx, fd, buf, max(n/step, 1))
	d.punch = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, step/2) == nil
	return d
}

// measure writes steps and reads them again, and times both.
func (d *tried) measure(ctx context.Context, fd int, buf []byte, steps int64) {
	began := time.Now()
	for off := int64(0); off < steps*step && time.Since(began) < longest && ctx.Err() == nil; off += step {
		n, err := unix.Pwrite(fd, buf, off)
		if err == nil && n < len(buf) {
			err = unix.ENOSPC
		}
		if err != nil {
			d.broken = fmt.Errorf("write: %w", err)
			return
		}
		d.written += step
	}
	if err := unix.Fdatasync(fd); err != nil {
		d.broken = fmt.Errorf("sync: %w", err)
		return
	}
	d.writeRate = float64(d.written) / time.Since(began).Seconds()
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // so that the page cache does not answer
	began = time.Now()
	read := int64(0)
	for off := int64(0); off < d.written && time.Since(began) < longest && ctx.Err() == nil; off += step {
		if _, err := unix.Pread(fd, buf, off); err != nil {
			d.broken = fmt.Errorf("read: %w", err)
			return
		}
		read += step
	}
	d.readRate = float64(read) / time.Since(began).Seconds()
}

// nameless makes a file in dir that disappears with its descriptor, however this process ends. If the file
// system has no such files, it makes one and removes its name at once.
func nameless(dir string) (fd int, err error) {
	fd, err = unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	f, err := os.CreateTemp(dir, ".hearth-doctor-")
	if err != nil {
		return -1, err
	}
	defer func() { _ = f.Close() }() // the duplicated descriptor stays
	_ = os.Remove(f.Name())          // a name that stays is visible in the directory
	return unix.Dup(int(f.Fd()))
}
