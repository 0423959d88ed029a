package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLocalDisks(t *testing.T) {
	// A cache may lie on a complete file system of a block device that is writable and not the system's own. A
	// device counts once.
	root := t.TempDir()
	for _, dir := range []string{"nvme0", "nvme0-again", "disk", "part", "boot/efi", "nfs", "tmp", "sys/dev/block/8:16/queue", "sys/dev/block/259:0/queue", "sys/dev/block/8:32/queue",
		"sys/dev/block/8:32/sdc1", "proc/self"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"proc/self/mountinfo": `22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:1 /srv /srv rw - ext4 /dev/sda1 rw
24 22 8:2 / /boot/efi rw - ext4 /dev/sda2 rw
25 22 259:0 / /nvme0 rw - xfs /dev/nvme0n1 rw
26 22 259:0 / /nvme0-again rw - xfs /dev/nvme0n1 rw
27 22 8:16 / /disk rw - ext4 /dev/sdb rw
28 22 8:33 / /part rw - btrfs /dev/sdc1 rw
29 22 0:40 / /nfs rw - nfs4 server:/x rw
30 22 0:41 / /tmp rw - tmpfs tmpfs rw
31 22 8:48 / /gone rw - ext4 /dev/sdd rw
32 22 8:64 /inner /bound rw - ext4 /dev/sde rw
`,
		"sys/dev/block/259:0/queue/rotational": "0\n",
		"sys/dev/block/8:16/queue/rotational":  "1\n",
		"sys/dev/block/8:32/queue/rotational":  "1\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("8:32/sdc1", filepath.Join(root, "sys/dev/block/8:33")); err != nil {
		t.Fatal(err)
	}
	found, err := LocalDisks(root)
	if err != nil || len(found) != 3 {
		t.Fatalf("%+v, %v", found, err)
	}
	for i, want := range []LocalDisk{{Dir: "/nvme0", FileSystem: "xfs"}, {Dir: "/disk", FileSystem: "ext4", Rotating: true}, {Dir: "/part", FileSystem: "btrfs", Rotating: true}} {
		got := found[i]
		if got.Whole <= 0 || got.Free < 0 || got.Free > got.Whole {
			t.Errorf("%s: %d of %d bytes free", got.Dir, got.Free, got.Whole)
		}
		got.Whole, got.Free = 0, 0
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
