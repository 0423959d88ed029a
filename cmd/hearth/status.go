package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/screen"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

func statusCommand() *cobra.Command {
	var watch time.Duration
	cmd := &cobra.Command{
		Use: "status", GroupID: "see",
		Short: "One screen about the node, and one line that says what is wrong",
		Long: "Show what the node is doing: hits now, in the last ten minutes and since the start,\n" +
			"where bytes came from, what readers waited for, how the origins answer, mounts and\n" +
			"jobs. The first line says what is wrong and what to do, or ok. The exit code is 6 when\n" +
			"the node is not well, 5 when no node runs; a warning - an origin that throttles, a\n" +
			"warm-up that did not get all, a slow disk - leaves it at 0. On a terminal what does\n" +
			"not fit is cut.",
		Example: "  hearth status\n  hearth status -o json",
		Args:    cli.Exactly(),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().DurationVar(&watch, "watch", 0, "again and again, with this pause: in place on a terminal, else one below the other")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch < 0 || cmd.Flags().Changed("watch") && watch < minWatch {
			return cli.Usagef("--watch: %v is less than %v", watch, minWatch)
		}
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			for first := true; ; first = false {
				err := showStatus(ctx, c, frame{cli.Out(cmd), watch > 0, first}, n)
				if watch == 0 || err != nil && cli.ExitCode(err) != cli.ExitUnhealthy {
					return cli.HintUp(cli.Because(ctx, err))
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(watch):
				}
			}
		})
	}
	cli.Separate(cmd, nil, "watch")
	return cmd
}

// minWatch is the shortest pause of --watch, since a node is there for its readers.
const minWatch = 100 * time.Millisecond

func showStatus(ctx context.Context, c *cli.Common, f frame, n *admin.Client) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if c.Output == "table" {
		err = f.show(s, c)
	} else {
		err = c.PrintJSON(f.out, s)
	}
	if err == nil && len(s.Problems) > 0 {
		return &cli.ExitError{Code: cli.ExitUnhealthy}
	}
	return err
}

// frame is where one status is shown: by itself, or in place of the last one.
type frame struct {
	out          io.Writer
	again, first bool
}

func (f frame) show(s *status.Status, c *cli.Common) error {
	tty := cli.IsTerminal(f.out)
	o := screen.Options{Verbose: c.Verbose, Color: tty && !c.NoColor && os.Getenv("NO_COLOR") == ""}
	if tty {
		o.Width, o.Height = cli.TerminalSize(f.out)
	}
	if !f.again || !tty {
		if !f.first {
			if _, err := fmt.Fprintln(f.out); err != nil {
				return err
			}
		}
		return screen.Print(f.out, s, o)
	}
	begin := "\x1b[H"
	if f.first {
		begin = "\x1b[2J" + begin
	}
	_, err := fmt.Fprint(f.out, begin+strings.Join(screen.Lines(s, o), "\x1b[K\n")+"\x1b[K\n\x1b[J")
	return err
}
