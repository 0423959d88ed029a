package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// booted is a systemd with processes, mounts and a cgroup of its own, which runs the unit.
type booted struct {
	*process
	e    *env
	init int // its first process, as it is called out here
	text string
}

// boot starts systemd with the unit as it is packaged, and drop-ins, by name.
func (e *env) boot(o *server, config string, dropIns map[string]string) *booted {
	e.Helper()
	e.count++
	dir, group := e.path(fmt.Sprintf("machine-%d", e.count)), e.path(fmt.Sprintf("groups-%d", e.count))
	units := filepath.Join(dir, "hearth.service.d")
	e.must(os.MkdirAll(units, 0o755), "make a directory of units")
	e.must(os.Mkdir(group, 0o755), "make a directory of cgroups")
	e.must(unix.Mount("cgroup2", group, "cgroup2", 0, ""), "mount the cgroups")
	e.Cleanup(func() { _ = unix.Unmount(group, unix.MNT_DETACH) })
	group = filepath.Join(group, "hearth-"+filepath.Base(e.dir)+"-"+strconv.Itoa(e.count))
	e.must(os.Mkdir(group, 0o755), "make a cgroup")
	e.Cleanup(func() { e.emptied(group) })

	m := &booted{e: e, text: filepath.Join(dir, "output")}
	text, err := os.ReadFile(filepath.Join(e.repo, unitFile))
	e.must(err, "read the unit")
	write := func(name, text string) {
		e.must(os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "/usr/bin/hearth", e.hearth)), 0o644), "write a unit")
	}
	write("hearth.service", string(text))
	write("hearth.service.d/10-test.conf", fmt.Sprintf("[Unit]\nDefaultDependencies=no\n[Service]\nStandardOutput=append:%s\nStandardError=inherit\nRestartSec=100ms\nEnvironment=%s HEARTH_CONFIG=%s\n",
		m.text, strings.Join(e.environ(o), " "), config))
	for name, text := range dropIns {
		write("hearth.service.d/"+name, text)
	}
	const script = `echo $$ >"$1/cgroup.procs" && exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc --cgroup --ipc --uts -- sh -ec '
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/cache; mount -t cgroup2 cgroup2 /sys/fs/cgroup
mknod -m 666 /run/fuse c 10 229; mount --bind /run/fuse /dev/fuse; echo user_allow_other >/run/fuse.conf; mount --bind /run/fuse.conf /etc/fuse.conf
mkdir -m 755 /run/data; mkdir -m 700 /run/theirs /run/theirs/data; chown -R 65534:65534 /run/data /run/theirs
exec /usr/lib/systemd/systemd --system --unit=hearth.service --log-target=console --show-status=no'`
	cmd := exec.Command("sh", "-c", script, "sh", group)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "container=hearth", "SYSTEMD_UNIT_PATH=" + dir}
	m.process = e.start(cmd)
	e.eventually("systemd", func() bool {
		m.init = child(m.Process.Pid)
		return m.init != 0 && strings.HasSuffix(exe(m.init), "/systemd")
	})
	return m
}

// child is the first process that another one started; 0: none.
func child(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	first, _, _ := strings.Cut(string(text), " ")
	n, _ := strconv.Atoi(first)
	return n
}

func exe(pid int) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return name
}

// emptied removes a cgroup that nothing runs in any more.
func (e *env) emptied(group string) {
	var last error
	if !hearthtest.Eventually(context.Background(), 30*time.Second, func() bool {
		var all []string
		_ = filepath.WalkDir(group, func(name string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append([]string{name}, all...)
			}
			return nil
		})
		for _, name := range all { // the deepest first
			last = os.Remove(name)
		}
		_, err := os.Stat(group)
		return err != nil
	}) {
		e.Errorf("remove the cgroup of a machine: %v", last)
	}
}

// inside runs a program on the machine.
func (m *booted) inside(args ...string) (string, int) {
	m.e.Helper()
	return m.e.run("nsenter", append([]string{"--target", strconv.Itoa(m.init), "--mount", "--pid", "--cgroup", "--"}, args...)...)
}

// active waits until systemd has the unit started, by another process than before.
func (m *booted) active(before string) (pid string) {
	m.e.Helper()
	m.e.eventually("the unit's start", func() bool {
		out, _ := m.inside("systemctl", "show", "--property=ActiveState,MainPID", "hearth.service")
		_, pid, _ = strings.Cut(out, "MainPID=")
		pid, _, _ = strings.Cut(pid, "\n")
		if strings.Contains(out, "ActiveState=failed") {
			text, _ := os.ReadFile(m.text)
			m.e.Fatalf("the unit failed:\n%s\n%s", text, m.out)
		}
		return strings.Contains(out, "ActiveState=active\n") && pid != before
	})
	return pid
}

// at is a name of the machine as it is called out here.
func (m *booted) at(name string) string { return fmt.Sprintf("/proc/%d/root%s", m.init, name) }

// stopped has systemd stop the unit, which must leave no mount.
func (m *booted) stopped() {
	m.e.Helper()
	if out, code := m.inside("systemctl", "stop", "hearth.service"); code != 0 {
		m.e.Errorf("systemctl stop: %d %s", code, out)
	}
	if out, _ := m.inside("systemctl", "show", "--property=Result", "hearth.service"); !strings.Contains(out, "Result=success") {
		m.e.Errorf("after its stop the unit: %s", out)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", m.init))
	if err != nil || bytes.Contains(mounts, []byte(" fuse.hearth ")) {
		m.e.Errorf("after its stop there are the mounts (%v)\n%s", err, mounts)
	}
	m.kill()
}

// serviceSystemd: systemd itself runs the unit with all that it takes from a node. As root and not, it mounts, is started again after a kill, and stops.
func serviceSystemd(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(2, 20))
	e.must(os.WriteFile(e.path("group"), []byte("root:x:0:\nhearth:x:4242:\n"), 0o644), "write a group file")
	e.must(unix.Mount(e.path("group"), "/etc/group", "", unix.MS_BIND, ""), "show it as /etc/group")
	e.Cleanup(func() { _ = unix.Unmount("/etc/group", unix.MNT_DETACH) })

	config := e.writeConfig(o, settings{extra: "mounts: [{path: /run/data, open: passthrough}]\ns3: {listen: \"127.91.0.1:443\", anonymous: [data]}\nnode: {listen: lo}\n"})
	text, err := os.ReadFile(config)
	e.must(err, "read the configuration")
	e.must(os.WriteFile(config, bytes.ReplaceAll(text, []byte(strings.TrimSuffix(config, ".yaml")+".sock"), []byte("/run/hearth/hearth.sock")), 0o644), "write the configuration")
	m := e.boot(o, config, nil)
	pid := m.active("")
	e.restricted(m, pid, "Seccomp:\t2", "NoNewPrivs:\t1")
	e.good("from the unit", epoch(m.at("/run/data"), list, 1, 2, 0))
	var st unix.Stat_t
	e.must(unix.Stat(m.at("/run/hearth"), &st), "look at the socket's directory")
	if st.Mode&0o777 != 0o755 {
		e.Errorf("the socket's directory has mode %o, which keeps the group out", st.Mode&0o777)
	}
	e.must(unix.Stat(m.at("/run/hearth/hearth.sock"), &st), "look at the socket")
	if st.Gid != 4242 || st.Mode&0o777 != 0o660 {
		e.Errorf("the socket is of group %d, mode %o", st.Gid, st.Mode&0o777)
	}
	if out, code := m.inside(e.hearth, "status", "--node", "/run/hearth/hearth.sock", "-o", "json"); code != 0 || !strings.Contains(out, `"open": "passthrough"`) {
		e.Errorf("status: %d %s", code, out)
	}
	if out, code := m.inside(e.hearth, "mount", "--daemon", "--node", "/run/hearth/hearth.sock", "s3://data", "/run/theirs/data"); code != 0 {
		e.Errorf("mount in another account's directory: %d %s", code, out)
	}
	e.good("mounted on demand", epoch(m.at("/run/theirs/data"), list, 2, 2, 0))
	if out, code := e.run("curl", "-sS", "--fail", "http://127.91.0.1:443/data?list-type=2&max-keys=1"); code != 0 || !strings.Contains(out, "<Key>") {
		e.Errorf("the endpoint at a port below 1024: %d %s", code, out)
	}
	if out, code := m.inside("systemctl", "kill", "--signal=KILL", "hearth.service"); code != 0 {
		e.Errorf("systemctl kill: %d %s", code, out)
	}
	m.active(pid)
	e.good("started again", epoch(m.at("/run/data"), list, 3, 2, 0))
	m.stopped()

	drop, err := os.ReadFile(filepath.Join(e.repo, filepath.Dir(unitFile), "not-as-root.conf"))
	e.must(err, "read the drop-in")
	e.must(os.Chmod(e.dir, 0o711), "let the account pass")
	config = e.writeConfig(o, settings{extra: "mounts: [{path: /run/data}]\n"})
	text, err = os.ReadFile(config)
	e.must(err, "read the configuration")
	e.must(os.WriteFile(config, bytes.ReplaceAll(text, []byte(e.path("cache")), []byte("/var/cache/hearth")), 0o644), "write the configuration")
	e.must(os.Chmod(config, 0o644), "let the account read it")
	m = e.boot(o, config, map[string]string{"20-not-as-root.conf": string(drop), "30-account.conf": "[Service]\nUser=nobody\nGroup=nogroup\nEnvironment=HEARTH_ADMIN_SOCKET=/run/hearth/hearth.sock\n"})
	pid = m.active("")
	e.restricted(m, pid, "Uid:\t65534")
	out, code := m.inside("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "find", "/run/data", "-type", "f")
	if n := strings.Count(out, "\n"); code != 0 || n != len(list) {
		e.Errorf("its account finds %d files of %d: %d %.300s", n, len(list), code, out)
	}
	m.stopped()
}

// restricted: a process of the machine has what it was to be given.
func (e *env) restricted(m *booted, pid string, want ...string) {
	e.Helper()
	text, _ := m.inside("cat", "/proc/"+pid+"/status")
	for _, line := range want {
		if !strings.Contains(text, "\n"+line) {
			e.Errorf("process %s of the unit does not have %q:\n%s", pid, line, text)
		}
	}
	_, bounds, _ := strings.Cut(text, "\nCapBnd:\t")
	bounds, _, _ = strings.Cut(bounds, "\n")
	set, err := strconv.ParseUint(bounds, 16, 64)
	if err != nil || set&(uint64(1)<<unix.CAP_SYS_ADMIN) == 0 || set&(uint64(1)<<unix.CAP_SYS_MODULE) != 0 {
		e.Errorf("process %s of the unit is bounded by %s, %v", pid, bounds, err)
	}
}
