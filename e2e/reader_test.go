package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// job is what a reader in a process of its own does. Its system calls are made
// one by one, as a program makes them that knows nothing of Hearth.
type job struct {
	Op    string // stat, open, read, or readdir of the first file's directory
	Dir   string // of the mount
	Files []hearthtest.File
	Loop  bool // again and again, until its standard input ends
}

// account is what came of it.
type account struct {
	Done    int // times that all went well
	Longest time.Duration
	Errors  map[string]int // by name
	Wrong   []string       // bytes, names and sizes that were not right
}

// readerVariable holds the job; it makes a process of this test a reader.
const readerVariable = "HEARTH_E2E_READER"

// reader is such a process, seen from the scenario.
type reader struct {
	*process
	end func() // ends its standard input
}

func (e *env) reader(j job) *reader {
	e.Helper()
	text, err := json.Marshal(j)
	e.must(err, "write a reader's job")
	self, err := os.Executable()
	e.must(err, "find this test")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), readerVariable+"="+string(text))
	in, err := cmd.StdinPipe()
	e.must(err, "make a pipe")
	return &reader{process: e.start(cmd), end: func() { _ = in.Close() }}
}

// result waits for the account.
func (r *reader) result(s *sick, within time.Duration) account {
	s.Helper()
	var a account
	over := time.Now().Add(within)
	s.eventually("the account of "+r.name, func() bool {
		if time.Now().After(over) {
			s.Fatalf("%s did not end within %v", r.name, within)
		}
		return json.Unmarshal([]byte(r.out.String()), &a) == nil
	})
	return a
}

// stuck reports whether a thread of the process is in state D.
func (r *reader) stuck() bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", r.Process.Pid))
	for _, name := range stats {
		text, _ := os.ReadFile(name) // a thread that has ended is not stuck
		if _, state, _ := strings.Cut(string(text), ") "); strings.HasPrefix(state, "D") {
			return true
		}
	}
	return false
}

// beReader does the job of this process, says what came of it, and stays until its
// standard input ends, so that others can look at its state.
func beReader(text string) int {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Fprintln(os.Stderr, "reader:", err)
		return 1
	}
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	w := &worker{account: account{Errors: map[string]int{}}}
	for again := true; again; {
		if w.do(j) {
			w.Done++
		}
		select {
		case <-ended:
			again = false
		default:
			again = j.Loop
		}
	}
	if json.NewEncoder(os.Stdout).Encode(w.account) != nil {
		return 1
	}
	<-ended
	return 0
}

type worker struct{ account }

// call makes one system call and notes its time and error.
func (w *worker) call(do func() error) bool {
	start := time.Now()
	err := do()
	for errors.Is(err, unix.EINTR) { // a signal of Go's own; the time goes on
		err = do()
	}
	w.Longest = max(w.Longest, time.Since(start))
	var errno unix.Errno
	if errors.As(err, &errno) {
		w.Errors[unix.ErrnoName(errno)]++
	}
	return err == nil
}

func (w *worker) wrong(format string, args ...any) bool {
	w.Wrong = append(w.Wrong, fmt.Sprintf(format, args...))
	return false
}

func (w *worker) do(j job) bool {
	if j.Op == "readdir" {
		return w.list(j)
	}
	well := true
	for _, f := range j.Files {
		name := filepath.Join(j.Dir, f.Path)
		if j.Op == "stat" {
			var st unix.Stat_t
			ok := w.call(func() error { return unix.Stat(name, &st) })
			if well = well && ok; ok && st.Size != f.Size {
				well = w.wrong("%s: %d bytes by stat", f.Path, st.Size)
			}
			continue
		}
		fd := -1
		if !w.call(func() (err error) { fd, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); return err }) {
			well = false
			continue
		}
		if j.Op == "read" {
			well = w.read(fd, f) && well
			_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // so that Hearth is asked again
		}
		w.call(func() error { return unix.Close(fd) })
	}
	return well
}

// read reads a file to its end or to the first error.
func (w *worker) read(fd int, f hearthtest.File) bool {
	buf := make([]byte, 128<<10)
	for off := int64(0); ; {
		n := 0
		if !w.call(func() (err error) { n, err = unix.Pread(fd, buf, off); return err }) {
			return false
		}
		if err := hearthtest.Check(buf[:max(n, 0)], f.Path, off, 0); err != nil {
			return w.wrong("%v", err)
		}
		if off += int64(n); n == 0 {
			return off == f.Size || w.wrong("%s: ends at %d of %d", f.Path, off, f.Size)
		}
	}
}

// list reads the first file's directory, which holds the files and no other.
func (w *worker) list(j job) bool {
	dir := filepath.Dir(j.Files[0].Path)
	fd := -1
	if !w.call(func() (err error) {
		fd, err = unix.Open(filepath.Join(j.Dir, dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	}) {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n := 0
		if !w.call(func() (err error) { n, err = unix.Getdents(fd, buf); return err }) {
			return false
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	if len(names) != len(j.Files) {
		return w.wrong("%s: %d names of %d", dir, len(names), len(j.Files))
	}
	return true
}
