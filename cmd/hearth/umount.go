package main

import (
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/status"
)

func umountCommand() *cobra.Command {
	var lazy, all, dead bool
	cmd := &cobra.Command{
		Use: "umount DIR | --all | --dead", GroupID: "run",
		Short: "Take a mount away",
		Long: "Take the mount at DIR away, or all mounts of the node and those of this user whose\n" +
			"process has died, or with --dead the latter alone. No node needs to run.",
		Example: "  hearth umount /mnt\n  hearth umount --all --lazy",
	}
	c := cli.AddCommon(cmd)
	cmd.ValidArgsFunction = fromNode(c, 1, mountPoints)
	cmd.Flags().BoolVar(&lazy, "lazy", false, "detach it now, although it is in use")
	cmd.Flags().BoolVar(&all, "all", false, "every mount of the node, and every one that died with its node")
	cmd.Flags().BoolVar(&dead, "dead", false, "every mount that died with its node, and no other")
	cmd.MarkFlagsMutuallyExclusive("all", "dead")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if all || dead {
			return cli.Between(0)(cmd, args)
		}
		return cli.Exactly("DIR")(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dead {
			return umountDead(nil, 0)
		}
		s, err := settings.Load(cmd)
		if err != nil {
			return err
		}
		n, err := dial(c, s)
		if err != nil {
			return err
		}
		defer n.Close()
		if all {
			return umountAll(c, cmd, n, lazy)
		}
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return cli.Usagef("%s: %v", args[0], err)
		}
		ctx, stop := c.Context(cmd.Context())
		defer stop()
		err = n.Unmount(ctx, dir, lazy)
		if code := cli.ExitCode(err); code != cli.ExitUnreachable && code != cli.ExitNotFound {
			return cli.Because(ctx, err)
		}
		// The mount belongs to another node or to a dead one. By its type it is ours.
		return machine.Unmount(dir, ourType, lazy)
	}
	return cmd
}

// ourType is what the mount table calls our mounts.
const ourType = "fuse.hearth"

// umountAll takes away the mounts of the node, if one runs, and those of dead nodes. A node that
// --node names must run.
func umountAll(c *cli.Common, cmd *cobra.Command, n *admin.Client, lazy bool) error {
	ctx, stop := c.Context(cmd.Context())
	defer stop()
	s, err := n.Status(ctx)
	if cli.ExitCode(err) == cli.ExitUnreachable && c.Node == "" {
		s, err = &status.Status{}, nil
	}
	if err != nil {
		return cli.HintUp(cli.Because(ctx, err))
	}
	var failed []error
	tried := 0
	for _, m := range s.Mounts {
		if m.Detached || m.At != "" {
			continue // nothing of this node is mounted there
		}
		tried++
		if err := n.Unmount(ctx, m.Dir, lazy); err != nil {
			failed = append(failed, err)
		}
	}
	return umountDead(failed, tried)
}

// umountDead takes away the mounts whose process has died. failed are the errors of the tried
// mounts that other code could not take away before.
func umountDead(failed []error, tried int) error {
	found, more := machine.UnmountDead(ourType)
	failed = append(failed, more...)
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) < tried+found:
		return &cli.ExitError{Code: cli.ExitPartly, Err: errors.Join(failed...)}
	}
	return errors.Join(failed...)
}
