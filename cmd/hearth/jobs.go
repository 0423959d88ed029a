package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/screen"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

func jobsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "jobs [ID] | jobs wait|cancel|retry ID", GroupID: "see",
		Short: "Warm-ups of the node: those at work, and the last that ended",
		Long: "List the node's warm-ups, the latest first, or show one. hearth jobs wait ID follows one until it\n" +
			"is over and ends as hearth warmup does, cancel ends one (what it loaded stays), retry begins one\n" +
			"that is over again (what is present costs nothing). ID may be latest: the one that began last. Dry runs load nothing, and stand below the others.",
		Example: "  hearth jobs\n  hearth jobs -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && nearestVerb(cmd, args[0]) != "" { // it is no ID
				return unknownVerb(cmd, args)
			}
			return cli.Between(0, "ID")(cmd, args)
		},
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.ValidArgsFunction = fromNode(c, 1, jobIDs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withJobs(c, cmd, func(ctx context.Context, n *admin.Jobs) error {
			if len(args) == 0 {
				return listJobs(ctx, c, cmd, n)
			}
			id, err := jobID(ctx, n, args[0])
			if err != nil {
				return err
			}
			v, err := n.Get(ctx, id)
			if err != nil {
				return err
			}
			return showJob(c, cmd, v)
		})
	}
	cmd.AddCommand(
		jobCommand("wait ID", "Follow a warm-up until it is over", func(ctx context.Context, w *waiter, id string) error {
			v, err := w.wait(ctx, id)
			if err != nil {
				return err
			}
			return w.result(ctx, v)
		}),
		jobCommand("cancel ID", "End a warm-up; what it loaded stays", func(ctx context.Context, w *waiter, id string) error {
			return w.said(w.jobs.Cancel(ctx, id), id, "is cancelled")
		}),
		jobCommand("retry ID", "Begin a warm-up that is over again", func(ctx context.Context, w *waiter, id string) error {
			return w.said(w.jobs.Retry(ctx, id), id, "begins again; hearth jobs wait "+id+" follows it")
		}))
	return cmd
}

// said prints what was done with a job, or returns the error.
func (w *waiter) said(err error, id, what string) error {
	if err != nil {
		return err
	}
	if w.c.Output != "table" {
		return w.c.PrintJSON(cli.Out(w.cmd), map[string]string{"job": id})
	}
	if !w.c.Quiet {
		_, err = fmt.Fprintf(cli.Out(w.cmd), "the job %s %s\n", id, what)
	}
	return err
}

// jobID returns the ID that a name means. latest is the job that began last, dry runs left out.
func jobID(ctx context.Context, n *admin.Jobs, name string) (string, error) {
	if name != "latest" {
		return name, nil
	}
	all, err := n.List(ctx)
	if err != nil {
		return "", err
	}
	all = slices.DeleteFunc(all, func(v warmup.View) bool { return v.DryRun })
	if len(all) == 0 {
		return "", &cli.ExitError{Code: cli.ExitNotFound, Err: errors.New("there is no job yet: begin one with hearth warmup PATH")}
	}
	return all[0].ID, nil
}

// jobCommand is a verb that does something with one job.
func jobCommand(use, short string, do func(ctx context.Context, w *waiter, id string) error) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{Use: use, Short: short, Args: cli.Exactly("ID"),
		Example: "  hearth jobs " + verb + " latest\n  hearth jobs " + verb + " latest -o json"}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.ValidArgsFunction = fromNode(c, 1, jobIDs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withJobs(c, cmd, func(ctx context.Context, n *admin.Jobs) error {
			id, err := jobID(ctx, n, args[0])
			if err != nil {
				return err
			}
			return do(ctx, &waiter{c: c, cmd: cmd, jobs: n, enough: 1}, id)
		})
	}
	return cmd
}

func listJobs(ctx context.Context, c *cli.Common, cmd *cobra.Command, n *admin.Jobs) error {
	all, err := n.List(ctx)
	if err != nil {
		return err
	}
	out := cli.Out(cmd)
	switch c.Output {
	case "json":
		return c.PrintJSON(out, all)
	case "jsonl":
		for _, v := range all {
			if err := c.PrintJSON(out, v); err != nil {
				return err
			}
		}
		return nil
	}
	t := cli.NewTable(out)
	fmt.Fprintln(t, "ID\tSTATE\tFILES\tBYTES\tERRORS\tBEGAN\tWHAT")
	var dry []warmup.View
	for _, v := range all {
		if v.DryRun {
			dry = append(dry, v)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%s\t%s\n", v.ID, v.Phase, v.FilesDone, cli.Bytes(v.BytesDone), v.Errors, cli.Stamp(v.Created), cli.QuoteFor(out, v.What()))
	}
	if len(dry) > 0 {
		fmt.Fprintln(t, "\nDRY RUN\tSTATE\tFILES\tBYTES\tBEGAN\tWHAT")
	}
	for _, v := range dry {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", v.ID, v.Phase, v.Plan.Total.Files, cli.Bytes(v.Plan.Total.Bytes), cli.Stamp(v.Created),
			cli.QuoteFor(out, strings.TrimPrefix(v.What(), "dry run ")))
	}
	return t.Flush()
}

func showJob(c *cli.Common, cmd *cobra.Command, v *warmup.View) error {
	out := cli.Out(cmd)
	if c.Output != "table" {
		return c.PrintJSON(out, v)
	}
	text := bufio.NewWriter(out)
	fmt.Fprintf(text, "job      %s: %s\nbegan    %s, worked %v\n", v.ID, cli.QuoteFor(out, v.What()), cli.Stamp(v.Created), screen.JobTook(v))
	if v.Plan.Counted {
		fmt.Fprintf(text, "found    %s, %s\n", cli.Count(v.Plan.Total.Files, "file"), cli.Bytes(v.Plan.Total.Bytes))
	}
	if !v.State.Over() {
		fmt.Fprintf(text, "now      %s\n", screen.ProgressLine(v.What(), &v.Progress))
		return text.Flush()
	}
	if v.Error != "" {
		fmt.Fprintf(text, "error    %s\n", cli.QuoteText(v.Error))
	}
	if err := text.Flush(); err != nil {
		return err
	}
	return printOutcome(out, v)
}
