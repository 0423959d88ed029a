package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/screen"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

func pinCommand() *cobra.Command {
	var lasts string
	f := &warmupFlags{enough: 1}
	cmd := &cobra.Command{
		Use: "pin [PATH|URL]...", GroupID: "data",
		Short: "Load paths and keep them in the disk cache, or list what is pinned",
		Long: "Load what lies at and below paths, as hearth warmup does, and keep it in the disk cache for some\n" +
			"time, whatever else is read. A pin follows its path: once the node knows of a new version, it loads\n" +
			"that. What does not fit beside what is pinned already is refused (exit code 8), and then nothing is\n" +
			"pinned. Pinning a pinned path again sets its end anew. Without a path: list the pins.",
		Example: "  hearth pin\n  hearth pin --for 2h /base-files",
		Args:    cobra.ArbitraryArgs,
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().StringVar(&lasts, "for", "24h", "how long, such as 2h (0: until hearth unpin)")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "print the id of the job that loads it and come back at once")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 0 {
			return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
				all, err := n.Pins(ctx)
				if err != nil {
					return cli.HintUp(cli.Because(ctx, err))
				}
				if c.Output != "table" {
					return cli.PrintList(c, cli.Out(cmd), all)
				}
				return screen.PrintPins(cli.Out(cmd), all)
			})
		}
		f.request.Targets = args
		if f.request.PinS, err = pinFor(lasts); err != nil {
			return cli.Usagef("--for: %w", err)
		}
		return f.begin(c, cmd)
	}
	return cmd
}

// pinFor reads how long a pin lasts, in seconds.
func pinFor(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || d < 0 || d > 0 && d < time.Second:
		return 0, fmt.Errorf("%q is not a time of a second or more, such as 24h, or 0", text)
	case d == 0:
		return warmup.Forever, nil
	}
	return int64(d / time.Second), nil
}

func unpinCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "unpin PATH|URL... | --all", GroupID: "data",
		Short:   "Let go of what is pinned",
		Long:    "End pins, by the paths that hearth pin lists. What they held stays in the cache until something else\nneeds the room (hearth evict drops it at once).",
		Example: "  hearth unpin /base-files\n  hearth unpin --all",
		Args:    cobra.ArbitraryArgs,
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVar(&all, "all", false, "every pin")
	cmd.ValidArgsFunction = fromNode(c, 0, pinnedPaths)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 0) != all {
			return cli.Usagef("name either paths or --all: hearth %s", cmd.Use)
		}
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			at := here(ctx, n)
			ended, err := n.Unpin(ctx, at.All(args))
			if err != nil {
				return cli.HintUp(cli.Because(ctx, at.Said(err)))
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), ended)
			}
			for _, path := range ended {
				c.Printer(cli.Out(cmd))("%s is not pinned any more", cli.QuoteFor(cli.Out(cmd), at.Typed(path)))
			}
			return nil
		})
	}
	return cmd
}

func evictCommand() *cobra.Command {
	var dry, yes bool
	cmd := &cobra.Command{
		Use: "evict PATH|URL...", GroupID: "data",
		Short: "Drop what the cache holds of paths",
		Long: "Drop what this node's memory and disk cache hold of what lies at and below paths, as far as their\n" +
			"names are known here; the bucket is not touched, and what the kernel keeps of open mounts stays. What\n" +
			"is pinned is refused (exit code 8). On a terminal it asks first.",
		Example: "  hearth evict --dry-run /base-files\n  hearth evict --yes /apt",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Exactly("PATH")(cmd, args)
			}
			return nil
		},
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be dropped, and drop nothing")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			at := here(ctx, n)
			paths := at.All(args)
			if !dry && !yes && cli.IsTerminal(os.Stdin) {
				t, err := n.Evict(ctx, paths, true)
				if err != nil {
					return cli.HintUp(cli.Because(ctx, at.Said(err)))
				}
				if !agreed(fmt.Sprintf("drop %s, %s, from the cache of this node?", cli.Count(t.Files, "file"), cli.Bytes(t.Bytes))) {
					return &cli.ExitError{Code: cli.ExitRefused, Err: errors.New("nothing was dropped")}
				}
			}
			t, err := n.Evict(ctx, paths, dry)
			if err != nil {
				return cli.HintUp(cli.Because(ctx, at.Said(err)))
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), t)
			}
			said := "dropped"
			if dry {
				said = "would drop"
			}
			c.Printer(cli.Out(cmd))("%s %s, %s", said, cli.Count(t.Files, "file"), cli.Bytes(t.Bytes))
			return nil
		})
	}
	return cmd
}

// agreed asks the user a yes-or-no question.
func agreed(question string) bool {
	fmt.Fprint(os.Stderr, question+" [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n') // the end of input means no
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
