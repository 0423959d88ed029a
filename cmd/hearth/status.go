package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

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
		Args:    exactly(),
	}
	c := addCommon(cmd)
	addOutput(cmd, c)
	cmd.Flags().BoolVar(&watch, "watch", false, "again every two seconds")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		s, err := load(cmd)
		if err != nil {
			return err
		}
		n, err := c.client(s)
		if err != nil {
			return err
		}
		defer n.Close()
		ctx, stop := c.context(cmd.Context())
		defer stop()
		for {
			err := c.showStatus(ctx, out(cmd), n)
			if !watch || err != nil && exitCode(err) != exitUnhealthy {
				return hintUp(because(ctx, err))
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(2 * time.Second):
			}
		}
	}
	return cmd
}

func (c *common) showStatus(ctx context.Context, w io.Writer, n *node.Client) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if c.output == "table" {
		err = printStatus(w, s, c.verbose)
	} else {
		err = c.printJSON(w, s)
	}
	if err == nil && len(s.Problems) > 0 {
		return &exitError{code: exitUnhealthy}
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
	t = section(w, t)
	fmt.Fprintln(t, "LINK\tORIGIN\tFRESHNESS\tREQUESTS\tBYTES")
	for _, l := range s.Links {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", l.Path, l.URL, l.Freshness, l.Origin.Requests, formatBytes(l.Origin.Bytes))
	}
	t = section(w, t)
	fmt.Fprintln(t, "TIER\tUSED\tBUDGET\tHITS\tHIT BYTES")
	for _, x := range s.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", x.Name, formatBytes(x.Used), formatBytes(x.Budget), x.Hits, formatBytes(x.HitBytes))
	}
	fmt.Fprintf(t, "origin\t\t\t%d\t%s\n", s.Origin.Requests, formatBytes(s.Origin.Bytes))
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range s.Tiers {
		for _, d := range x.Dirs {
			fmt.Fprintf(w, "\nscrub of %s: %s\n", d.Path, d.Scrub.Says(formatBytes))
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
			fmt.Fprintf(w, "\ndirectory %s on %s: %s of %s %s", d.Path, d.FileSystem, formatBytes(d.Used), formatBytes(d.Budget), d.Ill)
			if d.Note != "" {
				fmt.Fprint(w, "\n"+d.Note)
			}
		}
	}
	fmt.Fprintf(w, "\nmemory: %s of %s used, %d views; names: %s in %s; origin: %d errors, %d retries, %d throttled (%s)\n",
		formatBytes(s.Memory.Used), formatBytes(s.Memory.Budget), s.Memory.Views, counts(s.Names.Figures), s.Names.Where,
		s.Origin.Errors, s.Origin.Retries, s.Origin.Throttled, counts(s.Origin.Verbs))
	fmt.Fprintf(w, "this process may use %s of memory%s, its Go heap %s; %d threads run at once%s\n", formatBytes(s.Memory.Limit), by(s.Memory.LimitBy),
		formatBytes(s.Memory.Heap), s.Processors.Threads, by(s.Processors.LimitBy))
}

// by names the file that a limit was read in.
func by(file string) string {
	if file == "" {
		return ""
	}
	return " (" + file + ")"
}

// section ends a table and begins the next with widths of its own.
func section(w io.Writer, t *tabwriter.Writer) *tabwriter.Writer {
	_ = t.Flush() // the last one's error is reported
	fmt.Fprintln(w)
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
}
