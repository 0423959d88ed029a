package node

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestUnequalFileSystems(t *testing.T) {
	// A floor in percent is of each file system by itself. Beside a far larger file system, a small one
	// keeps its own tenth free, and no more.
	small, large := hearthtest.Tmpfs(t, "size=40m"), t.TempDir()
	n := start(t, bucket(t, nil), func(c *Config) {
		c.Cache.NoDisk, c.Cache.FreeFloor = false, Size{Percent: 10}
		c.Cache.Disks = []Disk{{Path: large, Size: Size{Bytes: 16 << 20}}, {Path: filepath.Join(small, "c"), Size: Size{Percent: 80}}}
	})
	s := n.Status(t.Context())
	if d := s.Tiers[1].Dirs[1]; d.Budget != 32<<20 || d.Full != "" {
		t.Errorf("80 %% of 40 MiB: %+v", d)
	}
	for i, floor := range []int64{n.dirs[0].Floor, 4 << 20} {
		if d := n.disk.Stats().Dirs[i]; d.Floor != floor {
			t.Errorf("floor of %s: %d, want %d", d.Path, d.Floor, floor)
		}
	}
}

func TestFullFileSystem(t *testing.T) {
	// Others have filled the file system of a cache beyond the floor. The cache then promises nothing, at
	// the start and in status, which name the cure. Once there is room, it does.
	full := hearthtest.Tmpfs(t, "size=40m")
	filler := filepath.Join(full, "filler")
	if err := os.WriteFile(filler, make([]byte, 38<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	n := start(t, bucket(t, nil), func(c *Config) {
		c.Cache.NoDisk, c.Cache.Disks = false, []Disk{{Path: filepath.Join(full, "c"), Size: Size{Percent: 50}}}
		c.Log = slog.New(slog.NewTextHandler(&said, nil))
	})
	problem := "nothing can be cached in " + filepath.Join(full, "c") + ": 4.0 MiB of its file system are to stay free; make room there, lower --cache-free-floor, or choose another directory"
	s := n.Status(t.Context())
	if !strings.HasPrefix(s.Says, problem) || s.Tiers[1].Budget != 0 {
		t.Errorf("status says %q, budget %d", s.Says, s.Tiers[1].Budget)
	}
	if !strings.Contains(said.String(), problem) {
		t.Errorf("said at the start:\n%s", said.String())
	}
	if b := n.Banner(); !strings.Contains(b, "/c up to 0 KiB now (of 20.0 MiB: its file system is to keep 4.0 MiB free); RAM") {
		t.Errorf("the first line: %s", b)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return n.Status(t.Context()).Says == "ok" }) {
		t.Errorf("with room again: %+v", n.Status(t.Context()))
	}
	if b := n.Banner(); !strings.Contains(b, "/c up to 20.0 MiB; RAM") {
		t.Errorf("the first line with room: %s", b)
	}
}
