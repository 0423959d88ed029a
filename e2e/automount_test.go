package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// automount has an automounter wait for the mount, as systemd does for x-systemd.automount: until the
// helper has ended, the kernel lets nobody to the mount point but its process group. So the
// first reader is answered where the helper starts a node, and where a node of another group
// runs already; and again once the mount was taken away. A mount that fails is an error for
// the reader, and no wait.
func automount(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(2, 20))
	helper, dir, config := e.path("mount.hearth"), e.path("auto"), e.writeConfig(o, settings{})
	e.must(os.Symlink(e.hearth, helper), "make fstab's helper")
	e.must(os.Mkdir(dir, 0o755), "make the mount point")
	a := e.automounter(dir, func(bucket string) *exec.Cmd {
		cmd := exec.CommandContext(e.ctx, helper, "s3://"+bucket, dir, "-o", "ro,_netdev,x-systemd.automount,config="+config)
		cmd.Env = e.environ(o)
		return cmd
	})
	umount := func(when string) {
		e.Helper()
		if out, code := e.run(e.hearth, "umount", "--config", config, dir); code != 0 {
			e.Errorf("umount %s: exit %d: %s", when, code, out)
		}
	}
	round := func(when string, seed uint64) {
		e.Helper()
		if out, err := e.stranger("ls", dir); err != nil || len(strings.Fields(out)) == 0 {
			e.Fatalf("%s, the first reader: %v: %s", when, err, out)
		}
		e.good(when, epoch(dir, list, seed, 2, 0))
	}
	a.bucket <- o.bucket + "/no/such/prefix"
	if out, err := e.stranger("ls", dir); err == nil {
		e.Errorf("a mount that cannot be made shows %q", out)
	}
	a.bucket <- o.bucket
	round("by a node that the helper starts", 1)
	umount("of the helper's node")
	e.eventually("the end of the helper's node", func() bool { return len(e.daemons(config)) == 0 })

	up := exec.Command(e.hearth, "up", "--config", config)
	up.Env, up.SysProcAttr = e.environ(o), &syscall.SysProcAttr{Setpgid: true}
	p := e.start(up)
	p.waitFor("serving at")
	a.bucket <- o.bucket
	round("by a node that runs", 2)
	if running := e.daemons(config); len(running) != 1 {
		e.Errorf("%d nodes serve one mount", len(running))
	}
	umount("of the running node")
	a.bucket <- o.bucket
	round("again", 3)
	umount("again")
	if code := p.terminate(syscall.SIGTERM); code != 0 {
		e.Errorf("the node ended with %d", code)
	}
}

// stranger runs a program in a process group of its own.
func (e *env) stranger(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(e.ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// autofs is a direct automount point whose process group is that of the tests.
type autofs struct {
	bucket chan string // what the next access has mounted
}

// automounter has mount run at each first access to dir, and tells the kernel how it ended.
func (e *env) automounter(dir string, mount func(bucket string) *exec.Cmd) *autofs {
	e.Helper()
	asked, asks, err := os.Pipe()
	e.must(err, "make a pipe")
	defer func() { _ = asks.Close() }() // the kernel has its own
	e.must(unix.Mount("systemd-1", dir, "autofs", 0, fmt.Sprintf("fd=%d,minproto=5,maxproto=5,direct", asks.Fd())), "mount autofs")
	root, err := os.Open(dir)
	e.must(err, "open the automount point")
	a := &autofs{bucket: make(chan string, 1)}
	done := make(chan struct{})
	e.Cleanup(func() {
		_ = asked.Close()
		<-done
		_ = root.Close()
	})
	go func() {
		defer close(done)
		for packet := make([]byte, 512); ; {
			if n, err := asked.Read(packet); err != nil || n < 12 { // linux/auto_fs.h: version, kind, token
				return
			}
			answer := uint(0x9361) // AUTOFS_IOC_FAIL
			select {
			case bucket := <-a.bucket:
				if out, err := mount(bucket).CombinedOutput(); err == nil {
					answer = 0x9360 // AUTOFS_IOC_READY
				} else {
					e.Logf("the helper: %v: %s", err, out)
				}
			default: // nobody is to come
				e.Error("the automount point was asked for once more")
			}
			if err := unix.IoctlSetInt(int(root.Fd()), answer, int(binary.NativeEndian.Uint32(packet[8:]))); err != nil {
				e.Errorf("tell the kernel: %v", err)
			}
		}
	}()
	return a
}
