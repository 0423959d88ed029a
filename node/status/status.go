// Package status is what a node says of itself: the document that its status call answers. It finds in the
// document what is wrong, for people, and makes the metrics from it, so that the two never disagree. The parts
// that count and the commands that show share its types.
package status

import (
	"time"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/prefetch"
)

// Status is one look at a node. Its keys are stable: keys may be added, and none is renamed or changes its
// meaning.
type Status struct {
	// Says is the first line: the first problem, else the first warning, else "ok".
	Says string `json:"says"`
	// Problems are all of them, the worst first. A node without any is healthy.
	Problems []string `json:"problems"`
	// Warnings are what a person should know and mend though the node is well. They change neither its health
	// nor an exit code.
	Warnings []string `json:"warnings"`
	Version  string   `json:"version"`
	PID      int      `json:"pid"`
	UptimeS  int64    `json:"uptime_s"`
	Origin   Origin   `json:"origin"`
	Links    []Link   `json:"links"`
	Tiers    []Tier   `json:"tiers"`
	Mounts   []Mount  `json:"mounts"`
	// Jobs are warm-ups that are not over.
	Jobs []warmup.Line `json:"jobs"`
	// Pins are the paths that stay in the cache.
	Pins []namespace.PinView `json:"pins"`
	// Warmup is what has become of the files of all warm-ups since the node started. Prefetch is what was
	// brought meanwhile from directories whose small files are read in random order.
	Warmup   warmup.Counters `json:"warmup"`
	Prefetch prefetch.Stats  `json:"prefetch"`
	Names    Names           `json:"names"`
	// Memory and Processors are what the node uses of the machine. It shares processors with everything else
	// there.
	Memory     Memory     `json:"memory"`
	Processors Processors `json:"processors"`
	// Keeper is what started this node, and starts the next one. It is nil if nobody does.
	Keeper *KeeperLine `json:"keeper,omitempty"`
	// Ring is the node's part in a ring, and S3 its S3 endpoint. Each is nil if the node has none.
	Ring *RingLine `json:"ring,omitempty"`
	S3   *S3Line   `json:"s3,omitempty"`
	// Drafts are files that were written and are not in their bucket. It is nil if no mount of the node was ever writable.
	Drafts *Drafts `json:"drafts,omitempty"`
	// Reads are what mounts were asked for over time. Waits is how many seconds readers waited, by cause:
	// origin, throttled, volume, disk, list. Egress is what origins were asked for, and what not.
	Reads  Reads              `json:"reads"`
	Waits  map[string]float64 `json:"waited_s"`
	Egress Egress             `json:"egress"`
	// Uncached counts blocks that were read from objects without a strong ETag, which no tier keeps.
	Uncached int64 `json:"uncached"`
}

// KeeperLine is what the keeper knows (hearth keep).
type KeeperLine struct {
	// Starts counts the nodes that it has started, with this one.
	Starts int `json:"starts"`
	// Cause is how the node before ended, Ended is since when none has served, in Unix seconds, and StalledS is how many
	// seconds later its mounts were served again. Without a node before they are empty.
	Cause    string  `json:"cause,omitempty"`
	Ended    int64   `json:"ended,omitempty"`
	StalledS float64 `json:"stalled_s"`
}

// Origin counts requests to the origins since the node started.
type Origin struct {
	Requests  int64 `json:"requests"`
	Bytes     int64 `json:"bytes"`
	Errors    int64 `json:"errors"`
	Retries   int64 `json:"retries"`
	Throttled int64 `json:"throttled"`
	// Verbs counts the requests by verb: get, head, list, and pass for requests of S3 clients.
	Verbs     map[string]int64 `json:"verbs"`
	FirstByte FirstByte        `json:"first_byte"`
}

// Add adds the requests of x.
func (o *Origin) Add(x Origin) {
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

// Link is a path of the tree, the bucket behind it, and the state of that bucket.
type Link struct {
	Path      string `json:"path"`
	URL       string `json:"url"`
	Endpoint  string `json:"endpoint,omitempty"`
	Freshness string `json:"freshness"`
	Origin    Origin `json:"origin"`
	// Failing is the error of the last fetch of an object. It is empty if the fetch succeeded. It is also empty
	// if the fetch of only one key was denied, while others can be read: then Denied is the error. FailingAt is
	// when either was last met.
	Failing   string     `json:"failing,omitempty"`
	Denied    string     `json:"denied,omitempty"`
	FailingAt *time.Time `json:"failing_at,omitempty"`
	// Throttles says that the origin asks to slow down, and the cure. It is empty if it does not.
	Throttles string `json:"throttles,omitempty"`
	// Differs says that the origin's listings name other versions than its HEADs, so that each name costs a
	// HEAD, and the cure. It is empty if they do not, as far as is known.
	Differs string `json:"differs,omitempty"`
	// Unheeded says that the origin ignores conditions of writes, so that a HEAD goes before each, and what that means. It is empty if
	// it does not, as far as is known.
	Unheeded string `json:"unheeded,omitempty"`
	// LastError is the last failure, even if a retry then succeeded.
	LastError *origin.Failure `json:"last_error,omitempty"`
}

// Tier is one tier of the cache, the fastest first. Used and Budget are in bytes. Hits and HitBytes are reads
// that this tier answered.
type Tier struct {
	Name     string `json:"name"`
	Used     int64  `json:"used"`
	Budget   int64  `json:"budget"`
	Hits     int64  `json:"hits"`
	HitBytes int64  `json:"hit_bytes"`
	Misses   int64  `json:"misses"`
	Errors   int64  `json:"errors"`
	// Written is how many bytes a disk tier has written since it was opened, with headers, padding and what was
	// written again to make room.
	Written int64 `json:"written,omitempty"`
	// Dirs are the directories of a disk tier.
	Dirs []Dir `json:"dirs,omitempty"`
	// Volumes are those of the tier of volumes.
	Volumes []Volume `json:"volumes,omitempty"`
}

// Dir is one cache directory.
type Dir struct {
	Path   string `json:"path"`
	Used   int64  `json:"used"`
	Budget int64  `json:"budget"`
	// Queued is how many bytes wait to be written. A kill would lose them.
	Queued int64 `json:"queued"`
	// FileSystem is the type of the file system that it lies on. Note is what a person should know and do about
	// that, and is empty if nothing.
	FileSystem string `json:"file_system,omitempty"`
	Note       string `json:"note,omitempty"`
	// Replaces means that misses replace what is worth least. Otherwise they only go into free space.
	Replaces bool `json:"replaces,omitempty"`
	// Full says why less than a block fits, and the cure. It is empty if there is room.
	Full string `json:"full,omitempty"`
	// Slow says that its device lets operations wait, and the cure. It is empty if it does not.
	Slow string `json:"slow,omitempty"`
	// Unindexed counts blocks that it holds but that are misses, since there is no memory to index them.
	// NoMemory says so, with the cure. It is empty if there are none.
	Unindexed int64  `json:"unindexed,omitempty"`
	NoMemory  string `json:"no_memory,omitempty"`
	// Ill says why the directory is out of use. It is empty if it is in use.
	Ill string `json:"ill,omitempty"`
	// Stalls counts how often its device did not answer. Hanging counts the operations that were left to the
	// device and have not returned.
	Stalls  int64 `json:"stalls"`
	Hanging int64 `json:"hanging"`
	// Declined counts blocks that it was offered and did not take. It also counts reads for which no block was
	// fetched, since the device was behind: a reader that reads them again asks for them again.
	Declined int64 `json:"declined,omitempty"`
	// Mended counts files that somebody had harmed and that are sound again.
	Mended int64 `json:"mended,omitempty"`
	// Scrub is what was read again behind the readers, and what was found.
	Scrub disk.ScrubStats `json:"scrub"`
}

// Mount is a directory at which the kernel reads the tree or a part of it.
type Mount struct {
	Dir string `json:"dir"`
	// Detached means that it is no longer mounted anywhere, but in use. At is where it was moved to.
	Detached bool   `json:"detached,omitempty"`
	At       string `json:"at,omitempty"`
	Prefix   string `json:"prefix"`
	// Write is through where files can be written (hearth mount --write). It is empty where they cannot.
	Write string `json:"write,omitempty"`
	// Open is the mode in force, and Why the reason for it.
	Open string `json:"open"`
	Why  string `json:"why"`
	// Lacks lists the kernel's abilities that the mount does without, each with the reason.
	Lacks []string `json:"lacks,omitempty"`
	// Timeouts says in words how long the kernel keeps what it was told.
	Timeouts  string `json:"timeouts"`
	Freshness string `json:"freshness"`
	// Warning is what a user of the mount should know, such as that its origin cannot be asked. It is empty if
	// all is well.
	Warning string `json:"warning,omitempty"`
	// Kept means that the mount outlives this node: a keeper has it.
	Kept bool             `json:"kept,omitempty"`
	Ops  map[string]int64 `json:"ops,omitempty"`
}

// Access says whether files can be written, in a word.
func (m *Mount) Access() string {
	if m.Write != "" {
		return "writable"
	}
	return "read-only"
}

// Memory is the RAM budget and what counts against it, in bytes.
type Memory struct {
	Budget int64 `json:"budget"`
	Used   int64 `json:"used"`
	Idle   int64 `json:"idle"`
	Views  int64 `json:"views"`
	// Limit is the smallest of the machine's memory and the limits of its control groups. LimitBy is the file
	// that sets it, and empty if it is the machine's memory.
	Limit   int64  `json:"limit"`
	LimitBy string `json:"limit_by,omitempty"`
	// Heap is the limit of the Go heap.
	Heap int64 `json:"heap"`
}

// Processors is what the node uses of the machine's processors.
type Processors struct {
	// Threads is how many threads run Go code at once, at most.
	Threads int `json:"threads"`
	// Limit is what the control groups grant, in processors, and LimitBy the file that says so. 0 means all.
	Limit   float64 `json:"limit,omitempty"`
	LimitBy string  `json:"limit_by,omitempty"`
}

// Names is the state of the namespace.
type Names struct {
	// Where is the directory in which the names are kept, or "memory".
	Where string `json:"where"`
	// Figures are the namespace's own counts.
	Figures map[string]int64 `json:"figures"`
	// Listings are directories that are being listed now, the longest first.
	Listings []Listing `json:"listings,omitempty"`
	// Ill says why names are no longer kept on disk. It is empty if they are.
	Ill string `json:"ill,omitempty"`
	// Stale says why an origin could not be asked lately, so that last known names are shown. It is empty if
	// all names are fresh.
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

// Reads are what mounts were asked to read in three windows of time. Reads that the kernel answers from its
// page cache, or from a file that it was lent (passthrough), reach no mount and are in none of them.
type Reads struct {
	Now        Window `json:"now"`
	TenMinutes Window `json:"ten_minutes"`
	SinceStart Window `json:"since_start"`
	// Lent counts opens since the start that were answered by passthrough.
	Lent int64 `json:"lent_opens"`
}

// Window is a stretch of time that ends now.
type Window struct {
	// Seconds is the length of the window.
	Seconds float64 `json:"seconds"`
	// Reads counts READs of the kernel, and Held those whose bytes this node held.
	Reads int64 `json:"reads"`
	Held  int64 `json:"held_reads"`
	// Bytes counts what was read. From says where it came from: "ram", "disk", "origin", with volumes
	// "volume", and in a ring "peers". What an origin sent for readers in that time counts as the origin's, whichever tier it passed
	// through. The rest is divided as the tiers answered.
	Bytes int64            `json:"bytes"`
	From  map[string]int64 `json:"from"`
	// HitReads and HitBytes are the hit ratios: the parts for which no origin had to be asked, 0 to 1. nil
	// means that nothing was read.
	HitReads *float64 `json:"hit_ratio_reads"`
	HitBytes *float64 `json:"hit_ratio_bytes"`
}

// Requests is a number of requests and their bytes.
type Requests struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`
}

// Egress is what origins were asked for since the start, and what they did not have to be asked for.
type Egress struct {
	// Asked is by purpose: "readers" (read-ahead included), "warm_up" (fetches and the bytes that they
	// brought), "names" (HEAD and LIST).
	Asked map[string]Requests `json:"asked"`
	// Avoided is by what made it needless: "ram", "disk" and "volume" (reads that the tier answered), "joined" (reads
	// that waited for a fetch which another reader had begun).
	Avoided map[string]Requests `json:"avoided"`
}

// FirstByte is the latency of origins' answers up to their first byte.
type FirstByte struct {
	Count int64   `json:"count"`
	SumS  float64 `json:"sum_s"`
	// Buckets count answers by their time, each without those of the buckets before. The last one has no end.
	Buckets []Bucket `json:"buckets,omitempty"`
	// These percentiles are of the last minute, in milliseconds. 0 means that there was no answer. Of several
	// links the worst counts.
	MedianMS float64 `json:"p50_ms"`
	P99MS    float64 `json:"p99_ms"`
	WorstMS  float64 `json:"worst_ms"`
}

// Bucket is a part of a histogram. LE is its end in seconds, and 0 if it has none.
type Bucket struct {
	LE    float64 `json:"le,omitempty"`
	Count int64   `json:"count"`
}

// Add adds the answers of x.
func (f *FirstByte) Add(x FirstByte) {
	f.Count += x.Count
	f.SumS += x.SumS
	if len(f.Buckets) == 0 {
		f.Buckets = append(f.Buckets, x.Buckets...)
	} else {
		for i := range x.Buckets {
			f.Buckets[i].Count += x.Buckets[i].Count
		}
	}
	f.MedianMS, f.P99MS, f.WorstMS = max(f.MedianMS, x.MedianMS), max(f.P99MS, x.P99MS), max(f.WorstMS, x.WorstMS)
}

// Listing is a directory that is being listed at its origin.
type Listing struct {
	// URL is what its keys begin with, such as s3://bucket/dir/.
	URL string `json:"url"`
	// Names is how many names were found so far, in so many Seconds.
	Names   int64   `json:"names"`
	Seconds float64 `json:"seconds"`
}
