package e2e

import (
	"fmt"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// ringBack has two nodes go and come back, one with a smaller cache than it left with, one
// with a larger, while objects change that their caches hold: each owns another part of
// everything then. No read fails or has a byte of a version before, and what anybody holds
// is found without the origin, with those who owned it until then.
func ringBack(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.env.set("D1", 5, 200, 5, 200))
	changed, kept := list[:100], list[100:]
	all := sum(list)
	sized := func(times float64) string { return fmt.Sprintf("%.0fMiB", times*float64(all)/(1<<20)) }
	r.set.fresh, r.set.ram, r.set.disk = "bounded(1s)", "32MiB", sized(2.7) // nothing gives way to anything
	nodes := r.up(5, 0)
	smaller, larger := nodes[1], nodes[2]
	r.well(r.readers(list, false, smaller))
	was := []float64{r.share(smaller), r.share(larger)}
	smaller.quit()
	for _, f := range changed {
		r.must(r.o.PutFile(r.ctx, r.o.bucket, "", f, 1), "change %s", f.Path)
	}
	rest := r.but(smaller)
	r.agree(rest...)
	r.settled(changed, rest...)
	r.well(r.readers(kept, false, nodes[0]))
	smaller.set.disk = sized(0.7) // less than its directory holds
	r.start(smaller)
	r.agree(nodes...)
	larger.quit()
	r.agree(r.but(larger)...)
	larger.set.disk = sized(5.4)
	r.start(larger)
	r.agree(nodes...)
	is := []float64{r.share(smaller), r.share(larger)}
	if is[0] > 0.7*was[0] || is[1] < 1.3*was[1] {
		r.Errorf("shares of %.3f became %.3f", was, is)
	}
	r.shows("shares of %.2f became %.2f", was, is)
	r.found(kept, changed, smaller, nodes[3], nodes[4], larger)
	r.bounded(r.longest)
	r.quit(nodes...)
}

// settled waits until nodes give the second version of files.
func (r *ring) settled(list []hearthtest.File, nodes ...*member) {
	r.Helper()
	for i, m := range nodes {
		r.eventually("the second version at "+m.name, func() bool { return len(epoch(m.dir, list, uint64(i), 4, 1).errors) == 0 })
	}
}

// found has nodes read what lies at owners before and now, and counts what the origin was
// asked for beyond what nodes account for: reads that went around a node, and blocks that
// the disks of those declined that have room for everything; small has not.
func (r *ring) found(kept, changed []hearthtest.File, small *member, rest ...*member) {
	r.Helper()
	peeked, before := r.peeks(), r.events(r.nodes...)
	nodes := append(rest, small)
	bytes, gets := r.asked(func() {
		for i, m := range nodes { // what was changed while it was away is new at once, for its names are too old
			r.good(m.name+", changed", epoch(m.dir, changed, uint64(i), 4, 1))
		}
		r.well(r.readers(kept, false, nodes...))
	})
	since, declined := r.events(r.nodes...).since(before), r.declined(r.but(small)...)
	excused := since.around() + declined
	r.excuses("nodes that came back", excused, int64(len(kept)+len(changed)))
	if gets > excused {
		r.Errorf("the origin was asked %d times, for %d bytes of what the ring holds; %d blocks were declined, %v", gets, bytes, declined, since)
	}
	peeked = r.peeks() - peeked
	if peeked == 0 {
		r.Error("nobody found anything at a former owner")
	}
	r.shows("%d blocks found at former owners, the origin asked for %d of %d that it may be", peeked, gets, excused)
}

// peeks are the blocks that nodes found at former owners.
func (r *ring) peeks() (n int64) {
	r.Helper()
	for _, m := range r.nodes {
		n += m.status().Ring.Reads.Found
	}
	return n
}
