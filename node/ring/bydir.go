package ring

import "maps"

// This file adds up what mounts counted, by directory, those that are gone
// included: else a counter fell when a mount goes, as that of each job does which has
// one of its own.
//
// Directories are without number over a node's life, and what keeps figures by label
// keeps each label for ever. So the first Most that are mounted have a row each, for
// good, and all further ones share one.

const (
	// Most directories have a row: more than a machine's configuration has mounts, and
	// with what is counted of each some thousand figures.
	Most = 64
	// others is the row of all further ones; no directory is called so, since their
	// paths are absolute.
	others = "other"
)

// SumsByDir are counts by directory and kind. They never fall.
type SumsByDir map[string]map[string]int64

// Add adds counts of a directory to its row, which is made if there is none, for nil
// counts too.
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

// Clone is a copy to go on with.
func (s SumsByDir) Clone() SumsByDir {
	c := SumsByDir{}
	for dir, counts := range s {
		c[dir] = maps.Clone(counts)
	}
	return c
}
