package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLimits(t *testing.T) {
	// The limits of memory and processor time are found as machines and containers of both versions show them: the smallest of all that hold, wherever the mount shows them.
	trees, err := filepath.Glob("testdata/limits/*.txt")
	if err != nil || len(trees) == 0 {
		t.Fatal(trees, err)
	}
	for _, tree := range trees {
		t.Run(strings.TrimSuffix(filepath.Base(tree), ".txt"), func(t *testing.T) {
			root := t.TempDir()
			want := unpack(t, tree, root)
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

// unpack makes a recorded tree below root and returns what its head wants. The
// names in it, such as those with a colon, are no names of files in a Go module.
func unpack(t *testing.T, tree, root string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(tree)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^want (\S+) (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		want[m[1]] = m[2]
	}
	marks := regexp.MustCompile(`(?m)^-- (.+) --\n`).FindAllStringSubmatchIndex(string(text), -1)
	for i, m := range marks {
		end := len(text)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		p := filepath.Join(root, string(text[m[2]:m[3]]))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, text[m[1]:end], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if len(want) != 4 || len(marks) < 2 {
		t.Fatalf("%s: wants %v, %d files", tree, want, len(marks))
	}
	return want
}

func TestLimitsOfThisProcess(t *testing.T) {
	// On the machine itself: never more memory than it has, and a limit names the file that it was read in.
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
	// What is mounted is read in the mount table, never asked of the mount.
	if kind, err := MountedAt("/proc"); err != nil || kind != "proc" {
		t.Errorf("/proc: %q, %v", kind, err)
	}
	if kind, err := MountedAt(t.TempDir()); err != nil || kind != "" {
		t.Errorf("a directory: %q, %v", kind, err)
	}
}
