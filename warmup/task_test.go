package warmup

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestFewBecomeMoreWithWhatEnded: at first three parts run aside, and the caller runs the
// next itself. One more runs aside for each 64 that ended, and never more than six.
func TestFewBecomeMoreWithWhatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		few := newFew(3, 6, func(err error) { t.Errorf("ended by %v", err) })
		for round, want := range []int{3, 4, 5, 6, 6} {
			release, aside, ran := make(chan struct{}), 0, false
			for !ran {
				aside++
				few.Aside(func() error {
					if aside > want {
						ran = true
						return nil
					}
					<-release
					return nil
				})
				synctest.Wait()
			}
			if aside-1 != want {
				t.Errorf("round %d: %d run aside, want %d", round, aside-1, want)
			}
			close(release)
			few.Wait()
			for range endedPerMore - want - 1 {
				few.Aside(func() error { return nil })
			}
			few.Wait()
		}
	})
}

// TestFewEndWithThePanicOfOne: the first error ends the work, too.
func TestFewEndWithThePanicOfOne(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	few := newFew(1, 1, cancel)
	few.Aside(func() error { panic("of a part") })
	few.Wait()
	if err := firstCause(ctx, errors.New("another")); err == nil || err.Error() != "panic: of a part" {
		t.Errorf("ended by %v, want the panic", err)
	}
}
