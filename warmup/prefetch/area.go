package prefetch

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// aheadOfReaders is how many times what was read may be unread: see the package
	// comment.
	aheadOfReaders = 16
	// lostEnough bytes must have been evicted unread before that ends an area.
	lostEnough = 1 << 20
	// mostFailures in a row, and an area is filled no more: the origin, or the store, is
	// not well.
	mostFailures = 8
)

// area is a directory, or a tree of them, that is being filled.
type area struct {
	where
	tree  bool // each directory anywhere below it, once it is missed in
	slot  int
	began time.Time

	ctx    context.Context // ended with the area
	cancel context.CancelFunc

	reads, used, lost, brought, failures atomic.Int64 // bytes, and failures in a row
	last                                 atomic.Int64 // when it was read, in ns since it began

	taken   map[string]bool // directories that were queued, of a tree; guarded by Prefetch.mu, as the rest
	queue   []string
	walkers int
	flying  int
	bytes   int64 // that are flying
}

// seen notes that so many bytes were read there.
func (a *area) seen(bytes int64, now time.Time) {
	a.reads.Add(bytes)
	a.last.Store(int64(now.Sub(a.began)))
}

// over reports whether the area is to end.
func (a *area) over(now time.Time) bool {
	lost := a.lost.Load()
	return now.Sub(a.began)-time.Duration(a.last.Load()) >= silence || lost >= lostEnough && lost > a.used.Load()
}

// wasteful reports whether less than half of what was brought was read.
func (a *area) wasteful() bool { return 2*a.used.Load() < a.brought.Load() }

// mayHave reports whether so many more bytes may be unread. What was lost is not.
func (a *area) mayHave(bytes int64) bool {
	unread := a.brought.Load() - a.used.Load() - a.lost.Load() + a.bytes
	return unread+bytes <= aheadOfReaders*a.reads.Load()
}
