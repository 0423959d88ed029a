package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// With HEARTH_RESUME, as `make e2e-full` has it and nothing else, a scenario that
// was ok at this level, in this variant and of this commit is not run again. The
// results are kept in one file for each level and commit; it is opened outside of
// the tests' namespace and handed down open, since the user nobody may neither
// ask git nor write into the checkout.

// keptVariable tells the inner process that it was handed the file.
const keptVariable = "HEARTH_E2E_KEPT"

// keptFD is where: the first behind the standard three.
const keptFD = 3

// openKept opens the results of this level and commit. It returns nil where
// nothing is to be resumed, and for a tree with uncommitted changes, whose
// results are no commit's.
func openKept(repo string) (*os.File, error) {
	if os.Getenv("HEARTH_RESUME") == "" {
		return nil, nil
	}
	head, err := exec.Command("git", "-C", repo, "rev-parse", "HEAD").Output()
	if err != nil {
		return nil, fmt.Errorf("ask git for the commit: %w", err)
	}
	changes, err := exec.Command("git", "-C", repo, "status", "--porcelain").Output()
	if err != nil {
		return nil, fmt.Errorf("ask git for changes: %w", err)
	}
	if len(changes) > 0 {
		fmt.Fprintln(os.Stderr, "e2e: uncommitted changes: every scenario runs, and no result is kept")
		return nil, nil
	}
	level := os.Getenv("HEARTH_E2E")
	if _, known := levels()[level]; !known || level == "" {
		return nil, errors.New("HEARTH_RESUME needs HEARTH_E2E to be core, all or full")
	}
	dir := filepath.Join(repo, "e2e", "results")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory for results: %w", err)
	}
	name := fmt.Sprintf("%s-%s.jsonl", level, strings.TrimSpace(string(head)))
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the results: %w", err)
	}
	return f, nil
}

// kept are the results of this level and commit. The zero value has none and
// keeps none.
type kept struct {
	file *os.File
	ok   map[string]result // by the scenario's name, the variant with it
}

// inheritKept reads what earlier runs left in the file that was handed down.
func inheritKept() (kept, error) {
	if os.Getenv(keptVariable) == "" {
		return kept{}, nil
	}
	unix.CloseOnExec(keptFD) // it is no business of the processes under test
	return readKept(os.NewFile(keptFD, "results"))
}

func readKept(f *os.File) (kept, error) {
	k := kept{file: f, ok: map[string]result{}}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, math.MaxInt64))
	if err != nil {
		return kept{}, fmt.Errorf("read the results: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var r result
		if json.Unmarshal([]byte(line), &r) == nil && r.Result == "ok" { // a line cut off by a kill is none
			r.Result = "ok (earlier run of this commit)"
			k.ok[r.Name] = r
		}
	}
	return k, nil
}

// add keeps a result for the next run.
func (k kept) add(r result) error {
	if k.file == nil {
		return nil
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = k.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep a result: %w", err)
	}
	return nil
}

func TestOnlyWhatWasOkOfThisCommitIsLeftOut(t *testing.T) {
	// Of a clean commit, what was ok is found again and what failed is not; another
	// level, a changed tree, the next commit and a plain run find nothing.
	repo := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	open := func(resume, level string) (kept, bool) {
		t.Helper()
		t.Setenv("HEARTH_RESUME", resume)
		t.Setenv("HEARTH_E2E", level)
		f, err := openKept(repo)
		if err != nil {
			t.Fatal(err)
		}
		if f == nil {
			return kept{}, false
		}
		t.Cleanup(func() { _ = f.Close() })
		k, err := readKept(f)
		if err != nil {
			t.Fatal(err)
		}
		return k, true
	}
	git("init", "-q")
	if err := os.WriteFile(filepath.Join(repo, ".gitignore"), []byte("/e2e/results/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "-qm", "one")
	k, keeps := open("1", "core")
	if !keeps || len(k.ok) > 0 {
		t.Fatalf("at first: %v %v", keeps, k.ok)
	}
	for _, r := range []result{{Name: "a@nobody", Result: "ok", Size: "1 file"}, {Name: "a", Result: "FAILED"}} {
		if err := k.add(r); err != nil {
			t.Fatal(err)
		}
	}
	if k, _ := open("1", "core"); len(k.ok) != 1 || k.ok["a@nobody"].Size != "1 file" {
		t.Errorf("again: %v", k.ok)
	}
	if k, _ := open("1", "full"); len(k.ok) > 0 {
		t.Errorf("another level: %v", k.ok)
	}
	if _, keeps := open("", "core"); keeps {
		t.Error("a plain run keeps results")
	}
	if err := os.WriteFile(filepath.Join(repo, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, keeps := open("1", "core"); keeps {
		t.Error("a tree with changes keeps results")
	}
	git("add", ".")
	git("commit", "-qm", "two")
	if k, keeps := open("1", "core"); !keeps || len(k.ok) > 0 {
		t.Errorf("the next commit: %v %v", keeps, k.ok)
	}
}
