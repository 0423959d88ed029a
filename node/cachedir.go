package node

import (
	"errors"

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

// cacheDirs makes the cache directories and works out their budgets and floors,
// each from its own file system.
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

func cacheDir(d Disk, floor Size) (directory, error) {
	p, whole, err := machine.MakeCacheDir(d.Path)
	if errors.Is(err, machine.ErrInFuse) {
		return directory{}, usage("%v", err)
	}
	if err != nil {
		return directory{}, err
	}
	dir := directory{path: p, budget: whole * diskShare / 100, floor: whole * diskFloor / 100}
	if d.Size.Set() {
		dir.budget = d.Size.Of(whole)
	}
	if floor.Set() {
		dir.floor = floor.Of(whole)
	}
	return dir, nil
}
