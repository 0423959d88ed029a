package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// With HEARTH_RESUME, as `make soak` has it and nothing else, a scenario that was ok at this
// level, in this variant and of the same binaries is not run again. The results are kept in
// one file for each level and sum of binaries; it is opened outside of the tests' namespace
// and handed down open, since the user nobody may not write into the checkout.

// keptVariable tells the inner process that it was handed the file.
const keptVariable = "HEARTH_E2E_KEPT"

// keptFD is where: the first behind the standard three.
const keptFD = 3

// openKept opens the results of this level in dir, of the programs below base and of the
// test's own binary. It returns nil where nothing is to be resumed.
func openKept(dir, base, self string) (*os.File, error) {
	if os.Getenv("HEARTH_RESUME") == "" {
		return nil, nil
	}
	level := os.Getenv("HEARTH_E2E")
	if _, known := levels()[level]; !known || level == "" {
		return nil, errors.New("HEARTH_RESUME needs HEARTH_E2E to be core, whole-core, all or full")
	}
	sum := sha256.New()
	files := []string{self}
	for _, name := range slices.Sorted(maps.Keys(programs())) {
		files = append(files, filepath.Join(base, "bin", name))
	}
	for _, file := range files {
		if err := addTo(sum, file); err != nil {
			return nil, fmt.Errorf("sum up a program: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory for results: %w", err)
	}
	name := fmt.Sprintf("%s-%x.jsonl", level, sum.Sum(nil)[:16])
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the results: %w", err)
	}
	return f, nil
}

// addTo adds a file's bytes to a sum.
func addTo(sum io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	_, err = io.Copy(sum, f)
	return err
}

// kept are the results of this level and these binaries. The zero value has none and
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
			r.Result = "ok (earlier run of the same binaries)"
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

func TestOnlyWhatWasOkOfTheSameBinariesIsLeftOut(t *testing.T) {
	// What was ok is found again and what failed is not; another level, another program,
	// another test and a plain run find nothing.
	dir, base := t.TempDir(), t.TempDir()
	self := filepath.Join(base, "e2e.test")
	write := func(file, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	write(self, "a test")
	for name := range programs() {
		write(filepath.Join(base, "bin", name), name)
	}
	open := func(resume, level string) (kept, bool) {
		t.Helper()
		t.Setenv("HEARTH_RESUME", resume)
		t.Setenv("HEARTH_E2E", level)
		f, err := openKept(dir, base, self)
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
	for _, file := range []string{filepath.Join(base, "bin", "wired"), self} {
		write(file, "another program")
		if k, keeps := open("1", "core"); !keeps || len(k.ok) > 0 {
			t.Errorf("with another %s: %v", filepath.Base(file), k.ok)
		}
	}
}
