package s3gw

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// errFull means that there is no place now.
var errFull = errors.New("too many requests at once")

// places is a weighted semaphore for requests at work: a place each, or one per byte. Those that
// find none wait in order.
type places struct {
	most, line     int64
	patience       time.Duration
	free           *semaphore.Weighted
	taken, waiting atomic.Int64
}

// newPlaces makes most places, at least 1. At most line requests wait for some, for patience each.
func newPlaces(most, line int64, patience time.Duration) *places {
	return &places{most: most, line: line, patience: patience, free: semaphore.NewWeighted(most)}
}

// Take takes n places, at most all. The error is errFull, or the cause with which ctx ended.
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

// Give gives back n places that were taken.
func (p *places) Give(n int64) {
	n = min(n, p.most)
	p.taken.Add(-n)
	p.free.Release(n)
}

// Taken returns how many places are taken.
func (p *places) Taken() int64 { return p.taken.Load() }

// Most returns how many places there are.
func (p *places) Most() int64 { return p.most }

// Waiting returns how many requests wait for a place.
func (p *places) Waiting() int64 { return p.waiting.Load() }
