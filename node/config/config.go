// Package config has the settings of a node as plain values that neither open nor ask anything. They say
// which origins stand where in its tree, how much its cache may take, which mounts it makes, and where it
// answers. Package node finds the settings that are not valid, since it knows the parts that must serve
// them.
package config

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/draft"
)

// Link binds an origin's prefix to a path of the tree.
type Link struct {
	// Path is the path in the tree, "/" or "/imagenet".
	Path string `json:"path"`
	// Origin says which bucket and how to reach it.
	Origin Origin `json:"origin"`
	// Freshness is immutable, bounded(60s) or strict. Empty means bounded(60s).
	Freshness string `json:"freshness,omitempty"`
	// FailStale answers EIO instead of the last known names while the origin cannot be asked.
	FailStale bool `json:"fail_stale,omitempty"`
	// Configure passes on the requests by which S3 clients configure the bucket. S3.Configure does so for
	// all buckets.
	Configure bool `json:"configure,omitempty"`
	// Write is through for a link whose mounts are writable unless they say ro. Empty means that they are read-only.
	Write string `json:"write,omitempty"`
	// Fsync is what its writable mounts have for theirs. Empty means disk.
	Fsync string `json:"fsync,omitempty"`
	// Staging says which names stay on this node until they are others.
	Staging Staging `json:"staging,omitzero"`
	// NoSeed has what was just written not offered to the owners of its blocks, and nothing taken that other nodes offer so.
	NoSeed bool `json:"no_seed,omitempty"`
}

// Staging says what of a link's files stays on this node's disk, and for how long: those with temporary names, and those that are
// appended to.
type Staging struct {
	// Patterns are shell patterns of one name of a path. nil means draft.DefaultTemporary, an empty list means none.
	Patterns []string `json:"patterns,omitzero"`
	// Age is how long after its last close what has such a name is published all the same, at least LeastStagingAge. 0 means 10 min.
	Age time.Duration `json:"age,omitempty"`
	// Every is how often an open file that is appended to (O_APPEND) is published, at least a second. 0 means 30 s, and less never.
	Every time.Duration `json:"every,omitempty"`
}

// LeastStagingAge leaves a program the time to rename what it has closed.
const LeastStagingAge = time.Second

// Temporary returns the patterns in force.
func (s Staging) Temporary() (draft.Temporary, error) { return draft.ParseTemporary(s.patterns()) }

// After returns the age in force.
func (s Staging) After() time.Duration { return cmp.Or(s.Age, 10*time.Minute) }

// Interval returns Every in force; 0 means never.
func (s Staging) Interval() time.Duration { return max(0, cmp.Or(s.Every, 30*time.Second)) }

func (s Staging) patterns() []string {
	if s.Patterns == nil {
		return draft.DefaultTemporary()
	}
	return s.Patterns
}

// Problem returns the key of what cannot be had, and why. A nil error means that all can.
func (s Staging) Problem() (key string, err error) {
	if _, err := s.Temporary(); err != nil {
		return "staging", fmt.Errorf("staging: %w", err)
	}
	if s.Age != 0 && s.Age < LeastStagingAge {
		return "staging_age", fmt.Errorf("staging_age: %v is below %v, the least, since a program needs time to rename what it has closed", s.Age, LeastStagingAge)
	}
	if s.Every > 0 && s.Every < time.Second {
		return "publish_every", fmt.Errorf("publish_every: %v is below 1s, the least; 0 publishes a file at its close alone", s.Every)
	}
	return "", nil
}

// Differs says in what a link is not as this one asks, where it asks for something. "" means that it is.
func (s Staging) Differs(has Staging) string {
	switch {
	case s.Patterns != nil && !slices.Equal(s.Patterns, has.patterns()):
		return fmt.Sprintf("staging %s differs from %s", listed(s.Patterns), listed(has.patterns()))
	case s.Age != 0 && s.Age != has.After():
		return fmt.Sprintf("staging_age %v differs from %v", s.Age, has.After())
	case s.Every != 0 && s.Interval() != has.Interval():
		return fmt.Sprintf("publish_every %v differs from %v", s.Interval(), has.Interval())
	}
	return ""
}

func listed(patterns []string) string { return cmp.Or(strings.Join(patterns, ","), "none") }

// Origin says how to reach a bucket. Credentials come from where the AWS tools find them, never from here.
type Origin struct {
	// URL is s3://bucket/prefix or file:///dir.
	URL string `json:"url"`
	// Endpoint is an S3 server other than AWS, such as "http://host:9000".
	Endpoint string `json:"endpoint,omitempty"`
	// Region is the bucket's region. If it is empty, the AWS variables name it, or else the server is
	// asked.
	Region string `json:"region,omitempty"`
	// PathStyle is auto, on or off.
	PathStyle string `json:"path_style,omitempty"`
	// Anonymous sends requests without a signature.
	Anonymous bool `json:"anonymous,omitempty"`
	// RequesterPays says in each request that the requester pays for it.
	RequesterPays bool `json:"requester_pays,omitempty"`
	// CAFile is a PEM file of certificates to trust in addition to the system's.
	CAFile string `json:"ca_file,omitempty"`
	// Identity replaces scheme, endpoint and bucket in versions, for one bucket
	// behind several endpoints.
	Identity string `json:"identity,omitempty"`
	// Connections is the most connections that are open at once. 0 means origin.DefaultConnections.
	Connections int `json:"connections,omitempty"`
	// Bandwidth limits what is read from the origin, in bytes/s, after a burst of a block (1 MiB). 0 means
	// no limit.
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// Timeout is how long an answer may stay silent. 0 means 10 s.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Write says how the bucket is written.
	Write OriginWrite `json:"write,omitzero"`
}

// OriginWrite says how a bucket is written.
type OriginWrite struct {
	// Connections bounds the writes in flight, from 1 to half of Origin.Connections. 0 means 32, or that half if it is less.
	Connections int `json:"connections,omitempty"`
	// Bandwidth limits what is sent, in bytes/s. 0 means no limit.
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// PartSize is the size of the parts of a large object, in bytes, from 5 MiB to 5 GiB. 0 means 16 MiB.
	PartSize int64 `json:"part_size,omitempty"`
	// SSE is AES256, aws:kms or aws:kms:dsse. Empty means as the bucket says.
	SSE string `json:"sse,omitempty"`
	// KMSKey is the id or ARN of the key for aws:kms and aws:kms:dsse. Empty means the origin's own.
	KMSKey string `json:"kms_key,omitempty"`
	// StorageClass is that of what is written. Empty means the bucket's default.
	StorageClass string `json:"storage_class,omitempty"`
}

// WithEnvironment fills in the endpoint that the AWS variables of this process name, so that a node that
// another process asks means the same bucket.
func (o Origin) WithEnvironment() Origin {
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if o.Endpoint == "" && strings.HasPrefix(o.URL, "s3:") {
			o.Endpoint = os.Getenv(name)
		}
	}
	return o
}

// In reports whether what o names lies in what whole names. If o has an endpoint, both must be the same,
// since two endpoints may have two buckets.
func (o Origin) In(whole Origin) bool {
	_, ok := o.below(whole)
	return ok && (o.Endpoint == "" || o.Endpoint == whole.Endpoint)
}

// Below returns o's path in whole. o must lie in whole (In).
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
	// RAM is the budget of every byte of data in memory. Zero means 10 % of the memory, at least 64 MiB and
	// at most 4 GiB.
	RAM Size
	// Disks are the cache directories. None means machine.CacheDir with a tenth of its file system.
	Disks []Disk
	// FreeFloor is kept free on each file system, whatever the budget. A percentage is of each file system.
	// Zero means 10 %.
	FreeFloor Size
	// Scrub is how many bytes a second of each directory are read again and verified behind the readers. 0
	// means none. A pass begins ScrubEvery after the last one. 0 means 24 h.
	Scrub      int64
	ScrubEvery time.Duration
	// NoDisk keeps nothing on disk, for the short-lived node of a command.
	NoDisk bool
}

// Disk is one cache directory.
type Disk struct {
	// Path is the directory, which is made if it does not exist.
	Path string
	// Size is its budget. A percentage is of the file system. Zero means 10 %.
	Size Size
}

// Volumes are the devices that nodes share, behind the ring.
type Volumes struct {
	// Devices are the volumes to attach.
	Devices []Volume
	// Copies is on how many of them each block is written. 0 means 1.
	Copies int
	// All also writes what misses bring from the bucket. Otherwise blocks come to volumes when a disk evicts or
	// declines them, and by warmup --to-volume.
	All bool
}

// Volume says where a volume is.
type Volume struct {
	// URL is the path of a block device or file, or nvme+tcp://HOST:PORT/NQN.
	URL string `json:"url"`
	// SecretFile has this host's key for DH-HMAC-CHAP.
	SecretFile string `json:"secret_file,omitempty"`
}

// Mount is one mount of the node's tree.
type Mount struct {
	// Dir is the mount point.
	Dir string `json:"dir"`
	// Prefix is the path in the tree that becomes the mount's root.
	Prefix string `json:"prefix,omitempty"`
	// Open is auto, none or passthrough. Empty means auto.
	Open string `json:"open,omitempty"`
	// Freshness stands for the link's, which it must equal. Empty means the link's.
	Freshness string `json:"freshness,omitempty"`
	// AllowOther lets other users in. nil means yes if root mounts.
	AllowOther *bool `json:"allow_other,omitempty"`
	// UID and GID own all files. nil means the user that mounts.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`
	// FileMode and DirMode are permission bits. 0 means 0444 and 0555.
	FileMode uint32 `json:"file_mode,omitempty"`
	DirMode  uint32 `json:"dir_mode,omitempty"`
	// NoPrefetch turns prefetch off: only what is read through this mount is brought.
	NoPrefetch bool `json:"no_prefetch,omitempty"`
	// Write is through for a writable mount: close(2) answers once the bucket has what was written. It is off for a
	// read-only one. Empty means as the link says.
	Write string `json:"write,omitempty"`
	// Fsync says what fsync(2) of a writable mount waits for: this node's disk, or the bucket. Empty means as the link says.
	Fsync string `json:"fsync,omitempty"`
	// Options are options of mount(8): nodev, nosuid and noexec, which the kernel takes; rw and ro, which say what Write does.
	Options []string `json:"options,omitempty"`
}

// The values of Write and of Fsync.
const (
	WriteThrough = "through"
	WriteOff     = "off"
	FsyncDisk    = "disk"
	FsyncBucket  = "bucket"
)

// Writes reports whether the mount asks to be writable, or read-only. Neither means that its link says.
func (m Mount) Writes() (writable, readOnly bool) {
	return m.Write == WriteThrough || slices.Contains(m.Options, "rw"), m.Write == WriteOff || slices.Contains(m.Options, "ro")
}

// Admin is where a node can be asked.
type Admin struct {
	// Socket is the path of the admin API. Empty means admin.DefaultSocket, "-" means none.
	Socket string
	// Listen is the plain TCP address of /metrics and /healthz. Empty means DefaultListen, where a busy
	// port is only a warning. "-" means none.
	Listen string
}

// DefaultListen is the address of /metrics and /healthz.
const DefaultListen = "127.0.0.1:9876"

// Size is a number of bytes, or a percentage of a whole. Zero means not set.
type Size struct {
	Bytes   int64
	Percent float64
}

// Set reports whether the Size is set.
func (s Size) Set() bool { return s != Size{} }

// Of returns the Size in bytes, where whole is 100 percent.
func (s Size) Of(whole int64) int64 {
	if s.Percent != 0 {
		return int64(float64(whole) / 100 * s.Percent)
	}
	return s.Bytes
}
