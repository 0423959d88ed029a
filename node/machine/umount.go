package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// MountedAt gives the file system type of what is mounted at dir last, "" if
// nothing is. Only the mount table is read: a mount whose
// process is stuck must not be touched.
func MountedAt(dir string) (string, error) {
	kind := ""
	err := eachMount(func(at, of string) {
		if at == dir {
			kind = of
		}
	})
	return kind, err
}

// eachMount calls f for every line of the mount table, in the order in which the
// mounts were made.
func eachMount(f func(dir, kind string)) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	for line := range strings.Lines(string(table)) {
		left, right, ok := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if ok && len(fields) > 4 {
			kind, _, _ := strings.Cut(right, " ")
			f(unescape(fields[4]), kind)
		}
	}
	return nil
}

// DeadMounts are the directories where a FUSE file system of that type is mounted
// last whose process has died, those made last first. A mount of another user
// cannot be told from one that lives.
func DeadMounts(kind string) ([]string, error) {
	last, order := map[string]string{}, []string{}
	err := eachMount(func(dir, of string) {
		last[dir] = of
		order = append(order, dir)
	})
	var dead []string
	for _, dir := range slices.Backward(order) {
		if last[dir] == kind && isDead(dir) {
			dead = append(dead, dir)
		}
		delete(last, dir)
	}
	return dead, err
}

// deadWait is how long a mount may take to say that it lives: the kernel answers
// for a dead one at once.
const deadWait = 2 * time.Second

// isDead asks a mount for its figures. Nothing waits for the answer for long: its
// process may be stuck, which is not dead.
func isDead(dir string) bool {
	answer := make(chan error, 1)
	go func() {
		var s unix.Statfs_t
		answer <- unix.Statfs(dir, &s)
	}()
	late := time.NewTimer(deadWait)
	defer late.Stop()
	select {
	case err := <-answer:
		return err == unix.ENOTCONN
	case <-late.C:
		return false
	}
}

// unescape undoes the mount table's octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// RealPath frees dir of symbolic links without touching what is mounted on it.
func RealPath(dir string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(dir)), nil
}

// Unmount takes away what is mounted at dir: by umount(2) for root, else by
// fusermount3. lazy detaches it although it is in use.
func Unmount(dir string, lazy bool) error {
	if os.Geteuid() != 0 {
		args := []string{"-u", "--", dir}
		if lazy {
			args = append([]string{"-z"}, args...)
		}
		if text, err := exec.Command("fusermount3", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("unmount %s: %w: %s", dir, err, strings.TrimSpace(string(text)))
		}
		return nil
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	if err := unix.Unmount(dir, flags); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}
