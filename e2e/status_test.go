package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/internal/faultfs"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

// waited: what a reader waits for an origin that is slow, that throttles and that lists, the
// node counts by cause.
func waited(e *env) {
	o := e.origin()
	p := e.proxy(o)
	var slow, throttled []string
	list := e.load(o, hearthtest.DataSet{Name: "waits", Groups: []hearthtest.Group{
		{Dir: "slow", Dirs: 1, Files: 20, Min: 16 << 10, Max: 160 << 10}, {Dir: "large", Dirs: 1, Files: 1, Min: 12 << 20, Max: 12 << 20},
		{Dir: "throttled", Dirs: 1, Files: 8, Min: 16 << 10, Max: 160 << 10}, {Dir: "wide", Dirs: 1, Files: 1500, Min: 1, Max: 1},
		{Dir: "denied", Dirs: 1, Files: 3, Min: 1, Max: 1},
		{Dir: "ledger/read", Dirs: 1, Files: 24, Min: 16 << 10, Max: 100 << 10}, {Dir: "ledger/warm", Dirs: 1, Files: 24, Min: 16 << 10, Max: 100 << 10}, {Dir: "ledger/warm/large", Dirs: 1, Files: 1, Min: 9 << 20, Max: 9 << 20}}})
	ledger := filesBelow(list, "ledger/")
	list = slices.DeleteFunc(list, func(f hearthtest.File) bool { return strings.HasPrefix(f.Path, "ledger/") })
	set := settings{endpoint: p.endpoint, mount: []string{"--open", "none"}}
	h := e.mount(o, set)
	for _, f := range list {
		switch name := filepath.Join(h.dir, f.Path); {
		case strings.HasPrefix(f.Path, "throttled"):
			throttled = append(throttled, name)
		case !strings.HasPrefix(f.Path, "wide") && !strings.HasPrefix(f.Path, "denied"):
			slow = append(slow, name)
		}
	}
	const late = 150 * time.Millisecond
	p.SetFirstByte(late)
	e.detail = h.waits("slow", 0.5, "origin", 20*late, append([]string{"cat"}, slow...)...)
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Status: 503, Code: "SlowDown", Percent: 50, Header: map[string]string{"Retry-After": "1"}})
	e.detail += h.waits("throttled", 0.5, "throttled", time.Second, append([]string{"cat"}, throttled...)...)
	h.firstLine("while the origin throttles", "the origin s3://"+o.bucket+" asks to slow down: ", "; fewer nodes at once, a lower origin.connections, or warmup --rate")
	p.ClearRules()
	if s := h.status(); s.Origin.Throttled == 0 || len(s.Links) != 1 || s.Links[0].LastError == nil || !strings.Contains(s.Links[0].LastError.Says, "SlowDown") ||
		s.Origin.FirstByte.Count == 0 || s.Origin.FirstByte.WorstMS < 150 {
		e.Errorf("of the origin's health status says: %+v, %+v", s.Origin, s.Links)
	}
	h.warned(p, filesBelow(list, "denied/")[0])
	const page = 400 * time.Millisecond
	p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Delay: faultproxy.Duration(page)})
	seen := make(chan string, 1)
	go func() { seen <- h.listed() }()
	e.detail += h.waits("listed", 0.9, "list", 2*page, "ls", "-U", filepath.Join(h.dir, "wide"))
	if line := <-seen; !strings.HasPrefix(line, "s3://"+o.bucket+"/wide/: ") {
		e.Errorf("while a directory was listed, status said: %q", line)
	}
	if s := h.status(); s.Egress.Asked["readers"].Bytes < sum(list)-1503 || s.Egress.Asked["readers"].Requests == 0 || s.Egress.Asked["names"].Requests == 0 {
		e.Errorf("the ledger of what was asked: %+v", s.Egress)
	}
	if r := h.status().Reads; r.SinceStart.Bytes < sum(list)-1503 || float64(r.SinceStart.From["origin"]) < 0.9*float64(r.SinceStart.Bytes) || *r.SinceStart.HitBytes > 0.1 ||
		r.TenMinutes.Reads != r.SinceStart.Reads {
		e.Errorf("of a cold cache status says: %+v", r)
	}
	p.ClearRules()
	p.SetFirstByte(0)
	h.asked(p, ledger)
	for _, by := range []string{"disk", "ram"} { // what was asked for twice is in memory
		h.avoided(by, p, filesBelow(ledger, "ledger/read/"))
	}
	h.quit()
	h.launch(o, set)
	h.avoided("disk", p, filesBelow(ledger, "ledger/read/"))
	h.quit()
}

// waitedForDisk: the same of files that the disk holds, on a device whose reads take a
// tenth of a second each: small ones, and large ones in which the kernel reads ahead, so
// that several READs wait at once.
func waitedForDisk(e *env) {
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "waits", Groups: []hearthtest.Group{
		{Dir: "small", Dirs: 2, Files: 20, Min: 16 << 10, Max: 160 << 10}, {Dir: "large", Dirs: 1, Files: 2, Min: 16 << 20, Max: 16 << 20}}})
	d := e.device("slow", 256)
	set := settings{ram: "16MiB", disk: "96MiB", cache: "slow/cache", floor: "1MiB", fresh: "bounded(10m)", mount: []string{"--open", "none"}}
	h := e.mount(o, set)
	h.job(0, "warmup", h.dir)
	// The kernel is lent what was verified since the start, which the first open is not.
	for _, open := range []string{"none", "passthrough"} {
		h.quit() // memory holds nothing then
		set.mount = []string{"--open", open}
		h.launch(o, set)
		d.meet(faultfs.Slow)
		for _, dir := range []string{"small", "large"} {
			args, files := []string{"cat"}, filesBelow(list, dir)
			for _, f := range files {
				args = append(args, filepath.Join(h.dir, f.Path))
			}
			e.detail += h.waits(open+", "+dir, 0.9, "disk", time.Duration(len(files))*time.Second/10, args...)
		}
		d.meet(faultfs.None)
	}
	h.quit()
}

// asked holds the ledger of what was asked of the origin against what a proxy counts there: of
// readers, of a warm-up, and of names.
func (h *hearth) asked(p *proxied, list []hearthtest.File) {
	e := h.e
	e.Helper()
	since := func(purpose string, do func()) {
		e.Helper()
		e.eventually("a silent origin", func() bool { return p.Stats().InFlight == 0 })
		was, before := h.status().Egress.Asked, p.Stats()
		do()
		e.eventually("a silent origin", func() bool { return p.Stats().InFlight == 0 }) // a reader may be ahead of what it counts
		is, after := h.status().Egress.Asked, p.Stats()
		counted := map[string]status.Requests{
			purpose: {Requests: after.Get.Requests - before.Get.Requests, Bytes: after.Get.Bytes - before.Get.Bytes},
			"names": {Requests: after.Head.Requests - before.Head.Requests + after.List.Requests - before.List.Requests, Bytes: after.List.Bytes - before.List.Bytes},
		}
		for name := range is {
			got := status.Requests{Requests: is[name].Requests - was[name].Requests, Bytes: is[name].Bytes - was[name].Bytes}
			// A question that a look-up no longer waits for is given up before its answer was read, or
			// before it was sent.
			if want := counted[name]; got != want && (name != "names" || got.Requests < want.Requests || got.Requests > 2*want.Requests || got.Bytes > want.Bytes || got.Bytes < want.Bytes/2) {
				e.Errorf("asked for %s: the ledger has %+v of %s, the proxy %+v", purpose, got, name, counted[name])
			}
		}
		if n := counted[purpose]; n.Requests == 0 || counted["names"].Requests == 0 {
			e.Errorf("nothing was asked for %s: %+v", purpose, counted)
		}
	}
	since("readers", func() { e.good("cold", epoch(h.dir, filesBelow(list, "ledger/read/"), 1, 4, 0)) })
	since("warm_up", func() { h.job(0, "warmup", "/ledger/warm") })
}

// avoided reads again what the cache holds, most of it in a tier, and holds the ledger of what
// was not asked for against that: each byte once, or twice where the disk gave a block of
// which a reader wanted a part.
func (h *hearth) avoided(most string, p *proxied, list []hearthtest.File) {
	e := h.e
	e.Helper()
	e.cold(h.dir, list)
	was, before := h.status().Egress, p.gets()
	e.good("again", epoch(h.dir, list, 2, 4, 0))
	is := h.status().Egress
	var all status.Requests
	for _, by := range []string{"ram", "disk"} {
		n := status.Requests{Requests: is.Avoided[by].Requests - was.Avoided[by].Requests, Bytes: is.Avoided[by].Bytes - was.Avoided[by].Bytes}
		e.Logf("%d files, %d bytes again: %+v by %s", len(list), sum(list), n, by)
		all.Requests, all.Bytes = all.Requests+n.Requests, all.Bytes+n.Bytes
		if by == most && n.Bytes < sum(list)/2 || (n.Requests == 0) != (n.Bytes == 0) {
			e.Errorf("most of %d bytes were read by %s; avoided by %s: %+v", sum(list), most, by, n)
		}
	}
	if all.Bytes < sum(list) || all.Bytes > 2*sum(list) || all.Requests < int64(len(list)) || all.Requests > 4*int64(len(list)) {
		e.Errorf("%d bytes of %d files were read from the cache; avoided: %+v", sum(list), len(list), all)
	}
	if p.gets() != before || is.Asked["readers"] != was.Asked["readers"] {
		e.Errorf("what is cached was asked for: %+v, then %+v", was.Asked, is.Asked)
	}
}

// firstLine holds the first line of status, which is a warning and no problem, against how
// it is to begin and end.
func (h *hearth) firstLine(when, begin, end string) {
	h.e.Helper()
	out, code := h.ask("status")
	line, _, _ := strings.Cut(out, "\n")
	if code != 0 || !strings.HasPrefix(line, begin) || !strings.HasSuffix(line, end) {
		h.e.Errorf("%s: status ends with %d, its first line is %q", when, code, line)
	}
	if s := h.status(); len(s.Problems) > 0 || h.metric("hearth_warnings") != int64(len(s.Warnings)) || h.metric("hearth_problems") != 0 {
		h.e.Errorf("%s: problems %q, warnings %q", when, s.Problems, s.Warnings)
	}
}

// warned: a warm-up that does not get a file is told of until it is retried, behind an
// origin that has ceased to throttle.
func (h *hearth) warned(p *proxied, one hearthtest.File) {
	h.e.Helper()
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "/denied/", Status: 403, Code: "AccessDenied", Times: 3})
	v := h.job(3, "warmup", "/denied")
	if v.Counters.Failed.Files != 3 {
		h.e.Errorf("a warm-up with three files denied: %+v", v.Counters)
	}
	_, err := readWhole(filepath.Join(h.dir, one.Path), one, 0, make([]byte, 10))
	h.e.must(err, "read a file that was denied") // the origin can be read again
	h.e.eventually("the origin has ceased to throttle", func() bool { return h.status().Links[0].Throttles == "" })
	h.firstLine("after a warm-up that did not get all", "the warm-up "+v.ID+" of /denied ended 0 min ago without all of it", "hearth jobs retry "+v.ID+" loads it")
	if out, code := h.ask("jobs", "retry", v.ID); code != 0 {
		h.e.Errorf("retry: exit %d\n%s", code, out)
	}
	h.job(0, "jobs", "wait", v.ID)
	if out, code := h.ask("status"); code != 0 || !strings.HasPrefix(out, "ok\n") {
		h.e.Errorf("once it was retried: exit %d\n%s", code, out)
	}
}

// listed is the line of status about a listing, once it has found names.
func (h *hearth) listed() string {
	for tick := time.NewTicker(20 * time.Millisecond); h.e.ctx.Err() == nil; <-tick.C {
		s, err := h.client.Status(h.e.ctx)
		if err != nil {
			return err.Error()
		}
		for _, l := range s.Names.Listings {
			if l.Names > 0 {
				return fmt.Sprintf("%s: %d names", l.URL, l.Names)
			}
		}
	}
	return "nothing"
}

// waits runs a reader of one thread under strace. It waits for so long at least, since
// origin or disk are late by that. What the node has counted meanwhile is no less, and no more
// than the reader's life: several READs of one thread that wait at once count once. By the
// kernel's word (strace -T) the reader waited on the mount for half of that at least and
// twice that at most. A part of it at least has its cause.
func (h *hearth) waits(what string, part float64, cause string, least time.Duration, args ...string) string {
	h.e.Helper()
	before, began := h.status().Waits, time.Now()
	strace := h.traced(args...)
	life, total, of := time.Since(began).Seconds(), 0.0, 0.0
	for name, s := range h.status().Waits {
		if total += s - before[name]; name == cause {
			of = s - before[name]
		}
	}
	if total < least.Seconds() || total > life {
		h.e.Errorf("%s: the node counts %.3f s of a reader that waited for %v at least and lived for %.3f s", what, total, least, life)
	}
	if strace < total/2 || strace > 2*total {
		h.e.Errorf("%s: the node counts %.3f s, strace %.3f s", what, total, strace)
	}
	if of < part*total {
		h.e.Errorf("%s: %.3f of %.3f s are put down to %s", what, of, total, cause)
	}
	return fmt.Sprintf("%s %.2f of %.2f s; ", what, total, strace)
}

// traced runs a program under strace and adds up its system calls on the mount, in
// seconds.
func (h *hearth) traced(args ...string) (sum float64) {
	h.e.Helper()
	h.e.count++
	log := h.e.path(fmt.Sprintf("strace-%d", h.e.count))
	if out, code := h.e.run("strace", append([]string{"-f", "-T", "-y", "-s", "0", "-o", log}, args...)...); code != 0 {
		h.e.Fatalf("strace %.80v: exit %d, %.2000s", args, code, out)
	}
	f, err := os.Open(log)
	h.e.must(err, "open what strace wrote")
	defer func() { _ = f.Close() }()
	took := regexp.MustCompile(`<(\d+\.\d+)>$`)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if m := took.FindStringSubmatch(lines.Text()); m != nil && strings.Contains(lines.Text(), h.dir) && !strings.Contains(lines.Text(), "execve(") {
			s, err := strconv.ParseFloat(m[1], 64)
			h.e.must(err, "read %q", lines.Text())
			sum += s
		}
	}
	return sum
}
