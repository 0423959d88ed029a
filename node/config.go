package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/wiring"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw"
	"github.com/hearthfs/hearth/volume"
)

// Config says what a node is made of. The zero Config is a node without links whose cache is at
// machine.CacheDir. The node changes nothing in it after New.
type Config struct {
	// Links are the origins and where they stand in the tree. A mount of an origin
	// that no link covers adds one at run time.
	Links []Link
	// Cache is the RAM and disk budget.
	Cache Cache
	// File is the configuration file that was read, which no mount may hide. Empty means none.
	File string
	// Ring is the node's part in a ring. The zero value means that the node is alone.
	Ring config.Membership
	// Volumes are the devices behind the disks that the nodes of a ring share.
	Volumes config.Volumes
	// S3 is the node's S3 endpoint. The zero value means none.
	S3 s3gw.Setup
	// Mounts are made after New by the program that runs the node. Others come and go through the admin API.
	Mounts []Mount
	// Keeper keeps the mounts, and has those that TakeOver serves. nil means that they end with the process.
	Keeper *keep.Keeper
	// Admin is where the node answers its commands and its metrics.
	Admin Admin
	// FuseWithout names abilities of the kernel's FUSE that mounts do not use.
	FuseWithout []string
	// Version is shown by status and sent to origins as hearth/VERSION.
	Version string
	// Log receives events. nil means slog.Default().
	Log *slog.Logger
	// Clock is the wall clock: it decides how old a name is, when a pin ends, and the times of jobs. nil means
	// the machine's clock.
	Clock func() time.Time
	// PeerSilence is the silence after which a peer that owes an answer is given up. 0 means 500 ms. Nodes that
	// share one process wait for its processors and need more.
	PeerSilence time.Duration
	// Wiring is what stands in the place of later tiers. The zero value means nothing.
	Wiring wiring.Wiring
}

// The types of the configuration are in package config, which does not import package node.
type (
	Link   = config.Link
	Origin = config.Origin
	// OriginWrite says how a bucket is written.
	OriginWrite = config.OriginWrite
	// Staging says which names of a link are temporary.
	Staging = config.Staging
	Cache   = config.Cache
	Disk    = config.Disk
	Size    = config.Size
	Mount   = config.Mount
	Admin   = config.Admin
)

// DefaultListen is the address of /metrics and /healthz.
const DefaultListen = config.DefaultListen

// Problem is a setting that is not valid. Key is its place as the configuration file names it, such as
// links[1].origin.
type Problem struct {
	Key string
	Err error
}

// Validate reports the first of the Problems.
func (c *Config) Validate() error {
	if all := c.Problems(); len(all) > 0 {
		return all[0].Err
	}
	return nil
}

// Problems returns everything in the configuration that is not valid, before anything is opened.
func (c *Config) Problems() (all []Problem) {
	add := func(key string, err error) {
		if err != nil {
			all = append(all, Problem{key, err})
		}
	}
	c.checkLinks(add)
	if r := c.Cache.RAM; r.Set() && r.Percent == 0 && r.Bytes < hearth.MinRAM {
		add("cache.ram", usage("cache.ram is below %d MiB, the smallest that works", hearth.MinRAM>>20))
	}
	for i, d := range c.Cache.Disks {
		if d.Path == "" {
			add(fmt.Sprintf("cache.disks[%d]", i), usage("a directory of cache.disks has no path"))
		}
	}
	for key, err := range config.RingProblems(c.Ring) {
		add(key, usage("%v", err))
	}
	c.checkVolumes(add)
	for key, err := range s3gw.Setup(c.S3).Problems() {
		add(key, usage("%v", err))
	}
	known := append(fuse.Abilities(), "all")
	for _, name := range c.FuseWithout {
		if !slices.Contains(known, name) {
			add("fuse.without", usage("fuse.without: %q is none of the fuse abilities %s", name, strings.Join(known, ", ")))
		}
	}
	dirs := map[string]bool{}
	for i, m := range c.Mounts {
		key := fmt.Sprintf("mounts[%d]", i)
		if dirs[m.Dir] {
			add(key, usage("two mounts have the path %s", m.Dir))
			continue
		}
		dirs[m.Dir] = true
		if err := validateMount(m); err != nil {
			add(key, err)
			continue
		}
		add(key, c.checkMount(m))
	}
	return all
}

func (c *Config) checkVolumes(add func(string, error)) {
	seen := map[string]bool{}
	for i, v := range c.Volumes.Devices {
		key := fmt.Sprintf("volumes.devices[%d]", i)
		address, err := volume.ParseAddress(v.URL)
		switch {
		case v.URL == "":
			add(key+".url", usage("a device of volumes has no url"))
		case err != nil:
			add(key, usage("%v", err))
		case v.SecretFile != "" && !address.Remote():
			add(key+".secret_file", usage("secret_file is for a namespace over NVMe/TCP, and %s is a path", v.URL))
		case v.SecretFile != "":
			if _, err := volume.ReadSecret(v.SecretFile); err != nil {
				add(key+".secret_file", usage("%v", err))
			}
		}
		if v.URL != "" && seen[v.URL] {
			add(key, usage("two volumes have the address %s", v.URL))
		}
		seen[v.URL] = true
	}
	n := len(c.Volumes.Devices)
	if n > volume.MaxVolumes {
		add("volumes.devices", usage("%d volumes: a node attaches %d at most", n, volume.MaxVolumes))
	}
	if n > 0 && c.Volumes.Copies > n { // without any they are attached by hand
		add("volumes.copies", usage("volumes.copies: %d copies of each block, and volumes names fewer devices (%d): name as many, or ask for fewer copies",
			c.Volumes.Copies, n))
	}
}

func (c *Config) checkLinks(add func(string, error)) {
	taken := map[string]bool{}
	for i, l := range c.Links {
		key, p := fmt.Sprintf("links[%d]", i), cleanPath(l.Path)
		_, err := origin.Prefix(l.Origin.URL)
		switch {
		case l.Origin.URL == "":
			add(key, usage("link %s has no origin", p))
		case err != nil:
			add(key+".origin", usage("%v", err))
		}
		if taken[p] {
			add(key, usage("two links have the path %s", p))
		}
		taken[p] = true
		_, err = parseFreshness(l.Freshness)
		add(key+".freshness", err)
		if err := origin.Write(l.Origin.Write).Problem(l.Origin.Connections); err != nil {
			add(key+".origin.write", usage("link %s: origin.%v", p, err))
		}
		add(key+".write", checkWrites(Mount{Write: l.Write, Fsync: l.Fsync}, "link "+p, l.Origin.URL))
		if of, err := l.Staging.Problem(); err != nil {
			add(key+"."+of, usage("link %s: %v", p, err))
		}
		if err := s3gw.Configurable(l.Origin.URL, c.S3.Listen); l.Configure && err != nil {
			add(key+".configure", usage("%v", err))
		}
	}
}

// linkOf returns the index of the link that a mount lies in, or -1.
func (c *Config) linkOf(m Mount) int {
	of := -1
	for i, l := range c.Links {
		_, ok := belowPath(cleanPath(m.Prefix), cleanPath(l.Path))
		if ok && (of < 0 || len(cleanPath(l.Path)) > len(cleanPath(c.Links[of].Path))) {
			of = i
		}
	}
	return of
}

// Written returns the links, with Write through for all that a mount of the configuration writes.
func (c *Config) Written() []Link {
	all := slices.Clone(c.Links)
	for _, m := range c.Mounts {
		i := c.linkOf(m)
		if below := linksBelow(c.Links, m.Prefix); i < 0 && len(below) == 1 {
			i = slices.IndexFunc(c.Links, func(l Link) bool { return l.Path == below[0].Path })
		}
		if i >= 0 && writes(m, c.Links[i]).Write == config.WriteThrough {
			all[i].Write = config.WriteThrough
		}
	}
	return all
}

// linksBelow returns the links that a mount above them shows.
func linksBelow(links []Link, prefix string) (below []Link) {
	for _, l := range links {
		if _, ok := belowPath(cleanPath(l.Path), cleanPath(prefix)); ok {
			below = append(below, l)
		}
	}
	return below
}

// writesAbove returns a mount above links with what they say of writing where it says nothing, and the origin of the one that says
// it. It writes those that say so themselves, or the only one: its word is for no others.
func writesAbove(m Mount, below []Link) (Mount, string, error) {
	i := max(0, slices.IndexFunc(below, func(l Link) bool { return l.Write == config.WriteThrough }))
	fsync := m.Fsync
	if m = writes(m, below[i]); len(below) > 1 {
		m.Fsync = fsync // each has its own
	}
	if m.Write == config.WriteThrough && below[i].Write != config.WriteThrough && len(below) > 1 {
		return m, "", &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("mount %s: it shows several links, and none says that it is written: say write: through of those that are to be, such as %s, or mount each by itself", m.Dir, cleanPath(below[0].Path))}
	}
	return m, below[i].Origin.URL, nil
}

// checkMount compares what a mount asks for with the link that it lies in, if there is one.
func (c *Config) checkMount(m Mount) error {
	i := c.linkOf(m)
	if i < 0 {
		below := linksBelow(c.Links, m.Prefix)
		if len(below) == 0 {
			return nil
		}
		m, url, err := writesAbove(m, below)
		if err != nil {
			return err
		}
		return checkWrites(m, "mount "+m.Dir, url)
	}
	of := c.Links[i]
	if err := checkWrites(writes(m, of), "mount "+m.Dir, of.Origin.URL); err != nil {
		return err
	}
	f, err := parseFreshness(of.Freshness)
	if err != nil {
		return nil // checkLinks reports it
	}
	return checkFreshness(m, f, cleanPath(of.Path))
}

// writes returns the mount with what its link says of writing where it says nothing. Its Write is through, or empty for read-only.
func writes(m Mount, of Link) Mount {
	m.Fsync = cmp.Or(m.Fsync, of.Fsync)
	rw, ro := m.Writes()
	if m.Write = ""; rw || !ro && of.Write == config.WriteThrough {
		m.Write = config.WriteThrough
	}
	return m
}

// checkWrites returns why what is asked of writing cannot be had from an origin. who asks.
func checkWrites(m Mount, who, url string) error {
	switch {
	case m.Write != "" && m.Write != config.WriteThrough && m.Write != config.WriteOff:
		return usage("%s: write: %q is none of through, off", who, m.Write)
	case m.Fsync != "" && m.Fsync != config.FsyncDisk && m.Fsync != config.FsyncBucket:
		return usage("%s: fsync: %q is none of disk, bucket", who, m.Fsync)
	case m.Write != config.WriteThrough:
		return nil
	case url != "" && !strings.HasPrefix(url, "s3:"):
		return usage("%s: write: %s cannot be written, only buckets can (s3://): leave write out, or say ro", who, url)
	case m.Open != "" && m.Open != string(fuse.Auto):
		return usage("%s: open=%s is for read-only mounts, a writable one opens files plainly: leave open out, or say ro; data sets are best read by a read-only mount beside it", who, m.Open)
	}
	return nil
}

func validateMount(m Mount) error {
	if m.Dir == "" {
		return usage("a mount has no path")
	}
	if !filepath.IsAbs(m.Dir) {
		return usage("mount point %s is no absolute path", m.Dir)
	}
	if _, err := openMode(m.Open); err != nil {
		return err
	}
	for _, o := range m.Options {
		switch o {
		case "", "ro", "rw", "nosuid", "nodev", "noexec":
		default:
			return usage("mount %s: options: %q is none of ro, rw, nosuid, nodev, noexec", m.Dir, o)
		}
	}
	if rw, ro := m.Writes(); rw && ro {
		return usage("mount %s: it is to be writable (write: through, or rw) and read-only (write: off, or ro): say one", m.Dir)
	}
	if err := checkWrites(m, "mount "+m.Dir, ""); err != nil {
		return err
	}
	if m.Freshness == "" {
		return nil
	}
	_, err := parseFreshness(m.Freshness)
	return err
}

func usage(format string, args ...any) error {
	return &admin.Error{Kind: admin.KindUsage, Message: fmt.Sprintf(format, args...)}
}
