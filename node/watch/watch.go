// Package watch listens to what the bucket answers.
package watch

import (
	"context"
	"errors"
	"time"

	"github.com/hearthfs/hearth"
)

// Bucket is the bucket with an ear: a version that is found gone is forgotten
// at once, whoever read it, and what cannot be kept is counted.
type Bucket struct {
	Source interface {
		hearth.Source
		hearth.ManyGetter
	}
	// Gone hears of versions that the origin does not have any more.
	Gone func(*hearth.Object)
	// Weak hears of reads of objects that no tier may keep.
	Weak func(*hearth.Object)
	// Heard is told how each fetch ended, and when it had begun.
	Heard func(o *hearth.Object, began time.Time, err error)
}

// Get reads a range of a block.
func (w Bucket) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	began := time.Now()
	v, err := w.Source.Get(ctx, b, off, n)
	w.hear(b, began, err)
	return v, err
}

// GetMany reads a run of blocks.
func (w Bucket) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	began := time.Now()
	w.Source.GetMany(ctx, first, n, func(b hearth.Block, v *hearth.View, err error) bool {
		w.hear(b, began, err)
		defer func() { began = time.Now() }() // of the next block
		return each(b, v, err)
	})
}

func (w Bucket) hear(b hearth.Block, began time.Time, err error) {
	w.Heard(b.Object, began, err)
	switch {
	case errors.Is(err, hearth.ErrStale):
		w.Gone(b.Object)
	case !b.Object.Cacheable():
		w.Weak(b.Object)
	}
}
