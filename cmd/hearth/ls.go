package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
)

func lsCommand() *cobra.Command {
	var long, recursive, zero bool
	cmd := &cobra.Command{
		Use: "ls [PATH|URL]", GroupID: "data",
		Short: "List names through the cache, no mount needed",
		Long: "List the names below a PATH of the running node's tree, or the keys below a URL; for\n" +
			"a URL no node needs to run. What follows the bucket is a key, byte for byte, and so\n" +
			"are the names that are listed; one that ends in / is a prefix. On a terminal names\n" +
			"with characters that it cannot show are quoted for the shell.\n\n" +
			"A PATH is a path below a mount, also one that is relative to the current directory\n" +
			"there, or one of the tree, which begins with a link's path (hearth status names\n" +
			"them). A PATH that does not begin so is taken within the link that was there first,\n" +
			"and goes on meaning that when other origins are mounted beside it; of a node that\n" +
			"was configured with several links it names nothing.",
		Example: "  hearth ls file:///usr/share/doc\n" +
			"  hearth ls -l --anonymous --region us-east-1 s3://noaa-ghcn-pds/",
		Args: cli.Between(0, "PATH"),
	}
	c := addData(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "size and time too")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "everything below")
	cmd.Flags().BoolVarP(&zero, "zero", "0", false, "end each line with a NUL, and quote nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withNode(c, cmd, target(args), func(ctx context.Context, n *admin.Client, asked string) error {
			p := &entryPrinter{Common: c, long: long, out: cli.Out(cmd), end: "\n"}
			if zero {
				p.end = "\x00"
			}
			hidden, err := n.List(ctx, asked, recursive, p.print)
			err = errors.Join(err, p.flush())
			if err == nil {
				warnHidden(hidden)
			}
			return err
		})
	}
	return cmd
}

// warnHidden warns that a listing does not show all that the origin has.
func warnHidden(n int64) {
	if n > 0 {
		fmt.Fprintf(os.Stderr, "hearth: %s below without a name here, not shown (not UTF-8, over 1,024 bytes, garbled by the server's "+
			"listing, or no regular file); the node's log names them\n", cli.Count(n, "key"))
	}
}

// target is the path of the arguments, or the tree's root.
func target(args []string) string {
	if len(args) == 0 {
		return "/"
	}
	return args[0]
}

// entryPrinter writes a listing line by line as it comes. Columns are aligned within a batch, so
// that a listing of any length starts at once.
type entryPrinter struct {
	*cli.Common
	long bool
	out  io.Writer
	end  string // of a line: a newline, or a NUL before names that may hold one
	rows []row  // of a long listing, not written yet
	all  []admin.Entry
}

type row struct{ size, time, name string }

// batchRows is how many lines share the width of their columns.
const batchRows = 256

func (p *entryPrinter) print(e admin.Entry) error {
	switch {
	case p.Output == "jsonl":
		return p.PrintJSON(p.out, e)
	case p.Output == "json":
		p.all = append(p.all, e)
		return nil
	}
	name := e.Path
	if e.Dir {
		name += "/"
	}
	if p.end == "\n" {
		name = cli.QuoteFor(p.out, name)
	}
	if !p.long {
		_, err := io.WriteString(p.out, name+p.end)
		return err
	}
	size := "-"
	if !e.Dir {
		size = strconv.FormatInt(e.Size, 10)
	}
	if p.rows = append(p.rows, row{size, cli.Stamp(e.ModTime), name}); len(p.rows) < batchRows {
		return nil
	}
	return p.flush()
}

func (p *entryPrinter) flush() error {
	if p.Output == "json" {
		if p.all == nil {
			p.all = []admin.Entry{}
		}
		return p.PrintJSON(p.out, p.all)
	}
	size, time := 0, 0
	for _, r := range p.rows {
		size, time = max(size, len(r.size)), max(time, len(r.time))
	}
	for _, r := range p.rows { // by hand: a name may hold whatever ends a column
		if _, err := fmt.Fprintf(p.out, "%*s  %*s  %s%s", size, r.size, time, r.time, r.name, p.end); err != nil {
			return err
		}
	}
	p.rows = p.rows[:0]
	return nil
}
