package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
)

func statCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stat PATH|URL", GroupID: "data",
		Short: "Show what is known about a name; -v: version, blocks, tiers, age",
		Long:  "Show size and time of a name; with -v also its version, how long the kernel may\nkeep the answer, and how many of its blocks each tier holds.",
		Example: "  hearth stat file:///usr/lib/os-release\n" +
			"  hearth stat -v file:///usr/lib/os-release",
		Args: cli.Exactly("PATH"),
	}
	c := addData(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withNode(c, cmd, args[0], func(ctx context.Context, n *admin.Client, asked string) error {
			s, err := n.Stat(ctx, asked)
			if err != nil {
				return err
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), s)
			}
			s.Path = args[0] // as it was typed
			return printStat(cli.Out(cmd), s, c.Verbose)
		})
	}
	return cmd
}

func printStat(w io.Writer, s *admin.Stat, verbose bool) error {
	t := cli.NewTable(w)
	kind := "file"
	if s.Dir {
		kind = "directory"
	}
	fmt.Fprintf(t, "path\t%s\nkind\t%s\n", cli.QuoteName(s.Path), kind)
	if !s.Dir {
		fmt.Fprintf(t, "size\t%d (%s)\n", s.Size, cli.Bytes(s.Size))
	}
	fmt.Fprintf(t, "modified\t%s\n", cli.Stamp(s.ModTime))
	if verbose {
		fmt.Fprintf(t, "link\t%s\nkey\t%s\ninode\t%d\nkernel keeps\t%s\n", cli.QuoteText(s.Link), cli.QuoteName(s.Key), s.Inode,
			time.Duration(s.TTLMS)*time.Millisecond)
		if !s.Dir {
			fmt.Fprintf(t, "version\t%s\netag\t%s\ncacheable\t%v\nblocks\t%d\n", s.Version, cli.QuoteText(s.ETag), s.Cacheable, s.Blocks)
		}
		if len(s.Held) > 0 {
			fmt.Fprintf(t, "held\t%s\n", cli.Counts(s.Held))
		}
	}
	return t.Flush()
}
