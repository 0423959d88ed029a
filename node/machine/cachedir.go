package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CacheDir is where the cache lies without configuration.
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

// ErrInFuse refuses a cache within a FUSE mount: a node that reads its own mount,
// or one that waits for it, would wait for ever.
var ErrInFuse = errors.New("it lies in a FUSE mount, where a cache could wait for itself")

// MakeCacheDir makes a cache directory, if there is none, and returns its path made
// absolute and the size of its file system in bytes. One that this process cannot
// write to is an error that names the cure; one in a FUSE mount is ErrInFuse.
func MakeCacheDir(path string) (p string, whole int64, err error) {
	if p, err = filepath.Abs(path); err != nil {
		return "", 0, fmt.Errorf("cache directory %s: %w", path, err)
	}
	if err := os.MkdirAll(p, 0o700); err != nil {
		return "", 0, unwritable(p, err)
	}
	if err := unix.Access(p, unix.W_OK|unix.X_OK); err != nil {
		return "", 0, unwritable(p, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p, &st); err != nil {
		return "", 0, fmt.Errorf("statfs cache directory %s: %w", p, err)
	}
	if st.Type == unix.FUSE_SUPER_MAGIC {
		return "", 0, fmt.Errorf("cache directory %s: %w", p, ErrInFuse)
	}
	return p, int64(st.Blocks) * st.Bsize, nil
}

// unwritable is a cache directory that this process cannot write to: a failure,
// whatever the cause is called.
func unwritable(p string, err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return fmt.Errorf("cache directory %s cannot be written: %v; choose another with --cache-disks PATH=SIZE, or let this user write there", p, err)
}
