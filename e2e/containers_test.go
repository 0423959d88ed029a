package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// memoryLimit runs a node below a memory limit that stands in the group above its
// own, and a quota of processor time: its budgets follow, a budget beyond the limit
// is refused by name, and many times the limit are read through it without a kill.
func memoryLimit(e *env) {
	const limit = 128 << 20
	times := map[level]int64{core: 1, all: 4, full: 16}[e.level]
	o := e.origin()
	list := e.tenBudgets(o, times*limit/10)
	above := e.cgroup(limit)
	group := filepath.Join(above, "node")
	e.must(os.Mkdir(group, 0o755), "make a group below the limit")
	e.Cleanup(func() { _ = os.Remove(group) }) // before the one above it
	set := settings{disk: "64MiB", wrap: []string{"/bin/sh", "-c", "echo $$ > " + group + "/cgroup.procs && exec \"$@\"", "sh"}}
	config := e.writeConfig(o, set)
	out, code := e.run(set.wrap[0], append(set.wrap[1:], e.hearth, "mount", "--config", config, "--cache-ram", "1GiB", "s3://"+o.bucket, e.dir)...)
	if code != 2 || !strings.Contains(out, "cache.ram is 1.0 GiB, and a node needs 64.0 MiB beside it, but this process may use 128.0 MiB ("+above) || !strings.Contains(out, "lower cache.ram") {
		e.Errorf("a budget beyond the limit: exit %d: %s", code, out)
	}

	h := &hearth{e: e, dir: e.path("mnt"), config: config}
	e.must(os.Mkdir(h.dir, 0o755), "make the mount point")
	text, err := os.ReadFile(config)
	e.must(err, "read the configuration")
	e.must(os.WriteFile(config, []byte(strings.Replace(string(text), "ram: 256MiB, ", "", 1)), 0o600), "leave the RAM budget to the node")
	h.launch(o, set)
	h.waitFor("memory is tight: this process may use 128.0 MiB (" + above)
	s := h.status()
	if m := s.Memory; m.Limit != limit || !strings.HasPrefix(m.LimitBy, above) || m.Budget != limit/4 || m.Heap != limit-limit/10 {
		e.Errorf("below a limit of %d in %s: %+v", int64(limit), above, m)
	}
	for round := range 2 {
		e.good("many times the limit", epoch(h.dir, list, uint64(round), 16, 0))
	}
	e.Logf("resident: %s", e.figure(fmt.Sprintf("/proc/%d/status", h.Process.Pid), "VmHWM:"))
	h.quit()

	// A cache on a tmpfs that was told to take more than the limit: its pages count.
	e.limit(above, 3*limit)
	e.must(os.Mkdir(e.path("tmpfs"), 0o755), "make a mount point")
	e.fileSystem("tmpfs", e.path("tmpfs"))
	set.cache, set.disk, set.ram, set.floor = "tmpfs/cache", "900MiB", "64MiB", "4MiB"
	h = e.mount(o, set)
	if d := h.diskTier().Dirs[0]; d.Budget != 128<<20 || !strings.Contains(d.Note, "so it gets 128.0 MiB instead of 900.0 MiB") {
		e.Errorf("on a tmpfs below a limit of %d: %+v", 3*limit, d)
	}
	e.good("many times the limit, cached on a tmpfs", epoch(h.dir, list, 3, 16, 0))
	h.quit()
	if n := e.killed(above, group); n != 0 {
		e.Errorf("%d kills for want of memory", n)
	}
	// Who takes too much there is killed, and counted.
	if _, code := e.run(set.wrap[0], append(set.wrap[1:], "tail", "/dev/zero")...); code != -1 || e.killed(above, group) != 1 {
		e.Errorf("a process without bounds ends with %d, %d kills", code, e.killed(above, group))
	}
	e.quota(o)
}

// limit gives a memory control group another limit.
func (e *env) limit(group string, bytes int64) {
	e.Helper()
	name := filepath.Join(group, "memory.max")
	if _, err := os.Stat(name); err != nil {
		name = filepath.Join(group, "memory.limit_in_bytes")
	}
	e.must(os.WriteFile(name, []byte(strconv.FormatInt(bytes, 10)), 0), "set the limit")
}

// killed is how many processes below a control group were killed for want of
// memory: version 2 counts in the one above, version 1 in the one it was in.
func (e *env) killed(above, group string) (n int) {
	e.Helper()
	text := e.figure(filepath.Join(above, "memory.events"), "oom_kill ")
	if text == "" {
		text = e.figure(filepath.Join(group, "memory.oom_control"), "oom_kill ")
	}
	n, err := strconv.Atoi(text)
	e.must(err, "read how many were killed in %s", group)
	return n
}

// figure is what stands behind a name in a file of such lines; "": nothing.
func (e *env) figure(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// quota runs a node on half a processor: status names the file that says so.
func (e *env) quota(o *server) {
	e.Helper()
	var group string
	for _, c := range []struct{ root, file, half string }{
		{"/sys/fs/cgroup", "cpu.max", "50000 100000"}, {"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"}, {"/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us", "50000"},
	} {
		dir := filepath.Join(c.root, "hearth-e2e-cpu-"+filepath.Base(e.dir))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, c.file), os.O_WRONLY, 0) // not made where the root is a plain tmpfs
		if err == nil {
			_, err = f.WriteString(c.half)
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			group = dir
			e.Cleanup(func() { _ = os.Remove(dir) })
			break
		}
		_ = os.Remove(dir)
	}
	if group == "" {
		e.Log("the quota is not tried: no control group of processor time can be made here; TestLimits reads recorded ones")
		e.detail = "no quota: no such control group here"
		return
	}
	h := e.mount(o, settings{cache: "cache-quota", wrap: []string{"/bin/sh", "-c", "echo $$ > " + group + "/cgroup.procs && exec \"$@\"", "sh"}})
	if p := h.status().Processors; p.Limit != 0.5 || !strings.HasPrefix(p.LimitBy, group) || p.Threads > 4 {
		e.Errorf("on half a processor: %+v", p)
	}
	h.quit()
}

// cacheOn reads through a cache directory on another kind of file system, cold, warm
// and after a restart, then with a budget that is too small for all: every byte is
// right, what is held is not asked for again, the budget holds, and status says
// what the file system is and whether its files are lent. forbid is what the
// kernel shall refuse to the node besides.
func cacheOn(kind, open, forbid string) func(e *env) {
	return func(e *env) {
		o := e.origin()
		p := e.proxy(o)
		some := e.few(4, 40)
		if e.level == full {
			some = e.few(8, 100)
		}
		list := e.load(o, some)
		for i := range 20 {
			f := hearthtest.File{Path: fmt.Sprintf("large/%d", i), Size: 3<<20 + int64(i)}
			e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
			list = append(list, f)
		}
		e.must(os.Mkdir(e.path("fs"), 0o755), "make a mount point")
		e.fileSystem(kind, e.path("fs"))
		set := settings{endpoint: p.endpoint, cache: "fs/cache", disk: "400MiB", floor: "4MiB", mount: []string{"--open", open}}
		if forbid != "" {
			set.wrap, set.environ = e.forbid(forbid)
		}
		h := e.mount(o, set)
		e.good("cold", epoch(h.dir, list, 1, 8, 0))
		e.cold(h.dir, list)
		before := p.gets()
		e.good("warm", epoch(h.dir, list, 2, 8, 0))
		if again := p.gets() - before; again != 0 {
			e.Errorf("the warm epoch asked the origin %d times", again)
		}
		h.quit()
		h.launch(o, set)
		before = p.gets()
		e.good("after a restart", epoch(h.dir, list, 3, 8, 0))
		if again := p.gets() - before; again != 0 {
			e.Errorf("the epoch after a restart asked the origin %d times", again)
		}
		if forbid == "direct" {
			e.noDirectFiles(h)
		}
		e.saysWhere(h, kind, open, list)
		h.quit()

		small := set
		small.cache, small.disk = "fs/small", "32MiB"
		h = e.mount(o, small)
		for round := range uint64(2) {
			e.good("more than fits", epoch(h.dir, list, 4+round, 8, 0))
		}
		e.eventually("the budget holds", func() bool {
			data, names := e.cacheBytes("fs/small")
			return data > 8<<20 && data+names <= 36<<20
		})
		h.quit()
	}
}

// fileSystem mounts one of a kind for the length of the scenario.
func (e *env) fileSystem(kind, dir string) {
	e.Helper()
	options := "size=1g"
	if kind == "overlay" {
		parts := []string{"lower", "upper", "work"}
		for _, name := range parts {
			e.must(os.Mkdir(e.path(name), 0o755), "make a directory")
		}
		options = fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", e.path("lower"), e.path("upper"), e.path("work"))
	}
	e.must(unix.Mount(kind, dir, kind, 0, options), "mount a %s", kind)
	e.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			e.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
}

// noDirectFiles fails the scenario where the node has a file open by O_DIRECT.
func (e *env) noDirectFiles(h *hearth) {
	e.Helper()
	if e.figure(fmt.Sprintf("/proc/%d/status", h.Process.Pid), "Seccomp:") != "2" {
		e.Error("the node runs without the filter")
	}
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", h.Process.Pid))
	for _, name := range infos {
		flags, err := strconv.ParseInt(e.figure(name, "flags:"), 8, 64)
		if err == nil && flags&unix.O_DIRECT != 0 {
			e.Errorf("%s was opened by O_DIRECT", name)
		}
	}
	if len(infos) == 0 {
		e.Error("the node has no files open")
	}
}

// saysWhere looks at what status says of a cache directory's file system and of
// what is lent from there.
func (e *env) saysWhere(h *hearth, kind, open string, list []hearthtest.File) {
	e.Helper()
	d := h.diskTier().Dirs[0]
	note := map[string]string{"tmpfs": "what it holds is memory", "overlay": "it ends with the container"}[kind]
	if d.FileSystem != kind || !strings.Contains(d.Note, note) || !strings.Contains(h.out.String(), note) {
		e.Errorf("of a cache on %s status says %q, %q, and the log:\n%s", kind, d.FileSystem, d.Note, h.out)
	}
	m := h.status().Mounts[0]
	lacks := strings.Join(m.Lacks, "\n")
	switch {
	case open == "none":
		if m.Open != "none" || lacks != "" {
			e.Errorf("without passthrough: %+v", m)
		}
	case kind == "overlay":
		const why = "the kernel lends no files of a stacked file system such as overlayfs, on which "
		if m.Open != "plain" || !strings.Contains(m.Why, why) || !strings.Contains(lacks, "passthrough: "+why) || m.Ops["lent"] != 0 {
			e.Errorf("passthrough over overlayfs: %+v", m)
		}
	case m.Open != "passthrough":
		e.Errorf("passthrough over %s: %+v", kind, m)
	default:
		large := list[len(list)-20:]
		e.eventually("files are lent to the kernel", func() bool {
			e.good("large files again", epoch(h.dir, large, 9, 4, 0))
			return h.status().Mounts[0].Ops["lent"] > 0
		})
	}
	out, _ := e.run(e.hearth, "status", "-v", "--node", "unix://"+h.socket())
	if !strings.Contains(out, "on "+kind) || !strings.Contains(out, note) || lacks != "" && !strings.Contains(out, h.dir+" does without "+m.Lacks[0]) {
		e.Errorf("status -v:\n%s", out)
	}
}

// noRightToMount tries to mount as containers and users do that may not: each line
// names what is missing and the cure. With everything masked that may be, status
// names each thing.
func noRightToMount(e *env) {
	o := e.origin()
	_, err := o.PutBytes(e.ctx, o.bucket, "key", []byte("value"))
	e.must(err, "put an object")
	dev := e.path("dev")
	e.must(os.Mkdir(dev, 0o755), "make a /dev")
	user := e.user()
	wrap, environ := e.forbid("mount")
	for _, c := range []struct {
		what    string
		wrap    []string
		environ []string
		user    *syscall.Credential
		want    string
	}{
		{"no /dev/fuse", []string{"unshare", "--mount", "sh", "-c", "umount /dev/fuse; " + bareDevices, dev}, nil, nil, "open /dev/fuse: no such file or directory (on the machine: modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN)"},
		{"no /dev/fuse, as a user", []string{"unshare", "--mount", "sh", "-c", "umount /dev/fuse; " + bareDevices, dev, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}, nil, nil, "a container needs --device /dev/fuse --cap-add SYS_ADMIN"},
		{"a device of root's alone", []string{"unshare", "--mount", "sh", "-c", strings.Replace(asNobodyDoes, "666", "600", 1), e.path("fuse-600")}, nil, nil, "open /dev/fuse: permission denied (on the machine: chmod 666 /dev/fuse, as Debian has it; in a container: run as root)"},
		{"no CAP_SYS_ADMIN", []string{"setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"}, nil, nil, "mount(2) needs CAP_SYS_ADMIN: operation not permitted (a container needs --cap-add SYS_ADMIN)"},
		{"a security module", wrap, environ, nil, "a security module forbids it: a container needs --security-opt apparmor=unconfined"},
		{"no fusermount3", nil, []string{"PATH=/nonexistent"}, user, "mounting as a user needs fusermount3 (Debian: apt-get install fuse3)"},
		{"no new privileges", []string{"setpriv", "--no-new-privs"}, nil, user, "it must be setuid, where nothing like no-new-privileges forbids that"},
	} {
		dir := e.path("mnt-" + strings.Map(func(r rune) rune {
			if r == ' ' || r == '/' {
				return '-'
			}
			return r
		}, c.what))
		e.must(os.Mkdir(dir, 0o777), "make a mount point")
		config := e.writeConfig(o, settings{cache: filepath.Base(dir) + "-cache"})
		for _, p := range []string{dir, config} {
			e.must(os.Chown(p, 65534, 65534), "give %s to the user", p)
		}
		args := slices.Concat(c.wrap, []string{e.hearth, "mount", "--config", config, "s3://" + o.bucket, dir})
		cmd := exec.CommandContext(e.ctx, args[0], args[1:]...)
		cmd.Env = append(e.environ(o), c.environ...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user}
		out, _ := hearthtest.Output(cmd)
		if code := cmd.ProcessState.ExitCode(); code == 0 || code == 2 || !strings.Contains(string(out), c.want) || len(mountsBelow(dir)) > 0 {
			e.Errorf("%s: exit %d, %d mounts: %s", c.what, code, len(mountsBelow(dir)), out)
		}
	}
	h := e.mount(o, settings{mount: []string{"--fuse-without", "all"}})
	lacks := strings.Join(h.status().Mounts[0].Lacks, "\n")
	for _, name := range []string{"passthrough", "open", "opendir", "readdirplus", "async_read", "parallel_dirops", "auto_inval_data", "max_pages", "resend", "readahead"} {
		if !strings.Contains(lacks, name+": masked by fuse.without") {
			e.Errorf("status does not name %s among what is masked:\n%s", name, lacks)
		}
	}
	h.quit()
}

// userNamespace mounts as a user who is root of a user namespace, where mount(2)
// does it without fusermount3, and reads from within; passthrough is not to be had
// there, and status says why.
func userNamespace(e *env) {
	o := e.origin()
	list := e.load(o, e.few(2, 20))
	user := e.user()
	dir, own, config := e.path("mnt-namespace"), e.path("own"), e.writeConfig(o, settings{cache: "own/cache"})
	for _, p := range []string{dir, own} {
		e.must(os.Mkdir(p, 0o700), "make a directory")
	}
	for _, p := range []string{dir, own, config} {
		e.must(os.Chown(p, int(user.Uid), int(user.Gid)), "give %s to the user", p)
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", e.hearth, "mount", "--config", config,
		"--admin-socket", own+"/sock", "--open", "passthrough", "s3://"+o.bucket, dir)
	cmd.Env = append(e.environ(o), "PATH=/usr/bin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	p := e.start(cmd)
	p.waitFor("mounted " + dir)
	inside := func(args ...string) (string, error) {
		return e.as(user, "nsenter", append([]string{"--user", "--mount", "--preserve-credentials", "--target", strconv.Itoa(p.Process.Pid)}, args...)...)
	}
	for _, f := range list {
		data, err := inside("cat", filepath.Join(dir, f.Path))
		if err != nil || int64(len(data)) != f.Size {
			e.Fatalf("read %s in the namespace: %v, %d bytes: %.200q", f.Path, err, len(data), data)
		}
		e.must(hearthtest.Check([]byte(data), f.Path, 0, 0), "read %s in the namespace", f.Path)
	}
	if _, code := e.run("sh", "-c", "test -e "+filepath.Join(dir, list[0].Path)); code == 0 || len(mountsBelow(dir)) > 0 {
		e.Error("the mount is seen outside of its namespace")
	}
	out, err := inside(e.hearth, "status", "-v", "--node", "unix://"+own+"/sock")
	if err != nil || !strings.Contains(out, "  plain  ") || !strings.Contains(out, "does without passthrough: it needs CAP_SYS_ADMIN, and not that of a user namespace") {
		e.Errorf("status of a mount in a user namespace: %v:\n%s", err, out)
	}
	if code := p.terminate(syscall.SIGTERM); code != 0 {
		e.Errorf("exit %d after SIGTERM:\n%s", code, p.out)
	}
}

// container runs the static binary alone as the first process of a container: an
// overlay as its root, /dev, /proc and a volume that it shares with the machine,
// on whose sub-directory it mounts. The machine and another container that was
// started before see the mount, are told of its end by kill -9, see the next one
// without a restart, and it goes with SIGTERM.
func container(e *env) {
	o := e.origin()
	list := e.load(o, e.few(2, 20))
	volume, root := e.path("volume"), e.path("root")
	for _, dir := range []string{volume, root} {
		e.must(os.Mkdir(dir, 0o755), "make a directory")
	}
	e.fileSystem("tmpfs", volume)
	e.must(unix.Mount("", volume, "", unix.MS_SHARED, ""), "share the volume")
	e.must(os.Mkdir(filepath.Join(volume, "data"), 0o755), "make the mount point")
	e.fileSystem("overlay", root)
	program, err := os.ReadFile(e.hearth)
	e.must(err, "read the binary")
	e.must(os.WriteFile(filepath.Join(root, "hearth"), program, 0o755), "put the binary into the image")
	for _, dir := range []string{"dev", "proc", "volume"} {
		e.must(os.Mkdir(filepath.Join(root, dir), 0o755), "make a directory")
	}

	consumer := e.start(exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready; exec sleep 1000"))
	consumer.waitFor("ready")
	seen := func() []byte {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", consumer.Process.Pid, filepath.Join(volume, "data", list[0].Path)))
		return data
	}
	sees := func() bool {
		data := seen()
		return int64(len(data)) == list[0].Size && hearthtest.Check(data, list[0].Path, 0, 0) == nil
	}
	const inside = `mount --rbind "$1" "$0/volume" && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && shift && exec chroot "$0" "$@"`
	run := func() (p *process, first int) {
		e.Helper()
		cmd := exec.Command("unshare", "--mount", "--propagation", "unchanged", "--pid", "--fork", "--kill-child", "sh", "-c", inside, root, volume,
			"/hearth", "mount", "--endpoint", o.endpoint, "--path-style", "true", "--admin-socket", "/volume/hearth.sock", "--metrics-listen", "-", "--cache-disks", "/cache=100MiB", "--cache-free-floor", "1MiB",
			"s3://"+o.bucket, "/volume/data")
		cmd.Env = e.environ(o)
		p = e.start(cmd)
		p.waitFor("mounted /volume/data")
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Process.Pid, p.Process.Pid))
		e.must(err, "read the container's first process")
		first, err = strconv.Atoi(strings.TrimSpace(string(children)))
		e.must(err, "read the container's first process")
		return p, first
	}
	p, first := run()
	e.good("on the machine", epoch(filepath.Join(volume, "data"), list, 1, 4, 0))
	e.eventually("the other container sees the mount", sees)
	e.must(syscall.Kill(first, syscall.SIGKILL), "kill the node")
	p.exit(10 * time.Second)
	e.eventually("the mount of a killed container is known as dead", func() bool {
		var s unix.Statfs_t
		return errors.Is(unix.Statfs(filepath.Join(volume, "data"), &s), unix.ENOTCONN)
	})
	p, first = run()
	e.good("on the machine, again", epoch(filepath.Join(volume, "data"), list, 2, 4, 0))
	e.eventually("the other container sees the new mount", sees)
	e.must(syscall.Kill(first, syscall.SIGTERM), "end the node")
	if code := p.exit(30 * time.Second); code != 0 || len(mountsBelow(filepath.Join(volume, "data"))) > 0 || seen() != nil {
		e.Errorf("after SIGTERM: exit %d, mounts %v, %d bytes seen by the other container:\n%s", code, mountsBelow(volume), len(seen()), p.out)
	}
}
