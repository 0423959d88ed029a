package machine

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestRAM(t *testing.T) {
	// The budget is a tenth of the memory, between 64 MiB and 4 GiB, or a quarter where that is less. A
	// configured size or share that fits replaces it. If it does not fit, the line names both limits and
	// the cure.
	for _, c := range []struct {
		s           Size
		limit, want int64
		tight       bool
	}{
		{Size{}, 8 << 30, (8 << 30) / 10, false},
		{Size{}, 400 << 20, 64 << 20, false},
		{Size{}, 256 << 20, 64 << 20, true},
		{Size{}, 128 << 20, 32 << 20, true},
		{Size{}, 32 << 20, 16 << 20, true},
		{Size{}, 1 << 40, 4 << 30, false},
		{Size{Percent: 50}, 1 << 30, 512 << 20, false},
		{Size{Bytes: 100 << 20}, 1 << 30, 100 << 20, false},
		{Size{Bytes: 1 << 30}, 1<<30 + 64<<20, 1 << 30, true},
	} {
		l := Limits{Memory: c.limit, MemoryBy: "/sys/fs/cgroup/memory.max"}
		got, err := RAM(c.s, l)
		if got != c.want || err != nil {
			t.Errorf("%+v of %d: %d, %v, want %d", c.s, c.limit, got, err, c.want)
		}
		if text := Tight(got, l); (text != "") != c.tight || c.tight && !strings.Contains(text, "(/sys/fs/cgroup/memory.max)") {
			t.Errorf("%+v of %d: %q", c.s, c.limit, text)
		}
	}
	_, err := RAM(Size{Bytes: 1 << 30}, Limits{Memory: 1 << 30, MemoryBy: "/sys/fs/cgroup/memory.max"})
	if want := "cache.ram is 1.0 GiB, and a node needs 64.0 MiB beside it, but this process may use 1.0 GiB (/sys/fs/cgroup/memory.max): lower cache.ram"; !errors.Is(err, ErrUnfit) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("more than there is: %v", err)
	}
	if _, err = RAM(Size{Percent: 100}, Limits{Memory: 1 << 30}); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), "all that the machine has") {
		t.Errorf("all of the machine: %v", err)
	}
}

// plenty is a machine with far more memory than a test's directories need.
func plenty() Limits { return Limits{Memory: 1 << 40} }

func TestMake(t *testing.T) {
	// A directory gets a tenth of its file system, and the last tenth of that stays free, unless configured
	// otherwise.
	p := filepath.Join(t.TempDir(), "new", "cache")
	dirs, err := Make([]Disk{{Path: p}, {Path: p + "2", Size: Size{Bytes: 5 << 20}}}, Size{Bytes: 1}, 0, plenty())
	if err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p, &fs); err != nil {
		t.Fatal(err)
	}
	whole := int64(fs.Blocks-fs.Bfree+fs.Bavail) * fs.Bsize
	if d := dirs[0]; d.Path != p || d.Budget != whole/10 || d.Floor != 1 || d.FileSystem == "" {
		t.Errorf("%+v of %d", d, whole)
	}
	if d := dirs.At(p + "2"); d.Budget != 5<<20 || d.Floor != 1 {
		t.Errorf("%+v of %d", d, whole)
	}
	if dirs, err = Make([]Disk{{Path: p}}, Size{}, 0, plenty()); err != nil || dirs[0].Budget != whole/10 || dirs[0].Floor != whole/10 {
		t.Errorf("told nothing: %+v of %d, %v", dirs, whole, err)
	}
}

func TestWhatIsReservedIsNotShared(t *testing.T) {
	// Of 250 GiB, 160 are reserved for another user, as ext4 can: a tenth is that of the other 90.
	st := unix.Statfs_t{Bsize: 4096, Blocks: 250 << 18, Bfree: 240 << 18, Bavail: 80 << 18}
	if got := whole(&st); got != 90<<30 {
		t.Errorf("%d GiB, want 90", got>>30)
	}
}

func TestMemoryAsADisk(t *testing.T) {
	// Directories on a tmpfs share what the RAM budget leaves of the memory, and say so. A directory beside
	// them on a disk is not changed.
	tmpfs := hearthtest.Tmpfs(t, "size=512m")
	disks := []Disk{{Path: tmpfs + "/a", Size: Size{Bytes: 200 << 20}}, {Path: tmpfs + "/b", Size: Size{Bytes: 200 << 20}},
		{Path: filepath.Join(t.TempDir(), "disk"), Size: Size{Bytes: 200 << 20}}}
	limits := Limits{Memory: 64<<20 + Beside + 300<<20, MemoryBy: "/sys/fs/cgroup/memory.max"}
	dirs, err := Make(disks, Size{Bytes: 1}, 64<<20, limits)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		budget int64
		note   string
	}{
		{200 << 20, "/a lies on a tmpfs: what it holds is memory, and counts against the 556.0 MiB that this process may use (/sys/fs/cgroup/memory.max); to spare that, choose a directory on a disk"},
		{100 << 20, "so it gets 100.0 MiB instead of 200.0 MiB; choose a directory on a disk (--cache-disks PATH=SIZE), or raise the limit"},
		{200 << 20, ""},
	} {
		if d := dirs[i]; d.Budget != want.budget || !strings.Contains(d.Note, want.note) || (d.FileSystem == "tmpfs") != (want.note != "") {
			t.Errorf("%+v, want %+v", d, want)
		}
	}
	limits.Memory = 64 << 20
	if dirs, err = Make(disks[:1], Size{Bytes: 1}, 64<<20, limits); err != nil || dirs[0].Budget != leastDisk {
		t.Errorf("where nothing is left: %+v, %v", dirs, err)
	}
}
