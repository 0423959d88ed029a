package ring

import "maps"

// This file adds up the counts of mounts by directory, including mounts that are gone. Otherwise a counter
// would fall when a mount goes, such as the mount of each job.
//
// A node may see any number of directories over its life, and a metrics store keeps each label for ever. So the
// first Most directories have a row each, for good, and all further ones share one.

const (
	// Most bounds the directories with a row of their own. It is more than a machine's configuration has
	// mounts. With the counts of each it makes some thousand figures.
	Most = 64
	// others is the row of all further directories. No directory has this name, since their paths are absolute.
	others = "other"
)

// SumsByDir has counts by directory and kind. They never fall.
type SumsByDir map[string]map[string]int64

// Add adds counts to the row of a directory. It makes the row if there is none, even for nil counts.
func (s SumsByDir) Add(dir string, counts map[string]int64) {
	if s[dir] == nil && len(s) >= Most {
		dir = others
	}
	if s[dir] == nil {
		s[dir] = map[string]int64{}
	}
	for kind, n := range counts {
		s[dir][kind] += n
	}
}

// Clone returns a copy that can be added to.
func (s SumsByDir) Clone() SumsByDir {
	c := SumsByDir{}
	for dir, counts := range s {
		c[dir] = maps.Clone(counts)
	}
	return c
}
