package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain PATH[@OFFSET]", GroupID: "see",
		Short: "Say where a file's bytes are, and what a read of it would do now",
		Long: "Ask the running node what it has of a file: which tier holds which bytes, the version, how long the\n" +
			"name may still be believed, whether each mount's kernel would be lent the file, and what a read at\n" +
			"OFFSET (0, or a size such as 4KiB) would do: memory, disk, or a GET of how many bytes; in a ring also\n" +
			"which node has what is not here. Nothing is read for it; only a name that is not known at all is asked for. Of a name that ends in @ and a\n" +
			"number, write the offset too: name@1@0.",
		Example: "  hearth explain /base-files/copyright\n" +
			"  hearth explain -o json /base-files/copyright@4KiB",
		Args: cli.Exactly("PATH"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			path, offset := atOffset(args[0])
			at := here(ctx, n)
			e, err := n.Explain(ctx, at.Absolute(path), offset)
			if err != nil {
				return cli.HintUp(cli.Because(ctx, at.Said(err)))
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), e)
			}
			e.Path = path // as it was typed
			return printExplanation(cli.Out(cmd), e)
		})
	}
	return cmd
}

// atOffset splits PATH@OFFSET. The offset is 0 if the argument has none.
func atOffset(arg string) (path string, offset int64) {
	if i := strings.LastIndexByte(arg, '@'); i > 0 {
		if n, err := settings.ParseBytes(arg[i+1:]); err == nil {
			return arg[:i], n
		}
	}
	return arg, 0
}

func printExplanation(w io.Writer, e *status.Explanation) error {
	t := cli.NewTable(w)
	fmt.Fprintf(t, "path\t%s\n", cli.QuoteName(e.Path))
	if !e.Dir {
		fmt.Fprintf(t, "object\t%s of %s (link %s), %s (%d bytes)\nversion\t%s, ETag %s\n", cli.QuoteName(e.Key), cli.QuoteName(e.Origin), cli.QuoteText(e.Link),
			cli.Bytes(e.Size), e.Size, e.Version, cli.QuoteText(e.ETag))
	}
	fmt.Fprintf(t, "name\t%s: %s\n", e.Name.Freshness, cli.QuoteText(e.Name.Says))
	for i, h := range e.Held {
		label := ""
		if i == 0 {
			label = "held"
		}
		fmt.Fprintf(t, "%s\t%d-%d\t%s\n", label, h.From, h.To, where(h))
	}
	for _, m := range e.Mounts {
		lent := "not lent"
		if m.Lent {
			lent = "lent"
		}
		fmt.Fprintf(t, "kernel\t%s: %s: %s\n", cli.QuoteName(m.Dir), lent, cli.QuoteText(m.Why))
	}
	if e.Read != nil {
		if len(e.Read.Owners) > 0 {
			fmt.Fprintf(t, "owners\t%s\n", cli.QuoteText(strings.Join(e.Read.Owners, ", ")))
		}
		fmt.Fprintf(t, "a read at %d\t%s\n", e.Read.Offset, cli.QuoteText(e.Read.Says))
	}
	return t.Flush()
}

// where names the tiers that hold a range.
func where(h status.HeldRange) string {
	var all []string
	if h.RAM {
		all = append(all, "ram")
	}
	switch {
	case h.Unread:
		all = append(all, fmt.Sprintf("perhaps disk %s (%s): its index is not read yet", h.Disk, h.Kind))
	case h.Disk != "":
		all = append(all, fmt.Sprintf("disk %s (%s)", h.Disk, h.Kind))
	}
	if h.Volume != "" {
		all = append(all, "volume "+h.Volume)
	}
	if h.Peer != "" {
		all = append(all, "not here; node "+cli.QuoteText(h.Peer)+" has it on disk")
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}
