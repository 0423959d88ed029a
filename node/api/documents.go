// Package api is how a node is asked: the documents of its admin API, which is HTTP
// and JSON on a Unix socket with errors as {"kind", "error"}, and a Client of it.
package api

import (
	"os"
	"time"
	"unicode/utf8"

	"github.com/hearthfs/hearth/cache/scrub"
	"github.com/hearthfs/hearth/namespace/pins"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/figures"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/prefetch"
)

// Status is one look at a node. Its keys are stable: keys are added, none is
// renamed or given another meaning.
type Status struct {
	// Says is the first line: the first of the problems, else of the warnings, else "ok".
	Says string `json:"says"`
	// Problems are all of them, the worst first; none: healthy.
	Problems []string `json:"problems"`
	// Warnings are what a person should know and do though the node is well: they change
	// neither its health nor an exit code.
	Warnings []string      `json:"warnings"`
	Version  string        `json:"version"`
	PID      int           `json:"pid"`
	UptimeS  int64         `json:"uptime_s"`
	Origin   OriginStatus  `json:"origin"`
	Links    []LinkStatus  `json:"links"`
	Tiers    []TierStatus  `json:"tiers"`
	Mounts   []MountStatus `json:"mounts"`
	// Jobs are warm-ups that are not over.
	Jobs []warmup.Line `json:"jobs"`
	// Pins are the paths that stay in the cache.
	Pins []pins.View `json:"pins"`
	BroughtStatus
	Names NamesStatus `json:"names"`
	MachineStatus
	OthersStatus
	// Reads are what mounts were asked for over time. Waits is how many seconds readers
	// waited, by cause: origin, throttled, disk, list. Egress is what origins were asked
	// for, and what not.
	Reads  figures.Reads      `json:"reads"`
	Waits  map[string]float64 `json:"waited_s"`
	Egress figures.Egress     `json:"egress"`
	// Uncached counts blocks that were read of objects without a strong ETag,
	// which no tier keeps.
	Uncached int64 `json:"uncached"`
}

// BroughtStatus is what was brought before anybody read it, since the node started.
type BroughtStatus struct {
	// Warmup is what has become of the files of all warm-ups.
	Warmup warmup.Counters `json:"warmup"`
	// Prefetch is what was brought of directories whose small files are read in random
	// order.
	Prefetch prefetch.Stats `json:"prefetch"`
}

// OriginStatus are requests to the origins since the node started.
type OriginStatus struct {
	Requests  int64 `json:"requests"`
	Bytes     int64 `json:"bytes"`
	Errors    int64 `json:"errors"`
	Retries   int64 `json:"retries"`
	Throttled int64 `json:"throttled"`
	// Verbs are the requests by verb: get, head, list, and pass, those of S3 clients.
	Verbs     map[string]int64  `json:"verbs"`
	FirstByte figures.FirstByte `json:"first_byte"`
}

// Add adds the requests of x.
func (o *OriginStatus) Add(x OriginStatus) {
	o.Requests += x.Requests
	o.Bytes += x.Bytes
	o.Errors += x.Errors
	o.Retries += x.Retries
	o.Throttled += x.Throttled
	o.FirstByte.Add(x.FirstByte)
	for verb, n := range x.Verbs {
		o.Verbs[verb] += n
	}
}

// Refreshed is what was asked for again: a name, or a directory and those below it that were known.
type Refreshed struct {
	Path string `json:"path"`
	Dir  bool   `json:"dir"`
	// Listed are the directories that were listed again, Names the names that they have, or 1.
	Listed int64 `json:"listed"`
	Names  int64 `json:"names"`
}

// LinkStatus is a path of the tree, the bucket behind it, and how that does.
type LinkStatus struct {
	Path      string       `json:"path"`
	URL       string       `json:"url"`
	Endpoint  string       `json:"endpoint,omitempty"`
	Freshness string       `json:"freshness"`
	Origin    OriginStatus `json:"origin"`
	// Failing is what the last fetch of an object failed with; "": it did not, or what it
	// was denied is Denied: that of one key, while others can be read. FailingAt is when
	// either was met last.
	Failing   string     `json:"failing,omitempty"`
	Denied    string     `json:"denied,omitempty"`
	FailingAt *time.Time `json:"failing_at,omitempty"`
	// Throttles says that the origin asks to slow down, and what to do; "": it does not.
	Throttles string `json:"throttles,omitempty"`
	// Differs says that listings of the origin name other versions than its HEADs, so that names cost
	// a HEAD each, and what to do; "": they do not, as far as is known.
	Differs string `json:"differs,omitempty"`
	// LastError is what failed last, though it may have been tried again with success.
	LastError *figures.Failure `json:"last_error,omitempty"`
}

// TierStatus is one tier of the cache, the fastest first. Used and Budget are
// bytes; Hits and HitBytes are reads that this tier answered.
type TierStatus struct {
	Name     string `json:"name"`
	Used     int64  `json:"used"`
	Budget   int64  `json:"budget"`
	Hits     int64  `json:"hits"`
	HitBytes int64  `json:"hit_bytes"`
	Misses   int64  `json:"misses"`
	Errors   int64  `json:"errors"`
	// Written bytes of a disk tier: what its writes came to since it was opened, with
	// headers, padding and what was written again to make room.
	Written int64 `json:"written,omitempty"`
	// Dirs are the directories of a disk tier.
	Dirs []DirStatus `json:"dirs,omitempty"`
}

// DirStatus is one cache directory.
type DirStatus struct {
	Path   string `json:"path"`
	Used   int64  `json:"used"`
	Budget int64  `json:"budget"`
	// Queued bytes wait to be written: a kill would lose them.
	Queued int64 `json:"queued"`
	// FileSystem is the type of the one that it lies on; Note is what is to be known
	// about that, and what to do; "": nothing.
	FileSystem string `json:"file_system,omitempty"`
	Note       string `json:"note,omitempty"`
	// Replaces: misses replace what is worth least; else they go into free space only.
	Replaces bool `json:"replaces,omitempty"`
	// Full says why less than a block can be held, and what to do; "": there is room.
	Full string `json:"full,omitempty"`
	// Slow says that its device lets operations wait, and what to do; "": it does not.
	Slow string `json:"slow,omitempty"`
	// Unindexed counts blocks that it holds, and that are misses, as there is no memory to
	// index them. NoMemory says so, and what to do; "": there are none.
	Unindexed int64  `json:"unindexed,omitempty"`
	NoMemory  string `json:"no_memory,omitempty"`
	// Ill says why the directory is not used any more; "": it is.
	Ill string `json:"ill,omitempty"`
	// Stalls counts how often its device did not answer, Hanging the operations that
	// have been left to it and not come back.
	Stalls  int64 `json:"stalls"`
	Hanging int64 `json:"hanging"`
	// Declined counts blocks that it was offered and did not take, and reads of which no block
	// was fetched since its device was behind: who reads them again asks for them again.
	Declined int64 `json:"declined,omitempty"`
	// Mended counts files that somebody had harmed and that are well again.
	Mended int64 `json:"mended,omitempty"`
	// Scrub is what is read again behind the readers, and what it found.
	Scrub scrub.Stats `json:"scrub"`
}

// MountStatus is a directory at which the kernel reads the tree, or a part of it.
type MountStatus struct {
	Dir string `json:"dir"`
	// Detached: it is mounted nowhere any more, and in use. At is where it was moved to.
	Detached bool   `json:"detached,omitempty"`
	At       string `json:"at,omitempty"`
	Prefix   string `json:"prefix"`
	// Open is the mode in force, Why the reason for it.
	Open string `json:"open"`
	Why  string `json:"why"`
	// Lacks is what of the kernel's abilities the mount does without, each with the
	// reason.
	Lacks []string `json:"lacks,omitempty"`
	// Timeouts are how long the kernel keeps what it was told, in words.
	Timeouts  string `json:"timeouts"`
	Freshness string `json:"freshness"`
	// Warning is what the mount should know: its origin could not be asked when it
	// was made, and cannot yet; "": all is well.
	Warning string           `json:"warning,omitempty"`
	Ops     map[string]int64 `json:"ops,omitempty"`
}

// MachineStatus is what of the machine the node uses.
type MachineStatus struct {
	Memory MemoryStatus `json:"memory"`
	// Processors are shared with everything else on the machine.
	Processors ProcessorsStatus `json:"processors"`
}

// MemoryStatus is the RAM budget and what counts against it, in bytes.
type MemoryStatus struct {
	Budget int64 `json:"budget"`
	Used   int64 `json:"used"`
	Idle   int64 `json:"idle"`
	Views  int64 `json:"views"`
	// Limit is the smallest of the machine's memory and the limits of its control
	// groups, LimitBy the file of the one that it is; "": the machine's.
	Limit   int64  `json:"limit"`
	LimitBy string `json:"limit_by,omitempty"`
	// Heap is what the Go heap is held to.
	Heap int64 `json:"heap"`
}

// ProcessorsStatus is what of the machine's processors the node uses.
type ProcessorsStatus struct {
	// Threads is how many run Go code at once, at most.
	Threads int `json:"threads"`
	// Limit is what the control groups grant, in processors, LimitBy the file that says
	// so; 0: all.
	Limit   float64 `json:"limit,omitempty"`
	LimitBy string  `json:"limit_by,omitempty"`
}

// NamesStatus is the namespace.
type NamesStatus struct {
	// Where the names are kept; "memory" if nowhere else.
	Where string `json:"where"`
	// Figures as the namespace counts them.
	Figures map[string]int64 `json:"figures"`
	// Listings are directories that are being listed now, the longest first.
	Listings []figures.Listing `json:"listings,omitempty"`
	// Ill says why names are not kept on disk any more; "": they are.
	Ill string `json:"ill,omitempty"`
	// Stale says why an origin could not be asked lately and last known names
	// are shown; "": all is fresh.
	Stale string `json:"stale,omitempty"`
}

// Covers reports whether a link of the node leads to what o names.
func (s *Status) Covers(o config.Origin) bool {
	for _, l := range s.Links {
		if o.In(config.Origin{URL: l.URL, Endpoint: l.Endpoint}) {
			return true
		}
	}
	return false
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

// ListEnd is the last line of a listing that is whole.
type ListEnd struct {
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

// OthersStatus is whom the node talks to beside who reads its mounts.
type OthersStatus struct {
	// Ring is the node's part in a ring; nil: it is in none.
	Ring *RingLine `json:"ring,omitempty"`
	// S3 is the node's S3 endpoint; nil: it has none.
	S3 *figures.S3Line `json:"s3,omitempty"`
}
