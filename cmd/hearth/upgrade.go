package main

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

func upgradeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "upgrade [BINARY]", GroupID: "run",
		Short: "Have another version take the node's place, without an error for readers",
		Long: "Have BINARY, by default this one, take the place of the running node and of its keeper. Mounts\n" +
			"stay: readers wait for a moment. A version that could not read the cache is refused, and the node\n" +
			"goes on; so is an upgrade where a mount would end with the node, which has no cache disk. Before\n" +
			"Linux 6.9 the node first answers what readers have asked for: they wait for as long.",
		Example: "  hearth upgrade\n  hearth upgrade /usr/local/bin/hearth-0.3",
		Args:    cli.Between(0, "BINARY"),
	}
	c := cli.AddCommon(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := settings.Load(cmd)
		if err != nil {
			return err
		}
		program, err := os.Executable()
		if err == nil && len(args) > 0 {
			program, err = filepath.Abs(args[0])
		}
		if err != nil {
			return cli.Usagef("find the binary: %v", err)
		}
		n, err := dial(c, s)
		if err != nil {
			return err
		}
		defer n.Close()
		ctx, stop := c.Context(cmd.Context())
		defer stop()
		before, err := n.Status(ctx)
		if err != nil {
			return cli.HintUp(cli.Because(ctx, err))
		}
		err = n.Upgrade(ctx, program)
		after, ok := nextNode(ctx, n, before.PID, err)
		if !ok {
			return cli.Because(ctx, cmp.Or(err, ctx.Err()))
		}
		c.Printer(cli.Out(cmd))("hearth %s, process %d, has the place of %s: its mounts stood still for %.1fs", after.Version, after.PID, before.Version, after.Keeper.StalledS)
		return nil
	}
	return cmd
}

// nextNode waits until another process than pid answers. It does not wait after an error that the node has told; its answer
// may also be lost as it ends.
func nextNode(ctx context.Context, n *admin.Client, pid int, err error) (*status.Status, bool) {
	for {
		s, failed := n.Status(ctx)
		if failed == nil && s.PID != pid && s.Keeper != nil {
			return s, true
		}
		if failed == nil && err != nil {
			return nil, false
		}
		select {
		case <-ctx.Done():
			return nil, false
		case <-time.After(20 * time.Millisecond):
		}
	}
}
