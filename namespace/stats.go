package namespace

import (
	"sync/atomic"
)

type counters struct {
	lookups, nodes, read, heads, probes, listings atomic.Int64
	entries, written, stale, forgets              atomic.Int64
	originErrors, slowest                         atomic.Int64
}

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

// Stats are the tree's figures since it was opened.
type Stats struct {
	// Where is the directory that keeps the names; "" means that they are in memory.
	Where string
	// Ill is why names are not kept on disk any more. Nil means that they are, or need not be.
	Ill error
	// Stale is why an origin is unreachable, so that last known names are served. Nil means that all
	// can be asked.
	Stale error
	// Rebuilds counts databases that were set aside as corrupt, or dropped.
	Rebuilds int
	// Moves counts moves to another directory, because a disk failed.
	Moves int
	// DiskBytes and MemoryBytes are the sizes of the database.
	DiskBytes, MemoryBytes int64
	// Lookups, Nodes and Read count answers: by name, by id, and names in listings.
	Lookups, Nodes, Read int64
	// Heads, Probes (is there a directory?) and Listings count requests to origins, and Errors those
	// that failed. Entries counts names that listings brought.
	Heads, Probes, Listings, Errors, Entries int64
	// Slowest is the duration of the slowest listing, in milliseconds. Names that listings brought are
	// believed for at most 20 times that, or the bound.
	Slowest int64
	// StaleAnswers counts answers with last known names while an origin was unreachable.
	StaleAnswers int64
	// Forgets counts versions that readers found gone.
	Forgets int64
	// Refused counts keys that cannot be shown, in the present listings.
	Refused int64
	// LastID is the highest node id given out.
	LastID uint64
}

// Figures are the numbers of Stats by name, for status and metrics.
func (s *Stats) Figures() map[string]int64 {
	return map[string]int64{
		"rebuilds": int64(s.Rebuilds), "moves": int64(s.Moves), "disk_bytes": s.DiskBytes, "memory_bytes": s.MemoryBytes,
		"lookups": s.Lookups, "nodes": s.Nodes, "names_read": s.Read,
		"heads": s.Heads, "probes": s.Probes, "listings": s.Listings, "origin_errors": s.Errors, "names_listed": s.Entries,
		"slowest_listing_ms": s.Slowest,
		"stale_answers":      s.StaleAnswers, "forgets": s.Forgets, "refused": s.Refused,
	}
}
