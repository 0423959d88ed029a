package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Of a sick origin's mount: how long the origin may be silent, unless a scenario
// takes the default; and the default of origin.timeout. A system call may take three
// times that, as docs/failures.md has it.
const (
	sickTimeout    = time.Second
	defaultTimeout = 10 * time.Second
)

// beyond has a request wait for its origin for longer than any scenario lasts: a call that
// ends has been ended by something else.
const beyond = ", timeout: 1h"

// sickness is one way in which an origin fails.
type sickness struct {
	name   string
	rules  []faultproxy.Rule
	fall   func(s *sick) // instead of rules
	rise   func(s *sick)
	names  outcome // of lookups of names that are not known
	lists  outcome // of listings that are not known
	small  outcome // of reads of a small file that is not cached
	large  outcome // of a larger one
	says   string  // a part of the log line's cause; "": nothing is logged
	silent bool    // readers wait for as long as the bound lets them
	root   bool
	// counters of the metrics that grow.
	counters []string
}

// outcome of what needs the origin.
type outcome int

const (
	right outcome = iota // data, late perhaps
	fails                // EIO
)

// sicknesses in the order of docs/failures.md, of an origin that may be silent for
// timeout.
func sicknesses(timeout time.Duration) []sickness {
	every := func(r faultproxy.Rule) []faultproxy.Rule { return []faultproxy.Rule{r} }
	get := func(r faultproxy.Rule) []faultproxy.Rule { r.Verb = faultproxy.Get; return every(r) }
	later := map[string]string{"Retry-After": "1"}
	const busy = "Please reduce your request rate."
	const throttled, retries = "hearth_origin_throttled_total", "hearth_origin_retries_total"
	wrong := map[string]string{"Content-Length": "77"}
	return []sickness{
		{name: "delay", rules: every(faultproxy.Rule{Delay: faultproxy.Duration(timeout / 4)})},
		{name: "delay-beyond-bound", rules: every(faultproxy.Rule{Delay: faultproxy.Duration(time.Minute)}),
			names: fails, lists: fails, small: fails, large: fails, says: "does not answer", silent: true},
		{name: "unavailable-then-well", rules: every(faultproxy.Rule{Status: 503, Code: "ServiceUnavailable", Header: later, Times: 5}),
			counters: []string{throttled, retries}},
		{name: "slow-down", rules: every(faultproxy.Rule{Status: 503, Code: "SlowDown", Message: busy, Header: later}),
			names: fails, lists: fails, small: fails, large: fails, says: "503 SlowDown", counters: []string{throttled}},
		{name: "reset-mid-body", rules: every(faultproxy.Rule{Body: faultproxy.Reset, At: 5000}),
			lists: fails, small: fails, large: fails, says: "ends connections"},
		{name: "truncation", rules: every(faultproxy.Rule{Body: faultproxy.Truncate, At: 5000}),
			lists: fails, small: fails, large: fails, says: "unexpected EOF"},
		{name: "endless-body", rules: every(faultproxy.Rule{Body: faultproxy.Endless}), lists: fails, says: "a page of more than"},
		{name: "wrong-length", rules: []faultproxy.Rule{{Verb: faultproxy.Get, Header: wrong}, {Verb: faultproxy.List, Header: wrong}},
			lists: fails, small: fails, large: fails, says: "77 bytes for"},
		{name: "wrong-etag", rules: get(faultproxy.Rule{Header: map[string]string{"ETag": `"another"`}}), small: fails, large: fails, says: "another"},
		{name: "wrong-range", rules: get(faultproxy.Rule{Shift: 4096}), small: fails, large: fails, says: "bytes 4096 to"},
		{name: "200-for-206", rules: get(faultproxy.Rule{Whole: true}), large: fails, says: "status 200"},
		{name: "stall", rules: every(faultproxy.Rule{Body: faultproxy.Stall, At: 1000}),
			lists: fails, small: fails, large: fails, says: "does not answer", silent: true},
		{name: "black-hole", root: true, fall: blackHole(true), rise: blackHole(false),
			names: fails, lists: fails, small: fails, large: fails, says: "does not answer", silent: true},
		{name: "stopped", fall: func(s *sick) { s.pause(s.o.Command.Process) },
			rise:  func(s *sick) { s.must(s.o.Command.Process.Signal(syscall.SIGCONT), "let the server go on") },
			names: fails, lists: fails, small: fails, large: fails, says: "does not answer", silent: true},
		{name: "refused", fall: func(s *sick) { s.p.Down() }, rise: func(s *sick) { s.must(s.p.Up(), "open the port") },
			names: fails, lists: fails, small: fails, large: fails, says: "nobody listens"},
		{name: "dns-gone", root: true, fall: (*sick).forgetName, rise: func(s *sick) { s.names.answers(true) },
			names: fails, lists: fails, small: fails, large: fails, says: "is not found"},
		{name: "credentials-revoked", rules: every(faultproxy.Rule{Status: 403, Code: "InvalidAccessKeyId", Message: "No such key."}),
			names: fails, lists: fails, small: fails, large: fails, says: "does not know the access key"},
		{name: "clock-skewed", rules: every(faultproxy.Skewed()),
			names: fails, lists: fails, small: fails, large: fails, says: "clock"},
	}
}

func blackHole(on bool) func(*sick) {
	return func(s *sick) { s.must(s.p.BlackHole(on), "drop packets, or let them in") }
}

// sickScenarios are a row of the table for each fault, in one open mode: what a fault comes
// to is decided by package origin, below FUSE and whatever mode a file is opened in. That
// this is so three faults show in all modes, each of which ends a read in its own way: at
// the bound, after several attempts, and at once.
func sickScenarios() []scenario {
	var list []scenario
	inCore := []string{"slow-down", "wrong-length", "black-hole"}
	inAllModes := []string{"stall", "truncation", "200-for-206"}
	for _, mode := range []string{"none", "passthrough", "plain"} {
		for _, k := range sicknesses(sickTimeout) {
			from := all
			switch {
			case mode != "none" && !slices.Contains(inAllModes, k.name):
				continue
			case mode == "none" && slices.Contains(inCore, k.name):
				from = core
			}
			list = append(list, scenario{name: "sick-" + k.name + "-" + mode, root: k.root, from: from, limit: 2 * time.Minute,
				origin: "versitygw behind the fault proxy", size: func(level) string { return "8 readers" },
				run: func(e *env) { sickOrigin(e, k, mode, sickTimeout) }})
			if k.silent || k.name == "slow-down" { // readers wait
				list = append(list, scenario{name: strings.TrimSuffix("killed-"+k.name+"-"+mode, "-none"), root: k.root, from: from, limit: time.Minute,
					origin: "versitygw behind the fault proxy", size: func(level) string { return "readers in up to 4 calls" }, run: func(e *env) { killedReaders(e, k, mode) }})
			}
			if mode == "none" && (k.name == "black-hole" || k.name == "slow-down") {
				list = append(list, scenario{name: "sick-" + k.name + "-default-timeout", root: k.root, from: full, limit: 2 * time.Minute,
					origin: "versitygw behind the fault proxy", size: func(level) string { return "8 readers" }, run: func(e *env) { sickOrigin(e, k, mode, defaultTimeout) }})
			}
		}
	}
	gone := sickness{fall: func(s *sick) { s.p.Down() }, rise: func(s *sick) { s.must(s.p.Up(), "open the port") }}
	silent := sickness{fall: blackHole(true), rise: blackHole(false)}
	unavailable := sickness{rules: []faultproxy.Rule{{Status: 503, Code: "ServiceUnavailable"}}}
	denied := sickness{rules: []faultproxy.Rule{{Status: 403, Code: "AccessDenied", Message: "Access Denied."}}}
	for _, a := range []away{{"bounded", "bounded(2s)", false, gone}, {"silent", "bounded(2s)", false, silent}, {"unavailable", "bounded(2s)", false, unavailable},
		{"denied", "bounded(2s)", false, denied}, {"immutable", "immutable", false, gone}, {"strict", "strict", true, gone}, {"fail-stale", "bounded(2s)", true, gone}} {
		list = append(list, scenario{name: "away-" + a.name, from: all, limit: 2 * time.Minute, origin: "versitygw behind the fault proxy",
			size: func(level) string { return "8 files" }, run: func(e *env) { awayOrigin(e, a) }})
	}
	return append(list, scenario{name: "sick-cached-meanwhile", from: all, limit: 2 * time.Minute, origin: "versitygw behind the fault proxy",
		size: func(l level) string {
			return map[level]string{all: "300 files (REDUCED)", full: "1,500 files"}[l]
		}, run: cachedMeanwhile})
}

// sick is an origin that falls ill, and the mount that stands on it.
type sick struct {
	*env
	o     *server
	p     *proxied
	h     *hearth
	names *nameServer // nil: the origin is known by its address
	files map[string][]hearthtest.File
	most  time.Duration // that a system call may take: three times origin.timeout
	// longest is what one took that met the fault.
	longest time.Duration
}

// sickOrigin has eight readers at work while the origin fails in one way: each of
// their system calls ends within the bound with right bytes or EIO, one log line
// names key and cause, what is cached goes on without the origin, nobody is stuck,
// and when the fault is gone all is well again without a restart.
func sickOrigin(e *env, k sickness, mode string, timeout time.Duration) {
	s := newSick(e, k, mode, timeout)
	before := s.h.figures(k.counters)
	said := len(s.h.out.String())
	s.ail(k, true)
	s.known("what is cached, from a sick origin", 2)
	s.forget() // else the kernel would answer for names
	s.readAll(k)
	s.logged(k, said)
	for name, n := range s.h.figures(k.counters) {
		if n <= before[name] {
			s.Errorf("%s is %v as before", name, n)
		}
	}
	s.known("what is cached, after that", 3)
	s.ail(k, false)
	if k.name == "refused" { // one is enough: it takes what a node waits before it tries again
		s.eventually("a status without a problem, though nobody reads", func() bool { return len(s.h.status().Problems) == 0 })
	}
	s.recovers()
	s.sparing()
	if timeout == defaultTimeout {
		s.detail = fmt.Sprintf("the longest call took %v of %v", s.longest.Round(time.Millisecond), s.most)
		if k.silent && s.longest < timeout {
			s.Errorf("no call took as long as the default of origin.timeout: %v", s.longest)
		}
	}
	s.h.quit()
}

// killedReaders wait for an origin that is silent or has them ask later, one in each call
// that may. Nothing but the kill ends their calls.
func killedReaders(e *env, k sickness, mode string) {
	s := newSick(e, k, mode, time.Hour)
	s.ail(k, true)
	cold := s.files["cold"]
	jobs := []job{{Op: "read", Dir: s.h.dir, Files: s.files["names"][2:3]}, {Op: "readdir", Dir: s.h.dir, Files: cold}}
	if k.names == fails {
		jobs = append(jobs, job{Op: "stat", Dir: s.h.dir, Files: cold[3:4]}, job{Op: "open", Dir: s.h.dir, Files: cold[5:6]})
	}
	if e.variant != "masked" {
		s.killTogether(jobs)
	} else { // without parallel_dirops one waits for the other in the kernel
		for _, j := range jobs {
			s.killTogether([]job{j})
		}
	}
	s.ail(k, false)
	s.revive()
	s.h.quit()
}

func newSick(e *env, k sickness, mode string, timeout time.Duration) *sick {
	s := &sick{env: e, o: e.origin(), files: map[string][]hearthtest.File{}, most: 3 * timeout}
	for dir, n := range map[string]int{"known": 8, "names": 4, "cold": 8} {
		for i := range n {
			s.put(hearthtest.File{Path: fmt.Sprintf("%s/f%02d", dir, i), Size: 100<<10 + int64(i)})
		}
		s.put(hearthtest.File{Path: dir + "/large", Size: 3<<20 + 4097})
	}
	s.p = e.proxy(s.o)
	set := settings{endpoint: s.p.endpoint, fresh: "bounded(10m)", mount: opens(mode)}
	if timeout != defaultTimeout {
		set.origin = fmt.Sprintf(", timeout: %v", timeout)
	}
	if k.root {
		s.names = e.nameServer()
		set.endpoint = byName(s.p.endpoint)
	}
	s.h = e.mount(s.o, set)
	for _, dir := range []string{"", "known", "names"} {
		_, err := os.ReadDir(filepath.Join(s.h.dir, dir))
		e.must(err, "list %s", dir)
	}
	e.good("while the origin is well", epoch(s.h.dir, s.cached(), 1, 4, 0))
	return s
}

func (s *sick) put(f hearthtest.File) {
	s.Helper()
	s.must(s.o.PutFile(s.ctx, s.o.bucket, "", f, 0), "put %s", f.Path)
	dir := filepath.Dir(f.Path)
	s.files[dir] = append(s.files[dir], f)
}

func (s *sick) cached() []hearthtest.File { return s.files["known"] }

// ail makes the origin fall ill, or well.
func (s *sick) ail(k sickness, ill bool) {
	s.Helper()
	switch {
	case k.fall != nil && ill:
		k.fall(s)
	case k.fall != nil:
		k.rise(s)
	case ill:
		for _, r := range k.rules {
			s.p.AddRule(r)
		}
	default:
		s.p.ClearRules()
	}
}

// readAll runs the eight readers, each a process of its own.
func (s *sick) readAll(k sickness) {
	s.Helper()
	at := func(op string, f hearthtest.File, loop bool) job {
		return job{Op: op, Dir: s.h.dir, Files: []hearthtest.File{f}, Loop: loop}
	}
	cold, names, known := s.files["cold"], s.files["names"], s.files["known"]
	jobs := []job{at("stat", cold[0], false), at("open", cold[1], false), at("read", names[0], false), at("read", names[4], false),
		{Op: "readdir", Dir: s.h.dir, Files: cold},
		{Op: "read", Dir: s.h.dir, Files: known, Loop: true}, {Op: "readdir", Dir: s.h.dir, Files: known, Loop: true}, at("stat", known[0], true)}
	wants := []outcome{k.names, k.names, k.small, k.large, k.lists, right, right, right}
	most := s.most
	if s.variant == "masked" { // without parallel_dirops who looks a name up has who lists that directory wait
		most *= 2
	}
	var readers []*reader
	for _, j := range jobs {
		readers = append(readers, s.reader(j))
	}
	for i, r := range readers {
		if jobs[i].Loop {
			r.end()
		}
		got := r.result(most + machineSlack)
		what := fmt.Sprintf("%s of %s", jobs[i].Op, jobs[i].Files[0].Path)
		s.longest = max(s.longest, got.Longest)
		if got.Longest > most+machineSlack {
			s.Errorf("%s: one system call took %v, the bound is %v", what, got.Longest, most)
		}
		if len(got.Wrong) > 0 {
			s.Errorf("%s: %v", what, got.Wrong)
		}
		if eio := got.Errors["EIO"]; len(got.Errors) > min(eio, 1) || (wants[i] == fails) != (eio > 0) || wants[i] == right && got.Done == 0 {
			s.Errorf("%s: done %d times, errors %v", what, got.Done, got.Errors)
		}
	}
	s.noneStuck()
	for i, r := range readers {
		if r.end(); r.exit(10*time.Second) != 0 {
			s.Errorf("reader %d ended with %d", i, r.ProcessState.ExitCode())
		}
	}
}

// revive ends what still hangs in the proxy, of readers that nobody takes back and of
// listings that nobody waits for, and has the origin answer again.
func (s *sick) revive() {
	s.Helper()
	s.p.Down()
	s.must(s.p.Up(), "bring the origin back")
}

// killTogether kills readers that wait for the origin side by side: they end while it is as
// silent as before.
func (s *sick) killTogether(jobs []job) {
	s.Helper()
	counts := map[string]string{"read": "read_misses", "readdir": "readdir", "stat": "lookup", "open": "lookup"}
	var waiting []*reader
	for _, j := range jobs {
		waiting = append(waiting, s.waiting(counts[j.Op], j))
	}
	for i, r := range waiting {
		if r.out.String() != "" {
			s.Errorf("%s did not wait: %s", jobs[i].Op, r.out)
		}
	}
	for _, r := range waiting {
		s.must(r.Process.Kill(), "kill a reader")
	}
	for i, r := range waiting {
		r.gone("a reader killed in " + jobs[i].Op)
	}
}

// waiting starts a reader that waits for the origin: a count of the kernel's requests
// says when it does.
func (s *sick) waiting(count string, j job) *reader {
	s.Helper()
	asked := func() int64 { return s.h.status().Mounts[0].Ops[count] }
	before := asked()
	r := s.reader(j)
	s.eventually("a reader that waits", func() bool { return asked() > before })
	return r
}

// recovers reads all, cached or not, and finds every byte right within the bound. Until
// then a call may fail as it did before, with EIO and no other way.
func (s *sick) recovers() {
	s.Helper()
	list := slices.Concat(s.files["cold"], s.files["names"], s.files["known"])
	over := time.Now().Add(s.most + 2*machineSlack)
	s.eventually("recovery", func() bool {
		failed := epoch(s.h.dir, list, 4, 4, 0).errors
		for _, err := range failed {
			if !errors.Is(err, syscall.EIO) {
				s.Fatalf("while the origin recovers: %v", err)
			}
		}
		if len(failed) > 0 && time.Now().After(over) {
			s.Fatalf("no recovery within %v: %v", s.most+2*machineSlack, failed)
		}
		return len(failed) == 0
	})
	s.eventually("a status without a problem", func() bool { return len(s.h.status().Problems) == 0 })
}

// away is how names are kept of an origin that is gone.
type away struct {
	name, fresh string
	fails       bool // EIO beyond the bound
	by          sickness
}

// awayOrigin is gone for longer than names may be old: they and cached files go
// on, or give EIO, as the link's freshness says, and status and a metric tell.
func awayOrigin(e *env, a away) {
	s := &sick{env: e, o: e.origin(), files: map[string][]hearthtest.File{}, most: 3 * sickTimeout}
	for i := range 8 {
		s.put(hearthtest.File{Path: fmt.Sprintf("known/f%02d", i), Size: 100<<10 + int64(i)})
	}
	s.p = e.proxy(s.o)
	set := settings{endpoint: s.p.endpoint, fresh: a.fresh, origin: fmt.Sprintf(", timeout: %v", sickTimeout)}
	if a.fails {
		set.link = ", stale_if_error: false"
	}
	s.h = e.mount(s.o, set)
	e.must(s.look(), "list while the origin is well")
	e.good("while the origin is well", epoch(s.h.dir, s.cached(), 1, 4, 0))
	s.ail(a.by, true)
	switch {
	case a.fails:
		e.eventually("EIO", func() bool { return errors.Is(s.look(), syscall.EIO) })
		if _, err := os.ReadFile(filepath.Join(s.h.dir, "known/f01")); !errors.Is(err, syscall.EIO) {
			e.Errorf("a file beyond its bound: %v", err)
		}
		e.tells(s.h, "cannot be asked", "hearth_names_stale 1")
	case a.fresh != "immutable":
		e.eventually("that names are shown beyond their bound", func() bool {
			e.must(s.look(), "list while the origin is away")
			return s.h.status().Names.Stale != ""
		})
		e.tells(s.h, "the last known names are shown", "hearth_names_stale 1")
		fallthrough
	default:
		e.must(s.look(), "list while the origin is away")
		e.good("cached, while the origin is away", epoch(s.h.dir, s.cached(), 2, 4, 0))
	}
	s.noneStuck()
	s.ail(a.by, false)
	s.recovers()
	e.tells(s.h, "ok", "hearth_names_stale 0")
	s.h.quit()
}

// look lists the known directory and looks up a name in it. Both end while the origin is
// as it is; package origin holds after how long.
func (s *sick) look() error {
	s.Helper()
	known := filepath.Join(s.h.dir, "known")
	names, err := os.ReadDir(known)
	if err == nil && len(names) != len(s.cached()) {
		err = fmt.Errorf("%d names", len(names))
	}
	_, stat := os.Stat(filepath.Join(known, "f00"))
	return errors.Join(err, stat)
}
