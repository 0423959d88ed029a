package disk

import "github.com/hearthfs/hearth"

// Spill is where blocks go that eviction takes from the disk, such as a remote volume.
type Spill interface {
	// Wants reports whether Spill would take the block now. It is asked before the block is read,
	// and never waits.
	Wants(id hearth.ID) bool
	// Spill offers a whole block. It retains the View, never waits, and may decline.
	Spill(id hearth.ID, v *hearth.View) error
}

// spills reports whether a block that an eviction is about to take is to be read for Options.Spill.
// Blocks of replaced versions are not worth it, and other nodes spill their own.
func (d *directory) spills(id hearth.ID) bool {
	to := d.opt.Spill
	if to == nil {
		return false
	}
	d.guard.Writer.Work() // a read follows, and many may
	return d.readable() && !d.replaced.Has(id.Version) && (d.opt.Owns == nil || d.opt.Owns(id)) && to.Wants(id)
}

// spill offers a block that spills was true for.
func (d *directory) spill(id hearth.ID, v *hearth.View) {
	d.guard.Writer.Work()
	if d.opt.Spill.Spill(id, v) == nil {
		d.spilled.Add(1)
		d.spilledBytes.Add(int64(v.Len()))
	}
}
