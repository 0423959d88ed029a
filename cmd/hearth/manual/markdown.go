package manual

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Markdown is docs/cli.md: the content of Command, as a page with a heading for each verb.
func Markdown(root *cobra.Command, common *pflag.FlagSet, codes []string) string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"This page is made from the commands (go test ./cmd/hearth -run Manual -update); hearth(1) says the same.\n" +
		"[configuration.md](configuration.md) has the keys of the file and the variables that stand for flags.\n\n")
	b.WriteString("| | |\n|---|---|\n")
	for _, c := range root.Commands() {
		if !c.Hidden {
			fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), cell(c.Short))
		}
	}
	for _, c := range root.Commands() {
		section(&b, c, common)
	}
	b.WriteString("\n## Common options\n\nEvery command has these; one that prints no tables has no `--output`.\n\n")
	optionTable(&b, common, func(*pflag.Flag) bool { return true })
	b.WriteString("\n## Exit codes\n\n| code | meaning |\n|--:|---|\n")
	for _, line := range codes {
		code, meaning, _ := strings.Cut(line, " ")
		fmt.Fprintf(&b, "| %s | %s |\n", code, meaning)
	}
	return b.String()
}

// section writes a verb, and the verbs below it.
func section(b *strings.Builder, c *cobra.Command, common *pflag.FlagSet) {
	if c.Hidden {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n```\n%s %s\n```\n\n", c.CommandPath(), c.Parent().CommandPath(), c.Use)
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	b.WriteString(prose(text) + "\n\n")
	optionTable(b, c.Flags(), func(f *pflag.Flag) bool { return common.Lookup(f.Name) == nil && f.Name != "help" })
	b.WriteString("```sh\n")
	for line := range strings.Lines(c.Example) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	b.WriteString("```\n")
	for _, below := range c.Commands() {
		section(b, below, common)
	}
}

// optionTable writes a row for each option that is shown. Without options there is no table.
func optionTable(b *strings.Builder, flags *pflag.FlagSet, shown func(*pflag.Flag) bool) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || !shown(f) {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, help := pflag.UnquoteUsage(f)
		rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", strings.TrimSpace(name+" "+kind), cell(help)))
	})
	if len(rows) == 0 {
		return
	}
	slices.SortFunc(rows, func(a, b string) int { return strings.Compare(long(a), long(b)) })
	b.WriteString("| option | effect |\n|---|---|\n" + strings.Join(rows, "") + "\n")
}

// long is a row from its option's long name on.
func long(row string) string { return row[strings.Index(row, "--"):] }

// cell escapes text for a table.
func cell(s string) string { return strings.ReplaceAll(prose(s), "|", `\|`) }

// prose escapes text, so that nothing in it is markup.
func prose(s string) string {
	return strings.NewReplacer("<", "&lt;", "*", `\*`, "[", `\[`).Replace(s)
}
