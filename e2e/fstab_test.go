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
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fstab mounts by mount(8) and a line of /etc/fstab as the manual has it, with the
// options that such lines have; umount(8) ends the mount and the process behind it.
func fstab(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(2, 20))
	dir, boot, written, config := e.path("mnt"), e.path("boot"), e.path("written"), e.writeConfig(o, settings{})
	e.must(errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(boot, 0o755), os.Mkdir(written, 0o755)), "make the mount points")
	line := func(dir, options string) string {
		return fmt.Sprintf("s3://%s  %s  hearth  %s,config=%s  0 0\n", o.bucket, dir, options, config)
	}
	table := e.path("fstab")
	text := line(dir, "ro,noauto,nofail,_netdev,noatime,allow_other,x-systemd.automount,x-systemd.mount-timeout=30") +
		line(boot, "defaults,_netdev,nodev,nosuid,noexec,comment=data") + line(written, "rw,noauto,_netdev")
	e.must(os.WriteFile(table, []byte(text), 0o644), "write the table")
	e.private("/run") // where mount(8) notes what the kernel does not
	e.showIn("/etc", "fstab", table)
	e.showIn("/usr/sbin", "mount.hearth", e.hearth)

	if out := e.mount8(o, "mount", dir); strings.Contains(out, "warning: ") {
		e.Errorf("of a mount that is as it was asked for, it is said: %s", out)
	}
	if m := mountsBelow(dir); len(m) != 1 || m[0].kind != "fuse.hearth" {
		e.Fatalf("mount(8) made the mounts %v", m)
	}
	e.good("mounted by mount(8)", epoch(dir, list, 1, 2, 0))
	if out := e.mount8(o, "findmnt", "-n", "-o", "SOURCE", dir); strings.TrimSpace(out) != "s3://"+o.bucket {
		e.Errorf("findmnt shows the source %q", out)
	}
	for _, stands := range []bool{false, true} { // as the machine does when it starts; the second time all stands already
		// The second entry says neither ro nor rw, so that mount(8) asks for rw.
		if out := e.mount8(o, "mount", "-a"); strings.Contains(out, "rw: mount(8) asks for it where nobody has") == stands {
			e.Errorf("mount -a says: %s", out)
		}
		if m := mountsBelow(boot); len(m) != 1 {
			e.Fatalf("mount -a made the mounts %v", m)
		}
	}
	if out, code := e.run(e.hearth, "mount", "-o", "rw", "--write", "off", "--config", config, "s3://"+o.bucket, e.dir); code != 2 || !strings.Contains(out, "exclude each other") {
		e.Errorf("rw and ro at once: exit %d: %s", code, out)
	}
	e.mount8(o, "mount", written)
	if out := e.mount8(o, "findmnt", "-n", "-o", "OPTIONS", written); !strings.Contains(out, "rw,") {
		e.Errorf("findmnt shows the options %q of an entry that says rw", out)
	}
	e.must(os.WriteFile(filepath.Join(written, "new"), []byte("new"), 0o644), "write a file")
	if text := e.object(o, "new"); string(text) != "new" {
		e.Errorf("the bucket has %q", text)
	}
	e.mount8(o, "umount", written)
	e.good("mounted by mount -a", epoch(boot, list, 2, 2, 0))
	if out := e.mount8(o, "findmnt", "-n", "-o", "OPTIONS", boot); !strings.Contains(out, "noexec") || !strings.Contains(out, "ro,") {
		e.Errorf("findmnt shows the options %q", out)
	}
	if running := e.daemons(config); len(running) != 1 {
		e.Errorf("%d processes serve the two entries, expected the first one's alone", len(running))
	}
	e.mount8(o, "umount", dir)
	e.good("while the other entry is gone", epoch(boot, list, 3, 2, 0))
	e.mount8(o, "umount", boot)
	e.eventually("the end of the process", func() bool { return len(e.daemons(config)) == 0 })
	if m := mountsBelow(e.path("mnt")); len(m) > 0 {
		e.Errorf("left mounted: %v", m)
	}
	e.atOnce(o, config)
}

// atOnce has lines mounted at once, as systemd does: one node serves them all.
func (e *env) atOnce(o *server, config string) {
	e.Helper()
	var all sync.WaitGroup
	var dirs []string
	for i := range 4 {
		dir := e.path(fmt.Sprint("at-once-", i))
		e.must(os.Mkdir(dir, 0o755), "make a mount point")
		dirs = append(dirs, dir)
		all.Go(func() {
			cmd := exec.CommandContext(e.ctx, "/usr/sbin/mount.hearth", "s3://"+o.bucket, dir, "-o", "ro,config="+config)
			cmd.Env = e.environ(o)
			if out, err := cmd.CombinedOutput(); err != nil {
				e.Errorf("at once with others: %v: %s", err, out)
			}
		})
	}
	all.Wait()
	if m := mountsBelow(dirs...); len(m) != len(dirs) {
		e.Errorf("there are %d mounts, expected %d", len(m), len(dirs))
	}
	// Whoever came second and handed its mount on says so to its helper, and then ends.
	e.eventually("one process that serves them all", func() bool { return len(e.daemons(config)) == 1 })
	for _, dir := range dirs {
		e.mount8(o, "umount", dir)
	}
	e.eventually("the end of their process", func() bool { return len(e.daemons(config)) == 0 })
}

// mount8 runs a program of util-linux as the machine does when it starts: without
// HOME. It must end with 0.
func (e *env) mount8(o *server, name string, args ...string) string {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, name, args...)
	for _, v := range e.environ(o) {
		if !strings.HasPrefix(v, "HOME=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// daemons are the processes whose command line names the file, less the keepers of others of them.
func (e *env) daemons(file string) (pids []int) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	e.must(err, "list the processes")
	for _, l := range lines {
		if text, err := os.ReadFile(l); err == nil && strings.Contains(string(text), file) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			e.must(err, "number a process")
			pids = append(pids, pid)
		}
	}
	all := slices.Clone(pids)
	return slices.DeleteFunc(pids, func(pid int) bool {
		return slices.ContainsFunc(childrenOf(pid), func(child int) bool { return slices.Contains(all, child) })
	})
}

// private puts an empty directory of the scenario's in the place of one of the
// machine's, for the tests' mount namespace alone and until the scenario ends.
func (e *env) private(dir string) {
	e.Helper()
	e.count++
	own := e.path(fmt.Sprintf("private-%d", e.count))
	e.must(os.Mkdir(own, 0o755), "make a directory to stand at %s", dir)
	e.must(unix.Mount(own, dir, "", unix.MS_BIND, ""), "show it at %s", dir)
	e.Cleanup(func() {
		if err := detach(dir); err != nil {
			e.Errorf("take the directory at %s away: %v", dir, err)
		}
	})
}

// showIn shows a file under a name in one of the machine's directories, to the
// tests' mount namespace alone and until the scenario ends: in the directory's
// place stands another one, with links to what is in the machine's.
func (e *env) showIn(dir, name, file string) {
	e.Helper()
	e.count++
	behind, shown := e.path(fmt.Sprintf("behind-%d", e.count)), e.path(fmt.Sprintf("shown-%d", e.count))
	e.must(errors.Join(os.Mkdir(behind, 0o755), os.Mkdir(shown, 0o755)), "make directories for %s", dir)
	e.must(unix.Mount(dir, behind, "", unix.MS_BIND, ""), "show %s elsewhere", dir)
	// Read-only, so that nothing that clears the scenario's directory gets at it.
	if err := unix.Mount("", behind, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		e.Fatalf("show %s read-only: %v", dir, errors.Join(err, unix.Unmount(behind, 0)))
	}
	entries, err := os.ReadDir(behind)
	e.must(err, "read %s", dir)
	for _, x := range entries {
		target := filepath.Join(behind, x.Name())
		if to, err := os.Readlink(target); err == nil {
			target = to // seen from the same place
		}
		if x.Name() != name {
			e.must(os.Symlink(target, filepath.Join(shown, x.Name())), "link to %s", x.Name())
		}
	}
	e.must(os.Symlink(file, filepath.Join(shown, name)), "link to %s", file)
	e.must(unix.Mount(shown, dir, "", unix.MS_BIND, ""), "show a file in %s", dir)
	e.Cleanup(func() {
		if err := errors.Join(detach(dir), detach(behind)); err != nil {
			e.Errorf("take away what stands in the place of %s: %v", dir, err)
		}
	})
}
