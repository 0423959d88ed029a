package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// ciBound is how long a run of CI may take, and lastStart is when it starts its last scenario. A
	// scenario takes up to two minutes beside others.
	ciBound   = 15 * time.Minute
	lastStart = ciBound - 150*time.Second
	// lately is the age of the oldest commits whose scenarios CI runs.
	lately = "12 hours ago"
	// fixedSeed is the seed of CI, so that a failing run fails again.
	fixedSeed = "1"
)

// No result is taken from go test's cache, since a test that fails by chance would hide there.
// Tests' binaries have no DWARF, which takes a third of the time of linking. `make check` vets, so
// the tests do not.
//
// At the end of a test the race detector waits 50 ms, not a second, for reports of what still runs:
// goleak leaves next to nothing running. First touches of a page and signals are expensive in a
// virtual machine. So the detector's own memory may be of large pages, and in CI the collector
// stops goroutines without signals.
const (
	raceOptions = "GORACE=atexit_sleep_ms=50 no_huge_pages_for_shadow=0"
	noSignals   = "GODEBUG=asyncpreemptoff=1"
)

func seeded() []string { return []string{"HEARTH_SEED=" + fixedSeed, "RAPID_SEED=" + fixedSeed} }

func goTest(flags ...string) []string {
	return slices.Concat([]string{"go", "test", "-trimpath", "-buildvcs=false", "-ldflags=-w", "-vet=off", "-json"}, flags)
}

// testParts are the unit tests with the race detector, those of one goroutine without it, and the
// core end to end.
func testParts() ([]part, error) {
	pkgs, err := packages()
	if err != nil {
		return nil, err
	}
	alone, err := withoutRace(".")
	if err != nil {
		return nil, err
	}
	return []part{
		{name: "units", command: goTest("-count", "1", "-race", "-p", "3", "-timeout", "11m"), tests: pkgs, env: append(seeded(), noSignals, raceOptions, "CGO_ENABLED=1")},
		{name: "units without race", command: goTest("-count", "1", "-timeout", "11m"), tests: alone, env: append(seeded(), "CGO_ENABLED=0")},
		scenarios("core", ".", "HEARTH_E2E=core"),
	}, nil
}

// scenarios is a part that runs scenarios and, if run is ".", the tests beside them.
func scenarios(name, run string, env ...string) part {
	return part{name: name, command: goTest("-count", "1", "-timeout", "24h"), tests: []string{"-run", run, "./e2e"},
		env: slices.Concat(seeded(), []string{"CGO_ENABLED=0"}, env)}
}

const allScenarios = "^TestScenarios$"

// ciParts are `make check`, the parts of `make test` and the core with the race detector. The
// scenarios of recent changes follow, as far as the time allows.
func ciParts(began time.Time) ([]part, error) {
	parts, err := testParts()
	if err != nil {
		return nil, err
	}
	parts = slices.Insert(parts, 0, part{name: "check", command: []string{"make", "-s", "check"}, plain: true})
	parts = append(parts, scenarios("core with race", allScenarios, "HEARTH_E2E=core", "HEARTH_VARIANT=race"))
	touched, err := touched(".")
	if err != nil {
		return nil, err
	}
	if len(touched) > 0 {
		until := fmt.Sprint("HEARTH_UNTIL=", began.Add(lastStart).Unix())
		parts = append(parts, scenarios("changed lately", allScenarios, "HEARTH_E2E=more", "HEARTH_AREAS="+strings.Join(touched, ","), until))
	}
	return parts, nil
}

// packages are our packages, without that of the scenarios.
func packages() ([]string, error) {
	out, err := output("go", "list", "./...")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(out), func(p string) bool { return p == module+"/e2e" }), nil
}

// withoutRace names the tests that run without the race detector: those in files built with !race,
// and others of the same names. Work of a single goroutine takes ten times as long with the
// detector, which finds nothing there.
func withoutRace(root string) (tests []string, err error) {
	names, dirs := map[string]bool{}, map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		text, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(text, []byte("\n//go:build !race\n")) && !bytes.HasPrefix(text, []byte("//go:build !race\n")) {
			return err
		}
		dirs["./"+filepath.Dir(p)] = true
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "TestMain" {
				names[m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for tests without the race detector: %w", err)
	}
	run := "^(" + strings.Join(sorted(names), "|") + ")$"
	return append([]string{"-run", run}, sorted(dirs)...), nil
}

// touched are the areas that recent commits (lately) changed: folders and files of scenarios. "."
// stands for everything: a file of the root package changed, or git cannot tell, as in a source
// archive.
func touched(repo string) ([]string, error) {
	out, err := output("git", "-C", repo, "log", "--since="+lately, "--name-only", "--format=")
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun: git cannot tell what was changed lately, so all was:", err)
		return []string{"."}, nil
	}
	areas := map[string]bool{}
	for file := range strings.Lines(out) {
		file = strings.TrimSpace(file)
		switch dir := path.Dir(file); {
		case file == "" || dir == "." && path.Ext(file) != ".go":
		case dir == "e2e":
			areas[strings.TrimSuffix(file, "_test.go")] = true
		default:
			areas[dir] = true
		}
	}
	return sorted(areas), nil
}

func sorted(set map[string]bool) []string {
	words := make([]string, 0, len(set))
	for w := range set {
		words = append(words, w)
	}
	slices.Sort(words)
	return words
}

// output returns what a command prints.
func output(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv[:2], " "), err)
	}
	return string(out), nil
}
