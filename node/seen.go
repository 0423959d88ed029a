package node

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/ring"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/origin"
)

// seen holds what a node counts in addition to its parts.
type seen struct {
	uncached atomic.Int64 // blocks read of objects that cannot be kept
	waits    *waits.Ledger
	egress   watch.Egress
	listings watch.Listings
	reads    *status.History
	slowed   watch.Slowed
}

// answers counts, for each link, what its origin has answered since the link was opened.
func (n *Node) answers() map[string]watch.Answers {
	all := map[string]watch.Answers{}
	for _, l := range n.links.list() {
		all[l.name] = answersOf(l.origin.Stats())
	}
	return all
}

func answersOf(s origin.Stats) watch.Answers {
	return watch.Answers{All: s.Gets + s.Heads + s.Lists, Slowed: s.Throttled}
}

// sample returns the counters that windows of time are made of.
func (n *Node) sample() status.HistorySample {
	var s status.HistorySample
	for _, ops := range n.mounts.counted() {
		s.Mount(ops)
	}
	s.RAM, s.Origin = n.mem.Stats().HitBytes, n.seen.egress.Readers().Bytes
	if n.ring != nil {
		s.Peers = n.ring.Stats().Bytes
	}
	if n.disk != nil {
		for _, d := range n.disk.Stats().Dirs {
			s.Disk += d.HitBytes
		}
	}
	if t := n.volumeTier(); t != nil {
		s.Volume = t.HitBytes
	}
	return s
}

// counted adds up what mounts were asked and how they answered, including mounts that are gone.
func (m *mounts) counted() ring.SumsByDir {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.past.Clone()
	for _, x := range slices.AppendSeq(m.standingLocked(), maps.Keys(m.left)) {
		c.Add(x.Dir, x.ops())
	}
	return c
}

// inTree returns a link as the namespace needs it, with its origin decorated.
func (n *Node) inTree(l *link) namespace.Link {
	base := strings.TrimSuffix(strings.TrimRight(l.Origin.URL, "/")+"/", l.prefix)
	return l.inTree(func(o namespace.Origin) namespace.Origin {
		return n.tiers.Ring.List(n.seen.listings.Over(o, l.Origin.URL, base, n.seen.waits))
	})
}

// observe fills in what is counted in addition to the parts.
func (n *Node) observe(s *status.Status) {
	s.Uncached, s.Reads, s.Waits = n.seen.uncached.Load(), n.seen.reads.Reads(), n.seen.waits.Seconds()
	s.Names.Listings = n.seen.listings.Running()
	own, reads := n.tiers.Own.Stats(), n.tiers.Reads.Stats()
	names := status.Requests{Requests: s.Origin.Verbs["head"] + s.Origin.Verbs["list"]}
	for _, l := range n.links.list() {
		names.Bytes += l.origin.Stats().NameBytes
	}
	s.Egress = status.Egress{
		Asked:   map[string]status.Requests{"readers": n.seen.egress.Readers(), "warm_up": n.seen.egress.WarmUp(), "names": names},
		Avoided: map[string]status.Requests{"joined": {Requests: own.Shared + reads.Shared, Bytes: own.SharedBytes + reads.SharedBytes}},
	}
	if n.ring != nil {
		s.Egress.Asked["peers"] = n.seen.egress.Peers()
		s.Egress.Avoided["peers"] = status.Requests{Requests: n.ring.Stats().Asked, Bytes: n.ring.Stats().Bytes}
	}
	for _, t := range s.Tiers {
		s.Egress.Avoided[t.Name] = status.Requests{Requests: t.Hits, Bytes: t.HitBytes}
	}
}
