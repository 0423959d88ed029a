package warmup

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// This file runs the parts of a job beside each other: the first error, or panic, of one
// ends that job, and nothing else.

// startPart runs do beside others; its error, or panic, ends what they work on.
func startPart(work *sync.WaitGroup, end context.CancelCauseFunc, do func() error) {
	work.Go(func() { tryPart(end, do) })
}

// tryPart runs do at once; its error, or panic, ends what others work on before it returns.
func tryPart(end context.CancelCauseFunc, do func() error) {
	if err := guarded(do); err != nil {
		end(err)
	}
}

// few runs some parts at a time: few at first, and more with what was done, so that what is
// under way when all is killed is little beside it.
type few struct {
	tokens chan struct{} // of those that run, and at first of those that must not yet
	kept   int64         // of the latter, at first
	ended  atomic.Int64  // parts
	end    context.CancelCauseFunc
	work   sync.WaitGroup
}

// endedPerMore parts have ended for each that is run at a time beyond the first.
const endedPerMore = 64

// newFew runs first parts beside who asks for it, and one more with each 64 that have ended,
// up to most; an error, or a panic beside that, ends what they work on.
func newFew(first, most int, end context.CancelCauseFunc) *few {
	f := &few{tokens: make(chan struct{}, most), kept: int64(most - first), end: end}
	for range f.kept {
		f.tokens <- struct{}{}
	}
	return f
}

// Aside runs do beside others if few run, else at once.
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

// more is called as a part has ended.
func (f *few) more() {
	if n := f.ended.Add(1); n%endedPerMore == 0 && n/endedPerMore <= f.kept {
		<-f.tokens
	}
}

// Wait waits for those that were begun.
func (f *few) Wait() { f.work.Wait() }

// guarded makes a panic an error.
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

// rest waits for so long; the error is the cause of the context's end.
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
