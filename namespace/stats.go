package namespace

import (
	"sync/atomic"

	"github.com/hearthfs/hearth/namespace/figures"
)

type counters struct {
	lookups, nodes, read, heads, probes, listings atomic.Int64
	entries, written, stale, forgets              atomic.Int64
	originErrors, slowest                         atomic.Int64
}

// Stats are the tree's figures since it was opened.
type Stats = figures.Stats

// Stats returns the present figures.
func (t *Tree) Stats() Stats {
	db := t.db.Stats()
	c := &t.stats
	s := Stats{Where: db.Dir, Ill: db.Ill, Rebuilds: db.Rebuilds, Moves: db.Moves, DiskBytes: db.DiskBytes, MemoryBytes: db.MemoryBytes,
		Lookups: c.lookups.Load(), Nodes: c.nodes.Load(), Read: c.read.Load(),
		Heads: c.heads.Load(), Probes: c.probes.Load(), Listings: c.listings.Load(),
		Errors: c.originErrors.Load(), Entries: c.entries.Load(), Slowest: c.slowest.Load(),
		StaleAnswers: c.stale.Load(), Forgets: c.forgets.Load(), Refused: t.refused.total.Load()}
	for _, l := range t.links.Load().links {
		if p := l.down.Load(); p != nil && s.Stale == nil {
			s.Stale = *p
		}
	}
	s.LastID = t.ids.Last()
	return s
}
