package machine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemoryLimit(t *testing.T) {
	// The smallest of the machine and every cgroup above the process holds, in both versions.
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	machine := int64(info.Totalram) * int64(info.Unit)
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {nil, machine},
		"v2": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/memory.max": "268435456\n"}, 256 << 20},
		"v2 in a container": {map[string]string{"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/memory.max": "134217728\n"}, 128 << 20},
		"v1": {map[string]string{"proc/self/cgroup": "9:name=systemd:/\n4:memory:/p/q\n0::/\n",
			"sys/fs/cgroup/memory/p/q/memory.limit_in_bytes": "536870912\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n"}, 512 << 20},
		"no limit": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, machine},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			p := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := MemoryLimit(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestMountTable(t *testing.T) {
	// What is mounted is read in the mount table, never asked of the mount.
	if kind, err := MountedAt("/proc"); err != nil || kind != "proc" {
		t.Errorf("/proc: %q, %v", kind, err)
	}
	if kind, err := MountedAt(t.TempDir()); err != nil || kind != "" {
		t.Errorf("a directory: %q, %v", kind, err)
	}
}
