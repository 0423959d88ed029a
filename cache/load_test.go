package cache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestWhatAStoreIsSlowToTakeIsFetchedOnce(t *testing.T) {
	// A Load has blocks in its hands while the store has no room for them. Readers of ranges,
	// of runs, and another Load have them from memory; the bucket is asked once for each.
	for _, n := range []int{1, 4} {
		pool := hearthtest.Pool(t, 64<<20)
		synctest.Test(t, func(t *testing.T) {
			k, s, o := &bucket{pool: pool}, newShelf(pool), object(4*hearth.BlockSize)
			s.full.Store(true)
			tier := Through(s, k, Keep(s))
			room := make(chan struct{})
			s.keep = func(b hearth.Block, v *hearth.View) error {
				<-room
				check(t, v.Retain(), nil, b, 0)
				return s.Put(b, v)
			}
			load := func(_ hearth.Block, err error) bool {
				if err != nil {
					t.Error(err)
				}
				return err == nil
			}
			var all sync.WaitGroup
			all.Go(func() { tier.Load(t.Context(), o.Block(0), n, load) })
			synctest.Wait()
			for i := range n {
				v, err := tier.Get(t.Context(), o.Block(int64(i)), 100, 200)
				check(t, v, err, o.Block(int64(i)), 100)
			}
			tier.GetMany(t.Context(), o.Block(0), n, func(b hearth.Block, v *hearth.View, err error) bool {
				check(t, v, err, b, 0)
				return true
			})
			all.Go(func() { tier.Load(t.Context(), o.Block(0), n, load) })
			synctest.Wait()
			if got := k.bytes.Load(); got != int64(n)*hearth.BlockSize || k.requests.Load() != 1 {
				t.Errorf("%d blocks: %d bytes by %d requests while the store has no room", n, got, k.requests.Load())
			}
			s.full.Store(false)
			close(room)
			all.Wait()
			if got := k.bytes.Load(); got != int64(n)*hearth.BlockSize || len(s.blocks) != n || tier.lent.n.Load() != 0 {
				t.Errorf("%d bytes, %d kept, %d lent", got, len(s.blocks), tier.lent.n.Load())
			}
			tier.Close()
		})
	}
}

func TestLoadsThatCrossEachOther(t *testing.T) {
	// Twelve Loads and as many readers go over the same blocks, of a store that takes its
	// time with each; one Load in three goes away in the middle. No byte is asked for twice
	// but for those, and no View is left.
	pool := hearthtest.Pool(t, 64<<20)
	synctest.Test(t, func(t *testing.T) {
		k, s, o := &bucket{pool: pool, first: 20 * time.Millisecond, mib: time.Millisecond}, newShelf(pool), object(32*hearth.BlockSize)
		s.full.Store(true)
		s.keep = func(b hearth.Block, v *hearth.View) error {
			time.Sleep(7 * time.Millisecond)
			s.mu.Lock()
			s.blocks[b.ID()] = append([]byte(nil), v.Bytes()...)
			s.mu.Unlock()
			check(t, v.Retain(), nil, b, 0)
			return nil
		}
		tier := Through(s, k, Keep(s))
		var all sync.WaitGroup
		for g := range 12 {
			ctx, cancel := context.WithCancel(t.Context())
			all.Go(func() {
				defer cancel()
				kept := 0
				for first := int64(g); first+4 <= 32; first += 4 {
					tier.Load(ctx, o.Block(first), 4, func(_ hearth.Block, err error) bool {
						if err != nil {
							return false
						}
						if kept++; g%3 == 2 && kept == 9 {
							cancel()
						}
						return ctx.Err() == nil
					})
				}
			})
			all.Go(func() {
				for i := range int64(32) {
					if v, err := tier.Get(t.Context(), o.Block((i+int64(g))%32), 0, 10); err == nil {
						v.Release()
					}
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
		all.Wait()
		if got := k.bytes.Load(); got > o.Size+4*4*hearth.BlockSize {
			t.Errorf("%d bytes of %d", got, o.Size)
		}
		if tier.lent.n.Load() != 0 {
			t.Errorf("%d blocks lent at the end", tier.lent.n.Load())
		}
		tier.Close()
	})
}

func TestWhatAStoreDeclinesIsSaid(t *testing.T) {
	// A Load of three blocks, of which the store declines the second: the third is kept all the
	// same. Where it is the Load that was given up, that is the reason, and the run is over. What
	// no store may keep is asked of nobody.
	pool := hearthtest.Pool(t, 64<<20)
	k, s, o := &bucket{pool: pool}, newShelf(pool), object(3*hearth.BlockSize)
	tier := Through(s, k, func(hearth.Block, int) bool { return false })
	t.Cleanup(tier.Close)
	ctx, cancel := context.WithCancelCause(t.Context())
	s.keep = func(b hearth.Block, v *hearth.View) error {
		if b.Index == 1 {
			return errBroken
		}
		return s.Put(b, v)
	}
	var said []error
	note := func(b hearth.Block, err error) bool {
		if int(b.Index) != len(said) {
			t.Errorf("block %d after %d others", b.Index, len(said))
		}
		said = append(said, err)
		return true
	}
	tier.Load(ctx, o.Block(0), 3, note)
	if want := []error{nil, hearth.NotKept(errBroken.Error()), nil}; !slices.Equal(said, want) || len(s.blocks) != 2 {
		t.Errorf("%v, %d kept", said, len(s.blocks))
	}
	for name, none := range map[string]*Tier{"no version": tier, "no store": Through(nil, k, Always)} {
		x := *o
		if name == "no version" {
			x.ETag = ""
		}
		said = nil
		before := k.requests.Load()
		none.Load(ctx, x.Block(0), 3, note)
		var not hearth.NotKept
		if len(said) != 3 || !errors.As(said[2], &not) || k.requests.Load() != before {
			t.Errorf("%s: %v", name, said)
		}
	}
	clear(s.blocks)
	s.keep = func(hearth.Block, *hearth.View) error {
		cancel(hearth.ErrStale)
		return errBroken
	}
	said = nil
	if tier.Load(ctx, o.Block(0), 3, note); len(said) != 1 || said[0] != hearth.ErrStale {
		t.Errorf("given up: %v", said)
	}
}
