// Package watch observes what is asked of origins. It finds which versions are gone, for whom a fetch is,
// which listings run, how healthy an origin is, and what slows readers down.
package watch

import (
	"context"
	"errors"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/waits"
)

// Bucket is the Source of the bucket with observers. A version that is found gone is forgotten at once, whoever
// read it. Objects that cannot be cached are counted.
type Bucket struct {
	hearth.Source
	// Gone is told of versions that the origin no longer has.
	Gone func(*hearth.Object)
	// Weak is told of reads of objects that no tier may keep.
	Weak func(*hearth.Object)
	// Heard is told how each fetch ended, and when it began.
	Heard func(b hearth.Block, began time.Time, err error)
	// Egress counts fetches. Waits notes what readers of a version wait for.
	Egress *Egress
	Waits  *waits.Ledger
}

// Get reads a range of a block.
func (w Bucket) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	began := time.Now()
	fetch := w.Egress.of(ctx)
	v, err := w.Source.Get(w.Waits.About(ctx, b.Object.Version), b, off, n)
	fetch.came(v)
	w.hear(b, began, err)
	return v, err
}

// GetMany reads a run of blocks.
func (w Bucket) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	began := time.Now()
	fetch := w.Egress.of(ctx)
	w.Source.GetMany(w.Waits.About(ctx, first.Object.Version), first, n, func(b hearth.Block, v *hearth.View, err error) bool {
		fetch.came(v)
		w.hear(b, began, err)
		defer func() { began = time.Now() }() // the next block's fetch begins now
		return each(b, v, err)
	})
}

func (w Bucket) hear(b hearth.Block, began time.Time, err error) {
	w.Heard(b, began, err)
	switch {
	case errors.Is(err, hearth.ErrStale):
		w.Gone(b.Object)
	case !b.Object.Cacheable():
		w.Weak(b.Object)
	}
}

// Volumes is the Store of the volumes. What readers wait for a volume is noted, and is no wait for an origin.
type Volumes struct {
	hearth.Store
	Waits *waits.Ledger
}

// Get reads a range of a block. A block that no volume has is waited for nowhere here.
func (w Volumes) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if w.Has(b.ID()) {
		defer w.Waits.Reads(b.Object.Version)()
	}
	return w.Store.Get(ctx, b, off, n)
}
