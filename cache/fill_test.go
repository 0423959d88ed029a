package cache

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestFill(t *testing.T) {
	// A block is brought before anybody reads it, by one request that a reader shares; the store is not asked for it, so that it takes
	// that for no read. What is held is not brought again, nor what has no version.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, s, o := &bucket{pool: pool, gate: make(chan struct{})}, newShelf(pool), object(hearth.BlockSize)
		tier := Through(s, k, Always)
		begun := 0
		fill := func(o *hearth.Object) error { return tier.Fill(t.Context(), o.Block(0), func() { begun++ }) }
		var all sync.WaitGroup
		all.Go(func() {
			if err := fill(o); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if !tier.Fetching(o.Block(0).ID()) || s.gets.Load() != 0 {
			t.Errorf("%d reads of the store", s.gets.Load())
		}
		all.Go(func() {
			v, err := tier.Get(t.Context(), o.Block(0), 7, 9)
			check(t, v, err, o.Block(0), 7)
		})
		all.Go(func() {
			if err := fill(o); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		k.gate <- struct{}{}
		all.Wait()
		weak := *object(100)
		weak.ETag = ""
		if err := errors.Join(fill(o), fill(&weak)); err != nil || k.requests.Load() != 1 || begun != 1 || !s.Has(o.Block(0).ID()) {
			t.Errorf("%v: %d requests, %d begun", err, k.requests.Load(), begun)
		}
		k.fail.Store(&hearth.ErrStale)
		other := object(2000)
		all.Go(func() {
			if err := fill(other); !errors.Is(err, hearth.ErrStale) || begun != 2 {
				t.Errorf("%v, %d begun", err, begun)
			}
		})
		synctest.Wait()
		k.gate <- struct{}{}
		all.Wait()
		tier.Close()
	})
}
