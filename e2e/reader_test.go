package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// job is what a reader in a process of its own does. Its system calls are made
// one by one, as a program makes them that knows nothing of Hearth.
type job struct {
	Op    string // stat, open, read, random (read in random pieces), hold (open all and keep them so), along (until its standard input ends, in every way), or readdir of the first file's directory
	Dir   string // of the mount
	Files []hearthtest.File
	Loop  bool // again and again, until its standard input ends
	Seed  uint64
	Name  string // of the files that write makes: it begins theirs

	// Of metamorphic and exercise.
	Local string // a directory of ext4
	Draw  uint64 // what is drawn from
	Calls int    // of a run
	Runs  int    // at least
	Large bool   // some bytes are megabytes
}

// account is what came of it.
type account struct {
	Done    int // times that all went well
	Longest time.Duration
	Errors  map[string]int    // by name
	Wrong   []string          // bytes, names and sizes that were not right
	Acked   []hearthtest.File // that write has closed without an error
	Seen    map[string]int    // what metamorphic has done, by promise
	Sums    map[string]string // of the files of exercise
}

// readerVariable names the file that holds the job; it makes a process of this test a reader.
const readerVariable = "HEARTH_E2E_READER"

// reader is such a process, seen from the scenario.
type reader struct {
	*process
	end func() // ends its standard input
}

func (e *env) reader(j job) *reader {
	e.Helper()
	e.count++
	j.Seed = e.seed() + uint64(e.count)
	text, err := json.Marshal(j)
	e.must(err, "write a reader's job")
	self, err := os.Executable()
	e.must(err, "find this test")
	name := e.path(fmt.Sprintf("job-%d", e.count))
	e.must(os.WriteFile(name, text, 0o600), "write a reader's job")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), readerVariable+"="+name)
	if j.Calls > 0 { // what a signal breaks off would be another outcome
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	}
	in, err := cmd.StdinPipe()
	e.must(err, "make a pipe")
	return &reader{process: e.start(cmd), end: func() { _ = in.Close() }}
}

// result waits for the account.
func (r *reader) result(within time.Duration) account {
	r.env.Helper()
	var a account
	over := time.Now().Add(within)
	r.env.eventually("the account of "+r.name, func() bool {
		if time.Now().After(over) {
			r.env.Fatalf("%s did not end within %v", r.name, within)
		}
		return json.Unmarshal([]byte(r.out.String()), &a) == nil
	})
	return a
}

// beReader does the job of this process, says what came of it, and stays until its
// standard input ends, so that others can look at its state.
func beReader(name string) int {
	var j job
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reader:", err)
		return 1
	}
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	w := &worker{account: account{Errors: map[string]int{}}, rng: rand.New(rand.NewPCG(j.Seed, 6))}
	again := false
	switch j.Op {
	case "along":
		w.along(j, ended)
	case "write":
		w.write(j, ended)
	case "metamorphic":
		w.metamorphic(j, ended)
	case "exercise":
		w.exercise(j, ended)
	default:
		again = true
	}
	for again {
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

type worker struct {
	account
	rng  *rand.Rand
	held []int // descriptors, of hold
}

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
	switch j.Op {
	case "readdir":
		return w.list(j)
	case "hold":
		return w.hold(j)
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
		if j.Op == "read" || j.Op == "random" {
			if j.Op == "read" {
				well = w.read(fd, f) && well
			} else {
				well = w.random(fd, f) && well
			}
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

// random reads about half of a file's pieces of 128 KiB, each at random.
func (w *worker) random(fd int, f hearthtest.File) bool {
	const piece = 128 << 10
	pieces := (f.Size + piece - 1) / piece
	for range (pieces + 1) / 2 {
		if !w.piece(fd, f, w.rng.Int64N(pieces)*piece, piece) {
			return false
		}
	}
	return true
}

// piece reads n bytes at an offset, fewer at the end.
func (w *worker) piece(fd int, f hearthtest.File, off, n int64) bool {
	buf, got := make([]byte, min(n, f.Size-off)), 0
	if !w.call(func() (err error) { got, err = unix.Pread(fd, buf, off); return err }) {
		return false
	}
	if got != len(buf) {
		return w.wrong("%s: %d bytes of %d at %d", f.Path, got, len(buf), off)
	}
	if err := hearthtest.Check(buf, f.Path, off, 0); err != nil {
		return w.wrong("%v", err)
	}
	return true
}

// hold opens what is not open yet and reads a page of each file, which then stays
// open until this process ends.
func (w *worker) hold(j job) bool {
	for _, f := range j.Files[len(w.held):] {
		fd := -1
		if !w.call(func() (err error) {
			fd, err = unix.Open(filepath.Join(j.Dir, f.Path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return err
		}) {
			return false
		}
		w.held = append(w.held, fd)
	}
	for i, f := range j.Files {
		off := w.rng.Int64N((f.Size+4095)/4096) * 4096
		_ = unix.Fadvise(w.held[i], 0, 0, unix.FADV_DONTNEED) // so that Hearth is asked
		if !w.piece(w.held[i], f, off, 4096) {
			return false
		}
	}
	return true
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
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // so that Hearth is asked again
	if len(names) != len(j.Files) {
		return w.wrong("%s: %d names of %d", dir, len(names), len(j.Files))
	}
	return true
}
