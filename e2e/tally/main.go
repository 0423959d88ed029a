// Tally reads `go test -json` from standard input, shows what failed with its
// output, and ends with the line "N passed, N failed, N skipped". With -add FILE
// it adds its counts to those in FILE, so that several runs end in one sum. It
// exits 1 when a test or a package failed, or when no test ran.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type tally struct {
	passed, failed, skipped int
	output                  map[string]*strings.Builder
}

func main() {
	add := flag.String("add", "", "a file whose counts these are added to")
	verbose := flag.Bool("v", false, "print each test as it ends")
	flag.Parse()
	t := &tally{output: map[string]*strings.Builder{}}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Action == "" {
			fmt.Println(in.Text()) // not the test runner's own: a compiler's message
			continue
		}
		t.take(e, *verbose)
	}
	ok := t.failed == 0 && t.passed > 0
	if *add != "" {
		if err := t.addTo(*add); err != nil {
			fmt.Fprintln(os.Stderr, "tally:", err)
			os.Exit(1)
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	if !ok {
		os.Exit(1)
	}
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
		if strings.HasPrefix(e.Output, "TABLE ") { // a table of scenarios is for the reader
			fmt.Print(strings.TrimPrefix(e.Output, "TABLE "))
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
