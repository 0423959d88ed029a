package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
)

func refreshCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "refresh PATH|URL...", GroupID: "data",
		Short: "Ask the origin again for names, now",
		Long: "Have the node ask its origin again for what paths name, whatever it believes of them: for a file, or a\n" +
			"name that was not there, and of a directory for its listing and for those below it that the node knows.\n" +
			"Mounts see what changed when the command returns, those of immutable links too; bytes are read when\n" +
			"somebody reads them. Exit code 4: a name is not there.",
		Example: "  hearth refresh /base-files\n  hearth refresh -o json /base-files/copyright",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Exactly("PATH")(cmd, args)
			}
			return nil
		},
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			at, all, out := here(ctx, n), []*admin.Refreshed{}, cli.Out(cmd)
			for _, path := range args {
				r, err := n.Refresh(ctx, at.Absolute(path))
				if err != nil {
					return cli.HintUp(cli.Because(ctx, at.Said(err)))
				}
				all = append(all, r)
				what := cli.Count(r.Names, "name")
				if r.Dir {
					what = cli.Count(r.Listed, "directory") + " listed, " + what
				}
				if c.Output == "table" {
					c.Printer(out)("%s: asked for again: %s", cli.QuoteFor(out, path), what)
				}
			}
			if c.Output == "table" {
				return nil
			}
			return cli.PrintList(c, out, all)
		})
	}
	return cmd
}
