package hearth

import "context"

// This file is the whole contract of a tier. Nothing else is found by assertion.

// Getter is who can be asked for ranges of blocks.
type Getter interface {
	// Get returns bytes [off, off+n) of the block, 0 <= off, 0 < n,
	// off+n <= b.Len(). The caller releases the View. ErrMiss: not held here;
	// ErrStale: the version is gone; other errors say why it cannot be had now.
	Get(ctx context.Context, b Block, off, n int) (*View, error)
}

// Source yields blocks from wherever they are.
type Source interface {
	Getter
	// GetMany yields the whole blocks first, first+1 ... first+n-1 of one object
	// in order, calling each once per block until each returns false or an error
	// ends the run: then each is called once more with that error for the block
	// that failed, and not for the ones behind it. The View passed to each belongs
	// to each, which releases it. GetMany holds no View while it waits for memory,
	// and returns after the last call of each.
	GetMany(ctx context.Context, first Block, n int, each func(b Block, v *View, err error) bool)
	// Has reports whether this node holds the block, as far as can be said without
	// reading: false of what would be fetched.
	Has(id ID) bool
	// FromPeer reports whether another node is asked first for a block that is not held,
	// as far as is known.
	FromPeer(b Block) bool
}

// Store holds blocks: in memory, on a disk, on a volume.
type Store interface {
	Getter // ErrMiss is never a verdict on the object, only on this Store
	// Has reports whether the block is held, without reading it.
	Has(id ID) bool
	// Takes reports whether Put would take the block now. Of what is declined it is a
	// waste to fetch more than was asked for.
	Takes(b Block) bool
	// Put offers a whole block. It retains the View, never waits for memory or a
	// device, and may decline with an error; that costs time later, nothing else.
	Put(b Block, v *View) error
	// Keep is Put that waits for queue room and evicts what is not pinned, or
	// says why not. It returns once the block is written.
	Keep(ctx context.Context, b Block, v *View) error
	// Flush returns when what was given before is on the device. An error concerns all
	// of that, unless it is Unflushed.
	Flush(ctx context.Context) error
}

// Unflushed is an error of Flush that knows what it concerns; all else is on the device.
type Unflushed interface {
	error
	// Concerns reports whether the block is held only where it may be lost.
	Concerns(id ID) bool
}

// NotKept is why no Store keeps a block, though it was read.
type NotKept string

// Error is the cause.
func (n NotKept) Error() string { return string(n) }
