package settings

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/s3gw"
	"github.com/hearthfs/hearth/volume"
)

func durationOf(field func(*Settings) *config.Origin) func(*Settings) *time.Duration {
	return func(s *Settings) *time.Duration { return &field(s).Timeout }
}

// mountOf returns the rows of a mount. In the file they are keys of mounts[]. On the command line
// they are about the mount of this command.
func mountOf(prefix, flagged string, m func(*Settings) *config.Mount) []Param {
	row := func(name, kind, def, help string, set func(*Settings, string) error) Param {
		p := Param{Key: prefix + name, Kind: kind, Default: def, Help: help, set: set}
		if flagged != "" {
			p.Key, p.Flag, p.FlagOnly = flagged+name, strings.ReplaceAll(name, "_", "-"), true
		}
		return p
	}
	return []Param{
		row("open", "auto, none or passthrough", "auto", "how the kernel opens files: none is best for many small files, passthrough for large ones",
			with(openChoice, func(s *Settings) *string { return &m(s).Open })),
		row("write", "through or off", "the link's, else off", "through: let files be written, close(2) answers once the bucket has what was written; needs a cache disk; off: read-only",
			with(writeChoice, func(s *Settings) *string { return &m(s).Write })),
		row("fsync", "disk or bucket", "the link's, else disk", "what fsync(2) waits for in a writable mount: this node's disk, where it is safe from a crash, or the bucket",
			with(fsyncChoice, func(s *Settings) *string { return &m(s).Fsync })),
		row("allow_other", "bool", "true for root, else false", "let other users in",
			func(s *Settings, v string) error {
				b, err := parseBool(v)
				m(s).AllowOther = &b
				return err
			}),
		row("uid", "number", "who mounts", "owner of all files",
			with(parseID, func(s *Settings) **uint32 { return &m(s).UID })),
		row("gid", "number", "who mounts", "group of all files",
			with(parseID, func(s *Settings) **uint32 { return &m(s).GID })),
		row("file_mode", "mode", "0444, writable 0644", "permission bits of files",
			with(parseMode, func(s *Settings) *uint32 { return &m(s).FileMode })),
		row("dir_mode", "mode", "0555, writable 0755", "permission bits of directories",
			with(parseMode, func(s *Settings) *uint32 { return &m(s).DirMode })),
		row("no_prefetch", "bool", "false", "bring only what is read, not the rest of directories whose small files are read in random order",
			with(parseBool, func(s *Settings) *bool { return &m(s).NoPrefetch })),
	}
}

func mountParams() []Param {
	element := func(s *Settings) *config.Mount { return &s.Mounts[len(s.Mounts)-1] }
	rows := []Param{
		{Key: "mounts[].path", Kind: "path", Default: "none", Help: "mount point",
			set: with(text, func(s *Settings) *string { return &element(s).Dir })},
		{Key: "mounts[].prefix", Kind: "path", Default: "the tree's root", Help: "path in the tree that becomes the mount's root",
			set: with(text, func(s *Settings) *string { return &element(s).Prefix })},
		{Key: "mounts[].freshness", Kind: "freshness", Default: "the link's", Help: "short for the link's freshness; two mounts that differ are refused",
			set: with(freshness, func(s *Settings) *string { return &element(s).Freshness })},
		{Key: "mounts[].options", Kind: "text", Default: "none", Help: "mount(8) options: nodev, nosuid, noexec; rw for write: through, ro for write: off",
			set: func(s *Settings, v string) error {
				for o := range strings.SplitSeq(v, ",") {
					element(s).Options = append(element(s).Options, strings.TrimSpace(o))
				}
				return nil
			}},
	}
	rows = append(rows, mountOf("mounts[].", "", element)...)
	rows = append(rows, mountOf("", "mount.", func(s *Settings) *config.Mount { return &s.Mount })...)
	asked := func(s *Settings) *config.Staging { return &s.Staging }
	for _, p := range []Param{stagingParam("mount.staging", asked), stagingAgeParam("mount.staging_age", asked), publishEveryParam("mount.publish_every", asked)} {
		p.Flag, p.FlagOnly, p.Default = strings.ReplaceAll(strings.TrimPrefix(p.Key, "mount."), "_", "-"), true, "the link's"
		rows = append(rows, p)
	}
	return rows
}

func nodeParams() []Param {
	return []Param{
		{Key: "fuse.without", Flag: "fuse-without", Kind: "list", Default: "none", Help: "kernel abilities to do without: passthrough,opendir,...",
			set: func(s *Settings, v string) error {
				s.FuseWithout = strings.Split(v, ",")
				return nil
			}},
		{Key: "admin.socket", Flag: "admin-socket", Kind: "path", Default: "/run/hearth/hearth.sock, for users $XDG_RUNTIME_DIR/hearth/hearth.sock", Help: "where the node answers commands",
			set: with(text, func(s *Settings) *string { return &s.Admin.Socket })},
		{Key: "admin.listen", Flag: "metrics-listen", Kind: "address", Default: config.DefaultListen, Help: "plain TCP address of /metrics and /healthz; \"-\": none",
			set: with(text, func(s *Settings) *string { return &s.Admin.Listen })},
		{Key: "log.level", Flag: "log-level", Kind: "debug, info, warn or error", Default: "info; warn on the terminal of hearth mount", Help: "the least that is logged",
			set: with(func(v string) (string, error) { return cli.Choice(v, "debug", "info", "warn", "error") },
				func(s *Settings) *string { return &s.LogLevel })},
		{Key: "log.file", Flag: "log-file", Kind: "path", Default: "standard error; journald with --daemon", Help: "file that the log goes to",
			set: with(text, func(s *Settings) *string { return &s.LogFile })},
	}
}

// ringParams are the rows about the ring of a node.
func ringParams() []Param {
	return []Param{
		{Key: "node.name", Flag: "node-name", Kind: "text", Default: "the host name", Help: "name of this node, unique in its ring",
			set: with(text, func(s *Settings) *string { return &s.Ring.Name })},
		{Key: "node.listen", Flag: "listen", Kind: "address", Default: "none; with join the address by which this machine reaches these",
			Help: "where this node gossips, by TCP and UDP, and one port above answers its peers' reads: an address, an interface or a CIDR, with :port or without (7946)",
			set:  with(parseListen, func(s *Settings) *string { return &s.Ring.Listen })},
		{Key: "node.zone", Flag: "zone", Kind: "text", Default: "none", Help: "where this node stands, such as a rack: what lies in one zone fails together",
			set: with(text, func(s *Settings) *string { return &s.Ring.Zone })},
		{Key: "join", Flag: "join", Kind: "list of HOST or HOST:PORT", Default: "none", Help: "nodes of the ring to join, with commas between them; a name may have many addresses; the first node needs none",
			set: with(parseHosts, func(s *Settings) *[]string { return &s.Ring.Join })},
		{Key: "cluster.name", Flag: "cluster-name", Kind: "text", Default: "hearth", Help: "name that all nodes of a ring share",
			set: with(text, func(s *Settings) *string { return &s.Ring.Cluster })},
		{Key: "cluster.key_file", Flag: "cluster-key-file", Kind: "path", Default: "none; the key itself may be in " + config.KeyVariable,
			Help: "file of the key that all nodes of a ring share, for its owner and group alone (hearth ring key makes one); without a key a node listens at loopback addresses only",
			set:  with(text, func(s *Settings) *string { return &s.Ring.KeyFile })},
		{Key: "cluster.encryption", Flag: "cluster-encryption", Kind: "on or off", Default: "on", Help: "off: peers prove to each other that they have the key, and do not encrypt; for isolated networks",
			set: with(parseOff, func(s *Settings) *bool { return &s.Ring.Plain })},
	}
}

// s3Params are the rows about a node's S3 endpoint.
func s3Params() []Param {
	return []Param{
		{Key: "s3.listen", Flag: "s3-listen", Kind: "address", Default: "none; " + s3gw.DefaultListen + " for hearth gateway", Help: "where S3 clients are answered, HOST:PORT or :PORT",
			set: with(text, func(s *Settings) *string { return &s.S3.Listen })},
		{Key: "s3.credentials_file", Flag: "s3-credentials-file", Kind: "path", Default: "none; one key may be in " + s3gw.AccessVariable + " and " + s3gw.SecretVariable,
			Help: "who may do what, a line each: ACCESS SECRET ro|rw BUCKET[/PREFIX]|*; for its owner alone, read again when it changes",
			set:  with(text, func(s *Settings) *string { return &s.S3.CredentialsFile })},
		{Key: "s3.anonymous", Flag: "s3-anonymous", Kind: "list of BUCKET[/PREFIX] or *", Default: "none", Help: "what anybody may read without a key",
			set: with(parseHosts, func(s *Settings) *[]string { return &s.S3.Anonymous })},
		{Key: "s3.certificate", Flag: "s3-certificate", Kind: "path", Default: "none: no TLS", Help: "PEM file of the endpoint's certificate and its chain, read again when it changes",
			set: with(text, func(s *Settings) *string { return &s.S3.Certificate })},
		{Key: "s3.certificate_key", Flag: "s3-certificate-key", Kind: "path", Default: "none", Help: "PEM file of the certificate's key",
			set: with(text, func(s *Settings) *string { return &s.S3.CertificateKey })},
		{Key: "s3.domains", Flag: "s3-domains", Kind: "list of HOST", Default: "none", Help: "names under which buckets are hosts: bucket.HOST; any other host has them in the path",
			set: with(parseHosts, func(s *Settings) *[]string { return &s.S3.Domains })},
		{Key: "s3.all_buckets", Flag: "s3-all-buckets", Kind: "bool", Default: "false", Help: "every bucket of the origin's account, each cached from its first use on",
			set: with(parseBool, func(s *Settings) *bool { return &s.S3.AllBuckets })},
		{Key: "s3.configure", Flag: "s3-configure", Kind: "bool", Default: "false", Help: "pass on what configures buckets, such as policies and lifecycle rules; links[].configure does so for one",
			set: with(parseBool, func(s *Settings) *bool { return &s.S3.Configure })},
		{Key: "s3.access_log", Flag: "s3-access-log", Kind: "path", Default: "none", Help: "file that gets a line for each request, as of Amazon's server access log",
			set: with(text, func(s *Settings) *string { return &s.S3.AccessLog })},
		{Key: "s3.cors", Flag: "s3-cors", Kind: "list of ORIGIN or *", Default: "none", Help: "pages that may use the endpoint from browsers, such as https://app.example.org or https://*.example.org",
			set: with(parseHosts, func(s *Settings) *[]string { return &s.S3.CORS })},
		{Key: "s3.max_connections", Flag: "s3-max-connections", Kind: "number", Default: "10000, or a quarter of the limit on open files", Help: "connections of clients that may be open; one more closes that which has asked for nothing the longest",
			set: with(parseMost, func(s *Settings) *int { return &s.S3.MaxConnections })},
		{Key: "s3.max_requests", Flag: "s3-max-requests", Kind: "number", Default: "5000", Help: "requests of clients that may be at work, a quarter of them by the bucket; others are told to slow down after a second",
			set: with(parseMost, func(s *Settings) *int { return &s.S3.MaxRequests })},
	}
}

// keeperParams are the rows about the process that holds a node's mounts.
func keeperParams() []Param {
	return []Param{
		{Key: "keeper.patience", Flag: "keeper-patience", Kind: "duration", Default: "60s", Help: "how long readers of mounts wait for the next node, where one was killed, before they get an error; 0: for ever",
			set: with(parseDuration, func(s *Settings) *time.Duration { return &s.Keeper.Patience })},
		{Key: "keeper.off", Flag: "no-keeper", Kind: "bool", Default: "false", Help: "start no process that holds the mounts: they end with the node",
			set: with(parseBool, func(s *Settings) *bool { return &s.Keeper.Off })},
	}
}

// volumeParams are the rows about volumes.
func volumeParams() []Param {
	volume := func(s *Settings) *config.Volume { return &s.Volumes.Devices[len(s.Volumes.Devices)-1] }
	return []Param{
		{Key: "volumes.devices", Flag: "volumes", Kind: "list of DEVICE", Default: "none", Help: "devices that the nodes of a ring share behind their disks, with commas between them: a path, or nvme+tcp://HOST:PORT/NQN; in the file, what stands at volumes itself is this",
			set: setVolumes},
		{Key: "volumes.devices[].url", Kind: "url", Default: "none", Help: "path of a block device or file, or nvme+tcp://HOST:PORT/NQN",
			set: with(text, func(s *Settings) *string { return &volume(s).URL })},
		{Key: "volumes.devices[].secret_file", Kind: "path", Default: "none", Help: "file of this node's key for DH-HMAC-CHAP, for its owner alone; read again at each connection",
			set: with(text, func(s *Settings) *string { return &volume(s).SecretFile })},
		{Key: "volumes.copies", Flag: "volumes-copies", Kind: "number", Default: "1", Help: "on how many volumes each block is written",
			set: with(parseCopies, func(s *Settings) *int { return &s.Volumes.Copies })},
		{Key: "volumes.fill", Flag: "volumes-fill", Kind: "evicted or all", Default: "evicted", Help: "what is written to volumes beside hearth warmup --to-volume: what the disks of a node evict or have no room for, or also all that it reads from the bucket",
			set: with(parseFill, func(s *Settings) *bool { return &s.Volumes.All })},
	}
}

// setVolumes reads DEVICE,... as flags and the environment have it. A comma may also stand between
// the portals of one target.
func setVolumes(s *Settings, v string) error {
	s.Volumes.Devices = nil
	for _, part := range strings.Split(v, ",") {
		part = strings.TrimSpace(part)
		n := len(s.Volumes.Devices)
		switch {
		case part == "":
			return errors.New("a volume has no address")
		case n > 0 && !strings.HasPrefix(part, "/") && !strings.Contains(part, "://"):
			s.Volumes.Devices[n-1].URL += "," + part
		default:
			s.Volumes.Devices = append(s.Volumes.Devices, config.Volume{URL: part})
		}
	}
	return nil
}

func parseCopies(s string) (int, error) {
	n, err := parseCount(s)
	if err == nil && (n < 1 || n > volume.MaxVolumes) {
		err = fmt.Errorf("%q copies: 1 to %d are possible", s, volume.MaxVolumes)
	}
	return n, err
}

// parseFill reads evicted or all, and returns true for all.
func parseFill(s string) (bool, error) {
	_, err := cli.Choice(s, "evicted", "all")
	return s == "all", err
}
