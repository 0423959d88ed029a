package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/node/machine"
)

func keepCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "keep up|mount [ARG...]", GroupID: "run",
		Short: "Run a node that is started again, and whose mounts outlive it",
		Long: "Run `hearth up` or `hearth mount` as a child process, and hold its mounts. If the node is killed,\n" +
			"panics or ends with an error, it is started again and serves the mounts where the last one\n" +
			"stopped: open files stay open, and readers wait meanwhile. A node that has never served says\n" +
			"what is wrong, and its exit code is that of this command.\n\n" +
			"hearth up and hearth mount --daemon do so by themselves. SIGTERM and Ctrl-C end the node for\n" +
			"good, SIGHUP is passed on. Mounts outlive a node on Linux 6.9 or later, if the node has a cache\n" +
			"disk; else they are made anew. Before, they outlive it by hearth upgrade alone.",
		Example: "  hearth keep mount file:///usr/share/doc /mnt\n" +
			"  hearth keep --keeper-patience 5m mount file:///usr/share/doc /mnt",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "up" && args[0] != "mount" {
				return cli.Usagef("hearth keep needs a command to keep: up or mount")
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false) // the command has flags of its own
	settings.AddFlags(cmd, "keeper")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if keep.Inherits() { // mounts need it, whatever has become of the configuration; its predecessor has told it all
			s, err := settings.Given(cmd)
			if err != nil {
				return err
			}
			return keepThis(args, s, false)
		}
		s, err := settings.Load(cmd)
		if err != nil {
			return err
		}
		if s.Keeper.Off {
			return cli.Usagef("hearth keep without a keeper: take --no-keeper (keeper.off, HEARTH_KEEPER_OFF) away")
		}
		return keepThis(args, s, false)
	}
	return cmd
}

// keepNode keeps a node, which is this command again.
func keepNode(s *settings.Settings, daemon bool) error {
	args, err := ownArgs()
	if err != nil {
		return err
	}
	return keepThis(args, s, daemon)
}

// fromKeeper returns the keeper that started this process, or nil.
func fromKeeper(s *settings.Settings) (*keep.Keeper, error) {
	k, err := keep.FromEnvironment()
	return k, errors.Join(err, succeeds(k, s))
}

// succeeds tells a node how to start another keeper.
func succeeds(k *keep.Keeper, s *settings.Settings) error {
	if k == nil {
		return nil
	}
	args, err := ownArgs()
	k.Successor = append(successor(s), args...)
	return err
}

// successor begins the arguments of a keeper that takes the place of another.
func successor(s *settings.Settings) []string {
	return []string{"hearth", "keep", "--keeper-patience", s.Keeper.Patience.String()}
}

// keepThis keeps a node, which is this program with other arguments. The error is the node's exit code. A daemon leaves its
// terminal once the node serves.
func keepThis(args []string, s *settings.Settings, daemon bool) error {
	debug.SetGCPercent(20) // there is little to collect, and the process stays for months
	if s.LogFile != "" {
		log, err := filepath.Abs(s.LogFile)
		if err != nil {
			return fmt.Errorf("find the log: %w", err)
		}
		s.LogFile = log
	}
	// A mount may come over it: only the descriptor leads to the directory then.
	dir, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = os.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("leave the working directory: %w", err)
	}
	defer unix.Close(dir)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGABRT) // systemd aborts one that hangs: the node says where
	defer signal.Stop(signals)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of its output has gone: no reason to end
	say := func(text string) { fmt.Fprintln(os.Stderr, "hearth: keeper: "+cli.QuoteText(text)) }
	if daemon || isDaemon() {
		say = func(text string) { // seldom, so the log need not stay open, or be opened anew where it is rotated
			if log, err := openLog(s, true); err == nil {
				log.Warn("keeper: " + text)
				log.Close()
			}
		}
	}
	o := keep.Options{
		Program: "/proc/self/exe", // of the same version, whatever was installed meanwhile
		Args:    append([]string{"hearth"}, args...), Dir: fmt.Sprintf("/proc/self/fd/%d", dir), Patience: s.Keeper.Patience, Signals: signals,
		Started: lastToBeKilled(), Say: say, Successor: successor(s), Waits: machine.Waiting,
		Env: []string{"HEARTH_KEEPER_PATIENCE=" + s.Keeper.Patience.String()}, // by which a successor knows it
	}
	if daemon || isDaemon() {
		o.Env = append(o.Env, "HEARTH_LOG_FILE="+s.LogFile) // likewise
	}
	if daemon {
		o.Env, o.Together = append(o.Env, settings.ReadyVariable+"="+quietly), true
		o.Serves = func() {
			if err := detach(); err != nil {
				say(err.Error())
			}
		}
	}
	code, err := keep.Run(o)
	if err == nil && code != 0 {
		err = &cli.ExitError{Code: code} // the node has said why
	}
	return err
}

// lastToBeKilled has the kernel's OOM killer spare this process as far as it may be spared. started gives a node what this
// process had.
func lastToBeKilled() (started func(pid int)) {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if was := os.Getenv(settings.OOMVariable); was != "" && keep.Inherits() { // a keeper's successor has what the keeper got
		before = []byte(was)
	}
	if err != nil || os.WriteFile(file, []byte("-1000"), 0) != nil { // it needs CAP_SYS_RESOURCE
		return nil
	}
	_ = os.Setenv(settings.OOMVariable, strings.TrimSpace(string(before))) // it cannot fail for this name
	return func(pid int) {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strings.TrimSpace(string(before))), 0) // it has just ended, else
	}
}
