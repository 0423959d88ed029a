package sparse

import (
	"slices"

	"golang.org/x/sys/unix"
)

// readers says who else has an object's data file open.
type readers int

const (
	noReaders   readers = iota // the file is ours alone
	someReaders                // somebody has it open, or mapped
	anyReaders                 // the file system cannot tell
)

// alone asks the kernel whether fd, which is open for writing, is the only open of its file. Only
// then a write lease is granted (fcntl(2), F_SETLEASE). Since Linux 5.3 it counts opens for reading
// by any process. Among them are those of a mapping whose descriptor is closed, and of a FUSE
// mount's passthrough. The device is not asked. An error says nothing: the file system has no
// leases, or the file belongs to another user.
func alone(fd int) (bool, error) {
	switch _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err {
	case nil:
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
		return true, nil
	case unix.EAGAIN:
		return false, nil
	default:
		return false, err
	}
}

func readersOf(fd int) readers {
	switch only, err := alone(fd); {
	case err != nil:
		return anyReaders
	case only:
		return noReaders
	}
	return someReaders
}

func cannotTell(int) readers { return anyReaders }

// asker returns readersOf if a directory's file system answers it correctly, as a test file shows,
// once mapped and once not. overlayfs counts no mapping, since that is of the file below, and NFS
// grants no lease. Then it returns cannotTell.
func asker(dir int) func(fd int) readers {
	const name = formatName + ".tmp" // a start and a check know this name
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return cannotTell
	}
	defer unix.Close(fd)
	defer func() { _ = unix.Unlinkat(dir, name, 0) }() // a start and a check remove it if it stays
	if unix.Ftruncate(fd, align) != nil || readersOf(fd) != noReaders {
		return cannotTell
	}
	other, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotTell
	}
	mapped, err := unix.Mmap(other, 0, align, unix.PROT_READ, unix.MAP_SHARED)
	unix.Close(other)
	if err != nil {
		return cannotTell
	}
	defer func() { _ = unix.Munmap(mapped) }() // it cannot fail for what Mmap returned
	if readersOf(fd) != someReaders {
		return cannotTell
	}
	return readersOf
}

// readersLocked returns who may still read the object's data file. If there are readers, or that
// cannot be told, its bytes stay. A reader that the kernel serves directly would get punched bytes
// as zeros, and no error. Our own counts are not enough: a mapping outlives its release, and a
// mount's open files outlive an ejected directory, and a killed process. The caller holds a ref.
func (f *Files) readersLocked(x *object) readers {
	switch {
	case x.opens > 0:
		return someReaders
	case !x.lent:
		return noReaders
	}
	who := f.ask(x.handle.data)
	x.lent = who != noReaders
	return who
}

// spared reports whether a doomed object must wait for its readers. They keep its space with or
// without a name; Used counts it until then. If the file system cannot tell, the name is removed at
// once. h may be nil. Only the goroutine that set x.reaping calls it.
func (f *Files) spared(x *object, h *handle) bool {
	if !x.lent || x.unmade {
		return false
	}
	if h == nil {
		return f.readByName(x) == someReaders
	}
	return f.ask(h.data) == someReaders
}

// readByName returns the readers of an object's data file that is not open here.
func (f *Files) readByName(x *object) readers {
	fd, err := unix.Openat(f.dir, x.dataName(), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return anyReaders
	}
	defer unix.Close(fd)
	return f.ask(fd)
}

// sweep unlinks the doomed objects whose readers are gone, at most once a second.
func (f *Files) sweep() {
	f.mu.Lock()
	now := f.opt.Now()
	if len(f.waiting) == 0 || now == f.sweptAt || f.closed {
		f.mu.Unlock()
		return
	}
	f.sweptAt = now
	due := slices.DeleteFunc(f.waiting, func(x *object) bool { return x.reaping })
	f.waiting = nil
	for _, x := range due {
		x.refs++
		f.pins++
	}
	f.mu.Unlock()
	for _, x := range due {
		f.unpin(x)
	}
}
