package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/node/admin"
)

const ourKind = "fuse.hearth"

// apart runs the test again in a process with a mount namespace of its own. true means that this is that
// process.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv("HEARTH_TEST_APART") != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("mounts as root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "HEARTH_TEST_APART=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// fuseMount is a FUSE mount of a user, whose process answers nothing until end kills it.
func fuseMount(t *testing.T, at string, uid int) (end func()) {
	t.Helper()
	if err := os.MkdirAll(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // of a dead mount nobody knows that it is one
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	if err := unix.Mount("test", at, ourKind, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=0,allow_other", fd, uid)); err != nil {
		t.Fatal(err)
	}
	return func() { unix.Close(fd) }
}

// mountedHere lists the mounts below a directory.
func mountedHere(t *testing.T, dir string) (all []string) {
	t.Helper()
	if err := eachMount("/", func(m tableEntry) {
		if rest, below := strings.CutPrefix(m.dir, dir+"/"); below {
			all = append(all, rest)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func ownTmpfs(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, filepath.Join(dir, "victim/b")} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("test", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	}
	return dir
}

func TestDeadMountsGo(t *testing.T) {
	// Root's and a user's dead mounts, one over the other, are all taken away. A stuck mount and a victim stay,
	// although the user made a dead mount's path lead to the victim while the stuck one was asked.
	if !apart(t) {
		return
	}
	dir := ownTmpfs(t)
	for _, at := range []string{"root", "root", "u/a/b"} {
		fuseMount(t, filepath.Join(dir, at), map[string]int{"u/a/b": 65534}[at])()
	}
	defer fuseMount(t, filepath.Join(dir, "u/c"), 65534)()
	done := make(chan []error)
	go func() {
		found, failed := UnmountDead(ourKind)
		if found != 3 {
			failed = append(failed, fmt.Errorf("%d were found", found))
		}
		done <- failed
	}()
	// UnmountDead waits for the stuck mount, which was made last.
	if err := os.Rename(filepath.Join(dir, "u/a"), filepath.Join(dir, "u/a2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "victim"), filepath.Join(dir, "u/a")); err != nil {
		t.Fatal(err)
	}
	failed := <-done
	// If it had read the table before the swap, it has left that mount alone.
	if left := mountedHere(t, dir); strings.Join(left, " ") == "victim/b u/a2/b u/c" {
		_, failed = UnmountDead(ourKind)
	}
	if left := mountedHere(t, dir); strings.Join(left, " ") != "victim/b u/c" {
		t.Errorf("mounted are %q", left)
	}
	for _, err := range failed {
		t.Error(err)
	}
}

func TestUnmountByName(t *testing.T) {
	// A mount of ours is taken away by its path, also by a link to its parent. A mount of another type, a plain
	// directory, a missing path and another user's live mount are refused, each with its own message.
	if !apart(t) {
		return
	}
	dir := ownTmpfs(t)
	own, others := filepath.Join(dir, "own"), filepath.Join(dir, "others")
	defer fuseMount(t, own, 0)()
	defer fuseMount(t, others, 65534)()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]admin.Kind{"victim/b": admin.KindRefused, "others": admin.KindRefused, "victim": admin.KindNotFound, "none": admin.KindNotFound, "link": admin.KindNotFound} {
		if err := Unmount(filepath.Join(dir, at), ourKind, false); admin.KindOf(err) != want {
			t.Errorf("%s: %v, not %s", at, err, want)
		}
	}
	if err := Unmount(filepath.Join(dir, "none/below"), ourKind, true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	for _, at := range []string{"link/own", "others"} {
		if err := Unmount(filepath.Join(dir, at), ourKind, true); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	if left := mountedHere(t, dir); strings.Join(left, " ") != "victim/b" {
		t.Errorf("mounted are %q", left)
	}
}
