package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// machineSlack is what a machine with other work to do may add to any bound that a
	// scenario holds a system call to.
	machineSlack = 2 * time.Second
	// logEvery is how often one kind of trouble is logged (docs/operations.md).
	logEvery = time.Minute
)

// opens are the arguments of a mount that opens files in a mode.
func opens(mode string) []string {
	if mode == "plain" { // is what a kernel without passthrough gets who asks for it
		return []string{"--open", "passthrough", "--fuse-without", "passthrough"}
	}
	return []string{"--open", mode}
}

// lends fails the scenario where a mount that opens by passthrough has lent no open to
// the kernel since it had lent so many: what was looked at is another mode then.
func (h *hearth) lends(before int64) {
	h.e.Helper()
	m := h.status().Mounts[0]
	h.e.Logf("of %d opens %d were lent to the kernel, %d for that", m.Ops["open"], m.Ops["lent"], before)
	if m.Open == "passthrough" && m.Ops["lent"] == before {
		h.e.Error("no open was lent to the kernel")
	}
}

// forget has the kernel drop the names and inodes that nobody uses, of all mounts. Who
// has no privileges cannot ask for that.
func (e *env) forget() {
	e.Helper()
	if e.variant != "nobody" {
		e.must(os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0), "drop what the kernel knows")
	}
}

// forgetListing drops the kernel's copy of a directory's listing.
func forgetListing(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fadvise(int(d.Fd()), 0, 0, unix.FADV_DONTNEED), d.Close())
}

// noneStuck fails the scenario where a thread stays in state D, of the readers, the node
// and the servers. Some are in it in passing, as who writes to a disk.
func (e *env) noneStuck() {
	e.Helper()
	left, over := e.inD(), time.Now().Add(machineSlack)
	e.eventually("that nobody is in state D", func() bool {
		now := e.inD()
		maps.DeleteFunc(left, func(thread, _ string) bool { return now[thread] == "" })
		if len(left) > 0 && time.Now().After(over) {
			e.Errorf("in state D for %v, once the bound has passed: %v", machineSlack, left)
			return true
		}
		return len(left) == 0
	})
}

// inD are the threads in state D of the scenario's processes, whose arguments or
// environment name its directory: the names of their files, and what these say.
func (e *env) inD() map[string]string {
	found := map[string]string{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes { // one that has ended is not stuck
		arguments, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		variables, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if !bytes.Contains(append(arguments, variables...), []byte(e.dir)) {
			continue
		}
		stats, _ := filepath.Glob(filepath.Join(dir, "task/[0-9]*/stat"))
		for _, name := range stats {
			text, _ := os.ReadFile(name)
			if at := bytes.LastIndexByte(text, ')'); at > 0 && bytes.HasPrefix(text[at:], []byte(") D")) {
				found[name] = string(text[:at+3])
			}
		}
	}
	return found
}

// known has the node, and not the kernel, answer for the names that are known and what
// is cached: all is right, and the origin is not asked.
func (s *sick) known(what string, seed uint64) {
	s.Helper()
	dir := filepath.Join(s.h.dir, "known")
	s.cold(s.h.dir, s.cached())
	s.must(forgetListing(dir), "have the kernel forget the listing")
	s.forget()
	ops, asked := s.h.status().Mounts[0].Ops, s.p.requests()
	s.good(what, epoch(s.h.dir, s.cached(), seed, 4, 0))
	if names, err := os.ReadDir(dir); err != nil || len(names) != len(s.cached()) {
		s.Errorf("%s: a listing of %d names: %v", what, len(names), err)
	}
	now := s.h.status().Mounts[0].Ops
	if n := now["readdir"] - ops["readdir"]; n == 0 {
		s.Errorf("%s: the kernel answered for the listing", what)
	}
	if n := now["lookup"] - ops["lookup"]; n < int64(len(s.cached())) && s.variant != "nobody" {
		s.Errorf("%s: the node was asked for %d of %d names", what, n, len(s.cached()))
	}
	if n := s.p.requests() - asked; n != 0 {
		s.Errorf("%s: the origin was asked %d times", what, n)
	}
}

// logged waits for one line with the cause and a key of those that readers asked for.
// Where nothing is to be logged, there is no warning in what was said since.
func (s *sick) logged(k sickness, since int) {
	s.Helper()
	if k.says == "" {
		if text := s.h.out.String()[since:]; strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
			s.Errorf("%s is logged:\n%s", k.name, text)
		}
		return
	}
	s.eventually("a log line with a key and "+k.says, func() bool {
		for line := range strings.Lines(s.h.out.String()) {
			if strings.Contains(line, k.says) && (strings.Contains(line, "names/") || strings.Contains(line, "cold/")) {
				return true
			}
		}
		return false
	})
}

// sparing fails the scenario where the log has an origin's failures more often than once
// a minute and kind.
func (s *sick) sparing() {
	s.Helper()
	last := map[string]time.Time{}
	lines := regexp.MustCompile(`(?m)^time=(\S+) level=WARN msg="(origin cannot be \w+)"`).FindAllStringSubmatch(s.h.out.String(), -1)
	for _, line := range lines {
		at, err := time.Parse(time.RFC3339Nano, line[1])
		s.must(err, "read the log's time")
		if before, ok := last[line[2]]; ok && at.Sub(before) < logEvery {
			s.Errorf("%q is logged %v after another", line[2], at.Sub(before))
		}
		last[line[2]] = at
	}
	if n := strings.Count(s.h.out.String(), "origin cannot be "); n != len(lines) {
		s.Errorf("%d lines of %d could be read:\n%s", len(lines), n, s.h.out)
	}
}

// metrics are what the node exports.
func (h *hearth) metrics() string {
	h.e.Helper()
	admin := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.socket())
	}}
	defer admin.CloseIdleConnections()
	resp, err := (&http.Client{Transport: admin}).Get("http://node/metrics")
	h.e.must(err, "ask for the metrics")
	text, err := io.ReadAll(resp.Body)
	h.e.must(errors.Join(err, resp.Body.Close()), "read the metrics")
	return string(text)
}

// figures are metrics without labels, by their names.
func (h *hearth) figures(names []string) map[string]float64 {
	h.e.Helper()
	all := map[string]float64{}
	if len(names) == 0 {
		return all
	}
	text := h.metrics()
	for _, name := range names {
		_, value, _ := strings.Cut(text, "\n"+name+" ")
		value, _, _ = strings.Cut(value, "\n")
		n, err := strconv.ParseFloat(value, 64)
		h.e.must(err, "read the metric %s", name)
		all[name] = n
	}
	return all
}

// tells waits until status and the metrics say something.
func (e *env) tells(h *hearth, says, metric string) {
	e.Helper()
	e.eventually(fmt.Sprintf("status with %q and %q", says, metric), func() bool {
		text := h.metrics()
		return strings.Contains(h.status().Says, says) && strings.Contains(text, "\n"+metric+"\n")
	})
}
