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
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/ring/view"
	"github.com/hearthfs/hearth/node/room"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/origin"
)

// Status takes one look at the node.
func (n *Node) Status(context.Context) *Status {
	p := n.pool.Stats()
	s := &Status{
		Version: n.config.Version, PID: os.Getpid(), UptimeS: int64(time.Since(n.started) / time.Second),
		Problems: []string{}, Warnings: []string{}, Mounts: []MountStatus{}, Links: []LinkStatus{},
		MachineStatus: MachineStatus{
			Memory: MemoryStatus{Budget: p.Budget, Used: p.Used, Idle: p.Idle, Views: p.Views,
				Limit: n.limits.Memory, LimitBy: n.limits.MemoryBy, Heap: machine.HeapLimit()},
			Processors: ProcessorsStatus{Threads: runtime.GOMAXPROCS(0), Limit: n.limits.Processors, LimitBy: n.limits.ProcessorsBy}},
		Tiers: n.tierStatus(), Names: n.namesStatus(), Jobs: n.jobs.Lines(), Pins: n.jobs.keeper.List(), BroughtStatus: BroughtStatus{Warmup: n.jobs.Total(), Prefetch: n.jobs.prefetched()}, Ring: n.ring.line(n.started),
		Origin: OriginStatus{Verbs: map[string]int64{}},
	}
	for _, l := range n.links.list() {
		stats := l.origin.Stats()
		o := originStatus(stats)
		x := LinkStatus{Path: l.Path, URL: l.Origin.URL, Endpoint: l.Origin.Endpoint, Freshness: l.freshness.String(), Origin: o, LastError: watch.LastError(stats),
			Throttles: n.seen.slowed.Says(l.name, l.Origin.URL, answersOf(stats))}
		if f := l.health.Last(); f != nil {
			x.FailingAt = &f.At
			if x.Failing = f.Says; f.OneKey {
				x.Failing, x.Denied = "", f.Says
			}
		}
		s.Links = append(s.Links, x)
		s.Origin.Add(o)
	}
	for _, x := range n.mounts.standing() {
		s.Mounts = append(s.Mounts, x.status())
	}
	n.observe(s)
	s.Problems = append(s.Problems, problems(s)...)
	s.Warnings = append(append(s.Warnings, warnings(s)...), n.jobs.Unfinished(n.now())...)
	s.Says = slices.Concat(s.Problems, s.Warnings, []string{"ok"})[0]
	return s
}

// problems are what a person should do something about, the worst first. What
// heals by itself and costs nothing is no problem.
func problems(s *Status) []string {
	var all []string
	for _, l := range s.Links {
		if l.Failing != "" {
			all = append(all, fmt.Sprintf("an origin cannot be read, what is cached goes on (tried %d min ago): %s", minutes(*l.FailingAt), l.Failing))
		}
	}
	if s.Names.Stale != "" {
		all = append(all, "an origin cannot be asked, the last known names are shown: "+s.Names.Stale)
	}
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			if d.Ill != "" {
				all = append(all, "cache directory "+d.Path+" is out of use: "+d.Ill+"; look at its device (dmesg): it is tried again by itself")
			}
			if d.Full != "" {
				all = append(all, d.Full)
			}
		}
	}
	for _, p := range s.Pins {
		if p.Lacks != "" {
			all = append(all, "the pin "+p.Path+" does not hold all that it should: "+p.Lacks)
		}
	}
	all = append(all, view.Problems(s.Ring)...)
	if s.Names.Ill != "" {
		all = append(all, "names are kept in memory only: "+s.Names.Ill+"; look at the cache directories' devices (dmesg): they move to one that is well by themselves")
	}
	return all
}

// warnings are what a person should know and do something about while the node is well,
// and serves what it is asked for: slowly, or less of it from the cache.
func warnings(s *Status) (all []string) {
	for _, l := range s.Links {
		all = append(all, l.Throttles)
		if l.Denied != "" {
			all = append(all, fmt.Sprintf("an object cannot be read, others of its bucket can (tried %d min ago): %s", minutes(*l.FailingAt), l.Denied))
		}
	}
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			all = append(all, d.Slow)
		}
	}
	all = append(all, view.Warnings(s.Ring)...)
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// minutes since a time.
func minutes(t time.Time) int { return int(time.Since(t).Minutes()) }

// slow says that a directory's device lets operations wait, and what to do.
func slow(d *disk.DirStats) string {
	if d.Waited == 0 || d.Ejected {
		return ""
	}
	return fmt.Sprintf("cache directory %s waits for its device again and again, for %v and more; look at it (dmesg, iostat -x) and at who shares it", d.Path, d.Waited)
}

func originStatus(o origin.Stats) OriginStatus {
	return OriginStatus{Requests: o.Gets + o.Heads + o.Lists, Bytes: o.Bytes, Errors: o.Errors, Retries: o.Retries,
		Throttled: o.Throttled, Verbs: map[string]int64{"get": o.Gets, "head": o.Heads, "list": o.Lists}, FirstByte: watch.FirstByte(o)}
}

func (n *Node) tierStatus() []TierStatus {
	m := n.mem.Stats()
	tiers := []TierStatus{{Name: "ram", Used: m.Used, Budget: m.Budget, Hits: m.Hits, HitBytes: m.HitBytes, Misses: m.Misses}}
	if n.disk == nil {
		return tiers
	}
	t := TierStatus{Name: "disk"}
	for _, d := range n.disk.Stats().Dirs {
		x := DirStatus{Path: d.Path, Used: d.Used, Budget: d.Limit, Queued: d.Queued, Stalls: d.Stalls, Declined: d.Declined, Mended: d.Mended, Hanging: d.Hanging, Replaces: d.Replaces, Scrub: d.Scrub}
		at := n.dirs.At(d.Path)
		x.FileSystem, x.Note = at.FileSystem, at.Note
		x.Slow = slow(&d)
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

// roomOf is what a directory may hold; of one out of use, at whose room nobody
// looks, its budget.
func roomOf(d disk.DirStats) room.Dir {
	if d.Ejected {
		d.Limit = d.Budget
	}
	return room.Dir{Path: d.Path, Limit: d.Limit, Budget: d.Budget, Floor: d.Floor}
}

func (x *mounted) status() MountStatus {
	f := x.server.Stats()
	return MountStatus{Dir: x.Dir, Prefix: x.Prefix, Open: string(f.Open), Why: f.Why, Lacks: f.Lacks, Freshness: x.link.freshness.String(), Warning: x.link.warning(),
		Timeouts: fmt.Sprintf("names %v, absent names %v", f.EntryTimeout.Round(time.Millisecond), f.NegativeTimeout.Round(time.Millisecond)),
		Ops:      x.ops()}
}

// ops are what the mount was asked, and what came of it, by kind.
func (x *mounted) ops() map[string]int64 {
	f := x.server.Stats()
	maps.Copy(f.Requests, f.Outcomes)
	return f.Requests
}
