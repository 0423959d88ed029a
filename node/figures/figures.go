// Package figures is the vocabulary of a node's figures over time, as its status has them
// in JSON. It imports nothing, so that who counts and who shows may share it.
package figures

import "time"

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

// Failure is when something failed, and why with its cure.
type Failure struct {
	At   time.Time `json:"at"`
	Says string    `json:"says"`
}

// Listing is a directory that is being listed at its origin.
type Listing struct {
	// URL is what its keys begin with, as s3://bucket/dir/.
	URL string `json:"url"`
	// Names were found so far, in so many Seconds.
	Names   int64   `json:"names"`
	Seconds float64 `json:"seconds"`
}
