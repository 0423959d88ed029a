package e2e

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// reads has readers read a set on nodes, again and again, while something happens. It returns
// the longest system call of all.
func (r *ring) reads(list []hearthtest.File, nodes []*member, happens func()) (longest time.Duration) {
	r.Helper()
	readers := r.readers(list, true, nodes...)
	happens()
	longest = r.well(readers)
	r.Logf("the longest read took %v", longest)
	return longest
}

// ringJoinLeave has a node join and another leave while all the others read: nobody gets an
// error. What the joiner takes over is found where it was, but for a tenth at most, and then the
// origin is asked for what left at most; nodes account for each request.
func ringJoinLeave(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.donated())
	// What all nodes donate is the set twice, so nobody holds a copy of everything.
	r.set.ram, r.set.disk = "32MiB", fmt.Sprintf("%dMiB", 2*sum(list)/5>>20)
	nodes := r.up(5, 0)
	_, start := r.fetched(nodes[0]) // what a node's start asks the origin: whether it can be read
	r.well(r.readers(list, false, nodes...))
	lacks, files := r.lacks(list, nodes...)
	before, peeked, declined := r.events(nodes...), r.peeks(), r.declined(nodes...)
	_, joined := r.asked(func() {
		r.reads(list, nodes, func() {
			r.start(r.add(1, 0)...)
			r.agree(r.nodes...)
		})
		r.well(r.readers(list, false, r.nodes...)) // each of them knows the joiner from the first read on
	})
	since, peeked := r.events(r.nodes...).since(before), r.peeks()-peeked
	lacks += r.declined(r.nodes...) - declined
	owned := r.owned(r.told(nodes[0], list), list) // each is one block
	took := int64(owned[r.nodes[5].name])
	r.shows("a joiner cost %d requests and took over %d blocks, %d were found at former owners; %d were declined, %v", joined, took, peeked, lacks, since)
	r.accounts("a node joined", joined-start, since)
	r.excuses("a joiner", lacks+since.around(), files)
	// Where they were these blocks are copies now, which give way first: a few may be gone. It
	// costs none of 333; a joiner that others ask before it knows them cost 50 to 85.
	lost := since.gone + since.alone - lacks
	if lost > took/10 {
		r.Errorf("a node joined and took over %d blocks, and %d were lost; %d were declined, %v", took, lost, lacks, since)
	}
	if peeked == 0 {
		r.Error("nobody found anything at a former owner")
	}
	leaver := r.nodes[1]
	rest := r.but(leaver)
	before, declined = r.events(rest...), r.declined(rest...)
	_, left := r.asked(func() {
		r.reads(list, rest, func() {
			leaver.quit()
			r.agree(rest...)
		})
	})
	since, lacks = r.events(rest...).since(before), lacks+r.declined(rest...)-declined
	r.shows("a leaver of %d blocks cost %d", owned[leaver.name], left)
	r.accounts("a node left", left, since)
	r.excuses("a leaver", lacks+since.around(), files)
	r.bounded(r.longest)
	// What the joiner took over others hold; what the leaver owned may be gone with it.
	if lost += since.gone; lost > int64(owned[leaver.name])+lacks+took/10 {
		r.Errorf("a node left that owned %d blocks, and former owners hold %d no more; %d were declined", owned[leaver.name], lost, lacks)
	}
	r.quit(rest...)
}

// accounts fails the scenario where the origin was asked for more than nodes account for while
// nodes came or went: each own block is asked of former owners first.
func (r *ring) accounts(what string, gets int64, since events) {
	r.Helper()
	if gets > since.around()+since.gone+since.alone {
		r.Errorf("%s, and the origin was asked %d times; %v", what, gets, since)
	}
}

// share is the part of everything that a node owns.
func (r *ring) share(of *member) float64 {
	r.Helper()
	s := of.sees()
	if s == nil {
		r.Fatalf("%s does not say how it sees the ring", of.name)
	}
	for _, m := range s.Members {
		if m.Name == of.name {
			return m.Share
		}
	}
	r.Fatalf("%s does not know itself: %+v", of.name, s)
	return 0
}

// ringRestart ends all nodes and starts them at new addresses, and then each in turn at its
// own: what they held is found, and the origin is not asked for it.
func ringRestart(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.part("D1", 5))
	nodes := r.up(5, 0)
	r.all("before", list, 1, nodes...)
	r.gone = r.declined(nodes...)
	r.quit(nodes...)
	for _, m := range nodes {
		r.must(m.at.Move(), "give %s another address", m.name)
	}
	r.start(nodes...)
	r.agree(nodes...)
	r.again("at new addresses", list, nodes, func() { r.all("at new addresses", list, 2, nodes...) })
	for i, m := range nodes {
		r.reads(list, r.but(m), func() {
			r.gone += m.declined()
			m.quit()
			m.join = nodes[(i+1)%len(nodes):][:1]
			r.start(m)
			r.agree(nodes...)
		})
	}
	r.again("restarted in turn", list, nodes, func() { r.all("restarted in turn", list, 3, nodes...) })
	r.bounded(r.longest)
	r.quit(nodes...)
}

// ringKept has the node processes of a ring killed in turn, twice, while readers read on all nodes: their mounts are kept, and
// nobody gets an error.
func ringKept(e *env) {
	if !resends() {
		e.Skip("a mount outlives its node on Linux 6.9 or later")
	}
	r := e.ring(0)
	if r == nil {
		return
	}
	r.set.keep = true
	list := r.load(r.o, r.part("D1", 3))
	nodes := r.add(3, 0)
	nodes[0].join = nodes[1:] // where it is started again
	r.start(nodes...)
	r.agree(nodes...)
	r.all("before", list, 1, nodes...)
	for i := range 2 * len(nodes) {
		m := nodes[i%len(nodes)]
		longest := r.reads(list, nodes, func() {
			pid := m.status().PID
			r.must(unix.Kill(pid, unix.SIGKILL), "kill %s", m.name)
			r.eventually("the next node of "+m.name, func() bool {
				s, err := m.client.Status(r.ctx)
				return err == nil && s.PID != pid
			})
			r.agree(nodes...)
		})
		r.shows("%s killed: the longest read %v, its mount stood still for %.2f s", m.name, longest, m.status().Keeper.StalledS)
	}
	r.quit(nodes...)
}

// ringEnd ends all nodes at once: the last ones find nobody who hears that they leave, and
// that is no failure.
func ringEnd(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.few(2, 20))
	nodes := r.up(5, 0)
	r.all("before", list, 1, nodes...)
	for _, m := range nodes {
		m.idle()
	}
	for _, m := range nodes {
		r.must(m.Process.Signal(unix.SIGTERM), "end %s", m.name)
	}
	for _, m := range nodes {
		m.ended()
	}
	r.start(nodes...)
	r.agree(nodes...)
	r.quit(nodes...)
}
