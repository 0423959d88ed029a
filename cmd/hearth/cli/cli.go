// Package cli is what all verbs of the command share: their common flags, a context that Ctrl-C and
// --timeout end, and one table from errors to exit codes. It also writes results for people and for
// programs.
package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/node/admin"
)

// DefaultConfig is the configuration file that is read if it exists. A file that --config names
// must exist.
const DefaultConfig = "/etc/hearth/hearth.yaml"

// Common are the flags that every verb has.
type Common struct {
	Output         string // table, json or jsonl
	Quiet, Verbose bool
	NoColor        bool
	Timeout        time.Duration // 0 means no limit
	Node, Config   string        // as given; "" means the default
}

// AddCommon gives cmd the flags of every verb but -o, which mount needs itself.
func AddCommon(cmd *cobra.Command) *Common {
	c := &Common{Output: "table"}
	f := cmd.Flags()
	f.BoolVarP(&c.Quiet, "quiet", "q", false, "print results and errors only")
	f.BoolVarP(&c.Verbose, "verbose", "v", false, "print more")
	f.BoolVar(&c.NoColor, "no-color", false, "no colours (also NO_COLOR, and where the output is no terminal)")
	f.DurationVar(&c.Timeout, "timeout", 0, "give up after this long (exit code 7)")
	f.StringVar(&c.Node, "node", "", "the node to ask: unix://PATH (also HEARTH_NODE; default: this machine's)")
	f.StringVar(&c.Config, "config", "", "configuration file (default "+DefaultConfig+")")
	return c
}

// AddOutput gives cmd the flag -o of a verb that prints tables and documents.
func AddOutput(cmd *cobra.Command, c *Common) {
	cmd.Flags().StringVarP(&c.Output, "output", "o", "table", "table, json or jsonl")
	Complete(cmd, "output", "table", "json", "jsonl")
}

// Complete gives the shell the words that a flag takes.
func Complete(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, Words(words...)) // it fails only if there is no such flag
}

// Words completes an argument with those words, and not with files.
func Words(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) (fit []string, _ cobra.ShellCompDirective) {
		for _, w := range words {
			if strings.HasPrefix(w, begun) {
				fit = append(fit, w)
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// Context is the context of a short verb. Ctrl-C, SIGTERM and --timeout end it.
func (c *Common) Context(parent context.Context) (context.Context, func()) {
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
			cancel(ErrInterrupted)
		case <-done:
		}
	}()
	stop := func() {
		signal.Stop(signals)
		close(done)
		<-stopped
		cancel(nil)
	}
	ctx, release := c.Limit(ctx)
	return ctx, func() { release(); stop() }
}

// Limit ends a context after --timeout.
func (c *Common) Limit(ctx context.Context) (context.Context, func()) {
	if c.Timeout <= 0 {
		return ctx, func() {}
	}
	late := &admin.Error{Kind: admin.KindTimeout, Message: fmt.Sprintf("timed out after %v", c.Timeout)}
	return context.WithTimeoutCause(ctx, c.Timeout, late)
}

// HintUp adds how to start a node to an error that says that none runs.
func HintUp(err error) error {
	if ExitCode(err) == ExitUnreachable {
		return &ExitError{ExitUnreachable, fmt.Errorf("%w; start one with: hearth up ORIGIN", err)}
	}
	return err
}

// Exactly checks the number of a verb's arguments. Its error names the argument that is missing.
func Exactly(names ...string) cobra.PositionalArgs {
	return Between(len(names), names...)
}

// Between is Exactly for a verb that needs only the first least arguments.
func Between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usagef("%s is missing: %s", names[len(args)], usage(cmd))
		case len(args) > len(names):
			return Usagef("%q is one argument too many: %s", args[len(names)], usage(cmd))
		}
		return nil
	}
}

// Because returns the reason for which a context ended, if it did. That says more than the error
// that followed from it.
func Because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// usage is how a command is called.
func usage(cmd *cobra.Command) string {
	if cmd.HasParent() {
		return cmd.Parent().CommandPath() + " " + cmd.Use
	}
	return cmd.Use
}
