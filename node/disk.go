package node

import (
	"path/filepath"

	"github.com/hearthfs/hearth/cache/check"
)

// diskTrouble has the events of a disk tier: the same fields as disk.Events.
type diskTrouble struct {
	Ejected     func(path string, cause error)
	Returned    func(path string)
	Full        func(path string, cause error)
	Mended      func(file string, cause error)
	Short       func(path string, limit, budget int64)
	Unindexed   func(path string, blocks, bytes int64)
	Found       func(check.Finding)
	ScrubFailed func(cause error)
	Damaged     func(file string, cause error)
}

// OfDisk returns events that log what happens in a disk tier.
func (e *troubleLog) OfDisk() diskTrouble {
	return diskTrouble{
		Ejected: func(path string, cause error) {
			e.Trouble("eject "+path, "cache directory is out of use", "dir", path, "cause", cause)
		},
		Returned: func(path string) { e.Info("cache directory is in use again", "dir", path) },
		Full: func(path string, cause error) {
			e.Trouble("full "+path, "cache directory has no room", "dir", path, "cause", cause)
		},
		Mended: func(file string, cause error) {
			e.Trouble("mended "+filepath.Dir(file)+cause.Error(), "what was wrong with a cache file is mended", "file", file, "cause", cause)
		},
		Damaged: func(file string, cause error) {
			e.Trouble("damaged "+filepath.Dir(file), "what a cache file held is read from the origin", "file", file, "cause", cause)
		},
		Short: func(path string, limit, budget int64) {
			e.Trouble("short "+path, "cache directory may hold less than its budget: its file system has too few free bytes", "dir", path, "may_hold", limit, "budget", budget)
		},
		Unindexed: func(path string, blocks, bytes int64) {
			e.Trouble("unindexed "+path, "cache directory holds blocks that there is no memory to index: they are read from the origin, and go first when room is needed; raise cache.ram", "dir", path, "blocks", blocks, "bytes", bytes)
		},
		Found: func(f check.Finding) {
			says := "the scrub dropped what is damaged"
			if !f.Repaired {
				says = "the scrub found what it cannot mend"
			}
			e.Trouble("scrub", says, "what", f.String())
		},
		ScrubFailed: func(cause error) { e.Trouble("scrub failed", "the scrub is held up", "cause", cause) },
	}
}
