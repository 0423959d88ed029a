package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/node/machine"
)

// The default RAM budget: a tenth of the memory, so that a training job keeps
// its nine; never so little that one reader fills it, never so much that the
// start of a job is surprised.
const (
	ramShare = 10 // percent
	ramLeast = 64 << 20
	ramMost  = 4 << 30
)

// ramBudget is the RAM budget in bytes for a memory of limit bytes.
func ramBudget(s Size, limit int64) int64 {
	if s.Set() {
		return s.Of(limit)
	}
	return min(max(limit*ramShare/100, ramLeast), ramMost)
}

// The default disk budget and the floor: a tenth of the file system is taken,
// and its last tenth is never touched.
const (
	diskShare = 10 // percent
	diskFloor = 10 // percent
)

// directory is a cache directory with its figures in bytes.
type directory struct {
	path          string
	budget, floor int64
}

type directories []directory

// first is the first one's path; "": there is none.
func (ds directories) first() string {
	if len(ds) == 0 {
		return ""
	}
	return ds[0].path
}

func (ds directories) paths() (all []string) {
	for _, d := range ds {
		all = append(all, d.path)
	}
	return all
}

// cacheDirs makes the cache directories and works out their budgets.
func cacheDirs(c Cache) ([]directory, error) {
	if c.NoDisk {
		return nil, nil
	}
	disks := c.Disks
	if len(disks) == 0 {
		p, err := machine.CacheDir()
		if err != nil {
			return nil, err
		}
		disks = []Disk{{Path: p}}
	}
	var dirs []directory
	for _, d := range disks {
		dir, err := cacheDir(d, c.FreeFloor)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// errFuseCache refuses a cache within a FUSE mount: a node that reads its own
// mount, or one that waits for it, would wait for ever.
var errFuseCache = errors.New("it lies in a FUSE mount, where a cache could wait for itself")

func cacheDir(d Disk, floor Size) (directory, error) {
	p, err := filepath.Abs(d.Path)
	if err != nil {
		return directory{}, fmt.Errorf("cache directory %s: %w", d.Path, err)
	}
	if err := os.MkdirAll(p, 0o700); err != nil {
		return directory{}, unwritable(p, err)
	}
	if err := unix.Access(p, unix.W_OK|unix.X_OK); err != nil {
		return directory{}, unwritable(p, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p, &st); err != nil {
		return directory{}, fmt.Errorf("statfs cache directory %s: %w", p, err)
	}
	if st.Type == unix.FUSE_SUPER_MAGIC {
		return directory{}, usage("cache directory %s: %v", p, errFuseCache)
	}
	whole := int64(st.Blocks) * st.Bsize
	dir := directory{path: p, budget: whole * diskShare / 100, floor: whole * diskFloor / 100}
	if d.Size.Set() {
		dir.budget = d.Size.Of(whole)
	}
	if floor.Set() {
		dir.floor = floor.Of(whole)
	}
	return dir, nil
}

// unwritable is a cache directory that this process cannot write to.
func unwritable(p string, err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return fmt.Errorf("cache directory %s cannot be written: %w; choose another with --cache-disks PATH=SIZE, or let this user write there", p, err)
}

// size is a number of bytes for people, in the units that the configuration
// reads.
func size(n int64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}} {
		if float64(n) >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
