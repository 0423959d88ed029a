package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/faultfs"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpEvicted has somebody evict a part of a set in the middle of its warm-up: it is
// loaded again, and the job ends 0. Of the next warm-up it is evicted a second time, once it
// was loaded again: the job says so and ends 3. Each file is counted once in both.
func warmUpEvicted(e *env) {
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "evicted", Groups: []hearthtest.Group{{Dir: "e/dir", Dirs: 4, Files: 50, Min: 40 << 10, Max: 120 << 10}}})
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint})
	part, later, last := list[:50], list[149].Path, list[199].Path
	dir := filepath.Dir("/" + part[0].Path)
	counted := func() (id string) { // all but the last file, which is waited for
		e.Helper()
		e.withhold(p, last)
		out, code := h.ask("warmup", "/", "--detach")
		if code != 0 {
			e.Fatalf("warmup --detach: exit %d, %s", code, out)
		}
		e.eventually("all but one file counted", func() bool { return h.latest().Counters.Done.Files == total.Files-1 })
		return strings.TrimSpace(out)
	}
	id := counted()
	h.evict(dir)
	e.withhold(p, "")
	if v := h.job(0, "jobs", "wait", id); v.Counters.Sum() != total || v.Reloaded != sum(part) || v.Lost != 0 {
		e.Errorf("%d bytes evicted once: %+v, want %+v", sum(part), v, total)
	}
	for _, verb := range [][]string{{"jobs", "wait", id}, {"jobs", id}} {
		if out, code := h.ask(verb...); code != 0 || !strings.Contains(out, "evicted and loaded again") {
			e.Errorf("%q: exit %d, %s", verb, code, out)
		}
	}
	h.job(0, "warmup", "--check", "/")

	h.evict("/")
	id = counted()
	h.evict(dir)
	h.evict("/" + later)
	e.withhold(p, later) // the second look at the set goes on to there
	e.eventually("what was evicted loaded again", func() bool { return h.latest().Reloaded >= sum(part) })
	h.evict(dir)
	e.withhold(p, "")
	v := h.job(3, "jobs", "wait", id)
	if v.Counters.Sum() != total || v.State != warmup.Partly || v.Lost != sum(part) || !slices.ContainsFunc(v.Samples, func(s warmup.Sample) bool {
		return strings.HasPrefix(s.Path, dir) && strings.Contains(s.Cause, "evicted before the job's end")
	}) {
		e.Errorf("%d bytes evicted twice: %+v, want %+v", sum(part), v, total)
	}
	if out, code := h.ask("jobs", "wait", id); code != 3 || !strings.Contains(out, "evicted before the end") {
		e.Errorf("the end of that job: exit %d, %s", code, out)
	}
	if plan := h.dryRun(0, "/"); plan.Held.Files != total.Files-int64(len(part)) {
		e.Errorf("held after that: %+v", plan)
	}
	h.quit()
}

// warmUpDiskFails has the cache's disk fail in the middle of a warm-up: the job ends 3,
// each file is counted once, and once the disk is well, all that was called present is there.
func warmUpDiskFails(e *env) {
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "fails", Groups: []hearthtest.Group{
		{Dir: "f/dir", Dirs: 3, Files: 100, Min: 40 << 10, Max: 120 << 10}, {Dir: "f/large", Dirs: 1, Files: 2, Min: 10 << 20, Max: 10 << 20}}})
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	p := e.proxy(o)
	d := e.device("sick", 384, "-O", "^has_journal")
	h := e.mount(o, settings{endpoint: p.endpoint, ram: "16MiB", disk: "300MiB", cache: "sick/cache", floor: "1MiB"})
	out, code := h.ask("warmup", "/", "--detach", "--rate", "8MiB/s")
	if code != 0 {
		e.Fatalf("warmup --detach: exit %d, %s", code, out)
	}
	e.eventually("a part of the set counted", func() bool { return h.latest().Counters.Done.Files > 0 })
	d.meet(faultfs.IOError)
	v := h.job(3, "jobs", "wait", strings.TrimSpace(out))
	if c := v.Counters; c.Sum() != total || c.Done.Files == 0 || c.NotKept.Files+c.Failed.Files == 0 || v.State != warmup.Partly || len(v.Samples) == 0 {
		e.Errorf("a disk that failed in the middle: %+v, want %+v", v, total)
	}
	d.meet(faultfs.None)
	e.eventually("the directory is in use again", func() bool { return h.ill() == "" })
	held := v.Counters.Held()
	plan := h.dryRun(0, "/")
	if plan.Held.Files < held.Files || plan.Held.Bytes < held.Bytes-v.Lost {
		e.Errorf("%+v are there, the job had called %+v present", plan.Held, held)
	}
	out, code = h.ask("warmup", "--check", "/", "-o", "jsonl")
	if said := strings.Join(said(out), "\n"); code != 3 || strings.Contains(said, "corrupt") || int64(strings.Count(said, "missing ")) > total.Files-held.Files {
		e.Errorf("a check of what is there, where %+v were called present: exit %d\n%s", held, code, said)
	}
	e.detail = fmt.Sprintf("%d files called present, %d there", held.Files, plan.Held.Files)
	h.job(0, "warmup", "/")
	h.quit()
}
