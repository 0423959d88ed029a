package disk

import (
	"path/filepath"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/device"
)

// This file has what a cache directory does for the drafts that package draft keeps in it: it counts them in its budget, and is
// marked by them. It never touches them.

// DraftDirs returns the paths where drafts may lie, one in each directory in use. The bytes that they allocate count against that
// directory's budget: blocks give way to them.
func (s *Store) DraftDirs() []string {
	var all []string
	for _, d := range s.dirs {
		if d.writable() {
			all = append(all, filepath.Join(d.path, DraftsDir))
		}
	}
	return all
}

// MarkDrafts has directories that have drafts, and those that may get some until Close, refused by programs that do not know
// what drafts are: they are of a format that those do not know. It is called before a draft is made in one of DraftDirs. Once no
// draft is left, Close and the next Open take that back.
func (s *Store) MarkDrafts() error {
	for _, d := range s.dirs {
		d.marked.Store(true)
		if !d.writable() {
			continue // it is marked as it returns
		}
		if err := relabel(d.path, LabelFormat); err != nil {
			return err
		}
	}
	return nil
}

// Format is the version of the layout that all directories can be read by.
func (s *Store) Format() int {
	for _, d := range s.dirs {
		if d.marked.Load() {
			return LabelFormat
		}
	}
	return plainFormat
}

// Room is asked before n more bytes of drafts are written in one of DraftDirs. Blocks give way to them: where they have not done
// so yet, it waits for that. It is syscall.ENOSPC where not even all blocks would make room, in the budget or on the file system
// above the floor, and syscall.EIO for a directory that was ejected.
func (s *Store) Room(dir string, n int64) error {
	for _, d := range s.dirs {
		if filepath.Join(d.path, DraftsDir) == dir {
			return d.room(n)
		}
	}
	return syscall.EIO
}

// draftsAhead is how many bytes drafts may be ahead of the blocks that give way to them.
const draftsAhead = 4 * writeUnit

// givesWay bounds how long a write waits for blocks to give way: a device that hangs may hold who evicts them.
const givesWay = 10 * time.Second

func (d *directory) room(n int64) error {
	if !d.writable() {
		return syscall.EIO
	}
	d.drafted.Add(n)
	if d.besides() > d.limit.Load() {
		// What is written twice was counted twice, and what was removed still counts.
		if d.measure(n); d.besides() > d.limit.Load() {
			d.drafted.Add(-n)
			return syscall.ENOSPC
		}
	}
	if d.blocks.Load()+d.besides() <= d.limit.Load()+draftsAhead {
		return nil
	}
	late := time.NewTimer(givesWay)
	defer late.Stop()
	done := make(chan struct{})
	select {
	case d.crowded <- done:
	case <-d.stopped:
		return nil
	case <-late.C:
		return nil
	}
	select {
	case <-done:
	case <-late.C:
	}
	return nil
}

// besides estimates what is allocated besides blocks.
func (d *directory) besides() int64 { return d.beside.Load() + d.drafted.Load() }

// measure finds out what is allocated besides blocks. coming are bytes of drafts that were counted and are not written yet.
func (d *directory) measure(coming int64) {
	d.measuring.Lock()
	defer d.measuring.Unlock()
	counted, sum := d.drafted.Load(), int64(0)
	for _, beside := range []string{NamesDir, namesAgainDir, JobsDir, DraftsDir} {
		sum += device.Usage(filepath.Join(d.path, beside))
	}
	d.beside.Store(sum)
	d.drafted.Add(coming - counted) // the sum has them; what came meanwhile may count twice until the next time
}
