package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/demo"
)

func demoCommand() *cobra.Command {
	o := demo.Options{Out: os.Stdout}
	var c *cli.Common
	cmd := &cobra.Command{
		Use: "demo", GroupID: "run",
		Short: "Show the main job on data of its own: no account, no cluster",
		Long: "Start a real S3 server, make pictures and large files and upload them, mount the bucket\n" +
			"by three nodes that make a ring, have their readers share a cold and a warm epoch in random\n" +
			"order, and kill one node in the midst of a third: the next one serves its mount, and no reader\n" +
			"gets an error. In the end write a checkpoint through a mount, rename it, and have another node\n" +
			"read it. Every byte is compared with what was made. About a minute. Exits 0 only if all is\n" +
			"right. Before Linux 6.9 the other nodes go on instead. --origin reads a bucket of your own, and\n" +
			"writes nothing.",
		Example: "  hearth demo\n" +
			"  hearth demo --nodes 1 --images 500 --large 1",
		Args: cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Hearth = self
			ctx, stop := c.Context(cmd.Context())
			defer stop()
			err = cli.Because(ctx, demo.Run(ctx, o))
			if errors.Is(err, demo.ErrNothing) {
				return cli.Usagef("%v", err)
			}
			return err
		},
	}
	c = cli.AddCommon(cmd)
	cmd.Flags().StringVar(&o.Origin, "origin", "", "a bucket of your own, s3://BUCKET/PREFIX, read only")
	cmd.Flags().StringVar(&o.Dir, "dir", "", "where data and cache lie (default: a temporary directory, removed at the end)")
	cmd.Flags().IntVar(&o.Images, "images", 3000, "how many small pictures")
	cmd.Flags().IntVar(&o.Large, "large", 4, "how many files of 64 MiB")
	cmd.Flags().IntVar(&o.Nodes, "nodes", 3, "how many nodes share the reading, each in a process of its own")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave everything running at the end, until Ctrl-C")
	return cmd
}
