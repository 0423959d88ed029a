package e2e

import (
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

// slowOrigin is the first byte of an origin that is asked while owners come to harm.
const slowOrigin = 400 * time.Millisecond

// victim is a file that is not cached, and its owner.
type victim struct {
	file  hearthtest.File
	owner *member
}

// toll is how many blocks nodes did not get of owners who were silent or lost, as those say that
// were to get them.
func (r *ring) toll(nodes ...*member) (n int64) {
	r.Helper()
	for _, m := range nodes {
		x := m.status().Ring.Reads.Passed
		n += x["silent"] + x["down"]
	}
	return n
}

// victims are so many files with different owners, none of which is the first node.
func (r *ring) victims(n int) (all []victim) {
	r.Helper()
	for try := 0; len(all) < n; try++ {
		f := hearthtest.File{Path: "victims/" + string(rune('a'+try)), Size: 8<<20 + 12345}
		r.must(r.o.PutFile(r.ctx, r.o.bucket, "", f, 0), "put a file")
		owner, _ := r.owner(r.nodes[0], f, 0)
		if owner != r.nodes[0] && !slices.ContainsFunc(all, func(v victim) bool { return v.owner == owner }) {
			all = append(all, victim{f, owner})
		}
	}
	return all
}

// struck has readers on other nodes begin with the victim's file, and does harm to its owner
// while that one asks the origin for it.
func (r *ring) struck(v victim, nodes []*member, harm func(*member)) []*reader {
	r.Helper()
	before := r.p.gets()
	readers := r.readers([]hearthtest.File{v.file}, false, nodes...)
	r.eventually("a request for "+v.file.Path, func() bool { return r.p.gets() > before })
	harm(v.owner)
	return readers
}

// harmed has nodes read a set while others come to harm by strike, which has the origin asked for
// more and tells who reads that: nobody waits for longer than he may.
func (r *ring) harmed(list []hearthtest.File, nodes []*member, strike func() []*reader) {
	r.Helper()
	before := r.toll(nodes...)
	r.p.SetFirstByte(slowOrigin)
	readers := append(strike(), r.readers(list, false, nodes...)...)
	r.p.SetFirstByte(0) // what is under way has its delay
	r.bounded(r.well(readers))
	if r.toll(nodes...) == before {
		r.Error("owners came to harm while they were asked, and no read went past one")
	}
}

// ringOwnerKilled kills the owner of a block that is being read, and then another, and when they
// are back two more at once, while all the other nodes read a set besides: nobody gets an error
// or waits for long.
func ringOwnerKilled(e *env) {
	r := e.ring(originLink)
	if r == nil {
		return
	}
	list := r.load(r.o, r.part("D1", 5))
	r.set.fresh = "bounded(1s)" // victims come while the nodes run
	nodes := r.up(5, nodeLink)
	victims := r.victims(4)
	first, last := victims[:2], victims[2:]
	rest := r.but(first[0].owner, first[1].owner)
	r.harmed(list, rest, func() (readers []*reader) {
		for _, v := range first {
			readers = append(readers, r.struck(v, rest, func(m *member) { m.kill9() })...)
		}
		return readers
	})
	r.agree(rest...)
	r.again("after two deaths", list, rest, func() { r.all("after two deaths", list, 2, rest...) })
	r.bounded(r.reads(list, rest, func() {
		r.start(first[0].owner, first[1].owner)
		r.agree(nodes...)
	}))
	rest = r.but(last[0].owner, last[1].owner)
	r.harmed(list, rest, func() []*reader {
		readers := r.struck(last[0], rest, func(*member) {})
		return append(readers, r.struck(last[1], rest, func(m *member) {
			m.kill9()
			last[0].owner.kill9()
		})...)
	})
	r.start(last[0].owner, last[1].owner)
	r.agree(nodes...)
	r.quit(nodes...)
}

// ringStopped stops an owner by SIGSTOP while others read what it owns: their reads go
// elsewhere, before anybody knows that it is gone, and afterwards it is one of them again.
func ringStopped(e *env) {
	r := e.ring(originLink)
	if r == nil {
		return
	}
	list := r.load(r.o, r.part("D1", 5))
	r.set.fresh = "bounded(1s)" // victims come while the nodes run
	nodes := r.up(5, nodeLink)
	v := r.victims(1)[0]
	rest := r.but(v.owner)
	silences := r.failures(v.owner, "silence", rest...)
	r.harmed(list, rest, func() []*reader { return r.struck(v, rest, func(m *member) { r.pause(m.Process) }) })
	if r.failures(v.owner, "silence", rest...) == silences {
		r.Errorf("%s was stopped while it was asked, and nobody met its silence: reads waited until it was thought dead", v.owner.name)
	}
	r.agree(rest...)
	r.doubted(v.owner, rest)
	r.bounded(r.reads(list, rest, func() {
		r.must(v.owner.Process.Signal(unix.SIGCONT), "let the owner go on")
		r.agree(nodes...)
	}))
	r.eventually("that nobody thinks another dead", func() bool {
		s := nodes[0].sees()
		return s != nil && !slices.ContainsFunc(s.Members, func(m status.Member) bool { return m.Silent != "" || len(m.Suspects) > 0 })
	})
	r.all("after the stop", list, 2, nodes...)
	r.quit(nodes...)
}

// doubted waits until each of the nodes says that it thinks one other not alive, and has
// `hearth ring ls` show that of one of them.
func (r *ring) doubted(of *member, by []*member) {
	r.Helper()
	r.eventually("who thinks "+of.name+" not alive", func() bool {
		s := by[0].sees()
		return s != nil && !slices.ContainsFunc(s.Members, func(m status.Member) bool {
			return m.Name != of.name && !slices.Equal(m.Suspects, []string{of.name})
		})
	})
	row := regexp.MustCompile(`(?m)^ *` + of.name + ` .* ` + by[0].name + `, ` + by[1].name)
	if out, code := by[0].ask("ring", "ls"); code != 0 || !row.MatchString(out) {
		r.Errorf("hearth ring ls, exit %d, does not say that %s and %s think %s not alive:\n%s", code, by[0].name, by[1].name, of.name, out)
	}
}

// slowLink is the rate of an owner's link, in Mbit/s, at which a block is on its way for half
// a second, and midst are the bytes that have come of one when the owner comes to harm.
const slowLink, midst = 16, 256 << 10

// ringMidst has owners come to harm while the bytes of a block are on their way from them:
// one is killed, so that its connections end, and one is cut off, so that nothing comes any
// more. Their readers get the rest elsewhere, and none waits for longer than it may.
func ringMidst(e *env) {
	r := e.ring(originLink)
	if r == nil {
		return
	}
	r.set.fresh = "bounded(1s)" // victims come while the nodes run
	nodes := r.up(5, nodeLink)
	victims := r.victims(2)
	rest := r.but(victims[0].owner, victims[1].owner)
	for i, harm := range []struct {
		as string // among a node's failures with a peer
		do func(*member)
	}{
		{"broken", func(m *member) { m.kill9() }},
		{"silence", func(m *member) {
			r.must(r.net.Cut(hosts([]*member{m}), append(hosts(r.but(m)), r.bucket)), "cut %s off", m.name)
		}},
	} {
		v := victims[i]
		r.good("at its owner", epoch(v.owner.dir, []hearthtest.File{v.file}, 1, 1, 0))
		r.must(v.owner.at.Limit(slowLink), "slow a link down")
		before, failed := r.sent(v.owner), r.failures(v.owner, harm.as, rest...)
		readers := r.readers([]hearthtest.File{v.file}, false, rest...)
		r.eventually("the midst of an answer", func() bool { return r.sent(v.owner) > before+midst })
		harm.do(v.owner)
		if sent := r.sent(v.owner) - before; sent > v.file.Size {
			r.Errorf("%d bytes had come of a file of %d: that is no midst", sent, v.file.Size)
		}
		r.bounded(r.well(readers))
		if n := r.failures(v.owner, harm.as, rest...) - failed; n == 0 {
			r.Errorf("nobody met the %s of %s", harm.as, v.owner.name)
		}
	}
	r.must(r.net.Heal(), "heal the cut")
	r.start(victims[0].owner)
	r.agree(nodes...)
	r.quit(nodes...)
}

// sent are the bytes that a node's machine has sent.
func (r *ring) sent(m *member) int64 {
	r.Helper()
	sent, _, err := m.at.Traffic()
	r.must(err, "read a node's traffic")
	return sent
}

// failures are how often nodes met a failure of a kind with a peer.
func (r *ring) failures(with *member, kind string, nodes ...*member) (n int64) {
	r.Helper()
	for _, m := range nodes {
		for _, p := range m.status().Ring.Peers {
			if p.Name == with.name {
				n += p.Failures[kind]
			}
		}
	}
	return n
}

// ringCut parts a ring in two: both halves go on, and each asks the origin for a set once;
// healed, all know all again without anybody's help. Nobody who reads meanwhile waits for long.
func ringCut(e *env) {
	r := e.ring(originLink)
	if r == nil {
		return
	}
	set := r.part("D1", 5)
	list := r.load(r.o, set)
	set.Groups[0].Dir = "cut/class"
	fresh := r.load(r.o, set)
	nodes := r.up(6, nodeLink)
	halves := []*half{{nodes: nodes[:3]}, {nodes: nodes[3:]}}
	for _, h := range halves {
		h.before = r.account(h)
	}
	began := time.Now()
	r.must(r.net.Cut(hosts(halves[0].nodes), hosts(halves[1].nodes)), "cut the ring in two")
	r.bounded(r.well(r.readers(list, false, nodes...)))
	for i, h := range halves {
		r.agree(h.nodes...)
		r.once([]string{"one half", "the other"}[i], fresh, h.nodes, func() { r.all("during the cut", fresh, uint64(i), h.nodes...) })
	}
	if e.level == full { // so long that gossip has forgotten the others
		r.bounded(r.reads(list, nodes, func() { <-time.After(time.Until(began.Add(3 * time.Minute))) }))
	}
	for _, h := range halves {
		h.since = r.account(h)
	}
	r.bounded(r.reads(list, nodes, func() {
		r.must(r.net.Heal(), "heal the cut")
		healed := time.Now()
		r.agree(nodes...)
		r.shows("healed in %v", time.Since(healed).Round(100*time.Millisecond))
	}))
	for _, h := range halves {
		r.allowed(h, list, fresh)
	}
	r.again("healed", fresh, nodes, func() { r.all("healed", fresh, 3, nodes...) })
	r.quit(nodes...)
}

// half is nodes that the others are cut off from, and what it asked the origin for until then
// and until it was healed.
type half struct {
	nodes         []*member
	before, since sums
}

// sums are what nodes got of the origin, and how often they met a failure with each other.
type sums struct{ bytes, gets, failures int64 }

func (r *ring) account(h *half) (s sums) {
	r.Helper()
	s.bytes, s.gets = r.fetched(h.nodes...)
	for _, m := range h.nodes {
		for _, kind := range []string{"refused", "error", "mismatch", "silence", "broken"} {
			s.failures += r.failures(m, kind, h.nodes...)
		}
	}
	return s
}

// allowed fails the scenario where a half got more of the origin since the cut than it may of
// two sets, the first of which it read before it knew of the cut, and each block of which is
// one file. What has its first or second rank in the half is read by that one, at once or
// when the first is silent, and belongs to it afterwards: once. Of what has neither the ranks
// are silent that a reader asks, and it reads that by itself, as long as it knows the others;
// then a third rank does for all who have not. So each node of the half may have to, but
// none twice, for it keeps what it read. The second set is read by a half that agrees: once.
// Where a machine is so slow that nodes of one half found each other silent, that counts, too.
func (r *ring) allowed(h *half, detected, fresh []hearthtest.File) {
	r.Helper()
	bytes, gets, largest := sum(fresh), int64(len(fresh)), int64(0)
	for _, f := range detected {
		first, second := r.owner(r.nodes[0], f, 0)
		times := int64(1)
		if !slices.Contains(h.nodes, first) && !slices.Contains(h.nodes, second) {
			times = int64(len(h.nodes))
		}
		bytes, gets = bytes+times*f.Size, gets+times
		largest = max(largest, f.Size)
	}
	// A failure fails all that a node asks another at once: a block for each of its readers.
	failures := readersOfAll * (h.since.failures - h.before.failures)
	r.excuses("nodes of one half", failures, int64(len(detected)+len(fresh)))
	got, asked := h.since.bytes-h.before.bytes, h.since.gets-h.before.gets
	if got > bytes+failures*largest || asked > gets+failures {
		r.Errorf("since the cut a half asked the origin %d times, for %d bytes, at most for %d blocks of %d bytes; its nodes failed each other for %d blocks at most", asked, got, gets, bytes, failures)
	}
	whole := float64(sum(detected) + sum(fresh))
	r.shows("since the cut a half got %.3f of at most %.3f of both sets", float64(got)/whole, float64(bytes)/whole)
	if failures > 0 {
		r.shows("and %d blocks by failures in it", failures)
	}
}

func hosts(nodes []*member) (all []*nets.Host) {
	for _, m := range nodes {
		all = append(all, m.at)
	}
	return all
}
