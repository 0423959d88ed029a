package disk

import (
	"context"
	"time"
)

const (
	// recallFor is the most time in one look for indexing unindexed blocks: the queue waits
	// meanwhile.
	recallFor = 200 * time.Millisecond
	// spareFor is how long blocks that were found pinned are not looked at again, since that takes
	// a read of each footer.
	spareFor = time.Minute
)

// lacking is what the writer knows of unindexed blocks.
type lacking struct {
	said  int64     // blocks at the last Events.Unindexed
	again time.Time // until then no unindexed block may go
}

// recall indexes what there is memory for by now, and reports what is left.
func (d *directory) recall(now time.Time) {
	vol := d.volume.Load()
	blocks, _ := vol.unindexed()
	if blocks > 0 && d.writable() {
		ctx, cancel := context.WithTimeout(context.Background(), recallFor)
		if err := vol.recall(ctx); err != nil {
			d.readFailed(err)
		}
		cancel()
	}
	blocks, bytes := vol.unindexed()
	switch {
	case blocks == 0:
		d.lacking.said = 0
	case d.lacking.said == 0 || blocks > 2*d.lacking.said:
		if d.lacking.said = blocks; d.events.Unindexed != nil {
			d.events.Unindexed(d.path, blocks, bytes)
		}
	}
	d.sheds.Store(blocks > 0 && now.After(d.lacking.again))
}

// shed evicts some unindexed blocks. False means that there are none, or that all are pinned.
func (d *directory) shed(vol *volume) bool {
	pinned := d.opt.Pinned
	if d.shrinking {
		pinned = nil
	} else if !d.sheds.Load() {
		return false
	}
	n := vol.shed(pinned)
	if d.evicted.Add(n); n == 0 {
		d.sheds.Store(false)
		d.lacking.again = time.Now().Add(spareFor)
	}
	return n > 0
}
