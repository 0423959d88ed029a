package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/node"
)

// common are the flags that every verb has.
type common struct {
	output         string
	quiet, verbose bool
	noColor        bool
	timeout        time.Duration
	node, config   string
	log            *logbook // of a node that this process starts; nil: none
}

// addCommon gives cmd the flags of every verb but -o, which mount needs itself.
func addCommon(cmd *cobra.Command) *common {
	c := &common{output: "table"}
	f := cmd.Flags()
	f.BoolVarP(&c.quiet, "quiet", "q", false, "print results and errors only")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "print more")
	f.BoolVar(&c.noColor, "no-color", false, "no colours (also NO_COLOR, and where the output is no terminal)")
	f.DurationVar(&c.timeout, "timeout", 0, "give up after this long (exit code 7)")
	f.StringVar(&c.node, "node", "", "the node to ask: unix://PATH (default: this machine's)")
	f.StringVar(&c.config, "config", "", "configuration file (default "+defaultConfig+")")
	return c
}

func addOutput(cmd *cobra.Command, c *common) {
	cmd.Flags().StringVarP(&c.output, "output", "o", "table", "table, json or jsonl")
}

// addParams gives cmd the flags of the table's rows whose key is in one of the
// groups.
func addParams(cmd *cobra.Command, groups ...string) {
	for _, p := range params() {
		if p.flag == "" || !slices.Contains(groups, p.group()) {
			continue
		}
		help := p.help
		if p.def != "none" && p.def != "false" {
			help += " (default " + p.def + ")"
		}
		if strings.HasPrefix(p.kind, "bool") {
			cmd.Flags().Bool(p.flag, p.def == "true", p.help)
			continue
		}
		word, _, _ := strings.Cut(p.kind, ",")
		word, _, _ = strings.Cut(word, " ")
		cmd.Flags().Var(&textFlag{kind: word}, p.flag, help)
	}
}

// textFlag keeps what was written; the table's row reads it.
type textFlag struct{ value, kind string }

func (f *textFlag) String() string     { return f.value }
func (f *textFlag) Set(s string) error { f.value = s; return nil }
func (f *textFlag) Type() string       { return f.kind }

// context of a short verb: ended by Ctrl-C, SIGTERM and --timeout.
func (c *common) context(parent context.Context) (context.Context, func()) {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-signals:
			cancel(errInterrupted)
		case <-done:
		}
	}()
	stop := func() {
		signal.Stop(signals)
		close(done)
		<-stopped
		cancel(nil)
	}
	ctx, release := c.limit(ctx)
	return ctx, func() { release(); stop() }
}

// limit ends a context after --timeout.
func (c *common) limit(ctx context.Context) (context.Context, func()) {
	if c.timeout <= 0 {
		return ctx, func() {}
	}
	late := &node.Error{Kind: node.KindTimeout, Message: fmt.Sprintf("timed out after %v", c.timeout)}
	return context.WithTimeoutCause(ctx, c.timeout, late)
}

// client of the node that --node, the configuration or the default names.
func (c *common) client(s *settings) (*node.Client, error) {
	address := c.node
	if address == "" {
		address = os.Getenv("HEARTH_NODE")
	}
	if address == "" {
		address = s.node.Admin.Socket
	}
	return node.Dial(address)
}

// hintUp tells who finds no node how to start one.
func hintUp(err error) error {
	if exitCode(err) == exitUnreachable {
		return &exitError{exitUnreachable, fmt.Errorf("%w; start one with: hearth up ORIGIN", err)}
	}
	return err
}

// checkOutput refuses a format that no verb has.
func (c *common) checkOutput() error {
	if _, err := parseChoice(c.output, "table", "json", "jsonl"); err != nil {
		return usagef("-o: %v", err)
	}
	return nil
}

// printJSON writes one document, indented for people with -o json.
func (c *common) printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if c.output == "json" {
		e.SetIndent("", "  ")
	}
	return e.Encode(v)
}

// exactly is the number of arguments a verb takes, named in its error.
func exactly(names ...string) cobra.PositionalArgs {
	return between(len(names), names...)
}

func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s is missing: hearth %s", names[len(args)], cmd.Use)
		case len(args) > len(names):
			return usagef("%q is one argument too many: hearth %s", args[len(names)], cmd.Use)
		}
		return nil
	}
}
