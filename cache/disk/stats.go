package disk

import (
	"path/filepath"
	"time"
)

// Stats are the figures of each directory, in the order of Options.Dirs.
type Stats struct {
	Dirs []DirStats
}

// Faults are what went wrong with a directory's device.
type Faults struct {
	// Corrupt blocks were found not to be what was written, and dropped.
	Corrupt int64
	// Errors are failed system calls.
	Errors int64
	// Stalls counts how often the device was found not to answer, Hanging the
	// operations that have been left to it and not come back.
	Stalls, Hanging int64
	// Mended counts files that somebody had harmed and that are well again: their rights
	// were given back, or they were made anew.
	Mended int64
	// Waited is how long operations have waited for the device in the last 10 s, where
	// that is half of what puts it out of use again and again; 0: less.
	Waited time.Duration
}

// DirStats are one directory's figures since Open; sizes are in bytes.
type DirStats struct {
	// Path as given, made absolute.
	Path string
	// Used is allocated now (st_blocks; unlinked files that are still open and the
	// namespace's files included), Limit what may be: the Budget, or less, down to
	// 0, while the file system has less than Floor free.
	Used, Limit, Budget, Floor int64
	// Queued bytes wait to be written; Blocks are held.
	Queued, Blocks int64
	// Hits are Gets answered, HitBytes their bytes.
	Hits, HitBytes int64
	// PutBytes of blocks were written. WrittenBytes is what that came to, with
	// headers, padding and what was written again to make room, since the directory
	// was last opened.
	PutBytes, WrittenBytes int64
	// Replaces: the policy has misses replace what is worth least; else they go into
	// free space only.
	Replaces bool
	// Declined blocks were offered and not taken, or not fetched whole since the device
	// was behind. Evicted entries were given up: blocks,
	// extents, whole files or versions.
	Declined, Evicted int64
	Faults
	// Ejected: no writes go here now, and Cause says why. Reading: what it holds is
	// still read.
	Ejected, Reading bool
	Cause            string
	// Unindexed blocks, of so many bytes, are held as well, count in Used and are misses:
	// there is no memory to index them.
	Unindexed, UnindexedBytes int64
	// IndexBytes is the memory of the indexes, counted in the Pool.
	IndexBytes int64
	// Scrub are the figures of what is read again behind the readers.
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
