package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/machine"
)

// completesWithin is the longest that a shell waits for words.
const completesWithin = time.Second

// fromNode completes arguments with words from the running node, except words that the line has
// already. It completes the first most arguments; 0 means any number. A node that does not answer
// has no words. A word may have a description behind a tab.
func fromNode(c *cli.Common, most int, words func(context.Context, *admin.Client) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (fit []string, _ cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		quiet := *c
		quiet.Quiet, quiet.Timeout, quiet.Output = true, completesWithin, "table"
		_ = askNode(&quiet, cmd, func(ctx context.Context, n *admin.Client) error {
			for _, w := range words(ctx, n) {
				word, _, _ := strings.Cut(w, "\t")
				if strings.HasPrefix(word, begun) && !slices.Contains(args, word) && !strings.Contains(word, "\n") {
					fit = append(fit, w)
				}
			}
			return nil
		}) // an error means no words
		return fit, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// jobIDs are the IDs of the node's jobs, the latest first.
func jobIDs(ctx context.Context, n *admin.Client) []string {
	all, _ := n.Jobs().List(ctx) // a node that does not answer has none
	var words []string
	if len(all) > 0 {
		words = append(words, "latest\tthe job that began last")
	}
	for _, v := range all {
		words = append(words, v.ID+"\t"+v.Phase+", "+v.What())
	}
	return words
}

// mountPoints are those of the node, then those of this machine whose node is dead or another one.
func mountPoints(ctx context.Context, n *admin.Client) (dirs []string) {
	if s, err := n.Status(ctx); err == nil {
		for _, m := range s.Mounts {
			dirs = append(dirs, m.Dir)
		}
	}
	for _, dir := range machine.Mounted(ourType) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// pinnedPaths are the paths that hearth unpin takes, each by its shortest name.
func pinnedPaths(ctx context.Context, n *admin.Client) (paths []string) {
	all, _ := n.Pins(ctx) // a node that does not answer has none
	for _, v := range all {
		paths = append(paths, v.Path)
		if v.As != "" {
			paths[len(paths)-1] = v.As
		}
	}
	return paths
}
