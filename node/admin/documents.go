package admin

import (
	"os"
	"time"
	"unicode/utf8"

	"github.com/hearthfs/hearth/node/config"
)

// This file is how a node is asked: the documents of its admin API, which is HTTP
// and JSON on a Unix socket with errors as {"kind", "error"}, and a Client of it.

// Refreshed is what was asked for again: a name, or a directory and those below it that were known.
type Refreshed struct {
	Path string `json:"path"`
	Dir  bool   `json:"dir"`
	// Listed are the directories that were listed again, Names the names that they have, or 1.
	Listed int64 `json:"listed"`
	Names  int64 `json:"names"`
}

// Entry is one line of a listing.
type Entry struct {
	// Path relative to what was asked for: names of the mount, or, where a URL was
	// asked for, the key's bytes.
	Path string `json:"path"`
	// Key at the origin; of a directory the prefix that its keys have. "": none.
	Key string `json:"key"`
	// PathBytes and KeyBytes are there where Path and Key are not UTF-8, which
	// JSON cannot say.
	PathBytes []byte `json:"path_base64,omitempty"`
	KeyBytes  []byte `json:"key_base64,omitempty"`

	Dir     bool      `json:"dir"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mod_time"`
}

// KeepBytes adds what JSON cannot say: a key or path that is not UTF-8.
func (e *Entry) KeepBytes() {
	if !utf8.ValidString(e.Path) {
		e.PathBytes = []byte(e.Path)
	}
	if !utf8.ValidString(e.Key) {
		e.KeyBytes = []byte(e.Key)
	}
}

// restore undoes what JSON did to a key or path that is not UTF-8.
func (e *Entry) restore() {
	if e.PathBytes != nil {
		e.Path = string(e.PathBytes)
	}
	if e.KeyBytes != nil {
		e.Key = string(e.KeyBytes)
	}
}

// listEnd is the last line of a listing that is whole.
type listEnd struct {
	End bool `json:"end"`
	// Hidden counts keys that have no name.
	Hidden int64 `json:"hidden,omitempty"`
}

// Stat is what the node knows about one name.
type Stat struct {
	Entry
	Link    string `json:"link"`
	ETag    string `json:"etag,omitempty"`
	Version string `json:"version,omitempty"`
	Inode   uint64 `json:"inode"`
	// TTLMS is how long the kernel may keep this answer now, in milliseconds.
	TTLMS int64 `json:"ttl_ms"`
	// Cacheable is false for an object without a strong ETag.
	Cacheable bool  `json:"cacheable"`
	Blocks    int64 `json:"blocks"`
	// Held is how many of the blocks each tier holds.
	Held map[string]int64 `json:"held,omitempty"`
}

// Usage is a sum of sizes below a path.
type Usage struct {
	Path  string `json:"path"`
	Files int64  `json:"files"`
	Dirs  int64  `json:"dirs"`
	Bytes int64  `json:"bytes"`
	// Hidden counts keys that have no name, so that they are not in the sums.
	Hidden int64 `json:"hidden,omitempty"`
}

// MountRequest asks a running node for a mount. With an Origin that no link
// covers, a link named by it is made first.
type MountRequest struct {
	config.Mount
	Origin *config.Origin `json:"origin,omitempty"`
	// FailStale is that of a link that is made.
	FailStale bool `json:"fail_stale,omitempty"`
	// Handed says that a descriptor of Dir comes along, as only who asks can walk to it: see
	// machine.Automount. At is that descriptor, and the node's to close; nil: none came.
	Handed bool     `json:"handed,omitempty"`
	At     *os.File `json:"-"`
}
