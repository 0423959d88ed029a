package prefetch

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// aheadOfReaders is how many times the bytes that were read may be unread; the
	// package comment says why.
	aheadOfReaders = 16
	// lostEnough bytes must have been evicted unread before that ends an area.
	lostEnough = 1 << 20
	// After mostFailures in a row an area is no longer filled: the origin or the store is
	// not well.
	mostFailures = 8
)

// area is a directory, or a tree of them, that is being filled.
type area struct {
	where
	tree  bool // each directory below it is filled from its first miss on
	slot  int
	began time.Time

	ctx    context.Context // ended with the area
	cancel context.CancelFunc

	reads, used, lost, brought, failures atomic.Int64 // bytes; failures counts those in a row
	last                                 atomic.Int64 // when it was last read, in ns since it began

	taken   map[string]bool // directories that were queued; Prefetch.mu guards this and the rest
	queue   []string
	walkers int
	flying  int
	bytes   int64 // bytes in flight
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

// mayHave reports whether so many more bytes may be unread. Lost bytes do not count as
// unread.
func (a *area) mayHave(bytes int64) bool {
	unread := a.brought.Load() - a.used.Load() - a.lost.Load() + a.bytes
	return unread+bytes <= aheadOfReaders*a.reads.Load()
}
