package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/status"
)

func upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "up [ORIGIN]", GroupID: "run",
		Short: "Run this machine's node in the foreground",
		Long: "Run a node: its cache, its admin socket, its metrics, and the mounts that the\n" +
			"configuration names. SIGTERM and Ctrl-C unmount and end it. SIGHUP has it read credentials\n" +
			"and keys again and begin its logs anew; so it outlives its terminal.",
		Example: "  hearth up file:///usr/share/doc\n" +
			"  hearth up --cache-ram 256MiB --cache-disks /var/tmp/hearth=1GiB file:///usr/share/doc",
		Args: cli.Between(0, "ORIGIN"),
	}
	settings.AddFlags(cmd, "origin", "freshness", "stale_if_error", "cache", "fuse", "admin", "log", "node", "join", "cluster", "s3", "keeper")
	cmd.RunE = runsNode(cli.AddCommon(cmd), func(*settings.Settings) {})
	return cmd
}

// runsNode starts a node and serves until it is told to end. change edits the settings last.
func runsNode(c *cli.Common, change func(*settings.Settings)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := settings.Load(cmd)
		if err != nil {
			return err
		}
		change(s)
		config, err := nodeConfig(s, strings.Join(args, ""))
		if err != nil {
			return err
		}
		if cmd.Flags().Lookup("no-keeper") != nil && !s.Keeper.Off && !keep.Present() {
			return keepNode(s, false)
		}
		if config.Keeper, err = fromKeeper(s); err != nil {
			return err
		}
		log, err := openLog(s, false)
		if err != nil {
			return err
		}
		defer log.Close()
		return (&serving{Common: c, log: log}).run(cmd, config, nil)
	}
}

// serving is a node that this process runs, with its log.
type serving struct {
	*cli.Common
	log *nodeLog
	up  atomic.Bool // it serves, or the node before it did; set before the line that says so
}

// run starts a node and serves until it is told to end. mount is the mount of `hearth mount`: the
// node ends with it if no other mount is left.
func (c *serving) run(cmd *cobra.Command, config node.Config, mount *admin.MountRequest) error {
	signals, hangups := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of its output has gone: no reason to end
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ctx, release := c.Limit(ctx)
	defer release()
	k := config.Keeper
	c.up.Store(k != nil && k.Begin.Starts > 1) // to its users the node has been up all along
	starting := make(chan error, 1)
	var n *node.Node
	go func() {
		var err error
		n, err = c.start(ctx, cmd, config, mount)
		starting <- err
	}()
	if err := daemonStarted(starting, signals, c.up.Load, cancel); err != nil {
		// The next node may serve what the last one has left: Close would take it away.
		if n != nil && (k == nil || len(k.Mounts) == 0 || errors.Is(context.Cause(ctx), cli.ErrInterrupted)) {
			_ = n.Close()
		}
		err = cli.Because(ctx, err)
		machine.Say(cli.QuoteText(err.Error()))
		return err
	}
	say := c.Printer(cli.Out(cmd))
	if err := detach(); err != nil {
		_ = n.Close()
		return err
	}
	n.Serving()
	stop := c.reloads(n, hangups)
	err := serve(n, mount, signals, say)
	stop()
	select {
	case <-n.HandedOver(): // it has all still
	default:
		sayLeft(n)
	}
	return err
}

// reloads has the node read again what may change while it runs, and reopens the log, at each
// SIGHUP. Service managers and logrotate send it, and the kernel does where a terminal closes. A
// node goes on without a terminal, since its readers may be elsewhere. stop returns once no reload
// is in flight.
func (c *serving) reloads(n *node.Node, hangups <-chan os.Signal) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
			}
			err := errors.Join(c.log.Reopen(), n.Reload(ctx))
			switch {
			case ctx.Err() != nil:
			case err != nil:
				c.log.Warn("SIGHUP: not all could be read again, the rest stays as it was", "cause", err)
			default:
				c.log.Info("SIGHUP: credentials and keys are read again, logs are begun anew")
			}
		}
	}()
	return func() { cancel(); <-done }
}

// sayLeft prints what a closed node has not given back, if the end-to-end tests ask for it.
func sayLeft(n *node.Node) {
	if os.Getenv(settings.LeaksVariable) == "" {
		return
	}
	for _, l := range n.Left() {
		fmt.Fprintln(os.Stderr, "hearth: left behind:", l)
	}
}

// start makes the node and the mounts, and says where the cache is before the mounts. On an error
// it also returns the node, if there is one already, to be closed.
func (c *serving) start(ctx context.Context, cmd *cobra.Command, config node.Config, mount *admin.MountRequest) (*node.Node, error) {
	say := c.Printer(cli.Out(cmd))
	config.Log = c.log.Logger
	machine.Say("starting")
	var urls []string
	for _, l := range config.Links {
		urls = append(urls, l.Origin.URL)
	}
	if mount != nil && mount.Origin != nil {
		urls = append(urls, mount.Origin.URL)
	}
	ended := sync.OnceFunc(c.Waiting(os.Stderr, origins(urls...)))
	defer ended()
	n, err := node.New(ctx, config)
	// A mount that is kept has nobody to answer, either.
	if errors.Is(err, disk.ErrHung) && !config.Keeper.Has() && c.cutOff(ctx, config, mount) {
		n, err = node.New(ctx, config)
	}
	if err != nil {
		return nil, err
	}
	say("%s", n.Banner())
	if c.log.Lost != "" {
		fmt.Fprintln(os.Stderr, "hearth: "+c.log.Lost)
	}
	// Mounts that were taken over have users. What else cannot be mounted is no reason to end, and to leave them.
	spared := func(dir string, err error) bool {
		if !config.Keeper.Has() || !n.Kept() || ctx.Err() != nil {
			return false
		}
		c.log.Error("a mount cannot be made, and others are served on", "dir", dir, "cause", err)
		return true
	}
	for _, m := range config.Mounts {
		if n.Serves(m.Dir) { // it was taken over
			continue
		}
		machine.Say("mounting " + m.Dir)
		made, err := n.Mount(ctx, admin.MountRequest{Mount: m})
		if err != nil && spared(m.Dir, err) {
			continue
		}
		if err != nil {
			return n, err
		}
		warn(made, c.log.Shown)
		say("mounted %s", m.Dir)
	}
	if mount == nil {
		c.up.Store(true) // before the line that says so: from now on a signal ends the node and cancels no start
		if s := n.Status(ctx).S3; s != nil {
			say("answering S3 clients at %s", s.Listen)
		}
		say("serving at %s; Ctrl-C ends it", n.Socket())
	} else if n.Serves(mount.Dir) {
		c.up.Store(true)
	} else if m, err := n.Mount(ctx, *mount); err != nil {
		if !spared(mount.Dir, err) {
			return n, err
		}
		c.up.Store(true)
	} else {
		warn(m, c.log.Shown)
		end := "Ctrl-C unmounts"
		if isDaemon() {
			end = "hearth umount " + m.Dir + " ends it"
		}
		c.up.Store(true)
		say("mounted %s, %s (open=%s, freshness %s); %s", m.Dir, m.Access(), m.Open, m.Freshness, end)
	}
	ended()
	return n, n.Ready(ctx)
}

// cutOff aborts the mounts that a killed node left where ours will be, so that its process can end.
// One of its threads is in the kernel, and waits for a reader that waits for its answer.
func (c *serving) cutOff(ctx context.Context, config node.Config, mount *admin.MountRequest) bool {
	var dirs []string
	for _, m := range config.Mounts {
		dirs = append(dirs, m.Dir)
	}
	if mount != nil {
		dirs = append(dirs, mount.Dir)
	}
	cut := machine.CutOff(ctx, ourType, dirs)
	for _, dir := range cut {
		c.log.Warn("the node before was killed and could not end: its mount is cut off", "dir", dir)
	}
	return len(cut) > 0
}

// warn prints what a new mount lacks. If the log goes to the same terminal, it has the cause
// already.
func warn(m *status.Mount, logged bool) {
	if m.Warning != "" {
		fmt.Fprintln(os.Stderr, "hearth: warning: "+cli.QuoteText(warning(m.Warning, logged)))
	}
}

// warning is text, without the cause after its first colon if the log has it.
func warning(text string, logged bool) string {
	if what, _, ok := strings.Cut(text, ": "); ok && logged {
		return what
	}
	return text
}

// serve waits for the end: a signal, the last unmount of a node that `hearth mount` started, or the
// failure of a part of the node.
func serve(n *node.Node, mount *admin.MountRequest, signals <-chan os.Signal, say func(string, ...any)) error {
	var idle <-chan struct{}
	if mount != nil {
		idle = n.Unmounted()
	}
	for first := true; ; first = false {
		select {
		case s := <-signals:
			if mount == nil || !first || s != os.Interrupt {
				n.Ending()
				return n.Close()
			}
			endMount(n, mount.Dir, say)
		case <-idle:
			say("the last mount is gone")
			n.Ending()
			return n.Close()
		case <-n.HandedOver():
			return nil // its mounts are the next node's
		case <-n.Done():
			err := n.Err()
			if !n.Kept() { // else the next node serves the mounts
				_ = n.Close()
			}
			return err
		}
	}
}

// endMount takes the command's own mount away, even if it is in use, and names the mounts that are
// still served.
func endMount(n *node.Node, dir string, say func(string, ...any)) {
	if err := n.Unmount(dir, false); err != nil {
		say("%v", err)
		if err := n.Unmount(dir, true); err != nil {
			say("%v", err)
			return
		}
		say("%s is detached; who has it open may finish; Ctrl-C again ends all", dir)
	}
	for _, m := range n.Mounts() {
		if m.Dir != dir {
			say("still serving %s; Ctrl-C again ends all", m.Dir)
		}
	}
}
