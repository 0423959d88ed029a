// Package settings is the one table of everything that can be configured. Flags, names in the
// environment, keys of the file, mount(8) options and the reference page are made from it. Load
// gathers the values. A later source wins over an earlier one: defaults, the file, the environment,
// flags. The file is read strictly: a key that is not in the table is an error with its line and
// the nearest name.
package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/s3gw"
)

// Settings are all values that flags, environment and file can set.
type Settings struct {
	Links       []config.Link
	Cache       config.Cache
	Mounts      []config.Mount
	Admin       config.Admin
	Ring        config.Membership
	Volumes     config.Volumes
	Keeper      Keeper
	S3          s3gw.Setup
	FuseWithout []string
	// File is the configuration file that was read. "" means that there was none.
	File string
	// Root is the link that the key origin makes.
	Root config.Link
	// Mount has the flags about the mount of this command, Staging those about the link that it lies in.
	Mount   config.Mount
	Staging config.Staging
	// Asked has the last mount option of each pair, by the first of the pair: ro and rw, nosuid and
	// suid, nodev and dev.
	Asked map[string]string
	// ByMount8 says that mount(8) gives the options, which has rw among them where nobody has said ro.
	ByMount8 bool
	LogLevel string // "" means info
	LogFile  string // "" means none
	// given has the values as they were written. A later one wins.
	given []Value
	// lines has the line in the file of each key and element: links[0].path.
	lines map[string]int
}

// Keeper is how a node's mounts are kept where the node dies.
type Keeper struct {
	Off bool
	// Patience is how long readers wait for the next node. 0 means for ever.
	Patience time.Duration
}

// Param is one row of the table of parameters. Flags, environment names, the file's keys and the
// reference page are made from it.
type Param struct {
	Key     string // in the file: cache.ram; [] stands for the elements of a list
	Flag    string // on the command line; "" means none
	Kind    string // what the value looks like
	Default string // in words
	Help    string
	// Live says that a change takes effect without a restart.
	Live bool
	// FlagOnly says that it is about one command, so it is no key of the file.
	FlagOnly bool
	set      func(*Settings, string) error
}

// Variable is the parameter's name in the environment. Elements of lists have none.
func (p Param) Variable() string {
	if p.Flag == "" || strings.Contains(p.Key, "[]") {
		return ""
	}
	return "HEARTH_" + strings.ToUpper(strings.ReplaceAll(p.Key, ".", "_"))
}

// Group is the first part of the key.
func (p Param) Group() string {
	g, _, _ := strings.Cut(strings.ReplaceAll(p.Key, "[]", ""), ".")
	return g
}

// ErrLater says that a verb or a flag is of a later version.
var ErrLater = errors.New("not in this version")

// Params returns the table.
func Params() []Param {
	return slices.Concat(originParams(), linkParams(), cacheParams(), mountParams(), nodeParams(), ringParams(), s3Params(), volumeParams(), keeperParams())
}

// with makes a set function from a parser and a field.
func with[T any](parse func(string) (T, error), field func(*Settings) *T) func(*Settings, string) error {
	return func(s *Settings, v string) error {
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

func openChoice(s string) (string, error) { return cli.Choice(s, "auto", "none", "passthrough") }

func writeChoice(s string) (string, error) {
	return cli.Choice(s, config.WriteThrough, config.WriteOff)
}

func fsyncChoice(s string) (string, error) {
	return cli.Choice(s, config.FsyncDisk, config.FsyncBucket)
}

// freshness checks a value. Its error does not name the setting, since the caller names the flag,
// variable or key.
func freshness(s string) (string, error) {
	if s == "" {
		return s, nil
	}
	if _, err := namespace.ParseFreshness(s); err != nil {
		return s, errors.New(strings.TrimPrefix(err.Error(), "freshness "))
	}
	return s, nil
}

func negated(s string) (bool, error) {
	b, err := parseBool(s)
	return !b, err
}

// originOf returns the rows of an origin below key. field finds the origin in the settings.
func originOf(key, flag string, field func(*Settings) *config.Origin) []Param {
	name := func(s string) string {
		if flag == "" {
			return ""
		}
		return s
	}
	return []Param{
		{Key: key, Flag: flag, Kind: "url", Default: "none", Help: "bucket to show: s3://bucket/prefix or file:///dir; AWS_* variables work unchanged",
			set: with(text, func(s *Settings) *string { return &field(s).URL })},
		{Key: key + ".url", Kind: "url", Default: "none", Help: "the same, where `origin` has more to say",
			set: with(text, func(s *Settings) *string { return &field(s).URL })},
		{Key: key + ".endpoint", Flag: name("endpoint"), Kind: "url", Default: "AWS", Help: "S3 server other than AWS: http://host:9000",
			set: with(text, func(s *Settings) *string { return &field(s).Endpoint })},
		{Key: key + ".region", Flag: name("region"), Kind: "text", Default: "AWS_REGION, else asked for", Help: "region of the bucket",
			set: with(text, func(s *Settings) *string { return &field(s).Region })},
		{Key: key + ".path_style", Flag: name("path-style"), Kind: "auto, true or false", Default: "auto", Help: "bucket in the path instead of the host name",
			set: with(onOff, func(s *Settings) *string { return &field(s).PathStyle })},
		{Key: key + ".anonymous", Flag: name("anonymous"), Kind: "bool", Default: "false", Help: "ask without credentials, for public buckets",
			set: with(parseBool, func(s *Settings) *bool { return &field(s).Anonymous })},
		{Key: key + ".requester_pays", Flag: name("requester-pays"), Kind: "bool", Default: "false", Help: "say in each request that who asks pays for it, for buckets that demand this; needs credentials",
			set: with(parseBool, func(s *Settings) *bool { return &field(s).RequesterPays })},
		{Key: key + ".ca_file", Flag: name("ca-file"), Kind: "path", Default: "the system's", Help: "PEM file of a CA to trust besides the system's",
			set: with(text, func(s *Settings) *string { return &field(s).CAFile })},
		{Key: key + ".identity", Flag: name("identity"), Kind: "text", Default: "scheme, endpoint and bucket", Help: "what names the bucket in versions, for one bucket behind several endpoints",
			set: with(text, func(s *Settings) *string { return &field(s).Identity })},
		{Key: key + ".connections", Flag: name("connections"), Kind: "number", Default: "160", Help: "connections to the origin, at most; at least 1",
			set: with(parseConnections, func(s *Settings) *int { return &field(s).Connections })},
		{Key: key + ".bandwidth", Flag: name("bandwidth"), Kind: "rate", Default: "no limit", Help: "bytes per second from the origin, at most, after a burst of 1MiB: 200MiB/s; at least 64KiB/s",
			set: with(parseBandwidth, func(s *Settings) *int64 { return &field(s).Bandwidth })},
		{Key: key + ".timeout", Flag: name("origin-timeout"), Kind: "duration", Default: "10s", Help: "how long the origin may stay silent; a request is given up within three times that",
			set: with(parseDuration, durationOf(field))},
		{Key: key + ".write.connections", Flag: name("write-connections"), Kind: "number", Default: "32, or half of the origin's connections if that is less", Help: "writes to the origin at the same time, at most: up to half of its connections, since reads go first",
			set: with(parseConnections, func(s *Settings) *int { return &field(s).Write.Connections })},
		{Key: key + ".write.bandwidth", Flag: name("write-bandwidth"), Kind: "rate", Default: "no limit", Help: "bytes per second of what is written to the origin, at most: 200MiB/s; at least 64KiB/s",
			set: with(parseBandwidth, func(s *Settings) *int64 { return &field(s).Write.Bandwidth })},
		{Key: key + ".write.part_size", Flag: name("write-part-size"), Kind: "size", Default: "16MiB", Help: "size of the parts of a large object that is written, from 5MiB to 5GiB; it grows for objects of more than 10,000 parts",
			set: with(ParseBytes, func(s *Settings) *int64 { return &field(s).Write.PartSize })},
		{Key: key + ".write.sse", Flag: name("write-sse"), Kind: "AES256, aws:kms or aws:kms:dsse", Default: "as the bucket says", Help: "how the origin encrypts what is written",
			set: with(sseChoice, func(s *Settings) *string { return &field(s).Write.SSE })},
		{Key: key + ".write.kms_key", Flag: name("write-kms-key"), Kind: "text", Default: "the origin's own", Help: "id or ARN of the key for aws:kms and aws:kms:dsse",
			set: with(text, func(s *Settings) *string { return &field(s).Write.KMSKey })},
		{Key: key + ".write.storage_class", Flag: name("write-storage-class"), Kind: "text", Default: "as the bucket says", Help: "storage class of what is written, such as STANDARD_IA",
			set: with(text, func(s *Settings) *string { return &field(s).Write.StorageClass })},
	}
}

func sseChoice(s string) (string, error) { return cli.Choice(s, "AES256", "aws:kms", "aws:kms:dsse") }

func originParams() []Param {
	rows := originOf("origin", "origin", func(s *Settings) *config.Origin { return &s.Root.Origin })
	return append(rows,
		Param{Key: "freshness", Flag: "freshness", Kind: "freshness", Default: "bounded(60s)",
			Help: "how old a name may be: immutable, bounded(60s) or strict",
			set:  with(freshness, func(s *Settings) *string { return &s.Root.Freshness })},
		Param{Key: "stale_if_error", Flag: "stale-if-error", Kind: "bool", Default: "true",
			Help: "show the last known names while the origin cannot be asked, instead of EIO",
			set:  with(negated, func(s *Settings) *bool { return &s.Root.FailStale })},
		Param{Key: "write", Kind: "through or off", Default: "off", Help: linkWrites,
			set: with(writeChoice, func(s *Settings) *string { return &s.Root.Write })},
		Param{Key: "fsync", Kind: "disk or bucket", Default: "disk", Help: linkSyncs,
			set: with(fsyncChoice, func(s *Settings) *string { return &s.Root.Fsync })},
		stagingParam("staging", func(s *Settings) *config.Staging { return &s.Root.Staging }),
		stagingAgeParam("staging_age", func(s *Settings) *config.Staging { return &s.Root.Staging }),
		publishEveryParam("publish_every", func(s *Settings) *config.Staging { return &s.Root.Staging }),
		Param{Key: "seed", Kind: "bool", Default: "true", Help: linkSeeds,
			set: with(negated, func(s *Settings) *bool { return &s.Root.NoSeed })})
}

func stagingParam(key string, field func(*Settings) *config.Staging) Param {
	return Param{Key: key, Kind: "list of patterns", Default: strings.Join(draft.DefaultTemporary(), ", "),
		Help: "temporary names, with commas between them: what has one stays on this node's disk until it is renamed or removed; none, or []: there are none",
		set:  with(parsePatterns, func(s *Settings) *[]string { return &field(s).Patterns })}
}

func stagingAgeParam(key string, field func(*Settings) *config.Staging) Param {
	return Param{Key: key, Kind: "duration", Default: "10m",
		Help: "how long after its last close what still has a temporary name is published as it is; at least 1s",
		set:  with(parseStagingAge, func(s *Settings) *time.Duration { return &field(s).Age })}
}

func publishEveryParam(key string, field func(*Settings) *config.Staging) Param {
	return Param{Key: key, Kind: "duration", Default: "30s",
		Help: "how often an open file that is appended to (O_APPEND) is published, from 64 MiB on once it has grown by a tenth, too; at least 1s, 0: at close alone",
		set:  with(parsePublishEvery, func(s *Settings) *time.Duration { return &field(s).Every })}
}

// What a link says for its mounts.
const (
	linkWrites = "through: its mounts are writable unless they say ro, one at a time"
	linkSeeds  = "put what a mount has just written into the cache of the nodes that own its blocks, where there is room, before anybody reads it"
	linkSyncs  = "what fsync(2) waits for in its writable mounts: this node's disk, or the bucket"
)

func linkParams() []Param {
	link := func(s *Settings) *config.Link { return &s.Links[len(s.Links)-1] }
	rows := []Param{
		{Key: "links[].path", Kind: "path", Default: "/", Help: "where the link stands in the tree",
			set: with(text, func(s *Settings) *string { return &link(s).Path })},
		{Key: "links[].freshness", Kind: "freshness", Default: "bounded(60s)", Help: "how old a name may be: immutable, bounded(60s) or strict",
			set: with(freshness, func(s *Settings) *string { return &link(s).Freshness })},
		{Key: "links[].stale_if_error", Kind: "bool", Default: "true", Help: "show the last known names while the origin cannot be asked, instead of EIO",
			set: with(negated, func(s *Settings) *bool { return &link(s).FailStale })},
		{Key: "links[].configure", Kind: "bool", Default: "s3.configure", Help: "pass on what S3 clients configure its bucket by, such as policies and lifecycle rules",
			set: with(parseBool, func(s *Settings) *bool { return &link(s).Configure })},
		{Key: "links[].write", Kind: "through or off", Default: "off", Help: linkWrites,
			set: with(writeChoice, func(s *Settings) *string { return &link(s).Write })},
		{Key: "links[].fsync", Kind: "disk or bucket", Default: "disk", Help: linkSyncs,
			set: with(fsyncChoice, func(s *Settings) *string { return &link(s).Fsync })},
		stagingParam("links[].staging", func(s *Settings) *config.Staging { return &link(s).Staging }),
		stagingAgeParam("links[].staging_age", func(s *Settings) *config.Staging { return &link(s).Staging }),
		publishEveryParam("links[].publish_every", func(s *Settings) *config.Staging { return &link(s).Staging }),
		{Key: "links[].seed", Kind: "bool", Default: "true", Help: linkSeeds,
			set: with(negated, func(s *Settings) *bool { return &link(s).NoSeed })},
	}
	return append(rows, originOf("links[].origin", "", func(s *Settings) *config.Origin { return &link(s).Origin })...)
}

func cacheParams() []Param {
	disk := func(s *Settings) *config.Disk { return &s.Cache.Disks[len(s.Cache.Disks)-1] }
	return []Param{
		{Key: "cache.ram", Flag: "cache-ram", Kind: "size", Default: "10%, at least 64MiB (a quarter, if that is less), at most 4GiB", Help: "memory for data and its index; percent of the smaller of machine and cgroup",
			set: with(parseSize, func(s *Settings) *config.Size { return &s.Cache.RAM })},
		{Key: "cache.disks", Flag: "cache-disks", Kind: "list of PATH or PATH=SIZE", Default: "/var/cache/hearth, for users $XDG_CACHE_HOME/hearth", Help: "cache directories, with commas between them",
			set: setDisks},
		{Key: "cache.disks[].path", Kind: "path", Default: "none", Help: "cache directory, made if missing",
			set: with(text, func(s *Settings) *string { return &disk(s).Path })},
		{Key: "cache.disks[].size", Kind: "size", Default: "10%", Help: "its budget; percent of its file system",
			set: with(parseSize, func(s *Settings) *config.Size { return &disk(s).Size })},
		{Key: "cache.free_floor", Flag: "cache-free-floor", Kind: "size", Default: "10%", Help: "what always stays free on each file system, whatever the budget; percent of each",
			set: with(parseSize, func(s *Settings) *config.Size { return &s.Cache.FreeFloor })},
		{Key: "cache.scrub", Flag: "cache-scrub", Kind: "rate", Default: "8MiB/s", Help: "what is read again of each directory, behind the readers, to find and drop bytes that rot; 0: nothing",
			set: with(ParseRate, func(s *Settings) *int64 { return &s.Cache.Scrub })},
		{Key: "cache.scrub_every", Flag: "cache-scrub-every", Kind: "duration", Default: "24h", Help: "the least time from the begin of one such pass to the next",
			set: with(parseDuration, func(s *Settings) *time.Duration { return &s.Cache.ScrubEvery })},
	}
}

// setDisks reads PATH[=SIZE],... as flags and the environment have it.
func setDisks(s *Settings, v string) error {
	var disks []config.Disk
	for _, one := range strings.Split(v, ",") {
		path, size, sized := strings.Cut(strings.TrimSpace(one), "=")
		d := config.Disk{Path: path}
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
	s.Cache.Disks = disks
	return nil
}

// Groups are the groups of all keys that have a flag.
func Groups() (all []string) {
	for _, p := range Params() {
		if g := p.Group(); p.Flag != "" && !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

// AddFlags gives cmd the flags of those rows of the table whose key is in one of the groups.
func AddFlags(cmd *cobra.Command, groups ...string) {
	for _, p := range Params() {
		if p.Flag == "" || !slices.Contains(groups, p.Group()) {
			continue
		}
		help := p.Help
		if p.Default != "none" && p.Default != "false" {
			help += " (default " + p.Default + ")"
		}
		if strings.HasPrefix(p.Kind, "bool") {
			cmd.Flags().Bool(p.Flag, p.Default == "true", p.Help)
			continue
		}
		word, _, _ := strings.Cut(p.Kind, ",")
		word, _, _ = strings.Cut(word, " ")
		cmd.Flags().Var(&textFlag{kind: word}, p.Flag, help)
		if words := p.words(); len(words) > 0 {
			cli.Complete(cmd, p.Flag, words...)
		}
	}
}

// words are the only values that the parameter takes. nil means that it takes others, too.
func (p Param) words() []string {
	before, last, ok := strings.Cut(p.Kind, " or ")
	if !ok || strings.HasPrefix(p.Kind, "list") {
		return nil
	}
	return append(strings.Split(before, ", "), last)
}

// textFlag keeps a flag's text; the row of the table parses it.
type textFlag struct{ value, kind string }

func (f *textFlag) String() string     { return f.value }
func (f *textFlag) Set(s string) error { f.value = s; return nil }
func (f *textFlag) Type() string       { return f.kind }
