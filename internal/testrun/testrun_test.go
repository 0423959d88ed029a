package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeTests is a part whose command prints events as `go test -json` does. The first call prints
// those of first, the next one those of second. The file calls has the arguments and the seed of
// each call.
func fakeTests(t *testing.T, first, second string) (p part, calls string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"first": first, "second": second} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const script = `cd "$0" && echo "$HEARTH_SEED $RAPID_SEED $*" >>calls && cat first && mv second first; ! grep -q '"fail"' first`
	return part{name: "fake", command: []string{"sh", "-c", script, dir}, tests: []string{"all"}, env: []string{"HEARTH_SEED=7"}}, filepath.Join(dir, "calls")
}

func events(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

const (
	passX  = `{"Action":"pass","Package":"p","Test":"TestX"}`
	failX  = `{"Action":"fail","Package":"p","Test":"TestX"}`
	failsP = `{"Action":"fail","Package":"p"}`
)

// says is an event of output, together with the runner's own line that the test failed.
func says(test, text string) string {
	return fmt.Sprintf(`{"Action":"output","Package":"p","Test":%q,"Output":%q}`, test, text+"\n") + "\n" +
		fmt.Sprintf(`{"Action":"output","Package":"p","Test":%q,"Output":"--- FAIL: %s\n"}`, test, test)
}

func TestWhatFailedRunsOnceMore(t *testing.T) {
	// A test that fails and then passes with its seed is reported as flaky and counted as passed. A
	// test that fails twice has failed. Some failures are not tried again.
	for name, c := range map[string]struct {
		said          string // by TestX, which fails
		first, second string // more events
		ok            bool
		tells         string
		calls         []string
	}{
		"flaky":            {"x_test.go:1: it was late", "", passX, true, "FLAKY p TestX HEARTH_SEED=7 x_test.go:1: it was late\n2 passed, 0 failed, 0 skipped\n", []string{"7  all", "7  -count 1 -run ^TestX$ p"}},
		"its own seeds":    {"HEARTH_SEED=42 draws the same again, -rapid.seed=9", "", passX, true, "FLAKY p TestX HEARTH_SEED=42,RAPID_SEED=9 ", []string{"7  all", "42 9 -count 1 -run ^TestX$ p"}},
		"twice":            {"it is wrong", "", failX, false, "failed again, with the same seed\n1 passed, 1 failed", []string{"7  all", "7  -count 1 -run ^TestX$ p"}},
		"not found":        {"it is wrong", "", "", false, "did not run again\n1 passed, 1 failed", []string{"7  all", "7  -count 1 -run ^TestX$ p"}},
		"a race":           {"WARNING: DATA RACE", "", passX, false, "a data race is never forgiven\n1 passed, 1 failed", []string{"7  all"}},
		"a panic":          {"panic: x", "", passX, false, "a panic is never forgiven", []string{"7  all"}},
		"a hang":           {"watchdog: the scenario's time is over", "", passX, false, "a hang is never forgiven", []string{"7  all"}},
		"a leak":           {"found unexpected goroutines", "", passX, false, "a leak is never forgiven", []string{"7  all"}},
		"wrong bytes":      {"a: version 1 differs at byte 7: all zero", "", passX, false, "wrong bytes is never forgiven", []string{"7  all"}},
		"of a package":     {"x", `{"Action":"fail","Package":"q"}`, passX, false, "no single test's failure is never forgiven", []string{"7  all", "7  -count 1 -run ^TestX$ p"}},
		"more than chance": {"x", events(strings.ReplaceAll(failX, "TestX", "TestA"), strings.ReplaceAll(failX, "TestX", "TestB"), strings.ReplaceAll(failX, "TestX", "TestC")), passX, false, "1 passed, 4 failed", []string{"7  all"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("RAPID_SEED", "") // of the run that this test is part of
			passY := strings.ReplaceAll(passX, "TestX", "TestY")
			p, calls := fakeTests(t, events(passY, says("TestX", c.said), failX, failsP, c.first), events(c.second))
			var out strings.Builder
			r := &run{out: &out}
			r.part(t.Context(), p)
			r.again(t.Context())
			if ok := r.sum(); ok != c.ok || !strings.Contains(out.String(), c.tells) {
				t.Errorf("%v, and it tells not %q:\n%s", ok, c.tells, &out)
			}
			text, err := os.ReadFile(calls)
			if got := strings.Split(strings.TrimSpace(string(text)), "\n"); err != nil || !slices.Equal(got, c.calls) {
				t.Errorf("called with %q, want %q (%v)", got, c.calls, err)
			}
		})
	}
}

func TestAHangIsNamed(t *testing.T) {
	// A test that hangs is named at the end, with the place where it waits, also where another of its package has failed.
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module " + module + "/x\n",
		"x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestWrong(t *testing.T) { t.Error(1) }\nfunc TestHangs(t *testing.T) { t.Run(\"below\", func(t *testing.T) { select {} }) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	r := &run{out: &out}
	r.part(t.Context(), part{name: "fake", command: goTest("-timeout", "1s"), dir: dir})
	r.sum()
	_, last, _ := strings.Cut(out.String(), "\nfailed: x\n")
	for _, words := range []string{"test timed out after", "TestHangs/below", "x_test.go:6", "0 passed, 2 failed"} {
		if !strings.Contains(last, words) || len(last) > 4000 {
			t.Errorf("says not %q at the end, in short:\n%s", words, &out)
		}
	}
}

func TestThePatternNamesOneScenario(t *testing.T) {
	// One scenario runs again, although its name has characters that mean something in a pattern.
	if got, want := pattern("TestScenarios/ring-a.b@race"), `^TestScenarios$/^ring-a\.b@race$`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTheSumIsOfAllParts(t *testing.T) {
	// Parts end in one table and one sum. A command that is no test counts as one, also if it fails.
	// Parts left for lack of time are named. A run of nothing is no success.
	scenario := func(name string) string {
		return events(`{"Action":"output","Package":"p","Test":"TestScenarios","Output":"TABLE `+name+`\t2 files\tS3\t1.0s\tok\n"}`,
			`{"Action":"output","Package":"p","Test":"TestScenarios","Output":"LEFT later-`+name+`\n"}`, `{"Action":"pass","Package":"p","Test":"TestScenarios/`+name+`"}`, "not an event")
	}
	one, _ := fakeTests(t, scenario("a"), "")
	two, _ := fakeTests(t, scenario("longer"), "")
	late := part{name: "late", command: []string{"false"}, plain: true, until: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		parts []part
		ok    bool
		says  []string
	}{
		"two":     {[]part{one, two, late}, true, []string{"2 passed, 0 failed", "a         2 files", "longer    2 files", "for want of time: later-a later-longer late\n", "not an event"}},
		"plain":   {[]part{{name: "check", command: []string{"true"}, plain: true}}, true, []string{"1 passed, 0 failed"}},
		"failed":  {[]part{{name: "check", command: []string{"sh", "-c", "echo no; false"}, plain: true}}, false, []string{"0 passed, 1 failed", "failed: check\n", "no\n"}},
		"no such": {[]part{{name: "check", command: []string{"/no/such"}, plain: true}}, false, []string{"0 passed, 1 failed", "/no/such"}},
		"nothing": {nil, false, []string{"0 passed, 0 failed"}},
	} {
		var out strings.Builder
		r := &run{out: &out}
		for _, p := range c.parts {
			r.part(t.Context(), p)
		}
		r.again(t.Context())
		if ok := r.sum(); ok != c.ok {
			t.Errorf("%s: %v", name, ok)
		}
		for _, said := range c.says {
			if !strings.Contains(out.String(), said) {
				t.Errorf("%s: says not %q:\n%s", name, said, &out)
			}
		}
	}
}

func TestPartsRunBesideTheirNeighbours(t *testing.T) {
	// Neighbours that may run beside each other do, and no others: each of the two waits for the other one. All is counted
	// in one sum, and a failure is tried again by itself.
	meet := t.TempDir()
	waits := func(self, other, says string) part {
		const script = `cd "$0" && : >"$1" && until [ -e "$2" ]; do sleep 0.01; done; echo "$3"; case "$3" in *fail*) exit 1; esac`
		return part{name: self, command: []string{"sh", "-c", script, meet, self, other, says}, beside: true}
	}
	alone := part{name: "alone", command: []string{"sh", "-c", `[ ! -e "$0"/a ] && [ ! -e "$0"/b ]`, meet}, plain: true}
	after := part{name: "after", command: []string{"sh", "-c", `[ -e "$0"/a ] && [ -e "$0"/b ]`, meet}, plain: true}
	var out strings.Builder
	r := &run{out: &locked{w: &out}}
	r.all(t.Context(), []part{alone, waits("a", "b", passX), waits("b", "a", failX), after})
	r.again(t.Context())
	if ok := r.sum(); ok || !strings.HasSuffix(out.String(), "3 passed, 1 failed, 0 skipped\n") || !strings.Contains(out.String(), "== again: p TestX") {
		t.Errorf("%v:\n%s", ok, &out)
	}
}

// locked lets goroutines write to w.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestTheLastWordsOfWhatFailed(t *testing.T) {
	// The last output of a test is printed at the end of everything, without the output of its
	// processes.
	var all strings.Builder
	for i := range 20 {
		fmt.Fprintf(&all, "    x_test.go:%d: said %d\n", i, i)
	}
	all.WriteString("    x_test.go:99: it is wrong\n    env_test.go:182: output of hearth-1 [mount]:\n        mounted\n--- FAIL: TestX (1.00s)\n")
	want := ""
	for i := 13; i < 20; i++ { // eight with the last
		want += fmt.Sprintf("    x_test.go:%d: said %d\n", i, i)
	}
	want += "    x_test.go:99: it is wrong\n"
	if got := lastWords(all.String()); got != strings.TrimSuffix(want, "\n") && got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhatRunsWithoutTheRaceDetector(t *testing.T) {
	// withoutRace names the tests of files that the race detector is kept from, and no others.
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/x_test.go": "//go:build !race\n\npackage a\n\nfunc TestMain(m *testing.M) {}\nfunc TestOne(t *testing.T) {}\nfunc Test(t *testing.T) {}\n",
		"b/y_test.go": "package b\n\nfunc TestTwo(t *testing.T) {}\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	got, err := withoutRace(".")
	if want := []string{"-run", "^(TestOne)$", "./a"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, want %q (%v)", got, want, err)
	}
}

func TestWhatWasChangedLately(t *testing.T) {
	// touched has the folders of the last hours' commits, and the files in e2e, but nothing at the
	// top that is no code. Without git it has everything.
	repo := t.TempDir()
	git := func(when string, args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE="+when, "GIT_AUTHOR_DATE="+when, "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	now := time.Now()
	git("", "init", "-q")
	for i, files := range [][]string{{"old/x.go"}, {"cache/disk/a.go", "cache/disk/b.go", "e2e/ring_test.go"}, {"README.md", "docs/a.md"}} {
		for _, name := range files {
			if err := os.MkdirAll(filepath.Join(repo, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(repo, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		git("", "add", ".")
		git(now.Add(time.Duration(i-1)*20*time.Hour+-time.Hour).Format(time.RFC3339), "commit", "-qm", "x")
	}
	got, err := touched(repo)
	if want := []string{"cache/disk", "docs", "e2e/ring"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, want %q (%v)", got, want, err)
	}
	if got, err := touched(t.TempDir()); err != nil || !slices.Equal(got, []string{"."}) {
		t.Errorf("without git: %q (%v)", got, err)
	}
}

func TestTheFaultsAreThoseThatTestsName(t *testing.T) {
	// The words by which faults are recognized are those that the tests print.
	var sources strings.Builder
	for _, file := range []string{"../hearthtest/data.go", "../hearthtest/suite.go", "../../e2e/env_test.go", "../../cmd/hearth/up.go"} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&sources, f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // it was only read
	}
	for words := range faults() {
		switch words {
		case "WARNING: DATA RACE", "race detected during execution", "panic: ", "fatal error: ", "test timed out after", "found unexpected goroutines":
			continue // Go's and goleak's own
		}
		if !strings.Contains(sources.String(), strings.TrimSpace(words)) {
			t.Errorf("nobody says %q", words)
		}
	}
}

func TestWhereNoTestIsBuiltNothingRuns(t *testing.T) {
	// The tests of a package may all be built without the race detector only. Soak then has nothing to run there,
	// whatever binary an earlier build left.
	file := filepath.Join(t.TempDir(), "sim.test")
	if err := os.WriteFile(file, []byte("old"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := buildTests("github.com/hearthfs/hearth/e2e/sim", file); err != nil {
		t.Fatal(err)
	}
	if passed, err := passed(file, "sim"); err != nil || !passed {
		t.Errorf("%v, %v", passed, err)
	}
}
