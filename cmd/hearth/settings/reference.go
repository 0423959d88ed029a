package settings

import (
	"fmt"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

// Reference is docs/configuration.md, made from the table. A test fails if the page differs.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Configuration

This page is made from the table in cmd/hearth (go test ./cmd/hearth -run Reference -update).

A flag goes before the environment, the environment before the file (` + cli.DefaultConfig + `, or --config FILE,
or HEARTH_CONFIG), the file before the default. The file is strict: a key that is not on this page is refused
with its line. "hearth config show" prints every value in force and where it comes from, "hearth config explain KEY"
one key, "hearth config validate FILE" every error of a file, "hearth config init" a first file for this machine.
Two lines are enough to start:

` + "```yaml\norigin: s3://bucket/prefix\ncache: {ram: 20%, disks: [{path: /nvme0/hearth, size: 80%}]}\n```" + `

Sizes read 512MiB, 1.5TB or 20%; percentages of memory are of the smaller of the machine's and the cgroup's,
those of a directory are of its file system. Durations read 60s or 24h. Credentials come from the standard AWS
variables, profiles, web identity or instance roles, never from a flag or this file. Every change takes effect
at the next start unless the table says "at once".

`)
	group := ""
	for _, p := range Params() {
		if g := p.Group(); g != group {
			group = g
			fmt.Fprintf(&b, "\n## %s\n\n| key | flag | environment | value | default | effect |\n|---|---|---|---|---|---|\n", group)
		}
		key, flag, env := code(p.Key), "", code(p.Variable())
		if p.FlagOnly {
			key = ""
		}
		if p.Flag != "" {
			flag = code("--" + p.Flag)
		}
		help := p.Help
		if p.Live {
			help += " (at once)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", key, flag, env, p.Kind, strings.ReplaceAll(p.Default, "*", `\*`), strings.ReplaceAll(help, "|", `\|`))
	}
	return b.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}
