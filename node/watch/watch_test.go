package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/node/status"
)

// fake is an origin with two pages of names a second apart, and with blocks for which it is slowed down.
type fake struct{ pool *hearth.Pool }

func (f fake) Head(ctx context.Context, key string) (hearth.Object, error) {
	defer waits.SlowDown(ctx)()
	time.Sleep(time.Second)
	return hearth.Object{Key: key}, nil
}

func (f fake) List(_ context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	for i := range 2000 {
		if i%1000 == 0 {
			time.Sleep(time.Second)
		}
		if err := each(hearth.Object{Key: q.Prefix + "x"}); err != nil {
			return err
		}
	}
	return nil
}

func (f fake) Get(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	end := waits.SlowDown(ctx)
	time.Sleep(time.Second)
	end()
	return f.pool.Alloc(ctx, n)
}

func (f fake) Has(hearth.ID) bool { return false }

func (f fake) FromPeer(hearth.Block) bool { return false }

func (f fake) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	for i := range n {
		b := first.Object.Block(first.Index + int64(i))
		v, err := f.Get(ctx, b, 0, b.Len())
		if !each(b, v, err) {
			return
		}
	}
}

func TestListingsThatRun(t *testing.T) {
	// A running listing is shown with what it has found. A question for some names is not, nor is a listing
	// that has ended. Readers of names there are slowed down with it.
	synctest.Test(t, func(t *testing.T) {
		var all Listings
		ledger := waits.New()
		o := all.Over(fake{}, "s3://b/p", "s3://b/", ledger)
		enough := errors.New("enough")
		go func() {
			if err := o.List(t.Context(), hearth.Listing{Prefix: "p/d/"}, func(hearth.Object) error { return nil }); err != nil {
				t.Error(err)
			}
		}()
		go func() {
			err := o.List(t.Context(), hearth.Listing{Prefix: "p/e/", Limit: 1}, func(hearth.Object) error { return enough })
			if !errors.Is(err, enough) {
				t.Errorf("the question for one name ended with %v", err)
			}
		}()
		time.Sleep(1500 * time.Millisecond)
		if got := all.Running(); len(got) != 1 || got[0] != (status.Listing{URL: "s3://b/p/d/", Names: 1000, Seconds: 1.5}) {
			t.Errorf("running: %+v", got)
		}
		time.Sleep(time.Second)
		if got := all.Running(); len(got) != 0 {
			t.Errorf("still running: %+v", got)
		}
		var w waits.Wait
		w.Begin(ledger, 1, waits.List, "s3://b/p")
		if _, err := o.Head(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		w.End()
		if got := ledger.Seconds(); got["throttled"] != 1 || got["list"] != 0 {
			t.Errorf("a reader waited %v", got)
		}
	})
}

func TestFetchesAreOfWhoBeganThem(t *testing.T) {
	// A warm-up's fetch counts for the warm-up even if a reader joins it, through a tier whose attempts run
	// elsewhere. A reader's counts for the reader. The version tells what both waited for.
	synctest.Test(t, func(t *testing.T) {
		pool := hearth.NewPool(64 << 20)
		ledger, egress := waits.New(), &Egress{}
		heard := func(hearth.Block, time.Time, error) {}
		ram := cache.NewRAM(pool, 16<<20)
		defer ram.Close()
		tier := cache.Memory(ram, Bucket{Source: fake{pool}, Heard: heard, Egress: egress, Waits: ledger}, cache.Always)
		defer tier.Close()
		o := &hearth.Object{Key: "k", ETag: "e", Size: 5 << 20, Version: hearth.VersionOf("o", "k", "e", 5<<20)}
		get := func(index int64) {
			v, err := tier.Get(t.Context(), o.Block(index), 0, 100)
			if err != nil {
				t.Error(err)
				return
			}
			v.Release()
		}
		load := func(first int64, n int) {
			WarmUp{tier}.Load(t.Context(), o.Block(first), n, func(_ hearth.Block, err error) bool {
				if err != nil {
					t.Error(err)
				}
				return err == nil
			})
		}
		go load(0, 1)
		synctest.Wait()
		var w waits.Wait
		w.Begin(ledger, 1, waits.Origin, o.Version)
		get(0) // joins it
		w.End()
		get(1)
		load(2, 2)
		if got, want := egress.Readers(), (status.Requests{Requests: 1, Bytes: 1 << 20}); got != want {
			t.Errorf("readers: %+v", got)
		}
		if got, want := egress.WarmUp(), (status.Requests{Requests: 2, Bytes: 3 << 20}); got != want {
			t.Errorf("warm-up: %+v", got)
		}
		if got := ledger.Seconds(); got["throttled"] != 1 || got["origin"] != 0 {
			t.Errorf("the reader who joined waited %v", got)
		}
		if s := tier.Stats(); s.Shared != 1 || s.SharedBytes != 100 {
			t.Errorf("%+v", s)
		}
	})
}

// shelf is a Store that holds the first block of each object, and takes 2 s to read it.
type shelf struct {
	hearth.Store
	pool *hearth.Pool
}

func (s shelf) Has(id hearth.ID) bool { return id.Index == 0 }

func (s shelf) Get(ctx context.Context, b hearth.Block, _, n int) (*hearth.View, error) {
	if !s.Has(b.ID()) {
		return nil, hearth.ErrMiss
	}
	time.Sleep(2 * time.Second)
	return s.pool.Alloc(ctx, n)
}

func TestAReadOfAVolumeIsNoWaitForAnOrigin(t *testing.T) {
	// A reader of a block that a volume has waits for the volume. One of a block that it does not have waits for the
	// origin, here for its pause.
	synctest.Test(t, func(t *testing.T) {
		pool, ledger := hearth.NewPool(64<<20), waits.New()
		bucket := Bucket{Source: fake{pool}, Heard: func(hearth.Block, time.Time, error) {}, Egress: &Egress{}, Waits: ledger}
		tier := cache.Through(Volumes{Store: shelf{pool: pool}, Waits: ledger}, bucket, cache.Never)
		defer tier.Close()
		o := &hearth.Object{Key: "k", ETag: "e", Size: 5 << 20, Version: hearth.VersionOf("o", "k", "e", 5<<20)}
		for index := range int64(2) {
			var w waits.Wait
			w.Begin(ledger, 1, waits.Origin, o.Version)
			v, err := tier.Get(t.Context(), o.Block(index), 0, 100)
			w.End()
			if err != nil {
				t.Fatal(err)
			}
			v.Release()
		}
		if got := ledger.Seconds(); got["volume"] != 2 || got["throttled"] != 1 || got["origin"] != 0 {
			t.Errorf("waited %v", got)
		}
	})
}
