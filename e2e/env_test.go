package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

// env is what one scenario works with: a directory on a real file system,
// processes that end with it, and a watchdog.
type env struct {
	*testing.T
	*suite
	sc    scenario
	dir   string
	ctx   context.Context
	count int // of processes, for their names
	// seed is what the scenario draws all else from. Who asks first has it logged.
	seed func() uint64
	// detail is what the run itself found, shown in the table beside the size.
	detail string
}

func newEnv(t *testing.T, s *suite, sc scenario) *env {
	dir, err := os.MkdirTemp(s.base, "scenario-")
	if err != nil {
		t.Fatal(err)
	}
	limit := sc.limit
	if s.level == full {
		limit *= 10
	}
	if s.race {
		limit *= 3
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errors.New("the scenario's time is over"))
	e := &env{T: t, suite: s, sc: sc, dir: dir, ctx: ctx, seed: sync.OnceValue(func() uint64 { return hearthtest.Seed(t) })}
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("watchdog: %v (%v): aborting its FUSE connections", context.Cause(ctx), limit)
			abortBelow(dir)
		}
	})
	t.Cleanup(func() { // the first registered is the last to run: after all processes
		stop()
		cancel()
		for _, m := range mountsBelow(dir) {
			_ = detach(m.point)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the scenario's directory: %v", err)
		}
	})
	return e
}

// path is a name below the scenario's directory.
func (e *env) path(name string) string { return filepath.Join(e.dir, name) }

// must ends the scenario on an error.
func (e *env) must(err error, what string, args ...any) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// detach takes a mount away although it is in use, or its process is dead.
func detach(point string) error {
	if os.Getuid() == 0 {
		return unix.Unmount(point, unix.MNT_DETACH)
	}
	return exec.Command("fusermount3", "-u", "-z", "--", point).Run()
}

// mountPoint is one line of the kernel's table of mounts.
type mountPoint struct {
	point, kind string
	minor       string
}

// mountsBelow are the mounts at any of some directories and below.
func mountsBelow(dirs ...string) []mountPoint {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	var found []mountPoint
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 10 || !slices.ContainsFunc(dirs, func(dir string) bool { return f[4] == dir || strings.HasPrefix(f[4], dir+"/") }) {
			continue
		}
		_, minor, _ := strings.Cut(f[2], ":")
		m := mountPoint{point: f[4], minor: minor}
		for i, w := range f {
			if w == "-" && i+1 < len(f) {
				m.kind = f[i+1]
			}
		}
		found = append(found, m)
	}
	return found
}

// abortBelow ends the FUSE connections of the mounts below dir, so that nothing
// that waits for them stays in state D.
func abortBelow(dir string) {
	fusectl()
	for _, m := range mountsBelow(dir) {
		if strings.HasPrefix(m.kind, "fuse") {
			_ = os.WriteFile("/sys/fs/fuse/connections/"+m.minor+"/abort", []byte("1"), 0)
		}
	}
}

// fusectl has the file system by which connections are cut.
func fusectl() {
	if _, err := os.Stat("/sys/fs/fuse/connections"); err == nil {
		_ = unix.Mount("fusectl", "/sys/fs/fuse/connections", "fusectl", 0, "") // busy if it is there already
	}
}

// process is a program that the scenario started.
type process struct {
	*exec.Cmd
	env  *env
	name string
	out  *output
	done chan struct{} // closed when it has ended
}

// output collects what a process prints; wait for a line of it with waitFor.
type output struct {
	mu    sync.Mutex // guards buf and grown
	buf   bytes.Buffer
	grown chan struct{} // closed and replaced at each write
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.grown)
	o.grown = make(chan struct{})
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start runs a program that dies with the scenario; its output is shown if the
// scenario fails.
func (e *env) start(cmd *exec.Cmd) *process {
	e.Helper()
	e.count++
	p := &process{Cmd: cmd, env: e, name: fmt.Sprintf("%s-%d", filepath.Base(cmd.Path), e.count),
		out: &output{grown: make(chan struct{})}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	e.must(hearthtest.Spawn(cmd), "start %s", p.name)
	go func() { _ = cmd.Wait(); close(p.done) }()
	e.Cleanup(func() {
		cut := time.AfterFunc(20*time.Second, func() { abortBelow(e.dir) }) // a thread of it may be behind a reader, whom nobody answers any more
		p.kill()
		cut.Stop()
		e.sound(p.name, p.out.String())
		if e.Failed() {
			text := p.out.String()
			e.Logf("output of %s %v:\n%s", p.name, cmd.Args[1:], text[max(0, len(text)-6000):])
		}
	})
	return p
}

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	children := childrenOf(p.Process.Pid) // a keeper's node would start another keeper
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range children {
			_ = syscall.Kill(pid, s) // it has just ended, else
		}
		_ = p.Process.Signal(syscall.SIGCONT)
		_ = p.Process.Kill()
	}
	<-p.done
}

// terminate asks the process to end, and fails the scenario when it does not
// end in time; it returns the exit code.
func (p *process) terminate(sig os.Signal) int {
	p.env.Helper()
	_ = p.Process.Signal(sig)
	return p.exit(30 * time.Second)
}

// gone waits for the end of a process, as long as the scenario may last.
func (p *process) gone(what string) {
	p.env.Helper()
	select {
	case <-p.done:
	case <-p.env.ctx.Done():
		p.env.Fatalf("%s stays", what)
	}
}

// exit waits for the process's own end and returns its exit code.
func (p *process) exit(within time.Duration) int {
	p.env.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.env.Fatalf("%s did not end within %v:\n%s", p.name, within, p.out)
	}
	return p.ProcessState.ExitCode()
}

// pause stops a process and waits until none of its threads runs.
func (e *env) pause(p *os.Process) {
	e.Helper()
	e.must(p.Signal(unix.SIGSTOP), "stop a process")
	e.eventually("the stop of a process", func() bool { return hearthtest.Stopped(p.Pid) })
}

// waitFor waits until the output holds the text.
func (p *process) waitFor(text string) {
	p.env.Helper()
	for {
		p.out.mu.Lock()
		grown, have := p.out.grown, strings.Contains(p.out.buf.String(), text)
		p.out.mu.Unlock()
		if have {
			return
		}
		select {
		case <-grown:
		case <-p.done:
			if !strings.Contains(p.out.String(), text) {
				p.env.Fatalf("%s ended without saying %q:\n%s", p.name, text, p.out)
			}
			return
		case <-p.env.ctx.Done():
			p.env.Fatalf("%s did not say %q:\n%s", p.name, text, p.out)
		}
	}
}

// eventually waits for a fact that nothing announces, looking each 20 ms.
func (e *env) eventually(what string, fact func() bool) {
	e.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !fact() {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			e.Fatalf("waited in vain for: %s", what)
		}
	}
}

// run runs a program to its end and returns its output and exit code.
func (e *env) run(name string, args ...string) (string, int) {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, name, args...)
	cmd.Env = e.environ(nil)
	out, err := hearthtest.Output(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.Fatalf("run %s %v: %v", name, args, err)
	}
	e.sound(filepath.Base(name), string(out))
	return withoutWaiting(string(out)), cmd.ProcessState.ExitCode()
}

// withoutWaiting is what a command said, without what it says on a busy machine while it waits.
func withoutWaiting(out string) string {
	lines := slices.Collect(strings.Lines(out))
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "hearth: still waiting for ") }), "")
}

// environ is a clean environment: nothing of the machine's own credentials, and no
// second of waiting at the end of each program with the race detector.
func (e *env) environ(o *server) []string {
	vars := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "AWS_EC2_METADATA_DISABLED=true", "AWS_REGION=us-east-1", "LANG=C.UTF-8",
		"HEARTH_TOOLS=" + os.Getenv("HEARTH_TOOLS"), "HEARTH_LEAKS=yes", "GORACE=atexit_sleep_ms=0 no_huge_pages_for_shadow=0"}
	if o != nil {
		vars = append(vars, "AWS_ACCESS_KEY_ID="+o.access, "AWS_SECRET_ACCESS_KEY="+o.secret)
	}
	return vars
}

// freePort is an address that no connection gets by chance, also while its node is being started again.
func freePort(e *env) string { return "127.0.0.1:" + hearthtest.Port(e.T) }

// settings of one Hearth; the zero value with an origin is enough.
type settings struct {
	url      string // the origin's; "": the server's bucket
	endpoint string // "": the server's own, or its proxy's
	origin   string // more keys of the origin
	link     string // more keys of the link
	ram      string // "": 256MiB
	disk     string // "": 20GiB
	floor    string // "": 1GiB
	cache    string // the cache directory's name below the scenario's; "": cache
	mount    []string
	fresh    string
	binary   string
	keep     bool     // a keeper starts it
	keeper   []string // the keeper's flags
	wrap     []string // a program before it, such as a cgroup's
	extra    string   // more lines of configuration
	user     *syscall.Credential
	environ  []string // more variables
	path     string   // of the link in the tree; "": /
	links    string   // more links
	tree     string   // what of the tree is mounted; "": the origin
}

// hearth is a running `hearth mount`.
type hearth struct {
	*process
	e      *env
	dir    string
	client *admin.Client
	config string
}

// mount starts `hearth mount` in a process of its own and waits until the kernel
// shows the mount.
func (e *env) mount(o *server, set settings) *hearth {
	e.Helper()
	h := e.configure(o, set)
	h.launch(o, set)
	return h
}

// configure makes all that a mount needs but its process.
func (e *env) configure(o *server, set settings) *hearth {
	e.Helper()
	e.count++
	h := &hearth{e: e, dir: e.path(fmt.Sprintf("mnt-%d", e.count))}
	e.must(os.MkdirAll(h.dir, 0o755), "make the mount point")
	h.config = e.writeConfig(o, set)
	return h
}

func (h *hearth) launch(o *server, set settings) {
	h.e.Helper()
	h.spawn(o, set)
	h.mounted()
}

// spawn starts the process and does not wait for its mount.
func (h *hearth) spawn(o *server, set settings) {
	h.e.Helper()
	binary := set.binary
	if binary == "" {
		binary = h.e.hearth
	}
	url := set.url
	if url == "" {
		url = "s3://" + o.bucket
	}
	if set.tree != "" {
		url = set.tree
	}
	args := append([]string{}, set.wrap...)
	args = append(args, binary)
	if set.keep {
		args = append(append(args, "keep"), set.keeper...)
	}
	args = append(args, "mount", "--config", h.config)
	if h.e.variant == "masked" && set.binary == "" {
		without := "all"
		if set.keep { // else no mount outlives its node
			without = strings.Join(slices.DeleteFunc(fuse.Abilities(), func(name string) bool { return name == "resend" }), ",")
		}
		args = append(args, "--fuse-without", without)
	}
	args = append(append(args, set.mount...), url, h.dir)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(h.e.environ(o), set.environ...)
	if set.user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: set.user}
	}
	h.process = h.e.start(cmd)
}

// mounted waits until the kernel shows the mount, and so does the node, if it has a
// socket to be asked at.
func (h *hearth) mounted() {
	h.e.Helper()
	h.e.eventually("the mount at "+h.dir, func() bool {
		select {
		case <-h.done:
			h.e.Fatalf("hearth mount ended with %d:\n%s", h.ProcessState.ExitCode(), h.out)
		default:
		}
		return len(mountsBelow(h.dir)) > 0
	})
	h.dial()
	h.e.eventually("the node's word of its mount", func() bool {
		s, err := h.client.Status(h.e.ctx)
		return err != nil || len(s.Mounts) > 0
	})
}

func (h *hearth) socket() string { return strings.TrimSuffix(h.config, ".yaml") + ".sock" }

// dial has the node to be asked from now on.
func (h *hearth) dial() {
	h.e.Helper()
	client, err := admin.Dial(h.socket())
	h.e.must(err, "dial the node")
	h.client = client
	h.e.Cleanup(client.Close)
}

// writeConfig makes a configuration file whose name tells the socket.
func (e *env) writeConfig(o *server, set settings) string {
	e.Helper()
	e.count++
	name := e.path(fmt.Sprintf("node-%d.yaml", e.count))
	pick := func(a, b string) string {
		if a != "" {
			return a
		}
		return b
	}
	url := set.url
	origin := fmt.Sprintf("{url: %q}", url)
	if o != nil {
		origin = fmt.Sprintf("{url: %q, endpoint: %q, region: us-east-1, path_style: true%s}", pick(url, "s3://"+o.bucket), pick(set.endpoint, o.endpoint), set.origin)
	}
	text := fmt.Sprintf("links:\n- {path: %s, origin: %s, freshness: %q%s}\n%scache: {ram: %s, disks: [{path: %q, size: %s}], free_floor: %s}\nadmin: {socket: %q, listen: %q}\n%s\n",
		pick(set.path, "/"), origin, pick(set.fresh, "bounded(60s)"), set.link, set.links, pick(set.ram, "256MiB"), e.path(pick(set.cache, "cache")), pick(set.disk, "20GiB"), pick(set.floor, "1GiB"),
		strings.TrimSuffix(name, ".yaml")+".sock", freePort(e), set.extra)
	e.must(os.WriteFile(name, []byte(text), 0o600), "write the configuration")
	return name
}

// status asks the node.
func (h *hearth) status() *status.Status {
	h.e.Helper()
	s, err := h.client.Status(h.e.ctx)
	h.e.must(err, "ask for the status")
	return s
}

// kill9 kills the node and takes its dead mount point away.
func (h *hearth) kill9() {
	h.e.Helper()
	h.kill()
	for _, m := range mountsBelow(h.dir) {
		h.e.must(detach(m.point), "detach the dead mount point")
	}
}

// quit ends the node by SIGTERM: it must unmount and end with 0.
func (h *hearth) quit() {
	h.e.Helper()
	h.idle()
	_ = h.Process.Signal(syscall.SIGTERM)
	h.ended()
}

// ended waits for the end of a node that was sent SIGTERM.
func (h *hearth) ended() {
	h.e.Helper()
	if code := h.exit(30 * time.Second); code != 0 {
		h.e.Fatalf("hearth ended with %d after SIGTERM:\n%s", code, h.out)
	}
	if left := mountsBelow(h.dir); len(left) > 0 {
		h.e.Fatalf("left mounted: %v", left)
	}
}

// statusJSON is the status as `hearth status -o json` prints it, keys as users see them.
func (h *hearth) statusJSON() map[string]any {
	h.e.Helper()
	out, code := h.e.run(h.e.hearth, "status", "-o", "json", "--node", "unix://"+h.socket())
	var doc map[string]any
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 0 {
		h.e.Fatalf("hearth status: exit %d, %v:\n%s", code, err, out)
	}
	return doc
}
