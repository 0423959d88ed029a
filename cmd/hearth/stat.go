package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/quote"
	"github.com/hearthfs/hearth/node"
)

func statCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stat PATH|URL", GroupID: "data",
		Short: "Show what is known about a name; -v: version, blocks, tiers, age",
		Long:  "Show size and time of a name; with -v also its version, how long the kernel may\nkeep the answer, and how many of its blocks each tier holds.",
		Example: "  hearth stat file:///usr/lib/os-release\n" +
			"  hearth stat -v file:///usr/lib/os-release",
		Args: exactly("PATH"),
	}
	c := addData(cmd)
	addOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withNode(cmd, args[0], func(ctx context.Context, n *node.Client) error {
			s, err := n.Stat(ctx, args[0])
			if err != nil {
				return err
			}
			if c.output != "table" {
				return c.printJSON(out(cmd), s)
			}
			return printStat(out(cmd), s, c.verbose)
		})
	}
	return cmd
}

func printStat(w io.Writer, s *node.Stat, verbose bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	kind := "file"
	if s.Dir {
		kind = "directory"
	}
	fmt.Fprintf(t, "path\t%s\nkind\t%s\n", quote.Name(s.Path), kind)
	if !s.Dir {
		fmt.Fprintf(t, "size\t%d (%s)\n", s.Size, formatBytes(s.Size))
	}
	fmt.Fprintf(t, "modified\t%s\n", stamp(s.ModTime))
	if verbose {
		fmt.Fprintf(t, "link\t%s\nkey\t%s\ninode\t%d\nkernel keeps\t%s\n", s.Link, quote.Name(s.Key), s.Inode,
			time.Duration(s.TTLMS)*time.Millisecond)
		if !s.Dir {
			fmt.Fprintf(t, "version\t%s\netag\t%s\ncacheable\t%v\nblocks\t%d\n", s.Version, s.ETag, s.Cacheable, s.Blocks)
		}
		if len(s.Held) > 0 {
			fmt.Fprintf(t, "held\t%s\n", counts(s.Held))
		}
	}
	return t.Flush()
}

// counts prints a map in the order of its names.
func counts(m map[string]int64) string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, m[name])
	}
	return strings.Join(names, ", ")
}
