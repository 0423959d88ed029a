package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestLimits(t *testing.T) {
	// The limits of memory and processor time are found as machines and containers of both cgroup versions
	// show them. The smallest of all that hold counts, wherever the mount shows them.
	trees, err := filepath.Glob("testdata/limits/*.txt")
	if err != nil || len(trees) == 0 {
		t.Fatal(trees, err)
	}
	for _, tree := range trees {
		t.Run(strings.TrimSuffix(filepath.Base(tree), ".txt"), func(t *testing.T) {
			root := t.TempDir()
			want := hearthtest.Unpack(t, tree, root)
			if len(want) != 4 {
				t.Fatalf("it wants %v", want)
			}
			l := ReadLimits(root)
			if m := ReadLimits(t.TempDir()).Memory; l.Memory == m {
				want["memory"] = strings.Replace(want["memory"], "machine", fmt.Sprint(m), 1)
			}
			for name, got := range map[string]any{"memory": l.Memory, "memory_by": l.MemoryBy, "processors": l.Processors, "processors_by": l.ProcessorsBy} {
				if w := strings.TrimPrefix(want[name], "-"); fmt.Sprint(got) != w {
					t.Errorf("%s is %v, want %q", name, got, w)
				}
			}
		})
	}
}

func TestLimitsOfThisProcess(t *testing.T) {
	// On the machine itself the limit is never more memory than it has, and it names the file that sets it.
	l := ReadLimits("/")
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	if whole := int64(info.Totalram) * int64(info.Unit); l.Memory <= 0 || l.Memory > whole || l.Memory < whole && l.MemoryBy == "" {
		t.Errorf("%+v of a machine of %d bytes", l, whole)
	}
	for _, file := range []string{l.MemoryBy, l.ProcessorsBy} {
		if _, err := os.Stat(file); file != "" && err != nil {
			t.Error(err)
		}
	}
}

func TestMountTable(t *testing.T) {
	// What is mounted is read from the mount table. The mount itself is never asked.
	if kind, err := MountedAt("/proc"); err != nil || kind != "proc" {
		t.Errorf("/proc: %q, %v", kind, err)
	}
	if kind, err := MountedAt(t.TempDir()); err != nil || kind != "" {
		t.Errorf("a directory: %q, %v", kind, err)
	}
}
