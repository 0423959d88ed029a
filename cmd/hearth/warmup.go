package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/screen"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// warmupFlags are the flags of warmup and pin.
type warmupFlags struct {
	list, rate, wait   string
	nul, metadata, dry bool
	detach             bool
	pin                string
	check, volumes     bool
	replicas           string // of later versions
	request            warmup.Request
	enough             float64 // the part of the job that is waited for, 0 to 1
	at                 *place
}

func warmupCommand() *cobra.Command {
	f := &warmupFlags{}
	cmd := &cobra.Command{
		Use: "warmup [PATH|URL]... | -f LIST", GroupID: "data",
		Short: "Load a directory or a list into the disk cache before a job",
		Long: "Have the node load what lies below paths, or all that a list names, into its disk cache, and wait.\n" +
			"The job belongs to the node: Ctrl-C leaves it, and it goes on after a restart of the node. Exit code\n" +
			"3: not all of it is present (the lines before say why), 8: it does not fit.\n" +
			"With --check nothing is loaded: every byte is read from the device, past the page cache, and compared\n" +
			"with its checksum, and names with a fresh listing. What is missing, corrupt, changed or vanished is\n" +
			"named (the first 20 of each; all with -o jsonl), and the exit code is 3.\n" +
			"With --to-volume all of that is about the node's volumes, in the place of its disk cache. A check\n" +
			"names as unread what a volume did not give, so that nobody knows whether it is there.",
		Example: "  hearth warmup /\n  hearth warmup --check /",
		Args:    cobra.ArbitraryArgs,
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	s := cmd.Flags()
	s.StringVarP(&f.list, "file", "f", "", "load what this file names, a path or URL a line (-: standard input)")
	s.BoolVarP(&f.nul, "null", "0", false, "the list's paths are separated by NUL")
	s.BoolVar(&f.metadata, "metadata-only", false, "list names, load nothing; needs no disk cache")
	s.StringVar(&f.rate, "rate", "", "ask the origin for no more than this, such as 200MiB/s; with --check, read no more from the device")
	s.StringVar(&f.wait, "wait", "100%", "come back once so much is present; the job goes on")
	s.Lookup("wait").NoOptDefVal = "100%"
	s.BoolVar(&f.detach, "detach", false, "print the job's id and come back at once")
	s.BoolVar(&f.dry, "dry-run", false, "list, and say what would be loaded, whether it fits (else exit code 8), and how long it may take")
	s.StringVar(&f.pin, "pin", "", "keep it in the cache for so long, whatever else is read (0: until hearth unpin)")
	s.StringVar(&f.replicas, "replicas", "", "")
	s.BoolVar(&f.check, "check", false, "load nothing: read what is held from the device, compare it and its names with the origin's listing")
	s.BoolVar(&f.volumes, "to-volume", false, "keep it on the node's volumes, not in its disk cache; with --check: check what they hold")
	s.Lookup("pin").NoOptDefVal = "24h"
	for _, later := range []string{"replicas"} {
		s.Lookup(later).Hidden = true
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.read(cmd, args); err != nil {
			return err
		}
		return f.begin(c, cmd)
	}
	cli.Separate(cmd, func(cmd *cobra.Command, word string) bool { return named(c, cmd, word) }, "wait", "pin")
	return cmd
}

// named reports whether the running node has something of that name.
func named(c *cli.Common, cmd *cobra.Command, word string) bool {
	return nil == askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
		_, err := n.Stat(ctx, here(ctx, n).Absolute(word))
		return err
	})
}

// read checks the flags and the arguments, and makes the request of them.
func (f *warmupFlags) read(cmd *cobra.Command, args []string) (err error) {
	for _, other := range []string{"pin", "dry-run", "metadata-only", "wait"} {
		if f.check && cmd.Flags().Changed(other) {
			return cli.Usagef("--check and --%s exclude each other: a check only looks, and is over when all is read", other)
		}
	}
	for _, later := range []string{"replicas"} {
		if cmd.Flags().Changed(later) {
			return cli.Usagef("--%s: %w", later, settings.ErrLater)
		}
	}
	if (len(args) == 0) == (f.list == "") {
		return cli.Usagef("name either paths or a list with -f: hearth %s", cmd.Use)
	}
	for _, pair := range [][2]string{{"detach", "wait"}, {"detach", "dry-run"}, {"metadata-only", "dry-run"}, {"pin", "dry-run"}, {"pin", "metadata-only"},
		{"to-volume", "pin"}, {"to-volume", "metadata-only"}} {
		if cmd.Flags().Changed(pair[0]) && cmd.Flags().Changed(pair[1]) {
			return cli.Usagef("--%s and --%s exclude each other", pair[0], pair[1])
		}
	}
	if f.nul && f.list == "" {
		return cli.Usagef("-0 is for a list: -f LIST")
	}
	f.request = warmup.Request{Targets: args, List: f.list, MetadataOnly: f.metadata, DryRun: f.dry, Check: f.check, ToVolume: f.volumes}
	if f.pin != "" {
		if f.request.PinS, err = pinFor(f.pin); err != nil {
			return cli.Usagef("--pin: %w", err)
		}
		if f.list != "" {
			return cli.Usagef("--pin follows paths, not a list: name the paths, or a directory that they lie in")
		}
	}
	percent, ok := strings.CutSuffix(f.wait, "%")
	n, err := strconv.ParseFloat(percent, 64)
	if err != nil || !ok || !(n > 0 && n <= 100) {
		return cli.Usagef("--wait: %q is not a percentage above 0%% and up to 100%%", f.wait)
	}
	f.enough = n / 100
	if f.rate != "" {
		if f.request.Rate, err = settings.ParseRate(f.rate); err != nil || f.request.Rate <= 0 {
			return cli.Usagef("--rate: %q is not a rate such as 200MiB/s", f.rate)
		}
	}
	return nil
}

// withJobs runs do with the jobs of the running node.
func withJobs(c *cli.Common, cmd *cobra.Command, do func(context.Context, *admin.Jobs) error) error {
	return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
		return jobsEnd(ctx, do(ctx, n.Jobs()))
	})
}

// jobsEnd is the error of a verb about jobs. An error that names its exit code already stays as it
// is.
func jobsEnd(ctx context.Context, err error) error {
	var said *cli.ExitError
	if errors.As(err, &said) {
		return err
	}
	return cli.HintUp(cli.Because(ctx, err))
}

// begin asks the running node for the job.
func (f *warmupFlags) begin(c *cli.Common, cmd *cobra.Command) error {
	return askNode(c, cmd, func(ctx context.Context, n *admin.Client) error {
		f.at = here(ctx, n)
		return jobsEnd(ctx, f.run(ctx, c, cmd, n.Jobs()))
	})
}

// maxTargets is how many bytes of paths a request may hold. More paths are sent as a list.
const maxTargets = 64 << 10

func (f *warmupFlags) run(ctx context.Context, c *cli.Common, cmd *cobra.Command, n *admin.Jobs) error {
	var list io.Reader
	switch f.list {
	case "":
	case "-":
		list = cmd.InOrStdin()
	default:
		file, err := os.Open(f.list)
		if err != nil {
			return fmt.Errorf("read the list: %w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		if list = file; !filepath.IsAbs(f.list) {
			if name, err := filepath.Abs(f.list); err == nil { // so that lists of one name in two directories are two jobs
				f.request.List = name
			}
		}
	}
	if list != nil {
		list = f.at.List(list, map[bool]byte{false: '\n', true: 0}[f.nul])
	}
	f.request.Targets = f.at.All(f.request.Targets)
	if given := strings.Join(f.request.Targets, "\x00"); len(given) > maxTargets { // such as * in a large directory
		if f.request.PinS != 0 {
			return cli.Usagef("that many paths are not pinned one by one: name a directory that they lie in")
		}
		f.request.List, f.request.Targets, f.nul = "arguments", nil, true
		list = strings.NewReader(given)
	}
	v, err := f.submit(ctx, n, list)
	if err != nil {
		return f.at.Said(err)
	}
	if f.detach {
		if c.Output != "table" {
			return c.PrintJSON(cli.Out(cmd), v)
		}
		_, err := fmt.Fprintln(cli.Out(cmd), v.ID)
		return err
	}
	w := &waiter{c: c, cmd: cmd, jobs: n, enough: f.enough, at: f.at}
	if v, err = w.wait(ctx, v.ID); err != nil {
		return err
	}
	if f.dry && v.State == warmup.Done {
		return w.plan(ctx, v, f.request.Rate)
	}
	return w.result(ctx, v)
}

// lateID is how long a verb waits after Ctrl-C for the ID of the job that it asked for. The job may
// run already, and without the ID nobody could come back to it.
const lateID = 2 * time.Second

// submit begins the job. A list from standard input is given up at once after Ctrl-C, since it is
// incomplete.
func (f *warmupFlags) submit(ctx context.Context, n *admin.Jobs, list io.Reader) (*warmup.View, error) {
	asked, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, func() {
		if f.list == "-" || cli.ExitCode(context.Cause(ctx)) != cli.ExitInterrupted {
			end()
		}
		time.AfterFunc(lateID, end)
	})
	defer stop()
	return n.Submit(asked, f.request, list, f.nul)
}

// waiter waits for a job and shows it.
type waiter struct {
	c      *cli.Common
	cmd    *cobra.Command
	jobs   *admin.Jobs
	enough float64
	at     *place // where its paths were typed; nil means by another command
}

// wait follows a job until it is over, or until enough of it is present.
func (w *waiter) wait(ctx context.Context, id string) (last *warmup.View, err error) {
	p := &screen.ProgressPrinter{}
	switch {
	case w.c.Output == "jsonl":
		p.Out = cli.Out(w.cmd)
	case w.c.Quiet || w.c.Output == "json":
	case cli.IsTerminal(os.Stderr):
		p.Terminal = os.Stderr
	default:
		p.Log = os.Stderr
	}
	var broken error
	err = w.jobs.Watch(ctx, id, func(v warmup.View) bool {
		last = &v
		if w.at != nil && w.c.Output == "table" {
			v.As = slices.Clone(v.Shown())
			for i, path := range v.As {
				v.As[i] = w.at.Typed(path)
			}
		}
		broken = p.Tell(&v)
		return broken == nil && (w.enough >= 1 || screen.JobShare(&v.Progress) < w.enough)
	})
	p.Clear()
	switch code := cli.ExitCode(cli.Because(ctx, err)); {
	case broken != nil:
		return nil, broken
	case code == cli.ExitInterrupted, code == cli.ExitTimeout, err != nil && code == cli.ExitUnreachable && last != nil:
		return nil, &cli.ExitError{Code: code, Err: fmt.Errorf("%w: the job %s goes on; come back with: hearth jobs wait %s", cli.Because(ctx, err), id, id)}
	}
	return last, err
}

// result prints how a job ended, and returns its exit code as an error.
func (w *waiter) result(ctx context.Context, v *warmup.View) error {
	out := cli.Out(w.cmd)
	switch w.c.Output {
	case "jsonl":
		if v.Checked == nil {
			break
		}
		if err := w.jobs.Found(ctx, v.ID, func(s warmup.Sample) error { return w.c.PrintJSON(out, s) }); err != nil {
			return err
		}
	case "json":
		if err := w.c.PrintJSON(out, v); err != nil {
			return err
		}
	case "table":
		if err := printOutcome(out, v); err != nil {
			return err
		}
	}
	code := cli.ExitFailed
	switch {
	case v.State == warmup.Done, !v.State.Over(), v.State == warmup.Partly && w.enough < 1 && screen.JobShare(&v.Progress) >= w.enough: // enough was present
		return nil
	case v.State == warmup.Partly:
		return &cli.ExitError{Code: cli.ExitPartly}
	case v.State == warmup.Cancelled:
		return &cli.ExitError{Code: code, Err: fmt.Errorf("the job %s was cancelled", v.ID)}
	case v.Kind == "refused":
		code = cli.ExitRefused
	case v.Kind == "not_found":
		code = cli.ExitNotFound
	}
	return &cli.ExitError{Code: code, Err: fmt.Errorf("the job %s failed: %s", v.ID, v.Error)}
}

// printOutcome prints what became of a job, and the first causes of what is missing.
func printOutcome(out io.Writer, v *warmup.View) error {
	text := bufio.NewWriter(out)
	for _, s := range v.Samples {
		if s.What != "" {
			fmt.Fprintf(text, "%-8s  ", s.What)
		}
		fmt.Fprintf(text, "%s: %s\n", cli.QuoteFor(out, v.Typed(s.Path)), cli.QuoteText(s.Cause))
	}
	for _, line := range screen.CheckLines(v) {
		fmt.Fprintln(text, line)
	}
	fmt.Fprintln(text, screen.JobState(v, time.Now()))
	return text.Flush()
}

// plan prints what a job would do at a rate in bytes per second. 0 means any rate.
func (w *waiter) plan(ctx context.Context, v *warmup.View, rate int64) error {
	p := &v.Plan
	left := warmup.Tally{Files: p.Total.Files - p.Held.Files - p.Missing - p.Archived.Files, Bytes: p.Total.Bytes - p.Held.Bytes - p.Archived.Bytes}
	fits := p.Lacks == ""
	all, err := w.jobs.List(ctx)
	if err != nil {
		return err
	}
	e := screen.EstimateOf(p, rate, all)
	out := cli.Out(w.cmd)
	if w.c.Output != "table" {
		doc := struct {
			*warmup.Plan
			Load warmup.Tally `json:"load"`
			Fits bool         `json:"fits"`
			ETAS *int64       `json:"eta_s"`             // null: no job has loaded enough yet
			Pace string       `json:"eta_job,omitempty"` // the job whose pace it is
		}{Plan: p, Load: left, Fits: fits, Pace: e.Job}
		if e.Known {
			s := int64(e.Took.Seconds())
			doc.ETAS = &s
		}
		if err := w.c.PrintJSON(out, doc); err != nil {
			return err
		}
	} else {
		text := bufio.NewWriter(out)
		for _, s := range v.Samples {
			fmt.Fprintf(text, "%s: %s\n", cli.QuoteFor(out, v.Typed(s.Path)), cli.QuoteText(s.Cause))
		}
		anew := ""
		if p.Lists > 0 {
			anew = fmt.Sprintf(", and %d if it lists anew", p.Lists)
		}
		fmt.Fprintf(text, "found    %s, %s\npresent  %s, %s\nload     %s, %s by %s%s\n", cli.Count(p.Total.Files-p.Missing, "file"), cli.Bytes(p.Total.Bytes),
			cli.Count(p.Held.Files, "file"), cli.Bytes(p.Held.Bytes), cli.Count(left.Files, "file"), cli.Bytes(left.Bytes), cli.Count(p.Requests, "request"), anew)
		if p.Archived.Files > 0 {
			fmt.Fprintf(text, "archived %s, %s by their storage class: restore them at the origin first (aws s3api restore-object); what was restored is loaded, too\n",
				cli.Count(p.Archived.Files, "file"), cli.Bytes(p.Archived.Bytes))
		}
		says := "it fits"
		if !fits {
			says = cli.QuoteText(p.Lacks)
		}
		tier := "disk     %s of the %s that the cache may hold: %s\n"
		if v.ToVolume {
			tier = "volumes  %s of the %s that they may hold: %s\n"
		}
		fmt.Fprintf(text, tier, cli.Bytes(p.Needs), cli.Bytes(p.Room), says)
		fmt.Fprintf(text, "time     %s\n", e.Says)
		if err := text.Flush(); err != nil {
			return err
		}
	}
	switch {
	case !fits:
		return &cli.ExitError{Code: cli.ExitRefused}
	case p.Missing > 0:
		return &cli.ExitError{Code: cli.ExitPartly}
	}
	return nil
}
