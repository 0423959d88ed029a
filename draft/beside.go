package draft

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// beside are requests at the same time, of which the first that fails breaks the others off.
type beside struct {
	group errgroup.Group
	stop  context.CancelCauseFunc
}

// broken is why a request was broken off: another one's error. It can be asked what it Is, and is As nothing: the origin writes into an
// error of its own which key it is of, and errgroup's way would give all of them the same one.
type broken struct{ error }

// Is reports whether the other's error is the target.
func (b broken) Is(target error) bool { return errors.Is(b.error, target) }

// newBeside starts none yet. At most so many run at once.
func newBeside(ctx context.Context, most int) (*beside, context.Context) {
	b := &beside{}
	ctx, b.stop = context.WithCancelCause(ctx)
	b.group.SetLimit(most)
	return b, ctx
}

func (b *beside) run(request func() error) {
	b.group.Go(func() error {
		err := request()
		if err != nil {
			b.stop(broken{err})
		}
		return err
	})
}

// wait returns the error of the first that failed, once all have ended.
func (b *beside) wait() error {
	err := b.group.Wait()
	b.stop(nil)
	return err
}
