package prefetch

import (
	"strings"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// A window has windowMisses; enoughMisses of them must be distinct and in no order.
	windowMisses, enoughMisses = 64, 32
	// someRuns is what 32 random objects need nearly always, and 64 always. Seven readers
	// that each read a part of their own in order need seven.
	someRuns = 8
	// someDirectories tell readers of a tree from some readers of a directory each.
	someDirectories = 8
	// A window is looked at once in lookEvery misses: a look compares some hundred names.
	lookEvery = 8
	// silence is when what is remembered of a directory ends, and when an area does.
	silence = 30 * time.Second
)

// miss is an object that was missed.
type miss struct {
	version uint64 // the start of its Version, which is a hash
	key     string
	size    int64
	at      time.Time
}

// window is the last misses of distinct objects anywhere below a directory. It is
// arithmetic only.
type window struct {
	misses [windowMisses]miss
	noted  int       // how many so far
	child  where     // right below it, the last directory that became an area
	since  time.Time // when child became one
}

// note adds a miss, unless the window has one of that object. It reports whether it is
// time to look.
func (w *window) note(m miss) bool {
	for i := range min(w.noted, windowMisses) {
		if w.misses[i].version == m.version {
			return false
		}
	}
	w.misses[w.noted%windowMisses] = m
	w.noted++
	return w.noted%lookEvery == 0
}

// forget takes out the misses below a prefix.
func (w *window) forget(prefix string) {
	var kept []miss
	for i := max(0, w.noted-windowMisses); i < w.noted; i++ {
		if m := w.misses[i%windowMisses]; !strings.HasPrefix(m.key, prefix) {
			kept = append(kept, m)
		}
	}
	w.misses = [windowMisses]miss{}
	w.noted = copy(w.misses[:], kept)
}

// recent are the misses that are not too old, the oldest first.
func (w *window) recent(now time.Time, space []miss) []miss {
	for i := max(0, w.noted-windowMisses); i < w.noted; i++ {
		if m := w.misses[i%windowMisses]; now.Sub(m.at) < silence {
			space = append(space, m)
		}
	}
	return space
}

// unordered reports whether enough objects were missed, in no order. It is patience
// sorting: each key goes on the pile whose top is the greatest key below it. The number
// of piles is the least number of ascending runs.
func unordered(misses []miss) bool {
	if len(misses) < enoughMisses {
		return false
	}
	var piles [someRuns]string // the keys on top, falling
	n := 0
	for _, m := range misses {
		i := 0
		for i < n && piles[i] >= m.key {
			i++
		}
		if i == someRuns-1 {
			return true
		}
		piles[i] = m.key
		n = max(n, i+1)
	}
	return false
}

// directories are those that the misses lie in.
func directories(misses []miss) map[string]bool {
	all := map[string]bool{}
	for _, m := range misses {
		all[directoryOf(m.key)] = true
	}
	return all
}

// directoryOf is the prefix of a key up to its last "/". For a directory without its
// final "/" it is the directory above.
func directoryOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// above is the directory above one. It returns false for the bucket's root.
func above(dir string) (string, bool) {
	if dir == "" {
		return "", false
	}
	return directoryOf(dir[:len(dir)-1]), true
}

func missed(o *hearth.Object, now time.Time) miss {
	return miss{version: hashOf(o), key: o.Key, size: o.Size, at: now}
}
