package e2e

import (
	"fmt"
	"os"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/config"
)

// ringVolumes has three nodes, whose disks hold less than a set, keep it on two volumes, a copy on each. A volume's
// target is killed in the midst of an epoch, then a node by SIGKILL, and then all nodes lose their processes and their
// disks. Nobody reads a wrong byte, and the origin is asked for no block that a volume in use holds, but for what nodes
// account for.
func ringVolumes(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	// A node's share is a third more than a disk holds of the least size that counts as donated.
	v := &ringed{ring: r, list: r.load(r.o, e.set("D1", 12, 200, 12, 200))}
	for _, name := range []string{"one", "two"} {
		file := e.volumeFile(name, v.list, config.Membership{Cluster: "e2e", KeyFile: r.key})
		v.targets = append(v.targets, e.target(r.machine(0), file, false))
	}
	r.set.fresh, r.set.ram, r.set.disk = "immutable", "64MiB", fmt.Sprintf("%dMiB", max(64, sum(v.list)/4>>20))
	r.set.extra = volumeLines("all", 2, v.targets[0].url(), v.targets[1].url())
	r.up(3, 0)
	v.fill()
	v.targetKilled()
	v.nodeKilled()
	v.allKilled()
	r.quit(r.nodes...)
	for _, t := range v.targets {
		t.conforms()
	}
}

// ringed is a ring with volumes, and the set that it reads.
type ringed struct {
	*ring
	list     []hearthtest.File // each is one block
	targets  []*target
	one, two int64 // blocks that each volume held at last
}

// known waits until nodes know their volumes, nothing waits to be written, and each volume holds as many blocks as
// before. Each block has one node that answers for it, so none counts twice, but for a moment after a node came: one
// that knew nobody yet answered for all.
func (v *ringed) known(what string, nodes ...*member) {
	v.Helper()
	v.eventually(fmt.Sprintf("%d and %d blocks on the volumes, %s", v.one, v.two, what), func() bool {
		var one, two int64
		for _, m := range nodes {
			m.rests()
			all := m.volumes()
			one, two = one+all[0].Blocks, two+all[1].Blocks
		}
		if files := int64(len(v.list)); one < v.one || two < v.two || max(one, two) > files {
			return false
		}
		v.one, v.two = one, two
		return true
	})
}

// lacks counts the blocks of the set that a volume does not hold which holds so many.
func (v *ringed) lacks(holds int64) int64 { return max(0, int64(len(v.list))-holds) }

// hits are the reads that the volumes of nodes answered.
func (v *ringed) hits(nodes ...*member) (n int64) {
	v.Helper()
	for _, m := range nodes {
		n += m.hits()
	}
	return n
}

// fill reads the set until the volumes hold most of it. A volume whose writes lag drops blocks, and gets those only when
// a disk evicts them.
func (v *ringed) fill() {
	v.Helper()
	v.known("empty", v.nodes...)
	for range tries {
		v.well(v.readers(v.list, false, v.nodes...))
		if v.known("filled", v.nodes...); max(v.lacks(v.one), v.lacks(v.two)) < int64(len(v.list))/10 {
			v.shows("the volumes hold %d and %d of %d", v.one, v.two, len(v.list))
			return
		}
	}
	v.Fatalf("after %d epochs the volumes hold %d and %d of %d files: %+v", tries, v.one, v.two, len(v.list), v.nodes[0].volumes())
}

// epoch has nodes read the set, and holds what the origin was asked for against what the volumes lack and what nodes
// account for: blocks that an owner did not give, which are read past it, and requests that were sent again. A former
// owner that is late is no reason, since the volumes come behind it. Of the blocks that get another owner meanwhile,
// moved, each may be asked for once, before that one has read the indexes; again if its disk declines it. happens is
// called in the midst, when volumes have answered reads, and the readers go on until it is over; nil means nothing.
func (v *ringed) epoch(what string, lacks, moved int64, happens func(), nodes ...*member) {
	v.Helper()
	before, hits, declined := v.events(nodes...), v.hits(nodes...), v.declined(nodes...)
	bytes, gets := v.asked(func() {
		readers := v.readers(v.list, happens != nil, nodes...)
		if happens != nil {
			v.eventually("reads from volumes", func() bool { return v.hits(nodes...) > hits+20 })
			happens()
		}
		v.bounded(v.well(readers))
	})
	since := v.events(nodes...).since(before)
	most := lacks + since.passed + since.retries
	if moved > 0 {
		most += moved + v.declined(nodes...) - declined
	}
	hits = v.hits(nodes...) - hits
	v.Logf("%s: %d requests, %d bytes, at most %d; volumes lacked %d and answered %d; %v", what, gets, bytes, most, lacks, hits, since)
	v.shows("%s: %d hits, %d requests", what, hits, gets)
	if gets > most {
		v.Errorf("%s: the origin was asked %d times, for %d bytes; volumes lacked %d blocks, %v", what, gets, bytes, lacks, since)
	}
	if moved == 0 && hits < int64(len(v.list))/20 {
		v.Errorf("%s: volumes answered %d reads of a set of %d files that the disks do not hold", what, hits, len(v.list))
	}
	if moved == 0 {
		v.excuses(what, since.passed+since.retries, int64(len(v.list)))
	}
}

// targetKilled ends an epoch with one volume's target killed in its midst. The other volume has a copy.
func (v *ringed) targetKilled() {
	v.Helper()
	dead := v.targets[1]
	v.epoch("a target killed", v.lacks(v.one), 0, func() {
		dead.Kill()
		for _, m := range v.nodes {
			v.eventually("the line on the volume at "+m.name, func() bool { return m.problem("volume " + dead.url() + " is out of use") })
		}
	}, v.nodes...)
	dead.restart()
	for _, m := range v.nodes {
		v.eventually("no line any more at "+m.name, func() bool { return !m.problem("volume " + dead.url()) })
	}
	v.known("after a target's end", v.nodes...)
}

// nodeKilled ends an epoch with a node killed in its midst. Afterwards the others know all that the volumes hold, also
// in the segments that it had open, and the next epoch costs nothing that a volume holds.
func (v *ringed) nodeKilled() {
	v.Helper()
	dead := v.nodes[2]
	rest := v.but(dead)
	owned := int64(v.owned(v.told(rest[0], v.list), v.list)[dead.name])
	v.epoch("a node killed", v.lacks(max(v.one, v.two)), owned, func() { dead.kill9(); v.agree(rest...) }, rest...)
	v.known("after a node's end", rest...)
	v.epoch("after a node's end", v.lacks(max(v.one, v.two)), 0, nil, rest...)
	v.known("before it is back", rest...)
	v.start(dead)
	v.agree(v.nodes...)
	v.known("when it is back", v.nodes...)
}

// allKilled kills all nodes and starts them without their cache directories. The volumes have the set.
func (v *ringed) allKilled() {
	v.Helper()
	for _, m := range v.nodes {
		m.kill9()
	}
	for _, m := range v.nodes {
		v.must(os.RemoveAll(v.path(m.set.cache)), "take a cache directory away")
	}
	v.start(v.nodes...)
	v.agree(v.nodes...)
	v.known("after all nodes' end", v.nodes...)
	v.epoch("all afresh", v.lacks(max(v.one, v.two)), 0, nil, v.nodes...)
}
