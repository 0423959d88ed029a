package e2e

import (
	"fmt"
	"slices"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// leastRatio is what is left of the speed of cached reads while others hang. It is about
// 1 on an idle machine; what is measured in one run, in turn, is apart by this much
// only if somebody waits.
const leastRatio = 0.3

// cachedSpeed reads what is cached, from the disk tier and RAM and not the kernel's
// pages, in turn while eight readers hang on an origin that stalls in its bodies and
// while it is well. No request for it reaches the origin, the eight hang meanwhile, and
// the medians of the two are not far apart: the table shows their ratio.
func cachedSpeed(e *env) {
	s := &sick{env: e, o: e.origin(), files: map[string][]hearthtest.File{}}
	rounds := map[level]int{all: 3, full: 9}[e.level]
	for i := range map[level]int{all: 300, full: 1500}[e.level] {
		s.put(hearthtest.File{Path: fmt.Sprintf("known/f%04d", i), Size: 100<<10 + int64(i)})
	}
	for i := range 8 * rounds {
		s.put(hearthtest.File{Path: fmt.Sprintf("cold/f%02d", i), Size: 200<<10 + int64(i)})
	}
	s.p = e.proxy(s.o)
	s.h = e.mount(s.o, settings{endpoint: s.p.endpoint, ram: "16MiB", fresh: "bounded(1h)", origin: ", timeout: 2m"})
	list := s.cached()
	e.good("cold", epoch(s.h.dir, list, 1, 8, 0))
	timed := func(what string, seed uint64) time.Duration {
		e.cold(s.h.dir, list)
		start := time.Now()
		e.good(what, epoch(s.h.dir, list, seed, 4, 0))
		return time.Since(start)
	}
	timed("to settle", 2)
	var well, ill []time.Duration
	stall := sickness{rules: []faultproxy.Rule{{Body: faultproxy.Stall, At: 1000}}}
	for round := range rounds {
		s.ail(stall, true)
		before := s.h.status().Mounts[0].Ops["read_misses"]
		var hanging []*reader
		for _, f := range s.files["cold"][8*round : 8*round+8] {
			hanging = append(hanging, s.reader(job{Op: "read", Dir: s.h.dir, Files: []hearthtest.File{f}}))
		}
		e.eventually("eight readers that wait", func() bool { return s.h.status().Mounts[0].Ops["read_misses"] >= before+8 })
		asked := s.p.requests()
		ill = append(ill, timed("while eight readers hang", uint64(round)+3))
		if n := s.p.requests() - asked; n > 8 { // those of the eight that were on their way
			e.Errorf("cached files asked the origin %d times", n)
		}
		for _, r := range hanging {
			if r.out.String() != "" {
				e.Errorf("a reader of a stalled origin did not wait: %s", r.out)
			}
			e.must(r.Process.Kill(), "kill a reader")
			<-r.done
		}
		s.ail(stall, false)
		s.p.Down() // ends what is stalled: the kernel takes back no read-ahead of who was killed
		e.must(s.p.Up(), "bring the origin back")
		well = append(well, timed("while the origin is well", uint64(round)+3))
	}
	slices.Sort(well)
	slices.Sort(ill)
	ratio := float64(well[len(well)/2]) / float64(ill[len(ill)/2])
	e.detail = fmt.Sprintf("cached reads at %.2f of well", ratio)
	if ratio < leastRatio {
		e.Errorf("cached reads at %.2f of their speed while others hang, less than %.1f: %v, and well %v", ratio, leastRatio, ill, well)
	}
	s.h.quit()
}
