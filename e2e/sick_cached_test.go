package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// cachedMeanwhile reads what is cached, from the disk tier and RAM and not the kernel's
// pages, while eight readers wait for an origin that stalls in its bodies and has seven
// connections for them, as much as all of them. The cached reads end, all others wait on,
// and none of the cached files is asked for: the origin denies them meanwhile.
func cachedMeanwhile(e *env) {
	const hanging = 8
	s := &sick{env: e, o: e.origin(), files: map[string][]hearthtest.File{}}
	for i := range map[level]int{all: 300, full: 1500}[e.level] {
		s.put(hearthtest.File{Path: fmt.Sprintf("known/f%04d", i), Size: 100<<10 + int64(i)})
	}
	for i := range hanging {
		s.put(hearthtest.File{Path: fmt.Sprintf("cold/f%02d", i), Size: 200<<10 + int64(i)})
	}
	s.p = e.proxy(s.o)
	s.h = e.mount(s.o, settings{endpoint: s.p.endpoint, ram: "16MiB", fresh: "bounded(1h)", origin: ", connections: 8" + beyond})
	list := s.cached()
	e.good("cold", epoch(s.h.dir, list, 1, 8, 0))
	_, err := os.ReadDir(filepath.Join(s.h.dir, "cold")) // so that the readers ask for bytes alone
	e.must(err, "list what is not cached")
	s.ail(sickness{rules: []faultproxy.Rule{{Match: "/known/", Status: 403, Code: "AccessDenied"}, {Verb: faultproxy.Get, Body: faultproxy.Stall, At: 1000}}}, true)
	before := s.h.status().Mounts[0].Ops["read_misses"]
	var waiting []*reader
	for _, f := range s.files["cold"] {
		waiting = append(waiting, s.reader(job{Op: "read", Dir: s.h.dir, Files: []hearthtest.File{f}}))
	}
	e.eventually("eight readers that wait for seven connections", func() bool {
		return s.h.status().Mounts[0].Ops["read_misses"] >= before+hanging && s.p.Stats().InFlight >= hanging-1
	})
	asked := s.p.requests()
	for round := range uint64(3) {
		e.cold(s.h.dir, list)
		e.good("while eight readers wait", epoch(s.h.dir, list, e.seed()+round, 4, 0))
	}
	if n := s.p.requests() - asked; n > 0 {
		e.Errorf("meanwhile the origin was asked %d times", n)
	}
	if n := s.p.Stats().InFlight; n < hanging-1 {
		e.Errorf("%d requests wait on", n)
	}
	for _, r := range waiting {
		if r.out.String() != "" {
			e.Errorf("a reader of a stalled origin did not wait: %s", r.out)
		}
		r.kill()
	}
	s.ail(sickness{}, false)
	s.revive()
	s.recovers()
	s.h.quit()
}
