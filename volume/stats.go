package volume

import (
	"sync/atomic"
	"time"
)

type counters struct {
	hits, hitBytes, misses, lost            atomic.Int64
	read, written                           atomic.Int64
	appended, appendedBytes, moved, dropped atomic.Int64
	reclaimed, flushes, errors, outages     atomic.Int64
	unindexed, strangers                    atomic.Int64
}

// Stats are a volume's figures since it was attached.
type Stats struct {
	// Blocks are held as far as this node answers for them, and Memory is what their index takes.
	Blocks, Memory int64
	// Hits are reads that were answered, with HitBytes, and Misses those that were not. Lost are blocks
	// whose bytes were not there any more: another node wrote over them, or the device lost or harmed them.
	Hits, HitBytes, Misses, Lost int64
	// Read and Written are bytes of the device.
	Read, Written int64
	// Appended blocks were written, of AppendedBytes. Moved were written again, since they were hit, when
	// their segment was reclaimed. Dropped were offered and not taken.
	Appended, AppendedBytes, Moved, Dropped int64
	// Reclaimed segments were begun anew. Flushes were asked of the device.
	Reclaimed, Flushes int64
	// Errors are operations that failed, and Outages how often that took the volume out of use.
	Errors, Outages int64
	// Unindexed blocks are not known, for want of memory.
	Unindexed int64
	// Queued are bytes that wait to be written.
	Queued int64
	// Strangers counts how often a segment was found that another node had begun anew. In a ring that happens when
	// blocks get other owners.
	Strangers int64
	// Waited is how long operations have waited for the device in the last 10 s. It is 0 unless they waited for half
	// of Options.Patience, or almost, again and again.
	Waited time.Duration
}

// Stats returns the present figures.
func (v *Volume) Stats() Stats {
	c := &v.stats
	return Stats{
		Blocks: v.index.Len(), Memory: v.index.Memory(),
		Hits: c.hits.Load(), HitBytes: c.hitBytes.Load(), Misses: c.misses.Load(), Lost: c.lost.Load(),
		Read: c.read.Load(), Written: c.written.Load(),
		Appended: c.appended.Load(), AppendedBytes: c.appendedBytes.Load(), Moved: c.moved.Load(), Dropped: c.dropped.Load(),
		Reclaimed: c.reclaimed.Load(), Flushes: c.flushes.Load(), Errors: c.errors.Load(), Outages: c.outages.Load(),
		Unindexed: c.unindexed.Load(), Queued: v.queue.bytes(),
		Strangers: c.strangers.Load(), Waited: v.guard.Waited(),
	}
}
