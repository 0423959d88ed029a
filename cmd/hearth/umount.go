package main

import (
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/node"
)

func umountCommand() *cobra.Command {
	var lazy, all bool
	cmd := &cobra.Command{
		Use: "umount DIR | --all", GroupID: "run",
		Short: "Take a mount away",
		Long: "Take the mount at DIR away, or all mounts of the node. A mount whose node is dead is\n" +
			"taken away too.",
		Example: "  hearth umount /mnt\n  hearth umount --all --lazy",
	}
	c := addCommon(cmd)
	cmd.Flags().BoolVar(&lazy, "lazy", false, "detach it now, although it is in use")
	cmd.Flags().BoolVar(&all, "all", false, "every mount of the node")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if all {
			return between(0)(cmd, args)
		}
		return exactly("DIR")(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := load(cmd)
		if err != nil {
			return err
		}
		n, err := c.client(s)
		if err != nil {
			return err
		}
		defer n.Close()
		if all {
			return c.umountAll(cmd, n, lazy)
		}
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return usagef("%s: %v", args[0], err)
		}
		ctx, stop := c.context(cmd.Context())
		defer stop()
		err = n.Unmount(ctx, dir, lazy)
		if code := exitCode(err); code != exitUnreachable && code != exitNotFound {
			return because(ctx, err)
		}
		// A mount of another node, or of one that died: it is ours by its type.
		return node.UnmountDirectly(dir, lazy)
	}
	return cmd
}

func (c *common) umountAll(cmd *cobra.Command, n *node.Client, lazy bool) error {
	ctx, stop := c.context(cmd.Context())
	defer stop()
	s, err := n.Status(ctx)
	if err != nil {
		return hintUp(because(ctx, err))
	}
	var failed []error
	for _, m := range s.Mounts {
		if err := n.Unmount(ctx, m.Dir, lazy); err != nil {
			failed = append(failed, err)
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) < len(s.Mounts):
		return &exitError{exitPartly, errors.Join(failed...)}
	}
	return errors.Join(failed...)
}
