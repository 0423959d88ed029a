package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// commands are used as a user would: each verb through a running node, its exit
// codes, and refusals of what is not in this version.
func commands(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 10, 4, 20))
	h := e.mount(o, settings{})
	at := []string{"--node", "unix://" + h.socket()}
	try := func(code int, args ...string) string {
		e.Helper()
		out, got := e.run(e.hearth, append(args, at...)...)
		if got != code {
			e.Errorf("hearth %v: exit %d, expected %d:\n%s", args, got, code, out)
		}
		return out
	}
	if out := try(0, "ls", "/d1"); strings.Count(out, "\n") < 2 || !strings.Contains(out, "class0000") {
		e.Errorf("ls: %s", out)
	}
	f := list[0]
	if err := hearthtest.Check([]byte(try(0, "cat", "/"+f.Path)), f.Path, 0, 0); err != nil {
		e.Errorf("cat: %v", err)
	}
	if out := try(0, "stat", "-v", "/"+f.Path); !strings.Contains(strings.ToLower(out), "version") {
		e.Errorf("stat -v: %s", out)
	}
	try(0, "du", "/d1")
	try(4, "cat", "/no/such/file")
	try(2, "ls", "--no-such-flag")
	doc := h.statusJSON()
	for _, key := range []string{"origin", "tiers", "mounts"} {
		if doc[key] == nil {
			e.Errorf("status has no %q: %v", key, doc)
		}
	}
	if m, ok := doc["mounts"].([]any); !ok || len(m) != 1 || m[0].(map[string]any)["dir"] != h.dir {
		e.Errorf("status shows mounts %v", doc["mounts"])
	}
	for _, verb := range []string{"trace"} {
		out, code := e.run(e.hearth, verb)
		help, _ := e.run(e.hearth, "--help")
		if code != 2 || !strings.Contains(out, "not in this version") || regexp.MustCompile(`(?m)^\s+`+verb+`\s`).MatchString(help) {
			e.Errorf("hearth %s: exit %d: %s", verb, code, out)
		}
	}
	if out, code := e.run(e.hearth, "ls", "/", "--node", "unix://"+e.path("none.sock")); code != 5 || !strings.Contains(out, "hearth up") {
		e.Errorf("without a node: exit %d: %s", code, out)
	}
	for _, dir := range []string{e.path("cache"), e.dir} { // the latter holds the cache, the socket and the configuration
		if out, code := e.run(e.hearth, "mount", "--daemon", "--config", h.config, "s3://"+o.bucket, dir); code != 8 || !strings.Contains(out, "choose a directory apart") {
			e.Errorf("a mount over the node's own %s: exit %d: %s", dir, code, out)
		}
	}
	if out, code := e.run(e.hearth, "umount", h.dir, "--node", "unix://"+h.socket()); code != 0 {
		e.Errorf("umount: exit %d: %s", code, out)
	}
	if code := h.exit(30 * time.Second); code != 0 {
		e.Errorf("after umount the node ended with %d", code)
	}
	odd := e.path("odd.yaml")
	e.must(os.WriteFile(odd, []byte("origin: s3://b\ncahce: {ram: 1GiB}\n"), 0o600), "write a configuration")
	if out, code := e.run(e.hearth, "up", "--config", odd); code != 2 || !strings.Contains(out, "2") || !strings.Contains(out, "cache") {
		e.Errorf("a wrong key: exit %d: %s", code, out)
	}
}

// daemon mounts in the background: the command returns when the mount answers,
// logs go to journald or to a file, and a failure is told by the command itself.
// The cache's line is the first, whatever else there is to say.
func daemon(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 1, 20))
	journal, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: e.path("journal"), Net: "unixgram"})
	e.must(err, "listen as journald")
	defer func() { _ = journal.Close() }()
	dir, config := e.path("mnt"), e.writeConfig(o, settings{})
	e.must(os.MkdirAll(dir, 0o755), "make the mount point")
	mount := func(args ...string) (string, int) {
		cmd := exec.CommandContext(e.ctx, e.hearth, args...)
		cmd.Env = append(e.environ(o), "HEARTH_JOURNAL_SOCKET="+e.path("journal"))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			e.Fatalf("run hearth: %v", err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := mount("mount", "--daemon", "--config", config, "s3://"+o.bucket, dir); code != 0 || len(mountsBelow(dir)) != 1 {
		e.Fatalf("mount --daemon: exit %d, %d mounts: %s", code, len(mountsBelow(dir)), out)
	}
	e.good("through the daemon's mount", epoch(dir, list, 1, 2, 0))
	buf := make([]byte, 64<<10)
	e.must(journal.SetReadDeadline(time.Now().Add(10*time.Second)), "set a deadline")
	n, err := journal.Read(buf)
	if err != nil || !strings.Contains(string(buf[:n]), "MESSAGE") {
		e.Errorf("journald received %q, %v", buf[:n], err)
	}
	socket := strings.TrimSuffix(config, ".yaml") + ".sock"
	umount := func() {
		if out, code := mount("umount", dir, "--node", "unix://"+socket); code != 0 {
			e.Fatalf("umount: exit %d: %s", code, out)
		}
		e.eventually("the daemon's end", func() bool { _, err := os.Stat(socket); return err != nil })
	}
	umount()
	log := e.path("hearth.log")
	if out, code := mount("mount", "--daemon", "--log-file", log, "--config", config, "s3://"+o.bucket, dir); code != 0 {
		e.Fatalf("mount --daemon --log-file: exit %d: %s", code, out)
	}
	if text, err := os.ReadFile(log); err != nil || len(text) == 0 {
		e.Errorf("the log file: %q, %v", text, err)
	}
	umount()
	e.must(os.Rename(e.path("journal"), e.path("journal-away")), "take journald away")
	out, code := mount("mount", "--daemon", "--config", config, "s3://"+o.bucket, dir)
	if code != 0 || !strings.HasPrefix(out, "cache: ") || !strings.Contains(out, "no journald here") {
		e.Fatalf("mount --daemon without journald: exit %d: %s", code, out)
	}
	umount()
	if out, code := mount("mount", "--daemon", "--config", config, "s3://no-such-bucket", dir); code == 0 || !strings.Contains(out, "no-such-bucket") {
		e.Errorf("a mount that cannot be: exit %d: %s", code, out)
	}
}

// deadMountPoint: the node was killed and its mount point answers "transport
// endpoint is not connected"; mounting again cleans up and works. fstab's helper
// does the same through mount(8).
func deadMountPoint(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 1, 20))
	h := e.mount(o, settings{})
	h.kill()
	if _, err := os.ReadDir(h.dir); !errors.Is(err, syscall.ENOTCONN) {
		e.Fatalf("the killed node's mount point: %v", err)
	}
	cmd := exec.Command(e.hearth, "mount", "--config", h.config, "s3://"+o.bucket, h.dir)
	cmd.Env = e.environ(o)
	p := e.start(cmd)
	p.waitFor("mounted " + h.dir)
	e.good("mounted again", epoch(h.dir, list, 1, 2, 0))
	p.terminate(syscall.SIGTERM)
	helper := e.path("mount.hearth")
	e.must(os.Symlink(e.hearth, helper), "make fstab's helper")
	run := exec.CommandContext(e.ctx, helper, "s3://"+o.bucket, h.dir, "-o", "ro,_netdev,noatime,x-systemd.automount,config="+h.config)
	run.Env = e.environ(o)
	if out, err := run.CombinedOutput(); err != nil || len(mountsBelow(h.dir)) != 1 {
		e.Fatalf("mount.hearth: %v, %d mounts: %s", err, len(mountsBelow(h.dir)), out)
	}
	e.good("mounted as fstab does", epoch(h.dir, list, 2, 2, 0))
	e.run(e.hearth, "umount", h.dir, "--node", "unix://"+h.socket())
	e.deadOnes(o)
}

// deadOnes are cleaned up by umount, one or all: beside a node's own mount, and
// where no node runs. What another node serves stays.
func (e *env) deadOnes(o *server) {
	e.Helper()
	umount := func(h *hearth, what ...string) {
		e.Helper()
		if out, code := e.run(e.hearth, append([]string{"umount", "--config", h.config}, what...)...); code != 0 || out != "" {
			e.Errorf("umount %v: exit %d: %s", what, code, out)
		}
	}
	other := e.mount(o, settings{cache: "cache-other"})
	dead := e.mount(o, settings{})
	dead.kill()
	h := e.mount(o, settings{})
	umount(h, "--all")
	if left := mountsBelow(e.dir); len(left) != 1 || left[0].point != other.dir {
		e.Errorf("umount --all beside a dead mount left %v, expected %s alone", left, other.dir)
	}
	if code := h.exit(30 * time.Second); code != 0 {
		e.Errorf("after umount --all the node ended with %d", code)
	}
	other.quit()
	for _, what := range []string{"--all", ""} {
		h := e.mount(o, settings{})
		used, err := os.Open(h.dir) // who still has it open can do nothing with it
		e.must(err, "open the mount's root")
		h.kill()
		if what == "" {
			what = h.dir
		}
		umount(h, what)
		if left := mountsBelow(e.dir); len(left) != 0 {
			e.Errorf("umount %s without a node left %v", what, left)
		}
		_ = used.Close()
		umount(h, "--all") // nothing is mounted
	}
}

// wrongSetUps: each gives one clear line with the cure and exit code 1, or 2 where
// the line was written wrong, and leaves nothing mounted. (The full nine are held by golden tests of package origin.)
func wrongSetUps(e *env) {
	o := e.origin()
	_, err := o.PutBytes(e.ctx, o.bucket, "some/object", []byte("content"))
	e.must(err, "put an object")
	p := e.proxy(o)
	dir := e.path("mnt")
	e.must(os.MkdirAll(dir, 0o755), "make the mount point")
	for _, c := range []struct {
		name, url, says string
		rule            *faultproxy.Rule
		anonymous       bool
		code            int // 0: 1
	}{
		{name: "no such bucket", url: "s3://nowhere", says: "nowhere"},
		{name: "no bucket's name", url: "s3://BKT/pre", says: "lower-case letters", code: 2, rule: &faultproxy.Rule{Status: 400, Code: "InvalidBucketName"}},
		{name: "clock off", says: "clock", rule: ptr(faultproxy.Skewed())},
		{name: "no right to list", says: "s3:ListBucket", rule: ptr(faultproxy.Denied(faultproxy.List))},
		{name: "no right to get", says: "s3:GetObject", rule: ptr(faultproxy.Denied(faultproxy.Get))},
		{name: "no credentials", says: "AWS_ACCESS_KEY_ID", anonymous: true},
	} {
		p.ClearRules()
		if c.rule != nil {
			p.AddRule(*c.rule)
		}
		url := c.url
		if url == "" {
			url = "s3://" + o.bucket
		}
		config := e.writeConfig(o, settings{url: url, endpoint: p.endpoint})
		cmd := exec.CommandContext(e.ctx, e.hearth, "mount", "--config", config, url, dir)
		cmd.Env = e.environ(o)
		if c.anonymous {
			cmd.Env = e.environ(nil)
		}
		out, _ := cmd.CombinedOutput()
		text := strings.TrimSpace(string(out))
		last := text[strings.LastIndexByte(text, '\n')+1:]
		if cmd.ProcessState.ExitCode() != max(c.code, 1) || !strings.Contains(last, c.says) || len(mountsBelow(dir)) > 0 {
			e.Errorf("%s: exit %d, %d mounts, last line %q", c.name, cmd.ProcessState.ExitCode(), len(mountsBelow(dir)), last)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// demonstration runs `hearth demo`, with three nodes, one of which is killed, and with one;
// it must end with 0. Then again, with one byte at the origin flipped behind its back: it
// must fail and name the file.
func demonstration(e *env) {
	const written = " read it back in " // the checkpoint
	small := []string{"--images", "200", "--large", "1"}
	if e.level > core {
		small = nil
	}
	run := func(dir string, more ...string) *process {
		cmd := exec.Command(e.hearth, slices.Concat([]string{"demo", "--dir", dir}, small, more)...)
		cmd.Env = append(e.environ(nil), "HEARTH_TOOLS="+filepath.Join(e.repo, ".tools", "bin"))
		return e.start(cmd)
	}
	ends := map[string]string{"3": "killing node-3 with SIGKILL", "1": "after kill -9"} // before Linux 6.9
	if resends() {
		ends = map[string]string{"3": "node-3 killed with SIGKILL; the next one serves its mount", "1": "0 errors, longest stall "}
	}
	for nodes, says := range ends {
		p := run(e.path("demo-"+nodes), "--nodes", nodes)
		if code := p.exit(5 * time.Minute); code != 0 || !strings.Contains(p.out.String(), "Every byte matched") || !strings.Contains(p.out.String(), says) || !strings.Contains(p.out.String(), written) {
			e.Fatalf("demo of %s nodes: exit %d:\n%s", nodes, code, p.out)
		}
	}
	e.withoutFuse(small)
	p := run(e.path("flipped"))
	p.waitFor("objects of the server lie in")
	victim := filepath.Join(e.path("flipped"), "origin", "demo", "models", "shard-01-of-01.safetensors")
	if small == nil {
		victim = strings.Replace(victim, "-of-01", "-of-04", 1)
	}
	f, err := os.OpenFile(victim, os.O_RDWR, 0)
	e.must(err, "open an object behind the server's back")
	var b [1]byte
	_, err = f.ReadAt(b[:], 60<<20)
	e.must(err, "read a byte")
	_, err = f.WriteAt([]byte{b[0] ^ 1}, 60<<20)
	e.must(errors.Join(err, f.Close()), "flip a byte")
	if code := p.exit(5 * time.Minute); code != 1 || !strings.Contains(p.out.String(), "shard-01") || strings.Contains(p.out.String(), "Every byte matched") {
		e.Errorf("demo over a flipped byte: exit %d:\n%s", code, p.out)
	}
}

// bareDevices puts a /dev without FUSE, made at $0, in the place of the machine's.
const bareDevices = `mount -t tmpfs none "$0" && for d in null zero random urandom; do mknod -m 666 "$0/$d" c 0x$(stat -c %t /dev/$d) 0x$(stat -c %T /dev/$d); done && mount --bind "$0" /dev && exec "$@"`

// withoutFuse runs the demo where there is no /dev/fuse: it says so, and reads
// through the node.
func (e *env) withoutFuse(args []string) {
	e.Helper()
	dev := e.path("dev")
	e.must(os.MkdirAll(dev, 0o755), "make a /dev")
	demo := append([]string{e.hearth, "demo", "--dir", e.path("no-fuse")}, args...)
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", bareDevices, dev}, demo...)...)
	cmd.Env = append(e.environ(nil), "HEARTH_TOOLS="+filepath.Join(e.repo, ".tools", "bin"))
	p := e.start(cmd)
	if code := p.exit(5 * time.Minute); code != 0 || !strings.Contains(p.out.String(), "no /dev/fuse here") || !strings.Contains(p.out.String(), "no checkpoint is written") || !strings.Contains(p.out.String(), "Every byte matched") {
		e.Errorf("demo without /dev/fuse: exit %d:\n%s", code, p.out)
	}
}
