package hearth

import "context"

// This file is the whole contract of a tier. No caller looks for other methods by type assertion.

// Getter is what can be asked for ranges of blocks.
type Getter interface {
	// Get returns bytes [off, off+n) of the block, where 0 <= off, 0 < n and off+n <= b.Len(). The
	// caller releases the View. ErrMiss means that the block is not held. ErrStale means that the
	// version is gone. Any other error says why the block cannot be had now.
	Get(ctx context.Context, b Block, off, n int) (*View, error)
}

// Source yields blocks from wherever they are.
type Source interface {
	Getter
	// GetMany yields the whole blocks first, first+1 ... first+n-1 of one object in order. It calls
	// each once per block. The run ends when each returns false, or at an error: then each is
	// called once with that error for the block that failed, and not for the blocks behind it. The
	// View passed to each belongs to each, which releases it. GetMany holds no View while it waits
	// for memory, and returns after the last call of each.
	GetMany(ctx context.Context, first Block, n int, each func(b Block, v *View, err error) bool)
	// Has reports whether this node holds the block, as far as that is known without reading. It is
	// false for a block that would be fetched.
	Has(id ID) bool
	// FromPeer reports whether a miss of the block goes to another node first, as far as is known.
	FromPeer(b Block) bool
}

// Store holds blocks: in memory, on a disk, on a volume.
type Store interface {
	Getter // ErrMiss is never a verdict on the object, only on this Store
	// Has reports whether the block is held, without reading it.
	Has(id ID) bool
	// Takes reports whether Put would take the block now. If not, fetching more than was asked for
	// is a waste.
	Takes(b Block) bool
	// Put offers a whole block. It retains the View, and never waits for memory or a device. It may
	// decline with an error; that costs only time later.
	Put(b Block, v *View) error
	// Keep is Put that waits for room in the queue and evicts what is not pinned; otherwise it says
	// why it cannot. It returns once the block is written.
	Keep(ctx context.Context, b Block, v *View) error
	// Flush returns once everything that was given before is on the device. An error concerns all
	// of that, unless it is an Unflushed.
	Flush(ctx context.Context) error
}

// Unflushed is an error of Flush that knows which blocks it concerns. All other blocks are on the
// device.
type Unflushed interface {
	error
	// Concerns reports whether the only copy of the block here may be lost.
	Concerns(id ID) bool
}

// NotKept says why no Store keeps a block, though it was read.
type NotKept string

// Error is the cause.
func (n NotKept) Error() string { return string(n) }
