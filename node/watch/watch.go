// Package watch listens to what is asked of origins: which version is gone, who a fetch is
// for, which listings run, and for what readers are slowed down.
package watch

import (
	"context"
	"errors"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/waits"
)

// Bucket is the bucket with an ear: a version that is found gone is forgotten
// at once, whoever read it, and what cannot be kept is counted.
type Bucket struct {
	hearth.Source
	// Gone hears of versions that the origin does not have any more.
	Gone func(*hearth.Object)
	// Weak hears of reads of objects that no tier may keep.
	Weak func(*hearth.Object)
	// Heard is told how each fetch ended, and when it had begun.
	Heard func(b hearth.Block, began time.Time, err error)
	// Egress counts fetches. Waits is where readers of a version wait.
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
		defer func() { began = time.Now() }() // of the next block
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
