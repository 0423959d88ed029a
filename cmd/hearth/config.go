package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/machine"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", GroupID: "admin",
		Short:   "Show, explain, check and begin a configuration",
		Long:    "Work with what a node is told: by flags, by variables of the environment, by a file.\nNone of these verbs needs a running node, or changes one.",
		Example: "  hearth config show\n  hearth config explain cache.ram",
		Args:    cobra.ArbitraryArgs,
		RunE:    unknownVerb,
	}
	cmd.AddCommand(configShowCommand(), configExplainCommand(), configValidateCommand(), configInitCommand())
	return cmd
}

func configShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Every key with its value in force and where that comes from",
		Long: "Show what a node that is started now, with these flags, would be told: each key with its\n" +
			"value and the flag, variable, or line of the file that it comes from; else the default. A\n" +
			"node that runs has what it was started with. Secrets are never among the keys, and are\n" +
			"taken out of URLs.",
		Example: "  hearth config show\n  hearth config show --cache-ram 256MiB -o json",
		Args:    cli.Exactly(),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	settings.AddFlags(cmd, settings.Groups()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		s, err := settings.Load(cmd)
		if err != nil {
			return err
		}
		values, w := s.Values(onThisMachine()), cli.Out(cmd)
		if c.Output != "table" {
			return cli.PrintList(c, w, values)
		}
		t := cli.NewTable(w)
		fmt.Fprintln(t, "KEY\tSOURCE\tVALUE")
		for _, v := range values {
			from := string(v.Source)
			if v.Where != "" {
				from = v.Where
			}
			fmt.Fprintf(t, "%s\t%s\t%s\n", v.Key, from, v.Value)
		}
		return t.Flush()
	}
	return cmd
}

// onThisMachine returns the values of the defaults that depend on the machine and the user.
func onThisMachine() map[string]string {
	here := map[string]string{"admin.socket": admin.DefaultSocket()}
	if dir, err := machine.CacheDir(); err == nil {
		here["cache.disks"] = dir
	}
	if ram, err := machine.RAM(node.Size{}, machine.ReadLimits("/")); err == nil {
		here["cache.ram"] = machine.SizeText(ram)
	}
	return here
}

func configExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain KEY",
		Short: "What a key means, how it is written, and what it is without",
		Long: "Explain a key of the configuration, or all that begin with KEY: its type and unit, its\n" +
			"default, its flag and variable, whether a change needs a restart, and an example. The name\n" +
			"of a flag or a variable will do as well.",
		Example: "  hearth config explain cache.ram\n  hearth config explain -o json links",
		Args:    cli.Exactly("KEY"),
		ValidArgsFunction: cobra.CompletionFunc(func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return cli.Words(settings.Keys()...)(cmd, args, begun)
		}),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		all, err := settings.Explain(args[0])
		if err != nil {
			return err
		}
		if c.Output != "table" {
			return cli.PrintList(c, cli.Out(cmd), all)
		}
		out := bufio.NewWriter(cli.Out(cmd))
		for i, e := range all {
			if i > 0 {
				fmt.Fprintln(out)
			}
			if err := printExplained(out, e); err != nil {
				return err
			}
		}
		return out.Flush()
	}
	return cmd
}

func printExplained(w io.Writer, e settings.Explained) error {
	t := cli.NewTable(w)
	restart := "needed for a change"
	if !e.Restart {
		restart = "not needed"
	}
	fmt.Fprintf(t, "%s: %s\n", e.Key, e.Help)
	for _, line := range [][2]string{{"type", e.Type}, {"unit", e.Unit}, {"default", e.Default}, {"flag", e.Flag},
		{"environment", e.Environment}, {"restart", restart}, {"example", e.Example}} {
		if line[1] != "" {
			fmt.Fprintf(t, "  %s\t%s\n", line[0], line[1])
		}
	}
	return t.Flush()
}

func configValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a configuration file: every error, with its line",
		Long: "Check a file, by default the one that a node would read, as strictly as a node does, and\n" +
			"go on behind each error. Files of keys are read, and nothing else is opened or asked: whether\n" +
			"the origin answers and the disks can be written shows when a node starts. Exit code 2:\n" +
			"something is wrong.",
		Example: "  hearth config init file:///usr/share/doc | hearth config validate /dev/stdin\n" +
			"  hearth config init | hearth config validate -o json /dev/stdin",
		Args: cli.Between(0, "FILE"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		file, _ := settings.File(cmd)
		if len(args) > 0 {
			file = args[0]
		}
		v, err := validate(file)
		if err != nil {
			return err
		}
		return printVerdict(c, cli.Out(cmd), v)
	}
	return cmd
}

// verdict is what `config validate` says of a file.
type verdict struct {
	File     string             `json:"file"`
	Valid    bool               `json:"valid"`
	Says     string             `json:"says,omitempty"` // what was understood
	Problems []settings.Problem `json:"problems"`
}

// validate checks a file line by line, and then whether its values fit together.
func validate(file string) (*verdict, error) {
	s, problems, err := settings.Check(file)
	if err != nil {
		return nil, err
	}
	v := &verdict{File: file, Problems: append([]settings.Problem{}, problems...)}
	c, _ := nodeConfig(s, "") // its error is the first of the problems below
	for _, p := range c.Problems() {
		line := s.Line(inFile(s, p.Key))
		if strings.HasSuffix(p.Key, "].url") && slices.ContainsFunc(problems, func(x settings.Problem) bool { return x.Line == line }) {
			continue // it has no url, since that has a wrong name
		}
		v.Problems = append(v.Problems, settings.Problem{Line: line, Message: p.Err.Error()})
	}
	slices.SortStableFunc(v.Problems, func(a, b settings.Problem) int { return a.Line - b.Line })
	if v.Valid = len(v.Problems) == 0; v.Valid {
		v.Says = s.Summary()
	}
	return v, nil
}

// inFile turns a key of node.Config.Problems into the file's key. There the link that `origin`
// makes comes first, so the file's own links are one further.
func inFile(s *settings.Settings, key string) string {
	var i int
	if n, _ := fmt.Sscanf(key, "links[%d]", &i); n == 0 || len(s.Tree("")) == len(s.Links) {
		return key
	}
	if _, rest, _ := strings.Cut(key, "]"); i > 0 {
		return fmt.Sprintf("links[%d]%s", i-1, rest)
	}
	return "origin"
}

func printVerdict(c *cli.Common, w io.Writer, v *verdict) error {
	wrong := &cli.ExitError{Code: cli.ExitUsage}
	if c.Output != "table" {
		err := c.PrintJSON(w, v)
		if err == nil && !v.Valid {
			return wrong
		}
		return err
	}
	if v.Valid {
		_, err := fmt.Fprintf(w, "%s is valid: %s\n", v.File, v.Says)
		return err
	}
	for _, p := range v.Problems {
		fmt.Fprintln(os.Stderr, "hearth: "+p.In(v.File))
	}
	return wrong
}

func configInitCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "init [ORIGIN]",
		Short: "Print a first configuration for this machine",
		Long: "Print a small configuration with comments: the two lines that a node needs, then what is\n" +
			"often added. Disks are those that are found here, memory is what this process may use.",
		Example: "  hearth config init\n  hearth config init s3://bucket/prefix",
		Args:    cli.Between(0, "ORIGIN"),
	}
	c := cli.AddCommon(cmd)
	cmd.Flags().StringVar(&file, "write", "", "write it to this `FILE`, which must not exist, instead")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		origin := "s3://bucket/prefix"
		if len(args) > 0 {
			origin = args[0]
		}
		found, err := settings.LookAround()
		if err != nil {
			return err
		}
		if err := (&node.Config{Links: []node.Link{{Origin: node.Origin{URL: origin}}}}).Validate(); err != nil {
			return err
		}
		text := found.Text(origin)
		if file == "" {
			_, err := io.WriteString(cli.Out(cmd), text)
			return err
		}
		if err := settings.WriteFirst(file, text); errors.Is(err, fs.ErrExist) {
			return &cli.ExitError{Code: cli.ExitRefused, Err: fmt.Errorf("%s exists and is not overwritten: take it away, or write elsewhere", file)}
		} else if err != nil {
			return err
		}
		c.Printer(cli.Out(cmd))("wrote %s; hearth config validate %s checks it once you have changed it", file, file)
		return nil
	}
	return cmd
}
