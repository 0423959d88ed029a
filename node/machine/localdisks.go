package machine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LocalDisk is a file system on a block device of this machine, with sizes in bytes.
type LocalDisk struct {
	Dir, FileSystem string
	Whole, Free     int64
	// Rotating means that the device has moving parts.
	Rotating bool
}

// LocalDisks returns the file systems, other than the system's own, that a cache may lie on. Each is a complete
// file system of a block device, and this process may write to it. Each device appears once, in the order of
// the mount table. root is the directory that holds /proc and /sys, which is "/" except in tests.
func LocalDisks(root string) (found []LocalDisk, err error) {
	var system string
	seen := map[string]bool{}
	err = eachMount(root, func(m tableEntry) {
		if m.dir == "/" {
			system = m.device
		}
		all := m.root == "/" || m.kind == "btrfs" // the root of a btrfs subvolume has a name
		if !slices.Contains([]string{"ext4", "xfs", "btrfs", "f2fs"}, m.kind) || !all || within(m.dir, "/boot") ||
			m.device == system || seen[m.device] || unix.Access(filepath.Join(root, m.dir), unix.W_OK|unix.X_OK) != nil {
			return
		}
		var st unix.Statfs_t
		if unix.Statfs(filepath.Join(root, m.dir), &st) != nil {
			return
		}
		seen[m.device] = true
		found = append(found, LocalDisk{Dir: m.dir, FileSystem: m.kind, Whole: whole(&st),
			Free: int64(st.Bavail) * st.Bsize, Rotating: rotating(root, m.device)})
	})
	return found, err
}

// rotating reports whether a device has moving parts. For a partition it asks the device that the partition is
// on.
func rotating(root, device string) bool {
	for _, queue := range []string{"queue", "../queue"} {
		dir, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", device))
		if err != nil {
			return false
		}
		if text, err := os.ReadFile(filepath.Join(dir, queue, "rotational")); err == nil {
			return strings.TrimSpace(string(text)) == "1"
		}
	}
	return false
}
