package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/s3gw"
)

// defaultScrub is the rate of scrubbing, in bytes per second. It reads a terabyte in a day and a
// half, with a hundredth of a disk's work or less.
const defaultScrub = 8 << 20

// defaultPatience is longer than a node's start, with a million blocks or a slow disk, and shorter than what people take
// for a hang.
const defaultPatience = time.Minute

// Load gathers the settings: defaults, then the file, the environment and the flags.
func Load(cmd *cobra.Command) (*Settings, error) {
	s := beginning()
	if err := s.readFile(cmd); err != nil {
		return nil, err
	}
	return s, s.override(cmd)
}

// Given reads what the environment and the flags say, and no file.
func Given(cmd *cobra.Command) (*Settings, error) {
	s := beginning()
	return s, s.override(cmd)
}

func beginning() *Settings {
	s := &Settings{}
	s.Cache.Scrub, s.Keeper.Patience = defaultScrub, defaultPatience
	return s
}

// override adds what the environment and the flags say.
func (s *Settings) override(cmd *cobra.Command) error {
	checkEnviron(os.Environ(), os.Stderr)
	for _, p := range Params() {
		v, ok := os.LookupEnv(p.Variable())
		if p.Variable() == "" || !ok || v == "" {
			continue
		}
		if err := s.take(p, Value{Key: p.Key, Value: v, Source: FromEnv, Where: p.Variable()}); err != nil {
			return cli.Usagef("%s: %v", p.Variable(), err)
		}
	}
	verbose := cmd.Flags().Lookup("verbose")
	for _, p := range Params() {
		if p.Key == "log.level" && verbose != nil && verbose.Changed {
			_ = s.take(p, Value{Key: p.Key, Value: "debug", Source: FromFlag, Where: "--verbose"})
		}
		f := cmd.Flags().Lookup(p.Flag)
		if p.Flag == "" || f == nil || !f.Changed {
			continue
		}
		if err := s.take(p, Value{Key: p.Key, Value: f.Value.String(), Source: FromFlag, Where: "--" + p.Flag}); err != nil {
			return cli.Usagef("--%s: %v", p.Flag, err)
		}
	}
	return nil
}

// Tree returns the links. The link at / comes first: it is made of the command's origin, or of the
// file's if the command has none.
func (s *Settings) Tree(origin string) []config.Link {
	root := s.Root
	if origin != "" {
		root.Origin.URL = origin
	}
	if root.Origin.URL == "" {
		return s.Links
	}
	root.Path = "/"
	return append([]config.Link{root}, s.Links...)
}

func (s *Settings) readFile(cmd *cobra.Command) error {
	name, named := File(cmd)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return cli.Usagef("read the configuration: %v", err)
	}
	return ReadYAML(s, name, text)
}

// File is the configuration file of a command, and whether the user named it. A file that nobody
// named need not exist.
func File(cmd *cobra.Command) (name string, named bool) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		return f.Value.String(), true
	}
	if v := os.Getenv("HEARTH_CONFIG"); v != "" {
		return v, true
	}
	return cli.DefaultConfig, false
}

// These variables are no parameters. LeaksVariable asks a node to say at its end what it has not
// given back. ReadyVariable has a detached process tell on that descriptor that its mount answers.
// JournalVariable names another socket than journald's. OOMVariable tells the successor of a keeper what oom_score_adj
// the first one was started with.
const (
	LeaksVariable   = "HEARTH_LEAKS"
	ReadyVariable   = "HEARTH_DAEMON_READY_FD"
	JournalVariable = "HEARTH_JOURNAL_SOCKET"
	OOMVariable     = "HEARTH_KEEPER_OOM"
)

// otherVariables are the HEARTH_ names that are no parameters.
func otherVariables() []string {
	return []string{"HEARTH_CONFIG", "HEARTH_NODE", "HEARTH_TOOLS", JournalVariable, LeaksVariable, ReadyVariable, OOMVariable, keep.Variable, keep.NodeVariable, config.KeyVariable, s3gw.AccessVariable, s3gw.SecretVariable}
}

// checkEnviron warns of variables that look like one of ours.
// Otherwise a typo would silently do nothing.
func checkEnviron(environ []string, warn io.Writer) {
	known := otherVariables()
	for _, p := range Params() {
		known = append(known, p.Variable())
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case !strings.HasPrefix(name, "HEARTH_") || value == "" || slices.Contains(known, name):
		default:
			if near := cli.Nearest(name, known); near != "" {
				_, _ = fmt.Fprintf(warn, "hearth: %s is no variable of hearth's and does nothing; the nearest is %s\n", name, near)
			}
		}
	}
}
