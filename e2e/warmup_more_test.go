package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpSlowedDown loads small objects of an origin 100 ms away until many are under way
// at once. Then it asks to slow down again and again: fewer are, and none is lost. Nor is
// one where half of the listings are answered so as well.
func warmUpSlowedDown(e *env) {
	o := e.origin()
	dirs := map[level]int{core: 30, all: 30, full: 400}[e.level]
	list := e.load(o, hearthtest.DataSet{Name: "slow", Groups: []hearthtest.Group{{Dir: "s/dir", Dirs: dirs, Files: 50, Min: 4 << 10, Max: 8 << 10}}})
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	unlisted := e.load(o, hearthtest.DataSet{Name: "unlisted", Groups: []hearthtest.Group{{Dir: "u/dir", Dirs: 20, Files: 5, Min: 4 << 10, Max: 8 << 10}}})
	p := e.proxy(o)
	p.SetFirstByte(100 * time.Millisecond)
	h := e.mount(o, settings{endpoint: p.endpoint})
	id, code := h.ask("warmup", "/s", "--detach")
	if code != 0 {
		e.Fatalf("warmup --detach: exit %d, %s", code, id)
	}
	e.eventually("40 requests at once", func() bool { return p.Stats().Most >= 40 })
	most := p.Stats().Most
	// Until it is taken away: a number of times may be over before anybody looks.
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Percent: 20, Status: 503, Code: "SlowDown"})
	asked := func(n int64) func() bool { return func() bool { return h.status().Origin.Throttled >= n } }
	e.eventually("SlowDown heard for a while", asked(12))
	e.eventually("fewer requests at once", func() bool { return p.Stats().InFlight <= most/2 })
	p.Reset()
	e.eventually("more of the storm", asked(24))
	if s := p.Stats(); s.Most > most*3/4 {
		e.Errorf("%d requests at once while the origin asks to slow down, %d before", s.Most, most)
	}
	p.ClearRules()
	p.SetFirstByte(0) // the rest is as any
	if v := h.job(0, "jobs", "wait", strings.TrimSpace(id)); v.Counters.Sum() != total || v.State != warmup.Done {
		e.Errorf("after the storm: %+v, want %+v", v, total)
	}
	e.listingsSlowedDown(h, p, unlisted)
	p.Down()
	e.good("without the origin", epoch(h.dir, append(list, unlisted...), 3, 4, 0))
	e.must(p.Up(), "open the proxy again")
	h.quit()
}

// listingsSlowedDown warms up directories that were never listed, of which every other
// listing is answered SlowDown, and so are objects: the job goes on and ends with everything.
func (e *env) listingsSlowedDown(h *hearth, p *proxied, list []hearthtest.File) {
	e.Helper()
	const storm = 10
	p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Percent: 50, Times: storm, Status: 503, Code: "SlowDown"})
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Percent: 20, Times: storm, Status: 503, Code: "SlowDown"})
	before, total := h.status().Origin.Throttled, warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	if v := h.job(0, "warmup", "/u"); v.Counters.Done != total || v.Counters.Sum() != total || v.State != warmup.Done {
		e.Errorf("after a storm of listings: %+v, want %+v", v, total)
	}
	if n := h.status().Origin.Throttled - before; n != 2*storm {
		e.Errorf("the origin asked to slow down %d times, and the node heard it %d times", 2*storm, n)
	}
	p.ClearRules()
}

// warmUpFullCache has a cache that is full of other things. A set that takes as much is
// refused where one percent lacks, and the cache stays as it is; with one percent to spare
// it is loaded, and is all there.
func warmUpFullCache(e *env) {
	o := e.origin()
	group := func(dir string, scale int64) []hearthtest.Group {
		return []hearthtest.Group{{Dir: dir + "/large", Dirs: 1, Files: 2, Min: scale * 32 << 20, Max: scale * 32 << 20},
			{Dir: dir + "/small", Dirs: 1, Files: int(scale) * 200, Min: 100_000, Max: 100_000},
			{Dir: dir + "/tiny", Dirs: 1, Files: int(scale) * 1000, Min: 16 << 10, Max: 16 << 10}}
	}
	scale := map[level]int64{core: 1, all: 3, full: 8}[e.level]
	e.load(o, hearthtest.DataSet{Name: "old", Groups: group("old", scale)})
	list := e.load(o, hearthtest.DataSet{Name: "new", Groups: group("new", scale)})
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, floor: "1KiB"}
	at := func(budget int64) *hearth {
		set.disk = fmt.Sprintf("%dKiB", budget>>10)
		return e.mount(o, set)
	}
	budget := scale * 112 << 20
	h := at(budget)
	h.job(0, "warmup", "/old")
	plan := h.dryRun(0, "/new")
	h.quit()
	for _, x := range []struct {
		spare float64
		code  int
	}{{0.99, 8}, {1.01, 0}} {
		set.fresh = map[int]string{8: "bounded(1s)"}[x.code] // so that it is listed again
		h := at(budget + int64(x.spare*float64(plan.Needs)) - plan.Room)
		held := warmup.Tally{}
		if x.code == 8 { // the budget is less than before, for which some goes now; what is left must stay
			e.eventually("the cache is within its budget", func() bool { d := h.diskTier().Dirs[0]; return d.Used <= d.Budget })
			held = h.dryRun(8, "/old").Held
			p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Match: "new%2Fsmall", Times: 1, Delay: faultproxy.Duration(2 * time.Second)})
		}
		before := p.bytes()
		v := h.job(x.code, "warmup", "/new")
		if x.code == 8 { // names take a little, for which an extent may go
			if after := h.dryRun(8, "/old").Held; held.Bytes == 0 || held.Bytes-after.Bytes > 16<<20 {
				e.Errorf("of what was held before the refusal, %+v, is left %+v", held, after)
			}
			p.ClearRules()
		}
		// It is refused as soon as what was counted is too much, in whatever order.
		if x.code == 8 && (v.Kind != "refused" || !strings.Contains(v.Error, "it does not fit: it takes ")) {
			e.Errorf("%v of what it takes: %+v", x.spare, v)
		}
		if x.code == 0 && v.Counters.Done != (warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}) {
			e.Errorf("%v of what it takes: %+v", x.spare, v)
		}
		e.detail += fmt.Sprintf("%v: exit %d after %d MiB; ", x.spare, x.code, (p.bytes()-before)>>20)
		if x.code == 0 {
			p.Down()
			e.good("without the origin", epoch(h.dir, list, 3, 4, 0))
			e.must(p.Up(), "open the proxy again")
		}
		h.quit()
	}
}

// dryRun is the plan of a job that ends with a code.
func (h *hearth) dryRun(code int, args ...string) (plan warmup.Plan) {
	h.e.Helper()
	out, got := h.ask(append([]string{"warmup", "--dry-run", "-o", "json"}, args...)...)
	doc, _, _ := strings.Cut(out, "\nhearth: ")
	if err := json.Unmarshal([]byte(doc), &plan); err != nil || got != code {
		h.e.Fatalf("dry run of %v: exit %d, want %d, %v:\n%s", args, got, code, err, out)
	}
	return plan
}

// warmUpTerminal begins a job on a terminal of 80 columns, which shows it, and closes that:
// the command ends by SIGHUP, and the job goes on.
func warmUpTerminal(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 40, 5, 100))
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint})
	screen, terminal := e.pty()
	cmd := exec.Command(e.hearth, "warmup", "/", "--node", "unix://"+h.socket())
	cmd.Env = append(e.environ(nil), "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.SetFirstByte(200 * time.Millisecond)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // under nohup they are ignored, which a program inherits
	err := hearthtest.Spawn(cmd)
	signal.Stop(hangups)
	e.must(err, "start warmup on a terminal")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	e.Cleanup(func() { _ = cmd.Process.Kill() })
	e.must(terminal.Close(), "close our end")
	shown := make([]byte, 4096)
	n, err := screen.Read(shown)
	e.must(err, "read what the terminal shows")
	if text := string(shown[:n]); !strings.Contains(text, "\r") || strings.Contains(text, "\x1b[2J") {
		e.Errorf("the terminal shows %q", text)
	}
	e.eventually("something loaded", func() bool { return p.gets() > 0 })
	e.must(p.BlackHole(true), "stop the origin")
	e.must(screen.Close(), "close the terminal")
	select {
	case err := <-ended: // by the hang-up, which its state tells below
		e.Logf("the command without a terminal: %v", err)
	case <-time.After(20 * time.Second):
		e.Fatalf("the command outlives its terminal")
	}
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() && s.ExitStatus() == 0 {
		e.Errorf("the command without a terminal: %v", cmd.ProcessState)
	}
	e.must(p.BlackHole(false), "let the origin answer")
	p.SetFirstByte(0)
	v := h.job(0, "jobs", "wait", "latest")
	if v.State != warmup.Done || v.Counters.Done != (warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}) {
		e.Errorf("the job without its terminal: %+v", v)
	}
	h.quit()
}

// pty makes a pseudo terminal: what it shows, and what a program has for its terminal.
func (e *env) pty() (screen, terminal *os.File) {
	e.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	e.must(err, "open a terminal")
	fd := int(screen.Fd())
	e.must(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), "unlock it")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	e.must(err, "ask for its number")
	e.must(unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}), "set its size")
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	e.must(err, "open its other end")
	e.Cleanup(func() { _ = screen.Close(); _ = terminal.Close() })
	return screen, terminal
}
