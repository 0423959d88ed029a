package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/origin"
)

// Status returns the status document of this moment.
func (n *Node) Status(context.Context) *status.Status {
	p := n.pool.Stats()
	s := &status.Status{
		Version: n.config.Version, PID: os.Getpid(), UptimeS: int64(time.Since(n.started) / time.Second),
		Problems: []string{}, Warnings: []string{}, Mounts: []status.Mount{}, Links: []status.Link{},
		Memory: status.Memory{Budget: p.Budget, Used: p.Used, Idle: p.Idle, Views: p.Views,
			Limit: n.limits.Memory, LimitBy: n.limits.MemoryBy, Heap: machine.HeapLimit()},
		Processors: status.Processors{Threads: runtime.GOMAXPROCS(0), Limit: n.limits.Processors, LimitBy: n.limits.ProcessorsBy},
		Tiers:      n.tierStatus(), Names: n.namesStatus(), Jobs: n.jobs.Lines(), Pins: n.jobs.keeper.List(), Warmup: n.jobs.Total(), Prefetch: n.jobs.prefetched(),
		Ring: n.ring.line(n.started), S3: n.s3Line(), Keeper: n.keeperLine(), Drafts: n.draftsLine(),
		Origin: status.Origin{Verbs: map[string]int64{}},
	}
	for _, l := range n.links.list() {
		stats := l.origin.Stats()
		o := originStatus(stats)
		x := status.Link{Path: l.Path, URL: l.Origin.URL, Endpoint: l.Origin.Endpoint, Freshness: l.freshness.String(), Origin: o, LastError: stats.Last,
			Throttles: n.seen.slowed.Says(l.name, l.Origin.URL, answersOf(stats))}
		if says := l.differs.Load(); says != nil {
			x.Differs = fmt.Sprintf("listings of %s name other versions than HEADs (%s): versions come from HEADs, one for each name and bound; report it to who runs the origin", l.Origin.URL, *says)
		}
		x.Unheeded = l.unheeded()
		if f := l.health.Last(); f != nil {
			x.FailingAt = &f.At
			if x.Failing = f.Says; f.OneKey {
				x.Failing, x.Denied = "", f.Says
			}
		}
		s.Links = append(s.Links, x)
		s.Origin.Add(o)
	}
	for _, x := range n.mounts.served() {
		s.Mounts = append(s.Mounts, x.status())
	}
	n.observe(s)
	s.Problems = append(s.Problems, s.FindProblems()...)
	s.Warnings = append(append(s.Warnings, s.FindWarnings()...), n.jobs.Unfinished(n.now())...)
	s.Says = slices.Concat(s.Problems, s.Warnings, []string{"ok"})[0]
	return s
}

// slow returns a line that a directory's device lets operations wait, and the cure. It is empty if the device
// does not.
func slow(d *disk.DirStats) string {
	if d.Waited == 0 || d.Ejected {
		return ""
	}
	return fmt.Sprintf("cache directory %s waits for its device again and again, for %v and more; look at it (dmesg, iostat -x) and at who shares it", d.Path, d.Waited)
}

// unindexed returns a line that there is no memory to index all that a directory holds, and the cure.
func unindexed(d *disk.DirStats) string {
	if d.Unindexed == 0 {
		return ""
	}
	return fmt.Sprintf("cache directory %s holds %d blocks (%s) that there is no memory to index: they are read from the origin, and go first when room is needed; raise cache.ram", d.Path, d.Unindexed, machine.SizeText(d.UnindexedBytes))
}

func originStatus(o origin.Stats) status.Origin {
	return status.Origin{Requests: o.Gets + o.Heads + o.Lists + o.Passes, Bytes: o.Bytes, Errors: o.Errors, Retries: o.Retries,
		Throttled: o.Throttled, Verbs: map[string]int64{"get": o.Gets, "head": o.Heads, "list": o.Lists, "pass": o.Passes}, FirstByte: firstByte(o.FirstByte)}
}

// firstByte returns how long an origin's answers took to their first byte.
func firstByte(s origin.LatencyStats) status.FirstByte {
	const ms = 1e6
	f := status.FirstByte{SumS: s.Sum.Seconds(), MedianMS: float64(s.Median) / ms, P99MS: float64(s.P99) / ms, WorstMS: float64(s.Worst) / ms}
	for _, b := range s.Buckets {
		f.Count += b.Count
		f.Buckets = append(f.Buckets, status.Bucket{LE: b.LE.Seconds(), Count: b.Count})
	}
	return f
}

func (n *Node) tierStatus() (tiers []status.Tier) {
	m := n.mem.Stats()
	tiers = []status.Tier{{Name: "ram", Used: m.Used, Budget: m.Budget, Hits: m.Hits, HitBytes: m.HitBytes, Misses: m.Misses}}
	if v := n.volumeTier(); v != nil {
		defer func() { tiers = append(tiers, *v) }()
	}
	if n.disk == nil {
		return tiers
	}
	t := status.Tier{Name: "disk"}
	for _, d := range n.disk.Stats().Dirs {
		x := status.Dir{Path: d.Path, Used: d.Used, Budget: d.Limit, Queued: d.Queued, Stalls: d.Stalls, Declined: d.Declined, Mended: d.Mended, Hanging: d.Hanging, Replaces: d.Replaces, Scrub: d.Scrub}
		at := n.dirs.At(d.Path)
		x.FileSystem, x.Note = at.FileSystem, at.Note
		x.Slow, x.Unindexed, x.NoMemory = slow(&d), d.Unindexed, unindexed(&d)
		if x.Full = roomOf(d).Lack(); d.Ejected {
			x.Ill = d.Cause
		}
		t.Used += d.Used
		t.Budget += d.Limit
		t.Hits += d.Hits
		t.HitBytes += d.HitBytes
		t.Written += d.WrittenBytes
		t.Errors += d.Errors + d.Corrupt
		t.Dirs = append(t.Dirs, x)
	}
	t.Misses = n.tiers.Own.Stats().Misses
	return append(tiers, t)
}

// roomOf returns what a directory may hold. Nobody measures the room of a directory that is out of use, so its
// budget stands there.
func roomOf(d disk.DirStats) machine.Room {
	if d.Ejected {
		d.Limit = d.Budget
	}
	return machine.Room{Path: d.Path, Limit: d.Limit, Budget: d.Budget, Floor: d.Floor}
}

func (x *mounted) status() status.Mount {
	f := x.server.Stats()
	at, kept := x.server.Place()
	detached := at == ""
	if kept {
		at = ""
	}
	return status.Mount{Dir: x.Dir, Detached: detached, At: at, Prefix: x.Prefix, Write: x.Write, Open: string(f.Open), Why: f.Why, Lacks: f.Lacks, Freshness: x.link.freshness.String(), Warning: x.link.warning(), Kept: x.keeps.Load() && !x.drains,
		Timeouts: fmt.Sprintf("names %v, absent names %v", f.EntryTimeout.Round(time.Millisecond), f.NegativeTimeout.Round(time.Millisecond)),
		Ops:      x.ops()}
}

// ops returns what the mount was asked and how it answered, by kind.
func (x *mounted) ops() map[string]int64 {
	f := x.server.Stats()
	maps.Copy(f.Requests, f.Outcomes)
	for op, t := range f.Took {
		for i, n := range t.Buckets {
			f.Requests[status.TookBucket(op, fuse.TookBound(i))] = n
		}
		f.Requests[status.TookSum(op)] = int64(t.Sum)
	}
	return f.Requests
}
