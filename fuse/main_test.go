package fuse

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Whoever mounts never reads, and whoever reads never mounts: as root the whole
// test binary runs again in a mount namespace of its own, where it starts itself
// once more for each daemon and each reader. Nothing mounted outlives it.
const roleEnv = "HEARTH_FUSE_ROLE"

// noNap spares each process of a -race binary the second that it sleeps at exit.
const noNap = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); {
	case role == "daemon":
		os.Exit(daemon())
	case role == "reader":
		os.Exit(runReader(os.Args[1], os.Args[2:]))
	case role == "" && os.Geteuid() == 0:
		os.Exit(again())
	}
	os.Exit(m.Run())
}

func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"=suite")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run in a mount namespace:", err)
		return 1
	}
	return 0
}

// setup is what a daemon mounts; one line of JSON is one command to it.
type setup struct {
	Dir, Open, Options, Prefix, LocalDir string
	Without                              []string
	Strict, AllowOther, NoHas, Local     bool
	TTL                                  time.Duration // 0: a minute; negative: none
	Grace                                time.Duration // 0: as ever
	Files                                []fileSpec
	Many, ManySize                       int // names m/00000...
	ManyDirs                             int // spread over so many directories
	Exec                                 string
	Keep                                 bool  // sends what keeps the mount into descriptor 3
	Kept                                 *Kept // a mount to take over, with the descriptors 4 and 5
}

type fileSpec struct {
	Key     string
	Version int
	Size    int64
	Local   bool
}

type command struct {
	Do, Key string
	Version int
	Size    int64
	Lazy    bool
}

type reply struct {
	Err     string
	Stats   Stats
	Tree    map[string]int64
	Mounted string
}

func daemon() int {
	var c setup
	if err := json.Unmarshal([]byte(os.Getenv("HEARTH_FUSE_SETUP")), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out := json.NewEncoder(os.Stdout)
	say := func(r reply) {
		if err := out.Encode(r); err != nil {
			fmt.Fprintln(os.Stderr, "the daemon cannot reply:", err)
		}
	}
	tree := plant(&c)
	server, err := mountTree(&c, tree)
	if err != nil {
		say(reply{Err: err.Error()})
		return 1
	}
	if c.Grace != 0 {
		server.files.grace = c.Grace // nobody asks yet
	}
	say(reply{Mounted: server.Stats().Device})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var do command
		if err := json.Unmarshal(lines.Bytes(), &do); err != nil {
			say(reply{Err: err.Error()})
			continue
		}
		say(obey(&c, tree, server, do))
	}
	if err := server.Unmount(true); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	server.Wait()
	return left(tree)
}

// left finds what a mount that has ended left behind.
func left(tree *fakeTree) int {
	code := 0
	if n := tree.pool.Stats().Views; n != 0 {
		fmt.Fprintln(os.Stderr, n, "Views were never released")
		code = 1
	}
	if n := tree.lent.Load(); n != 0 {
		fmt.Fprintln(os.Stderr, n, "local files were never taken back")
		code = 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func plant(c *setup) *fakeTree {
	tree := newFakeTree(c.TTL)
	tree.localDir, tree.strict = c.LocalDir, c.Strict
	for _, f := range c.Files {
		tree.put(f.Key, f.Version, f.Size)
		tree.local[f.Key] = f.Local
	}
	shared := make([]byte, c.ManySize)
	for i := range shared {
		shared[i] = byte(i * 7)
	}
	for i := range c.Many {
		key := fmt.Sprintf("m/%05d", i)
		if c.ManyDirs > 0 {
			key = fmt.Sprintf("m/%03d/%05d", i%c.ManyDirs, i)
		}
		tree.put(key, 1, int64(c.ManySize))
		if c.ManySize > 0 {
			tree.literal[key] = shared
		}
	}
	if c.Exec != "" {
		data, err := os.ReadFile(c.Exec)
		if err != nil {
			panic(err)
		}
		tree.put("program", 1, int64(len(data)))
		tree.literal["program"] = data
	}
	return tree
}

func mountTree(c *setup, tree *fakeTree) (*Server, error) {
	o := Options{Dir: c.Dir, FSName: "fake://bucket/a,b", Tree: tree, Reads: reads(tree), Open: Mode(c.Open), Without: c.Without,
		Strict: c.Strict, AllowOther: c.AllowOther, Reader: cache.ReaderOptions{Has: tree.has}}
	o.Events.Complaint = func(text string) { fmt.Fprintln(os.Stderr, "complaint:", text) }
	o.Held = func(_ *hearthObject, each func(string, int64)) { each("ram", 5); each("disk", 7) }
	if c.NoHas {
		o.Reader.Has = nil
	}
	if c.Local {
		o.Local = tree
	}
	if c.Prefix != "" {
		tree.mu.Lock()
		o.Root = tree.dirLocked(c.Prefix)
		tree.mu.Unlock()
	}
	if err := o.Set(c.Options); err != nil {
		return nil, err
	}
	if c.Keep {
		o.Keep = keepIn(3)
	}
	if o.Kept = c.Kept; o.Kept != nil {
		o.Kept.Conn, o.Kept.Table, o.Kept.Names = os.NewFile(4, "/dev/fuse"), os.NewFile(5, "table"), tree.last
		defer o.Kept.Close() // the mount has its own
	}
	return Mount(context.Background(), o)
}

func obey(c *setup, tree *fakeTree, server *Server, do command) reply {
	var err error
	switch do.Do {
	case "put":
		tree.put(do.Key, do.Version, do.Size)
	case "remove":
		tree.remove(do.Key)
	case "swap": // at the origin, unseen by the tree
		tree.mu.Lock()
		tree.truth[do.Key] = do.Version
		for _, n := range tree.nodes {
			if n.node.Object.Key == do.Key {
				tree.gone[n.node.Object.Version] = true
			}
		}
		tree.mu.Unlock()
	case "stall":
		tree.mu.Lock()
		tree.stalled[do.Key] = make(chan struct{})
		tree.mu.Unlock()
	case "stalldir":
		tree.mu.Lock()
		tree.stalledIn[tree.dirLocked(do.Key)] = make(chan struct{})
		tree.mu.Unlock()
	case "resumedir":
		tree.mu.Lock()
		dir := tree.dirLocked(do.Key)
		close(tree.stalledIn[dir])
		delete(tree.stalledIn, dir)
		tree.mu.Unlock()
	case "resume":
		tree.mu.Lock()
		close(tree.stalled[do.Key])
		delete(tree.stalled, do.Key)
		tree.mu.Unlock()
	case "whole":
		tree.mu.Lock()
		tree.local[do.Key] = true
		tree.mu.Unlock()
	case "unmount":
		err = server.Unmount(do.Lazy)
	case "wait":
		server.Wait()
	case "drain":
		err = server.Drain(context.Background())
	case "again": // a second mount of the same tree, at Key
		second := *c
		second.Dir = do.Key
		_, err = mountTree(&second, tree)
	case "profile":
		f, ferr := os.Create(do.Key)
		if ferr == nil {
			ferr = pprof.StartCPUProfile(f)
		}
		err = ferr
	case "profiled":
		pprof.StopCPUProfile()
	}
	r := reply{Stats: server.Stats(), Tree: map[string]int64{
		"gets": tree.gets.Load(), "looked": tree.looked.Load(), "opened": tree.opened.Load(),
		"forgot": tree.forgot.Load(), "lent": tree.lent.Load(), "waiting": tree.waiting.Load(),
	}}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// mounted is a daemon as its test sees it.
type mounted struct {
	t      testing.TB
	dir    string
	cmd    *exec.Cmd
	wait   func() error // for the end of cmd
	device atomic.Value // string; the watchdog may look before it is known

	mu  sync.Mutex // one command at a time
	in  *json.Encoder
	out *json.Decoder
}

// mount starts a daemon and fails the test when it does not mount. A watchdog
// aborts the connection of a mount that outlives its time.
func mount(t testing.TB, c setup) *mounted {
	t.Helper()
	m, err := tryMount(t, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tryMount(t testing.TB, c setup, as *syscall.Credential, files ...*os.File) (*mounted, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting in a namespace of our own needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.TTL == 0 {
		c.TTL = time.Minute
	}
	if c.LocalDir == "" && c.Local {
		c.LocalDir = backingDir(t)
	}
	text, _ := json.Marshal(c)
	m := &mounted{t: t, dir: c.Dir}
	m.cmd = exec.Command("/proc/self/exe")
	m.cmd.Env = append(os.Environ(), roleEnv+"=daemon", noNap, "HEARTH_FUSE_SETUP="+string(text))
	m.cmd.Stderr, m.cmd.ExtraFiles = os.Stderr, files
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	in, _ := m.cmd.StdinPipe()
	out, _ := m.cmd.StdoutPipe()
	m.in, m.out = json.NewEncoder(in), json.NewDecoder(out)
	if err := hearthtest.Spawn(m.cmd); err != nil {
		return nil, err
	}
	m.wait = sync.OnceValue(m.cmd.Wait)
	watchdog := time.AfterFunc(40*time.Second, m.abort)
	t.Cleanup(func() {
		_ = in.Close()
		var exit *exec.ExitError
		if err := m.wait(); errors.As(err, &exit) && exit.ExitCode() > 0 && m.device.Load() != nil {
			t.Errorf("the daemon ends: %v", err)
		}
		watchdog.Stop()
		_ = syscall.Unmount(c.Dir, syscall.MNT_DETACH) // of a daemon that was killed
	})
	var r reply
	if err := m.out.Decode(&r); err != nil {
		return nil, fmt.Errorf("the daemon says nothing: %w", err)
	}
	if r.Err != "" {
		return nil, errors.New(r.Err)
	}
	m.device.Store(r.Mounted)
	return m, nil
}

// kill kills the daemon, and returns once it is gone.
func (m *mounted) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.wait() // it was killed
}

// backingDir is a directory whose files may back a passthrough mount.
func backingDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "hearth-backing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// abort ends our own connection by force.
func (m *mounted) abort() {
	device, _ := m.device.Load().(string)
	_, minor, _ := strings.Cut(device, ":")
	dir := filepath.Join(os.TempDir(), "hearth-fusectl-"+strconv.Itoa(os.Getpid()))
	_ = os.Mkdir(dir, 0o700)
	defer func() { _ = os.Remove(dir) }()
	if minor != "" && syscall.Mount("fusectl", dir, "fusectl", 0, "") == nil {
		defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
		_ = os.WriteFile(filepath.Join(dir, minor, "abort"), []byte("1"), 0)
	}
	_ = m.cmd.Process.Kill()
}

func (m *mounted) try(do command) (reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var r reply
	err := m.in.Encode(do)
	if err == nil {
		err = m.out.Decode(&r)
	}
	if err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	return r, err
}

func (m *mounted) do(do command) reply {
	m.t.Helper()
	r, err := m.try(do)
	if err != nil {
		m.t.Fatalf("%s: %v", do.Do, err)
	}
	return r
}

// until asks the daemon until a fact holds.
func (m *mounted) until(what string, fact func(reply) bool) {
	m.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if fact(m.do(command{Do: "stats"})) {
			return
		}
	}
	m.t.Fatalf("waited in vain: %s", what)
}

// reader runs a reader in a process of its own and returns what it printed.
func (m *mounted) reader(name string, args ...string) (string, error) {
	cmd := m.start(name, args...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)) + " (" + exit.Error() + ")")
	}
	return strings.TrimSpace(string(out)), err
}

func (m *mounted) start(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{name}, args...)...)
	cmd.Env = append(os.Environ(), roleEnv+"=reader", noNap)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (m *mounted) read(name string, args ...string) string {
	m.t.Helper()
	out, err := m.reader(name, args...)
	if err != nil {
		m.t.Fatalf("%s %v: %v", name, args, err)
	}
	return out
}

func (m *mounted) path(key string) string { return filepath.Join(m.dir, key) }
