package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/screen"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/peer/secret"
)

func ringCommand() *cobra.Command {
	ls := ringListCommand("ring [ls|owners|key]")
	ls.GroupID = "admin"
	ls.Example = "  hearth ring\n  hearth ring -o json"
	list := ls.RunE
	ls.Args = cobra.ArbitraryArgs
	ls.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownVerb(cmd, args)
		}
		return list(cmd, args)
	}
	ls.AddCommand(ringListCommand("ls"), ringOwnersCommand(), ringKeyCommand())
	for _, name := range []string{"cordon", "drain", "leave", "plan"} {
		ls.AddCommand(laterCommand(name))
	}
	return ls
}

func ringListCommand(use string) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: "The nodes of the ring: what each gives, holds and serves",
		Long: "List the nodes of the ring as this machine's node sees them; it asks each for its own figures. Of a\n" +
			"node: what it gives to the cache and uses of that, its share of all blocks, the part of its readers'\n" +
			"bytes that no origin was asked for, the bytes that its peers got of it, and who thinks it not alive.\n" +
			"Those that died within a day are listed as missing. With -o jsonl a line for each node. Exit code 8:\n" +
			"the node is in no ring.",
		Example: "  hearth ring ls\n  hearth ring ls -o json",
		Args:    cli.Exactly(),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			r, err := n.Ring(ctx)
			switch {
			case err != nil:
				return cli.HintUp(cli.Because(ctx, err))
			case c.Output == "json":
				return c.PrintJSON(cli.Out(cmd), r)
			case c.Output == "jsonl":
				return cli.PrintList(c, cli.Out(cmd), r.Members)
			}
			return screen.PrintRing(cli.Out(cmd), r)
		})
	}
	return cmd
}

func ringOwnersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "owners PATH...", Short: "Which nodes the parts of files belong to",
		Long: "Say which nodes own each part of 16 MiB of files, the owner first, then those that take over where\n" +
			"it is silent or gone. A small file has one part. Nothing is read for it. Exit code 3: some of the\n" +
			"paths were not found, 4: none was.",
		Example: "  hearth ring owners /base-files/copyright\n  hearth ring owners -o json /base-files/copyright",
		Args: func(cmd *cobra.Command, args []string) error {
			return cli.Between(1, "PATH")(cmd, args[:min(1, len(args))])
		},
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
			return cli.HintUp(cli.Because(ctx, printOwners(ctx, c, ownersOf{n, cli.Out(cmd)}, args)))
		})
	}
	return cmd
}

// ownersOf is the node that is asked for owners, and where they are written.
type ownersOf struct {
	node *admin.Client
	out  io.Writer
}

func printOwners(ctx context.Context, c *cli.Common, o ownersOf, paths []string) (last error) {
	all, place := []status.Owned{}, here(ctx, o.node)
	for _, p := range paths {
		owned, err := o.node.Owners(ctx, place.Absolute(p))
		err = place.Said(err)
		if cli.ExitCode(err) == cli.ExitNotFound && len(paths) > 1 {
			fmt.Fprintln(os.Stderr, "hearth: "+cli.QuoteText(err.Error()))
			last = &cli.ExitError{Code: cli.ExitNotFound}
			continue
		}
		if err != nil {
			return err
		}
		owned.Path = place.Typed(owned.Path)
		all = append(all, *owned)
	}
	if last != nil && len(all) > 0 {
		last = &cli.ExitError{Code: cli.ExitPartly}
	}
	if c.Output == "table" {
		return errors.Join(screen.PrintOwners(o.out, all), last)
	}
	return errors.Join(cli.PrintList(c, o.out, all), last)
}

func ringKeyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "Print a new random cluster key",
		Long: "Print a new key of 32 random bytes, a line of hex. Who has it is a node of the cluster: write it into\n" +
			"a file that its owner alone may read, bring that to each machine as secrets are brought there, and\n" +
			"name it in the configuration, cluster: {key_file: FILE}, or give its text as HEARTH_CLUSTER_KEY.\n" +
			"Nothing keeps it; another call prints another key.",
		Example: "  hearth ring key\n  hearth ring key | install -v -m 600 /dev/stdin $HOME/hearth.key",
		Args:    cli.Exactly(),
	}
	cli.AddCommon(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := io.WriteString(cli.Out(cmd), secret.Generate())
		return err
	}
	return cmd
}
