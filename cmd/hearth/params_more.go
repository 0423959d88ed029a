package main

import (
	"strings"
	"time"

	"github.com/hearthfs/hearth/node"
)

func durationOf(field func(*settings) *node.Origin) func(*settings) *time.Duration {
	return func(s *settings) *time.Duration { return &field(s).Timeout }
}

// mountOf gives the rows of a mount. Those of the file are keys of mounts[];
// those of the command line speak about the mount of this command.
func mountOf(prefix, flagged string, m func(*settings) *node.Mount) []param {
	row := func(name, kind, def, help string, set func(*settings, string) error) param {
		p := param{key: prefix + name, kind: kind, def: def, help: help, set: set}
		if flagged != "" {
			p.key, p.flag, p.flagOnly = flagged+name, strings.ReplaceAll(name, "_", "-"), true
		}
		return p
	}
	return []param{
		row("open", "auto, none or passthrough", "auto", "how the kernel opens files: none is best for many small files, passthrough for large ones",
			with(openChoice, func(s *settings) *string { return &m(s).Open })),
		row("allow_other", "bool", "true for root, else false", "let other users in",
			func(s *settings, v string) error {
				b, err := parseBool(v)
				m(s).AllowOther = &b
				return err
			}),
		row("uid", "number", "who mounts", "owner of all files",
			with(parseID, func(s *settings) **uint32 { return &m(s).UID })),
		row("gid", "number", "who mounts", "group of all files",
			with(parseID, func(s *settings) **uint32 { return &m(s).GID })),
		row("file_mode", "mode", "0444", "permission bits of files",
			with(parseMode, func(s *settings) *uint32 { return &m(s).FileMode })),
		row("dir_mode", "mode", "0555", "permission bits of directories",
			with(parseMode, func(s *settings) *uint32 { return &m(s).DirMode })),
	}
}

func mountParams() []param {
	element := func(s *settings) *node.Mount { return &s.node.Mounts[len(s.node.Mounts)-1] }
	rows := []param{
		{key: "mounts[].path", kind: "path", def: "none", help: "mount point",
			set: with(text, func(s *settings) *string { return &element(s).Dir })},
		{key: "mounts[].prefix", kind: "path", def: "the tree's root", help: "path in the tree that becomes the mount's root",
			set: with(text, func(s *settings) *string { return &element(s).Prefix })},
		{key: "mounts[].freshness", kind: "freshness", def: "the link's", help: "short for the link's freshness; two mounts that differ are refused",
			set: with(freshness, func(s *settings) *string { return &element(s).Freshness })},
		{key: "mounts[].options", kind: "text", def: "none", help: "mount(8) options for the kernel: nodev, nosuid, noexec",
			set: func(s *settings, v string) error {
				element(s).Options = strings.Split(v, ",")
				return nil
			}},
	}
	rows = append(rows, mountOf("mounts[].", "", element)...)
	return append(rows, mountOf("", "mount.", func(s *settings) *node.Mount { return &s.mount })...)
}

func nodeParams() []param {
	return []param{
		{key: "fuse.without", flag: "fuse-without", kind: "list", def: "none", help: "kernel abilities to do without: passthrough,opendir,...",
			set: func(s *settings, v string) error {
				s.node.FuseWithout = strings.Split(v, ",")
				return nil
			}},
		{key: "admin.socket", flag: "admin-socket", kind: "path", def: "/run/hearth/hearth.sock, for users $XDG_RUNTIME_DIR/hearth/hearth.sock", help: "where the node answers commands",
			set: with(text, func(s *settings) *string { return &s.node.Admin.Socket })},
		{key: "admin.listen", flag: "metrics-listen", kind: "address", def: node.DefaultListen, help: "plain TCP address of /metrics and /healthz; \"-\": none",
			set: with(text, func(s *settings) *string { return &s.node.Admin.Listen })},
		{key: "log.level", flag: "log-level", kind: "debug, info, warn or error", def: "info; warn on the terminal of hearth mount", help: "the least that is logged",
			set: with(func(v string) (string, error) { return parseChoice(v, "debug", "info", "warn", "error") },
				func(s *settings) *string { return &s.logLevel })},
		{key: "log.file", flag: "log-file", kind: "path", def: "standard error; journald with --daemon", help: "file that the log goes to",
			set: with(text, func(s *settings) *string { return &s.logFile })},
	}
}

// laterParams are keys that CLI.md names and this version does not have.
func laterParams() []param {
	var rows []param
	for _, key := range []string{"node", "join", "cluster", "s3", "volumes"} {
		rows = append(rows, param{key: key})
	}
	return rows
}
