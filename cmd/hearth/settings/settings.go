package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/config"
)

// defaultScrub is in bytes per second: a terabyte in a day and a half, by a
// hundredth of a disk's work or less.
const defaultScrub = 8 << 20

// Load gathers the settings: defaults, then the file, the environment, the flags.
func Load(cmd *cobra.Command) (*Settings, error) {
	s := &Settings{}
	s.Cache.Scrub = defaultScrub
	if err := s.readFile(cmd); err != nil {
		return nil, err
	}
	if err := checkEnviron(os.Environ(), os.Stderr); err != nil {
		return nil, err
	}
	for _, p := range Params() {
		v, ok := os.LookupEnv(p.Variable())
		if p.Variable() == "" || !ok || v == "" {
			continue
		}
		if err := p.set(s, v); err != nil {
			return nil, cli.Usagef("%s: %v", p.Variable(), err)
		}
	}
	if v := cmd.Flags().Lookup("verbose"); v != nil && v.Changed {
		s.LogLevel = "debug"
	}
	for _, p := range Params() {
		f := cmd.Flags().Lookup(p.Flag)
		if p.Flag == "" || f == nil || !f.Changed {
			continue
		}
		if err := p.set(s, f.Value.String()); err != nil {
			return nil, cli.Usagef("--%s: %v", p.Flag, err)
		}
	}
	return s, nil
}

// Tree is the links with the one at / before them that a command's origin makes, or
// the file's, if the command has none.
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
	name, named := configFile(cmd)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return cli.Usagef("read the configuration: %v", err)
	}
	s.File = name
	return ReadYAML(s, name, text)
}

func configFile(cmd *cobra.Command) (name string, named bool) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		return f.Value.String(), true
	}
	if v := os.Getenv("HEARTH_CONFIG"); v != "" {
		return v, true
	}
	return cli.DefaultConfig, false
}

// ReadYAML applies a file strictly: a key that no row of the table has is an
// error with its line and the nearest name.
func ReadYAML(s *Settings, name string, text []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return cli.Usagef("%s: %v", name, err)
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return cli.Usagef("%s:%d: a second document", name, more.Line)
	}
	w := &yamlWalk{settings: s, name: name, rows: map[string]Param{}}
	for _, p := range Params() {
		if !p.FlagOnly {
			w.rows[p.Key] = p
		}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	return w.walk("", root)
}

type yamlWalk struct {
	settings *Settings
	name     string
	rows     map[string]Param
}

func (w *yamlWalk) walk(key string, n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		return w.mapping(key, n)
	case yaml.SequenceNode:
		return w.sequence(key, n)
	}
	p, ok := w.rows[key]
	switch {
	case !ok:
		return w.fail(n, "%s is not a single value", key)
	case n.Tag == "!!null":
		return w.fail(n, "%s has no value", key)
	}
	if err := p.set(w.settings, n.Value); err != nil {
		return w.fail(n, "%s: %v", key, err)
	}
	return nil
}

func (w *yamlWalk) mapping(key string, n *yaml.Node) error {
	if key != "" && !w.below(key+".") {
		return w.fail(n, "%s has no keys below it", key)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		child := strings.TrimPrefix(key+"."+k.Value, ".")
		if seen[child] {
			return w.fail(k, "%s stands here twice", child)
		}
		seen[child] = true
		if p, ok := w.rows[child]; ok && p.set == nil {
			return w.fail(k, "%s: %v", child, ErrLater)
		}
		if _, ok := w.rows[child]; !ok && !w.below(child+".") && !w.below(child+"[]") {
			return w.unknown(k, key, child)
		}
		if err := w.walk(child, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (w *yamlWalk) sequence(key string, n *yaml.Node) error {
	if w.below(key + "[].") {
		for _, e := range n.Content {
			w.settings.grow(key)
			if err := w.walk(key+"[]", e); err != nil {
				return err
			}
		}
		return nil
	}
	p, ok := w.rows[key]
	if !ok || !strings.HasPrefix(p.Kind, "list") && key != "mounts[].options" {
		return w.fail(n, "%s is not a list", key)
	}
	var values []string
	for _, e := range n.Content {
		values = append(values, e.Value)
	}
	if err := p.set(w.settings, strings.Join(values, ",")); err != nil {
		return w.fail(n, "%s: %v", key, err)
	}
	return nil
}

// grow adds the element of a list that the keys behind it then fill.
func (s *Settings) grow(key string) {
	switch key {
	case "links":
		s.Links = append(s.Links, config.Link{Path: "/"})
	case "mounts":
		s.Mounts = append(s.Mounts, config.Mount{})
	case "cache.disks":
		s.Cache.Disks = append(s.Cache.Disks, config.Disk{})
	}
}

func (w *yamlWalk) below(prefix string) bool {
	for key := range w.rows {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// unknown names the key most likely meant among those that may stand there.
func (w *yamlWalk) unknown(n *yaml.Node, parent, key string) error {
	var here []string
	for k := range w.rows {
		rest, ok := strings.CutPrefix(k, strings.TrimPrefix(parent+".", "."))
		if !ok {
			continue
		}
		rest, _, _ = strings.Cut(strings.ReplaceAll(rest, "[]", ""), ".")
		if !slices.Contains(here, rest) {
			here = append(here, rest)
		}
	}
	slices.Sort(here)
	if near := cli.Nearest(n.Value, here); near != "" {
		return w.fail(n, "unknown key %s; the nearest is %s", key, near)
	}
	return w.fail(n, "unknown key %s; here may stand: %s", key, strings.Join(here, ", "))
}

func (w *yamlWalk) fail(n *yaml.Node, format string, args ...any) error {
	return cli.Usagef("%s:%d: %s", w.name, n.Line, fmt.Sprintf(format, args...))
}

// Variables that are no parameters: LeaksVariable asks a node for what it has not
// given back at its end, ReadyVariable has a detached process tell on that descriptor
// that its mount answers, and JournalVariable names another socket than journald's.
const (
	LeaksVariable   = "HEARTH_LEAKS"
	ReadyVariable   = "HEARTH_DAEMON_READY_FD"
	JournalVariable = "HEARTH_JOURNAL_SOCKET"
)

// otherVariables are HEARTH_ names that are no parameters.
func otherVariables() []string {
	return []string{"HEARTH_CONFIG", "HEARTH_NODE", "HEARTH_TOOLS", JournalVariable, LeaksVariable, ReadyVariable}
}

// checkEnviron refuses variables of a later version, and warns of those that
// look like one of ours: a typo would otherwise do nothing, in silence.
func checkEnviron(environ []string, warn io.Writer) error {
	known := otherVariables()
	for _, p := range Params() {
		known = append(known, p.Variable())
	}
	later := func(name string) bool {
		return slices.ContainsFunc(laterParams(), func(p Param) bool {
			return strings.HasPrefix(name+"_", "HEARTH_"+strings.ToUpper(p.Key)+"_")
		})
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case !strings.HasPrefix(name, "HEARTH_") || value == "" || slices.Contains(known, name):
		case later(name):
			return cli.Usagef("%s: %w", name, ErrLater)
		default:
			if near := cli.Nearest(name, known); near != "" {
				fmt.Fprintf(warn, "hearth: %s is no variable of hearth's and does nothing; the nearest is %s\n", name, near)
			}
		}
	}
	return nil
}
