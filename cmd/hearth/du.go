package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
)

func duCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "du [PATH|URL]", GroupID: "data",
		Short: "Sum up sizes below a path",
		Long: "Sum up the sizes of all files below a path, or of all objects whose keys begin with\n" +
			"that of a URL and a /, from one recursive listing. With volumes, also what of them\n" +
			"lies there, as far as this node answers for it.",
		Example: "  hearth du file:///usr/share/doc\n" +
			"  hearth du -o json file:///usr/share/doc",
		Args: cli.Between(0, "PATH"),
	}
	c := addData(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withNode(c, cmd, target(args), func(ctx context.Context, n *admin.Client, asked string) error {
			u, err := n.Usage(ctx, asked)
			if err != nil {
				return err
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), u)
			}
			u.Path = target(args) // as it was typed
			on := ""
			if u.VolumeBytes != nil {
				on = ", " + cli.Bytes(*u.VolumeBytes) + " on volumes"
			}
			_, err = fmt.Fprintf(cli.Out(cmd), "%s\t%s, %s%s\t%s\n", cli.Bytes(u.Bytes), cli.Count(u.Files, "file"), cli.Count(u.Dirs, "directory"), on, cli.QuoteFor(cli.Out(cmd), u.Path))
			warnHidden(u.Hidden)
			return err
		})
	}
	return cmd
}
