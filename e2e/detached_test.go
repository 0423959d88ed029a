package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// detachedMount: somebody takes a mount away with umount -l while a file is open. The status says so,
// umount ends with "nothing is mounted", and the place is mounted again at once, beside the
// reader, who gets every byte. The same holds for a mount that was moved, and umount does not wait
// for one that another mount namespace has still.
func detachedMount(e *env) {
	o := e.origin()
	f := hearthtest.File{Path: "dir/file", Size: 3<<20 + 5}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put a file")
	h := e.mount(o, settings{})
	file, release := e.holder(h, f)
	expect := func(when string, want ...string) {
		e.Helper()
		var got []string
		for _, m := range h.status().Mounts {
			got = append(got, strings.TrimPrefix(map[bool]string{true: "detached"}[m.Detached]+m.At, e.dir))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			e.Errorf("%s: the status has mounts %q, expected %q", when, got, want)
		}
	}
	hearth := func(code int, says string, args ...string) {
		e.Helper()
		args = append(args, "--node", "unix://"+h.socket())
		if out, got := e.run(e.hearth, args...); got != code || !strings.Contains(out, says) {
			e.Errorf("%v: exit %d, expected %d and %q: %s", args, got, code, says, out)
		}
	}
	again := func() {
		e.Helper()
		hearth(0, "mounted "+h.dir, "mount", "--daemon", "s3://"+o.bucket, h.dir)
		e.must(copyIs(filepath.Join(h.dir, f.Path), f), "mounted again")
	}
	e.must(detach(h.dir), "detach the mount")
	expect("detached", "detached")
	hearth(4, "nothing is mounted at "+h.dir, "umount", h.dir)
	again()
	expect("mounted again", "", "detached")
	hearth(0, "", "umount", "--all")
	expect("taken away", "detached")
	if os.Getuid() == 0 {
		again()
		moved := e.path("moved")
		e.must(os.Mkdir(moved, 0o755), "make a directory")
		e.must(unix.Mount(h.dir, moved, "", unix.MS_MOVE, ""), "move the mount")
		expect("moved", "/moved", "detached")
		hearth(4, "nothing is mounted at "+h.dir, "umount", h.dir)
		again()
		hearth(0, "", "umount", moved)
		e.eventually("the moved mount's end", func() bool { return len(h.status().Mounts) == 2 })
		e.elsewhere(func() { hearth(0, "", "umount", h.dir) })
		e.eventually("the end of what was elsewhere", func() bool { return len(h.status().Mounts) == 1 })
	}
	e.must(release(), "let the last user read")
	if code := file.exit(30 * time.Second); code != 0 {
		e.Errorf("the last user of a detached mount ended with %d: %s", code, file.out)
	}
	e.must(copyIs(e.path("held"), f), "what the last user read")
	if code := h.exit(30 * time.Second); code != 0 || len(mountsBelow(e.dir)) > 0 {
		e.Errorf("the node ended with %d after its last mount's last user, %d mounts are left", code, len(mountsBelow(e.dir)))
	}
}

// elsewhere does something while another mount namespace has all mounts that are here.
func (e *env) elsewhere(do func()) {
	e.Helper()
	cmd := exec.Command("sh", "-c", "mount --make-rprivate / && echo here && exec cat")
	in, err := cmd.StdinPipe()
	e.must(err, "a pipe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	p := e.start(cmd)
	p.waitFor("here")
	do()
	e.must(in.Close(), "let it end")
	p.gone("a process in another mount namespace")
}
