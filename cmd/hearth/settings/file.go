package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/config"
)

// Problem is what is wrong with a file, and in which line. 0 means that it has no line.
type Problem struct {
	Line    int    `json:"line"`
	Message string `json:"message"`
}

// In formats the problem as compilers do: FILE:LINE: what is wrong.
func (p Problem) In(file string) string {
	if p.Line == 0 {
		return file + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d: %s", file, p.Line, p.Message)
}

// Check reads a file by itself, and goes on after each problem. The Settings have what it
// understood.
func Check(name string) (*Settings, []Problem, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, fmt.Errorf("read the configuration: %w", err)
	}
	s := &Settings{File: name}
	return s, s.readYAML(text), nil
}

// ReadYAML applies a file strictly. A key that is not in the table is an error with its line and
// the nearest name.
func ReadYAML(s *Settings, name string, text []byte) error {
	s.File = name
	if problems := s.readYAML(text); len(problems) > 0 {
		return cli.Usagef("%s", problems[0].In(name))
	}
	return nil
}

// Line is the line of the file in which a key or an element stands, otherwise that of the key
// around it. 0 means that neither is in the file.
func (s *Settings) Line(key string) int {
	for key != "" && s.lines[key] == 0 {
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return s.lines[key]
}

func (s *Settings) readYAML(text []byte) []Problem {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return []Problem{misread(err)}
	}
	switch err := d.Decode(&more); {
	case err == nil:
		return []Problem{{more.Line, "a second document"}}
	case !errors.Is(err, io.EOF):
		return []Problem{misread(err)}
	}
	s.lines = map[string]int{}
	w := &yamlWalk{settings: s, rows: map[string]Param{}}
	for _, p := range Params() {
		if !p.FlagOnly {
			w.rows[p.Key] = p
		}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	w.walk("", root)
	return w.problems
}

// misread turns an error of the YAML reader into a Problem with its line.
func misread(err error) Problem {
	text := err.Error()
	if strings.Contains(text, "did not find expected alphabetic") { // as of *.tmp, which YAML reads as a reference
		text += "; a value that begins with * or & needs quotes"
	}
	parts := regexp.MustCompile(`^yaml: line (\d+): (.*)`).FindStringSubmatch(text)
	if parts == nil {
		return Problem{0, text}
	}
	line, _ := strconv.Atoi(parts[1])
	return Problem{line, "no YAML: " + parts[2]}
}

// yamlWalk walks through a file. In its keys [] stands for the elements of a list.
type yamlWalk struct {
	settings *Settings
	rows     map[string]Param
	problems []Problem
}

func (w *yamlWalk) walk(key string, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if key == "volumes" && n.Kind != yaml.MappingNode { // the short form
		key = "volumes.devices"
	}
	switch n.Kind {
	case yaml.MappingNode:
		w.mapping(key, n)
		return
	case yaml.SequenceNode:
		w.sequence(key, n)
		return
	}
	p, ok := w.rows[key]
	if strings.HasSuffix(key, "[]") { // an element that is an address alone
		p, ok = w.rows[key+".url"]
	}
	switch {
	case !ok:
		w.fail(n, "%s is not a single value", key)
	case n.Tag == "!!null":
		w.fail(n, "%s has no value", key)
	default:
		w.take(p, n, n.Value)
	}
}

func (w *yamlWalk) take(p Param, n *yaml.Node, value string) {
	v := Value{Key: w.settings.indexed(p.Key), Value: value, Source: FromFile, Where: fmt.Sprintf("%s:%d", w.settings.File, n.Line)}
	if err := w.settings.take(p, v); err != nil {
		w.fail(n, "%s: %v", p.Key, err)
	}
}

func (w *yamlWalk) mapping(key string, n *yaml.Node) {
	if key != "" && !w.below(key+".") {
		w.fail(n, "%s has no keys below it", key)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		child := strings.TrimPrefix(key+"."+k.Value, ".")
		_, ok := w.rows[child]
		switch {
		case seen[child]:
			w.fail(k, "%s stands here twice", child)
		case !ok && !w.below(child+".") && !w.below(child+"[]"):
			w.unknown(k, key, child)
		default:
			w.settings.lines[w.settings.indexed(child)] = k.Line
			w.walk(child, n.Content[i+1])
		}
		seen[child] = true
	}
}

func (w *yamlWalk) sequence(key string, n *yaml.Node) {
	if w.below(key + "[].") {
		for _, e := range n.Content {
			w.settings.grow(key)
			w.settings.lines[w.settings.indexed(key+"[]")] = e.Line
			w.walk(key+"[]", e)
		}
		return
	}
	p, ok := w.rows[key]
	if !ok || !strings.HasPrefix(p.Kind, "list") && key != "mounts[].options" {
		w.fail(n, "%s is not a list", key)
		return
	}
	var values []string
	for _, e := range n.Content {
		values = append(values, e.Value)
	}
	w.take(p, n, strings.Join(values, ","))
}

// grow adds an element to a list. The keys that follow fill it.
func (s *Settings) grow(key string) {
	switch key {
	case "links":
		s.Links = append(s.Links, config.Link{Path: "/"})
	case "mounts":
		s.Mounts = append(s.Mounts, config.Mount{})
	case "cache.disks":
		s.Cache.Disks = append(s.Cache.Disks, config.Disk{})
	case "volumes.devices":
		s.Volumes.Devices = append(s.Volumes.Devices, config.Volume{})
	}
}

// count is the number of elements of a list.
func (s *Settings) count(key string) int {
	return map[string]int{"links": len(s.Links), "mounts": len(s.Mounts), "cache.disks": len(s.Cache.Disks), "volumes.devices": len(s.Volumes.Devices)}[key]
}

// indexed names the last element of a list: links[1].path for links[].path.
func (s *Settings) indexed(key string) string {
	list, rest, ok := strings.Cut(key, "[]")
	if !ok {
		return key
	}
	return fmt.Sprintf("%s[%d]%s", list, s.count(list)-1, rest)
}

func (w *yamlWalk) below(prefix string) bool {
	for key := range w.rows {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// unknown reports an unknown key, with the nearest one of those that may stand there.
func (w *yamlWalk) unknown(n *yaml.Node, parent, key string) {
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
		w.fail(n, "unknown key %s; the nearest is %s", key, near)
		return
	}
	w.fail(n, "unknown key %s; here may stand: %s", key, strings.Join(here, ", "))
}

func (w *yamlWalk) fail(n *yaml.Node, format string, args ...any) {
	w.problems = append(w.problems, Problem{n.Line, fmt.Sprintf(format, args...)})
}
