package pins

import (
	"context"
	"sync"
)

// Spare is what may be loaded before it is known whether all of a set fits: what goes into
// free room, so that a refusal finds what was there before. A nil Spare is any room.
type Spare struct {
	// Free are the bytes that each directory takes without giving anything up.
	Free func() []int64
	// Fits is closed once the set is known to fit; then there is no limit.
	Fits <-chan struct{}

	mu    sync.Mutex    // guards under
	under map[int]int64 // bytes under way, by directory
}

// Begin waits until n bytes more may be loaded into a directory. end is called once they
// are there, or not to come; an error is the context's cause.
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
