package bounds

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// ErrFull is what nobody has room for now.
var ErrFull = errors.New("too many requests at once")

// Places are what requests at work take: one each, or as many as they have bytes. Those that find
// none wait in turn.
type Places struct {
	most, line     int64
	patience       time.Duration
	free           *semaphore.Weighted
	taken, waiting atomic.Int64
}

// NewPlaces makes so many, at least 1. At most line requests wait for some, for patience each.
func NewPlaces(most, line int64, patience time.Duration) *Places {
	return &Places{most: most, line: line, patience: patience, free: semaphore.NewWeighted(most)}
}

// Take takes n places, all at most. The error is ErrFull, or the cause with which ctx ended.
func (p *Places) Take(ctx context.Context, n int64) error {
	n = min(n, p.most)
	if !p.free.TryAcquire(n) {
		if err := p.wait(ctx, n); err != nil {
			return err
		}
	}
	p.taken.Add(n)
	return nil
}

func (p *Places) wait(ctx context.Context, n int64) error {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > p.line {
		return ErrFull
	}
	wait, stop := context.WithTimeoutCause(ctx, p.patience, ErrFull)
	defer stop()
	if p.free.Acquire(wait, n) != nil {
		return context.Cause(wait)
	}
	return nil
}

// Give gives n places back, as they were taken.
func (p *Places) Give(n int64) {
	n = min(n, p.most)
	p.taken.Add(-n)
	p.free.Release(n)
}

// Taken is how many are, Most how many there are.
func (p *Places) Taken() int64 { return p.taken.Load() }

// Most is how many places there are.
func (p *Places) Most() int64 { return p.most }

// Waiting is how many requests wait for one.
func (p *Places) Waiting() int64 { return p.waiting.Load() }
