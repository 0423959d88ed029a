package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/node"
)

// settings are everything that flags, environment and file can say.
type settings struct {
	node node.Config
	// root is the link that `origin` makes.
	root node.Link
	// mount is what the flags say about the mount of this command.
	mount    node.Mount
	logLevel string
	logFile  string
}

// param is one row of the one table that flags, environment names, the file's
// keys and the reference page are made from.
type param struct {
	key  string // in the file: cache.ram; with [] for the elements of a list
	flag string // on the command line; "": none
	kind string // what the value looks like
	def  string // in words
	help string
	// live: a change takes effect without a restart.
	live bool
	// flagOnly: it speaks about one command, so the file does not know it.
	flagOnly bool
	// set reads a value; nil: the key is of a later version.
	set func(*settings, string) error
}

// env is the parameter's name in the environment; elements of lists have none.
func (p param) env() string {
	if p.flag == "" || strings.Contains(p.key, "[]") {
		return ""
	}
	return "HEARTH_" + strings.ToUpper(strings.ReplaceAll(p.key, ".", "_"))
}

// group is the first part of the key.
func (p param) group() string {
	g, _, _ := strings.Cut(strings.ReplaceAll(p.key, "[]", ""), ".")
	return g
}

var errLater = errors.New("not in this version")

// params is the table.
func params() []param {
	return slices.Concat(originParams(), linkParams(), cacheParams(), mountParams(), nodeParams(), laterParams())
}

// with makes a set function of a parser and a field.
func with[T any](parse func(string) (T, error), field func(*settings) *T) func(*settings, string) error {
	return func(s *settings, v string) error {
		x, err := parse(v)
		if err == nil {
			*field(s) = x
		}
		return err
	}
}

func text(s string) (string, error) { return s, nil }

func onOff(s string) (string, error) {
	if s == "auto" {
		return s, nil
	}
	switch b, err := parseBool(s); {
	case err != nil:
		return "", fmt.Errorf("%q is none of auto, true and false", s)
	case b:
		return "on", nil
	}
	return "off", nil
}

func openChoice(s string) (string, error) { return parseChoice(s, "auto", "none", "passthrough") }

// freshness leaves its own name to who asks: a flag, a variable or a key.
func freshness(s string) (string, error) {
	if err := node.CheckFreshness(s); err != nil {
		return s, errors.New(strings.TrimPrefix(err.Error(), "freshness "))
	}
	return s, nil
}

func negated(s string) (bool, error) {
	b, err := parseBool(s)
	return !b, err
}

// originOf gives the rows of an origin below key; field finds it in settings.
func originOf(key, flag string, field func(*settings) *node.Origin) []param {
	name := func(s string) string {
		if flag == "" {
			return ""
		}
		return s
	}
	return []param{
		{key: key, flag: flag, kind: "url", def: "none", help: "bucket to show: s3://bucket/prefix or file:///dir; AWS_* variables work unchanged",
			set: with(text, func(s *settings) *string { return &field(s).URL })},
		{key: key + ".url", kind: "url", def: "none", help: "the same, where `origin` has more to say",
			set: with(text, func(s *settings) *string { return &field(s).URL })},
		{key: key + ".endpoint", flag: name("endpoint"), kind: "url", def: "AWS", help: "S3 server other than AWS: http://host:9000",
			set: with(text, func(s *settings) *string { return &field(s).Endpoint })},
		{key: key + ".region", flag: name("region"), kind: "text", def: "AWS_REGION, else asked for", help: "region of the bucket",
			set: with(text, func(s *settings) *string { return &field(s).Region })},
		{key: key + ".path_style", flag: name("path-style"), kind: "auto, true or false", def: "auto", help: "bucket in the path instead of the host name",
			set: with(onOff, func(s *settings) *string { return &field(s).PathStyle })},
		{key: key + ".anonymous", flag: name("anonymous"), kind: "bool", def: "false", help: "ask without credentials, for public buckets",
			set: with(parseBool, func(s *settings) *bool { return &field(s).Anonymous })},
		{key: key + ".ca_file", flag: name("ca-file"), kind: "path", def: "the system's", help: "PEM file of a CA to trust besides the system's",
			set: with(text, func(s *settings) *string { return &field(s).CAFile })},
		{key: key + ".identity", flag: name("identity"), kind: "text", def: "scheme, endpoint and bucket", help: "what names the bucket in versions, for one bucket behind several endpoints",
			set: with(text, func(s *settings) *string { return &field(s).Identity })},
		{key: key + ".connections", flag: name("connections"), kind: "number", def: "64", help: "connections to the origin, at most; at least 1",
			set: with(parseConnections, func(s *settings) *int { return &field(s).Connections })},
		{key: key + ".bandwidth", flag: name("bandwidth"), kind: "rate", def: "no limit", help: "bytes per second from the origin, at most, after a burst of 1MiB: 200MiB/s; at least 64KiB/s",
			set: with(parseBandwidth, func(s *settings) *int64 { return &field(s).Bandwidth })},
		{key: key + ".timeout", flag: name("origin-timeout"), kind: "duration", def: "10s", help: "how long the origin may stay silent; a request is given up within three times that",
			set: with(parseDuration, durationOf(field))},
	}
}

func originParams() []param {
	rows := originOf("origin", "origin", func(s *settings) *node.Origin { return &s.root.Origin })
	return append(rows,
		param{key: "freshness", flag: "freshness", kind: "freshness", def: "bounded(60s)",
			help: "how old a name may be: immutable, bounded(60s) or strict",
			set:  with(freshness, func(s *settings) *string { return &s.root.Freshness })},
		param{key: "stale_if_error", flag: "stale-if-error", kind: "bool", def: "true",
			help: "show the last known names while the origin cannot be asked, instead of EIO",
			set:  with(negated, func(s *settings) *bool { return &s.root.FailStale })})
}

func linkParams() []param {
	link := func(s *settings) *node.Link { return &s.node.Links[len(s.node.Links)-1] }
	rows := []param{
		{key: "links[].path", kind: "path", def: "/", help: "where the link stands in the tree",
			set: with(text, func(s *settings) *string { return &link(s).Path })},
		{key: "links[].freshness", kind: "freshness", def: "bounded(60s)", help: "how old a name may be: immutable, bounded(60s) or strict",
			set: with(freshness, func(s *settings) *string { return &link(s).Freshness })},
		{key: "links[].stale_if_error", kind: "bool", def: "true", help: "show the last known names while the origin cannot be asked, instead of EIO",
			set: with(negated, func(s *settings) *bool { return &link(s).FailStale })},
	}
	return append(rows, originOf("links[].origin", "", func(s *settings) *node.Origin { return &link(s).Origin })...)
}

func cacheParams() []param {
	disk := func(s *settings) *node.Disk { return &s.node.Cache.Disks[len(s.node.Cache.Disks)-1] }
	return []param{
		{key: "cache.ram", flag: "cache-ram", kind: "size", def: "10%, at least 64MiB (a quarter, if that is less), at most 4GiB", help: "memory for data and its index; percent of the smaller of machine and cgroup",
			set: with(parseSize, func(s *settings) *node.Size { return &s.node.Cache.RAM })},
		{key: "cache.disks", flag: "cache-disks", kind: "list of PATH or PATH=SIZE", def: "/var/cache/hearth, for users $XDG_CACHE_HOME/hearth", help: "cache directories, with commas between them",
			set: setDisks},
		{key: "cache.disks[].path", kind: "path", def: "none", help: "cache directory, made if missing",
			set: with(text, func(s *settings) *string { return &disk(s).Path })},
		{key: "cache.disks[].size", kind: "size", def: "10%", help: "its budget; percent of its file system",
			set: with(parseSize, func(s *settings) *node.Size { return &disk(s).Size })},
		{key: "cache.free_floor", flag: "cache-free-floor", kind: "size", def: "10%", help: "what always stays free on each file system, whatever the budget; percent of each",
			set: with(parseSize, func(s *settings) *node.Size { return &s.node.Cache.FreeFloor })},
		{key: "cache.scrub", flag: "cache-scrub", kind: "rate", def: "8MiB/s", help: "what is read again of each directory, behind the readers, to find and drop bytes that rot; 0: nothing",
			set: with(parseRate, func(s *settings) *int64 { return &s.node.Cache.Scrub })},
		{key: "cache.scrub_every", flag: "cache-scrub-every", kind: "duration", def: "24h", help: "the least time from the begin of one such pass to the next",
			set: with(parseDuration, func(s *settings) *time.Duration { return &s.node.Cache.ScrubEvery })},
	}
}

// setDisks reads PATH[=SIZE],... as flags and the environment have it.
func setDisks(s *settings, v string) error {
	var disks []node.Disk
	for _, one := range strings.Split(v, ",") {
		path, size, sized := strings.Cut(strings.TrimSpace(one), "=")
		d := node.Disk{Path: path}
		if path == "" {
			return errors.New("a cache directory has no path")
		}
		if sized {
			n, err := parseSize(size)
			if err != nil {
				return err
			}
			d.Size = n
		}
		disks = append(disks, d)
	}
	s.node.Cache.Disks = disks
	return nil
}
