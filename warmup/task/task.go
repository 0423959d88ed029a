// Package task runs the parts of a job beside each other: the first error, or panic, of one
// ends that job, and nothing else.
package task

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Start runs do beside others; its error, or panic, ends what they work on.
func Start(work *sync.WaitGroup, end context.CancelCauseFunc, do func() error) {
	work.Go(func() { Try(end, do) })
}

// Try runs do at once; its error, or panic, ends what others work on before it returns.
func Try(end context.CancelCauseFunc, do func() error) {
	if err := Guarded(do); err != nil {
		end(err)
	}
}

// Few runs some parts at a time: few at first, and more with what was done, so that what is
// under way when all is killed is little beside it.
type Few struct {
	tokens chan struct{} // of those that run, and at first of those that must not yet
	kept   int64         // of the latter, at first
	ended  atomic.Int64  // parts
	end    context.CancelCauseFunc
	work   sync.WaitGroup
}

// endedPerMore parts have ended for each that is run at a time beyond the first.
const endedPerMore = 64

// NewFew runs first parts beside who asks for it, and one more with each 64 that have ended,
// up to most; an error, or a panic beside that, ends what they work on.
func NewFew(first, most int, end context.CancelCauseFunc) *Few {
	f := &Few{tokens: make(chan struct{}, most), kept: int64(most - first), end: end}
	for range f.kept {
		f.tokens <- struct{}{}
	}
	return f
}

// Aside runs do beside others if few run, else at once.
func (f *Few) Aside(do func() error) {
	select {
	case f.tokens <- struct{}{}:
		f.work.Go(func() {
			defer func() { <-f.tokens }()
			Try(f.end, do)
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
func (f *Few) more() {
	if n := f.ended.Add(1); n%endedPerMore == 0 && n/endedPerMore <= f.kept {
		<-f.tokens
	}
}

// Wait waits for those that were begun.
func (f *Few) Wait() { f.work.Wait() }

// Guarded makes a panic an error.
func Guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return do()
}

// First is what ended the context, since other errors followed from that.
func First(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Rest waits for so long; the error is the cause of the context's end.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
