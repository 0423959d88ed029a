package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/progress"
	"github.com/hearthfs/hearth/node"
)

func statusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "status", GroupID: "see",
		Short: "One screen about the node, and one line that says what is wrong",
		Long: "Show what the node is doing. The first line says what is wrong, or ok; the exit\n" +
			"code is 6 when something is, 5 when no node runs.",
		Example: "  hearth status\n  hearth status -o json",
		Args:    cli.Exactly(),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVar(&watch, "watch", false, "again every two seconds")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *node.Client) error {
			for {
				err := showStatus(ctx, c, cli.Out(cmd), n)
				if !watch || err != nil && cli.ExitCode(err) != cli.ExitUnhealthy {
					return cli.HintUp(cli.Because(ctx, err))
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(2 * time.Second):
				}
			}
		})
	}
	return cmd
}

func showStatus(ctx context.Context, c *cli.Common, w io.Writer, n *node.Client) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if c.Output == "table" {
		err = printStatus(w, s, c.Verbose)
	} else {
		err = c.PrintJSON(w, s)
	}
	if err == nil && len(s.Problems) > 0 {
		return &cli.ExitError{Code: cli.ExitUnhealthy}
	}
	return err
}

func printStatus(w io.Writer, s *node.Status, verbose bool) error {
	fmt.Fprintln(w, s.Says)
	for _, p := range s.Problems[min(1, len(s.Problems)):] {
		fmt.Fprintln(w, "also: "+p)
	}
	fmt.Fprintf(w, "hearth %s, process %d, up %s\n\n", s.Version, s.PID, time.Duration(s.UptimeS)*time.Second)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MOUNT\tPREFIX\tOPEN\tFRESHNESS\tKERNEL TIMEOUTS\tWHY")
	for _, m := range s.Mounts {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Dir, m.Prefix, m.Open, m.Freshness, m.Timeouts, m.Why)
	}
	t = cli.Section(w, t)
	fmt.Fprintln(t, "LINK\tORIGIN\tFRESHNESS\tREQUESTS\tBYTES")
	for _, l := range s.Links {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", l.Path, l.URL, l.Freshness, l.Origin.Requests, cli.Bytes(l.Origin.Bytes))
	}
	t = cli.Section(w, t)
	fmt.Fprintln(t, "TIER\tUSED\tBUDGET\tHITS\tHIT BYTES")
	for _, x := range s.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", x.Name, cli.Bytes(x.Used), cli.Bytes(x.Budget), x.Hits, cli.Bytes(x.HitBytes))
	}
	fmt.Fprintf(t, "origin\t\t\t%d\t%s\n", s.Origin.Requests, cli.Bytes(s.Origin.Bytes))
	if err := t.Flush(); err != nil {
		return err
	}
	for _, j := range s.Jobs {
		fmt.Fprintf(w, "\njob %s: %s\n", j.Job, progress.Line(j.What, &j.Progress))
	}
	for _, x := range s.Tiers {
		for _, d := range x.Dirs {
			fmt.Fprintf(w, "\nscrub of %s: %s\n", d.Path, d.Scrub.Says(cli.Bytes))
		}
	}
	if n := s.Names.Figures["refused"]; n > 0 {
		fmt.Fprintf(w, "\n%d keys have no name here and are not shown: the log names them, hearth ls counts them\n", n)
	}
	if !verbose {
		return nil
	}
	printDetails(w, s)
	return nil
}

// printDetails adds what -v shows: mounts, directories, memory, names.
func printDetails(w io.Writer, s *node.Status) {
	for _, m := range s.Mounts {
		for _, lack := range m.Lacks {
			fmt.Fprintf(w, "\n%s does without %s", m.Dir, lack)
		}
	}
	for _, x := range s.Tiers {
		for _, d := range x.Dirs {
			fmt.Fprintf(w, "\ndirectory %s on %s: %s of %s %s", d.Path, d.FileSystem, cli.Bytes(d.Used), cli.Bytes(d.Budget), d.Ill)
			if d.Note != "" {
				fmt.Fprint(w, "\n"+d.Note)
			}
		}
	}
	fmt.Fprintf(w, "\nmemory: %s of %s used, %d views; names: %s in %s; origin: %d errors, %d retries, %d throttled (%s)\n",
		cli.Bytes(s.Memory.Used), cli.Bytes(s.Memory.Budget), s.Memory.Views, cli.Counts(s.Names.Figures), s.Names.Where,
		s.Origin.Errors, s.Origin.Retries, s.Origin.Throttled, cli.Counts(s.Origin.Verbs))
	fmt.Fprintf(w, "this process may use %s of memory%s, its Go heap %s; %d threads run at once%s\n", cli.Bytes(s.Memory.Limit), by(s.Memory.LimitBy),
		cli.Bytes(s.Memory.Heap), s.Processors.Threads, by(s.Processors.LimitBy))
}

// by names the file that a limit was read in.
func by(file string) string {
	if file == "" {
		return ""
	}
	return " (" + file + ")"
}
