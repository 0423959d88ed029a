package powercut

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Kind is what an operation does.
type Kind string

// The kinds of operations.
const (
	Create   Kind = "create" // a file that was not there
	Mkdir    Kind = "mkdir"
	Write    Kind = "write"
	Punch    Kind = "punch"
	Truncate Kind = "truncate"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	Sync     Kind = "sync"   // of a file, or of a directory's names
	SyncAll  Kind = "syncfs" // of everything
	Mark     Kind = "mark"   // the scenario's
)

// Op is one operation.
type Op struct {
	Kind Kind
	Name string // below the directory; of a Mark its text
	To   string // of a Rename
	Off  int64
	N    int64  // of a Punch; the size of a Truncate
	Data []byte // of a Write
}

// Trace is what a scenario did.
type Trace struct {
	Ops  []Op
	from string // no cut before this mark; "" means that all cuts are made
}

const (
	childDir = "HEARTH_POWERCUT_DIR" // a child's variable: the directory in which its scenario works
	markName = "/hearth-powercut-mark/"
	listener = 3 // the child's socket for the descriptor
)

// Record runs a scenario in a child process and returns what it did below dir, which is empty at
// first. Call it once per test or subtest: the child runs the test again up to this call. The child
// ends with the scenario, without cleanups. mark puts a text between the operations.
func Record(t *testing.T, scenario func(t *testing.T, dir string, mark func(text string))) *Trace {
	t.Helper()
	if dir := os.Getenv(childDir); dir != "" {
		if err := listen(); err != nil {
			t.Fatalf("be watched: %v", err)
		}
		scenario(t, dir, func(text string) { _ = unix.Unlink(markName + text) })
		os.Exit(0)
	}
	dir, err := filepath.EvalSymlinks(place(t))
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Close() }() // a socket
	child := exec.Command(os.Args[0], "-test.run="+pattern(t.Name()), "-test.count=1")
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.ExtraFiles = []*os.File{theirs}
	exited, output, err := hearthtest.StartChild(child)
	_ = theirs.Close() // the child has its own
	if err != nil {
		t.Fatal(err)
	}
	tr, err := watch(ours, child.Process.Pid, dir)
	if err != nil {
		_ = child.Process.Kill()
	}
	<-exited
	if err != nil || !child.ProcessState.Success() {
		t.Fatalf("the scenario ended with %v, watched until %v:\n%s", child.ProcessState, err, output())
	}
	return tr
}

// place returns an empty directory for a test, in memory if possible. The model needs no device,
// and a test syncs a thousand times.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "powercut")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	return dir
}

// pattern is the -run pattern of one test or subtest alone.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	return strings.Join(parts, "/")
}

// Count is the number of operations of a kind.
func (tr *Trace) Count(kind Kind) (n int) {
	for i := range tr.Ops {
		if tr.Ops[i].Kind == kind {
			n++
		}
	}
	return n
}

// Cut is a directory after a power cut.
type Cut struct {
	// Dir has what is left. A test may use it as it likes.
	Dir string
	// Ops is the number of operations before the cut. The last one may have been in flight.
	Ops int
	// Marks are the marks that the scenario had passed.
	Marks []string
	// Draw numbers the outcomes of one cut. In 0 nothing that was not synced is there. In 1
	// everything is.
	Draw int
}

// String names the cut.
func (c Cut) String() string { return fmt.Sprintf("cut after %d operations, draw %d", c.Ops, c.Draw) }

// Passed reports whether the scenario had passed a mark.
func (c Cut) Passed(mark string) bool { return slices.Contains(c.Marks, mark) }

// From returns the same trace, cut only after a mark: the scenario's preparation costs no cuts.
func (tr *Trace) From(mark string) *Trace { return &Trace{Ops: tr.Ops, from: mark} }

// Cuts cuts the power after every stride-th operation, after each operation that is no write,
// before each sync, and at the end. Each cut has draws outcomes, drawn from fixed seeds.
func (tr *Trace) Cuts(t *testing.T, stride, draws int, check func(t *testing.T, c Cut)) {
	t.Helper()
	tr.cuts(t, func(k int) bool {
		return k%stride == 0 || k == len(tr.Ops) || tr.Ops[k].Kind == Sync || k > 0 && tr.Ops[k-1].Kind != Write && tr.Ops[k-1].Kind != Punch
	}, func(d *disk, c Cut, each func(c Cut, ch chooser)) {
		for c.Draw = range draws {
			each(c, draw(c.Ops, c.Draw))
		}
	}, check)
}

// Every cuts the power after each operation, with each possible outcome. It fails if there are more
// than most.
func (tr *Trace) Every(t *testing.T, most int, check func(t *testing.T, c Cut)) {
	t.Helper()
	tr.cuts(t, func(int) bool { return true }, func(_ *disk, c Cut, each func(c Cut, ch chooser)) {
		all := &odometer{}
		for c.Draw = 0; all.next(); c.Draw++ {
			if c.Draw == most {
				t.Fatalf("after %d operations there are more than %d outcomes", c.Ops, most)
			}
			each(c, all)
		}
	}, check)
}

func (tr *Trace) cuts(t *testing.T, due func(k int) bool, outcomes func(*disk, Cut, func(Cut, chooser)), check func(*testing.T, Cut)) {
	t.Helper()
	d, marks, dir := newDisk(), []string(nil), filepath.Join(place(t), "d")
	for k := 0; k <= len(tr.Ops); k++ {
		if due(k) && (tr.from == "" || slices.Contains(marks, tr.from)) {
			outcomes(d, Cut{Ops: k, Marks: slices.Clone(marks)}, func(c Cut, ch chooser) {
				defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
				c.Dir = dir
				if err := d.leave(dir, ch); err != nil {
					t.Fatal(err)
				}
				check(t, c)
			})
		}
		if k == len(tr.Ops) {
			return
		}
		if op := &tr.Ops[k]; op.Kind == Mark {
			marks = append(marks, op.Name)
		} else if err := d.apply(op); err != nil {
			t.Fatalf("operation %d, %s %s: %v", k, op.Kind, op.Name, err)
		}
	}
}
