package writes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatIsUnsureIsForgottenAgain(t *testing.T) {
	// At its times and then no more; what becomes unsure anew begins anew; and what is left at the end
	// is forgotten at once, with a context that is over.
	synctest.Test(t, func(t *testing.T) {
		w, begun := New(Options{}), time.Now()
		var mu sync.Mutex
		seen := map[string][]time.Duration{}
		forget := func(name string) func(context.Context) {
			return func(ctx context.Context) {
				mu.Lock()
				defer mu.Unlock()
				at := time.Since(begun)
				if ctx.Err() != nil {
					at = -at
				}
				seen[name] = append(seen[name], at)
			}
		}
		w.Again("a", 1, forget("a"))
		time.Sleep(30 * time.Second)
		w.Again("b", 1, forget("b"))
		time.Sleep(15 * time.Second)
		w.Again("b", 3, forget("b"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.keys != 0 || len(w.unsure) != 0 {
			t.Errorf("%d keys are unsure still", w.keys)
		}
		w.Again("c", 1, forget("c"))
		time.Sleep(10 * time.Second)
		w.Close()
		end := time.Since(begun)
		for name, want := range map[string][]time.Duration{
			"a": {5 * time.Second, time.Minute, finishWithin},
			"b": {35 * time.Second, 50 * time.Second, 105 * time.Second, 45*time.Second + finishWithin},
			"c": {end - 5*time.Second, -end},
		} {
			if !slices.Equal(seen[name], want) {
				t.Errorf("%s: %v, want %v", name, seen[name], want)
			}
		}
	})
}

func TestUnsureWritesAreBounded(t *testing.T) {
	// Keys are counted, those of a name once; what takes none always has room. An origin that hangs
	// holds none of it up for ever, and at the end nothing waits for it.
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{})
		var calls, over atomic.Int64
		hangs := func(ctx context.Context) {
			if <-ctx.Done(); context.Cause(ctx) == context.DeadlineExceeded {
				over.Add(1)
			}
			calls.Add(1)
		}
		for i := range Most {
			if !w.Again(fmt.Sprint(i), 1, hangs) {
				t.Fatalf("no room after %d", i)
			}
		}
		if w.Again("more", 1, hangs) || !w.Again("0", 1, hangs) || !w.Again("all", 0, hangs) || w.keys != Most {
			t.Errorf("%d keys", w.keys)
		}
		time.Sleep(5*time.Second + allWithin + time.Second)
		synctest.Wait()
		if n := calls.Load(); n < Most+1 || over.Load() == 0 {
			t.Errorf("after a minute %d of %d were forgotten", n, Most+1)
		}
		begun := time.Now()
		w.Close()
		if took := time.Since(begun); took > 0 || w.keys != 0 {
			t.Errorf("the end takes %v, and leaves %d keys", took, w.keys)
		}
	})
}

func TestWhatLastsBeyondItsClient(t *testing.T) {
	// The client goes and the write does not, until its time is over or all ends; whose client stays
	// has no such time.
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{})
		type name struct{}
		client, leave := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
		stays, stop := context.WithCancel(t.Context())
		defer stop()
		left, end := w.Lasting(client, client)
		defer end()
		staying, end2 := w.Lasting(stays, stays)
		defer end2()
		leave()
		time.Sleep(finishWithin - time.Second)
		synctest.Wait()
		if left.Err() != nil || left.Value(name{}) != "value" {
			t.Errorf("it ended with its client: %v", context.Cause(left))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if left.Err() == nil || staying.Err() != nil {
			t.Errorf("%v and %v", left.Err(), staying.Err())
		}
		w.Close()
		synctest.Wait()
		if cause := context.Cause(staying); !errors.Is(cause, errEnds) || !errors.Is(cause, context.Canceled) {
			t.Errorf("at the end: %v", cause)
		}
	})
}
