package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// module is the prefix of our packages' paths.
const module = "github.com/hearthfs/hearth"

// part is one command of a run.
type part struct {
	name string
	// command is what runs, without the choice of tests: a `go test -json` with its flags, or
	// another command if plain.
	command []string
	// tests are added to the command: packages, and -run if not all of their tests run.
	tests []string
	env   []string
	dir   string
	// plain says that the command is no test. It counts as one test.
	plain bool
	// binary says that the command is a test's binary, whose flags begin with -test.
	binary bool
	// beside says that the part runs beside its neighbours that say so, too.
	beside bool
	// until is the time after which the part is not started any more. The zero time means that it
	// always is.
	until time.Time
	// begin is called first. done says that there is nothing to run. So does a skip, which is said.
	begin func() (done bool, err error)
	// kept is called if nothing of the part failed.
	kept func() error
}

// skip is why a part does not run on this machine.
type skip struct{ error }

// event is one event of `go test -json`, with the fields that we use.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// failure is a test that failed, or a package that failed otherwise.
type failure struct {
	part      part
	pkg, test string
	said      string
}

func (f failure) String() string { return strings.TrimSpace(short(f.pkg) + " " + f.test) }

func short(pkg string) string { return strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/") }

// took is a line of the table of parts.
type took struct {
	name                    string
	time                    time.Duration
	passed, failed, skipped int
}

// run is all parts of one call.
type run struct {
	out     io.Writer
	verbose bool

	passed, skipped int
	parts           []took
	table           []string // rows of scenarios, with tabs between their cells
	left            []string // parts that were not started for lack of time
	failures        []failure
	flaky           []string

	output map[string]*strings.Builder // the output of tests that have not passed, by package and test
	begun  map[string]bool             // tests that have not ended, likewise
}

// printf prints, in one write, since parts may run beside each other. If standard output is gone, the exit code has to say the rest.
func (r *run) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }

// mostBeside is how many parts run beside each other. Tests wait more than they compute, and four keep two processors
// busy, so that tests also run in other orders than alone.
const mostBeside = 4

// all runs parts, each after the one before it or beside its neighbours.
func (r *run) all(ctx context.Context, parts []part) {
	for len(parts) > 0 {
		n := slices.IndexFunc(parts, func(p part) bool { return !p.beside })
		if n < 0 {
			n = len(parts)
		}
		r.together(ctx, parts[:n])
		if parts = parts[n:]; len(parts) > 0 {
			r.part(ctx, parts[0])
			parts = parts[1:]
		}
	}
}

// together runs parts beside each other. Each is counted by itself, and added when it has ended.
func (r *run) together(ctx context.Context, parts []part) {
	var (
		at errgroup.Group
		mu sync.Mutex // guards r
	)
	at.SetLimit(mostBeside)
	for _, p := range parts {
		at.Go(func() error {
			one := &run{out: r.out, verbose: r.verbose}
			one.part(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			r.passed, r.skipped = r.passed+one.passed, r.skipped+one.skipped
			r.parts, r.table, r.left = append(r.parts, one.parts...), append(r.table, one.table...), append(r.left, one.left...)
			r.failures = append(r.failures, one.failures...)
			return nil
		})
	}
	_ = at.Wait() // failures are counted
}

// part runs a part, and counts the events that it prints.
func (r *run) part(ctx context.Context, p part) {
	if ctx.Err() != nil {
		return
	}
	if !p.until.IsZero() && time.Now().After(p.until) {
		r.left = append(r.left, p.name)
		return
	}
	if p.begin != nil {
		switch done, err := p.begin(); {
		case errors.As(err, new(skip)):
			r.skipped++
			r.printf("SKIP %s: %v\n", p.name, err)
			return
		case err != nil:
			r.failures = append(r.failures, failure{part: p, pkg: p.name, said: err.Error()})
			return
		case done:
			return
		}
	}
	r.printf("\n== %s: %s\n", p.name, brief(p))
	began, passed, failed, skipped := time.Now(), r.passed, len(r.failures), r.skipped
	r.output, r.begun = map[string]*strings.Builder{}, map[string]bool{}
	if err := r.command(ctx, p); err != nil && len(r.failures) == failed {
		r.failures = append(r.failures, failure{part: p, pkg: p.name, said: err.Error()})
	} else if err == nil && p.plain {
		r.passed++
	}
	if len(r.failures) == failed && p.kept != nil {
		if err := p.kept(); err != nil {
			r.printf("testrun: keep a result: %v\n", err)
		}
	}
	r.parts = append(r.parts, took{p.name, time.Since(began), r.passed - passed, len(r.failures) - failed, r.skipped - skipped})
}

// brief shortens a part's command to 200 bytes.
func brief(p part) string {
	line := strings.Join(append(append(p.env[:len(p.env):len(p.env)], p.command...), p.tests...), " ")
	if len(line) > 200 {
		return line[:200] + " ..."
	}
	return line
}

// command runs a part's command to its end. Its error is that of the exit code.
func (r *run) command(ctx context.Context, p part) error {
	argv := append(p.command[:len(p.command):len(p.command)], p.tests...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(os.Environ(), p.env...), p.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // go test ends what it started
	cmd.WaitDelay = time.Minute
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	ended := make(chan error, 1)
	go func() {
		err := cmd.Run()
		_ = write.Close() // closing a pipe never fails
		ended <- err
	}()
	r.read(read, p)
	if err := <-ended; err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	return nil
}

// read reads a part's output to its end.
func (r *run) read(in io.Reader, p part) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if p.plain || json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			r.printf("%s\n", lines.Text()) // a compiler's message, or the like
			continue
		}
		r.take(e, p)
	}
	if err := lines.Err(); err != nil {
		r.printf("testrun: read what the tests say: %v\n", err)
	}
	_, _ = io.Copy(io.Discard, in) // or the command would hang
}

func (r *run) take(e event, p part) {
	key := e.Package + " " + e.Test
	counted := counts(e.Test)
	if e.Action == "run" {
		r.begun[key] = true
	}
	switch e.Action {
	case "output", "build-output":
		r.hear(key, e.Output)
		return
	case "pass":
		if counted {
			r.passed++
		}
	case "skip":
		if counted {
			r.skipped++
			r.printf("SKIP %s\n%s", key, r.own(key))
		}
	case "fail", "build-fail":
		said, hung := r.said(key), ""
		if e.Test == "" {
			hung = r.hung(e.Package)
			said += hung
		}
		if counted || hung != "" || e.Test == "" && !r.explained(e.Package) {
			r.failures = append(r.failures, failure{p, e.Package, e.Test, said})
		}
		r.printf("FAIL %s\n%s", key, r.own(key)+hung)
	default:
		return
	}
	delete(r.begun, key)
	if r.verbose && counted || e.Test == "" && e.Action == "pass" {
		d := time.Duration(e.Elapsed * float64(time.Second)).Round(100 * time.Millisecond)
		r.printf("%-5s %-50s %s\n", e.Action, short(key), d)
	}
	if e.Action == "pass" {
		delete(r.output, key)
	}
}

// hear keeps what a test prints, and the rows that scenarios print about themselves.
func (r *run) hear(key, said string) {
	if r.output[key] == nil {
		r.output[key] = &strings.Builder{}
	}
	r.output[key].WriteString(said)
	if row, ok := strings.CutPrefix(said, "TABLE "); ok {
		r.table = append(r.table, row)
	}
	if name, ok := strings.CutPrefix(said, "LEFT "); ok {
		r.left = append(r.left, strings.TrimSpace(name))
	}
}

// said is all output of a test, with that of the tests below it that have not passed.
func (r *run) said(key string) string {
	var all strings.Builder
	for k, out := range r.output {
		if strings.HasPrefix(k, key+"/") {
			all.WriteString(out.String())
		}
	}
	return all.String() + r.own(key)
}

// own is the output of a test, without that of the tests below it.
func (r *run) own(key string) string {
	if out := r.output[key]; out != nil {
		return out.String()
	}
	return ""
}

// hung is what a process that was ended for its time says: which tests ran, and where they waited. These words go to
// one of the tests, which then has no end.
func (r *run) hung(pkg string) string {
	for key := range r.begun {
		out := r.own(key)
		if i := strings.Index(out, "panic: "+timedOut); i >= 0 && strings.HasPrefix(key, pkg+" ") {
			return out[i:]
		}
	}
	return ""
}

// counts reports whether a test is counted: a test function, or a scenario below TestScenarios.
func counts(test string) bool {
	scenario, ok := strings.CutPrefix(test, "TestScenarios/")
	if ok {
		return !strings.Contains(scenario, "/")
	}
	return test != "" && test != "TestScenarios" && !strings.Contains(test, "/")
}

// explained reports whether a failed package has a failed test that was counted. Otherwise the
// package itself counts as failed (build, panic, TestMain).
func (r *run) explained(pkg string) bool {
	for key, out := range r.output {
		if strings.HasPrefix(key, pkg+" ") && key != pkg+" " && strings.Contains(out.String(), "--- FAIL") {
			return true
		}
	}
	return false
}

// sum prints the summary at the end, and reports whether all is well.
func (r *run) sum() bool {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	if len(r.table) > 0 {
		fmt.Fprintf(w, "\nscenario\tsize\torigin\tduration\tresult\n%s\n", strings.Join(r.table, ""))
	}
	fmt.Fprint(w, "\npart\ttook\tpassed\tfailed\tskipped\n")
	var all time.Duration
	for _, p := range r.parts {
		all += p.time
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\n", p.name, p.time.Round(time.Second), p.passed, p.failed, p.skipped)
	}
	fmt.Fprintf(w, "all\t%s\n", all.Round(time.Second))
	_ = w.Flush() // if standard output is gone, the exit code says the rest
	if len(r.left) > 0 {
		r.printf("\nleft to make soak, for want of time: %s\n", strings.Join(r.left, " "))
	}
	for _, f := range r.failures {
		r.printf("\nfailed: %s\n%s\n", f, lastWords(f.said))
	}
	for _, f := range r.flaky {
		r.printf("%s\n", f)
	}
	r.printf("%d passed, %d failed, %d skipped\n", r.passed, len(r.failures), r.skipped)
	return len(r.failures) == 0 && r.passed > 0
}

// mostWords is how many lines of a test's last words are printed.
const mostWords = 8

// lastWords are the last lines of a test before its clean-up, which prints the output of its
// processes.
func lastWords(all string) string {
	if i := strings.Index(all, "panic: "+timedOut); i >= 0 {
		return stuck(all[i:])
	}
	said, _, found := strings.Cut(all, ": output of ")
	if found { // in the middle of a line
		said = said[:strings.LastIndexByte(said, '\n')+1]
	}
	lines := strings.SplitAfter(strings.TrimRight(said, "\n"), "\n")
	failed := regexp.MustCompile(`^\s*(--- FAIL: .*|FAIL|=== \w+ .*|.*the scenario's process: exit status 1)\s*$`)
	lines = slices.DeleteFunc(lines, func(l string) bool { return failed.MatchString(l) })
	return strings.Join(lines[max(0, len(lines)-mostWords):], "")
}

// timedOut is what a test's process says when its time is over.
const timedOut = "test timed out after"

// stuck shortens the words of a hung process to the tests that ran and the goroutines of tests.
func stuck(said string) string {
	all := strings.SplitAfter(said, "\n\n")
	return strings.Join(slices.DeleteFunc(all, func(part string) bool {
		return strings.HasPrefix(part, "goroutine ") && (!strings.Contains(part, module) || !strings.Contains(part, "testing.tRunner("))
	}), "")
}
