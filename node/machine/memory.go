// Package machine is what a node takes from the machine that it runs on. It finds how much memory and processor
// time the node may use, and keeps the Go heap within that. It tells systemd how the node is. It reads the
// mount table, and finds which places of the node's own a mount would hide.
//
// The memory limit is the smallest of the machine's memory and every limit of a control group (version 1 or 2)
// that the process is in. The limit of processor time is the smallest quota. Go's memory limit holds the heap
// to a budget. A GC percent that follows the live heap holds garbage to a tenth of the budget.
package machine

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"
)

// Beside is what the Go heap may hold in addition to the RAM budget, in bytes, before the collector works
// harder. It is for the namespace's 64 MiB, queues, and the runtime itself.
const Beside = 192 << 20

// LimitHeap limits the Go heap to the RAM budget plus Beside, and to nine tenths of the memory that this
// process may use. The rest is left to threads' stacks and to the kernel. GOMEMLIMIT takes precedence. The heap
// gets huge pages, if the kernel gives them.
func LimitHeap(budget, memory int64) {
	limit := min(budget+Beside, memory-memory/10)
	hugeHeap(limit)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// HugePages returns the kernel's mode of transparent huge pages: "always", "madvise" (on request only) or "never". It
// returns "" if the mode cannot be read. root is the directory that holds /sys.
func HugePages(root string) string {
	text, _ := os.ReadFile(filepath.Join(root, "sys/kernel/mm/transparent_hugepage/enabled"))
	_, chosen, _ := strings.Cut(string(text), "[")
	chosen, _, _ = strings.Cut(chosen, "]")
	return chosen
}

// HeapLimit returns the limit of the Go heap, in bytes.
func HeapLimit() int64 { return debug.SetMemoryLimit(-1) }

// KeepGarbageSmall sets the GC percent so that garbage stays under a tenth of the budget, whatever the size of
// the heap. A fixed percent would either let a full cache double, or collect an almost empty heap all the time.
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
		// Each change stops the world for a moment, so small ones are not worth it.
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

// Processors sets GOMAXPROCS to the number of cores, or with spare to twice that.
//
// A mount needs spare processors. A thread that waits for its requests, or reads the device, blocks in the
// kernel and keeps its processor until the runtime notices and hands the processor on. With one processor a
// core, an epoch of 16 KiB files from disk ran at 0.42 of ext4's speed, with two at 0.50.
//
// A node that only answers peers (in a ring, with neither mount nor S3 endpoint) needs none. Each request wakes
// it, and each idle processor then costs a thread that looks for work in vain. With two processors a core, an
// owner of an epoch's files (bench, W6 epoch) switched threads a sixth more often.
//
// GOMAXPROCS takes precedence. Spare processors stay, since another node of the process may have asked for
// them. They are twice the default, however many nodes a process has: doubling the present number ended a test
// of sixteen nodes by its threads. The default heeds the quota of the process's own control group, and limit
// that of all groups above it. Threads beyond the quota would only have all threads stopped for the rest of a
// period. As in Go, there are at least two processors.
func Processors(limit float64, spare bool) {
	_ = easeMonitor() // without the right to do this, the monitor runs as often as before
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	before := runtime.GOMAXPROCS(0)
	runtime.SetDefaultGOMAXPROCS()
	n := runtime.GOMAXPROCS(0)
	if limit > 0 {
		n = min(n, max(int(math.Ceil(limit)), 2))
	}
	if spare || before == 2*n {
		n *= 2
	}
	runtime.GOMAXPROCS(n)
}
