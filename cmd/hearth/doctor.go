package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/doctor"
	"github.com/hearthfs/hearth/volume"
)

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor [ORIGIN]", GroupID: "check",
		Short: "Look whether hearth can work here, and say what to do where it cannot",
		Long: "Look at what the configuration names - FUSE by a mount that is taken away at once, limits, memory,\n" +
			"cache directories and their speed, volumes, addresses, the node if one runs, and of each origin\n" +
			"credentials, clock and abilities, and if it is to be written whether it may be, by an upload that is\n" +
			"begun and aborted - or at ORIGIN alone. A line for each check: OK, WARN or FAIL, what\n" +
			"was found, and the cure. Nothing is left behind, and nothing is waited for longer than 20 seconds.\n" +
			"Of volumes that the node has beside the configuration it is asked how they are. Exit code 6:\n" +
			"something FAILs.",
		Example: "  hearth doctor file:///usr/share/doc\n" +
			"  hearth doctor --anonymous --region us-east-1 s3://noaa-ghcn-pds/",
		Args: cli.Between(0, "ORIGIN"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	settings.AddFlags(cmd, "origin", "cache", "fuse", "admin", "node", "join", "cluster")
	index := cmd.Flags().Int(lookFlag, -1, "take one look for another doctor")
	_ = cmd.Flags().MarkHidden(lookFlag) // it exists
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		o, err := doctorOptions(c, cmd, args)
		if err != nil {
			return err
		}
		ctx, stop := c.Context(cmd.Context())
		defer stop()
		if *index >= 0 {
			return doctor.LookAt(ctx, o, *index, func(found ...doctor.Finding) {
				_ = printFindings(cli.Out(cmd), &cli.Common{Output: "jsonl"}, found) // the doctor that asked has gone
			})
		}
		o.Apart = lookApart
		ended := c.Waiting(os.Stderr, func(context.Context) string { return "the checks, each of which ends within 20 s" })
		found, err := doctor.Run(ctx, o)
		ended()
		if err != nil {
			return cli.Because(ctx, err)
		}
		if err := printFindings(cli.Out(cmd), c, found); err != nil {
			return err
		}
		if doctor.Failed(found) {
			return &cli.ExitError{Code: cli.ExitUnhealthy}
		}
		return nil
	}
	return cmd
}

// lookFlag is the hidden flag by which doctor runs one check in a process of its own.
const lookFlag = "look"

// lookApart runs this command again for one check. A process that does not come back is killed and
// not waited for: a device may hold it in the kernel.
func lookApart(ctx context.Context, index int, tell func(...doctor.Finding)) error {
	self, err := os.Executable()
	verb := slices.Index(os.Args, "doctor")
	if err != nil || verb < 0 {
		return fmt.Errorf("find this command: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, slices.Insert(slices.Clone(os.Args[1:]), verb, fmt.Sprintf("--%s=%d", lookFlag, index))...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	d, told := json.NewDecoder(out), false
	for {
		var f doctor.Finding
		if d.Decode(&f) != nil {
			break
		}
		tell(f)
		told = true
	}
	if err := cmd.Wait(); !told && ctx.Err() == nil {
		return fmt.Errorf("the process of this check found nothing: %w", err)
	}
	return nil
}

// doctorOptions say what is checked: all that the configuration names, or ORIGIN alone.
func doctorOptions(c *cli.Common, cmd *cobra.Command, args []string) (o doctor.Options, err error) {
	s, err := settings.Load(cmd)
	if err != nil {
		return o, err
	}
	origin := ""
	if o.Alone = len(args) > 0; o.Alone {
		origin = args[0]
	}
	if strings.HasPrefix(origin, volume.Scheme) {
		return o, cli.Usagef("%s is a volume and no origin: hearth volume stat %s looks at it", origin, origin)
	}
	if o.Alone && !isURL(origin) {
		return o, cli.Usagef("%s is no origin: write s3://bucket/prefix or file:///dir", origin)
	}
	config, err := nodeConfig(s, origin)
	if err != nil && !o.Alone {
		return o, err
	}
	o.Links, o.Version, o.Cache, o.Admin, o.Without = config.Written(), config.Version, config.Cache, config.Admin, config.FuseWithout
	o.Ring, o.Volumes = config.Ring, config.Volumes
	if o.Alone {
		o.Links = o.Links[:1]
	}
	for _, m := range config.Mounts {
		o.AllowOther = o.AllowOther || m.AllowOther != nil && *m.AllowOther
	}
	if n, err := dial(c, s); err == nil {
		o.Admin.Socket = n.Socket()
	} else if o.Admin.Socket == "" {
		o.Admin.Socket = admin.DefaultSocket()
	}
	o.Node = func(ctx context.Context) (*doctor.Running, error) { return askHow(ctx, c, s) }
	return o, nil
}

// askHow asks the node for its state. nil means that no node runs.
func askHow(ctx context.Context, c *cli.Common, s *settings.Settings) (*doctor.Running, error) {
	n, err := dial(c, s)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	status, err := n.Status(ctx)
	if err != nil {
		if cli.ExitCode(err) == cli.ExitUnreachable {
			return nil, nil
		}
		return nil, err
	}
	r := &doctor.Running{Version: status.Version, PID: status.PID, Says: status.Says, Well: status.Says == "ok", Keeper: status.Keeper}
	for _, t := range status.Tiers {
		r.Volumes = append(r.Volumes, t.Volumes...)
	}
	return r, nil
}

// printFindings writes a line for each finding, or one JSON document.
func printFindings(w io.Writer, c *cli.Common, found []doctor.Finding) error {
	count := map[doctor.Verdict]int{}
	for _, f := range found {
		count[f.Verdict]++
		if c.Output == "jsonl" {
			if err := c.PrintJSON(w, f); err != nil {
				return err
			}
		}
	}
	switch c.Output {
	case "jsonl":
		return nil
	case "json":
		return c.PrintJSON(w, map[string]any{"checks": found, "ok": count[doctor.OK], "warn": count[doctor.Warn], "fail": count[doctor.Fail]})
	}
	t := cli.NewTable(w)
	for _, f := range found {
		line := f.Found
		if f.Subject != "" && !strings.Contains(line, f.Subject) {
			line = f.Subject + ": " + line
		}
		if f.Cure != "" {
			line += "; " + f.Cure
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Verdict, f.Check, strings.ReplaceAll(cli.QuoteText(line), "\t", " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s: %d OK, %d WARN, %d FAIL\n", cli.Count(len(found), "check"), count[doctor.OK], count[doctor.Warn], count[doctor.Fail])
	return err
}
