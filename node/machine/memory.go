// Package machine is what a node takes from the machine that it runs on: how much
// memory it may use, what keeps the Go heap within that, the word to systemd, and
// the mount table, and which places of its own a mount would hide.
//
// The memory limit is the smallest of the machine's memory and every limit of a
// cgroup (version 1 or 2) that the process is in. The heap is held to a budget by
// Go's memory limit, and garbage to a tenth of it by a GC percent that follows
// the live heap.
package machine

import (
	"bufio"
	"context"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// heapBeyond is what the Go heap holds besides the RAM budget - the namespace's
// 64 MiB, queues, the runtime itself - before the collector works harder.
const heapBeyond = 192 << 20

// MemoryLimit is the memory in bytes that this process may use; root is where
// /proc and /sys are looked for, "/" but in tests.
func MemoryLimit(root string) int64 {
	limit := int64(math.MaxInt64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		limit = int64(info.Totalram) * int64(info.Unit)
	}
	for _, dir := range cgroupDirs(root) {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			// "max" says no limit, and does not parse.
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
	}
	return limit
}

// cgroupDirs are the directories whose memory limits hold for this process:
// every one from its own up to the root. Within a container /proc/self/cgroup
// may name a path that is mounted as the root itself, hence the root is tried
// in any case.
func cgroupDirs(root string) []string {
	f, err := os.Open(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	defer f.Close()
	var dirs []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base := filepath.Join(root, "sys/fs/cgroup")
		switch {
		case parts[1] == "memory":
			base = filepath.Join(base, "memory")
		case parts[0] != "0" || parts[1] != "":
			continue
		}
		for p := path.Clean("/" + parts[2]); ; p = path.Dir(p) {
			dirs = append(dirs, filepath.Join(base, p))
			if p == "/" {
				break
			}
		}
	}
	return dirs
}

// LimitHeap holds the Go heap to the budget. What GOMEMLIMIT says goes first.
func LimitHeap(budget int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(budget + heapBeyond)
	}
}

// KeepGarbageSmall sets the GC percent so that garbage stays under a tenth of
// the budget whatever the heap's size is: a fixed percent would either let a
// full cache double or collect an empty one all the time.
func KeepGarbageSmall(ctx context.Context, budget int64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	garbage := float64(max(budget/10, 24<<20))
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		metrics.Read(sample)
		live := float64(sample[0].Value.Uint64()) + 1
		want := int(min(max(100*garbage/live, 8), 400))
		// Each change stops the world for a moment: small ones are not worth it.
		if now == 0 || want*5 < now*4 || want*4 > now*5 {
			debug.SetGCPercent(want)
			now = want
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// SpareProcessors gives the runtime twice as many processors as there are cores.
// A read of the device blocks its thread in the kernel and its processor with it,
// until the runtime notices and hands that on: with one processor a core, an
// epoch of 16 KiB files from disk ran at 0.42 of ext4's speed, with two at 0.50.
// What GOMAXPROCS says goes first. Twice the default, however many nodes a process has:
// doubling what there is ended a test of sixteen nodes by its threads.
func SpareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS()
		runtime.GOMAXPROCS(2 * runtime.GOMAXPROCS(0))
	}
}
