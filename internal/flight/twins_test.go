package flight

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestTwinsShareOneCall(t *testing.T) {
	// Three ask for the same at once: one call, three references. A caller that leaves gets none.
	// After a call that nobody joined the next one works as well.
	synctest.Test(t, func(t *testing.T) {
		tw, gate, v := NewTwins[string](retain, release), make(chan struct{}), newCounted("a")
		var calls atomic.Int64
		work := func(context.Context) (*counted, error) { calls.Add(1); <-gate; return v, nil }
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if w, _, err := tw.Do(t.Context(), "a", work); w != v || err != nil {
					t.Errorf("got %v, %v", w, err)
				}
			})
		}
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, _, err := tw.Do(ctx, "a", work); left <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatalf("who left got %v", err)
		}
		close(gate)
		all.Wait()
		if calls.Load() != 1 || v.refs.Load() != 3 {
			t.Fatalf("%d calls, %d references", calls.Load(), v.refs.Load())
		}
		for range 3 {
			if _, shared, _ := tw.Do(t.Context(), "a", func(context.Context) (*counted, error) { return newCounted("b"), nil }); shared {
				t.Fatal("shared with nobody")
			}
		}
	})
}

func TestATwinTakesOver(t *testing.T) {
	// The caller at work goes away and its call fails. One of the waiters does it again, and all get
	// that result. The same happens after runtime.Goexit.
	for _, exit := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			tw, v := NewTwins[string](retain, release), newCounted("a")
			ctx, leave := context.WithCancel(t.Context())
			go func() {
				_, _, err := tw.Do(ctx, "a", func(ctx context.Context) (*counted, error) {
					<-ctx.Done()
					if exit {
						runtime.Goexit()
					}
					return nil, ctx.Err()
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("who left got %v", err)
				}
			}()
			synctest.Wait()
			var calls atomic.Int64
			gate := make(chan struct{})
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					w, _, err := tw.Do(t.Context(), "a", func(context.Context) (*counted, error) { calls.Add(1); <-gate; return v, nil })
					if w != v || err != nil {
						t.Errorf("got %v, %v", w, err)
					}
				})
			}
			synctest.Wait()
			leave()
			synctest.Wait()
			close(gate)
			all.Wait()
			if calls.Load() != 1 || v.refs.Load() != 3 {
				t.Fatalf("%d calls, %d references", calls.Load(), v.refs.Load())
			}
		})
	}
}

func TestATwinsPanicIsAnErrorForAll(t *testing.T) {
	// The caller at work panics. It and the waiters get an error.
	synctest.Test(t, func(t *testing.T) {
		tw, gate := NewTwins[string](retain, release), make(chan struct{})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				_, _, err := tw.Do(t.Context(), "a", func(context.Context) (*counted, error) { <-gate; panic("boom") })
				var p *PanicError
				if !errors.As(err, &p) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		close(gate)
		all.Wait()
	})
}

func BenchmarkTwinsAlone(b *testing.B) {
	tw, v := NewTwins[[5]uint64](retain, release), newCounted("a")
	ctx := context.Background()
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i++
		if _, _, err := tw.Do(ctx, [5]uint64{i}, func(context.Context) (*counted, error) { return v, nil }); err != nil {
			b.Fatal(err)
		}
	}
}
