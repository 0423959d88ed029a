package hearth

import (
	"context"
	"os"
)

// This file lists every optional ability of a Source or Store. Each is found by
// assertion, and everything works without it, only slower.

// ManyGetter is a Source that yields many blocks at once, such as a bucket that
// answers one ranged request with sixteen blocks.
type ManyGetter interface {
	// GetMany yields the whole blocks first, first+1 ... first+n-1 of one object
	// in order, calling each once per block until each returns false or an error
	// ends the run: then each is called once more with that error for the block
	// that failed, and not for the ones behind it. The View passed to each belongs
	// to each, which releases it. GetMany holds no View while it waits for memory,
	// and returns after the last call of each.
	GetMany(ctx context.Context, first Block, n int, each func(b Block, v *View, err error) bool)
}

// Loader is a ManyGetter in front of a Keeper, for who has that keep what comes.
type Loader interface {
	// Load is GetMany whose each has the block kept before it returns. Until then
	// whoever else wants the block gets it from memory, so that it is asked for once
	// though the Keeper be slower than what is behind it.
	Load(ctx context.Context, first Block, n int, each func(b Block, v *View, err error) bool)
}

// HereGetter is a Store on a device that may not answer, for callers who can be replaced:
// what they ask for is read on their own thread, without two switches.
type HereGetter interface {
	// GetHere is Get of what the Store holds; nil: it does not, or Get says what is wrong. Where
	// the device does not answer, stead is called, once, on a goroutine of its own, to take the
	// caller's place: it may run while the call lasts, and after it, if the device answers just then.
	GetHere(ctx context.Context, b Block, off, n int, stead func()) *View
}

// LocalFiler is a Store that can hand out a whole object as one local file, for
// FUSE passthrough.
type LocalFiler interface {
	// LocalFile opens the object's bytes as a file that is whole, verified, and neither
	// changed nor holed as long as anybody has it open or mapped, behind release and a
	// Store's end, too; or it returns ErrMiss. An
	// object that is whole but not yet verified is a miss; its verification then
	// starts behind the call, paced. release is called once, after the file and
	// every kernel reference to it are closed.
	LocalFile(o *Object) (file *os.File, release func(), err error)
}

// LocalSampler is a LocalFiler that knows where its files lie, which not every
// kernel lends from.
type LocalSampler interface {
	LocalFiler
	// Samples names a file of each place that local files may come from now.
	Samples() []string
}

// Keeper is a Store that can be made to keep what it is given, which warm-up
// needs to be honest.
type Keeper interface {
	// Keep is Put that waits for queue room and evicts what is not pinned, or
	// says why not.
	Keep(ctx context.Context, b Block, v *View) error
	// Flush returns when what was given before is on the device. An error concerns all
	// of that, unless it is Unflushed.
	Flush(ctx context.Context) error
	// Has reports whether the block is held, without reading it.
	Has(id ID) bool
}

// Unflushed is an error of Flush that knows what it concerns; all else is on the device.
type Unflushed interface {
	error
	// Concerns reports whether the block is held only where it may be lost.
	Concerns(id ID) bool
}
