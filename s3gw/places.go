package s3gw

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// errFull is what nobody has room for now.
var errFull = errors.New("too many requests at once")

// places are what requests at work take: one each, or as many as they have bytes. Those that find
// none wait in turn.
type places struct {
	most, line     int64
	patience       time.Duration
	free           *semaphore.Weighted
	taken, waiting atomic.Int64
}

// newPlaces makes so many, at least 1. At most line requests wait for some, for patience each.
func newPlaces(most, line int64, patience time.Duration) *places {
	return &places{most: most, line: line, patience: patience, free: semaphore.NewWeighted(most)}
}

// Take takes n places, all at most. The error is ErrFull, or the cause with which ctx ended.
func (p *places) Take(ctx context.Context, n int64) error {
	n = min(n, p.most)
	if !p.free.TryAcquire(n) {
		if err := p.wait(ctx, n); err != nil {
			return err
		}
	}
	p.taken.Add(n)
	return nil
}

func (p *places) wait(ctx context.Context, n int64) error {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > p.line {
		return errFull
	}
	wait, stop := context.WithTimeoutCause(ctx, p.patience, errFull)
	defer stop()
	if p.free.Acquire(wait, n) != nil {
		return context.Cause(wait)
	}
	return nil
}

// Give gives n places back, as they were taken.
func (p *places) Give(n int64) {
	n = min(n, p.most)
	p.taken.Add(-n)
	p.free.Release(n)
}

// Taken is how many are, Most how many there are.
func (p *places) Taken() int64 { return p.taken.Load() }

// Most is how many places there are.
func (p *places) Most() int64 { return p.most }

// Waiting is how many requests wait for one.
func (p *places) Waiting() int64 { return p.waiting.Load() }
