package state

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/disk"
)

// This file keeps the results of open=auto, so that a bucket is judged once and not at each start.

// OpenModesFile is the name of that file, in the first cache directory.
const OpenModesFile = disk.OpenModesFile

// OpenModes are the results of open=auto by link and prefix, kept over a restart.
type OpenModes struct {
	mu    sync.Mutex // guards large and the file; held while the file is written, which is rare
	file  string     // "" means memory only
	large map[string]bool
}

// OpenOpenModes reads the results from the first cache directory, dir. An empty dir means that there is none,
// and that nothing is kept.
func OpenOpenModes(dir string) *OpenModes {
	j := &OpenModes{large: map[string]bool{}}
	if dir == "" {
		return j
	}
	j.file = filepath.Join(dir, OpenModesFile)
	if text, err := os.ReadFile(j.file); err == nil {
		j.large = parseOpenModes(text)
	}
	return j
}

// OpenModesWhole reports whether the content of the file can be read.
func OpenModesWhole(text []byte) bool {
	var large map[string]bool
	return json.Unmarshal(text, &large) == nil && large != nil
}

// parseOpenModes reads what Put wrote. A damaged file counts as empty, and each link is judged again.
func parseOpenModes(text []byte) map[string]bool {
	var large map[string]bool
	if json.Unmarshal(text, &large) != nil || large == nil { // "null" is JSON, too
		return map[string]bool{}
	}
	return large
}

// Get returns the result for a link and prefix. false means that it was not judged.
func (j *OpenModes) Get(key string) (large, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	large, ok = j.large[key]
	return large, ok
}

// Put keeps a result. An error means that it is kept in memory only.
func (j *OpenModes) Put(key string, large bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.large[key] = large
	if j.file == "" {
		return nil
	}
	text, err := json.Marshal(j.large)
	if err != nil {
		return err
	}
	if err := os.WriteFile(j.file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(j.file+".new", j.file)
}

// sampleKeys is how many keys one LIST returns, and how many open=auto judges by.
const sampleKeys = 1000

// SampleKeys returns the sizes of the first keys below a prefix, in bytes.
func SampleKeys(ctx context.Context, origin interface {
	List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error
}, prefix string) (sizes []int64, err error) {
	q := hearth.Listing{Prefix: prefix, Limit: sampleKeys, Recursive: true}
	err = origin.List(ctx, q, func(o hearth.Object) error {
		sizes = append(sizes, o.Size)
		return nil
	})
	return sizes, err
}
