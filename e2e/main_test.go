// Package e2e runs the real binary against real S3 servers on real mounts.
//
// HEARTH_E2E chooses how much: core (the default; part of `make test`), whole-core (what
// is slow as well), all (every scenario, slices marked REDUCED), more (the same, less what
// the core has run in that size) or full (the sizes and counts that the issues name).
// HEARTH_AREAS=peer,cache/disk takes the scenarios of folders. HEARTH_UNTIL=SECONDS starts
// none after that second since 1970. HEARTH_RESUME leaves out what was ok before of the same
// binaries. HEARTH_VARIANT runs them another way: race (a binary with the race detector),
// masked (without what a kernel may offer), nobody (as a user without privileges). Package
// internal/testrun sets these.
//
// Scenarios mostly wait, so a few run side by side, each in a process and a mount namespace
// of its own. All of them are in one mount namespace more, so that no mount outlives it;
// every process they start dies with them; a watchdog aborts the FUSE connections of a
// scenario that is over its time; and all their files lie in one directory, which the
// process outside of that namespace takes away however they end.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

type level int

const (
	core level = iota
	all
	full
)

// scenario is one row of the table.
type scenario struct {
	name   string
	issue  string
	from   level                // the lowest level it runs at
	limit  time.Duration        // the watchdog's, below full; full takes ten times as long
	origin string               // the origin's kind, for the table
	size   func(l level) string // what this level runs, for the table
	run    func(e *env)
	root   bool // needs root, so it is not part of the run as a user
	// soak: tests others' programs more than Hearth, so that CI leaves it to `make soak`.
	soak bool
	// static: needs the binary as it is shipped, not one with the race detector, which
	// is linked to libraries and takes many times the memory.
	static bool
	// alone: what it asserts is of the whole machine, so no other runs beside it.
	alone bool
}

// slow are scenarios of the core that take ten seconds and more however small they are.
var slow = []string{"wide-directory", "demo", "demo-kept", "versions-strict-passthrough", "busy-mount", "odd-keys", "disk-stalls"}

type result struct {
	Name, Size, Origin, Result string
	Seconds                    float64
}

// suite is what one run of the tests shares.
type suite struct {
	level   level
	brief   bool // the core without what is slow
	more    bool // less what the core has run in the same size
	ci      bool // without what is for soak alone
	repo    string
	base    string // the directory of all that a run makes
	hearth  string // the binary under test
	race    bool
	variant string
	areas   []string // folders whose scenarios run; none: all
	until   time.Time
	kept    kept
	mu      sync.Mutex // guards results and kept's file
	results []result
}

func TestMain(m *testing.M) {
	if job := os.Getenv(readerVariable); job != "" {
		os.Exit(beReader(job))
	}
	if calls := os.Getenv(forbidVariable); calls != "" {
		os.Exit(beForbidden(calls))
	}
	if os.Getenv("HEARTH_E2E_INNER") == "" {
		os.Exit(inOwnNamespace())
	}
	os.Exit(m.Run())
}

// inOwnNamespace runs this test binary again, in a mount namespace that ends
// with it. Root needs nothing else; others get a user namespace, too.
func inOwnNamespace() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	base, err := os.MkdirTemp("/var/tmp", "hearth-e2e-")
	if err == nil {
		defer removeAll(base)
		err = os.Chmod(base, 0o755) // users go through it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: make a directory:", err)
		return 1
	}
	args := []string{"--mount", "--propagation", "private", "--kill-child", "--fork", "--pid", "--mount-proc"}
	if os.Getuid() != 0 {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	inner := []string{"--", self}
	environ := append(os.Environ(), "HEARTH_E2E_INNER="+base, "TMPDIR="+base)
	if err := buildPrograms(ctx, base); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if os.Getenv("HEARTH_VARIANT") == "nobody" {
		if err := forNobody(self, base); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: prepare for a user without privileges:", err)
			return 1
		}
		inner = []string{"--", "sh", "-c", asNobodyDoes, filepath.Join(base, "device"), filepath.Join(base, "e2e.test")}
		environ = append(environ, "HEARTH_TOOLS="+base, "HOME="+base)
	}
	cmd := exec.CommandContext(ctx, "unshare", slices.Concat(args, inner, os.Args[1:])...)
	cmd.Env = environ
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	switch file, err := openKept("results", base, self); {
	case err != nil:
		fmt.Fprintln(os.Stderr, "e2e: resume:", err)
		return 1
	case file != nil:
		defer func() { _ = file.Close() }()
		cmd.ExtraFiles = []*os.File{file} // becomes keptFD
		cmd.Env = append(cmd.Env, keptVariable+"=yes")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "e2e: run in an own mount namespace (as root, or with user namespaces):", err)
		return 1
	}
	return 0
}

// asNobodyDoes lets everybody open /dev/fuse in this mount namespace, as Debian
// does, and goes on as the user nobody.
const asNobodyDoes = `mknod -m 666 "$0" c 10 229 && mount --bind "$0" /dev/fuse && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`

// removeAll takes the tests' directory away. Where they were killed, the last of
// their processes may still be about to end and write into it.
func removeAll(dir string) {
	var err error
	for range 100 {
		if err = os.RemoveAll(dir); err == nil {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "e2e: left behind:", err)
}

// forNobody puts what that user runs where it may: this test, the binary and the
// S3 servers. The checkout may lie where only its owner gets to.
func forNobody(self, dir string) error {
	programs := map[string]string{self: "e2e.test"}
	for _, server := range []string{"versitygw", "gofakes3"} {
		path, err := hearthtest.Tool(server)
		if err != nil {
			return err
		}
		programs[path] = server
	}
	for from, to := range programs {
		program, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), program, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o777)
}

// programs are what scenarios run of this repository, by their names in the directory bin of
// a run.
func programs() map[string]string {
	return map[string]string{"hearth": "./cmd/hearth", "faultproxy": "./internal/faultproxy/cmd/faultproxy",
		"faultfs": "./internal/faultfs/cmd/faultfs", "wired": "./e2e/wired"}
}

// buildPrograms makes them in the directory bin below base, with the race detector where
// asked. They say nothing of where and of which commit they were built: what is kept of a
// run is known by their bytes.
func buildPrograms(ctx context.Context, base string) error {
	bin := filepath.Join(base, "bin")
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", bin + "/"}
	environ := append(os.Environ(), "CGO_ENABLED=0")
	if os.Getenv("HEARTH_VARIANT") == "race" {
		args, environ = append(args, "-race"), append(os.Environ(), "CGO_ENABLED=1") // the race detector's libraries are C
	}
	cmd := exec.CommandContext(ctx, "go", slices.AppendSeq(args, maps.Values(programs()))...)
	cmd.Dir, cmd.Env = "..", environ
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build what the scenarios run: %w\n%s", err, out)
	}
	return os.Chmod(bin, 0o755)
}

// program is the path of one of programs.
func (s *suite) program(name string) string { return filepath.Join(s.base, "bin", name) }

func TestScenarios(t *testing.T) {
	// Every scenario of this level, on the binaries built from this very tree.
	s := newSuite(t)
	if name := os.Getenv(oneVariable); name != "" {
		for _, sc := range s.chosen() {
			if sc.name == name {
				s.one(t, sc)
			}
		}
		return
	}
	defer s.table()
	free := semaphore.NewWeighted(lanes)
	var all sync.WaitGroup
	for _, sc := range s.chosen() {
		takes := int64(1)
		if sc.alone {
			takes = lanes
		}
		if err := free.Acquire(t.Context(), takes); err != nil {
			t.Fatal(err)
		}
		if !s.until.IsZero() && time.Now().After(s.until) {
			fmt.Printf("LEFT %s\n", sc.name)
			free.Release(takes)
			continue
		}
		all.Go(func() {
			defer free.Release(takes)
			s.take(t, sc)
		})
	}
	all.Wait()
}

// lanes are how many scenarios run side by side: one more than the processors of the
// smallest machine, since each waits for more than half of its time.
const lanes = 3

// chosen are the scenarios that this run is about, in the table's order.
func (s *suite) chosen() (list []scenario) {
	for _, sc := range scenarios() {
		if sc.from > s.level || s.brief && slices.Contains(slow, sc.name) || sc.soak && s.ci {
			continue
		}
		if s.more && sc.from == core && !slices.Contains(slow, sc.name) && sc.size(core) == sc.size(all) {
			continue
		}
		if len(s.areas) > 0 && !inAreas(sc.name, s.areas) {
			continue
		}
		if s.variant != "" {
			sc.name += "@" + s.variant
		}
		unmasked := strings.Contains(sc.name, "passthrough") || sc.issue == "s3" // which asks no kernel for anything
		if s.variant == "nobody" && sc.root || s.race && sc.static || s.variant == "masked" && unmasked {
			continue
		}
		list = append(list, sc)
	}
	return list
}

// take runs a scenario, or takes what an earlier run of the same binaries found.
func (s *suite) take(t *testing.T, sc scenario) {
	start, ran, size := time.Now(), false, sc.size(s.level)
	earlier, done := s.kept.ok[sc.name]
	ok := t.Run(sc.name, func(t *testing.T) {
		ran = true
		if done {
			t.Log(earlier.Result)
			return
		}
		if detail := s.apart(t, sc); detail != "" {
			size += ", " + detail
		}
	})
	if !ran { // not among those that -run names
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if done {
		s.results = append(s.results, earlier)
		return
	}
	r := result{Name: sc.name, Size: size, Origin: sc.origin, Result: "ok", Seconds: time.Since(start).Seconds()}
	if !ok {
		r.Result = "FAILED"
	}
	s.results = append(s.results, r)
	if err := s.kept.add(r); err != nil {
		t.Error(err)
	}
}

// oneVariable has a process of this test run one scenario, and nothing beside it.
const oneVariable = "HEARTH_E2E_ONE"

// apart runs a scenario in a process of its own, which has its own mounts and processes:
// scenarios show files of their own in /etc, and none meets another's. It returns what the
// run itself found.
func (s *suite) apart(t *testing.T, sc scenario) (detail string) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{self, "-test.run", "^TestScenarios$/^" + regexp.QuoteMeta(sc.name) + "$", "-test.v", "-test.timeout", "0"}
	if s.variant != "nobody" { // who may not, and has no scenario that mounts but by FUSE
		argv = append([]string{"unshare", "--mount", "--propagation", "private", "--kill-child", "--fork", "--pid", "--mount-proc", "--"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), oneVariable+"="+sc.name)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.WaitDelay = time.Minute // of what it started something may have the output
	if err := cmd.Run(); err != nil {
		t.Errorf("the scenario's process: %v", err)
	}
	text, _ := os.ReadFile(s.detailFile(sc.name)) // what found nothing has none
	return string(text)
}

// detailFile is where a scenario's process leaves what it found.
func (s *suite) detailFile(name string) string { return filepath.Join(s.base, name+".detail") }

// one runs a scenario in this very process.
func (s *suite) one(t *testing.T, sc scenario) {
	t.Run(sc.name, func(t *testing.T) {
		e := newEnv(t, s, sc)
		sc.run(e)
		if err := os.WriteFile(s.detailFile(sc.name), []byte(e.detail), 0o644); err != nil {
			t.Error(err)
		}
	})
}

// levels by their names in HEARTH_E2E.
func levels() map[string]level {
	return map[string]level{"": core, "core": core, "whole-core": core, "more": all, "all": all, "full": full}
}

func newSuite(t *testing.T) *suite {
	l, known := levels()[os.Getenv("HEARTH_E2E")]
	if !known {
		t.Fatalf("HEARTH_E2E=%q: core, whole-core, more, all or full", os.Getenv("HEARTH_E2E"))
	}
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{level: l, repo: repo, base: os.Getenv("HEARTH_E2E_INNER"), variant: os.Getenv("HEARTH_VARIANT")}
	s.race, s.brief, s.more = s.variant == "race", l == core && os.Getenv("HEARTH_E2E") != "whole-core", os.Getenv("HEARTH_E2E") == "more"
	s.ci = l == core || s.more
	s.hearth = s.program("hearth")
	if areas := os.Getenv("HEARTH_AREAS"); areas != "" {
		s.areas = strings.Split(areas, ",")
	}
	if text := os.Getenv("HEARTH_UNTIL"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("HEARTH_UNTIL=%q: seconds since 1970", text)
		}
		s.until = time.Unix(seconds, 0)
	}
	if s.kept, err = inheritKept(); err != nil {
		t.Fatal(err)
	}
	return s
}

// table prints what ran, a row in each line with tabs between its cells; "TABLE "
// lets the tally make one table of several runs, among other output.
func (s *suite) table() {
	for _, r := range s.results {
		fmt.Printf("TABLE %s\t%s\t%s\t%.1fs\t%s\n", r.Name, r.Size, r.Origin, r.Seconds, r.Result)
	}
}
