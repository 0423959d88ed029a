package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node"
)

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", GroupID: "admin",
		Short:   "Print the version of this binary",
		Example: "  hearth version\n  hearth version -o json",
		Args:    cli.Exactly(),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		if c.Output != "table" {
			return c.PrintJSON(cli.Out(cmd), map[string]any{"version": version(), "commit": commit(), "go": runtime.Version(), "formats": node.Formats()})
		}
		return printVersion(cli.Out(cmd))
	}
	return cmd
}

func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "hearth %s (commit %s, %s)\n", version(), commit(), runtime.Version())
	return err
}

// commit is the commit that this binary was built from, if the go command knew it.
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

func completionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "completion bash|zsh|fish", GroupID: "admin",
		Short: "Print the completion script of a shell",
		Long: "Print the script that makes a shell complete verbs, flags, their words, and keys of the\n" +
			"configuration. For this session: source <(hearth completion bash), which needs the package\n" +
			"bash-completion; for all: into /etc/bash_completion.d, a directory of zsh's fpath as _hearth,\n" +
			"or fish's completions as hearth.fish.",
		Example: "  hearth completion bash\n  hearth completion zsh",
		Args:    cli.Exactly("SHELL"), ValidArgs: []string{"bash", "zsh", "fish"},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch args[0] {
		case "bash":
			return cmd.Root().GenBashCompletionV2(cli.Out(cmd), true)
		case "zsh":
			return cmd.Root().GenZshCompletion(cli.Out(cmd))
		case "fish":
			return cmd.Root().GenFishCompletion(cli.Out(cmd), true)
		}
		return cli.Usagef("%q is not one of bash, zsh, fish", args[0])
	}
	return cmd
}

func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", GroupID: "admin",
		Short:   "Print the help of a command",
		Example: "  hearth help\n  hearth help mount",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, _, err := root.Find(args)
			if err != nil || cmd.Hidden || (cmd == root && len(args) > 0) {
				return unknownVerb(root, args)
			}
			return cmd.Help()
		},
	}
}
