package hearthtest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Tmpfs mounts a small file system with options such as "size=24m" until the test ends. It skips
// the test if the process may not mount.
func Tmpfs(t *testing.T, options string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("hearthtest", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}
