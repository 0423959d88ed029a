// Tally reads `go test -json` from standard input, shows what failed with its
// output, and ends with one table of the scenarios of all runs, what failed and its
// last words, how long they took from the first event on, and the line "N passed, N failed, N skipped". With -add
// FILE it adds its counts to those in FILE, so that several runs end in one sum. It
// exits 1 when a test or a package failed, when no test ran, or when they took
// longer than -most.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type tally struct {
	passed, failed, skipped int
	output                  map[string]*strings.Builder
	table                   []string // rows of scenarios, with tabs between cells
	failures                []string // what failed, with its last words
	began, ended            time.Time
}

func main() {
	add := flag.String("add", "", "a file whose counts these are added to")
	most := flag.Duration("most", 0, "how long all may take from the first event on; 0: no limit")
	verbose := flag.Bool("v", false, "print each test as it ends")
	flag.Parse()
	t := &tally{output: map[string]*strings.Builder{}}
	t.read(os.Stdin, *verbose)
	if *add != "" {
		if err := t.addTo(*add); err != nil {
			fmt.Fprintln(os.Stderr, "tally:", err)
			os.Exit(1)
		}
	}
	if !t.sum(os.Stdout, *most) {
		os.Exit(1)
	}
}

// read takes events up to the end of the input, which is the end of all runs.
func (t *tally) read(r io.Reader, verbose bool) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Action == "" {
			fmt.Println(in.Text()) // not the test runner's own: a compiler's message
			continue
		}
		if t.began.IsZero() {
			t.began = time.Now()
		}
		t.take(e, verbose)
	}
	t.ended = time.Now()
}

// sum prints what there is to say at the end, and reports whether all is well.
func (t *tally) sum(out io.Writer, most time.Duration) bool {
	if len(t.table) > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "\nscenario\tsize\torigin\tduration\tresult\n%s\n", strings.Join(t.table, ""))
		_ = w.Flush() // where standard output is gone, the exit code says the rest
	}
	for _, f := range t.failures {
		fmt.Fprintf(out, "\nfailed: %s", f)
	}
	took := time.Duration(0)
	if !t.began.IsZero() {
		took = t.ended.Sub(t.began)
	}
	late := most > 0 && took > most
	fmt.Fprintf(out, "took %s", took.Round(time.Second))
	if late {
		fmt.Fprintf(out, ": TOO LONG, at most %s are allowed", most)
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	return t.failed == 0 && t.passed > 0 && !late
}

func (t *tally) take(e event, verbose bool) {
	key := e.Package + " " + e.Test
	top := counts(e.Test)
	switch e.Action {
	case "output", "build-output":
		if t.output[key] == nil {
			t.output[key] = &strings.Builder{}
		}
		t.output[key].WriteString(e.Output)
		if row, ok := strings.CutPrefix(e.Output, "TABLE "); ok {
			t.table = append(t.table, row)
		}
		return
	case "pass":
		if top {
			t.passed++
		}
	case "skip":
		if top {
			t.skipped++
			fmt.Printf("SKIP %s\n%s", key, t.output[key])
		}
	case "fail", "build-fail":
		if top || e.Test == "" && !t.explained(e.Package) {
			t.failed++
			t.failures = append(t.failures, key+"\n"+lastWords(t.output[key]))
		}
		fmt.Printf("FAIL %s\n%s", key, t.output[key])
	default:
		return
	}
	if verbose && top || e.Test == "" && e.Action == "pass" {
		took := time.Duration(e.Elapsed * float64(time.Second)).Round(100 * time.Millisecond)
		fmt.Printf("%-5s %-50s %s\n", e.Action, strings.TrimPrefix(key, "github.com/hearthfs/hearth"), took)
	}
	if e.Action == "pass" {
		delete(t.output, key)
	}
}

// mostWords lines are the last words of a test.
const mostWords = 8

// lastWords are what a test said last before its clean-up, which tells what its processes printed.
func lastWords(all *strings.Builder) string {
	if all == nil {
		return ""
	}
	said, _, found := strings.Cut(all.String(), ": output of ")
	if found { // in the midst of a line
		said = said[:strings.LastIndexByte(said, '\n')+1]
	}
	lines := strings.SplitAfter(strings.TrimRight(said, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-mostWords):], "") + "\n"
}

// counts tells whether a test is one of those that are counted: a function, or a
// scenario below TestScenarios.
func counts(test string) bool {
	scenario, ok := strings.CutPrefix(test, "TestScenarios/")
	if ok {
		return !strings.Contains(scenario, "/")
	}
	return test != "" && test != "TestScenarios" && !strings.Contains(test, "/")
}

// explained tells whether a failed package has a failed test that was counted,
// so that only a package that failed otherwise (build, panic, TestMain) counts.
func (t *tally) explained(pkg string) bool {
	for key, out := range t.output {
		if strings.HasPrefix(key, pkg+" ") && key != pkg+" " && strings.Contains(out.String(), "--- FAIL") {
			return true
		}
	}
	return false
}

func (t *tally) addTo(file string) error {
	var p, f, s int
	if text, err := os.ReadFile(file); err == nil {
		if _, err := fmt.Sscanf(string(text), "%d passed, %d failed, %d skipped", &p, &f, &s); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
	sum := fmt.Sprintf("%d passed, %d failed, %d skipped\n", p+t.passed, f+t.failed, s+t.skipped)
	return os.WriteFile(file, []byte(sum), 0o644)
}
