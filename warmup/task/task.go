// Package task runs the parts of a job beside each other: the first error, or panic, of one
// ends that job, and nothing else.
package task

import (
	"context"
	"fmt"
	"sync"
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
