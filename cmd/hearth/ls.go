package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/node"
)

func lsCommand() *cobra.Command {
	var long, recursive bool
	cmd := &cobra.Command{
		Use: "ls [PATH|URL]", GroupID: "data",
		Short: "List names through the cache, no mount needed",
		Long: "List the names below a PATH of the running node's tree, or below a URL; for a URL\n" +
			"no node needs to run.",
		Example: "  hearth ls file:///usr/share/doc\n" +
			"  hearth ls -l --anonymous --region us-east-1 s3://noaa-ghcn-pds/",
		Args: between(0, "PATH"),
	}
	c := addData(cmd)
	addOutput(cmd, c)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "size and time too")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "everything below")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withNode(cmd, target(args), func(ctx context.Context, n *node.Client) error {
			p := &entryPrinter{common: c, long: long, out: out(cmd)}
			err := n.List(ctx, target(args), recursive, p.print)
			return errors.Join(err, p.flush())
		})
	}
	return cmd
}

// target is the path asked for; without one the tree's root.
func target(args []string) string {
	if len(args) == 0 {
		return "/"
	}
	return args[0]
}

// addData gives cmd the flags of the verbs that read the tree.
func addData(cmd *cobra.Command) *common {
	c := addCommon(cmd)
	addParams(cmd, "origin")
	return c
}

// withNode runs do with whoever answers for target.
func (c *common) withNode(cmd *cobra.Command, target string, do func(context.Context, *node.Client) error) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	ctx, stop := c.context(cmd.Context())
	defer stop()
	n, done, err := c.reach(ctx, cmd, target)
	if err != nil {
		return because(ctx, err)
	}
	defer done()
	return hintUp(because(ctx, do(ctx, n)))
}

// because is the reason that a context was ended, which says more than the
// error that followed from it.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// entryPrinter writes a listing line by line as it comes; columns are aligned
// within a batch, so that a listing of any length starts at once.
type entryPrinter struct {
	*common
	long bool
	out  io.Writer
	tab  *tabwriter.Writer
	n    int
	all  []node.Entry
}

// batchLines is how many lines share the width of their columns.
const batchLines = 256

func (p *entryPrinter) print(e node.Entry) error {
	name := e.Path
	if e.Dir {
		name += "/"
	}
	switch {
	case p.output == "jsonl":
		return p.printJSON(p.out, e)
	case p.output == "json":
		p.all = append(p.all, e)
		return nil
	case !p.long:
		_, err := fmt.Fprintln(p.out, name)
		return err
	}
	if p.tab == nil {
		p.tab = tabwriter.NewWriter(p.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	}
	size := "-"
	if !e.Dir {
		size = strconv.FormatInt(e.Size, 10)
	}
	fmt.Fprintf(p.tab, "%s\t  %s\t  %s\n", size, stamp(e.ModTime), name)
	if p.n++; p.n%batchLines == 0 {
		return p.tab.Flush()
	}
	return nil
}

func (p *entryPrinter) flush() error {
	if p.tab != nil {
		return p.tab.Flush()
	}
	if p.output == "json" {
		if p.all == nil {
			p.all = []node.Entry{}
		}
		return p.printJSON(p.out, p.all)
	}
	return nil
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}
