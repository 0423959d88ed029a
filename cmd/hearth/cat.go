package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/admin"
)

func catCommand() *cobra.Command {
	var byteRange string
	cmd := &cobra.Command{
		Use: "cat PATH|URL...", GroupID: "data",
		Short: "Write files to standard output, through the cache",
		Long: "Write files, or a range of bytes of each, to standard output. What follows the bucket\n" +
			"in a URL is a key, byte for byte: no name of a mount, and nothing is decoded.",
		Example: "  hearth cat file:///usr/lib/os-release\n" +
			"  hearth cat --range 0-15 file:///usr/lib/os-release",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("PATH is missing: hearth %s", cmd.Use)
			}
			return nil
		},
	}
	c := addData(cmd)
	cmd.Flags().StringVar(&byteRange, "range", "", "bytes FIRST-LAST, counted from 0; FIRST- to the end, -N the last N")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := parseRange(byteRange)
		if err != nil {
			return err
		}
		for _, path := range args {
			err := withNode(c, cmd, path, func(ctx context.Context, n *admin.Client, asked string) error {
				off, length, err := r.of(ctx, n, asked)
				if err != nil {
					return err
				}
				return n.Cat(ctx, asked, off, length, cli.Out(cmd))
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// span is a range of bytes as in an HTTP Range header. -1 means that a bound is not given.
type span struct{ first, last int64 }

func parseRange(s string) (span, error) {
	if s == "" {
		return span{0, -1}, nil
	}
	a, b, ok := strings.Cut(s, "-")
	r := span{-1, -1}
	var err error
	if a != "" {
		r.first, err = strconv.ParseInt(a, 10, 64)
	}
	if err == nil && b != "" {
		r.last, err = strconv.ParseInt(b, 10, 64)
	}
	if err != nil || !ok || r == (span{-1, -1}) || r.first < 0 && r.last < 0 || r.last >= 0 && r.first > r.last {
		return r, cli.Usagef("--range: %q is not FIRST-LAST, FIRST- or -N", s)
	}
	return r, nil
}

// of returns the offset and the length of the range; a length of -1 means up to the end. The last N
// bytes need the file's size.
func (r span) of(ctx context.Context, n *admin.Client, path string) (off, length int64, err error) {
	switch {
	case r.first < 0:
		s, err := n.Stat(ctx, path)
		if err != nil {
			return 0, 0, err
		}
		return max(0, s.Size-r.last), -1, nil
	case r.last < 0:
		return r.first, -1, nil
	}
	return r.first, r.last - r.first + 1, nil
}
