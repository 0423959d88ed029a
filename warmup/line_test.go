package warmup

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

func TestALineKeepsItsOrder(t *testing.T) {
	// Six jobs come, and begin to wait in another order. Two are in at a time, each only
	// after all before it. A job that gives up neither holds up others nor lets them
	// overtake.
	synctest.Test(t, func(t *testing.T) {
		l := newLine(2)
		var in []int
		var stop [6]context.CancelCauseFunc
		gone, late, leave := errors.New("gone"), make(chan struct{}), make(chan struct{})
		var places []*place
		for range stop {
			places = append(places, l.Join())
		}
		for i := len(places) - 1; i >= 0; i-- {
			ctx, cancel := context.WithCancelCause(t.Context())
			stop[i] = cancel
			go func() {
				defer places[i].Leave()
				if i == 0 {
					<-late
				}
				err := places[i].Enter(ctx, func() { in = append(in, i) })
				if err == nil {
					<-leave
				}
				if (i == 1 || i == 3) != errors.Is(err, gone) {
					t.Errorf("%d: %v", i, err)
				}
			}()
			synctest.Wait()
		}
		is := func(when string, want ...int) {
			t.Helper()
			if synctest.Wait(); !slices.Equal(in, want) {
				t.Errorf("%s %v are in, want %v", when, in, want)
			}
		}
		is("before the first")
		stop[1](gone)
		is("once the second has given up")
		close(late)
		is("once the first comes", 0, 2)
		stop[3](gone)
		is("once a third has given up", 0, 2)
		leave <- struct{}{}
		is("once one has left", 0, 2, 4)
		close(leave)
		is("at the end", 0, 2, 4, 5)
		for _, cancel := range stop {
			cancel(nil)
		}
	})
}
