package flight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// counted is a value with a reference count that starts at one.
type counted struct {
	refs atomic.Int64
	key  string
}

func newCounted(key string) *counted {
	c := &counted{key: key}
	c.refs.Store(1)
	return c
}

func retain(c *counted) {
	if c.refs.Add(1) <= 1 {
		panic("retained after the last release")
	}
}

func release(c *counted) {
	if c.refs.Add(-1) < 0 {
		panic("released twice")
	}
}

func newGroup() *Group[string, *counted] { return NewGroup[string](retain, release) }

func TestTheOneWhoStartedGoesAway(t *testing.T) {
	// The reader who started a fetch goes away; the one who joined still gets it,
	// with the only reference there is.
	synctest.Test(t, func(t *testing.T) {
		g, gate, v := newGroup(), make(chan struct{}), newCounted("a")
		work := func(ctx context.Context) (*counted, error) {
			select {
			case <-gate:
				return v, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		first, leave := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		left := make(chan error)
		go func() { _, _, err := g.Do(first, "a", work); left <- err }()
		synctest.Wait()
		got := make(chan *counted)
		go func() {
			v, shared, err := g.Do(t.Context(), "a", func(context.Context) (*counted, error) { panic("a second attempt") })
			if err != nil || !shared {
				t.Errorf("joined: shared %v, %v", shared, err)
			}
			got <- v
		}()
		synctest.Wait()
		leave(gone)
		if err := <-left; !errors.Is(err, gone) {
			t.Fatalf("the first got %v", err)
		}
		close(gate)
		w := <-got
		g.Close() // the attempt lets go of its own reference last
		if w != v || v.refs.Load() != 1 {
			t.Fatalf("got %s with %d references", w.key, v.refs.Load())
		}
	})
}

func TestACancelledAttemptIsNobodys(t *testing.T) {
	// All waiters leave, and the attempt is slow to notice. The next caller gets a new attempt, and
	// what the old one still yields is released.
	synctest.Test(t, func(t *testing.T) {
		g, old := newGroup(), newCounted("old")
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		release := make(chan struct{})
		go func() {
			_, _, err := g.Do(ctx, "a", func(ctx context.Context) (*counted, error) {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				<-release
				return old, nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("who left got %v", err)
			}
		}()
		synctest.Wait()
		leave()
		if err := <-ended; !errors.Is(err, ErrUnwanted) {
			t.Fatalf("cancelled by %v", err)
		}
		fresh := newCounted("fresh")
		v, shared, err := g.Do(t.Context(), "a", func(context.Context) (*counted, error) { return fresh, nil })
		if v != fresh || shared || err != nil {
			t.Fatalf("got %v, shared %v, %v", v, shared, err)
		}
		close(release)
		g.Close()
		if old.refs.Load() != 0 || fresh.refs.Load() != 1 {
			t.Fatalf("references: old %d, fresh %d", old.refs.Load(), fresh.refs.Load())
		}
	})
}

func TestAPanicIsAnErrorForAll(t *testing.T) {
	// The attempt panics, or its goroutine exits. Nobody is stranded, and the next caller starts a
	// new attempt.
	for name, fail := range map[string]func(){"panic": func() { panic("boom") }, "exit": runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			g, gate := newGroup(), make(chan struct{})
			var failed sync.WaitGroup
			for range 3 {
				failed.Go(func() {
					_, _, err := g.Do(t.Context(), "a", func(context.Context) (*counted, error) { <-gate; fail(); return nil, nil })
					var p *PanicError
					if errors.As(err, &p) != (name == "panic") || err == nil {
						t.Errorf("%s: got %v", name, err)
					}
				})
			}
			synctest.Wait()
			close(gate)
			failed.Wait()
			if v, _, err := g.Do(t.Context(), "a", func(context.Context) (*counted, error) { return newCounted("a"), nil }); err != nil || v == nil {
				t.Errorf("%s: afterwards %v", name, err)
			}
			g.Close()
		})
	}
}

func TestEachWaiterHasAReferenceOfItsOwn(t *testing.T) {
	// Five wait. Two leave before the value comes, and one at the same moment. Three or four
	// references go out, and none is left over.
	synctest.Test(t, func(t *testing.T) {
		g, gate, v := newGroup(), make(chan struct{}), newCounted("a")
		var all, early sync.WaitGroup
		var got atomic.Int64
		cancels := make([]context.CancelFunc, 5)
		for i := range cancels {
			ctx, cancel := context.WithCancel(t.Context())
			cancels[i] = cancel
			wait := &all
			if i < 2 {
				wait = &early
			}
			wait.Go(func() {
				w, _, err := g.Do(ctx, "a", func(context.Context) (*counted, error) { <-gate; return v, nil })
				if err == nil {
					got.Add(1)
					_ = w
				}
			})
		}
		synctest.Wait()
		cancels[0]()
		cancels[1]()
		early.Wait()
		go cancels[2]()
		close(gate)
		all.Wait()
		g.Close()
		if n := got.Load(); n < 2 || n > 3 || v.refs.Load() != n {
			t.Fatalf("%d have it, %d references", n, v.refs.Load())
		}
		for _, cancel := range cancels {
			cancel()
		}
	})
}

func TestARunFinishesOneByOne(t *testing.T) {
	// A leader has four keys fetched; another wants the third and gets it before
	// the fourth is there; a third key is taken already and ends the run before it.
	synctest.Test(t, func(t *testing.T) {
		g, step := newGroup(), make(chan struct{})
		hold := make(chan struct{})
		go func() {
			if _, _, err := g.Do(t.Context(), "taken", func(context.Context) (*counted, error) { <-hold; return newCounted("taken"), nil }); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		values := map[string]*counted{}
		keys := []string{"a", "b", "c", "d", "taken", "e"}
		for _, k := range keys {
			values[k] = newCounted(k)
		}
		r, err := g.Lead(t.Context(), keys, func(ctx context.Context, r *Run[string, *counted]) {
			for i := range r.Len() {
				<-step
				if !r.Finish(i, values[keys[i]], nil) && i < r.Len()-1 {
					t.Errorf("nobody wants key %d", i)
				}
			}
		})
		if err != nil || r.Len() != 4 {
			t.Fatalf("leads %v, %v", r, err)
		}
		if r, err := g.Lead(t.Context(), keys[2:], nil); r != nil || err != nil {
			t.Fatalf("a key was taken twice: %v, %v", r, err)
		}
		got := make(chan *counted)
		go func() { v, _, _ := g.Join(t.Context(), "c"); got <- v }()
		synctest.Wait()
		for range 3 {
			step <- struct{}{}
		}
		if v := <-got; v != values["c"] {
			t.Fatalf("joined %v", v)
		}
		v, again, err := r.Wait(t.Context(), 0)
		if v != values["a"] || again || err != nil {
			t.Fatalf("the leader got %v, %v", v, err)
		}
		r.Leave() // gives back b and c, and nobody wants d
		close(hold)
		select {
		case step <- struct{}{}:
		case <-r.of.ctx.Done():
		}
		synctest.Wait()
		close(step)
		g.Close()
		for k, want := range map[string]int64{"a": 1, "b": 0, "c": 1, "e": 1} {
			if n := values[k].refs.Load(); n != want {
				t.Errorf("%s has %d references, not %d", k, n, want)
			}
		}
	})
}

func TestARunThatNobodyWantsStops(t *testing.T) {
	// The leader leaves a run while another waits for its second key: the run goes
	// on to that key and no further.
	synctest.Test(t, func(t *testing.T) {
		g, step := newGroup(), make(chan struct{})
		finished := make(chan int, 1)
		r, _ := g.Lead(t.Context(), []string{"a", "b", "c", "d"}, func(ctx context.Context, r *Run[string, *counted]) {
			i := 0
			for more := true; more && i < r.Len(); i++ {
				select {
				case <-step:
					more = r.Finish(i, newCounted("x"), nil)
				case <-ctx.Done():
					more = false
				}
			}
			finished <- i
		})
		got := make(chan error)
		go func() { _, _, err := g.Join(t.Context(), "b"); got <- err }()
		synctest.Wait()
		r.Leave()
		step <- struct{}{}
		step <- struct{}{}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if n := <-finished; n != 2 {
			t.Fatalf("%d keys were finished", n)
		}
		if _, joined, _ := g.Join(t.Context(), "c"); joined {
			t.Fatal("joined what nobody fetches")
		}
		g.Close()
	})
}

func TestWhatARunLeavesIsTriedAgain(t *testing.T) {
	// A run fails at its first key. A waiter for the second one makes an attempt of its own. A run
	// that panics is an error for all.
	synctest.Test(t, func(t *testing.T) {
		for _, panics := range []bool{false, true} {
			g, gate := newGroup(), make(chan struct{})
			bad := errors.New("bad")
			r, _ := g.Lead(t.Context(), []string{"a", "b"}, func(ctx context.Context, r *Run[string, *counted]) {
				<-gate
				if panics {
					panic("boom")
				}
				r.Finish(0, nil, bad)
			})
			got := make(chan error)
			go func() {
				v, shared, err := g.Do(t.Context(), "b", func(context.Context) (*counted, error) { return newCounted("b"), nil })
				if !panics && (err != nil || shared || v.key != "b") {
					t.Errorf("got %v, shared %v, %v", v, shared, err)
				}
				got <- err
			}()
			synctest.Wait()
			close(gate)
			_, _, err := r.Wait(t.Context(), 0)
			if errors.Is(err, bad) == panics {
				t.Errorf("the leader got %v", err)
			}
			r.Leave()
			var p *PanicError
			if err := <-got; errors.As(err, &p) != panics {
				t.Errorf("panics %v: the joiner got %v", panics, err)
			}
			g.Close()
		}
	})
}

func TestCloseEndsWhatRuns(t *testing.T) {
	// Close cancels an attempt that has a waiter, waits for it, and refuses more.
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		got := make(chan error)
		go func() {
			_, _, err := g.Do(context.Background(), "a", func(ctx context.Context) (*counted, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})
			got <- err
		}()
		synctest.Wait()
		closed := make(chan struct{})
		go func() { g.Close(); close(closed) }()
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Fatalf("the waiter got %v", err)
		}
		<-closed
		if _, _, err := g.Do(t.Context(), "a", nil); !errors.Is(err, ErrClosed) {
			t.Fatalf("afterwards %v", err)
		}
		if _, err := g.Lead(t.Context(), []string{"a"}, nil); !errors.Is(err, ErrClosed) {
			t.Fatalf("afterwards %v", err)
		}
	})
}

func TestRandomCrowds(t *testing.T) {
	// Crowds of callers over few keys, with random patience, failures and runs:
	// every value has as many references as callers that got it, no attempt is left
	// and no caller waits for ever.
	rapid.Check(t, func(rt *rapid.T) {
		plan := rapid.SliceOfN(rapid.IntRange(0, 1<<20), 1, 60).Draw(rt, "plan")
		synctest.Test(t, func(t *testing.T) {
			g, tw := newGroup(), NewTwins[string](retain, release)
			var made sync.Map
			var all sync.WaitGroup
			for n, p := range plan {
				all.Go(func() {
					<-time.After(time.Duration(p%97) * time.Millisecond) // by the bubble's clock
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(p/97%83)*time.Millisecond)
					defer cancel()
					member(ctx, crowd{g, tw, &made}, p, n)
				})
			}
			all.Wait()
			g.Close()
			made.Range(func(v, _ any) bool {
				if n := v.(*counted).refs.Load(); n != 0 {
					t.Errorf("a value has %d references", n)
				}
				return true
			})
			if len(g.calls) != 0 || len(g.attempts) != 0 || g.flying.Load() != 0 {
				t.Errorf("left: %d calls, %d attempts", len(g.calls), len(g.attempts))
			}
		})
	})
}

type crowd struct {
	g    *Group[string, *counted]
	tw   *Twins[string, *counted]
	made *sync.Map // every value there ever was
}

// member is one caller of a crowd. It checks that its reference is alive until it
// gives it back, and panics otherwise.
func member(ctx context.Context, c crowd, p, n int) {
	g, tw := c.g, c.tw
	key := fmt.Sprint(p % 5)
	work := func(ctx context.Context) (*counted, error) {
		select {
		case <-time.After(time.Duration(p%53) * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if p%7 == 0 {
			return nil, errors.New("bad")
		}
		v := newCounted(key)
		c.made.Store(v, nil)
		return v, nil
	}
	check := func(key string, v *counted, err error) {
		if err == nil && v != nil {
			if v.key != key {
				panic("another key's value")
			}
			release(v) // panics when it was not ours
		}
	}
	switch n % 3 {
	case 0:
		v, _, err := g.Do(ctx, key, work)
		check(key, v, err)
	case 1:
		v, _, err := tw.Do(ctx, key, work)
		check(key, v, err)
	case 2:
		keys := []string{fmt.Sprint(p % 5), fmt.Sprint(p%5 + 1), fmt.Sprint(p%5 + 2)}
		r, _ := g.Lead(context.Background(), keys, func(ctx context.Context, r *Run[string, *counted]) {
			for i := range r.Len() {
				v, err := work(ctx)
				if err == nil {
					v.key = keys[i]
				}
				if !r.Finish(i, v, err) || err != nil {
					return
				}
			}
		})
		if r == nil {
			return
		}
		defer r.Leave()
		for i := range r.Len() {
			v, _, err := r.Wait(ctx, i)
			if check(keys[i], v, err); err != nil {
				return
			}
		}
	}
}
