package warmup

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// This file runs the parts of a job concurrently. The first error or panic of a part ends
// its job, and nothing else.

// startPart runs do on a goroutine. An error or panic of it ends the work of the others.
func startPart(work *sync.WaitGroup, end context.CancelCauseFunc, do func() error) {
	work.Go(func() { tryPart(end, do) })
}

// tryPart runs do now. An error or panic of it ends the work of the others before tryPart
// returns.
func tryPart(end context.CancelCauseFunc, do func() error) {
	if err := guarded(do); err != nil {
		end(err)
	}
}

// few is a semaphore for parts. It lets few run at first, and more as parts end, so that
// a kill loses little beside what was done.
type few struct {
	tokens chan struct{} // held by those that run, and at first for those that may not run yet
	kept   int64         // how many are held at first
	ended  atomic.Int64  // how many parts have ended
	end    context.CancelCauseFunc
	work   sync.WaitGroup
}

// endedPerMore is how many parts must end before one more may run at a time.
const endedPerMore = 64

// newFew runs up to first parts beside their callers, and one more for each endedPerMore
// that have ended, up to most. An error, or a panic of a part beside, ends the work of
// all.
func newFew(first, most int, end context.CancelCauseFunc) *few {
	f := &few{tokens: make(chan struct{}, most), kept: int64(most - first), end: end}
	for range f.kept {
		f.tokens <- struct{}{}
	}
	return f
}

// Aside runs do on a goroutine if few run, else now.
func (f *few) Aside(do func() error) {
	select {
	case f.tokens <- struct{}{}:
		f.work.Go(func() {
			defer func() { <-f.tokens }()
			tryPart(f.end, do)
			f.more()
		})
	default:
		if err := do(); err != nil {
			f.end(err)
		}
		f.more()
	}
}

// more is called when a part has ended.
func (f *few) more() {
	if n := f.ended.Add(1); n%endedPerMore == 0 && n/endedPerMore <= f.kept {
		<-f.tokens
	}
}

// Wait waits for the parts that were begun.
func (f *few) Wait() { f.work.Wait() }

// guarded turns a panic into an error.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return do()
}

// firstCause is what ended the context, since other errors followed from that.
func firstCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// rest waits for d. An error is the cause of the context's end.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
