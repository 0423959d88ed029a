package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/screen"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

func draftsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drafts | drafts ls|publish|drop", GroupID: "data",
		Short: "Files that were written and are not in the bucket yet",
		Long: "List the files that were written through a writable mount (hearth mount --write through) and that\n" +
			"the bucket does not have as they are here: those that are being written (open), that are to be tried\n" +
			"again by the node itself (waiting), that are being sent (publishing), that were refused (failed), and\n" +
			"those whose records are damaged (set aside). They stay on this node's disk until the bucket has them\n" +
			"or somebody drops them.",
		Example: "  hearth drafts\n  hearth drafts -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, args)
			}
			return nil
		},
	}
	listsDrafts(cmd)
	cmd.AddCommand(draftsLsCommand(), draftsPublishCommand(), draftsDropCommand())
	return cmd
}

func draftsLsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List them, as hearth drafts does", Args: cli.Exactly(),
		Example: "  hearth drafts ls\n  hearth drafts ls -o jsonl"}
	listsDrafts(cmd)
	return cmd
}

// listsDrafts has a verb list all drafts.
func listsDrafts(cmd *cobra.Command) {
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			all, err := n.Drafts(ctx)
			if err != nil {
				return cli.HintUp(cli.Because(ctx, err))
			}
			if c.Output != "table" {
				return cli.PrintList(c, cli.Out(cmd), all)
			}
			return screen.PrintDrafts(cli.Out(cmd), all)
		})
	}
}

func draftsPublishCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "publish PATH|URL... | --all",
		Short: "Have the bucket get files now, and wait for it",
		Long: "Publish what was written at and below paths as it is now, and come back once the bucket has it; with\n" +
			"--all whatever nobody has open and has no temporary name. A directory that is not in the bucket goes as\n" +
			"a whole: a path in it is refused (exit code 8). An error says what is wrong and what cures it, and the\n" +
			"file stays on this node. The exit code is 3 when the bucket has some of several files.",
		Example: "  hearth drafts publish /checkpoints/last.pt\n  hearth drafts publish --all",
		Args:    cobra.ArbitraryArgs,
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVar(&all, "all", false, "every file that nobody has open")
	cmd.ValidArgsFunction = fromNode(c, 0, draftNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 0) != all {
			return cli.Usagef("name either paths or --all: hearth drafts %s", cmd.Use)
		}
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			at := here(ctx, n)
			results, err := n.PublishDrafts(ctx, at.All(args))
			if err != nil {
				return cli.HintUp(cli.Because(ctx, at.Said(err)))
			}
			var failed []error
			if c.Output != "table" {
				err = cli.PrintList(c, cli.Out(cmd), results)
			}
			if len(results) == 0 && c.Output == "table" {
				c.Printer(cli.Out(cmd))("nothing waits for the bucket")
			}
			for _, r := range results {
				switch {
				case r.Failed != nil:
					failed = append(failed, r.Failed)
				case c.Output == "table":
					c.Printer(cli.Out(cmd))("published %s, %s", cli.QuoteFor(cli.Out(cmd), at.Typed(r.Name)), cli.Bytes(r.Size))
				}
			}
			return errors.Join(err, partly(failed, len(results)))
		})
	}
	return cmd
}

// partly is the error of a verb that did something with all things but some.
func partly(failed []error, all int) error {
	switch len(failed) {
	case 0:
		return nil
	case all:
		return errors.Join(failed...)
	}
	return &cli.ExitError{Code: cli.ExitPartly, Err: errors.Join(failed...)}
}

func draftsDropCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "drop PATH|URL|FILE...",
		Short: "Delete files that the bucket has not got",
		Long: "Delete what was written at paths and is not in the bucket: it is lost. The bucket is not touched: where\n" +
			"it has an older file of that name, that one is seen again. A file that somebody has open, or that is\n" +
			"being sent, is refused (exit code 8). What was set aside is named by its FILE, as hearth drafts shows\n" +
			"it.",
		Example: "  hearth drafts drop /checkpoints/last.pt\n  hearth drafts drop --force /checkpoints/last.pt",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Exactly("PATH")(cmd, args)
			}
			return nil
		},
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVar(&force, "force", false, "even if it is open or being sent: who writes it then writes into nothing")
	cmd.ValidArgsFunction = fromNode(c, 0, draftNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			at := here(ctx, n)
			var failed []error
			dropped := []status.Draft{}
			for _, path := range at.All(args) {
				d, err := n.DropDraft(ctx, path, force)
				if err != nil {
					failed = append(failed, cli.HintUp(cli.Because(ctx, at.Said(err))))
					continue
				}
				dropped = append(dropped, *d)
				if c.Output == "table" {
					c.Printer(cli.Out(cmd))("dropped %s: %s are lost", cli.QuoteFor(cli.Out(cmd), at.Typed(path)), cli.Count(d.Size, "byte"))
				}
			}
			var err error
			if c.Output != "table" {
				err = cli.PrintList(c, cli.Out(cmd), dropped)
			}
			return errors.Join(err, partly(failed, len(args)))
		})
	}
	return cmd
}

// draftNames are the names by which hearth drafts shows what there is.
func draftNames(ctx context.Context, n *admin.Client) (names []string) {
	all, _ := n.Drafts(ctx) // a node that does not answer has none
	for _, d := range all {
		names = append(names, d.Name+"\t"+screen.DraftState(d.State))
	}
	return names
}
