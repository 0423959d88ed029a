package pins

import (
	"context"
	"sync"
)

// Spare bounds what may be loaded before it is known whether all of a set fits: as much
// as the free room takes. So a refusal leaves what was there. A nil Spare has no limit.
type Spare struct {
	// Free are the bytes that each directory takes without an eviction.
	Free func() []int64
	// Fits is closed once the set is known to fit. From then on there is no limit.
	Fits <-chan struct{}

	mu    sync.Mutex    // guards under
	under map[int]int64 // bytes in flight, by directory
}

// Begin waits until n more bytes may be loaded into a directory. The caller calls end
// once they are there, or will not come. An error is the context's cause.
func (s *Spare) Begin(ctx context.Context, dir int, n int64) (end func(), err error) {
	none := func() {}
	if s == nil {
		return none, nil
	}
	select {
	case <-s.Fits:
		return none, nil
	default:
	}
	if s.take(dir, n) {
		return func() { s.give(dir, n) }, nil
	}
	select {
	case <-s.Fits:
		return none, nil
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

func (s *Spare) take(dir int, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.under[dir]+n > s.Free()[dir] {
		return false
	}
	if s.under == nil {
		s.under = map[int]int64{}
	}
	s.under[dir] += n
	return true
}

func (s *Spare) give(dir int, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under[dir] -= n
}
