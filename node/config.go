package node

import (
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/node/config"
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

// What a node is told lies in a package of its own, which needs no node.
type (
	Link   = config.Link
	Origin = config.Origin
	Cache  = config.Cache
	Disk   = config.Disk
	Size   = config.Size
	Mount  = config.Mount
	Admin  = config.Admin
)

// DefaultListen is the address of /metrics and /healthz.
const DefaultListen = config.DefaultListen

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
		if err := validateMount(m); err != nil {
			return err
		}
	}
	return nil
}

func validateMount(m *Mount) error {
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
