package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/machine"
)

// mountFlags are the flags of mount that are no parameters.
type mountFlags struct {
	*cli.Common
	options      []string
	daemon       bool
	noAllowOther bool
	sloppy       bool
	byMount8     bool // mount(8) made the call
	keeper       func() (*keep.Keeper, error)
}

func mountCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mount ORIGIN DIR", GroupID: "run",
		Short: "Show a bucket as a directory",
		Long: "Mount ORIGIN (s3://bucket/prefix, file:///dir, or a path of the running node's tree)\n" +
			"at DIR. If this machine's node runs, it makes the mount; else a node is started in\n" +
			"this process and serves until the last mount is gone. Ctrl-C unmounts; a closed terminal\n" +
			"does not, hearth umount DIR does.\n\n" +
			"A bucket of your own: hearth mount s3://bucket/prefix /mnt. Its credentials come as\n" +
			"the AWS tools take them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a web identity;\n" +
			"AWS_PROFILE, a profile of ~/.aws (keys, an assumed role, SSO, a process); or the role\n" +
			"of the container or the instance, where there is one; hearth doctor says which.\n" +
			"AWS_REGION and AWS_ENDPOINT_URL work too.",
		Example: "  hearth mount file:///usr/share/doc /mnt\n" +
			"  hearth mount --anonymous --region us-east-1 s3://noaa-ghcn-pds/ /mnt",
		Args: cli.Exactly("ORIGIN", "DIR"),
	}
	f := &mountFlags{Common: cli.AddCommon(cmd), keeper: sync.OnceValues(keep.FromEnvironment)}
	cmd.Flags().StringSliceVarP(&f.options, "options", "o", nil, "options as of mount(8): nodev,allow_other,uid=1000,open=none,...")
	cmd.Flags().BoolVar(&f.daemon, "daemon", false, "return when the mount answers and serve on behind")
	cmd.Flags().BoolVar(&f.noAllowOther, "no-allow-other", false, "nobody but who mounts gets in")
	cmd.Flags().BoolVar(&f.sloppy, "sloppy", false, "pass over -o options that are unknown, as mount(8) does with -s")
	cmd.Flags().BoolVar(&f.byMount8, mount8Flag, false, "as mount(8) asks: it says rw where nobody has said ro")
	_ = cmd.Flags().MarkHidden(mount8Flag) // it exists
	settings.AddFlags(cmd, "origin", "freshness", "stale_if_error", "mount", "cache", "fuse", "admin", "log", "node", "join", "cluster", "s3", "keeper")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if isURL(args[1]) || meantURL(args[1]) != "" {
			return cli.Usagef("%s is no directory: the origin comes first, hearth mount %s %s", args[1], args[1], args[0])
		}
		dir, err := filepath.Abs(args[1])
		if err != nil {
			return cli.Usagef("%s: %v", args[1], err)
		}
		return f.mount(cmd, args[0], dir)
	}
	return cmd
}

func (f *mountFlags) mount(cmd *cobra.Command, origin, dir string) error {
	s, err := settings.Load(cmd)
	if err != nil {
		return err
	}
	s.ByMount8 = f.byMount8
	if err := s.MountOptions(f.options, f.sloppy); err != nil {
		return err
	}
	unkept := s.Unkept()
	if len(unkept) > 0 && !f.byMount8 {
		return cli.Usagef("-o %s", unkept[0])
	}
	child := isDaemon() // its parent prints the warnings below
	if err := f.make(cmd, s, origin, dir); err != nil || child {
		return err
	}
	for _, o := range unkept { // as mount(8) warns of a write-protected device
		fmt.Fprintf(os.Stderr, "hearth: warning: %s is mounted, not as its options ask: %s\n", dir, cli.QuoteText(o))
	}
	return nil
}

// make has the mount made by the running node, or starts a node for it.
func (f *mountFlags) make(cmd *cobra.Command, s *settings.Settings, origin, dir string) error {
	if f.noAllowOther && cmd.Flags().Changed("allow-other") && s.Mount.AllowOther != nil && *s.Mount.AllowOther {
		return cli.Usagef("--allow-other and --no-allow-other exclude each other: give one")
	}
	if f.noAllowOther {
		no := false
		s.Mount.AllowOther = &no
	}
	if meant := meantURL(origin); meant != "" {
		return cli.Usagef("%s is no origin: did you mean %s?", origin, meant)
	}
	request := admin.MountRequest{Mount: s.Mount, FailStale: s.Root.FailStale, NoSeed: s.Root.NoSeed, Staging: s.Staging}
	request.Dir = dir
	request.Freshness = s.Root.Freshness
	if isURL(origin) {
		o := s.Root.Origin
		o.URL = origin
		o = o.WithEnvironment()
		o.CAFile = fromHere(o.CAFile)
		request.Origin = &o
		request.Write, request.Fsync = cmp.Or(request.Write, s.Root.Write), cmp.Or(request.Fsync, s.Root.Fsync)
		request.Staging.Every = cmp.Or(request.Staging.Every, s.Root.Staging.Every)
		if request.Staging.Age = cmp.Or(request.Staging.Age, s.Root.Staging.Age); request.Staging.Patterns == nil {
			request.Staging.Patterns = s.Root.Staging.Patterns
		}
	} else {
		request.Prefix = origin
	}
	client, err := dial(f.Common, s)
	if err != nil {
		return err
	}
	defer client.Close()
	for more := starts; ; more-- {
		attached, err := f.attach(cmd, client, request)
		if attached || err != nil {
			return err
		}
		if f.daemon && keep.Present() && !isDaemon() {
			return cli.Usagef("hearth keep mount stays in the foreground: take --daemon or keep away")
		}
		if f.daemon && !isDaemon() {
			return startDaemon()
		}
		err = f.mountHere(cmd, s, request)
		if more == 0 || !errors.Is(err, admin.ErrAnother) {
			return err
		}
		// Lines of fstab are mounted at once. The node of another line was first, and makes this
		// mount.
	}
}

// starts is how often a start is tried again because another node was first. That node may end,
// since its own origin does not answer.
const starts = 5

// meantURL returns the URL that s3:/bucket or file:/dir was most likely meant to be. All else gives
// "": a path of the tree may begin with "s3:", too.
func meantURL(path string) string {
	for _, scheme := range []string{"s3", "file"} {
		if rest, ok := strings.CutPrefix(path, scheme+":/"); ok && !isURL(path) {
			return scheme + "://" + map[string]string{"file": "/"}[scheme] + rest
		}
	}
	return ""
}

// meantDir returns a hint, to be added to an error, if a path is a directory of this machine. Then
// it was most likely meant as the origin.
func meantDir(path string) string {
	if at, err := os.Stat(path); err != nil || !at.IsDir() || !filepath.IsAbs(path) {
		return ""
	}
	return "; the directory of this machine is file://" + path
}

// attach has a running node make the mount. In the foreground it also waits until the mount is
// gone. false means that no node runs.
func (f *mountFlags) attach(cmd *cobra.Command, client *admin.Client, r admin.MountRequest) (bool, error) {
	ctx, stop := f.Context(cmd.Context())
	defer stop()
	var err error
	if r.At, err = machine.Automount(ctx, r.Dir); err != nil {
		return true, cli.Because(ctx, err)
	}
	m, err := client.Mount(ctx, r)
	if r.At != nil {
		_ = r.At.Close() // the node has its own
	}
	switch {
	case cli.ExitCode(err) == cli.ExitUnreachable && f.Node == "":
		return false, nil
	case cli.ExitCode(err) == cli.ExitNotFound && r.Origin == nil:
		return true, fmt.Errorf("%w%s", err, meantDir(r.Prefix))
	case err != nil:
		return true, cli.HintUp(cli.Because(ctx, err))
	}
	warn(m, false)
	say := f.Printer(cli.Out(cmd))
	if lost := nodeFlags(cmd); len(lost) > 0 {
		fmt.Fprintf(os.Stderr, "hearth: %s ignored: only a node that starts takes it, and one runs already at %s\n", strings.Join(lost, ", "), client.Socket())
	}
	say("mounted %s, %s (open=%s, freshness %s), by the node at %s", m.Dir, m.Access(), m.Open, m.Freshness, client.Socket())
	if f.daemon {
		return true, detach()
	}
	say("Ctrl-C unmounts")
	err = client.WaitUnmounted(ctx, r.Dir)
	if ctx.Err() == nil {
		return true, err
	}
	if err := client.Unmount(context.Background(), r.Dir, false); err != nil {
		say("%v; detaching it", err)
		return true, client.Unmount(context.Background(), r.Dir, true)
	}
	return true, nil
}

// nodeFlags are the given flags that only a node that starts can take.
func nodeFlags(cmd *cobra.Command) (given []string) {
	for _, p := range settings.Params() {
		switch p.Group() {
		case "cache", "fuse", "log", "node", "join", "cluster":
			if f := cmd.Flags().Lookup(p.Flag); p.Flag != "" && f != nil && f.Changed {
				given = append(given, "--"+p.Flag)
			}
		}
	}
	return given
}

// mountHere starts a node in this process for the mount. The origin is a link of the configuration,
// or becomes a link that is named after it. So there is room for a second origin beside it.
func (f *mountFlags) mountHere(cmd *cobra.Command, s *settings.Settings, r admin.MountRequest) error {
	config, err := nodeConfig(s, "")
	if err != nil {
		return err
	}
	if len(config.Links) == 0 && r.Origin == nil {
		return cli.Usagef("no node runs and no origin is configured: %s names nothing%s", r.Prefix, meantDir(r.Prefix))
	}
	config.Mounts = nil // those are for `hearth up`
	if f.daemon && !s.Keeper.Off && !keep.Present() {
		return keepNode(s, true)
	}
	if config.Keeper, err = f.keeper(); err != nil {
		return err
	}
	if err := succeeds(config.Keeper, s); err != nil {
		return err
	}
	if s.LogLevel == "" && s.LogFile == "" && !f.daemon {
		s.LogLevel = "warn" // the rest is printed on the terminal
	}
	log, err := openLog(s, f.daemon)
	if err != nil {
		return err
	}
	defer log.Close()
	err = (&serving{Common: f.Common, log: log}).run(cmd, config, &r)
	if err != nil && f.daemon { // where it is detached, nobody sees what it prints
		log.Error("the node ended", "cause", err)
	}
	return err
}
