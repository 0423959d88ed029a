// Package status is what a node says of itself: the document that its status call answers, with
// what is wrong in it for a person, and the metrics, which are made of it, so that the two never
// disagree. Who counts and who shows share its types.
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

// Status is one look at a node. Its keys are stable: keys are added, none is
// renamed or given another meaning.
type Status struct {
	// Says is the first line: the first of the problems, else of the warnings, else "ok".
	Says string `json:"says"`
	// Problems are all of them, the worst first; none: healthy.
	Problems []string `json:"problems"`
	// Warnings are what a person should know and do though the node is well: they change
	// neither its health nor an exit code.
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
	// Warmup is what has become of the files of all warm-ups since the node started, Prefetch
	// what was brought meanwhile of directories whose small files are read in random order.
	Warmup   warmup.Counters `json:"warmup"`
	Prefetch prefetch.Stats  `json:"prefetch"`
	Names    Names           `json:"names"`
	// Memory and Processors are what of the machine the node uses; it shares processors with
	// everything else there.
	Memory     Memory     `json:"memory"`
	Processors Processors `json:"processors"`
	// Ring is the node's part in a ring, S3 its S3 endpoint; nil: it has none.
	Ring *RingLine `json:"ring,omitempty"`
	S3   *S3Line   `json:"s3,omitempty"`
	// Reads are what mounts were asked for over time. Waits is how many seconds readers
	// waited, by cause: origin, throttled, disk, list. Egress is what origins were asked
	// for, and what not.
	Reads  Reads              `json:"reads"`
	Waits  map[string]float64 `json:"waited_s"`
	Egress Egress             `json:"egress"`
	// Uncached counts blocks that were read of objects without a strong ETag,
	// which no tier keeps.
	Uncached int64 `json:"uncached"`
}

// Origin are requests to the origins since the node started.
type Origin struct {
	Requests  int64 `json:"requests"`
	Bytes     int64 `json:"bytes"`
	Errors    int64 `json:"errors"`
	Retries   int64 `json:"retries"`
	Throttled int64 `json:"throttled"`
	// Verbs are the requests by verb: get, head, list, and pass, those of S3 clients.
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

// Link is a path of the tree, the bucket behind it, and how that does.
type Link struct {
	Path      string `json:"path"`
	URL       string `json:"url"`
	Endpoint  string `json:"endpoint,omitempty"`
	Freshness string `json:"freshness"`
	Origin    Origin `json:"origin"`
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
	LastError *origin.Failure `json:"last_error,omitempty"`
}

// Tier is one tier of the cache, the fastest first. Used and Budget are
// bytes; Hits and HitBytes are reads that this tier answered.
type Tier struct {
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
	Dirs []Dir `json:"dirs,omitempty"`
}

// Dir is one cache directory.
type Dir struct {
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
	Scrub disk.ScrubStats `json:"scrub"`
}

// Mount is a directory at which the kernel reads the tree, or a part of it.
type Mount struct {
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

// Memory is the RAM budget and what counts against it, in bytes.
type Memory struct {
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

// Processors is what of the machine's processors the node uses.
type Processors struct {
	// Threads is how many run Go code at once, at most.
	Threads int `json:"threads"`
	// Limit is what the control groups grant, in processors, LimitBy the file that says
	// so; 0: all.
	Limit   float64 `json:"limit,omitempty"`
	LimitBy string  `json:"limit_by,omitempty"`
}

// Names is the namespace.
type Names struct {
	// Where the names are kept; "memory" if nowhere else.
	Where string `json:"where"`
	// Figures as the namespace counts them.
	Figures map[string]int64 `json:"figures"`
	// Listings are directories that are being listed now, the longest first.
	Listings []Listing `json:"listings,omitempty"`
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

// Reads are what mounts were asked to read in three windows of time. What the kernel
// answers from its page cache, or reads itself of a file that it was lent
// (passthrough), reaches no mount and is in none of them.
type Reads struct {
	Now        Window `json:"now"`
	TenMinutes Window `json:"ten_minutes"`
	SinceStart Window `json:"since_start"`
	// Lent are opens that were answered by passthrough, since the start.
	Lent int64 `json:"lent_opens"`
}

// Window is a stretch of time that ends now.
type Window struct {
	// Seconds is how long it is.
	Seconds float64 `json:"seconds"`
	// Reads are READs of the kernel, Held those whose bytes this node held.
	Reads int64 `json:"reads"`
	Held  int64 `json:"held_reads"`
	// Bytes were read; From is where they came from: "ram", "disk", "origin", and, of a node
	// in a ring, "peers". What an
	// origin sent for readers, in that time, is the origin's, whichever tier it passed
	// through; the rest is shared out as the tiers answered.
	Bytes int64            `json:"bytes"`
	From  map[string]int64 `json:"from"`
	// HitReads and HitBytes are the parts that no origin had to be asked for, 0 to 1; nil:
	// nothing was read.
	HitReads *float64 `json:"hit_ratio_reads"`
	HitBytes *float64 `json:"hit_ratio_bytes"`
}

// Requests are a number of them and their bytes.
type Requests struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`
}

// Egress is what origins were asked for and what not, since the start.
type Egress struct {
	// Asked by what it was for: "readers" (read-ahead included), "warm_up" (fetches and
	// the bytes that came of them), "names" (HEAD and LIST).
	Asked map[string]Requests `json:"asked"`
	// Avoided by what made it needless: "ram", "disk" (reads that the tier answered),
	// "joined" (reads that waited for a fetch which another had begun).
	Avoided map[string]Requests `json:"avoided"`
}

// FirstByte is how long answers of origins let wait for their first byte.
type FirstByte struct {
	Count int64   `json:"count"`
	SumS  float64 `json:"sum_s"`
	// Buckets count answers by their time, each without those before; the last one
	// has no end.
	Buckets []Bucket `json:"buckets,omitempty"`
	// Of the last minute, in milliseconds; 0: there was no answer. Of several links the
	// worst.
	MedianMS float64 `json:"p50_ms"`
	P99MS    float64 `json:"p99_ms"`
	WorstMS  float64 `json:"worst_ms"`
}

// Bucket is a part of a histogram; LE is its end in seconds, 0: it has none.
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
	// URL is what its keys begin with, as s3://bucket/dir/.
	URL string `json:"url"`
	// Names were found so far, in so many Seconds.
	Names   int64   `json:"names"`
	Seconds float64 `json:"seconds"`
}
