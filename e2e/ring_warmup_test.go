package e2e

import (
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// ringWarmUp warms up a set on one of five nodes: the origin sends it once, and each block
// that is counted stands in a tier of its owner, so that all nodes read everything once the
// origin is away. A check asks the owners, and names what one of them does not hold as it
// was written, until another warm-up brought that.
func ringWarmUp(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, ringWarmSet(e.level))
	nodes, total := r.up(5, 0), warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	var v warmup.View
	r.once("origin", list, nodes, func() { v = nodes[1].job(0, "warmup", "/") })
	if v.Counters.Held() != total {
		r.Errorf("a warm-up of %+v has %+v", total, v.Counters)
	}
	r.whole(nodes[3], list, total)
	r.names(list, nodes...)
	r.p.Down()
	r.all("without the origin", list, 1, nodes...)
	r.must(r.bucket.Do(r.p.Up), "open the proxy again")
	r.hurt(list)
	if got, _ := r.asked(func() { v = nodes[4].job(0, "warmup", "/") }); got > list[0].Size {
		r.Errorf("another warm-up asked the origin for %d bytes", got)
	}
	r.whole(nodes[2], list, total)
	r.quit(nodes...)
}

// ringWarmSet is small files, the first of them, and large ones of several parts.
func ringWarmSet(l level) hearthtest.DataSet {
	small, large := hearthtest.Group{Dir: "w/small", Dirs: 10, Files: 40, Min: 60 << 10, Max: 160 << 10},
		hearthtest.Group{Dir: "w/large", Dirs: 1, Files: 2, Min: 40<<20 + 12345, Max: 40<<20 + 12345}
	if l == full {
		small.Dirs, small.Files = 100, 200
		large.Files, large.Min, large.Max = 4, 512<<20, 512<<20
	}
	return hearthtest.DataSet{Name: "ring-warm", Groups: []hearthtest.Group{small, large}}
}

// whole has a node check the set, all of which its owners hold.
func (r *ring) whole(m *member, list []hearthtest.File, total warmup.Tally) {
	r.Helper()
	if v, code := m.checked(list); code != 0 || v.Checked.Whole != total || v.Checked.Bad() {
		r.Errorf("a check by %s of %+v: exit %d, %+v, %+v", m.name, total, code, v.Checked, v.Samples)
	}
}

// names has nodes know the names of files: a warm-up has its own node list, and each of the
// others asks for names when it first looks.
func (r *ring) names(list []hearthtest.File, nodes ...*member) {
	r.Helper()
	var readers []*reader
	for _, m := range nodes {
		readers = append(readers, r.reader(job{Op: "stat", Dir: m.dir, Files: list}))
	}
	r.well(readers)
}

// hurt changes a byte of the first file where its owner keeps it: a check by another node
// names the file and the node, and then that it is missing there.
func (r *ring) hurt(list []hearthtest.File) {
	r.Helper()
	f := list[0]
	owner, _ := r.owner(r.nodes[0], f, 0)
	s, err := owner.client.Stat(r.ctx, "/"+f.Path)
	r.must(err, "stat %s", f.Path)
	segment, at := r.record(owner.set.cache, s.Version)
	hearthtest.FlipByte(r, segment, at+200, 0x40)
	checker := r.but(owner)[0]
	for _, says := range []string{"corrupt", "missing"} { // at once missing where a check was done again
		v, code := checker.checked(list)
		named := slices.ContainsFunc(v.Samples, func(s warmup.Sample) bool {
			return s.Path == "/"+f.Path && (s.What == says || s.What == "missing") && strings.HasPrefix(s.Cause, "at node "+owner.name+": ")
		})
		c := v.Checked
		if code != 3 || !named || c.Corrupt.Files+c.Missing.Files != 1 || c.Whole.Files != int64(len(list))-1 {
			r.Errorf("a check by %s of what is %s at %s: exit %d, %+v, %+v", checker.name, says, owner.name, code, c, v.Samples)
		}
	}
}
