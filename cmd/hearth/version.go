package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", GroupID: "admin",
		Short:   "Print the version of this binary",
		Example: "  hearth version\n  hearth version -o json",
		Args:    exactly(),
	}
	c := addCommon(cmd)
	addOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		if c.output != "table" {
			return c.printJSON(out(cmd), map[string]string{"version": version(), "commit": commit(), "go": runtime.Version()})
		}
		return printVersion(out(cmd))
	}
	return cmd
}

func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "hearth %s (commit %s, %s)\n", version(), commit(), runtime.Version())
	return err
}

// commit is what this binary was built from, where the go command knew it.
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
		Short:   "Print the completion script of a shell",
		Example: "  hearth completion bash\n  hearth completion zsh",
		Args:    exactly("SHELL"), ValidArgs: []string{"bash", "zsh", "fish"},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch args[0] {
		case "bash":
			return cmd.Root().GenBashCompletionV2(out(cmd), true)
		case "zsh":
			return cmd.Root().GenZshCompletion(out(cmd))
		case "fish":
			return cmd.Root().GenFishCompletion(out(cmd), true)
		}
		return usagef("%q is not one of bash, zsh, fish", args[0])
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
