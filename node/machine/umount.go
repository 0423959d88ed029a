package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MountedAt gives the file system type of what is mounted at dir last, "" if
// nothing is. Only the mount table is read: a mount whose
// process is stuck must not be touched.
func MountedAt(dir string) (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("read the mount table: %w", err)
	}
	kind := ""
	for line := range strings.Lines(string(table)) {
		left, right, ok := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if ok && len(fields) > 4 && unescape(fields[4]) == dir {
			kind, _, _ = strings.Cut(right, " ")
		}
	}
	return kind, nil
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
