// Command hearth shows a bucket as a directory tree and caches what is read.
//
// Each verb is one file and a client of a node's admin API. A verb that needs no running node
// starts one in its own process, for as long as the verb runs. Package settings has one table of
// the parameters. Flags, environment variables, the file's keys and docs/configuration.md are made
// from it.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

func main() {
	args, err := ownArgs()
	if err != nil {
		os.Exit(finish(err))
	}
	root := rootCommand()
	root.SetArgs(args)
	os.Exit(finish(root.Execute()))
}

// ownArgs are this process's arguments, those of mount(8) in our words.
func ownArgs() ([]string, error) {
	if filepath.Base(os.Args[0]) == "mount.hearth" {
		fstab, _ := os.ReadFile("/etc/fstab") // none has no lines
		return mountHelperArgs(os.Args[1:], string(fstab))
	}
	return os.Args[1:], nil
}

// finish prints what went wrong, each thing on a line of its own, and returns the exit code.
func finish(err error) int {
	for _, line := range cli.Lines(err) {
		fmt.Fprintln(os.Stderr, "hearth: "+cli.QuoteText(line))
	}
	return cli.ExitCode(err)
}

// commands are all verbs of this version, in the order of the help.
func commands() []*cobra.Command {
	return []*cobra.Command{
		demoCommand(), upCommand(), keepCommand(), upgradeCommand(), gatewayCommand(), mountCommand(), umountCommand(),
		warmupCommand(), pinCommand(), unpinCommand(), evictCommand(), draftsCommand(), refreshCommand(), lsCommand(), statCommand(), catCommand(), duCommand(),
		statusCommand(), explainCommand(), jobsCommand(), doctorCommand(), fsckCommand(),
		ringCommand(), volumeCommand(), configCommand(), versionCommand(), completionCommand(),
	}
}

// laterVerbs are the verbs of CLI.md that this version refuses.
func laterVerbs() []string {
	return []string{"trace",
		"bench", "originbench", "debug", "top"}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "hearth",
		Short: "Show a bucket as a directory and keep it near",
		Long:  "Hearth shows a bucket as a directory tree, and keeps what was read in RAM and on local disk.",
		Example: "  hearth ls file:///usr/share/doc\n" +
			"  hearth mount file:///usr/share/doc /mnt",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
	}
	asked := root.Flags().Bool("version", false, "print the version of this binary")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *asked {
			return printVersion(cli.Out(cmd))
		}
		return unknownVerb(cmd, args)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.Usagef("%v%s (see %s --help)", err, nearestFlag(cmd, err), cmd.CommandPath())
	})
	root.AddGroup(&cobra.Group{ID: "run", Title: "RUN"}, &cobra.Group{ID: "data", Title: "DATA"},
		&cobra.Group{ID: "see", Title: "SEE"}, &cobra.Group{ID: "check", Title: "CHECK"}, &cobra.Group{ID: "admin", Title: "ADMIN"})
	root.AddCommand(commands()...)
	for _, name := range laterVerbs() {
		root.AddCommand(laterCommand(name))
	}
	root.SetHelpCommand(helpCommand(root))
	return root
}

// laterCommand refuses a verb of a later version.
func laterCommand(name string) *cobra.Command {
	return &cobra.Command{Use: name, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return cli.Usagef("%s: %w", name, settings.ErrLater) }}
}

// nearestFlag names the flag that an unknown flag was most likely meant to be. "" means that none
// is near, or that the error is another one.
func nearestFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	meant := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); len(letters) > 1 {
		meant = letters // -watch
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := cli.Nearest(meant, names); near != "" && len(meant) > 1 {
		return "; the nearest is --" + near
	}
	return ""
}

func unknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	if near := nearestVerb(cmd, args[0]); near != "" {
		return cli.Usagef("no command %q; the nearest is %s", args[0], near)
	}
	return cli.Usagef("no command %q (see %s --help)", args[0], cmd.CommandPath())
}

// nearestVerb returns the verb of cmd that word was most likely meant to be. "" means that none is
// near.
func nearestVerb(cmd *cobra.Command, word string) string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	slices.Sort(names)
	return cli.Nearest(word, names)
}

// version is this build's version, as the go command took it from the tags and commits.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" && !strings.HasPrefix(v, "v0.0.0-") { // otherwise there is no tag
		return v
	}
	return "0.2.0-dev"
}
