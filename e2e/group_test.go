package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// groupGID is the group hearth of this mount namespace.
const groupGID = 64999

// groupHearth asks root's node as a member of the group hearth: for how it is, reads and
// warm-ups as the script of a job does, and for pins; and for what it may not, a mount of
// the machine's files over a directory of the machine before all else.
func groupHearth(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 1, 20))
	groups, err := os.ReadFile("/etc/group")
	e.must(err, "read /etc/group")
	own := e.path("group")
	e.must(os.WriteFile(own, append(groups, fmt.Sprintf("hearth:x:%d:\n", groupGID)...), 0o644), "write a group file")
	e.must(unix.Mount(own, "/etc/group", "", unix.MS_BIND, ""), "show it in its place")
	e.Cleanup(func() { _ = unix.Unmount("/etc/group", unix.MNT_DETACH) })
	member := e.user()
	stranger := &syscall.Credential{Uid: 65533, Gid: 65533}
	member.Gid = groupGID
	h := e.mount(o, settings{})
	ask := func(who *syscall.Credential, args ...string) (string, int) {
		cmd := exec.CommandContext(e.ctx, e.hearth, append(args, "--node", "unix://"+h.socket())...)
		cmd.Env, cmd.SysProcAttr = e.environ(nil), &syscall.SysProcAttr{Credential: who}
		out, _ := hearthtest.Output(cmd)
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := ask(stranger, "status"); code != 8 || !strings.Contains(out, "member of the group hearth") {
		e.Errorf("a stranger: exit %d: %s", code, out)
	}
	file := filepath.Join(h.dir, list[0].Path)
	rootJob := h.job(0, "warmup", file)
	for _, args := range [][]string{{"status"}, {"ls", "/"}, {"cat", file}, {"stat", file}, {"du", "/"}, {"explain", file},
		{"warmup", "--quiet", "/d1"}, {"jobs"}, {"pin", "--for", "1h", file}, {"pin"}, {"unpin", file}} {
		if out, code := ask(member, args...); code != 0 {
			e.Errorf("a member's %v: exit %d: %s", args, code, out)
		}
	}
	h.job(0, "pin", file)
	before, mine := len(mountsBelow("/")), e.path("mine")
	e.must(os.Mkdir(mine, 0o755), "make a mount point")
	e.must(os.Chown(mine, int(member.Uid), int(member.Gid)), "give it to the member")
	for _, args := range [][]string{{"mount", "--daemon", "file:///etc", mine}, {"mount", "--daemon", "file://" + e.dir, "/usr/local/sbin"},
		{"mount", "--daemon", "--ca-file", "/etc/shadow", "s3://other", mine}, {"mount", "--daemon", "/", mine}, {"umount", "--lazy", h.dir}, {"umount", "--all"},
		{"evict", "--yes", "/"}, {"unpin", file}, {"pin", "--for", "1s", file}, {"jobs", "retry", rootJob.ID}, {"jobs", "cancel", rootJob.ID}} {
		out, code := ask(member, args...)
		if code != 8 || !strings.Contains(out, "root") || strings.Count(out, "\n") != 1 {
			e.Errorf("a member's %v: exit %d: %s", args, code, out)
		}
	}
	secret := filepath.Join(e.path("secret"), "words") // what no link leads to, a command reads by itself, as its user
	e.must(os.Mkdir(filepath.Dir(secret), 0o700), "make a directory of root's")
	e.must(os.WriteFile(secret, []byte("open sesame"), 0o600), "write a file of root's")
	for _, verb := range []string{"cat", "ls", "stat", "du", "warmup"} {
		if out, code := ask(member, verb, "file://"+secret); code == 0 || strings.Contains(out, "sesame") {
			e.Errorf("a member's %s of root's file: exit %d: %s", verb, code, out)
		}
	}
	if now := len(mountsBelow("/")); now != before {
		e.Errorf("%d mounts were %d", now, before)
	}
	e.good("after all that", epoch(h.dir, list, 1, 2, 0))
	h.quit()
}
