package keep

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// The test's binary is the node, too. It does what the words after its name say, one word a life, and appends a line to a
// file for each life.
func TestMain(m *testing.M) {
	if os.Args[0] == "keeper" {
		os.Exit(keeperProcess(os.Args[1:]))
	}
	if os.Getenv(Variable) != "" {
		os.Exit(fakeNode(os.Args[1], os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

func fakeNode(report string, lives []string) int {
	k, err := FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	k.Successor = append([]string{"keeper", report}, lives...)
	replaced := make(chan string, 1)
	go k.Attend(func(text string) { replaced <- text })
	var dirs []string
	for _, m := range k.Mounts {
		text := make([]byte, 10)
		n, _ := m.Kept.Table.ReadAt(text, 0)
		dirs = append(dirs, fmt.Sprintf("%s:%s:%s", m.Kept.Dir, m.Request, text[:n]))
		if err := k.Took(m); err != nil {
			return 9
		}
		m.Kept.Close()
	}
	slices.Sort(dirs)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM) // before anybody hears of this life
	life := lives[min(k.Begin.Starts, len(lives))-1]
	line := fmt.Sprintf("%d %s [%s] %s\n", k.Begin.Starts, life, strings.Join(dirs, " "), k.Begin.Cause)
	f, err := os.OpenFile(report, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(line)
	}
	if err == nil && k.Begin.Starts > 1 { // a file of that name tells lives that nobody waited between
		err = os.WriteFile(fmt.Sprintf("%s.ended.%d", report, k.Begin.Ended.UnixNano()), nil, 0o600)
	}
	if err != nil {
		return 9
	}
	for do := range strings.SplitSeq(life, ",") {
		what, value, _ := strings.Cut(do, "=")
		n, _ := strconv.Atoi(value)
		switch what {
		case "keep":
			err = k.Keep(fakeMount(report, n))
		case "drop":
			err = k.Drop(value)
		case "drained":
			err = k.Drained(value)
		case "serve":
			err = k.Serving()
		case "ending":
			err = k.Ending()
		case "exit":
			return n
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "become":
			err = k.Become(value)
		case "cannot":
			if k.Become(value) == nil {
				return 9
			}
		case "orphan":
			_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
			<-replaced
		case "garbage":
			_, err = k.socket.Write([]byte("{"))
		case "hang": // as one that was killed, and has a thread that waits for its own mount
			k.Close()
			for ; err == nil; time.Sleep(time.Millisecond) {
				if _, err := os.Stat(report + ".over"); err == nil {
					return 0
				}
			}
		case "wait": // for a signal
			<-signals
		case "start": // until the test has sent one, which is not to come yet
			for err == nil {
				if _, err := os.Stat(report + ".sent"); err == nil {
					break
				}
				select {
				case <-signals:
					return 8
				case <-time.After(time.Millisecond):
				}
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
	}
	return 0
}

// fakeMount is a mount whose connection is no FUSE, and whose way to abort it is a file beside the report. That of mount 9 is
// of a kernel that does not ask again.
func fakeMount(report string, n int) Mount {
	fd, err := unix.MemfdCreate("table", unix.MFD_CLOEXEC)
	table := os.NewFile(uintptr(fd), "table")
	if err == nil {
		_, err = table.WriteString(strconv.Itoa(n))
	}
	conn, err2 := os.Open(os.DevNull)
	abort, err3 := os.Create(report + ".abort" + strconv.Itoa(n))
	if err != nil || err2 != nil || err3 != nil {
		panic(fmt.Sprint(err, err2, err3))
	}
	request, _ := json.Marshal(n)
	answer := make([]byte, 80) // to INIT, with its flags (linux/fuse.h)
	if n != 9 {
		binary.NativeEndian.PutUint32(answer[16+32:], uint32(gofuse.CAP_HAS_RESEND>>32))
	}
	return Mount{ID: strconv.Itoa(n), Kept: &fuse.Kept{Answer: answer, Dir: fmt.Append(nil, "/m", n), Conn: conn, Table: table, Abort: abort}, Request: request}
}

func TestANodeIsStartedAgain(t *testing.T) {
	// What each life of a node gets from its keeper, by how the one before ended; and what the keeper returns.
	t.Parallel()
	for _, c := range []struct {
		story  string
		lives  []string
		report []string
		code   int
		said   string // by the keeper
	}{
		{"it cannot start", []string{"exit=8"}, []string{"1 exit=8 [] "}, 8, ""},
		{"it ends for good", []string{"keep=1,serve,drop=1,ending,exit=0"}, []string{"1 keep=1,serve,drop=1,ending,exit=0 [] "}, 0, ""},
		{"it is killed and ends for good", []string{"keep=1,keep=2,serve,kill", "serve,drop=1,kill", "serve,ending,exit=3"}, []string{
			"1 keep=1,keep=2,serve,kill [] ", "2 serve,drop=1,kill [/m1:1:1 /m2:2:2] was killed by signal 9 (killed)", "3 serve,ending,exit=3 [/m2:2:2] was killed by signal 9 (killed)"}, 3, ", and users of 2 mounts wait"},
		{"it ends by itself", []string{"serve,exit=0", "serve,exit=2", "ending"}, []string{"1 serve,exit=0 [] ", "2 serve,exit=2 [] has ended", "3 ending [] has ended with exit code 2"}, 0, "started again"},
		{"it cannot start any more", []string{"keep=1,serve,kill", "exit=5", "serve,ending"}, []string{
			"1 keep=1,serve,kill [] ", "2 exit=5 [/m1:1:1] was killed by signal 9 (killed)", "3 serve,ending [/m1:1:1] has ended with exit code 5"}, 0, "exit code 5"},
		{"it is killed before it has served", []string{"keep=1,kill", "ending"}, []string{"1 keep=1,kill [] ", "2 ending [/m1:1:1] was killed by signal 9 (killed)"}, 0, ""},
		{"it has a mount kept twice", []string{"keep=1,keep=1,serve,kill", "ending"}, []string{"1 keep=1,keep=1,serve,kill [] ", "2 ending [/m1:1:1] was killed by signal 9 (killed)"}, 0, "users of 1 mount wait"},
		{"its kernel does not ask again", []string{"keep=1,keep=9,serve,drained=9,kill", "serve,kill", "ending"}, []string{"1 keep=1,keep=9,serve,drained=9,kill [] ",
			"2 serve,kill [/m1:1:1 /m9:9:9] was killed by signal 9 (killed)", "3 ending [/m1:1:1] was killed by signal 9 (killed)"}, 0, "the mount /m9 has ended with its node"},
		{"it says what is no packet", []string{"garbage,serve,ending,exit=4"}, []string{"1 garbage,serve,ending,exit=4 [] "}, 4, "unexpected end of JSON"},
	} {
		t.Run(c.story, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.lives...)
			if code := r.run(); code != c.code {
				t.Errorf("exit code %d, not %d", code, c.code)
			}
			if got := r.lives(); !slices.Equal(got, c.report) {
				t.Errorf("%q, not %q", got, c.report)
			}
			if !strings.Contains(r.said(), c.said) {
				t.Errorf("the keeper says %q, not %q", r.said(), c.said)
			}
			ended, _ := filepath.Glob(r.report + ".ended.*") // the pattern is well-formed
			if c.story == "it cannot start any more" && len(ended) != 1 {
				t.Errorf("%d times since which nobody serves, not 1: the second life has not served", len(ended))
			}
		})
	}
}

func TestPatienceEnds(t *testing.T) {
	// No node comes. Once the patience is over, the keeper has the kernel end the connections. The node is tried on, without
	// mounts, and a node that serves in time saves them.
	t.Parallel()
	r := newRig(t, "keep=1,serve,kill", "exit=1", "exit=1", "exit=1", "exit=1", "exit=1", "ending")
	r.o.Patience = 200 * time.Millisecond
	var told atomic.Int64
	r.o.Waits = func() { told.Add(1) }
	r.run()
	if told.Load() == 0 {
		t.Error("nobody was told that users wait")
	}
	lives := r.lives()
	if first, last := lives[1], lives[len(lives)-1]; !strings.Contains(first, "[/m1:1:1]") || !strings.Contains(last, "[]") {
		t.Errorf("%q", lives)
	}
	if text, err := os.ReadFile(r.report + ".abort1"); string(text) != "1" || !strings.Contains(r.said(), "(keeper.patience)") {
		t.Errorf("aborted by %q, %v; said %s", text, err, r.said())
	}
	saved := newRig(t, "keep=1,serve,kill", "exit=1", "serve,wait,drop=1,ending")
	saved.o.Patience = time.Minute
	go func() {
		hearthtest.Eventually(t.Context(), time.Minute, func() bool { return len(saved.lives()) == 3 })
		select {
		case saved.signals <- syscall.SIGTERM:
		case <-saved.done:
		}
	}()
	if code := saved.run(); code != 0 && code != 128+15 {
		t.Errorf("exit code %d", code)
	}
	if text, _ := os.ReadFile(saved.report + ".abort1"); len(text) > 0 {
		t.Error("aborted, though a node served")
	}
}

func TestAKeeperIsReplaced(t *testing.T) {
	// A keeper becomes another program, as the same process, and the node of that program gets the mounts. One that is killed
	// is replaced by its node. Either way the next node gets the mounts, also those of a node before, and no others.
	t.Parallel()
	for _, c := range []struct {
		story string
		lives []string
		left  []string // mounts and cause, of the second life on
	}{
		{"another version", []string{"keep=1,keep=2,serve,become=/proc/self/exe,exit=0", "serve,drop=2,kill", "ending"},
			[]string{"[/m1:1:1 /m2:2:2] has made way for another version", "[/m1:1:1] was killed by signal 9 (killed)"}},
		{"no such version", []string{"keep=1,serve,cannot=/no/such,kill", "ending"}, []string{"[/m1:1:1] was killed by signal 9 (killed)"}},
		{"killed", []string{"keep=1,keep=2,drop=1,serve,orphan,keep=3,kill", "serve,orphan,kill", "serve,become=/proc/self/exe,exit=0", "ending"},
			[]string{"[/m2:2:2 /m3:3:3] has ended", "[/m2:2:2 /m3:3:3] has ended", "[/m2:2:2 /m3:3:3] has made way for another version"}},
		{"killed, and then both", []string{"keep=1,serve,orphan,exit=0", "ending"}, []string{"[/m1:1:1] has ended"}},
	} {
		t.Run(c.story, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.lives...)
			cmd := exec.Command("/proc/self/exe")
			cmd.Args = append([]string{"keeper", r.report}, c.lives...)
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			hearthtest.Eventually(t.Context(), time.Minute, func() bool {
				said, _ := os.ReadFile(r.report + ".said")
				return strings.Contains(string(said), "the keeper ends with 0")
			})
			_ = cmd.Wait() // it may have been killed
			got := r.lives()
			if len(got) != len(c.lives) {
				t.Fatalf("%q", got)
			}
			for i, left := range c.left {
				if want := fmt.Sprintf("%d %s %s", i+2, c.lives[i+1], left); got[i+1] != want {
					t.Errorf("%q, not %q", got[i+1], want)
				}
			}
		})
	}
}

// keeperProcess is a keeper in a process of its own, whose words go to a file beside the report.
func keeperProcess(args []string) int {
	said, err := os.OpenFile(args[0]+".said", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 9
	}
	say := func(text string) { _, _ = fmt.Fprintln(said, text) }
	code, err := Run(Options{Program: "/proc/self/exe", Args: append([]string{"node"}, args...), Successor: []string{"keeper"}, Signals: make(chan os.Signal), Say: say})
	if err != nil {
		say(err.Error())
		code = 9
	}
	say(fmt.Sprint("the keeper ends with ", code))
	return code
}

func TestASignalWaitsForANodeThatTakesOver(t *testing.T) {
	// Who ends a node while the next one starts gets the mounts taken away all the same: the signal reaches the node once it
	// serves. It is sent after one that ended by itself, too, and after one that made way for another version.
	t.Parallel()
	for _, first := range []string{"keep=1,serve,kill", "keep=1,serve,exit=3", "keep=1,serve,exit=0"} {
		r := newRig(t, first, "start,serve,wait,drop=1,exit=0", "exit=9")
		go func() {
			hearthtest.Eventually(t.Context(), time.Minute, func() bool { return len(r.lives()) == 2 })
			r.signals <- syscall.SIGTERM
			if err := os.WriteFile(r.report+".sent", nil, 0o600); err != nil {
				t.Error(err)
			}
		}()
		if code := r.run(); code != 0 || len(r.lives()) != 2 {
			t.Errorf("%s: exit code %d after %q", first, code, r.lives())
		}
		if text, err := os.ReadFile(r.report + ".abort1"); err != nil || len(text) > 0 {
			t.Errorf("%s: the mount's connection was ended: %q, %v", first, text, err)
		}
	}
	// One that cannot be had to serve gets it at the second signal.
	r := newRig(t, "keep=1,serve,kill", "start,serve,wait,drop=1,exit=0")
	go func() {
		hearthtest.Eventually(t.Context(), time.Minute, func() bool { return len(r.lives()) == 2 })
		r.signals <- syscall.SIGTERM
		r.signals <- syscall.SIGTERM
	}()
	if code := r.run(); code != 8 {
		t.Errorf("exit code %d after %q", code, r.lives())
	}
}

func TestASignalComesAsAKilledNodeHangs(t *testing.T) {
	// The node was killed and cannot end before somebody answers its mount. Who ends the keeper then gets one node more, which takes the
	// mount away; where that one hangs, too, the connection is ended.
	t.Parallel()
	for _, next := range []string{"serve,wait,drop=1,exit=0", "serve,hang"} {
		r := newRig(t, "keep=1,serve,hang", next)
		over := func() {
			if err := os.WriteFile(r.report+".over", nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		go func() {
			hearthtest.Eventually(t.Context(), time.Minute, func() bool { return len(r.lives()) == 1 && r.lives()[0] != "" })
			r.signals <- syscall.SIGTERM
			if next == "serve,hang" { // its thread ends with the connection
				hearthtest.Eventually(t.Context(), time.Minute, func() bool {
					text, _ := os.ReadFile(r.report + ".abort1") // it is not there yet
					return len(text) > 0
				})
				over()
			}
		}()
		code := r.run()
		if len(r.lives()) != 2 || next != "serve,hang" && code != 0 {
			t.Errorf("%s: exit code %d after %q", next, code, r.lives())
		}
		over()
	}
}

func TestASignalEndsTheNodeForGood(t *testing.T) {
	// SIGTERM goes to the node, which is not started again when it has ended, and once when it was killed, to take the mounts away.
	t.Parallel()
	for _, lives := range [][]string{{"keep=1,serve,wait,exit=7"}, {"keep=1,serve,wait,kill"}, {"keep=1,serve,kill", "exit=1"}} {
		r := newRig(t, lives...)
		go func() {
			hearthtest.Eventually(t.Context(), time.Minute, func() bool { return len(r.lives()) >= len(lives) })
			for { // it may come before the node listens, or between two lives
				select {
				case r.signals <- syscall.SIGTERM:
				case <-r.done:
					return
				}
			}
		}()
		if code := r.run(); code == 0 || len(r.lives()) > 2 {
			t.Errorf("%q: exit code %d after %q", lives, code, r.lives())
		}
	}
}

// rig is a keeper with a fake node.
type rig struct {
	*testing.T
	o       Options
	report  string
	signals chan os.Signal
	done    chan struct{}
	mu      sync.Mutex // guards words
	words   strings.Builder
}

func newRig(t *testing.T, lives ...string) *rig {
	r := &rig{T: t, report: filepath.Join(t.TempDir(), "report"), signals: make(chan os.Signal), done: make(chan struct{})}
	r.o = Options{Program: "/proc/self/exe", Args: append([]string{"node", r.report}, lives...), Signals: r.signals, Say: func(text string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.words.WriteString(text + "\n")
	}}
	return r
}

func (r *rig) run() int {
	r.Helper()
	defer close(r.done)
	code, err := Run(r.o)
	if err != nil {
		r.Error(err)
	}
	return code
}

func (r *rig) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.words.String()
}

func (r *rig) lives() []string {
	text, _ := os.ReadFile(r.report) // none has begun
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
