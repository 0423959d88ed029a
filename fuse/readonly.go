package fuse

import (
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// This file refuses what no mount does, and what only a writable one does (write.go) on a read-only one. There the kernel itself
// refuses it, unless somebody remounts it. For requests that are not here (ACCESS, LSEEK, locks, IOCTL) the default answers
// ENOSYS, once per mount.

// refused is the answer for what no bucket can keep.
func (f *fileSystem) refused(errno syscall.Errno) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	return gofuse.Status(errno)
}

// Mknod is refused.
func (f *fileSystem) Mknod(<-chan struct{}, *gofuse.MknodIn, string, *gofuse.EntryOut) gofuse.Status {
	return f.refused(syscall.EPERM)
}

// Link is refused.
func (f *fileSystem) Link(<-chan struct{}, *gofuse.LinkIn, string, *gofuse.EntryOut) gofuse.Status {
	return f.refused(syscall.EPERM)
}

// Symlink is refused.
func (f *fileSystem) Symlink(<-chan struct{}, *gofuse.InHeader, string, string, *gofuse.EntryOut) gofuse.Status {
	return f.refused(syscall.EPERM)
}

// Tmpfile is refused: programs make a file with a name then.
func (f *fileSystem) Tmpfile(<-chan struct{}, *gofuse.CreateIn, *gofuse.CreateOut) gofuse.Status {
	return f.refused(syscall.EOPNOTSUPP)
}

// SetXAttr is refused.
func (f *fileSystem) SetXAttr(<-chan struct{}, *gofuse.SetXAttrIn, string, []byte) gofuse.Status {
	return f.refused(syscall.EOPNOTSUPP)
}

// RemoveXAttr is refused.
func (f *fileSystem) RemoveXAttr(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status {
	return f.refused(syscall.EOPNOTSUPP)
}
