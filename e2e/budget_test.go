package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// budgets reads ten times both budgets through a node in a memory cgroup: its
// memory and its disk stay within what was configured, and every byte is right.
func budgets(e *env) {
	const ram = 64 << 20
	disk := map[level]int64{core: 48 << 20, all: 128 << 20, full: 256 << 20}[e.level]
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	small := set.Reduced(100, int(disk*6/100/(110<<10))+1)
	list := e.load(o, small)
	large := hearthtest.File{Path: "large/one", Size: disk * 4}
	e.must(o.PutFile(e.ctx, o.bucket, "", large, 0), "put a large object")
	list = append(list, large)
	if got := sum(list); got < 9*disk || got < 5*ram {
		e.Fatalf("the data, %d bytes, is too small", got)
	}
	group := e.cgroup(ram + (256+512)<<20) // the limit leaves room for the page cache that is charged to it
	h := e.mount(o, settings{ram: "64MiB", disk: strconv.FormatInt(disk, 10),
		wrap: []string{"/bin/sh", "-c", "echo $$ > " + group + "/cgroup.procs && exec \"$@\"", "sh"}})
	for round := range 2 {
		e.good("ten times both budgets", epoch(h.dir, list, uint64(round), 8, 0))
	}
	var peak int64
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
	e.must(err, "read the process's status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err := fmt.Sscanf(v, "%d", &peak)
			e.must(err, "read VmHWM")
		}
	}
	names := int64(len(list)) * 64
	if most := int64(ram+256<<20) + names; peak<<10 > most && !e.race {
		e.Errorf("VmHWM is %d MiB, at most %d MiB", peak>>10, most>>20)
	}
	e.Logf("VmHWM %d MiB with cache.ram 64 MiB", peak>>10)
	var used int64
	err = filepath.WalkDir(e.path("cache"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(p, "/names") {
			return nil // evicted meanwhile, or the namespace's
		}
		if info, err := d.Info(); err == nil {
			used += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	e.must(err, "measure the cache directory")
	const unit = 32 << 20 // a write unit: an extent and a batch
	if used > disk+unit {
		e.Errorf("the cache directory holds %d bytes, budget %d", used, disk)
	}
	h.quit()
}

// cgroup makes a memory cgroup of the limit, version 2 or 1, removed at the end.
func (e *env) cgroup(limit int64) string {
	e.Helper()
	for _, c := range []struct{ root, file string }{
		{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	} {
		dir := fmt.Sprintf("%s/hearth-e2e-%d-%d", c.root, os.Getpid(), e.count)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
			_ = os.Remove(dir)
			continue
		}
		e.Cleanup(func() { _ = os.Remove(dir) })
		return dir
	}
	e.Fatal("no memory cgroup can be made here: this scenario needs root")
	return ""
}
