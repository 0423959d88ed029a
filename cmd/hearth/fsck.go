package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/node/machine"
)

func fsckCommand() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use: "fsck [DIR...]", GroupID: "check",
		Short: "Read the whole cache from the disk and compare its checksums",
		Long: "Check cache directories, those of the configuration unless named: read every block from the\n" +
			"disk and print a line for each thing that is not as it should be. A directory in use is checked\n" +
			"by its node. --repair drops what is bad; it is fetched again. Exit code 1: something bad is left.",
		Example: "  hearth fsck /var/cache/hearth\n  hearth fsck --repair -o json /var/cache/hearth",
		Args:    cobra.ArbitraryArgs,
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	cmd.Flags().BoolVar(&repair, "repair", false, "drop what is bad, remove what was left over")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		s, err := settings.Load(cmd)
		if err != nil {
			return err
		}
		dirs, err := checkedDirs(s, args)
		if err != nil {
			return err
		}
		ctx, stop := c.Context(cmd.Context())
		defer stop()
		w := cli.Out(cmd)
		p := &fsck.Printer{Out: w, Form: c.Output, Size: cli.Bytes, Name: func(text string) string { return cli.QuoteFor(w, text) }}
		if !c.Quiet && cli.IsTerminal(os.Stderr) {
			p.Terminal = os.Stderr
		}
		f := &fsckRun{Common: c, settings: s, print: p, repair: repair}
		for _, dir := range dirs {
			if err := f.check(ctx, dir); err != nil {
				p.Clear()
				return cli.Because(ctx, err)
			}
		}
		return f.result()
	}
	return cmd
}

// checkedDirs are the directories of the arguments, otherwise those of the configuration.
func checkedDirs(s *settings.Settings, args []string) (dirs []string, err error) {
	for _, d := range s.Cache.Disks {
		if len(args) == 0 {
			dirs = append(dirs, d.Path)
		}
	}
	if dirs = append(dirs, args...); len(dirs) > 0 {
		return dirs, nil
	}
	dir, err := machine.CacheDir()
	return []string{dir}, err
}

// fsckRun is one run of the verb.
type fsckRun struct {
	*cli.Common
	settings *settings.Settings
	print    *fsck.Printer
	repair   bool
}

// check checks a directory by itself if it gets the lock, otherwise through the node that holds the
// lock.
func (f *fsckRun) check(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	err = fsck.Watch(f.repair, func(r *check.Run) error { return fsck.Stopped(ctx, dir, r) }, f.print.Tell)
	if !errors.Is(err, disk.ErrInUse) {
		if errors.Is(err, disk.ErrRefused) {
			err = &cli.ExitError{Code: cli.ExitRefused, Err: err}
		}
		return err
	}
	n, dialErr := dial(f.Common, f.settings)
	if dialErr != nil {
		return dialErr
	}
	defer n.Close()
	asked := n.Fsck(ctx, dir, f.repair, f.print.Tell)
	if cli.ExitCode(asked) == cli.ExitUnreachable {
		asked = &cli.ExitError{Code: cli.ExitRefused, Err: fmt.Errorf("%w; or name its node with --node (%w)", err, asked)}
	}
	return asked
}

// result prints the sum and returns the exit code as an error.
func (f *fsckRun) result() error {
	sum, err := f.print.End()
	switch {
	case err != nil:
		return err
	case sum.Bad > sum.Repaired:
		return &cli.ExitError{Code: cli.ExitFailed}
	case sum.Refused > 0:
		return &cli.ExitError{Code: cli.ExitRefused}
	}
	return nil
}
