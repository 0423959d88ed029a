package status

import (
	"github.com/hearthfs/hearth/s3gw"
	"github.com/hearthfs/hearth/s3gw/object"
)

// S3Line is a node's S3 endpoint in its status.
type S3Line struct {
	// Listen is the address at which it answers. TLS says whether it uses TLS.
	Listen string `json:"listen"`
	TLS    bool   `json:"tls"`
	// Buckets are the buckets that it shows.
	Buckets []string `json:"buckets"`
	// Keys counts the keys that may ask. Anonymous says whether anybody may.
	Keys      int64 `json:"keys"`
	Anonymous bool  `json:"anonymous"`
	// Ill is why a changed file of keys was not taken, so that the old one stays in force. It is empty if all
	// is well.
	Ill string `json:"ill,omitempty"`
	// UnderWay counts requests that are being answered.
	UnderWay int64 `json:"under_way"`
	// Bounds are what all clients together take, and how much they may take.
	Bounds s3gw.Bounds `json:"bounds"`
	// Faults counts answers that were errors of the endpoint's own, by their S3 code.
	Faults map[string]int64 `json:"faults"`
	// Requests are the requests so far, one row for each kind.
	Requests []S3Requests `json:"requests"`
	// Headers counts the objects' headers that it remembers.
	Headers object.Stats `json:"headers"`
}

// S3Requests are requests of one kind.
type S3Requests struct {
	// Operation is Amazon's name of it, and Code the status of the answer. How is cached, passed, written or
	// refused.
	Operation string `json:"operation"`
	Code      string `json:"code"`
	How       string `json:"how"`
	// Requests counts those that were answered, Bytes is the sum of their bodies, and Seconds the time that
	// they took.
	Requests int64   `json:"requests"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

// Sum adds up all requests: how many there were, how many were answered from the cache, and their bytes.
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
