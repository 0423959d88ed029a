package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CacheDir returns the cache directory that is used without configuration.
func CacheDir() (string, error) { return cacheDir(os.Geteuid()) }

func cacheDir(uid int) (string, error) {
	if uid == 0 {
		return "/var/cache/hearth", nil
	}
	dir, err := os.UserCacheDir() // $XDG_CACHE_HOME, else $HOME/.cache
	if err != nil {
		return "", fmt.Errorf("find a cache directory: %w (set XDG_CACHE_HOME or cache.disks)", err)
	}
	return filepath.Join(dir, "hearth"), nil
}

// ErrInFuse refuses a cache inside a FUSE mount. A node that reads its own mount, or a mount that waits for it,
// would deadlock.
var ErrInFuse = errors.New("it lies in a FUSE mount, where a cache could wait for itself")

// Place is where a cache directory lies: its absolute path, the bytes that its file system has for this user
// in all, used ones among them, and those that are free. What is reserved for others counts in neither. Inodes is the number of free inodes, or -1 if there is no limit. FileSystem is the type
// as mount(8) names it, or a number.
type Place struct {
	Path        string
	Whole, Free int64
	Inodes      int64
	FileSystem  string
}

// MakeCacheDir makes a cache directory if there is none. A directory that this process cannot write to is an
// error that names the cure. One in a FUSE mount is ErrInFuse.
func MakeCacheDir(path string) (Place, error) {
	p, err := filepath.Abs(path)
	if err != nil {
		return Place{}, fmt.Errorf("cache directory %s: %w", path, err)
	}
	if err := os.MkdirAll(p, 0o700); err != nil {
		return Place{}, unwritable(p, err)
	}
	return PlaceOf(p, p)
}

// PlaceOf returns the Place of cache directory p by looking at an existing directory, at: p itself, or the
// directory in which p would be made.
func PlaceOf(p, at string) (Place, error) {
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return Place{}, unwritable(p, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return Place{}, fmt.Errorf("statfs cache directory %s: %w", p, err)
	}
	if st.Type == unix.FUSE_SUPER_MAGIC {
		return Place{}, fmt.Errorf("cache directory %s: %w", p, ErrInFuse)
	}
	place := Place{Path: p, Whole: whole(&st), Free: int64(st.Bavail) * st.Bsize, Inodes: int64(st.Ffree), FileSystem: fileSystem(st.Type)}
	if st.Files == 0 { // btrfs and others make inodes as they are needed
		place.Inodes = -1
	}
	return place, nil
}

// whole is the size of a file system without what is reserved for other users, as df(1) takes it for Use%.
func whole(st *unix.Statfs_t) int64 { return int64(st.Blocks-st.Bfree+st.Bavail) * st.Bsize }

// fileSystem returns the name of a file system type.
func fileSystem(kind int64) string {
	switch kind {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.RAMFS_MAGIC:
		return "ramfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	}
	return fmt.Sprintf("0x%x", kind)
}

// unwritable is the error of a cache directory that this process cannot write to. It is a plain failure,
// whatever kind the cause is.
func unwritable(p string, err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return fmt.Errorf("cache directory %s cannot be written: %v; choose another with --cache-disks PATH=SIZE, or let this user write there", p, err)
}
