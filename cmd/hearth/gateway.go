package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/s3gw"
)

func gatewayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "gateway [ORIGIN]", GroupID: "run",
		Short: "Answer S3 clients from the cache, in the foreground",
		Long: "Run a node that answers S3 clients: reads come from its cache, writes go to the\n" +
			"bucket and are seen at once. Buckets have their own names, and keys are those of the\n" +
			"origin, so that a client changes nothing but its endpoint. A node of hearth up does\n" +
			"the same with --s3-listen, beside its mounts.\n\n" +
			"Who may ask: --s3-credentials-file, a line each (ACCESS SECRET ro|rw BUCKET[/PREFIX]|*); or\n" +
			"one key that may do all, in " + s3gw.AccessVariable + " and " + s3gw.SecretVariable + "; or anybody,\n" +
			"for reading, with --s3-anonymous.",
		Example: "  hearth gateway --anonymous --region us-east-1 --s3-anonymous '*' s3://noaa-ghcn-pds/\n" +
			"  hearth gateway --anonymous --region us-east-1 --s3-listen :9000 --s3-anonymous noaa-ghcn-pds/csv s3://noaa-ghcn-pds/",
		Args: cli.Between(0, "ORIGIN"),
	}
	settings.AddFlags(cmd, "origin", "freshness", "stale_if_error", "cache", "admin", "log", "node", "join", "cluster", "s3")
	cmd.RunE = runsNode(cli.AddCommon(cmd), func(s *settings.Settings) {
		s.S3.Listen = cmp.Or(s.S3.Listen, s3gw.DefaultListen)
		s.Mounts = nil // those are up's
	})
	return cmd
}
