package fuse

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// background starts a reader that prints a line when it is under way, and
// returns what it prints next, once it has ended.
func (m *mounted) background(name string, args ...string) (pid int, stop func(), result <-chan string) {
	m.t.Helper()
	cmd := m.start(name, args...)
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	var complaint strings.Builder
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		m.t.Fatalf("%s %v: %s", name, args, complaint.String())
	}
	out := make(chan string, 1)
	go func() {
		text := ""
		for lines.Scan() {
			text += lines.Text()
		}
		err := cmd.Wait()
		if err != nil {
			text += err.Error() + complaint.String()
		}
		out <- text
	}()
	m.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd.Process.Pid, func() { _ = stdin.Close() }, out
}

// watchdog is many times what anything here takes on a busy machine.
const watchdog = 30 * time.Second

func within(t *testing.T, what string, result <-chan string) string {
	t.Helper()
	select {
	case s := <-result:
		return s
	case <-time.After(watchdog):
		t.Fatalf("%s did not end within %v", what, watchdog)
		return ""
	}
}

func TestStalledReadsHoldUpNobody(t *testing.T) {
	// 600 readers wait for an origin that does not answer; who reads what is here
	// is served at once, and all go on when the origin is back.
	m := mount(t, setup{Files: append(standardFiles(), fileSpec{"slow", 1, 64 * MiB, false})})
	m.do(command{Do: "stall", Key: "slow"})
	_, stop, result := m.background("hold600", m.path("slow"))
	m.until("600 reads wait", func(r reply) bool { return r.Tree["waiting"] >= 600 })
	m.read("whole", standardFiles()[0].args(m)...)
	m.read("whole", standardFiles()[4].args(m)...)
	if n := m.do(command{Do: "stats"}).Tree["waiting"]; n < 600 {
		t.Errorf("%d readers wait after the cached reads", n)
	}
	m.do(command{Do: "resume", Key: "slow"})
	stop()
	if got := within(t, "the readers", result); got != "600" {
		t.Errorf("the readers say %s", got)
	}
}

func TestMissesWaitBehindTheirOwnSlots(t *testing.T) {
	// Of reads that are not here, only so many ask the origin at a time.
	m := mount(t, setup{Files: []fileSpec{{"slow", 1, 64 * MiB, false}, {"here", 1, 5000, false}}, NoHas: true})
	m.do(command{Do: "stall", Key: "slow"})
	_, stop, result := m.background("hold600", m.path("slow"))
	m.until("all slots are taken", func(r reply) bool { return r.Stats.Outcomes["read_misses"] >= 600 })
	if n := m.do(command{Do: "stats"}).Tree["waiting"]; n != maxMisses {
		t.Errorf("%d reads ask the origin, not %d", n, maxMisses)
	}
	m.do(command{Do: "resume", Key: "slow"})
	stop()
	within(t, "the readers", result)
}

func TestSignalsDoNotEndReads(t *testing.T) {
	// Signals reach a reader that waits for the origin, in the page cache or past
	// it: it keeps waiting, and gets its bytes when they come within two seconds.
	for _, how := range []string{"nap", "napdirect"} {
		m := mount(t, setup{Files: standardFiles()})
		m.do(command{Do: "stall", Key: "small"})
		pid, _, result := m.background(how, m.path("small"))
		m.until("the read waits", func(r reply) bool { return r.Tree["waiting"] > 0 })
		for range 5 {
			if err := syscall.Kill(pid, syscall.SIGURG); err != nil {
				t.Fatal(err)
			}
		}
		m.until("the read still waits", func(r reply) bool { return r.Tree["waiting"] > 0 })
		m.do(command{Do: "resume", Key: "small"})
		if got := within(t, "the reader", result); got != "4096 <nil>" {
			t.Errorf("%s: the reader got %q", how, got)
		}
	}
}

func TestKilledReaderEnds(t *testing.T) {
	// A reader killed while it waits for the origin is gone at once, also where it reads
	// ahead by several requests, one after the other; the file can be read by others
	// afterwards.
	for _, how := range []string{"nap", "napdirect"} {
		for _, without := range [][]string{nil, {"all"}} {
			large := fileSpec{"large", 1, 8 * MiB, false}
			m := mount(t, setup{Files: []fileSpec{large}, Without: without, Grace: time.Hour})
			m.do(command{Do: "stall", Key: large.Key})
			pid, _, result := m.background(how, m.path(large.Key))
			m.until("the read waits", func(r reply) bool { return r.Tree["waiting"] > 0 })
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			within(t, "the killed reader", result) // the origin answers nothing before that
			m.do(command{Do: "resume", Key: large.Key})
			m.read("whole", large.args(m)...)
		}
	}
}

func TestStrictMountAsksAtEachOpen(t *testing.T) {
	// The origin changed a file: who opens it on a strict mount reads the new
	// version at once, and no listing is older than its reader.
	m := mount(t, setup{Strict: true, Files: standardFiles(), TTL: -1})
	if s := m.do(command{Do: "stats"}).Stats; s.Open != Plain {
		t.Errorf("a strict mount opens files by %s", s.Open)
	}
	if got := m.read("again", m.path("small"), "small", "2"); got != "v1 v1" {
		t.Errorf("read %s", got)
	}
	m.read("list", m.dir)
	m.do(command{Do: "swap", Key: "small", Version: 2})
	if got := m.read("again", m.path("small"), "small", "2"); got != "v2 v2" {
		t.Errorf("read %s", got)
	}
	before := m.do(command{Do: "stats"}).Stats.Requests["readdir"]
	m.read("list", m.dir)
	if after := m.do(command{Do: "stats"}).Stats.Requests["readdir"]; after == before {
		t.Error("the kernel kept a listing")
	}
}

func TestStalledLookupsHoldUpNobody(t *testing.T) {
	// A look-up waits for the origin while its directory changes. Others look up
	// there meanwhile, and the change is told once nobody waits. Killed in that
	// state, the daemon dies, its readers end, and the directory can be mounted again.
	files := []fileSpec{{"d/a", 1, 10, false}, {"d/b", 1, 10, false}}
	dir := t.TempDir()
	m := mount(t, setup{Dir: dir, Files: files})
	m.read("stat", m.path("d/a"))
	for _, kill := range []bool{false, true} {
		m.do(command{Do: "stalldir", Key: "d"})
		_, _, result := m.background("statlate", m.path("d/c"+strconv.FormatBool(kill)))
		m.until("the look-up waits", func(r reply) bool { return r.Tree["waiting"] > 0 })
		before := m.do(command{Do: "stats"}).Stats.Outcomes["news_told"]
		m.do(command{Do: "put", Key: "d/a", Version: 2, Size: 20})
		m.until("the listing was dropped", func(r reply) bool { return r.Stats.Outcomes["news_told"] > before })
		m.read("stat", m.path("d/a")) // the dentry that the kernel has
		if kill {
			if err := m.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			within(t, "the reader of a dead mount", result)
			break
		}
		m.do(command{Do: "resumedir", Key: "d"})
		within(t, "the look-up", result)
		// The listing once more, and then the name, which was put aside: told later, it would
		// take the dentry away that the next round looks at.
		m.until("the change is told", func(r reply) bool { return r.Stats.Outcomes["news_told"] >= before+3 })
		if got := m.read("stat", m.path("d/a")); !strings.Contains(got, "size=20") {
			t.Errorf("after the change was told: %s", got)
		}
	}
	if err := m.cmd.Wait(); m.cmd.ProcessState.ExitCode() >= 0 {
		t.Errorf("the daemon ended by itself: %v", err)
	}
	if _, err := m.reader("statfs", m.path("d/a")); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("a dead mount says %v", err)
	}
	again := mount(t, setup{Dir: dir, Files: files})
	again.read("whole", files[0].args(again)...)
}

func TestUnmount(t *testing.T) {
	// A busy mount is not unmounted, and the error says what to do; lazily it goes
	// at once, and who holds a file reads on.
	m := mount(t, setup{Files: standardFiles()})
	_, stop, result := m.background("hold", standardFiles()[4].args(m)...)
	if _, err := m.try(command{Do: "unmount"}); err == nil || !strings.Contains(err.Error(), "busy") || !strings.Contains(err.Error(), "fuser") ||
		!strings.Contains(err.Error(), "open "+m.path(standardFiles()[4].Key)) {
		t.Errorf("unmounting a busy mount: %v", err)
	}
	if err := mountAgain(t, m.dir); err == nil || !strings.Contains(err.Error(), "mounted there already") {
		t.Errorf("mounting over a live mount: %v", err)
	}
	m.do(command{Do: "unmount", Lazy: true})
	if _, err := m.reader("stat", m.path("small")); err == nil {
		t.Error("the mount is still there")
	}
	stop()
	if got := within(t, "the holder", result); got != "" {
		t.Errorf("the holder says %s", got)
	}
	m.do(command{Do: "wait"})
	m.do(command{Do: "unmount"})
}

func mountAgain(t *testing.T, dir string) error {
	_, err := tryMount(t, setup{Dir: dir, Files: standardFiles()}, nil)
	return err
}

func TestTwoMountsOfOneTree(t *testing.T) {
	// One daemon mounts a directory of its tree twice: the root of each is that
	// directory, changes are seen in both, and one may go before the other.
	other := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), other); err != nil {
		t.Fatal(err)
	}
	m := mount(t, setup{Prefix: "dir", Files: standardFiles()})
	m.do(command{Do: "again", Key: other})
	for _, dir := range []string{m.dir, other} {
		at := &mounted{t: t, dir: dir}
		if got := at.read("list", dir); got != "large page whole" {
			t.Errorf("%s lists %s", dir, got)
		}
		at.read("whole", at.path("large"), "dir/large", "1", strconv.Itoa(5*MiB+123))
	}
	m.do(command{Do: "put", Key: "dir/large", Version: 2, Size: 99})
	m.do(command{Do: "put", Key: "small", Version: 2, Size: 99}) // outside both
	m.until("both have changed", func(reply) bool {
		a, _ := m.reader("stat", m.path("large"))
		b, _ := m.reader("stat", other+"/large")
		return strings.Contains(a, "size=99") && strings.Contains(b, "size=99")
	})
	m.do(command{Do: "unmount"})
	m.do(command{Do: "wait"})
	m.read("whole", other+"/large", "dir/large", "2", "99")
	if err := syscall.Unmount(other, 0); err != nil {
		t.Error(err)
	}
}

func TestBecomesWholeWhileOpen(t *testing.T) {
	// A file becomes whole on disk while somebody reads it from the cache: all who
	// open it meanwhile read cached too; after the last close it is lent to the kernel,
	// and its backing file is taken back when nobody has it open.
	f := fileSpec{"dir/large", 1, 5*MiB + 123, false}
	m := mount(t, setup{Open: "passthrough", Local: true, Files: standardFiles()})
	_, stop, result := m.background("hold", f.args(m)...)
	m.do(command{Do: "whole", Key: f.Key})
	for _, kind := range []string{"whole", "mmap", "threads", "direct"} {
		m.read(kind, f.args(m)...)
	}
	if n := m.do(command{Do: "stats"}).Stats.Outcomes["lent"]; n != 0 {
		t.Fatalf("%d opens were lent while cached ones stood", n)
	}
	stop()
	if got := within(t, "the holder", result); got != "" {
		t.Fatalf("the holder says %s", got)
	}
	m.until("the next open is lent", func(reply) bool {
		m.read("whole", f.args(m)...)
		return m.do(command{Do: "stats"}).Stats.Outcomes["lent"] > 0
	})
	_, stop, result = m.background("hold", f.args(m)...)
	for _, kind := range []string{"mmap", "threads", "direct", "sendfile", "splice", "past"} {
		m.read(kind, f.args(m)...)
	}
	if n := m.do(command{Do: "stats"}).Tree["lent"]; n != 1 {
		t.Errorf("%d files are lent, not the one", n)
	}
	stop()
	within(t, "the holder", result)
	m.until("the file is taken back", func(r reply) bool { return r.Tree["lent"] == 0 })
}

func TestUserMounts(t *testing.T) {
	// Somebody who is not root mounts by fusermount3 and reads; allow_other without
	// user_allow_other names the line to add.
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	openDevice(t)
	dir, err := os.MkdirTemp("", "hearth-user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // behind those that unmount it
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if !userAllowOther("/etc/fuse.conf") {
		_, err = tryMount(t, setup{Dir: dir, AllowOther: true}, nobody)
		if err == nil || !strings.Contains(err.Error(), "add the line user_allow_other to /etc/fuse.conf") {
			t.Errorf("allow_other as a user: %v", err)
		}
	}
	m, err := tryMount(t, setup{Dir: dir, Files: standardFiles(), Open: "passthrough", Local: true, LocalDir: dir}, nobody)
	if err != nil {
		t.Fatal(err)
	}
	cmd := m.start("whole", standardFiles()[4].args(m)...)
	cmd.SysProcAttr.Credential = nobody
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("read as the user: %v: %s", err, out)
	}
	if s := m.do(command{Do: "stats"}).Stats; s.Open != Plain || !strings.Contains(s.Why, "CAP_SYS_ADMIN") {
		t.Errorf("passthrough for a user: %s, %s", s.Open, s.Why)
	}
	m.do(command{Do: "unmount"})
	m.do(command{Do: "wait"})
}

// openDevice gives our mount namespace a /dev/fuse that everybody may open, as
// on a desktop.
func openDevice(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a device")
	}
	if info, err := os.Stat("/dev/fuse"); err != nil || info.Mode()&0o006 == 0o006 {
		return
	}
	ours := filepath.Join(t.TempDir(), "fuse")
	err := syscall.Mknod(ours, syscall.S_IFCHR|0o666, 10<<8|229)
	if err == nil {
		err = os.Chmod(ours, 0o666)
	}
	if err == nil {
		err = syscall.Mount(ours, "/dev/fuse", "", syscall.MS_BIND, "")
	}
	if err != nil {
		t.Skip("cannot make a device:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount("/dev/fuse", 0) })
}
