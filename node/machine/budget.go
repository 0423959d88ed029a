package machine

import (
	"errors"
	"fmt"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/config"
)

// This file works out what a node may take of a machine's memory and file systems, before it takes any. What is
// configured, or a tenth, is compared with the limits of the machine and of the control groups. So a node that
// was given too much says so at its start, instead of being killed under full load.
//
// Without configuration RAM is a tenth of the memory, and a cache directory gets a tenth of its file system,
// whose last tenth stays free. What a directory on a tmpfs holds is memory, so it gets what the RAM budget
// leaves.

// ErrUnfit is the error of a budget, or of a place for a cache, that cannot work. Its text names the cure.
var ErrUnfit = errors.New("cannot work here")

// Size and Disk are settings of a node.
type (
	Size = config.Size
	Disk = config.Disk
)

// The default RAM budget is a tenth of the memory, so that a training job keeps nine tenths. It is never so
// small that one reader fills it, except in a small container, where a quarter must do. It is never so large
// that it surprises a job that starts.
const (
	ramShare = 10 // percent
	ramLeast = 64 << 20
	ramMost  = 4 << 30
)

// beside is what a node needs in addition to its RAM budget, in bytes, however small the budget is: the
// runtime, the namespace's tables, threads' stacks. With no more than that, it collects garbage all the time.
// Beside is what it runs well with.
const beside = 64 << 20

// RAM returns the RAM budget in bytes, within the limits of this process. A configured budget beyond the limits
// is ErrUnfit.
func RAM(s Size, l Limits) (int64, error) {
	if !s.Set() {
		least := min(ramLeast, max(l.Memory/4, hearth.MinRAM))
		return min(max(l.Memory*ramShare/100, least), ramMost), nil
	}
	n := s.Of(l.Memory)
	if n+beside > l.Memory {
		return 0, unfit("cache.ram is %s, and a node needs %s beside it, but this process may use %s (%s): lower cache.ram (--cache-ram), or raise the limit",
			SizeText(n), SizeText(beside), SizeText(l.Memory), by(l))
	}
	return n, nil
}

// Tight says what to do where the memory is enough, but scarce. It is empty if there is plenty.
func Tight(ram int64, l Limits) string {
	if ram+Beside <= l.Memory-l.Memory/10 {
		return ""
	}
	return fmt.Sprintf("memory is tight: this process may use %s (%s), cache.ram takes %s of it, and names, queues and the Go runtime like %s more: garbage is collected more often instead; lower cache.ram (--cache-ram), or raise the limit",
		SizeText(l.Memory), by(l), SizeText(ram), SizeText(Beside))
}

// by names the limit that bounds the memory.
func by(l Limits) string {
	if l.MemoryBy == "" {
		return "all that the machine has"
	}
	return l.MemoryBy
}

// The default disk budget and the floor: a tenth of the file system is taken, and its last tenth is never
// touched.
const (
	diskShare = 10 // percent
	diskFloor = 10 // percent
)

// leastDisk is the least budget of a cache directory in bytes: what the disk tier writes at once.
const leastDisk = 4 << 20

// Directory is a cache directory with its figures in bytes.
type Directory struct {
	Path          string
	Budget, Floor int64
	// FileSystem is the type of the file system that the directory lies on, such as ext4. Note is what a person
	// should know and do about that, and is empty if nothing.
	FileSystem, Note string
}

// Directories are a node's cache directories, in the order in which they were named.
type Directories []Directory

// First returns the path of the first one. It is empty if there is none.
func (ds Directories) First() string {
	if len(ds) == 0 {
		return ""
	}
	return ds[0].Path
}

// Paths returns the paths of all directories.
func (ds Directories) Paths() (all []string) {
	for _, d := range ds {
		all = append(all, d.Path)
	}
	return all
}

// At returns the directory with that path.
func (ds Directories) At(path string) Directory {
	for _, d := range ds {
		if d.Path == path {
			return d
		}
	}
	return Directory{Path: path}
}

// Disks returns the configured cache directories, else CacheDir.
func Disks(configured []Disk) ([]Disk, error) {
	if len(configured) > 0 {
		return configured, nil
	}
	p, err := CacheDir()
	return []Disk{{Path: p}}, err
}

// Make makes the cache directories, by default CacheDir, and works out the budget and floor of each from its
// own file system. ram is the RAM budget: directories in memory share what it leaves of the limits.
func Make(disks []Disk, floor Size, ram int64, l Limits) (Directories, error) {
	disks, err := Disks(disks)
	if err != nil {
		return nil, err
	}
	left := max(l.Memory-ram-Beside, 0)
	var dirs Directories
	for _, d := range disks {
		place, err := MakeCacheDir(d.Path)
		if errors.Is(err, ErrInFuse) {
			return nil, unfit("%v", err)
		}
		if err != nil {
			return nil, err
		}
		dir := At(d, place, floor, left, l)
		if dir.inRAM() {
			left = max(left-dir.Budget, 0)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// At works out a directory's figures at its place. left is the memory, in bytes, that a directory in memory may
// take.
func At(d Disk, place Place, floor Size, left int64, l Limits) Directory {
	dir := Directory{Path: place.Path, Budget: place.Whole * diskShare / 100, Floor: place.Whole * diskFloor / 100, FileSystem: place.FileSystem}
	if d.Size.Set() {
		dir.Budget = d.Size.Of(place.Whole)
	}
	if floor.Set() {
		dir.Floor = floor.Of(place.Whole)
	}
	switch {
	case dir.inRAM():
		dir.inMemory(left, l)
	case dir.FileSystem == "overlay":
		dir.Note = fmt.Sprintf("cache directory %s lies on an overlay file system, as a container's own root does: it ends with the container; mount a volume there", dir.Path)
	}
	return dir
}

func (d *Directory) inRAM() bool { return d.FileSystem == "tmpfs" || d.FileSystem == "ramfs" }

// inMemory limits a directory to the memory that is left for it.
func (d *Directory) inMemory(left int64, l Limits) {
	asked := d.Budget
	d.Budget = min(asked, max(left, leastDisk))
	d.Note = fmt.Sprintf("cache directory %s lies on a %s: what it holds is memory, and counts against the %s that this process may use (%s)",
		d.Path, d.FileSystem, SizeText(l.Memory), by(l))
	if d.Budget < asked {
		d.Note += fmt.Sprintf(", so it gets %s instead of %s; choose a directory on a disk (--cache-disks PATH=SIZE), or raise the limit", SizeText(d.Budget), SizeText(asked))
	} else {
		d.Note += "; to spare that, choose a directory on a disk (--cache-disks PATH=SIZE)"
	}
}

// unfitError is an ErrUnfit with a text of its own.
type unfitError string

func unfit(format string, args ...any) error { return unfitError(fmt.Sprintf(format, args...)) }

// Error returns a text that names the thing and the cure.
func (e unfitError) Error() string { return string(e) }

// Is makes it an ErrUnfit.
func (e unfitError) Is(target error) bool { return target == ErrUnfit }
