package disk

import (
	"context"
	"time"
)

const (
	// recallFor is how long one look may take to index what there was no memory for: the
	// queue waits meanwhile.
	recallFor = 200 * time.Millisecond
	// spareFor is how long what was found to be pinned is not looked at again, which takes
	// a read of each footer.
	spareFor = time.Minute
)

// lacking is what the writer knows of blocks that no index knows.
type lacking struct {
	said  int64     // blocks that Events.Unindexed was last told
	again time.Time // until then none of them may go
}

// recall indexes what there is memory for by now, and tells of what is left.
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

// shed gives up some of what no index knows. False: there is none, or all is pinned.
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
