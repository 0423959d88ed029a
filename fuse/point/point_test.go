package point

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const kind = "fuse.hearth"

// TestMain has the tests run in a mount namespace of their own, or is the server that a test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(roleEnv); dir != "" {
		if err := fakeServer(dir); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
	if os.Geteuid() != 0 || os.Getenv("HEARTH_TEST_APART") != "" {
		goleak.VerifyTestMain(m)
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "HEARTH_TEST_APART=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		panic(err)
	}
}

// files is a tmpfs with a victim that no test may take away, at victim/b, a FUSE mount of
// a process that has died, at u/a/b, and in u what its owner puts into the place of u/a.
func files(t *testing.T) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts as root")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mount := func(kind, at, data string) {
		t.Helper()
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("test", at, kind, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	}
	mount("tmpfs", dir, "")
	mount("tmpfs", filepath.Join(dir, "victim/b"), "")
	if err := os.MkdirAll(filepath.Join(dir, "u/a"), 0o755); err != nil {
		t.Fatal(err)
	}
	deadMount(t, filepath.Join(dir, "u/a/b"), 0)
	return dir
}

// deadMount is one of a user whose process has died.
func deadMount(t *testing.T, at string, uid int) {
	t.Helper()
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	defer unix.Close(fd)
	if err := unix.Mount("test", at, kind, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=0,allow_other", fd, uid)); err != nil {
		t.Fatal(err)
	}
}

// count is how many mounts of a type stand.
func count(t *testing.T, kind string) int {
	t.Helper()
	all, err := All(kind)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func held(t *testing.T, dir string) *Point {
	t.Helper()
	p, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// swap is what the owner of u does: u/a leads to the victim from now on.
func swap(t *testing.T, dir string) {
	t.Helper()
	if err := os.Rename(filepath.Join(dir, "u/a"), filepath.Join(dir, "u/a2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "victim"), filepath.Join(dir, "u/a")); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasSeenGoes(t *testing.T) {
	// A mount is looked at, and then its owner has the path lead to another's: whatever way it
	// is taken away, that one stays, and the one that was seen goes.
	for name, act := range map[string]func(*Point) error{"detach": (*Point).Detach, "unmount": (*Point).Unmount, "force": (*Point).Force} {
		t.Run(name, func(t *testing.T) {
			dir := files(t)
			p := held(t, filepath.Join(dir, "u/a/b"))
			if p.Info == nil || p.Info.FSType != kind || !p.Own() {
				t.Fatalf("%+v", p.Info)
			}
			var s unix.Statfs_t
			if err := unix.Statfs(p.Top(), &s); err != unix.ENOTCONN {
				t.Errorf("the dead mount answers %v", err)
			}
			ours, theirs := count(t, kind), count(t, "tmpfs")
			swap(t, dir)
			if err := act(p); err != nil {
				t.Error(err)
			}
			if name == "force" {
				p.Close() // it cuts the connection, and the mount stays while it is held
			} else if count(t, kind) != ours-1 {
				t.Error("what was seen is still mounted")
			}
			if count(t, "tmpfs") != theirs {
				t.Error("the victim is unmounted")
			}
			if _, err := Open(t.Context(), filepath.Join(dir, "u/a/b")); !errors.Is(err, unix.ENOTDIR) {
				t.Errorf("a way with a link in it is walked: %v", err)
			}
		})
	}
}

func TestMountsOverWhatWasSeen(t *testing.T) {
	// A directory is looked at, and then its owner has the path lead to the victim: the
	// mount is not made there, nor left where nobody looks for it.
	dir := files(t)
	at := filepath.Join(dir, "u/a/free")
	for _, d := range []string{at, filepath.Join(dir, "victim/free")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := held(t, at)
	if p.Info != nil || p.Detach() == nil {
		t.Errorf("a directory is taken for a mount: %+v", p.Info)
	}
	if err := p.Mount("good", "tmpfs", 0, ""); err != nil || p.Info == nil || p.Info.Source != "good" || p.Info.Mountpoint != at {
		t.Errorf("%+v, %v", p.Info, err)
	}
	if err := p.Detach(); err != nil {
		t.Error(err)
	}
	p = held(t, at)
	before := count(t, "tmpfs")
	swap(t, dir)
	if err := p.Mount("late", "tmpfs", 0, ""); err == nil || count(t, "tmpfs") != before {
		t.Errorf("mounted where the path led before: %v", err)
	}
}

func TestOthersAreDetachedAlone(t *testing.T) {
	// Another user can take their mount away between the look and the act, and what lay
	// below would go in its place: so theirs is not unmounted by name, and a detach that
	// comes too late takes nothing.
	dir := files(t)
	at := filepath.Join(dir, "victim/b") // a file system in which the user may mount
	deadMount(t, at, 65534)
	before := count(t, "tmpfs")
	if p := held(t, at); p.Own() || !errors.Is(p.Unmount(), ErrOthers) {
		t.Errorf("unmounted: %+v", p.Info)
	}
	p := held(t, at)
	if err := unix.Unmount(at, unix.MNT_DETACH); err != nil { // as fusermount3 does for the user
		t.Fatal(err)
	}
	if err := p.Detach(); err == nil || count(t, "tmpfs") != before {
		t.Errorf("too late: %v, %d of %d mounts stand", err, count(t, "tmpfs"), before)
	}
}

func TestWaysThatLeadNowhere(t *testing.T) {
	// What is no clean path below / is not walked, nor what is not there; a context that
	// has ended does not keep a descriptor open.
	for _, dir := range []string{"/", "", "rel/path", "/a/../b", "/a/", "/nowhere/at/all", "/dev/null/x", "/proc/self/cwd", "/proc/self/status"} {
		if p, err := Open(t.Context(), dir); err == nil {
			p.Close()
			t.Errorf("%q is held", dir)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if p, err := Open(ctx, t.TempDir()); err == nil {
			p.Close()
		}
	}
}

func TestAnAutomountPointIsNotTriggered(t *testing.T) {
	// systemd starts us to mount where its automount point waits for that: a look that had it
	// mounted would wait for itself. A step on the way does have it mounted.
	dir := files(t)
	at := filepath.Join(dir, "auto")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	asked, asks, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = asked.Close() }()
	defer func() { _ = asks.Close() }()
	waits := exec.Command("cat") // whose process group is systemd's
	waits.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := waits.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close(); _ = waits.Wait() }()
	if err := unix.Mount("systemd-1", at, "autofs", 0, fmt.Sprintf("fd=%d,pgrp=%d,minproto=5,maxproto=5,direct", asks.Fd(), waits.Process.Pid)); err != nil {
		t.Skip("no autofs here: ", err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p, err := Open(ctx, at)
	if err != nil || p.Info == nil || p.Info.FSType != "autofs" {
		t.Fatalf("%+v, %v", p, err)
	}
	if err := p.Mount("ours", "tmpfs", 0, ""); err != nil || p.Info.Source != "ours" {
		t.Errorf("%+v, %v", p.Info, err)
	}
	if err := p.Detach(); err != nil {
		t.Error(err)
	}
	p.Close()
}

func TestAHandedPointIsMountedOver(t *testing.T) {
	// Whoever may walk to an automount point hands its descriptor to who mounts there without
	// walking, and who finds in the table what came. It holds what is below that, so it
	// takes nothing away. What is no directory is no mount point.
	dir := files(t)
	at := filepath.Join(dir, "auto")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	asked, asks, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = asked.Close() }()
	defer func() { _ = asks.Close() }()
	if err := unix.Mount("systemd-1", at, "autofs", 0, fmt.Sprintf("fd=%d,minproto=5,maxproto=5,direct", asks.Fd())); err != nil {
		t.Skip("no autofs here: ", err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
	p := hold(t, at)
	if !p.Automount() || p.Dir() != at {
		t.Errorf("%s is no automount point: %+v", p.Dir(), p.Info)
	}
	f, err := p.File()
	if err != nil {
		t.Fatal(err)
	}
	handed, err := Of(f)
	if err != nil || handed.Dir() != at || !handed.Automount() {
		t.Fatalf("%+v, %v", handed, err)
	}
	defer handed.Close()
	if err := handed.Mount("ours", "tmpfs", 0, ""); err != nil || handed.Info.Source != "ours" || handed.Info.Mountpoint != at {
		t.Errorf("%+v, %v", handed.Info, err)
	}
	if err := handed.Detach(); err == nil {
		t.Error("the automount point was taken away")
	}
	over := hold(t, at)
	if over.Automount() || over.Info.Source != "ours" {
		t.Errorf("%+v", over.Info)
	}
	if err := over.Detach(); err != nil {
		t.Error(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := Of(null); !errors.Is(err, unix.ENOTDIR) {
		p.Close()
		t.Errorf("a device is held: %v", err)
	}
}

// hold opens a point until the test ends.
func hold(t *testing.T, dir string) *Point {
	t.Helper()
	p, err := Open(t.Context(), dir)
	if err != nil || p.Info == nil {
		t.Fatalf("%s: %+v, %v", dir, p, err)
	}
	t.Cleanup(p.Close)
	return p
}
