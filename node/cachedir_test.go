package node

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRAMBudget(t *testing.T) {
	// A tenth, between 64 MiB and 4 GiB, unless a size or a share is asked for.
	for _, c := range []struct {
		s           Size
		limit, want int64
	}{
		{Size{}, 8 << 30, (8 << 30) / 10},
		{Size{}, 128 << 20, 64 << 20},
		{Size{}, 1 << 40, 4 << 30},
		{Size{Percent: 50}, 1 << 30, 512 << 20},
		{Size{Bytes: 100 << 20}, 1 << 30, 100 << 20},
	} {
		if got := ramBudget(c.s, c.limit); got != c.want {
			t.Errorf("%+v of %d: %d, want %d", c.s, c.limit, got, c.want)
		}
	}
}

func TestCacheDirs(t *testing.T) {
	// A directory gets a tenth of its file system, and its last tenth stays free, unless told.
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	p := filepath.Join(t.TempDir(), "new", "cache")
	dirs, err := cacheDirs(Cache{Disks: []Disk{{Path: p}, {Path: p + "2", Size: Size{Bytes: 5 << 20}}}, FreeFloor: Size{Bytes: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p, &fs); err != nil {
		t.Fatal(err)
	}
	whole := int64(fs.Blocks) * fs.Bsize
	if dirs[0] != (directory{p, whole / 10, 1}) || dirs[1] != (directory{p + "2", 5 << 20, 1}) {
		t.Errorf("%+v of %d", dirs, whole)
	}
	if none, err := cacheDirs(Cache{NoDisk: true}); err != nil || none != nil {
		t.Error(none, err)
	}
}
