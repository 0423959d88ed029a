// Package machine is what a node takes from the machine that it runs on: how much
// memory and processor time it may use, what keeps the Go heap within that, the word
// to systemd, and the mount table, and which places of its own a mount would hide.
//
// The memory limit is the smallest of the machine's memory and every limit of a
// control group (version 1 or 2) that the process is in, the one of processor time
// the smallest quota. The heap is held to a budget by Go's memory limit, and garbage
// to a tenth of it by a GC percent that follows the live heap.
package machine

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Beside is what the Go heap may hold besides the RAM budget, in bytes - the
// namespace's 64 MiB, queues, the runtime itself - before the collector works harder.
const Beside = 192 << 20

// LimitHeap holds the Go heap to the RAM budget and Beside, and to nine tenths of
// the memory that this process may use: the rest is left to threads' stacks and to
// the kernel. What GOMEMLIMIT says goes first.
func LimitHeap(budget, memory int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(min(budget+Beside, memory-memory/10))
	}
}

// HeapLimit is what the Go heap is held to, in bytes.
func HeapLimit() int64 { return debug.SetMemoryLimit(-1) }

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

// Processors gives the runtime as many processors as there are cores, or twice as many where
// there are to be spare ones. A mount wants them: a thread that waits for its requests, or
// reads the device, blocks in the kernel and its processor with it, until the runtime notices
// and hands that on: with one processor a core, an epoch of 16 KiB files from disk ran at 0.42
// of ext4's speed, with two at 0.50. Who only answers peers, as a node
// of a ring with neither mount nor S3 endpoint, is woken for each request by
// itself, and each processor that is idle then costs it a thread that looks for work in vain:
// with two a core an owner of an epoch's files (bench, W6 epoch) changed threads a sixth more often.
// What GOMAXPROCS says goes first, and spare ones stay: another node of the process may have
// asked for them. Twice the default, however many nodes a process has: doubling what there is
// ended a test of sixteen nodes by its threads. The default heeds the quota of the process's
// own control group, limit that of all above it: threads beyond it would only have all of them
// stopped for the rest of a period. As Go does, at least two.
func Processors(limit float64, spare bool) {
	_ = easeMonitor() // who may not has it come as often as it likes
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
