package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// unitFile is the unit as it is packaged.
const unitFile = "deploy/systemd/hearth.service"

// unit reads it: the values of each key in their order.
func (e *env) unit() map[string][]string {
	e.Helper()
	text, err := os.ReadFile(filepath.Join(e.repo, unitFile))
	e.must(err, "read the unit")
	keys := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			keys[key] = append(keys[key], value)
		}
	}
	return keys
}

// serviceUnit: systemd finds nothing to complain of in the unit, and no circle in the order
// of the unit, a line of fstab that waits for it, and what waits for remote file systems.
func serviceUnit(e *env) {
	unit := e.unit()
	if len(unit["LimitNOFILE"]) != 1 || len(unit["ExecStart"]) != 1 || slices.Contains(unit["Type"], "simple") {
		e.Fatalf("the unit: %v", unit)
	}
	for _, key := range []string{"PrivateTmp", "PrivateMounts", "ProtectSystem", "ProtectHome", "ReadOnlyPaths", "PrivateDevices"} {
		if len(unit[key]) > 0 {
			e.Errorf("%s= hides the unit's mounts from the machine", key)
		}
	}
	if len(e.verify("")) > 0 {
		e.Errorf("systemd-analyze verify:\n%s", e.verify(""))
	}
	// The check itself: an order that cannot be is found.
	if out := e.verify("After=remote-fs.target\n"); !strings.Contains(out, "ordering cycle") {
		e.Errorf("a unit after remote-fs.target has no circle: %s", out)
	}
}

// verify has systemd judge the unit, with more lines for its section Unit, beside the mount
// that it makes of a line of fstab; it returns its complaints.
func (e *env) verify(more string) string {
	e.Helper()
	e.count++
	dir := e.path(fmt.Sprintf("units-%d", e.count))
	e.must(os.MkdirAll(filepath.Join(dir, "made"), 0o755), "make a directory of units")
	text, err := os.ReadFile(filepath.Join(e.repo, unitFile))
	e.must(err, "read the unit")
	unit := strings.ReplaceAll(strings.Replace(string(text), "[Unit]\n", "[Unit]\n"+more, 1), "/usr/bin/hearth", e.hearth)
	if more != "" {
		unit = strings.Replace(unit, "Before=remote-fs.target\n", "", 1)
	}
	e.must(os.WriteFile(filepath.Join(dir, "hearth.service"), []byte(unit), 0o644), "write the unit")
	table := filepath.Join(dir, "fstab")
	e.must(os.WriteFile(table, []byte("s3://bucket /mnt/data hearth ro,_netdev,allow_other,x-systemd.requires=hearth.service 0 0\n"), 0o644), "write fstab")
	made := filepath.Join(dir, "made")
	generator := exec.CommandContext(e.ctx, "/usr/lib/systemd/system-generators/systemd-fstab-generator", made, made, made)
	generator.Env = append(e.environ(nil), "SYSTEMD_FSTAB="+table)
	if out, err := generator.CombinedOutput(); err != nil {
		e.Fatalf("systemd-fstab-generator (Debian package systemd): %v: %s", err, out)
	}
	mount, err := os.ReadFile(filepath.Join(made, "mnt-data.mount"))
	if err != nil || !strings.Contains(string(mount), "After=hearth.service") || !strings.Contains(string(mount), "Before=remote-fs.target") {
		e.Fatalf("what systemd makes of the line of fstab: %v\n%s", err, mount)
	}
	cmd := exec.CommandContext(e.ctx, "systemd-analyze", "verify", "--man=no", "hearth.service", "remote-fs.target", "mnt-data.mount")
	cmd.Env = append(e.environ(nil), "SYSTEMD_UNIT_PATH="+dir+":"+made+":", "SYSTEMD_LOG_LEVEL=info", "SYSTEMD_LOG_TARGET=console")
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		e.Fatalf("systemd-analyze: %v", err)
	}
	return string(out)
}

// manager plays the service manager: it starts what the unit says, and hears what the
// service says of itself.
type manager struct {
	e      *env
	conn   *net.UnixConn
	socket string
	mu     sync.Mutex // guards heard and grown
	heard  []string   // datagrams
	grown  chan struct{}
}

func (e *env) manager(socket string) *manager {
	e.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	e.must(err, "open the socket for the service's word")
	m := &manager{e: e, conn: conn, socket: socket, grown: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.heard = append(m.heard, string(buf[:n]))
			close(m.grown)
			m.grown = make(chan struct{})
			m.mu.Unlock()
		}
	}()
	e.Cleanup(func() { _ = conn.Close(); <-done })
	return m
}

// all is what was heard from the n-th datagram on.
func (m *manager) all(n int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.heard[n:])
}

// wait waits for a datagram with the text, from the n-th on, and returns the number of the
// one behind it.
func (m *manager) wait(p *process, n int, text string) int {
	m.e.Helper()
	for {
		m.mu.Lock()
		grown, heard := m.grown, m.heard[n:]
		m.mu.Unlock()
		if i := slices.IndexFunc(heard, func(s string) bool { return strings.Contains(s, text) }); i >= 0 {
			return n + i + 1
		}
		select {
		case <-grown:
		case <-p.done:
			m.e.Fatalf("the service ended without saying %q, but %q:\n%s", text, m.all(n), p.out)
		case <-m.e.ctx.Done():
			m.e.Fatalf("the service did not say %q, but %q", text, m.all(n))
		}
	}
}

// run starts a line of the unit with the configuration.
func (m *manager) run(o *server, key, config string) *process {
	m.e.Helper()
	line := strings.Fields(strings.TrimPrefix(m.e.unit()[key][0], "-"))
	if line[0] != "/usr/bin/hearth" {
		m.e.Fatalf("%s= runs %s", key, line[0])
	}
	cmd := exec.Command(m.e.hearth, line[1:]...)
	cmd.Env = append(m.e.environ(o), "NOTIFY_SOCKET="+m.socket, "HEARTH_CONFIG="+config, fmt.Sprintf("WATCHDOG_USEC=%d", (2*time.Second).Microseconds()))
	return m.e.start(cmd)
}

// service runs the unit's lines as the service manager does.
func service(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(2, 20))
	dirs := []string{e.path("mnt-a"), e.path("mnt-b")}
	for _, d := range dirs {
		e.must(os.Mkdir(d, 0o755), "make a mount point")
	}
	extra := fmt.Sprintf("mounts: [{path: %q}, {path: %q}]\n", dirs[0], dirs[1])
	config := e.writeConfig(o, settings{extra: extra})

	m := e.manager("@hearth-e2e-" + filepath.Base(e.dir)) // abstract, as systemd's may be
	p := m.run(o, "ExecStart", config)
	n := m.wait(p, 0, "READY=1")
	for i, d := range dirs { // at once
		e.good("mounted by the service", epoch(d, list, uint64(i), 2, 0))
	}
	if first := strings.Join(m.all(0)[:n], "|"); !strings.HasPrefix(first, "STATUS=starting|STATUS=mounting "+dirs[0]+"|STATUS=mounting "+dirs[1]+"|READY=1\nSTATUS=ok") {
		e.Errorf("before it was ready the service said %q", first)
	}
	n = m.wait(p, n, "WATCHDOG=1")
	n = m.stuck(p, n, dirs[1])

	// Killed: what ExecStopPost= runs takes the dead mounts away, and no living one.
	other := e.mount(o, settings{cache: "cache-other"})
	p.kill()
	if code := m.run(o, "ExecStopPost", config).exit(30 * time.Second); code != 0 || len(mountsBelow(e.path("mnt-a"))) > 0 || len(mountsBelow(e.path("mnt-b"))) > 0 || len(mountsBelow(other.dir)) != 1 {
		e.Errorf("ExecStopPost= ended with %d and left %v", code, mountsBelow(e.dir))
	}
	other.quit()

	p = m.run(o, "ExecStart", config)
	n = m.wait(p, n, "READY=1")
	e.good("after a kill", epoch(dirs[0], list, 3, 2, 0))
	used, err := os.Open(filepath.Join(dirs[0], list[0].Path)) // busy at the end
	e.must(err, "open a file")
	defer func() { _ = used.Close() }()
	m.stop(p, n)
	m.inUse(p, used)
	n = len(m.all(0))
	p = m.run(o, "ExecStart", config)
	n = m.wait(p, n, "READY=1")
	e.good("after a restart while in use", epoch(dirs[0], list, 4, 2, 0))
	m.stop(p, n)
	m.cannot(o, dirs[0])
}

// stop ends the service as the manager does: it says so, ends with 0, and nothing is
// mounted any more.
func (m *manager) stop(p *process, n int) {
	m.e.Helper()
	if code := p.terminate(syscall.SIGTERM); code != 0 {
		m.e.Errorf("after SIGTERM the service ended with %d:\n%s", code, p.out)
	}
	if left := mountsBelow(m.e.path("mnt-a"), m.e.path("mnt-b")); len(left) > 0 {
		m.e.Errorf("after SIGTERM the service left %v", left)
	}
	m.e.eventually("the word that it stops", func() bool { return strings.Contains(strings.Join(m.all(n), "|"), "STOPPING=1") })
}

// inUse holds what is said of a mount that was in use at the end, and what who used it gets
// from then on.
func (m *manager) inUse(p *process, used *os.File) {
	m.e.Helper()
	text, mine := p.out.String(), fmt.Sprintf("process %d: open %s", os.Getpid(), used.Name())
	if !strings.Contains(text, "mount in use: detached; who uses it has 2s to finish") || !strings.Contains(text, mine) {
		m.e.Errorf("the end of a service in use does not say that and %q:\n%s", mine, text)
	}
	m.e.must(unix.Fadvise(int(used.Fd()), 0, 0, unix.FADV_DONTNEED), "drop the pages of a file in use")
	if n, err := used.ReadAt(make([]byte, 1), 0); !errors.Is(err, unix.ENOTCONN) {
		m.e.Errorf("after the end of the service who used the mount read %d bytes, %v", n, err)
	}
}

// stuck puts a mount that never answers over one of the service's: its watchdog is not
// fed until that is gone.
func (m *manager) stuck(p *process, n int, dir string) int {
	e := m.e
	e.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	e.must(err, "open /dev/fuse")
	err = unix.Mount("stuck", dir, "fuse.stuck", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	if err != nil {
		_ = unix.Close(fd)
		e.Fatalf("mount what does not answer: %v", err)
	}
	n = m.wait(p, n, "does not answer")
	n = m.wait(p, n, "does not answer")
	if text := strings.Join(m.all(0)[n-1:n], "|"); !strings.Contains(text, dir) || strings.Contains(text, "WATCHDOG") {
		e.Errorf("over a mount that does not answer the service says %q", text)
	}
	e.must(unix.Close(fd), "abort it")
	e.must(unix.Unmount(dir, unix.MNT_DETACH), "take it away")
	return m.wait(p, n, "WATCHDOG=1")
}

// cannot starts what cannot mount: it says why and never that it is ready.
func (m *manager) cannot(o *server, dir string) {
	e := m.e
	e.Helper()
	for _, c := range []struct {
		what, mount, url string
		code             int
	}{
		{"is no directory", e.path("file"), "", 2},
		{"does not exist", e.path("absent"), "", 4},
		{"no-such-bucket", dir, "s3://no-such-bucket", 1},
	} {
		e.must(os.WriteFile(e.path("file"), nil, 0o644), "write a file")
		n := len(m.all(0))
		set := settings{url: c.url, extra: fmt.Sprintf("mounts: [{path: %q}]\n", c.mount)}
		p := m.run(o, "ExecStart", e.writeConfig(o, set))
		code := p.exit(30 * time.Second)
		text := strings.TrimSpace(p.out.String())
		last := text[strings.LastIndexByte(text, '\n')+1:]
		e.eventually("the reason in the service's status", func() bool {
			all := m.all(n)
			return len(all) > 0 && slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, "STATUS=") && strings.Contains(s, c.what) })
		})
		if said := strings.Join(m.all(n), "|"); code != c.code || !strings.Contains(last, c.what) || strings.Contains(said, "READY") || len(mountsBelow(e.path("mnt-a"), e.path("mnt-b"))) > 0 {
			e.Errorf("%s: exit %d, said %q, last line %q", c.what, code, said, last)
		}
	}
}
