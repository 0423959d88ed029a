package e2e

import (
	"errors"
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
	const ram = 32 << 20
	disk := map[level]int64{core: 48 << 20, all: 128 << 20, full: 256 << 20}[e.level]
	o := e.origin()
	list := e.tenBudgets(o, max(disk, ram))
	group := e.cgroup(ram + (256+512)<<20) // the limit leaves room for the page cache that is charged to it
	h := e.mount(o, settings{ram: strconv.Itoa(ram), disk: strconv.FormatInt(disk, 10),
		wrap: []string{"/bin/sh", "-c", "echo $$ > " + group + "/cgroup.procs && exec \"$@\"", "sh"}})
	for round := range 2 {
		e.good("ten times both budgets", epoch(h.dir, list, uint64(round), 8, 0))
		data, names := e.cacheBytes("cache")
		e.Logf("the cache directory holds %d bytes of data and %d of names; budget %d", data, names, disk)
		const unit = 4 << 20 // docs/operations.md: by which a budget may be exceeded
		if data > disk+unit || data < disk/2 {
			e.Fatalf("the cache directory holds %d bytes of data, budget %d", data, disk)
		}
		e.eventually("data gives way to names", func() bool {
			data, names := e.cacheBytes("cache")
			return data+names <= disk+unit
		})
	}
	h.boundedMemory(ram, len(list))
	h.quit()
}

// boundedMemory fails the scenario if the node's memory was ever above cache.ram,
// what names, queues and the runtime may take, and 64 bytes for each name that
// the kernel holds.
func (h *hearth) boundedMemory(ram int64, names int) {
	h.e.Helper()
	peak := h.peakMemory()
	if most := ram + 256<<20 + 64*int64(names); peak > most && !h.e.race {
		h.e.Errorf("VmHWM is %d MiB, at most %d MiB", peak>>20, most>>20)
	}
	h.e.Logf("VmHWM %d MiB with cache.ram %d MiB", peak>>20, ram>>20)
}

// peakMemory is the most memory that the node ever had, in bytes.
func (h *hearth) peakMemory() (peak int64) {
	h.e.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
	h.e.must(err, "read the process's status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err := fmt.Sscanf(v, "%d", &peak)
			h.e.must(err, "read VmHWM")
		}
	}
	return peak << 10
}

// tenBudgets loads ten times a budget: six parts small objects, one of such as get
// a file of their own in a cache directory, and one object of four.
func (e *env) tenBudgets(o *server, budget int64) []hearthtest.File {
	e.Helper()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(100, int(budget*6/100/(110<<10))+1))
	large := []hearthtest.File{{Path: "large/one", Size: budget * 4}}
	for i := range 8 {
		large = append(large, hearthtest.File{Path: fmt.Sprintf("middle/%d", i), Size: budget/8 + int64(i)})
	}
	for _, f := range large {
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
	}
	list = append(list, large...)
	if got := sum(list); got < 10*budget {
		e.Fatalf("the data, %d bytes, is too small for a budget of %d", got, budget)
	}
	return list
}

// cacheBytes is what a cache directory has allocated for data and for names.
func (e *env) cacheBytes(dir string) (data, names int64) {
	e.Helper()
	err := filepath.WalkDir(e.path(dir), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // evicted meanwhile
		}
		if info, err := d.Info(); err == nil {
			n := info.Sys().(*syscall.Stat_t).Blocks * 512
			if strings.Contains(p, "/names") {
				names += n
			} else {
				data += n
			}
		}
		return nil
	})
	e.must(err, "measure the cache directory")
	return data, names
}

// cgroup makes a memory cgroup of the limit, version 2 or 1, removed at the end.
func (e *env) cgroup(limit int64) string {
	e.Helper()
	for _, c := range []struct{ root, file string }{
		{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	} {
		dir := filepath.Join(c.root, "hearth-e2e-"+filepath.Base(e.dir))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		// Beside version 1 the root of version 2 is a plain tmpfs, which would take any name.
		f, err := os.OpenFile(filepath.Join(dir, c.file), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(strconv.FormatInt(limit, 10))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			_ = os.Remove(dir)
			continue
		}
		e.Cleanup(func() { _ = os.Remove(dir) })
		return dir
	}
	e.Fatal("no memory cgroup can be made here: this scenario needs root")
	return ""
}
