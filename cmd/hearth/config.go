package main

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

	"github.com/hearthfs/hearth/node"
)

// defaultConfig is read if it exists; a file named by --config must.
const defaultConfig = "/etc/hearth/hearth.yaml"

// defaultScrub is in bytes per second: a terabyte in a day and a half, by a
// hundredth of a disk's work or less.
const defaultScrub = 8 << 20

// load gathers the settings: defaults, then the file, the environment, the flags.
func load(cmd *cobra.Command) (*settings, error) {
	s := &settings{}
	s.node.Version = version()
	s.node.Cache.Scrub = defaultScrub
	if err := s.readFile(cmd); err != nil {
		return nil, err
	}
	if err := checkEnviron(os.Environ(), os.Stderr); err != nil {
		return nil, err
	}
	for _, p := range params() {
		v, ok := os.LookupEnv(p.env())
		if p.env() == "" || !ok || v == "" {
			continue
		}
		if err := p.set(s, v); err != nil {
			return nil, usagef("%s: %v", p.env(), err)
		}
	}
	if v := cmd.Flags().Lookup("verbose"); v != nil && v.Changed {
		s.logLevel = "debug"
	}
	for _, p := range params() {
		f := cmd.Flags().Lookup(p.flag)
		if p.flag == "" || f == nil || !f.Changed {
			continue
		}
		if err := p.set(s, f.Value.String()); err != nil {
			return nil, usagef("--%s: %v", p.flag, err)
		}
	}
	return s, nil
}

// nodeConfig is what a node is started with; origin is the command's argument,
// which goes before all else.
func (s *settings) nodeConfig(origin string) (node.Config, error) {
	c := s.node
	root := s.root
	if origin != "" {
		root.Origin.URL = origin
	}
	if root.Origin.URL != "" {
		root.Path = "/"
		c.Links = append([]node.Link{root}, c.Links...)
	}
	return c, c.Validate()
}

func (s *settings) readFile(cmd *cobra.Command) error {
	name, named := configFile(cmd)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return usagef("read the configuration: %v", err)
	}
	s.node.File = name
	return readYAML(s, name, text)
}

func configFile(cmd *cobra.Command) (name string, named bool) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		return f.Value.String(), true
	}
	if v := os.Getenv("HEARTH_CONFIG"); v != "" {
		return v, true
	}
	return defaultConfig, false
}

// readYAML applies a file strictly: a key that no row of the table has is an
// error with its line and the nearest name.
func readYAML(s *settings, name string, text []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return usagef("%s: %v", name, err)
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return usagef("%s:%d: a second document", name, more.Line)
	}
	w := &yamlWalk{settings: s, name: name, rows: map[string]param{}}
	for _, p := range params() {
		if !p.flagOnly {
			w.rows[p.key] = p
		}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	return w.walk("", root)
}

type yamlWalk struct {
	settings *settings
	name     string
	rows     map[string]param
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
			return w.fail(k, "%s: %v", child, errLater)
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
	if !ok || !strings.HasPrefix(p.kind, "list") && key != "mounts[].options" {
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
func (s *settings) grow(key string) {
	switch key {
	case "links":
		s.node.Links = append(s.node.Links, node.Link{Path: "/"})
	case "mounts":
		s.node.Mounts = append(s.node.Mounts, node.Mount{})
	case "cache.disks":
		s.node.Cache.Disks = append(s.node.Cache.Disks, node.Disk{})
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
	if near := nearest(n.Value, here); near != "" {
		return w.fail(n, "unknown key %s; the nearest is %s", key, near)
	}
	return w.fail(n, "unknown key %s; here may stand: %s", key, strings.Join(here, ", "))
}

func (w *yamlWalk) fail(n *yaml.Node, format string, args ...any) error {
	return usagef("%s:%d: %s", w.name, n.Line, fmt.Sprintf(format, args...))
}

// otherVariables are HEARTH_ names that are no parameters.
func otherVariables() []string {
	return []string{"HEARTH_CONFIG", "HEARTH_NODE", "HEARTH_TOOLS", "HEARTH_JOURNAL_SOCKET", leaksVariable, readyFD}
}

// checkEnviron refuses variables of a later version, and warns of those that
// look like one of ours: a typo would otherwise do nothing, in silence.
func checkEnviron(environ []string, warn io.Writer) error {
	known := otherVariables()
	for _, p := range params() {
		known = append(known, p.env())
	}
	later := func(name string) bool {
		return slices.ContainsFunc(laterParams(), func(p param) bool {
			return strings.HasPrefix(name+"_", "HEARTH_"+strings.ToUpper(p.key)+"_")
		})
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case !strings.HasPrefix(name, "HEARTH_") || value == "" || slices.Contains(known, name):
		case later(name):
			return usagef("%s: %w", name, errLater)
		default:
			if near := nearest(name, known); near != "" {
				fmt.Fprintf(warn, "hearth: %s is no variable of hearth's and does nothing; the nearest is %s\n", name, near)
			}
		}
	}
	return nil
}
