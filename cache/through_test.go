package cache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestOneFetchForAll(t *testing.T) {
	// Ten readers want different slices of a block nobody has: the bucket is asked
	// once, for the whole block, and the eleventh is served by the store.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, s, o := &bucket{pool: pool, gate: make(chan struct{})}, newShelf(pool), object(3*hearth.BlockSize)
		tier := Through(s, k, Always)
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				v, err := tier.Get(t.Context(), o.Block(1), i*1000, 5000)
				check(t, v, err, o.Block(1), i*1000)
			})
		}
		synctest.Wait()
		k.gate <- struct{}{}
		all.Wait()
		v, err := tier.Get(t.Context(), o.Block(1), 7, 9)
		check(t, v, err, o.Block(1), 7)
		st := tier.Stats()
		if k.requests.Load() != 1 || k.bytes.Load() != hearth.BlockSize || st.Shared != 9 || st.Hits != 1 || st.Misses != 10 || st.FetchedBytes != hearth.BlockSize {
			t.Errorf("%d requests of %d bytes; %+v", k.requests.Load(), k.bytes.Load(), st)
		}
		tier.Close()
	})
}

func TestWhatIsNotKeptIsNotFetched(t *testing.T) {
	// admit says no: only the range goes over the wire, nothing is stored, and only
	// equal ranges share.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, s, o := &bucket{pool: pool, gate: make(chan struct{})}, newShelf(pool), object(3*hearth.BlockSize)
		tier := Through(s, k, func(hearth.Block, int) bool { return false })
		var all sync.WaitGroup
		for _, off := range []int{0, 0, 0, 4096} {
			all.Go(func() {
				v, err := tier.Get(t.Context(), o.Block(0), off, 4096)
				check(t, v, err, o.Block(0), off)
			})
		}
		synctest.Wait()
		k.gate <- struct{}{}
		k.gate <- struct{}{}
		all.Wait()
		if k.requests.Load() != 2 || k.bytes.Load() != 8192 || len(s.blocks) != 0 || tier.Stats().Shared != 2 {
			t.Errorf("%d requests of %d bytes, %d kept, %+v", k.requests.Load(), k.bytes.Load(), len(s.blocks), tier.Stats())
		}
		tier.Close()
	})
}

func TestABrokenStoreCostsTime(t *testing.T) {
	// The store fails on every Get and Put: reads go on, errors are counted.
	pool := hearthtest.Pool(t, 64<<20)
	k, s, o := &bucket{pool: pool}, newShelf(pool), object(3*hearth.BlockSize)
	s.broken.Store(true)
	tier := Through(s, k, Always)
	for i := range o.Blocks() {
		v, err := tier.Get(t.Context(), o.Block(i), 10, 20)
		check(t, v, err, o.Block(i), 10)
	}
	got := 0
	tier.GetMany(t.Context(), o.Block(0), 3, func(b hearth.Block, v *hearth.View, err error) bool {
		check(t, v, err, b, 0)
		got++
		return true
	})
	tier.Close()
	if st := tier.Stats(); got != 3 || st.Errors == 0 || st.Declined != 6 {
		t.Errorf("%d blocks, %+v", got, st)
	}
}

func TestAnOriginsErrorIsNotKept(t *testing.T) {
	// The bucket fails, then works: the error goes to who asked, the next one gets
	// the bytes. ErrStale comes up as it is.
	pool := hearthtest.Pool(t, 64<<20)
	k, o := &bucket{pool: pool}, object(hearth.BlockSize)
	tier := Through(newShelf(pool), k, Always)
	defer tier.Close()
	k.fail.Store(&hearth.ErrStale)
	if _, err := tier.Get(t.Context(), o.Block(0), 0, 1); !errors.Is(err, hearth.ErrStale) {
		t.Fatalf("got %v", err)
	}
	k.fail.Store(nil)
	v, err := tier.Get(t.Context(), o.Block(0), 0, 100)
	check(t, v, err, o.Block(0), 0)
}

func TestNothingIsSharedOfWhatHasNoVersion(t *testing.T) {
	// An object without a strong ETag is read twice at once and twice after: four
	// requests for exactly the ranges, and nothing is stored.
	pool := hearthtest.Pool(t, 64<<20)
	k, s := &bucket{pool: pool}, newShelf(pool)
	ram := NewRAM(pool, 32<<20)
	t.Cleanup(ram.Close)
	o := *object(3 * hearth.BlockSize)
	o.ETag = "W/weak"
	tier := Memory(ram, Through(s, k, Always), Always)
	for range 2 {
		v, err := tier.Get(t.Context(), o.Block(1), 100, 200)
		check(t, v, err, o.Block(1), 100)
	}
	r := NewReader(tier, &o, ReaderOptions{})
	defer r.Close()
	readAll(t, r, o.Size, 1<<20)
	if k.bytes.Load() != 400+o.Size || len(s.blocks) != 0 || ram.Stats().Puts != 0 {
		t.Errorf("%d bytes, %d kept", k.bytes.Load(), len(s.blocks))
	}
}

func TestTiersPassThrough(t *testing.T) {
	// Without a store a Tier is its next; without a next a miss is a miss; Local
	// never fetches.
	pool := hearthtest.Pool(t, 64<<20)
	k, s, o := &bucket{pool: pool}, newShelf(pool), object(hearth.BlockSize)
	v, err := Through(nil, k, Always).Get(t.Context(), o.Block(0), 3, 4)
	check(t, v, err, o.Block(0), 3)
	none := Through(s, nil, Always)
	if _, err := none.Get(t.Context(), o.Block(0), 3, 4); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("got %v", err)
	}
	none.GetMany(t.Context(), o.Block(0), 1, func(_ hearth.Block, _ *hearth.View, err error) bool {
		if !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("got %v", err)
		}
		return true
	})
	l := Local(nil, s)
	if _, err := l.Get(t.Context(), o.Block(0), 3, 4); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("got %v", err)
	}
	hearthtest.PutHeld(t, pool, s, o.Block(0), 1)
	v, err = l.Get(t.Context(), o.Block(0), 3, 4)
	check(t, v, err, o.Block(0), 3)
}

func TestARunIsOneRequest(t *testing.T) {
	// Ten blocks, of which the store holds the fourth: two requests, in order, and
	// the second time none.
	pool := hearthtest.Pool(t, 64<<20)
	k, s, o := &bucket{pool: pool}, newShelf(pool), object(9*hearth.BlockSize+10)
	hearthtest.PutHeld(t, pool, s, o.Block(3), 1)
	tier := Through(s, k, Always)
	for range 2 {
		next := int64(0)
		tier.GetMany(t.Context(), o.Block(0), 10, func(b hearth.Block, v *hearth.View, err error) bool {
			if b.Index != next {
				t.Errorf("block %d instead of %d", b.Index, next)
			}
			next++
			check(t, v, err, b, 0)
			return true
		})
		if next != 10 {
			t.Errorf("%d blocks", next)
		}
	}
	tier.Close()
	if k.requests.Load() != 2 || k.bytes.Load() != o.Size-hearth.BlockSize {
		t.Errorf("%d requests of %d bytes", k.requests.Load(), k.bytes.Load())
	}
}

func TestReadersShareTheBlocksOfARun(t *testing.T) {
	// While a run comes in block by block, one reader wants a block in its midst and
	// gets it as soon as it is there; a second run that overlaps joins where the
	// first is at work and fetches only what lies beyond.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, s, o := &bucket{pool: pool, gate: make(chan struct{})}, newShelf(pool), object(8*hearth.BlockSize)
		own := Through(s, k, Always)
		reads := Through(newShelf(pool), own, func(hearth.Block, int) bool { return false })
		var all sync.WaitGroup
		run := func(first int64, n int) {
			got := 0
			reads.GetMany(t.Context(), o.Block(first), n, func(b hearth.Block, v *hearth.View, err error) bool {
				check(t, v, err, b, 0)
				got++
				return true
			})
			if got != n {
				t.Errorf("run at %d: %d blocks", first, got)
			}
		}
		all.Go(func() { run(0, 4) })
		synctest.Wait()
		all.Go(func() { run(2, 6) })
		one := make(chan struct{})
		go func() {
			v, err := reads.Get(t.Context(), o.Block(1), 5, 6)
			check(t, v, err, o.Block(1), 5)
			close(one)
		}()
		synctest.Wait()
		k.gate <- struct{}{}
		k.gate <- struct{}{}
		<-one
		for range 6 {
			k.gate <- struct{}{}
		}
		all.Wait()
		if k.requests.Load() != 2 || k.bytes.Load() != o.Size {
			t.Errorf("%d requests of %d bytes", k.requests.Load(), k.bytes.Load())
		}
		reads.Close()
		own.Close()
	})
}

func TestARunThatBreaks(t *testing.T) {
	// The bucket breaks a run at its third block: the leader gets two blocks and the
	// error; a reader that waited for the fifth asks again by itself and gets it.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, s, o := &bucket{pool: pool, gate: make(chan struct{})}, newShelf(pool), object(8*hearth.BlockSize)
		k.whole = func(int64, int64) int { return 2 }
		tier := Through(s, k, Always)
		var all sync.WaitGroup
		all.Go(func() {
			good, bad := 0, 0
			tier.GetMany(t.Context(), o.Block(0), 8, func(b hearth.Block, v *hearth.View, err error) bool {
				if err != nil {
					bad++
					return true
				}
				good++
				v.Release()
				return true
			})
			if good != 2 || bad != 1 {
				t.Errorf("%d blocks, %d errors", good, bad)
			}
		})
		synctest.Wait()
		all.Go(func() {
			v, err := tier.Get(t.Context(), o.Block(4), 0, 10)
			check(t, v, err, o.Block(4), 0)
		})
		synctest.Wait()
		for range 4 {
			k.gate <- struct{}{}
		}
		all.Wait()
		tier.Close()
	})
}

func TestWhoLeavesARunStopsIt(t *testing.T) {
	// A run's only reader has enough after one block, or goes away: the bucket is not
	// asked for the rest, and no View is left.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, o := &bucket{pool: pool, gate: make(chan struct{}, 1)}, object(8*hearth.BlockSize)
		tier := Through(newShelf(pool), k, Always)
		k.gate <- struct{}{}
		tier.GetMany(t.Context(), o.Block(0), 8, func(b hearth.Block, v *hearth.View, err error) bool {
			check(t, v, err, b, 0)
			return false
		})
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go tier.GetMany(ctx, o.Block(4), 4, func(_ hearth.Block, _ *hearth.View, err error) bool {
			gone <- err
			return true
		})
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if k.bytes.Load() != hearth.BlockSize {
			t.Errorf("%d bytes", k.bytes.Load())
		}
		tier.Close()
	})
}

func TestRunsInTheSmallestMemory(t *testing.T) {
	// Twenty runs of sixteen blocks over the same two extents, forwards in step, in
	// the smallest pool and through two tiers: all end, since nobody waits for
	// memory while holding a View.
	n := newNode(t, hearth.MinRAM)
	o := object(32 * hearth.BlockSize)
	var all sync.WaitGroup
	for g := range 20 {
		all.Go(func() {
			first := int64(g*7) % 17
			n.reads.GetMany(t.Context(), o.Block(first), 15, func(b hearth.Block, v *hearth.View, err error) bool {
				check(t, v, err, b, 0)
				return true
			})
		})
	}
	all.Wait()
	if got := n.bucket.bytes.Load(); got > o.Size {
		t.Errorf("%d bytes of %d", got, o.Size)
	}
}

func TestAClosedTierRefuses(t *testing.T) {
	// After Close a hit is still a hit; what needs an attempt fails at once.
	pool := hearthtest.Pool(t, 64<<20)
	k, s, o := &bucket{pool: pool}, newShelf(pool), object(2*hearth.BlockSize)
	tier := Through(s, k, Always)
	v, err := tier.Get(t.Context(), o.Block(0), 0, 10)
	check(t, v, err, o.Block(0), 0)
	tier.Close()
	v, err = tier.Get(t.Context(), o.Block(0), 0, 10)
	check(t, v, err, o.Block(0), 0)
	if _, err := tier.Get(t.Context(), o.Block(1), 0, 10); err == nil {
		t.Error("fetched after Close")
	}
	tier.GetMany(t.Context(), o.Block(1), 1, func(_ hearth.Block, _ *hearth.View, err error) bool {
		if err == nil {
			t.Error("fetched after Close")
		}
		return true
	})
}

func TestWhatNextHoldsIsLifted(t *testing.T) {
	// Nothing is fetched for a block that the next tier holds, or that another node is asked
	// for: the first who wants it brings it up on its own goroutine, those who come meanwhile
	// share that, and it is kept.
	for name, next := range map[string]func(*holding) hearth.Source{"below": func(h *holding) hearth.Source { return h }, "another node": func(h *holding) hearth.Source { return asking{hearthtest.Source(h), h} }} {
		t.Run(name, func(t *testing.T) { liftedFrom(t, next) })
	}
}

// asking is a bucket that another node reads from for this one, which holds nothing.
type asking struct {
	hearth.Source
	from *holding
}

func (a asking) FromPeer(b hearth.Block) bool { return a.from.Has(b.ID()) }

func liftedFrom(t *testing.T, next func(*holding) hearth.Source) {
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, o := &bucket{pool: pool, gate: make(chan struct{})}, object(hearth.BlockSize)
		below := &holding{bucket: k, held: o.Block(0).ID()}
		s := newShelf(pool)
		tier := Through(s, next(below), Always)
		own := context.WithValue(t.Context(), holding{}, 1)
		var all sync.WaitGroup
		all.Go(func() {
			v, err := tier.Get(own, o.Block(0), 100, 5000)
			check(t, v, err, o.Block(0), 100)
		})
		synctest.Wait()
		for range 3 {
			all.Go(func() {
				v, err := tier.Get(t.Context(), o.Block(0), 7, 9)
				check(t, v, err, o.Block(0), 7)
			})
		}
		synctest.Wait()
		k.gate <- struct{}{}
		all.Wait()
		if st := tier.Stats(); k.requests.Load() != 1 || k.bytes.Load() != hearth.BlockSize || st.Shared != 3 || st.Fetches != 1 {
			t.Errorf("%d requests of %d bytes; %+v", k.requests.Load(), k.bytes.Load(), st)
		}
		if below.asked != own {
			t.Error("brought up for nobody's context")
		}
		v, err := tier.Get(t.Context(), o.Block(0), 7, 9)
		check(t, v, err, o.Block(0), 7)
		if k.requests.Load() != 1 {
			t.Error("not kept")
		}
		tier.Close()
	})
}

func TestWhoBringsUpAndLeavesIsReplaced(t *testing.T) {
	// The reader who brings a block up goes away; the one who waits for it gets it.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, o := &bucket{pool: pool, gate: make(chan struct{})}, object(hearth.BlockSize)
		tier := Through(newShelf(pool), &holding{bucket: k, held: o.Block(0).ID()}, Always)
		leaves, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := tier.Get(leaves, o.Block(0), 0, 5); !errors.Is(err, context.Canceled) {
				t.Errorf("who left got %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			v, err := tier.Get(t.Context(), o.Block(0), 7, 9)
			check(t, v, err, o.Block(0), 7)
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		k.gate <- struct{}{}
		all.Wait()
		tier.Close()
	})
}

// holding is a bucket that holds a block, as a tier below does, and knows by what context
// it was asked last.
type holding struct {
	*bucket
	held  hearth.ID
	asked context.Context
}

func (h *holding) Has(id hearth.ID) bool { return id == h.held }

func (h *holding) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	h.asked = ctx
	return h.bucket.Get(ctx, b, off, n)
}
