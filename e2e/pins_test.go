package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// pinSets are what is pinned, and three sets that fill the rest of a cache of pinBudget.
func pinSets() hearthtest.DataSet {
	groups := []hearthtest.Group{
		{Dir: "keep/small", Dirs: 4, Files: 40, Min: 10 << 10, Max: 200 << 10},
		{Dir: "keep/large", Dirs: 1, Files: 1, Min: 8 << 20, Max: 8 << 20},
	}
	for i := range 3 {
		groups = append(groups, hearthtest.Group{Dir: fmt.Sprintf("push/%d", i), Dirs: 1, Files: 28, Min: 1 << 20, Max: 1 << 20})
	}
	return hearthtest.DataSet{Name: "pins", Groups: groups}
}

const pinBudget = 64 << 20

// pinned pins a directory of small and large files, pushes five times the cache's budget
// through the mount and through warm-ups, kills the node then and before, stops the origin, and reads what
// is pinned: no request, no error. What does not fit beside it is refused, what is pinned
// is not evicted, and the pin ends when its time has come.
func pinned(e *env) {
	o := e.origin()
	list := e.load(o, pinSets())
	below := func(dir string) (some []hearthtest.File) {
		return slices.DeleteFunc(slices.Clone(list), func(f hearthtest.File) bool { return !strings.HasPrefix(f.Path, dir+"/") })
	}
	keep := below("keep")
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, disk: fmt.Sprint(pinBudget), floor: "1KiB", ram: "64MiB", fresh: "bounded(10m)"}
	h := e.mount(o, set)
	out, code := h.ask("pin", filepath.Join(h.dir, "keep"), "--for", "1h", "--detach")
	h.kill9() // it is loaded all the same, and then pinned
	h.launch(o, set)
	if v := h.job(0, "jobs", "wait", strings.TrimSpace(out)); code != 0 || v.State != warmup.Done || v.Targets[0] != "/keep" {
		e.Fatalf("pin: exit %d, %s, %+v", code, out, v)
	}
	if out, code := h.ask("pin", "/push"); code != 8 || !strings.Contains(out, "does not fit") {
		e.Errorf("%d bytes pinned beside that: exit %d, %s", sum(below("push")), code, out)
	}
	if out, code := h.ask("pin"); code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, "/keep") {
		e.Errorf("pin: exit %d\n%s", code, out)
	}
	before, read := p.bytes(), h.status().Reads.SinceStart.Bytes
	for i := 0; p.bytes()-before < 5*pinBudget || h.status().Reads.SinceStart.Bytes-read < 5*pinBudget; i++ {
		dir := fmt.Sprintf("push/%d", i%3)
		if i == 60 {
			e.Fatalf("after %d rounds %d bytes came from the origin, %d were read", i, p.bytes()-before, h.status().Reads.SinceStart.Bytes-read)
		}
		h.job(0, "warmup", "/"+dir)
		e.cold(h.dir, below(dir)) // else the kernel answers
		e.good("what is read beside the pin", epoch(h.dir, below(dir), uint64(i), 4, 0))
	}
	through, came := h.status().Reads.SinceStart.Bytes-read, p.bytes()-before
	h.kill9()
	h.launch(o, set)
	h.job(0, "warmup", "/push/2")
	h.job(0, "warmup", "/push/0")
	e.detail = fmt.Sprintf("%d MiB through the mount, %d MiB from the origin", through>>20, came>>20)
	p.Down()
	asked := p.requests()
	e.good("what is pinned, without the origin", epoch(h.dir, keep, 7, 4, 0))
	if n := p.requests() - asked; n != 0 {
		e.Errorf("that asked the origin %d times", n)
	}
	e.must(p.Up(), "open the proxy again")
	h.letGo(len(keep))
	h.quit()
}

// letGo ends the pin of /keep, which has so many files, by its time.
func (h *hearth) letGo(files int) {
	e := h.e
	e.Helper()
	pins := h.status().Pins
	if len(pins) != 1 || pins[0].Path != "/keep" || pins[0].Files != int64(files) || pins[0].Lacks != "" {
		e.Errorf("the pins: %+v", pins)
	}
	if out, code := h.ask("unpin", "/keep/large"); code != 4 || !strings.Contains(out, "the nearest: /keep") {
		e.Errorf("unpin what is not pinned: exit %d, %s", code, out)
	}
	if out, code := h.ask("evict", "/keep/large"); code != 8 || !strings.Contains(out, "hearth unpin /keep") {
		e.Errorf("evict what is pinned: exit %d, %s", code, out)
	}
	h.job(0, "warmup", "--pin=1s", "/keep")
	e.eventually("the end of the pin", func() bool { return len(h.status().Pins) == 0 })
	for _, args := range [][]string{{"--dry-run", "would drop"}, {"--yes", "dropped"}} {
		if out, code := h.ask("evict", "/keep", args[0]); code != 0 || !strings.HasPrefix(out, fmt.Sprintf("%s %d files, ", args[1], files)) {
			e.Errorf("evict %s: exit %d, %s", args[0], code, out)
		}
	}
	if out, code := h.ask("warmup", "--pin=1s", "--rate", "4MiB/s", "/keep/large"); code != 0 || !strings.Contains(out, "; not pinned: that ended at ") {
		e.Errorf("a pin of a second for what takes longer to load: exit %d, %s", code, out)
	}
	e.eventually("its end", func() bool { return len(h.status().Pins) == 0 })
	if doc := h.statusJSON(); doc["pins"] == nil {
		e.Errorf("status has no pins: %v", doc)
	}
}
