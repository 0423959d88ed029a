package cache

import (
	"context"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/flight"
)

// GetMany yields whole blocks in order. It works at one place at a time, from the first block on.
// While it waits for a block it holds no others but those before it in the same run. So no two
// callers can wait for each other's memory.
func (t *Tier) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	if t.store == nil || !first.Object.Cacheable() {
		if t.next == nil {
			each(first, nil, hearth.ErrMiss)
			return
		}
		t.next.GetMany(ctx, first, n, t.counted(each))
		return
	}
	t.getMany(ctx, first, n, receiver{nil, each})
}

func (t *Tier) getMany(ctx context.Context, first hearth.Block, n int, to receiver) {
	for i := 0; i < n; {
		b := first.Object.Block(first.Index + int64(i))
		v, err := t.store.Get(ctx, b, 0, b.Len())
		if err == nil {
			t.hits.Add(1)
			t.hitBytes.Add(int64(b.Len()))
		} else {
			t.missed(err)
			if ctx.Err() != nil {
				to.each(b, nil, context.Cause(ctx))
				return
			}
			if v = t.lent.get(b.ID(), 0, b.Len()); v != nil {
				t.joined(b.Len())
			}
		}
		if v != nil {
			if i++; !to.each(b, v, nil) {
				return
			}
			continue
		}
		got, more := t.run(ctx, b, t.missing(b, n-i), to)
		if i += got; !more {
			return
		}
	}
}

func (t *Tier) counted(each func(hearth.Block, *hearth.View, error) bool) func(hearth.Block, *hearth.View, error) bool {
	return func(b hearth.Block, v *hearth.View, err error) bool {
		if err == nil {
			t.fetches.Add(1)
			t.fetchedBytes.Add(int64(v.Len()))
		}
		return each(b, v, err)
	}
}

// missing counts the blocks from first on, at most n, up to the first that the store holds. first
// is known to be missing.
func (t *Tier) missing(first hearth.Block, n int) int {
	run := 1
	for run < n && !t.holds(first.Object.Block(first.Index+int64(run))) {
		run++
	}
	return run
}

// holds reports whether a block is in the store, or lent by a Load.
func (t *Tier) holds(b hearth.Block) bool { return t.lent.has(b.ID()) || t.store.Has(b.ID()) }

// run yields missing blocks from first on, at most n. That is one block if somebody fetches it
// already; else it is as many as nobody else is fetching, by one attempt. run returns how many
// blocks it yielded, and whether the caller goes on behind them.
func (t *Tier) run(ctx context.Context, first hearth.Block, n int, to receiver) (got int, more bool) {
	if t.next == nil {
		to.each(first, nil, hearth.ErrMiss)
		return 0, false
	}
	ids := make([]hearth.ID, n)
	for i := range ids {
		ids[i] = hearth.ID{Version: first.Object.Version, Index: first.Index + int64(i)}
	}
	r, err := t.whole.Lead(ctx, ids, func(ctx context.Context, r *flight.Run[hearth.ID, *hearth.View]) { t.bring(ctx, r, first, to.lent) })
	if err != nil {
		to.each(first, nil, err)
		return 0, false
	}
	if r == nil {
		v, joined, err := t.whole.Join(ctx, ids[0])
		if !joined {
			return 0, true // it has just ended: the store may have the block now
		}
		t.joined(first.Len())
		return 1, to.each(first, v, err) && err == nil
	}
	defer r.Leave()
	for ; got < r.Len(); got++ {
		v, again, err := r.Wait(ctx, got)
		if again {
			return got, true
		}
		if !to.each(first.Object.Block(first.Index+int64(got)), v, err) || err != nil {
			return got + 1, false
		}
	}
	return got, true
}

// bring is the attempt of a run. It finishes each block as it comes, so that those who wait for one
// need not wait for the rest. From then on the blocks of a Load are lent to others.
func (t *Tier) bring(ctx context.Context, r *flight.Run[hearth.ID, *hearth.View], first hearth.Block, lent *lending) {
	block := func(i int) hearth.Block { return first.Object.Block(first.Index + int64(i)) }
	for i := 0; i < r.Len(); {
		if v := t.meanwhile(ctx, block(i)); v != nil {
			if !r.Finish(i, v, nil) {
				return
			}
			i++
			continue
		}
		stop, ended := i+1, false
		for stop < r.Len() && !t.holds(block(stop)) {
			stop++
		}
		t.next.GetMany(ctx, block(i), stop-i, t.counted(func(b hearth.Block, v *hearth.View, err error) bool {
			if err == nil && v.Len() != b.Len() {
				v.Release()
				err = errShort
			}
			if err == nil {
				t.keep(b, v)
				lent.add(b.ID(), v)
			}
			wanted := r.Finish(int(b.Index-first.Index), v, err)
			ended = err != nil || !wanted
			i++
			return !ended
		}))
		if ended {
			return
		}
		if i < stop {
			r.Finish(i, nil, errShort)
			return
		}
	}
}

// keep puts a block of a run into the store or the window, or into neither.
func (t *Tier) keep(b hearth.Block, v *hearth.View) {
	switch {
	case t.admit(b, 0):
		t.put(b, v)
	case t.window != nil && !t.next.Has(b.ID()):
		t.window.hold(b, v)
	}
}
