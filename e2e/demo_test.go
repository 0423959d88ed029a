package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// demoKept runs the demo with few files in the ways beside the plain one: left
// running until Ctrl-C, on a bucket of one's own, and where it cannot mount.
func demoKept(e *env) {
	e.keptUntilInterrupted()
	e.demoOfOwnBucket()
	e.demoWithoutItsMount()
}

// demo starts `hearth demo` in a process group of its own, as a shell would; its
// temporary directory lies below scratch.
func (e *env) demo(scratch string, environ []string, args ...string) *process {
	e.Helper()
	e.must(os.MkdirAll(scratch, 0o755), "make a directory for the demo")
	cmd := exec.Command(e.hearth, append([]string{"demo"}, args...)...)
	cmd.Env = append(environ, "HEARTH_TOOLS="+filepath.Join(e.repo, ".tools", "bin"), "TMPDIR="+scratch)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return e.start(cmd)
}

// keptUntilInterrupted: a checkpoint is sent once, and read by another node. The table shows a warm epoch that asked for no data, and that nodes
// got some of each other; the four commands work while it runs, and Ctrl-C leaves nothing
// behind.
func (e *env) keptUntilInterrupted() {
	e.Helper()
	scratch := e.path("kept")
	p := e.demo(scratch, e.environ(nil), "--keep", "--images", "40", "--large", "1")
	p.waitFor("Ctrl-C ends it")
	text := p.out.String()
	if !strings.Contains(text, "1.00 bytes sent per byte written") || !strings.Contains(text, "node-2 read it back") {
		e.Errorf("the checkpoint was not written once and read:\n%s", text)
	}
	if row := rowOf(text, "warm"); len(row) != 10 || row[6] != "B" && row[6] != "KiB" || row[7] != "0" { // names are asked for, too
		e.Errorf("the warm epoch asked the origin for data, or read wrong bytes: %q\n%s", row, text)
		for _, command := range commandsIn(text) {
			e.Log(e.run("sh", "-c", strings.Replace(command, "hearth", e.hearth, 1)))
		}
	}
	if row := rowOf(text, "cold"); len(row) != 10 || row[4] == "0" || row[8] == "0" {
		e.Errorf("the cold epoch asked nothing of the origin, or of peers: %q", row)
	}
	next := commandsIn(text)
	if len(next) != 4 {
		e.Errorf("not four commands but %q:\n%s", next, text)
	}
	for _, command := range next {
		out, code := e.run("sh", "-c", strings.Replace(command, "hearth", e.hearth, 1))
		if code != 0 || out == "" {
			e.Errorf("%s: exit %d\n%s", command, code, out)
		}
	}
	if len(mountsBelow(scratch)) != 4 || resends() && !strings.Contains(text, "0 errors, longest stall ") {
		e.Errorf("%d mounts while the demo is kept", len(mountsBelow(scratch)))
	}
	e.must(syscall.Kill(-p.Process.Pid, syscall.SIGINT), "press Ctrl-C")
	if code := p.exit(30 * time.Second); code != 0 {
		e.Errorf("after Ctrl-C: exit %d:\n%s", code, p.out)
	}
	e.nothingLeft(scratch)
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		e.Errorf("files left behind: %v %v", left, err)
	}
}

// rowOf is a row of the demo's table, its cells with a unit as two words.
func rowOf(text, name string) []string {
	_, table, _ := strings.Cut(text, "origin requests")
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == name {
			return f
		}
	}
	return nil
}

// commandsIn are the commands that the demo gives to try.
func commandsIn(text string) (commands []string) {
	_, text, _ = strings.Cut(text, "Try next")
	_, text, _ = strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "  "); ok && !strings.Contains(line, "Ctrl-C") {
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	return commands
}

// demoOfOwnBucket: a bucket of one's own is read, and asked for nothing else.
func (e *env) demoOfOwnBucket() {
	e.Helper()
	o := e.origin()
	for i := range 12 {
		_, err := o.PutBytes(e.ctx, o.bucket, fmt.Sprintf("own/dir-%d/file-%d", i%3, i), []byte(strings.Repeat(fmt.Sprint(i), 5000)))
		e.must(err, "put an object")
	}
	before := e.aws(o, "s3", "ls", "--recursive", "s3://"+o.bucket)
	proxy, scratch := e.proxy(o), e.path("own")
	p := e.demo(scratch, append(e.environ(o), "AWS_ENDPOINT_URL="+proxy.endpoint), "--origin", "s3://"+o.bucket+"/own")
	if code := p.exit(time.Minute); code != 0 || !strings.Contains(p.out.String(), "reading 12 files") || !strings.Contains(p.out.String(), "your bucket is only read") || !strings.Contains(p.out.String(), "All epochs read the same bytes") {
		e.Errorf("demo of a bucket of one's own: exit %d:\n%s", code, p.out)
	}
	if next := commandsIn(p.out.String()); len(next) != 4 {
		e.Errorf("not four commands but %q", next)
	}
	if s := proxy.Stats(); s.Other.Requests > 0 || s.Get.Requests < 12 {
		e.Errorf("%d requests that are no reads, %d reads", s.Other.Requests, s.Get.Requests)
	}
	if after := e.aws(o, "s3", "ls", "--recursive", "s3://"+o.bucket); after != before {
		e.Errorf("the bucket before:\n%s\nand after:\n%s", before, after)
	}
	e.nothingLeft(scratch)
}

// demoWithoutItsMount: /dev/fuse works, but the demo cannot mount; it fails instead
// of reading some other way.
func (e *env) demoWithoutItsMount() {
	e.Helper()
	scratch := e.path("unmountable")
	e.must(os.MkdirAll(filepath.Join(scratch, "node-2"), 0o755), "make the demo's directory")
	e.must(os.WriteFile(filepath.Join(scratch, "node-2", "mnt"), nil, 0o644), "put a file where the mount point belongs")
	p := e.demo(scratch, e.environ(nil), "--dir", scratch, "--images", "10", "--large", "0")
	if code := p.exit(time.Minute); code != 1 || !strings.Contains(p.out.String(), "mount point") || strings.Contains(p.out.String(), "matched") {
		e.Errorf("a demo that cannot mount: exit %d:\n%s", code, p.out)
	}
	e.nothingLeft(scratch)
}

// nothingLeft looks for mounts and processes of a demo that has ended. The tests'
// processes are all that /proc shows here.
func (e *env) nothingLeft(dir string) {
	e.Helper()
	if left := mountsBelow(dir); len(left) > 0 {
		e.Errorf("left mounted: %v", left)
	}
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	e.must(err, "list processes")
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), dir) { // else it has just ended
			e.Errorf("still running: %q", strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
}
