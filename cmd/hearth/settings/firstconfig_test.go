package settings

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/node/machine"
)

func TestTextGolden(t *testing.T) {
	// On a machine with disks the fast and roomy ones are taken, and the text says why others are
	// not. The result is a valid configuration.
	f := Found{
		Limits: machine.Limits{Memory: 64 << 30, MemoryBy: "/sys/fs/cgroup/memory.max"}, CacheDir: "/var/cache/hearth",
		Disks: []machine.LocalDisk{
			{Dir: "/nvme0", FileSystem: "xfs", Whole: 4 << 40, Free: 3 << 40},
			{Dir: "/my disk", FileSystem: "ext4", Whole: 1 << 40, Free: 1 << 39},
			{Dir: "/archive", FileSystem: "ext4", Whole: 16 << 40, Free: 9 << 40, Rotating: true},
			{Dir: "/small", FileSystem: "btrfs", Whole: 32 << 30, Free: 8 << 30},
		},
	}
	want, err := os.ReadFile(filepath.Join("testdata", "disks.yaml"))
	if got := f.Text("s3://bucket/prefix"); err != nil || got != string(want) {
		t.Errorf("not what testdata/disks.yaml has (%v):\n%s", err, got)
	}
	s := &Settings{}
	if err := ReadYAML(s, "first", want); err != nil {
		t.Fatal(err)
	}
	if len(s.Cache.Disks) != 2 || s.Cache.Disks[1].Path != "/my disk/hearth" || s.Cache.Disks[1].Size.Percent != 40 || s.Cache.RAM.Percent != 20 {
		t.Errorf("understood as %+v", s)
	}
}

func TestMemoryThatIsTaken(t *testing.T) {
	// A fifth of the memory is taken if that leaves a node room, less on a small machine, and a size
	// that works on the smallest.
	for memory, want := range map[int64]string{64 << 30: "20%", 1 << 30: "20%", 512 << 20: "20%", 256 << 20: "64MiB", 128 << 20: "32MiB"} {
		ram, says := Found{Limits: machine.Limits{Memory: memory}}.memory()
		if ram != want || !strings.Contains(says, "this process may use") {
			t.Errorf("%d MiB: %s (%s), want %s", memory>>20, ram, says, want)
		}
	}
}

func TestWithoutDisks(t *testing.T) {
	// Without a disk of its own the cache lies in the default directory; an origin may hold whatever YAML would read otherwise.
	s := &Settings{}
	text := Found{Limits: machine.Limits{Memory: 8 << 30}, CacheDir: "/home/me/.cache/hearth"}.Text(`s3://b/a: "b" #c`)
	if err := ReadYAML(s, "first", []byte(text)); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if len(s.Cache.Disks) != 1 || s.Cache.Disks[0].Path != "/home/me/.cache/hearth" || s.Cache.Disks[0].Size.Percent != 10 || s.Root.Origin.URL != `s3://b/a: "b" #c` {
		t.Errorf("understood as %+v", s)
	}
}

func TestWrite(t *testing.T) {
	// A file is made with its directory, and one that exists is left as it is.
	file := filepath.Join(t.TempDir(), "etc", "hearth.yaml")
	if err := WriteFirst(file, "one"); err != nil {
		t.Fatal(err)
	}
	if err := WriteFirst(file, "two"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "one" {
		t.Errorf("%q, %v", text, err)
	}
}
