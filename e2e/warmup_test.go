package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUps are the scenarios of "warm up before the job".
func warmUps(by func(small, reduced, whole string) func(level) string) []scenario {
	const behind = "versitygw behind the fault proxy"
	list := []scenario{
		{name: "warmup-kills", from: all, limit: 3 * time.Minute, origin: behind, size: by("", "2,000 x 16 KiB, 2 x 48 MiB, 5 kills", "4 x: 50,000 x 16 KiB, 4 x 512 MiB, 5 kills"), run: warmUpKilled},
		{name: "warmup-clock", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: by("", "2,000 x 16 KiB, 2 x 48 MiB, 5 clocks", "50,000 x 16 KiB, 4 x 512 MiB, 5 clocks"), run: warmUpMoved},
		{name: "warmup-jobs", from: all, limit: 2 * time.Minute, origin: behind, size: by("", "500 files", "20,000 files"), run: warmUpJobs},
		{name: "status-waits", from: all, limit: 2 * time.Minute, origin: behind, size: by("", "32 files, 1,500 names", "32 files, 1,500 names"), run: waited},
		{name: "status-waits-disk", root: true, from: all, limit: 2 * time.Minute, origin: "versitygw", size: func(level) string { return "42 files" }, run: waitedForDisk},
		{name: "status-screen", from: all, limit: time.Minute, origin: behind, size: by("", "500 files", "500 files"), run: screens},
		{name: "pins", from: all, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "5 x the budget of 64 MiB, 2 kills" }, run: pinned},
		{name: "prefetch", from: all, limit: 2 * time.Minute, origin: behind, size: by("", "600 files in 4 directories, 880 of 128 KiB on 64 MiB", "20,000 files in 20 directories, 880 of 128 KiB on 64 MiB"), run: prefetch},
		{name: "warmup-slowdown", from: all, limit: 2 * time.Minute, origin: behind, size: by("", "1,600 files, 60 x SlowDown", "20,100 files, 60 x SlowDown"), run: warmUpSlowedDown},
		{name: "warmup-changes", from: all, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "220 files, 17 overwritten, 3 deleted" }, run: warmUpChanges},
		{name: "warmup-beside-readers", from: all, limit: 2 * time.Minute, origin: "versitygw behind the fault proxy", size: func(level) string { return "800 files present, 40 files a round" }, run: warmUpBesideReaders},
		{name: "warmup-full-cache", from: all, limit: 2 * time.Minute, origin: behind, size: by("", "2 x 310 MB into 336 MiB", "2 x 828 MB into 896 MiB"), run: warmUpFullCache},
		{name: "warmup-terminal", from: all, limit: time.Minute, origin: behind, size: by("", "200 files", "20,000 files"), run: warmUpTerminal},
		{name: "warmup-evicted", from: all, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "200 files, evicted once, then twice" }, run: warmUpEvicted},
		{name: "warmup-disk-fails", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "302 files, 1 fault" }, run: warmUpDiskFails},
		{name: "warmup-volume", from: all, limit: 3 * time.Minute, origin: behind, size: by("", "2,000 x 16 KiB, 2 x 48 MiB, 2 kills", "50,000 x 16 KiB, 4 x 512 MiB, 2 kills"), run: warmUpVolume},
		{name: "warmup-check", from: all, limit: time.Minute, origin: behind, size: func(level) string {
			return "254 files, 11 things hurt, then 6 that are no object's, then each file of those kinds"
		}, run: warmUpChecked},
	}
	for i := range list {
		list[i].issue = "warm-up"
	}
	return list
}

// ask runs a verb against the node and returns its output and exit code.
func (h *hearth) ask(args ...string) (string, int) {
	h.e.Helper()
	return h.e.run(h.e.hearth, append(args, "--node", "unix://"+h.socket())...)
}

// job is a verb that ends with one job's document and a code.
func (h *hearth) job(code int, args ...string) (v warmup.View) {
	h.e.Helper()
	out, got := h.ask(append(args, "-o", "json")...)
	doc, _, _ := strings.Cut(out, "\nhearth: ")
	if err := json.Unmarshal([]byte(doc), &v); err != nil || got != code {
		h.e.Fatalf("hearth %v: exit %d, want %d, %v:\n%s", args, got, code, err, out)
	}
	return v
}

// warmSet is what is warmed up: small objects in many directories, and large ones.
func warmSet(l level) hearthtest.DataSet {
	small, large := hearthtest.Group{Dir: "w/small", Dirs: 40, Files: 50, Min: 16 << 10, Max: 16 << 10},
		hearthtest.Group{Dir: "w/large", Dirs: 1, Files: 2, Min: 48 << 20, Max: 48 << 20}
	if l == full {
		small.Dirs, small.Files = 50, 1000
		large.Files, large.Min, large.Max = 4, 512<<20, 512<<20
	}
	return hearthtest.DataSet{Name: "warm", Groups: []hearthtest.Group{large, small}}
}

// warmUpKilled warms up through an origin 30 ms away. Its node is killed five times
// with SIGKILL, first while it lists, then at bytes drawn at random; in every other run one
// comes with the first bytes after a start, and one finds many that were not counted. Nobody
// does anything but start it again. Then the origin goes away, and an epoch reads all.
func warmUpKilled(e *env) {
	o := e.origin()
	list := e.load(o, warmSet(e.level))
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	p := e.proxy(o)
	p.SetFirstByte(30 * time.Millisecond)
	// Long-lived names: a job that takes minutes lists once, too, and a slow machine
	// must not count for more.
	set := settings{endpoint: p.endpoint, fresh: "bounded(10m)", cache: "whole"}
	h := e.mount(o, set)
	before := p.Stats()
	if v := h.job(0, "warmup", "/"); v.Counters.Sum() != total || v.Counters.Done != total {
		e.Fatalf("without a kill: %+v, want %+v", v, total)
	}
	lists := p.Stats().List.Requests - before.List.Requests
	h.quit()
	rng := rand.New(rand.NewPCG(e.seed(), 1))
	last := slices.MaxFunc(list, func(a, b hearthtest.File) int { return strings.Compare(a.Path, b.Path) })
	for run := range map[level]int{core: 1, all: 1, full: 4}[e.level] {
		set.cache = fmt.Sprintf("cache-%d", run)
		if run == 3 { // names as they are by default: a job believes what was listed since it began
			set.fresh = ""
		}
		h := e.mount(o, set)
		p.Reset()
		k := &kills{env: e, h: h, o: o, set: set, p: p, last: last, held: total.Bytes - last.Size, early: run%2 == 0}
		v := h.job(0, "jobs", "wait", k.job(killsOf(rng, total.Bytes-last.Size)))
		s := p.Stats()
		if v.Counters.Sum() != total || v.State != warmup.Done {
			e.Errorf("after the kills: %+v, want %+v", v, total)
		}
		mostBytes, mostLists := total.Bytes+k.again, lists+5*12 // a start's own among them
		if e.level == full {
			mostLists = lists * 3 / 2
		}
		if s.Get.Bytes > mostBytes || s.List.Requests > mostLists {
			e.Errorf("%d bytes of %d asked for, of which %d may be asked for again, and %d listings, %d without a kill", s.Get.Bytes, total.Bytes, k.again, s.List.Requests, lists)
		}
		e.detail = fmt.Sprintf("%s%.3f of the bytes, %.2f of the listings", k.told, float64(s.Get.Bytes)/float64(total.Bytes), float64(s.List.Requests)/float64(lists))
		p.Down()
		before := p.Stats().Requests()
		e.good("without the origin", epoch(h.dir, list, 5, 4, 0))
		if n := p.Stats().Requests() - before; n != 0 {
			e.Errorf("that asked the origin %d times", n)
		}
		e.must(p.Up(), "open the proxy again")
		h.quit()
	}
}

// killsOf are the bytes after which a run's node is killed; the first is killed while
// it lists, whatever has come by then.
func killsOf(rng *rand.Rand, total int64) (at [5]int64) {
	for i := 1; i < len(at); i++ {
		at[i] = rng.Int64N(total)
	}
	slices.Sort(at[:])
	return at
}

// kills are those of a node that warms up.
type kills struct {
	*env
	h    *hearth
	o    *server
	set  settings
	p    *proxied
	last hearthtest.File // that a walk comes to
	held int64           // bytes before it
	from int64           // bytes that had come when the node was started last
	told string          // how much was counted at each kill
	// again is what the kills have cost: bytes that may be asked for once more.
	again int64
	// early: two kills do not wait until something was counted since the one before.
	early bool
}

// Kills of an early run with a moment of their own, by their place in it.
const (
	atOnce    = 2 // comes with the first bytes after a start, before a checkpoint
	uncounted = 3 // finds what came since the start fetched, and not counted
)

// mostUncounted bytes behind a file that does not come: fewer small files than a job has
// steps under way.
const mostUncounted = 96 << 20

// underWay is what requests bring at most that a kill ends: three of large files, and the
// small files' steps. What had come is asked for again as well where it was not written yet.
const underWay = 3*4<<20 + 64*16<<10

// moment is the byte after which a kill comes.
func (k *kills) moment(i int, drawn int64) int64 {
	switch {
	case k.early && i == atOnce:
		return min(drawn, k.from+1)
	case k.early && i == uncounted:
		return min(drawn, k.from+mostUncounted, k.held-16<<20) // an extent of a large file may be what does not come
	}
	return drawn
}

// job begins a warm-up of all, kills the node at each point and starts it again, and
// returns the job's id. However slow this process is, no kill comes too late: until the
// first one the origin answers four listings and no more, so that the job is listing, and
// from then until the last one it does not send the last file, so that the job is not over.
// Before the uncounted one it does not send what is asked for first, either: files are
// counted in order, so that what comes behind it is not.
func (k *kills) job(points [5]int64) (id string) {
	k.Helper()
	k.p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Skip: 4, Body: faultproxy.Stall})
	out, code := k.h.ask("warmup", "/", "--detach")
	if id = strings.TrimSpace(out); code != 0 || len(id) != 8 {
		k.Fatalf("warmup --detach: exit %d, %s", code, out)
	}
	counted := int64(0)
	for i, bytes := range points {
		var was *warmup.View
		k.eventually("the moment of a kill", func() bool {
			if i == 0 && k.p.Stats().List.Requests < 5 || k.p.bytes() < k.moment(i, bytes) {
				return false
			}
			was = k.ask(id)
			// The last three find something counted since the one before, if that takes another second.
			n := was.Counters.Sum().Bytes
			return was.State != warmup.Queued && (i < 2 || k.early && i+1 < len(points) || n > counted || n == k.held)
		})
		counted = was.Counters.Sum().Bytes
		if was.State.Over() || i == 0 && (was.Phase != "listing" || was.Plan.Counted) {
			k.Errorf("before kill %d: %+v", i, was)
		}
		k.told += fmt.Sprintf("%s with %d of %d MiB counted; ", was.Phase, counted>>20, k.p.bytes()>>20)
		queued, came := k.h.diskTier().Dirs[0].Queued, k.p.bytes()
		k.h.kill9()
		k.again += queued + k.p.bytes() - came + underWay
		if i+1 < len(points) {
			k.withhold(k.p, k.last.Path)
		} else {
			k.withhold(k.p, "")
		}
		if k.early && i+1 == uncounted {
			k.p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Times: 1, Body: faultproxy.Stall})
		}
		k.from = k.p.bytes()
		k.h.launch(k.o, k.set)
		k.notLess(i, was, k.ask(id))
	}
	return id
}

// ask is the job as the node shows it.
func (k *kills) ask(id string) *warmup.View {
	k.Helper()
	v, err := k.h.client.Jobs().Get(k.ctx, id)
	k.must(err, "ask for the job")
	return v
}

// notLess: no counter fell over a kill.
func (k *kills) notLess(kill int, was, is *warmup.View) {
	k.Helper()
	a, b := &was.Counters, &is.Counters
	for _, x := range []struct {
		name    string
		was, is warmup.Tally
	}{{"done", a.Done, b.Done}, {"present", a.Present, b.Present}, {"changed", a.Changed, b.Changed}, {"vanished", a.Vanished, b.Vanished},
		{"not_kept", a.NotKept, b.NotKept}, {"failed", a.Failed, b.Failed}} {
		if x.is.Files < x.was.Files || x.is.Bytes < x.was.Bytes {
			k.Errorf("%s was %+v before kill %d, %+v after it", x.name, x.was, kill, x.is)
		}
	}
}

// movedClock is the clock of a node that was built for it.
type movedClock struct {
	*env
	h    *hearth
	o    *server
	set  settings
	file string
	by   time.Duration // ahead of this process's
}

// is has the clock be so much ahead, such as -6h, once the node looks.
func (c *movedClock) is(by string) {
	c.Helper()
	var err error
	c.by, err = time.ParseDuration(by)
	c.must(errors.Join(err, os.WriteFile(c.file, []byte(by), 0o600)), "set the clock")
}

// moved moves it under the node, which hears of that soon.
func (c *movedClock) moved(by string) {
	c.Helper()
	c.is(by)
	c.must(c.h.Process.Signal(syscall.SIGUSR1), "move the clock")
}

// restarted moves it while the node is down.
func (c *movedClock) restarted(by string) {
	c.Helper()
	c.h.kill9()
	c.is(by)
	c.h.launch(c.o, c.set)
}

// told: a time is the clock's, and lies between one of this process and now.
func (c *movedClock) told(what string, at *time.Time, since time.Time) {
	c.Helper()
	// It was written down without its monotonic reading, and so are these compared.
	if from, to := since.Round(0).Add(c.by), time.Now().Round(0).Add(c.by); at == nil || at.Before(from) || at.After(to) {
		c.Errorf("a job %s at %v, and the clock said %v to %v", what, at, from, to)
	}
}

// warmUpMoved moves the node's clock while it warms up and while it is down, by hours
// and both ways: nothing is loaded twice or left out, the job ends, and pins and warnings
// go by what the clock says.
func warmUpMoved(e *env) {
	binary := e.program("wired")
	o := e.origin()
	list := e.load(o, warmSet(e.level))
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	p := e.proxy(o)
	p.SetFirstByte(10 * time.Millisecond)
	c := &movedClock{env: e, o: o, set: settings{endpoint: p.endpoint, binary: binary}, file: e.path("clock")}
	h := e.configure(o, c.set)
	c.h = h
	c.set.environ = []string{"WIRED_ENDPOINT=" + p.endpoint, "WIRED_SOCKET=" + h.socket(), "WIRED_CACHE=" + e.path("cache"), "WIRED_CLOCK=" + c.file}
	at := func(part float64) {
		e.eventually("the moment of another clock", func() bool { return float64(p.bytes()) >= part*float64(total.Bytes) })
	}
	c.is("0s")
	h.launch(o, c.set)
	p.Reset()
	asked := time.Now()
	out, code := h.ask("warmup", "/", "--detach")
	if code != 0 {
		e.Fatalf("warmup --detach: exit %d, %s", code, out)
	}
	first, err := h.client.Jobs().Get(e.ctx, strings.TrimSpace(out))
	e.must(err, "ask for the job")
	c.told("was created", &first.Created, asked)
	for i, by := range []string{"3h", "-6h"} { // while it lists, and while it loads
		at(0.1 * float64(i))
		c.moved(by)
	}
	for i, by := range []string{"-48h", "30s", "72h"} {
		at(0.3 + 0.2*float64(i))
		asked = time.Now()
		c.restarted(by)
	}
	v := h.job(0, "jobs", "wait", first.ID)
	if v.Counters.Sum() != total || v.State != warmup.Done || v.Worked < 0 || !v.Created.Equal(first.Created) {
		e.Errorf("after five clocks: %+v, want %+v", v, total)
	}
	c.told("ended", v.Ended, asked)
	if got := p.bytes(); float64(got) > 1.02*float64(total.Bytes)+3*32<<20 { // what is under way at a kill
		e.Errorf("%d bytes of %d asked for", got, total.Bytes)
	}
	c.pins()
	c.warns()
	p.Down()
	e.good("without the origin", epoch(h.dir, list, 7, 4, 0))
	e.must(p.Up(), "open the proxy again")
	h.quit()
}

// pins: one ends once the clock has passed its end, and not before, also where that goes
// back; then it lasts for so much longer, and no more.
func (c *movedClock) pins() {
	c.Helper()
	pin := func(path string) {
		c.Helper()
		asked := time.Now()
		v := c.h.job(0, "warmup", "--pin=1h", path)
		if c.told("was created", &v.Created, asked); v.Started == nil || v.Started.Before(v.Created) || v.Worked < 0 {
			c.Errorf("the job of a pin: %+v", v)
		}
		c.told("ended", v.Ended, asked)
	}
	are := func(want ...string) bool {
		c.Helper()
		var paths []string
		for _, pin := range c.h.status().Pins {
			paths = append(paths, pin.Path)
		}
		return slices.Equal(paths, want)
	}
	pin("/w/large") // the clock is 72h ahead
	for _, by := range []string{"-6h", "72h30m"} {
		c.restarted(by)
		if out, code := c.h.ask("evict", "/w/large", "--yes"); code != 8 || !are("/w/large") {
			c.Errorf("the clock %s ahead, evict what is pinned: exit %d, %s", by, code, out)
		}
	}
	c.moved("74h")
	c.eventually("the end of a pin", func() bool { // a pin that is made has the node look at all of them
		_, code := c.h.ask("pin", "/w/small0000", "--for", "2h")
		return code == 0 && are("/w/small0000")
	})
	c.restarted("-6h")
	pin("/w/large")
	if !are("/w/large", "/w/small0000") {
		c.Errorf("the clock went back, and these are pinned: %+v", c.h.status().Pins)
	}
	for _, x := range []struct {
		by   string
		pins []string
	}{{"-4h", []string{"/w/small0000"}}, {"77h", nil}} {
		c.restarted(x.by)
		c.eventually("what is pinned, the clock "+x.by+" ahead", func() bool { return are(x.pins...) })
	}
}

// warns: a job that did not get all is told of for an hour of the clock.
func (c *movedClock) warns() {
	c.Helper()
	c.must(os.WriteFile(c.path("list"), []byte("/nothing\n"), 0o600), "write a list")
	v := c.h.job(3, "warmup", "-f", c.path("list"))
	told := func() bool {
		return slices.ContainsFunc(c.h.status().Warnings, func(w string) bool { return strings.Contains(w, v.ID) })
	}
	if !told() {
		c.Errorf("nothing tells of the job %s: %q", v.ID, c.h.status().Warnings)
	}
	c.moved("78h30m")
	c.eventually("an hour of the clock, after which nothing tells of the job", func() bool { return !told() })
}

// warmUpJobs has jobs of every kind: three that overlap, one that is left by Ctrl-C and
// cancelled, a list with missing, duplicate and odd names, one behind SlowDown, and one
// that does not fit.
func warmUpJobs(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 60, 5, 100))
	for _, key := range []string{"odd/100%25", "odd/new\nline", "odd/sp ace"} {
		_, err := o.PutBytes(e.ctx, o.bucket, key, []byte(key))
		e.must(err, "put %q", key)
	}
	total := sum(list)
	p := e.proxy(o)
	p.SetFirstByte(20 * time.Millisecond)
	set := settings{endpoint: p.endpoint}
	h := e.mount(o, set)
	if out, code := h.ask("warmup", "--dry-run", "/"); code != 0 || !strings.Contains(out, "time     not known: ") {
		e.Errorf("a dry run before any job: exit %d, %s", code, out)
	}
	if out, code := h.ask("warmup", "--dry-run", "--rate", "1KiB/s", "/"); code != 0 || !strings.Contains(out, "time     at least ") {
		e.Errorf("a dry run before any job, at a rate: exit %d, %s", code, out)
	}
	odd := filepath.Join(h.dir, "odd")
	names, err := os.ReadDir(odd)
	e.must(err, "read the odd names")

	text := h.dir + "/" + list[0].Path + "\x00/nothing\x00" + h.dir + "/" + list[0].Path + "\x00"
	for _, n := range names {
		text += filepath.Join(odd, n.Name()) + "\x00"
	}
	e.must(os.WriteFile(e.path("list"), []byte(text), 0o600), "write a list")
	v := h.job(3, "warmup", "-f", e.path("list"), "-0")
	if c := v.Counters; c.Failed.Files != 1 || c.Done.Files+c.Present.Files != 5 || v.Samples[0].Path != "/nothing" {
		e.Errorf("the list: %+v", v)
	}

	if plan := h.dryRun(3, "-f", e.path("list"), "-0"); plan.Missing != 1 || plan.Requests != 0 {
		e.Errorf("a dry run of the list: %+v", plan)
	}

	e.cancelled(h, p, e.ctrlC(h, list[0].Path), "/odd/sp ace")
	e.overlapping(h, o, p, list)
	p.Down()
	e.good("without the origin", epoch(h.dir, list, 6, 4, 0))
	e.must(p.Up(), "open the proxy again")
	if out, code := h.ask("jobs"); code != 0 || strings.Count(out, "\n") != 13 {
		e.Errorf("jobs: exit %d\n%s", code, out)
	}
	e.warmUpFlags(h, p, list)
	h.quit()

	set.disk, set.floor, set.cache = "8MiB", "1KiB", "small"
	h = e.mount(o, set)
	if out, code := h.ask("warmup", "/"); code != 8 || !strings.Contains(out, "--cache-disks") {
		e.Errorf("%d bytes into 8 MiB: exit %d, %s", total, code, out)
	}
	if out, code := h.ask("warmup", "--dry-run", "/"); code != 8 || !strings.Contains(out, "does not fit") {
		e.Errorf("dry run of that: exit %d, %s", code, out)
	}
	h.quit()
}

// overlapping has three warm-ups at work at once, behind SlowDown: all as a path, all as a
// URL, and one directory of it. Each byte is fetched once.
func (e *env) overlapping(h *hearth, o *server, p *proxied, list []hearthtest.File) {
	e.Helper()
	dir := filepath.Dir("/" + list[len(list)/2].Path)
	part := slices.DeleteFunc(slices.Clone(list), func(f hearthtest.File) bool { return filepath.Dir("/"+f.Path) != dir })
	total, before := sum(list), p.bytes()
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Percent: 20, Times: 60, Status: 503, Code: "SlowDown"})
	e.must(p.BlackHole(true), "stop the origin")
	var ids []string
	for _, of := range []string{"/", dir, "s3://" + o.bucket} {
		out, code := h.ask("warmup", of, "--detach")
		if code != 0 {
			e.Fatalf("warmup --detach %s: exit %d, %s", of, code, out)
		}
		ids = append(ids, strings.TrimSpace(out))
	}
	e.eventually("three jobs at work", func() bool {
		jobs := h.status().Jobs
		return len(jobs) == 3 && !slices.ContainsFunc(jobs, func(l warmup.Line) bool { return l.Phase == string(warmup.Queued) })
	})
	e.must(p.BlackHole(false), "let the origin answer")
	first, some, again := h.job(0, "jobs", "wait", ids[0]), h.job(0, "jobs", "wait", ids[1]), h.job(0, "jobs", "wait", ids[2])
	if first.Counters.Sum() != again.Counters.Sum() || first.FilesDone != int64(len(list)+3) {
		e.Errorf("two that overlap: %+v and %+v", first.Counters, again.Counters)
	}
	if want := (warmup.Tally{Files: int64(len(part)), Bytes: sum(part)}); some.Counters.Sum() != want || some.Counters.Held() != want || len(part) == len(list) {
		e.Errorf("a directory beside two of all: %+v, want %+v", some.Counters, want)
	}
	if got := p.bytes() - before; float64(got) > 1.02*float64(total)+100<<10 {
		e.Errorf("three that overlap asked for %d bytes of %d", got, total)
	}
	p.ClearRules()
}

// ctrlC leaves a job by Ctrl-C, which then goes on, and cancels it once it has loaded a part.
func (e *env) ctrlC(h *hearth, path string) *warmup.View {
	e.Helper()
	cmd := exec.Command(e.hearth, "warmup", "/"+filepath.Dir(path), "--rate", "100KB/s", "--node", "unix://"+h.socket())
	cmd.Env = e.environ(nil)
	left := e.start(cmd)
	var id string
	e.eventually("the job at work", func() bool {
		s := h.status()
		if len(s.Jobs) == 1 && s.Jobs[0].Phase != string(warmup.Queued) {
			id = s.Jobs[0].Job
		}
		return id != ""
	})
	if code := left.terminate(syscall.SIGINT); code != 130 || !strings.Contains(left.out.String(), "hearth jobs wait "+id) {
		e.Errorf("after Ctrl-C: exit %d\n%s", code, left.out)
	}
	if v, err := h.client.Jobs().Get(e.ctx, id); err != nil || v.State.Over() {
		e.Errorf("the job does not go on: %+v, %v", v, err)
	}
	e.eventually("a part of it counted", func() bool { return h.latest().Counters.Done.Files > 0 })
	if out, code := h.ask("jobs", "cancel", id); code != 0 {
		e.Errorf("cancel: exit %d, %s", code, out)
	}
	if out, code := h.ask("jobs", "wait", id); code != 1 || !strings.Contains(out, "cancelled") {
		e.Errorf("after the cancel: exit %d, %s", code, out)
	}
	return h.latest()
}

// cancelled is a job that was cancelled in the middle of its load: it asks the origin for
// nothing any more, what it loaded stays, and another one loads the rest alone.
func (e *env) cancelled(h *hearth, p *proxied, v *warmup.View, other string) {
	e.Helper()
	read := func() { // one request and its answer, behind whatever was sent before
		e.Helper()
		if out, code := h.ask("cat", other); code != 0 || out != strings.TrimPrefix(other, "/") {
			e.Errorf("hearth cat %q: exit %d, %q", other, code, out)
		}
		h.evict(other)
	}
	read()
	before := p.gets()
	read()
	if n := p.gets() - before; n != 1 {
		e.Errorf("after the cancel the origin is asked %d times, where one file is read", n)
	}
	dir := v.Targets[0]
	plan := h.dryRun(0, dir)
	counted := v.Counters.Sum()
	if plan.Held.Files < counted.Files || plan.Held.Bytes < counted.Bytes || plan.Held.Files >= plan.Total.Files {
		e.Errorf("of %+v that were counted before the cancel %+v are held, of %+v", counted, plan.Held, plan.Total)
	}
	gets, bytes := p.gets(), p.bytes()
	again, rest := h.job(0, "warmup", dir), plan.Total.Bytes-plan.Held.Bytes
	if c := again.Counters; c.Present != plan.Held || c.Done != (warmup.Tally{Files: plan.Total.Files - plan.Held.Files, Bytes: rest}) {
		e.Errorf("a warm-up of what a cancelled one left: %+v, held before %+v of %+v", c, plan.Held, plan.Total)
	}
	e.eventually("the rest", func() bool { return p.bytes()-bytes >= rest })
	if got := p.bytes() - bytes; got != rest || p.gets()-gets != plan.Requests {
		e.Errorf("what a cancelled job left is %d bytes in %d requests, and %d in %d were asked for", rest, plan.Requests, got, p.gets()-gets)
	}
}
