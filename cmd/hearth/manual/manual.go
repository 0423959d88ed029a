// Package manual makes the manual pages from the commands and the table of parameters, so that they
// cannot contradict each other.
//
// A page is roff with the man macros. Text is escaped: backslashes, hyphens that are part of an
// option, and a dot or quote that begins a line.
package manual

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Key is one row of the table of parameters, as text.
type Key struct{ Name, Flag, Variable, Kind, Default, Help string }

// Command is the page hearth(1): every verb with its options, the common options once for all, and
// the exit codes.
func Command(root *cobra.Command, common *pflag.FlagSet, codes []string) string {
	var p page
	p.head("HEARTH", 1, "hearth", strings.ToLower(root.Short[:1])+root.Short[1:])
	p.section("SYNOPSIS", ".B hearth\n.I COMMAND\n[OPTIONS] [ARGUMENTS]\n.br\n.B mount.hearth\n.I ORIGIN DIR\n[-o OPTIONS]")
	p.section("DESCRIPTION", escape(root.Long)+"\n.PP\nAs mount.hearth it is the helper of mount(8) for lines of fstab(5).")
	p.section("COMMANDS", "")
	for _, c := range root.Commands() {
		p.command(c, common)
	}
	p.section("COMMON OPTIONS", "")
	p.options(common, func(*pflag.Flag) bool { return true })
	p.section("EXIT STATUS", "")
	for _, line := range codes {
		code, meaning, _ := strings.Cut(line, " ")
		fmt.Fprintf(&p, ".TP\n.B %s\n%s\n", code, escape(meaning))
	}
	p.section("FILES", ".TP\n/etc/hearth/hearth.yaml\nthe configuration, see hearth.yaml(5)\n"+
		".TP\n/var/cache/hearth\nthe cache of root's node, unless configured otherwise\n"+
		".TP\n/run/hearth/hearth.sock\nwhere root's node answers commands")
	p.section("SEE ALSO", ".BR hearth.yaml (5),\n.BR mount (8),\n.BR fstab (5),\n.BR fusermount3 (1)")
	return p.String()
}

// command writes a verb, and the verbs below it.
func (p *page) command(c *cobra.Command, common *pflag.FlagSet) {
	if c.Hidden {
		return
	}
	fmt.Fprintf(p, ".SS %s %s\n", escape(c.Parent().CommandPath()), escape(c.Use))
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	p.text(text)
	p.options(c.Flags(), func(f *pflag.Flag) bool { return common.Lookup(f.Name) == nil && f.Name != "help" })
	fmt.Fprintf(p, ".PP\nExamples:\n.PP\n.EX\n%s\n.EE\n", escape(c.Example))
	for _, below := range c.Commands() {
		p.command(below, common)
	}
}

// Configuration is the page hearth.yaml(5): every key that the file may hold.
func Configuration(keys []Key) string {
	var p page
	p.head("HEARTH.YAML", 5, "hearth.yaml", "configuration of hearth")
	p.section("SYNOPSIS", "/etc/hearth/hearth.yaml")
	p.section("DESCRIPTION", "")
	p.text("A flag goes before the environment, the environment before the file, the file before the default.\n" +
		"The file is strict: a key that is not on this page is refused with its line. Two lines are enough:")
	p.WriteString(".PP\n.EX\n" + escape("origin: s3://bucket/prefix\ncache: {ram: 20%, disks: [{path: /nvme0/hearth, size: 80%}]}") + "\n.EE\n.PP\n")
	p.text("Sizes read 512MiB, 1.5TB or 20%; percentages of memory are of the smaller of the machine's and the\n" +
		"cgroup's, those of a directory are of its file system. Durations read 60s or 24h. Credentials come from the\n" +
		"standard AWS variables, profiles, web identity or instance roles, never from this file.")
	p.section("KEYS", "")
	for _, k := range keys {
		fmt.Fprintf(&p, ".TP\n.B %s\n%s\n", escape(k.Name), escape(k.Help+" ("+k.Kind+"; default: "+k.Default+")"))
		if k.Flag != "" {
			fmt.Fprintf(&p, ".br\n%s", escape("--"+k.Flag))
			if k.Variable != "" {
				p.WriteString(", " + escape(k.Variable))
			}
			p.WriteString("\n")
		}
	}
	p.section("SEE ALSO", ".BR hearth (1)")
	return p.String()
}

type page struct{ strings.Builder }

func (p *page) head(title string, section int, name, does string) {
	fmt.Fprintf(p, ".TH %s %d \"\" Hearth \"Hearth manual\"\n.SH NAME\n%s \\- %s\n", title, section, name, escape(does))
}

func (p *page) section(name, body string) {
	fmt.Fprintf(p, ".SH %s\n", name)
	if body != "" {
		p.WriteString(body + "\n")
	}
}

// text writes prose. An empty line begins a paragraph.
func (p *page) text(s string) {
	p.WriteString(strings.ReplaceAll(escape(s), "\n\n", "\n.PP\n") + "\n")
}

func (p *page) options(flags *pflag.FlagSet, shown func(*pflag.Flag) bool) {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && shown(f) {
			names = append(names, f.Name)
		}
	})
	slices.Sort(names)
	for _, name := range names {
		f := flags.Lookup(name)
		short := ""
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		kind, help := pflag.UnquoteUsage(f)
		fmt.Fprintf(p, ".TP\n.B %s\n%s\n", strings.TrimSpace(escape(short+"--"+name+" "+kind)), escape(help))
	}
}

func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
