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

// completesWithin is how long a shell waits for words at most.
const completesWithin = time.Second

// fromNode completes each argument but those that stand already, at most so many (0: any), from what the node that runs has;
// one that does not answer has none. A word may have a description behind a tab.
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
		}) // no words are none
		return fit, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// jobIDs are the node's jobs, the latest first.
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

// mountPoints are those of the node, and those of this machine whose node has died or is another.
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

// pinnedPaths are what hearth unpin may be given, by the shortest names.
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
