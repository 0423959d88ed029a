package fuse

import gofuse "github.com/hanwen/go-fuse/v2/fuse"

// readOnly refuses all changes. The mount is read-only too, so the kernel itself refuses them
// unless somebody remounts it. For requests that are not here (ACCESS, LSEEK, locks, IOCTL) the
// default answers ENOSYS, once per mount.
type readOnly struct{ gofuse.RawFileSystem }

// Flush is not needed; the default would have the kernel ask at each close.
func (readOnly) Flush(<-chan struct{}, *gofuse.FlushIn) gofuse.Status { return gofuse.ENOSYS }

func (readOnly) SetAttr(<-chan struct{}, *gofuse.SetAttrIn, *gofuse.AttrOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Mknod(<-chan struct{}, *gofuse.MknodIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Mkdir(<-chan struct{}, *gofuse.MkdirIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Unlink(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status { return gofuse.EROFS }

func (readOnly) Rmdir(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status { return gofuse.EROFS }

func (readOnly) Rename(<-chan struct{}, *gofuse.RenameIn, string, string) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Link(<-chan struct{}, *gofuse.LinkIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Symlink(<-chan struct{}, *gofuse.InHeader, string, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Create(<-chan struct{}, *gofuse.CreateIn, string, *gofuse.CreateOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Tmpfile(<-chan struct{}, *gofuse.CreateIn, *gofuse.CreateOut) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) SetXAttr(<-chan struct{}, *gofuse.SetXAttrIn, string, []byte) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) RemoveXAttr(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status {
	return gofuse.EROFS
}

func (readOnly) Write(<-chan struct{}, *gofuse.WriteIn, []byte) (uint32, gofuse.Status) {
	return 0, gofuse.EROFS
}
