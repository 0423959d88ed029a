package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/machine"
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
		// A mount of another node, or of one that died: it is ours by its type.
		return unmountDirectly(dir, lazy)
	}
	return cmd
}

// ourType is what the mount table calls our mounts.
const ourType = "fuse.hearth"

// unmountDirectly takes away a mount of ours whose node is dead, or is not the
// one that was asked. lazy detaches it although it is in use.
func unmountDirectly(dir string, lazy bool) error {
	dir, err := machine.RealPath(dir)
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	switch kind, err := machine.MountedAt(dir); {
	case err != nil:
		return err
	case kind == "":
		return &cli.ExitError{Code: cli.ExitNotFound, Err: fmt.Errorf("nothing is mounted at %s", dir)}
	case kind != ourType:
		return &cli.ExitError{Code: cli.ExitRefused, Err: fmt.Errorf("%s is a mount of type %s, not ours", dir, kind)}
	}
	return machine.Unmount(dir, lazy || machine.Dead(dir)) // nobody can use a dead one any more
}

// umountAll takes away the mounts of the node, if one runs, and those that died
// with another. A node that was named must be there.
func umountAll(c *cli.Common, cmd *cobra.Command, n *node.Client, lazy bool) error {
	ctx, stop := c.Context(cmd.Context())
	defer stop()
	s, err := n.Status(ctx)
	if cli.ExitCode(err) == cli.ExitUnreachable && c.Node == "" {
		s, err = &node.Status{}, nil
	}
	if err != nil {
		return cli.HintUp(cli.Because(ctx, err))
	}
	var failed []error
	for _, m := range s.Mounts {
		if err := n.Unmount(ctx, m.Dir, lazy); err != nil {
			failed = append(failed, err)
		}
	}
	return umountDead(failed, len(s.Mounts))
}

// umountDead takes away the mounts whose process has died; failed are those of tried
// that could not be taken away before.
func umountDead(failed []error, tried int) error {
	dead, err := machine.DeadMounts(ourType)
	if err != nil {
		failed = append(failed, err)
	}
	for _, dir := range dead {
		if err := machine.Unmount(dir, true); err != nil {
			failed = append(failed, err)
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) < tried+len(dead):
		return &cli.ExitError{Code: cli.ExitPartly, Err: errors.Join(failed...)}
	}
	return errors.Join(failed...)
}
