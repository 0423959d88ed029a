package disk

import (
	"path/filepath"
	"time"
)

// Stats are the figures of each directory, in the order of Options.Dirs.
type Stats struct {
	Dirs []DirStats
}

// Faults count what went wrong with a directory's device.
type Faults struct {
	// Corrupt counts blocks that were not what was written, and were dropped.
	Corrupt int64
	// Errors counts failed system calls.
	Errors int64
	// Stalls counts how often the device did not answer. Hanging is the number of abandoned
	// operations that have not come back.
	Stalls, Hanging int64
	// Mended counts files that somebody had harmed and that are in order again: their rights were
	// given back, or they were made anew.
	Mended int64
	// Waited is how long operations have waited for the device in the last 10 s. It is 0 below half
	// of the time that puts the device out of use.
	Waited time.Duration
}

// DirStats are one directory's figures since Open; sizes are in bytes.
type DirStats struct {
	// Path as given, made absolute.
	Path string
	// Used is the number of bytes allocated now (st_blocks, with unlinked files that are still open
	// and the namespace's files). Limit is the number that may be allocated: the Budget, or less,
	// down to 0, while the file system has less than Floor free.
	Used, Limit, Budget, Floor int64
	// Queued is the number of bytes that wait to be written. Blocks is the number of blocks held.
	Queued, Blocks int64
	// Hits are Gets answered, HitBytes their bytes.
	Hits, HitBytes int64
	// PutBytes is the number of bytes of blocks that were written. WrittenBytes is what that came
	// to since the directory was last opened: with headers, padding, and what was written again to
	// make room.
	PutBytes, WrittenBytes int64
	// Replaces says that the policy lets misses replace the entries that are worth least. Otherwise
	// they go into free space only.
	Replaces bool
	// Declined counts blocks that were offered and not taken, or not fetched whole since the device
	// was behind. Evicted counts evicted entries: blocks, extents, whole files or versions.
	Declined, Evicted int64
	// Spilled counts evicted blocks that Options.Spill was offered and took, SpilledBytes their bytes.
	Spilled, SpilledBytes int64
	Faults
	// Ejected says that no writes go here now, and Cause says why. Reading says that the content is
	// still read.
	Ejected, Reading bool
	Cause            string
	// Unindexed counts blocks, of UnindexedBytes, that there is no memory to index. They are held,
	// count in Used, and are misses.
	Unindexed, UnindexedBytes int64
	// IndexBytes is the memory of the indexes, counted in the Pool.
	IndexBytes int64
	// Scrub has the figures of the scrub.
	Scrub ScrubStats
}

// Stats returns the present figures.
func (s *Store) Stats() Stats {
	var all Stats
	for _, d := range s.dirs {
		all.Dirs = append(all.Dirs, d.stats())
	}
	return all
}

func (d *directory) stats() DirStats {
	s := DirStats{
		Path: d.path, Budget: d.budget, Floor: d.floor,
		Used: d.used.Load(), Limit: d.limit.Load(), Queued: d.queue.Pending(),
		Hits: d.hits.Load(), HitBytes: d.hitBytes.Load(), PutBytes: d.putBytes.Load(),
		Declined: d.declined.Load(), Evicted: d.evicted.Load(),
		Spilled: d.spilled.Load(), SpilledBytes: d.spilledBytes.Load(),
		Faults:  Faults{Errors: d.errors.Load(), Stalls: d.stalls.Load(), Hanging: int64(d.guard.Left()), Mended: d.mended.Load(), Waited: d.guard.Waited()},
		Scrub:   d.scrub.Stats(),
		Reading: true, Replaces: d.policy.Replaces(),
	}
	if e := d.ejection.Load(); e != nil {
		s.Ejected, s.Reading, s.Cause = true, !e.reads, e.why()
	}
	vol := d.use()
	if vol == nil {
		s.Reading = false
		return s
	}
	defer vol.release()
	for _, a := range []area{vol.packed, vol.whole} {
		as := a.stats()
		s.Blocks += as.blocks
		s.Corrupt += as.corrupt
		s.WrittenBytes += as.written
		s.Errors += as.errors
		s.IndexBytes += as.indexBytes
	}
	s.Unindexed, s.UnindexedBytes = vol.unindexed()
	return s
}

// segmentsPath and objectsPath are where the two areas of a directory lie.
func segmentsPath(dir string) string { return filepath.Join(dir, segmentsDir) }
func objectsPath(dir string) string  { return filepath.Join(dir, objectsDir) }
