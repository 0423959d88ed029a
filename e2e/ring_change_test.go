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
// error. What the joiner takes over is found where it was, but for a twentieth at most, and
// then the origin is asked for what left at most.
func ringJoinLeave(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.donated())
	// What all nodes donate is the set twice, so nobody holds a copy of everything.
	r.set.ram, r.set.disk = "32MiB", fmt.Sprintf("%dMiB", 2*sum(list)/5>>20)
	nodes := r.up(5, 0)
	r.well(r.readers(list, false, nodes...))
	excused, files := r.lacks(list, nodes...)
	before, peeked := r.around(nodes...), r.peeks()
	_, joined := r.asked(func() {
		r.reads(list, nodes, func() {
			r.start(r.add(1, 0)...)
			r.agree(r.nodes...)
		})
		r.well(r.readers(list, false, r.nodes...)) // each of them knows the joiner from the first read on
	})
	excused += r.around(r.nodes...) - before
	peeked = r.peeks() - peeked
	n := float64(len(list)) // each is one block
	// Where they were these blocks are copies now, which give way first: a few may be gone. It
	// costs 2 of 333; a joiner that others ask before it knows them cost 50 to 85.
	took := r.share(r.nodes[5]) * n
	r.shows("a joiner cost %d requests beside %d excused and took over %.0f blocks, %d were found at former owners", joined, excused, took, peeked)
	if float64(joined-excused) > took/20 {
		r.Errorf("a node joined and took over %.0f blocks, and the origin was asked %d times for what the others hold, of which %d were declined or read around a node", took, joined, excused)
	}
	if peeked == 0 {
		r.Error("nobody found anything at a former owner")
	}
	leaver := r.nodes[1]
	share := r.share(leaver)
	rest := r.but(leaver)
	before = r.around(rest...)
	_, left := r.asked(func() {
		r.reads(list, rest, func() {
			leaver.quit()
			r.agree(rest...)
		})
	})
	r.shows("a leaver of %.3f cost %.3f", share, float64(left)/n)
	if excused += r.around(rest...) - before; excused > 0 {
		r.shows("%d declined, or read around a node", excused)
	}
	r.excuses("a joiner and a leaver", excused, files)
	r.bounded(r.longest, 0)
	// What the joiner took over others hold; what the leaver owned may be gone with it.
	if float64(joined+left-excused) > 1.1*share*n {
		r.Errorf("a node joined and one with %.3f of everything left, and the origin was asked %d and %d times for %d files, of which %d were declined or read around a node", share, joined, left, len(list), excused)
	}
	r.quit(rest...)
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
	r.bounded(r.longest, 0)
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
