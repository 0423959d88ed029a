package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
)

// This file has the verbs that ask a node for its volumes.

func volumeListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "The volumes of this machine's node",
		Long: "List the volumes that this machine's node was told to attach, with what it knows of each. BLOCKS are\n" +
			"those that the node answers for: in a ring each node answers for its own. USED is what all nodes\n" +
			"have written.",
		Example: "  hearth volume list\n  hearth volume list -o json",
		Args:    cli.Exactly(),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			all, err := n.Volumes(ctx)
			switch {
			case err != nil:
				return cli.HintUp(cli.Because(ctx, err))
			case c.Output == "json":
				return c.PrintJSON(cli.Out(cmd), all)
			case c.Output == "jsonl":
				return cli.PrintList(c, cli.Out(cmd), all)
			}
			return printVolumes(cli.Out(cmd), all)
		})
	}
	return cmd
}

// printVolumes prints a table, and below it why a volume is not in use or takes no writes.
func printVolumes(w io.Writer, all []status.Volume) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no volumes; volumes: in the configuration names some, hearth volume attach adds one")
		return err
	}
	t := cli.NewTable(w)
	fmt.Fprintln(t, "LABEL\tID\tSTATE\tSIZE\tUSED\tBLOCKS\tHITS\tDEVICE")
	for _, v := range all {
		id := v.ID
		if len(id) > 8 {
			id = id[:8]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", cli.QuoteText(cmp.Or(v.Label, "-")), cmp.Or(id, "-"), volumeState(&v), cli.Bytes(v.Size), cli.Bytes(v.Used), v.Blocks, v.Hits, cli.QuoteText(v.Address))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, v := range all {
		if why := cmp.Or(v.Away, v.Stopped); why != "" {
			if _, err := fmt.Fprintf(w, "%s: %s\n", cli.QuoteText(v.Address), cli.QuoteText(why)); err != nil {
				return err
			}
		}
	}
	return nil
}

// volumeState is one word.
func volumeState(v *status.Volume) string {
	switch {
	case v.Away != "":
		return "away"
	case v.Learned < v.Segments:
		return fmt.Sprintf("learning %d%%", 100*v.Learned/v.Segments)
	case v.Stopped != "":
		return "read-only"
	}
	return "in use"
}

func volumeAttachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "attach DEVICE", Short: "Have this machine's node use a volume until it ends",
		Long: "Attach a volume to the running node, and say why if that does not work. Each node of a ring attaches\n" +
			"it by itself. The next start does not know of it: volumes: in the configuration does.",
		Example: "  hearth volume attach /srv/volume\n" +
			"  hearth volume attach --secret-file /etc/hearth/v1.secret nvme+tcp://10.0.0.5/nqn.2014-08.org.example:v1",
		Args: cli.Exactly("DEVICE"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	d := addDevice(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := d.read(args[0]); err != nil {
			return err
		}
		v := config.Volume{URL: d.address.String(), SecretFile: fromHere(d.secret)}
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			x, err := n.Attach(ctx, v)
			if err != nil {
				return cli.HintUp(cli.Because(ctx, err))
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), x)
			}
			return printVolumes(cli.Out(cmd), []status.Volume{*x})
		})
	}
	return cmd
}

func volumeDetachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "detach DEVICE|LABEL|ID", Short: "Have this machine's node let go of a volume",
		Long: "Write what is queued for a volume, and let go of it. What it holds stays, for other nodes and for the\n" +
			"next time. A volume of the configuration is attached again at the next start.",
		Example: "  hearth volume detach /srv/volume\n  hearth volume detach v1",
		Args:    cli.Exactly("DEVICE|LABEL|ID"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			x, err := n.Detach(ctx, args[0])
			if admin.KindOf(err) == admin.KindNotFound { // perhaps a path from here
				if y, again := n.Detach(ctx, fromHere(args[0])); again == nil {
					x, err = y, nil
				}
			}
			if err != nil {
				return cli.HintUp(cli.Because(ctx, err))
			}
			if c.Output != "table" {
				return c.PrintJSON(cli.Out(cmd), x)
			}
			_, err = fmt.Fprintf(cli.Out(cmd), "%s is detached\n", cli.QuoteText(x.Address))
			return err
		})
	}
	return cmd
}
