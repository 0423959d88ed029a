package node

import (
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/node/budget"
)

// Config says what a node is made of. The zero Config is a node without links
// whose cache is machine.CacheDir. Nothing in it is changed after New.
type Config struct {
	// Links are the origins and where they stand in the tree. A mount of an origin
	// that no link covers adds one at run time.
	Links []Link
	// Cache is the RAM and disk budget.
	Cache Cache
	// File is the configuration file that was read, which no mount may hide; "": none.
	File string
	// Mounts are made by Start; more come and go through the admin API.
	Mounts []Mount
	// Admin is where the node answers its commands and its metrics.
	Admin Admin
	// FuseWithout names what the kernel offers and mounts shall do without.
	FuseWithout []string
	// Version is shown by status and sent to origins as hearth/VERSION.
	Version string
	// Log receives events; nil: slog.Default().
	Log *slog.Logger
	// Wiring is what stands where later tiers will; zero: nothing.
	Wiring Wiring
}

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
	// CAFile is a PEM file of certificates to trust besides the system's.
	CAFile string `json:"ca_file,omitempty"`
	// Identity replaces scheme, endpoint and bucket in versions, for one bucket
	// behind several endpoints.
	Identity string `json:"identity,omitempty"`
	// Connections is the most that are open at once; 0: 64.
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
type Disk = budget.Disk

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
	// Options are those of mount(8) that the kernel takes: nodev, nosuid, noexec.
	Options []string `json:"options,omitempty"`
}

// Admin is where a node can be asked.
type Admin struct {
	// Socket of the admin API; "": DefaultSocket; "-": none.
	Socket string
	// Listen is the plain TCP address of /metrics and /healthz; "": DefaultListen,
	// where a busy port is a warning; "-": none.
	Listen string
}

// DefaultListen is the address of /metrics and /healthz.
const DefaultListen = "127.0.0.1:9876"

// Size is a number of bytes or a percentage of a whole. Zero: not set.
type Size = budget.Size

// Validate reports the first thing in the configuration that cannot be meant,
// before anything is opened.
func (c *Config) Validate() error {
	paths := map[string]bool{}
	for _, l := range c.Links {
		p := cleanPath(l.Path)
		switch {
		case l.Origin.URL == "":
			return usage("link %s has no origin", p)
		case paths[p]:
			return usage("two links have the path %s", p)
		}
		paths[p] = true
		if _, err := parseFreshness(l.Freshness); err != nil {
			return err
		}
	}
	if r := c.Cache.RAM; r.Set() && r.Percent == 0 && r.Bytes < hearth.MinRAM {
		return usage("cache.ram is below %d MiB, the smallest that works", hearth.MinRAM>>20)
	}
	for _, d := range c.Cache.Disks {
		if d.Path == "" {
			return usage("a directory of cache.disks has no path")
		}
	}
	known := append(fuse.Abilities(), "all")
	for _, name := range c.FuseWithout {
		if !slices.Contains(known, name) {
			return usage("fuse.without: %q is none of the fuse abilities %s", name, strings.Join(known, ", "))
		}
	}
	dirs := map[string]bool{}
	for i := range c.Mounts {
		m := &c.Mounts[i]
		if dirs[m.Dir] {
			return usage("two mounts have the path %s", m.Dir)
		}
		dirs[m.Dir] = true
		if err := m.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mount) validate() error {
	if m.Dir == "" {
		return usage("a mount has no path")
	}
	if _, err := openMode(m.Open); err != nil {
		return err
	}
	if m.Freshness == "" {
		return nil
	}
	_, err := parseFreshness(m.Freshness)
	return err
}

// cleanPath makes a tree path: one slash in front, none behind, none doubled.
func cleanPath(p string) string { return path.Clean("/" + p) }

func usage(format string, args ...any) error {
	return &Error{Kind: KindUsage, Message: fmt.Sprintf(format, args...)}
}
