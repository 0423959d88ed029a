// Package config is what a node can be told, in values that neither open nor ask
// anything: which origins stand where in its tree, what its cache may take, which
// mounts it makes and where it answers. What cannot be meant is found by package
// node, which knows the parts that must serve it.
package config

import (
	"os"
	"strings"
	"time"
)

// Link binds an origin's prefix to a path of the tree.
type Link struct {
	// Path in the tree, "/" or "/imagenet".
	Path string `json:"path"`
	// Origin says which bucket and how to reach it.
	Origin Origin `json:"origin"`
	// Freshness is immutable, bounded(60s) or strict; "": bounded(60s).
	Freshness string `json:"freshness,omitempty"`
	// FailStale answers EIO instead of the last known names once the origin cannot
	// be asked.
	FailStale bool `json:"fail_stale,omitempty"`
	// Configure passes on what S3 clients would configure the bucket by; S3.Configure does so for all.
	Configure bool `json:"configure,omitempty"`
}

// Origin is how to reach a bucket. Credentials come from where the AWS tools
// take them, never from here.
type Origin struct {
	// URL is s3://bucket/prefix or file:///dir.
	URL string `json:"url"`
	// Endpoint of an S3 server other than AWS, "http://host:9000".
	Endpoint string `json:"endpoint,omitempty"`
	// Region of the bucket; "": as the AWS variables say, else asked for.
	Region string `json:"region,omitempty"`
	// PathStyle is auto, on or off.
	PathStyle string `json:"path_style,omitempty"`
	// Anonymous sends requests without a signature.
	Anonymous bool `json:"anonymous,omitempty"`
	// RequesterPays says in each request that who asks pays for it.
	RequesterPays bool `json:"requester_pays,omitempty"`
	// CAFile is a PEM file of certificates to trust besides the system's.
	CAFile string `json:"ca_file,omitempty"`
	// Identity replaces scheme, endpoint and bucket in versions, for one bucket
	// behind several endpoints.
	Identity string `json:"identity,omitempty"`
	// Connections is the most that are open at once; 0: origin.DefaultConnections.
	Connections int `json:"connections,omitempty"`
	// Bandwidth limits what is read from the origin after a burst of a block (1
	// MiB), bytes/s; 0: no limit.
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// Timeout is how long an answer may stay silent; 0: 10 s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// WithEnvironment fills in the endpoint as the AWS variables of this process name
// it, so that a node asked by another process means the same bucket.
func (o Origin) WithEnvironment() Origin {
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if o.Endpoint == "" && strings.HasPrefix(o.URL, "s3:") {
			o.Endpoint = os.Getenv(name)
		}
	}
	return o
}

// In reports whether what o names lies in what whole does. An endpoint that is asked
// for must be the same: two may be two buckets.
func (o Origin) In(whole Origin) bool {
	_, ok := o.below(whole)
	return ok && (o.Endpoint == "" || o.Endpoint == whole.Endpoint)
}

// Below is o's path in whole, which it lies In.
func (o Origin) Below(whole Origin) string {
	rest, _ := o.below(whole)
	return strings.TrimPrefix(rest, "/")
}

func (o Origin) below(whole Origin) (string, bool) {
	rest, ok := strings.CutPrefix(strings.TrimRight(o.URL, "/")+"/", strings.TrimRight(whole.URL, "/")+"/")
	return strings.TrimSuffix(rest, "/"), ok
}

// Cache is the budget of the tiers on this machine.
type Cache struct {
	// RAM is the budget of every byte of data in memory; zero: 10 % of the memory,
	// at least 64 MiB and at most 4 GiB.
	RAM Size
	// Disks are the cache directories; none: machine.CacheDir with a tenth of its
	// file system.
	Disks []Disk
	// FreeFloor is kept free on each file system, whatever the budget; a percentage
	// is of each; zero: 10 %.
	FreeFloor Size
	// Scrub is how many bytes a second of each directory are read again and verified
	// behind the readers; 0: none. A pass begins ScrubEvery after the last; 0: 24 h.
	Scrub      int64
	ScrubEvery time.Duration
	// NoDisk keeps nothing on disk, for the short-lived node of a command.
	NoDisk bool
}

// Disk is one cache directory.
type Disk struct {
	// Path of the directory, made if it does not exist.
	Path string
	// Size is its budget; a percentage is of the file system; zero: 10 %.
	Size Size
}

// Mount is one mount of the node's tree.
type Mount struct {
	// Dir is the mount point.
	Dir string `json:"dir"`
	// Prefix is the path in the tree that becomes the mount's root.
	Prefix string `json:"prefix,omitempty"`
	// Open is auto, none or passthrough; "": auto.
	Open string `json:"open,omitempty"`
	// Freshness is short for the link's; "": the link's.
	Freshness string `json:"freshness,omitempty"`
	// AllowOther lets other users in; nil: yes when root mounts.
	AllowOther *bool `json:"allow_other,omitempty"`
	// UID and GID own all files; nil: who mounts.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`
	// FileMode and DirMode are permission bits; 0: 0444 and 0555.
	FileMode uint32 `json:"file_mode,omitempty"`
	DirMode  uint32 `json:"dir_mode,omitempty"`
	// NoPrefetch brings nothing but what is read through this mount.
	NoPrefetch bool `json:"no_prefetch,omitempty"`
	// Options are those of mount(8) that the kernel takes: nodev, nosuid, noexec.
	Options []string `json:"options,omitempty"`
}

// Admin is where a node can be asked.
type Admin struct {
	// Socket of the admin API; "": node.DefaultSocket; "-": none.
	Socket string
	// Listen is the plain TCP address of /metrics and /healthz; "": DefaultListen,
	// where a busy port is a warning; "-": none.
	Listen string
}

// DefaultListen is the address of /metrics and /healthz.
const DefaultListen = "127.0.0.1:9876"

// Size is a number of bytes or a percentage of a whole. Zero: not set.
type Size struct {
	Bytes   int64
	Percent float64
}

// Set reports whether the Size says anything.
func (s Size) Set() bool { return s != Size{} }

// Of gives the Size in bytes of a whole.
func (s Size) Of(whole int64) int64 {
	if s.Percent != 0 {
		return int64(float64(whole) / 100 * s.Percent)
	}
	return s.Bytes
}
