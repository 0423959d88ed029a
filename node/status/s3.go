package status

import (
	"github.com/hearthfs/hearth/s3gw"
	"github.com/hearthfs/hearth/s3gw/object"
)

// S3Line is a node's S3 endpoint in its status.
type S3Line struct {
	// Listen is where it answers, TLS whether in TLS.
	Listen string `json:"listen"`
	TLS    bool   `json:"tls"`
	// Buckets that it shows.
	Buckets []string `json:"buckets"`
	// Keys that may ask, Anonymous whether anybody may.
	Keys      int64 `json:"keys"`
	Anonymous bool  `json:"anonymous"`
	// Ill is why the file of keys goes on as it was; "": it does not.
	Ill string `json:"ill,omitempty"`
	// UnderWay are requests that are being answered.
	UnderWay int64 `json:"under_way"`
	// Bounds are what all clients together take, and how much they may.
	Bounds s3gw.Bounds `json:"bounds"`
	// Faults are answers that were errors of the endpoint's own, by S3's code of them.
	Faults map[string]int64 `json:"faults"`
	// Requests are those that were, a row for each kind.
	Requests []S3Requests `json:"requests"`
	// Headers are those of objects that it remembers.
	Headers object.Stats `json:"headers"`
}

// S3Requests are requests of one kind.
type S3Requests struct {
	// Operation is Amazon's name, Code the status of the answer; How: cached, passed, written
	// or refused.
	Operation string `json:"operation"`
	Code      string `json:"code"`
	How       string `json:"how"`
	// Requests that were answered, Bytes of the answers' bodies, Seconds that they took.
	Requests int64   `json:"requests"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

// Sum is what all requests came to: how many, and how many of them from the cache.
func (l *S3Line) Sum() (requests, cached, bytes int64) {
	for _, r := range l.Requests {
		requests += r.Requests
		bytes += r.Bytes
		if r.How == "cached" {
			cached += r.Requests
		}
	}
	return requests, cached, bytes
}
