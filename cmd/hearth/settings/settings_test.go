package settings

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/config"
)

func TestTable(t *testing.T) {
	// Every row of the table has what flags, environment and page need, once.
	keys, flags := map[string]bool{}, map[string]bool{}
	for _, p := range Params() {
		if keys[p.Key] || p.Flag != "" && flags[p.Flag] {
			t.Errorf("%s (--%s) stands twice", p.Key, p.Flag)
		}
		keys[p.Key], flags[p.Flag] = true, true
		if p.set != nil && (p.Kind == "" || p.Default == "" || p.Help == "") {
			t.Errorf("%s has no kind, default or help", p.Key)
		}
	}
	for _, key := range []string{"origin", "links[].path", "links[].origin", "links[].freshness", "cache.ram", "cache.disks[].path",
		"cache.disks[].size", "cache.free_floor", "mounts[].path", "mounts[].prefix", "mounts[].open", "mounts[].freshness",
		"mounts[].allow_other", "node.name", "node.listen", "node.zone", "join", "cluster.name", "cluster.key_file", "cluster.encryption", "admin.socket", "admin.listen", "s3.listen", "s3.credentials_file", "volumes.devices"} {
		if !keys[key] {
			t.Errorf("the manual's key %s is missing", key)
		}
	}
}

func TestFileOfTheManual(t *testing.T) {
	// The keys of the manual that this version has are read as they stand there.
	s := &Settings{}
	err := ReadYAML(s, "hearth.yaml", []byte(`
origin: s3://datasets
links: [{path: /imagenet, origin: {url: "s3://datasets/imagenet", endpoint: "http://h:9000", path_style: true}, freshness: immutable, stale_if_error: false}]
cache: {ram: 20%, disks: [{path: /nvme0/hearth, size: 80%}, {path: /nvme1, size: 1.5TB}], free_floor: 10%}
mounts: [{path: /mnt/d, prefix: imagenet/, open: auto, freshness: bounded(60s), allow_other: true, options: [nodev, noexec]}]
admin: {socket: /run/hearth/hearth.sock, listen: "127.0.0.1:9876"}
fuse: {without: [passthrough, opendir]}
node: {name: gpu-1, listen: "10.0.0.5:7946", zone: a}
join: ["10.0.0.5:7946"]
cluster: {name: prod, key_file: /etc/hearth/key, encryption: on}
`))
	if err != nil {
		t.Fatal(err)
	}
	links := s.Tree("")
	if len(links) != 2 || links[0].Path != "/" || links[0].Origin.URL != "s3://datasets" {
		t.Errorf("the origin is no link at /: %+v", links)
	}
	want := config.Link{Path: "/imagenet", Freshness: "immutable", FailStale: true,
		Origin: config.Origin{URL: "s3://datasets/imagenet", Endpoint: "http://h:9000", PathStyle: "on"}}
	if !reflect.DeepEqual(links[1], want) {
		t.Errorf("link %+v, want %+v", links[1], want)
	}
	if s.Cache.RAM.Percent != 20 || len(s.Cache.Disks) != 2 || s.Cache.Disks[1].Size.Bytes != 1_500_000_000_000 || s.Cache.FreeFloor.Percent != 10 {
		t.Errorf("cache %+v", s.Cache)
	}
	m := s.Mounts[0]
	if m.Dir != "/mnt/d" || m.Prefix != "imagenet/" || m.Open != "auto" || m.AllowOther == nil || !*m.AllowOther || len(m.Options) != 2 {
		t.Errorf("mount %+v", m)
	}
	ring := config.Membership{Name: "gpu-1", Listen: "10.0.0.5:7946", Zone: "a", Join: []string{"10.0.0.5:7946"}, Cluster: "prod", KeyFile: "/etc/hearth/key"}
	if !reflect.DeepEqual(s.Ring, ring) {
		t.Errorf("ring %+v, want %+v", s.Ring, ring)
	}
	if s.Admin.Listen != "127.0.0.1:9876" || len(s.FuseWithout) != 2 {
		t.Errorf("admin %+v, without %v", s.Admin, s.FuseWithout)
	}
}

func TestFileIsStrict(t *testing.T) {
	// An error of a file is named with its line and the key that was meant.
	for text, want := range map[string]string{
		"origin: s3://a\ncache:\n  rom: 20%\n":                 "hearth.yaml:3: unknown key cache.rom; the nearest is ram",
		"orgin: s3://a\n":                                      "hearth.yaml:1: unknown key orgin; the nearest is origin",
		"zzzzzz: 1\n":                                          "hearth.yaml:1: unknown key zzzzzz; here may stand:",
		"cache: {ram: lots}\n":                                 `hearth.yaml:1: cache.ram: "lots" is not a size`,
		"cache: {ram: 0}\n":                                    "hearth.yaml:1: cache.ram: a size of 0",
		"cache: {ram: 120%}\n":                                 "is not a percentage",
		"cache: 5\n":                                           "hearth.yaml:1: cache is not a single value",
		"cache: [5]\n":                                         "hearth.yaml:1: cache is not a list",
		"cache:\n  ram:\n":                                     "cache.ram has no value",
		"cluster: {encryption: maybe}\n":                       `hearth.yaml:1: cluster.encryption: "maybe" is neither on nor off`,
		"join: [a, '']\n":                                      "hearth.yaml:1: join: ",
		"node: {listn: lo}\n":                                  "hearth.yaml:1: unknown key node.listn; the nearest is listen",
		"\n\nvolumes: {a: b}\n":                                "hearth.yaml:3: unknown key volumes.a; here may stand: copies, devices, fill",
		"volumes: {fill: some}\n":                              `hearth.yaml:1: volumes.fill: "some" is not one of evicted, all`,
		"volumes: {copies: 0}\n":                               `hearth.yaml:1: volumes.copies: "0" copies: 1 to 16 are possible`,
		"volumes: [{ulr: /dev/a}]\n":                           "hearth.yaml:1: unknown key volumes.devices[].ulr; the nearest is url",
		"mounts: [{path: /a, opne: none}]\n":                   "unknown key mounts[].opne; the nearest is open",
		"mounts:\n- path: /a\n  open: sometimes\n":             `hearth.yaml:3: mounts[].open: "sometimes" is not one of`,
		"origin: s3://a\norigin: s3://b\n":                     "hearth.yaml:2: origin stands here twice",
		"links: [{path: /a, origin: s3://a, freshness: soon}]": "freshness",
		"origin: s3://a\n---\norigin: s3://b\n":                "a second document",
		"origin: [\n":                                          "hearth.yaml:",
		"mount: {open: none}\n":                                "unknown key mount; the nearest is mounts",
	} {
		err := ReadYAML(&Settings{}, "hearth.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%q: %v (exit code %d), want %q", text, err, cli.ExitCode(err), want)
		}
	}
	for _, text := range []string{"", "# nothing\n", "origin: s3://a\n", "cache: {}\n"} {
		if err := ReadYAML(&Settings{}, "hearth.yaml", []byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestOrderOfSettings(t *testing.T) {
	// A flag goes before the environment, the environment before the file.
	file := filepath.Join(t.TempDir(), "hearth.yaml")
	text := "origin: s3://file\ncache: {ram: 100MiB, disks: [{path: /file}]}\nlog: {level: error}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HEARTH_CACHE_RAM", "200MiB")
	t.Setenv("HEARTH_CACHE_DISKS", "/env=1GiB,/env2")
	cmd := &cobra.Command{}
	cli.AddCommon(cmd)
	AddFlags(cmd, "origin", "cache", "log")
	if err := cmd.ParseFlags([]string{"--config", file, "--cache-ram", "300MiB", "--anonymous"}); err != nil {
		t.Fatal(err)
	}
	s, err := Load(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if s.Cache.RAM.Bytes != 300<<20 || s.Root.Origin.URL != "s3://file" || !s.Root.Origin.Anonymous || s.LogLevel != "error" {
		t.Errorf("settings %+v", s)
	}
	if d := s.Cache.Disks; len(d) != 2 || d[0] != (config.Disk{Path: "/env", Size: config.Size{Bytes: 1 << 30}}) || d[1].Path != "/env2" {
		t.Errorf("disks %+v", d)
	}
	t.Setenv("HEARTH_CACHE_FREE_FLOOR", "x")
	if _, err := Load(cmd); err == nil || !strings.Contains(err.Error(), "HEARTH_CACHE_FREE_FLOOR") || cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("a bad variable: %v", err)
	}
}

func TestValues(t *testing.T) {
	// Sizes and durations read as the manual says, and nothing else does.
	for in, want := range map[string]config.Size{
		"512MiB": {Bytes: 512 << 20}, "1.5TB": {Bytes: 1_500_000_000_000}, "20%": {Percent: 20}, "0.5 %": {Percent: 0.5},
		"4096": {Bytes: 4096}, "1GiB": {Bytes: 1 << 30},
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("size %q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "-1", "0", "0%", "101%", "NaN%", "-5%", "10%%", "5 parsecs", "9999EiB"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("size %q: %v, want an error", in, got)
		}
	}
	if d, err := parseDuration("24h"); err != nil || d != 24*time.Hour {
		t.Error(d, err)
	}
	if _, err := parseDuration("-1s"); err == nil {
		t.Error("a negative duration")
	}
	if r, err := ParseRate("200MiB/s"); err != nil || r != 200<<20 {
		t.Error(r, err)
	}
	for in, want := range map[string]int64{"64KiB/s": 64 << 10, "0": 0, "100MB/s": 100_000_000, "5": -1, "65535": -1, "-1": -1} {
		if r, err := parseBandwidth(in); (err != nil) != (want < 0) || err == nil && r != want {
			t.Errorf("bandwidth %q: %v, %v", in, r, err)
		}
	}
	for in, want := range map[string]int{"1": 1, "64": 64, "0": 0, "00": 0, "-1": 0, "x": 0} {
		if n, err := parseConnections(in); n != want || (err != nil) != (want == 0) {
			t.Errorf("connections %q: %v, %v", in, n, err)
		}
	}
}

func TestMountOptions(t *testing.T) {
	// Options as fstab has them are applied, passed over, or refused with the nearest name.
	s := &Settings{}
	err := s.MountOptions(strings.Split("defaults,_netdev,x-systemd.automount,nodev,noexec,allow_other,uid=1000,open=none,no_prefetch,cache_ram=64MiB,endpoint=http://h:1,fsname=x,subtype=y", ","), false)
	if err != nil {
		t.Fatal(err)
	}
	m := s.Mount
	if m.Open != "none" || m.UID == nil || *m.UID != 1000 || m.AllowOther == nil || !m.NoPrefetch || len(m.Options) != 2 ||
		s.Cache.RAM.Bytes != 64<<20 || s.Root.Origin.Endpoint != "http://h:1" {
		t.Errorf("%+v", s)
	}
	for o, want := range map[string]string{"alow_other": "allow_other", "uid": "needs a value", "uid=me": "not a numeric", "foo=1": "unknown option", "_netdef": "nearest is _netdev"} {
		if err := s.MountOptions([]string{o}, false); err == nil || !strings.Contains(err.Error(), want) || cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("-o %s: %v", o, err)
		}
	}
	if err := s.MountOptions([]string{"foo=1", "alow_other"}, true); err != nil {
		t.Errorf("sloppy: %v", err)
	}
	if err := s.MountOptions([]string{"uid=me"}, true); err == nil {
		t.Error("sloppy passes over what is known and wrong")
	}
	if err := s.MountOptions([]string{"remount", "ro"}, true); err == nil || !strings.Contains(err.Error(), "unmount, and mount again") {
		t.Errorf("remount: %v", err)
	}
}

func TestOptionsThatNoMountKeepsAreSaid(t *testing.T) {
	// A user who asks for setuid programs or for devices is told that no mount has them, and what to say instead; so is one for
	// whom mount(8) may have said rw by itself. Of contrary options the last one counts.
	for list, want := range map[string][]string{
		"defaults,noatime": nil, "ro": nil, "rw": {"rw: "}, "rw,ro": nil, "ro,rw": {"rw: "}, "nosuid,nodev": nil,
		"suid": {"suid: "}, "dev,suid,rw": {"rw: ", "suid: ", "dev: "}, "suid,nosuid,dev": {"dev: "},
	} {
		s := &Settings{ByMount8: true}
		if err := s.MountOptions(strings.Split(list, ","), false); err != nil {
			t.Errorf("%s: %v", list, err)
		}
		said := s.Unkept()
		if len(said) != len(want) {
			t.Errorf("%s: %q, expected %q", list, said, want)
			continue
		}
		for i, begin := range want {
			if !strings.HasPrefix(said[i], begin) || !strings.Contains(said[i], "; say ") {
				t.Errorf("%s: %q, expected %q", list, said[i], begin)
			}
		}
	}
}

func TestVariablesThatDoNothingAreNamed(t *testing.T) {
	// A typo is reported with the nearest name. Known variables, and those of other programs, pass
	// silently.
	var said bytes.Buffer
	checkEnviron([]string{"HEARTH_CACHE_RAM=1GiB", "HEARTH_CLUSTER_KEY=x", "HEARTH_JOIN=10.0.0.5", "HEARTH_NODE=unix:///x", "PATH=/bin"}, &said)
	if said.Len() > 0 {
		t.Errorf("known variables: %q", &said)
	}
	checkEnviron([]string{"HEARTH_CACHE_RMA=1GiB"}, &said)
	if !strings.Contains(said.String(), "HEARTH_CACHE_RAM") {
		t.Errorf("a typo: %q", &said)
	}
}

func TestRingOfFlagsAndEnvironment(t *testing.T) {
	// Settings of a ring follow the same order of sources as all others. An empty join means none,
	// and overrides the file's.
	t.Setenv("HEARTH_NODE_ZONE", "b")
	t.Setenv("HEARTH_CLUSTER_ENCRYPTION", "on")
	s := ofCommand(t, "node: {listen: lo, zone: a}\njoin: [h1]\ncluster: {encryption: off}\n", "--join", "h2, 10.0.0.5:7946", "--node-name", "n", "--cluster-key-file", "/k", "--cluster-name", "c")
	want := config.Membership{Name: "n", Listen: "lo", Zone: "b", Join: []string{"h2", "10.0.0.5:7946"}, Cluster: "c", KeyFile: "/k"}
	if !reflect.DeepEqual(s.Ring, want) {
		t.Errorf("%+v, want %+v", s.Ring, want)
	}
	if s = ofCommand(t, "node: {listen: lo}\njoin: [h1]\ncluster: {encryption: off}\n", "--join", "", "--cluster-encryption", "off"); s.Ring.Join != nil || !s.Ring.Plain || !s.Ring.On() {
		t.Errorf("%+v", s.Ring)
	}
	for in, good := range map[string]bool{"lo": true, "lo:7950": true, "10.0.0.0/8": true, "::1": true, "[fd00::/8]:6": true, "lo:port": true, // which is told later
		"lo:0": false, "10.0.0.0/8:0": false, "[::1]:00": false} {
		if got, err := parseListen(in); (err == nil) != good || good && got != in {
			t.Errorf("listen %q: %q, %v", in, got, err)
		}
	}
	for in, hosts := range map[string]int{"": 0, " ": 0, "a": 1, "a,b , [::1]:7946": 3, "a,": -1, ",": -1} {
		if got, err := parseHosts(in); len(got) != max(0, hosts) || (err != nil) != (hosts < 0) {
			t.Errorf("hosts %q: %q, %v", in, got, err)
		}
	}
}

func TestVolumesInShort(t *testing.T) {
	// One device, a list of them, and a list with elements of several keys stand at volumes itself.
	for text, want := range map[string][]config.Volume{
		"volumes: /srv/volume\n":                                  {{URL: "/srv/volume"}},
		"volumes: [/dev/a, nvme+tcp://h/n]\n":                     {{URL: "/dev/a"}, {URL: "nvme+tcp://h/n"}},
		"volumes: [{url: nvme+tcp://h/n, secret_file: /k}, /b]\n": {{URL: "nvme+tcp://h/n", SecretFile: "/k"}, {URL: "/b"}},
		"volumes: {copies: 1, devices: [{url: /a}]}\n":            {{URL: "/a"}},
	} {
		s := &Settings{}
		if err := ReadYAML(s, "hearth.yaml", []byte(text)); err != nil || !slices.Equal(s.Volumes.Devices, want) {
			t.Errorf("%q: %+v, %v", text, s.Volumes, err)
		}
	}
	if err := ReadYAML(&Settings{}, "hearth.yaml", []byte("volumes:\n")); err == nil || !strings.Contains(err.Error(), "volumes.devices has no value") {
		t.Errorf("nothing: %v", err)
	}
}

func TestWhatOptionsSayOfWriting(t *testing.T) {
	// rw is write=through and ro is write=off, and of both the last one counts. One that says otherwise than write is an error that
	// names both. What mount(8) may have said by itself says nothing, where the link may say something.
	for _, c := range []struct {
		list, flag string
		byMount8   bool
		want, says string
	}{
		{"", "", false, "", ""},
		{"rw", "", false, "through", ""},
		{"ro", "", false, "off", ""},
		{"ro,rw", "", false, "through", ""},
		{"rw,ro", "", true, "off", ""},
		{"write=through,fsync=bucket", "", false, "through", ""},
		{"rw", "through", false, "through", ""},
		{"ro", "through", false, "", "-o ro and --write through exclude each other: give one"},
		{"write=through,ro", "", true, "", "-o ro and --write through exclude each other: give one"},
		{"rw", "off", false, "", "-o rw and --write off exclude each other: give one"},
		{"rw,write=off", "", true, "off", ""},
		{"rw", "", true, "", ""},
		{"rw,write=through", "", true, "through", ""},
		{"write=back", "", false, "", `"back"`},
	} {
		s := &Settings{ByMount8: c.byMount8}
		s.Mount.Write = c.flag
		err := s.MountOptions(strings.Split(c.list, ","), false)
		switch {
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%+v: %v", c, err)
		case c.says == "" && (err != nil || s.Mount.Write != c.want):
			t.Errorf("%+v: %q, %v", c, s.Mount.Write, err)
		}
		if c.want == "through" && s.Unkept() != nil {
			t.Errorf("%+v: %q", c, s.Unkept())
		}
	}
}

func TestSettingsOfWriting(t *testing.T) {
	// The file says for each link, and for the one that the key origin makes, how it is written and whether its mounts write it.
	s := &Settings{}
	err := ReadYAML(s, "h.yaml", []byte(`origin: {url: s3://b, write: {connections: 8, bandwidth: 100MiB/s, part_size: 64MiB, sse: aws:kms, kms_key: alias/k, storage_class: STANDARD_IA}}
write: through
fsync: bucket
links: [{path: /x, origin: s3://x, write: off}, {path: /y, origin: {url: s3://y, write: {part_size: 5MiB}}, write: through, fsync: disk}]
mounts: [{path: /mnt, write: off}, {path: /mnt2, fsync: bucket, options: rw}]
`))
	if err != nil {
		t.Fatal(err)
	}
	links := s.Tree("")
	if w := links[0].Origin.Write; w.Connections != 8 || w.Bandwidth != 100<<20 || w.PartSize != 64<<20 || w.SSE != "aws:kms" || w.KMSKey != "alias/k" || w.StorageClass != "STANDARD_IA" {
		t.Errorf("%+v", w)
	}
	for i, want := range []string{"through bucket 67108864", "off  0", "through disk 5242880"} {
		if got := fmt.Sprint(links[i].Write, " ", links[i].Fsync, " ", links[i].Origin.Write.PartSize); got != want {
			t.Errorf("link %d: %s, not %s", i, got, want)
		}
	}
	if m := s.Mounts; m[0].Write != "off" || m[1].Fsync != "bucket" || m[1].Options[0] != "rw" {
		t.Errorf("%+v", m)
	}
}

func TestTemporaryNamesOfLinks(t *testing.T) {
	// The file says for each link which names are temporary, as a list or with commas, and for how long. What is not said is not set,
	// and an empty list, or none, is no pattern at all.
	s := &Settings{}
	err := ReadYAML(s, "h.yaml", []byte(`origin: s3://b
staging: ["*.tmp", "*.part"]
staging_age: 2m
links: [{path: /x, origin: s3://x, staging: []}, {path: /y, origin: s3://y, staging: none, staging_age: 1s}, {path: /z, origin: s3://z}, {path: /w, origin: s3://w, staging: "a?, b*"}]
`))
	if err != nil {
		t.Fatal(err)
	}
	links := s.Tree("")
	for i, want := range []string{`[]string{"*.tmp", "*.part"} 2m0s`, `[]string{} 10m0s`, `[]string{} 1s`, `[]string(nil) 10m0s`, `[]string{"a?", "b*"} 10m0s`} {
		if got := fmt.Sprintf("%#v %v", links[i].Staging.Patterns, links[i].Staging.After()); got != want {
			t.Errorf("link %d: %s, not %s", i, got, want)
		}
	}
	for of, staged := range map[int]string{0: "a.part", 3: "a.swp", 4: "ab"} {
		if names, err := links[of].Staging.Temporary(); err != nil {
			t.Error(err)
		} else if is, _ := names.Match("d/" + staged); !is {
			t.Errorf("link %d does not stage %s", of, staged)
		}
	}
}

func TestTemporaryNamesByFlagsAndVariables(t *testing.T) {
	// What flags and variables of a mount say is kept apart from what the file says of its link. A flag wins over a variable.
	t.Setenv("HEARTH_MOUNT_STAGING", "none")
	t.Setenv("HEARTH_MOUNT_STAGING_AGE", "30s")
	for _, c := range []struct{ flag, want string }{{"", `[]string{} 30s`}, {"*.tmp,*.part", `[]string{"*.tmp", "*.part"} 30s`}} {
		cmd := &cobra.Command{}
		AddFlags(cmd, "mount")
		if c.flag != "" {
			if err := cmd.Flags().Set("staging", c.flag); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Given(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%#v %v", s.Staging.Patterns, s.Staging.Age); got != c.want || s.Root.Staging.Patterns != nil {
			t.Errorf("%q: %s, and the file's %+v", c.flag, got, s.Root.Staging)
		}
	}
	s := &Settings{}
	if err := s.MountOptions([]string{"staging=*.part", "staging_age=1m", "publish_every=0"}, false); err != nil || len(s.Staging.Patterns) != 1 || s.Staging.Age != time.Minute || s.Staging.Interval() != 0 {
		t.Errorf("-o: %+v, %v", s.Staging, err)
	}
}

func TestWrongTemporaryNames(t *testing.T) {
	// A wrong pattern, and an age that is none or too short, are refused with line, key and cure; so is a pattern without the quotes
	// that YAML needs.
	for text, says := range map[string]string{
		"staging: [a/b]":                               `h.yaml:1: staging: "a/b" has a slash`,
		"origin: s3://b\nstaging: \"*.tmp,,\"":         "h.yaml:2: staging: an empty pattern",
		"links: [{origin: s3://b, staging: [\"[a\"]}]": `h.yaml:1: links[].staging: "[a" is no pattern`,
		"staging_age: 999ms":                           `h.yaml:1: staging_age: "999ms" is below 1s, the least`,
		"staging_age: 0s":                              "staging: [] has no temporary names",
		"staging_age: soon":                            `"soon" is not a duration`,
		"publish_every: 999ms":                         `h.yaml:1: publish_every: "999ms" is below 1s, the least`,
		"staging: [*.tmp]":                             "begins with * or & needs quotes",
		"staging: {a: b}":                              "staging has no keys below it",
	} {
		if err := ReadYAML(&Settings{}, "h.yaml", []byte(text)); cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, expected %q", text, err, says)
		}
	}
	if err := (&Settings{}).MountOptions([]string{"staging=a/b"}, false); err == nil || !strings.Contains(err.Error(), `-o staging: "a/b" has a slash`) {
		t.Errorf("-o: %v", err)
	}
}
