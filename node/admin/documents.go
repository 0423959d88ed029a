package admin

import (
	"os"
	"time"
	"unicode/utf8"

	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
)

// This file has the documents of a node's admin API, which is HTTP and JSON on a Unix socket, with errors as
// {"kind", "error"}.

// Refreshed says what was asked for again at the origin: a name, or a directory and the known directories below
// it.
type Refreshed struct {
	Path string `json:"path"`
	Dir  bool   `json:"dir"`
	// Listed counts the directories that were listed again. Names counts the names in them, or is 1 for a
	// single name.
	Listed int64 `json:"listed"`
	Names  int64 `json:"names"`
}

// Entry is one line of a listing.
type Entry struct {
	// Path is relative to what was asked for. It has names of the mount or, if a URL was asked for, the key's
	// bytes.
	Path string `json:"path"`
	// Key is the key at the origin, and for a directory the prefix of its keys. It is empty if there is none.
	Key string `json:"key"`
	// PathBytes and KeyBytes are set if Path and Key are not UTF-8, which JSON cannot carry.
	PathBytes []byte `json:"path_base64,omitempty"`
	KeyBytes  []byte `json:"key_base64,omitempty"`

	Dir     bool      `json:"dir"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mod_time"`
}

// KeepBytes fills in PathBytes and KeyBytes if the path or the key is not UTF-8.
func (e *Entry) KeepBytes() {
	if !utf8.ValidString(e.Path) {
		e.PathBytes = []byte(e.Path)
	}
	if !utf8.ValidString(e.Key) {
		e.KeyBytes = []byte(e.Key)
	}
}

// restore takes a path or a key that is not UTF-8 from PathBytes and KeyBytes.
func (e *Entry) restore() {
	if e.PathBytes != nil {
		e.Path = string(e.PathBytes)
	}
	if e.KeyBytes != nil {
		e.Key = string(e.KeyBytes)
	}
}

// listEnd is the last line of a complete listing.
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
	// Held counts the blocks that each tier holds.
	Held map[string]int64 `json:"held,omitempty"`
}

// Usage is a sum of sizes below a path.
type Usage struct {
	Path  string `json:"path"`
	Files int64  `json:"files"`
	Dirs  int64  `json:"dirs"`
	Bytes int64  `json:"bytes"`
	// VolumeBytes are those of the bytes that lie on volumes, as far as this node answers for them. It is nil if the
	// node has no volumes.
	VolumeBytes *int64 `json:"volume_bytes,omitempty"`
	// Hidden counts keys that have no name. They are not in the sums.
	Hidden int64 `json:"hidden,omitempty"`
}

// PublishedDraft is what came of a draft for which somebody asked.
type PublishedDraft struct {
	status.Draft
	// Failed is why it is not in its bucket, with the cure. nil means that it is.
	Failed *Error `json:"failed,omitempty"`
}

// MountRequest asks a running node for a mount. If no link covers its Origin, the node first makes a link for
// it.
type MountRequest struct {
	config.Mount
	Origin *config.Origin `json:"origin,omitempty"`
	// FailStale is the setting of a link that is made for this request.
	FailStale bool `json:"fail_stale,omitempty"`
	// NoSeed is as FailStale.
	NoSeed bool `json:"no_seed,omitempty"`
	// Staging is that of a link that is made for this request. A link that there is has to have what is set here.
	Staging config.Staging `json:"staging,omitzero"`
	// Handed says that a descriptor of Dir comes with the request, since only the client can walk to Dir: see
	// machine.Automount. At is that descriptor, which the node closes. nil means that none came.
	Handed bool     `json:"handed,omitempty"`
	At     *os.File `json:"-"`
}
