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

// otherUsers are let into a root's mount and see the owner and the modes that it
// was given; --no-allow-other keeps them out. A user who may not let others in is
// told the line that allows it, and with that line lets them in.
func otherUsers(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(1, 10)) // a process reads each
	user := e.user()
	other := &syscall.Credential{Uid: 12345, Gid: 12345}

	h := e.mount(o, settings{mount: []string{"--uid", "4001", "--gid", "4002"}})
	e.readAs(other, h.dir, list)
	f, sub := filepath.Join(h.dir, list[0].Path), filepath.Dir(filepath.Join(h.dir, list[0].Path))
	out, err := e.as(other, "stat", "-c", "%u %g %a", h.dir, sub, f)
	if err != nil || out != "4001 4002 555\n4001 4002 555\n4001 4002 444\n" {
		e.Errorf("another user sees the owners and modes %q, %v", out, err)
	}
	h.quit()

	h = e.mount(o, settings{mount: []string{"--file-mode", "0400", "--dir-mode", "0511", "--uid", "4001"}})
	if out, err := e.as(other, "cat", filepath.Join(h.dir, list[0].Path)); err == nil || !strings.Contains(out, "Permission denied") {
		e.Errorf("another user reads a file of mode 0400: %v: %.100s", err, out)
	}
	e.readAs(&syscall.Credential{Uid: 4001, Gid: 4001}, h.dir, list)
	h.quit()

	h = e.mount(o, settings{mount: []string{"--no-allow-other"}})
	for _, name := range []string{h.dir, filepath.Join(h.dir, list[0].Path)} {
		if out, err := e.as(other, "stat", name); err == nil || !strings.Contains(out, "Permission denied") {
			e.Errorf("--no-allow-other: another user at %s: %v: %s", name, err, out)
		}
	}
	e.good("as the one who mounted", epoch(h.dir, list, 1, 2, 0))
	h.quit()
	e.userLetsIn(o, list, user, other)
}

// userLetsIn mounts as a user with allow_other, without and with the line in
// fuse.conf that fusermount3 asks for.
func (e *env) userLetsIn(o *server, list []hearthtest.File, user, other *syscall.Credential) {
	e.Helper()
	conf, dir := e.path("fuse.conf"), e.path("mnt-none")
	e.must(os.WriteFile(conf, []byte("#user_allow_other\n"), 0o644), "write fuse.conf")
	e.must(unix.Mount(conf, "/etc/fuse.conf", "", unix.MS_BIND, ""), "show it in its place")
	e.Cleanup(func() { _ = unix.Unmount("/etc/fuse.conf", unix.MNT_DETACH) })
	e.must(os.Mkdir(dir, 0o755), "make a mount point")
	set := settings{user: user, mount: []string{"--allow-other"}, cache: "cache-user"}
	config := e.writeConfig(o, set)
	for _, p := range []string{dir, config} {
		e.must(os.Chown(p, int(user.Uid), int(user.Gid)), "give %s to the user", p)
	}
	cmd := exec.CommandContext(e.ctx, e.hearth, "mount", "--allow-other", "--config", config, "s3://"+o.bucket, dir)
	cmd.Env, cmd.SysProcAttr = e.environ(o), &syscall.SysProcAttr{Credential: user}
	out, _ := hearthtest.Output(cmd)
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "add the line user_allow_other to /etc/fuse.conf") || len(mountsBelow(dir)) > 0 {
		e.Errorf("allow_other without user_allow_other: exit %d, %d mounts: %s", cmd.ProcessState.ExitCode(), len(mountsBelow(dir)), out)
	}
	e.must(os.WriteFile(conf, []byte("user_allow_other\n"), 0o644), "write the line")
	h := e.mountAs(o, set)
	e.readAs(other, h.dir, list)
	h.quit()
}

// as runs a program as a user and returns what it printed.
func (e *env) as(who *syscall.Credential, name string, args ...string) (string, error) {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, name, args...)
	cmd.Env = e.environ(nil)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	out, err := hearthtest.Output(cmd)
	return string(out), err
}

// readAs reads the files as a user; each byte must be right.
func (e *env) readAs(who *syscall.Credential, dir string, list []hearthtest.File) {
	e.Helper()
	for _, f := range list {
		data, err := e.as(who, "cat", filepath.Join(dir, f.Path))
		if err == nil && int64(len(data)) != f.Size {
			err = fmt.Errorf("%d bytes of %d", len(data), f.Size)
		}
		if err == nil {
			err = hearthtest.Check([]byte(data), f.Path, 0, 0)
		}
		e.must(err, "read %s as user %d", f.Path, who.Uid)
	}
}
