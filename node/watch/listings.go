package watch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/node/status"
)

// Names is what a namespace asks of an origin.
type Names interface {
	Head(ctx context.Context, key string) (hearth.Object, error)
	List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error
}

// Listings are the listings that run at present.
type Listings struct {
	mu      sync.Mutex // guards running
	running map[*listing]struct{}
}

type listing struct {
	url   string
	began time.Time
	names atomic.Int64
}

// Over decorates the origin of a link with a URL, whose keys are shown behind base. Its listings are counted in
// l. Its pauses are reported as waits of readers of names below the URL.
func (l *Listings) Over(origin Names, url, base string, ledger *waits.Ledger) Names {
	return listed{origin, l, url, base, ledger}
}

type listed struct {
	Names
	all       *Listings
	url, base string
	ledger    *waits.Ledger
}

// Head implements Names.
func (x listed) Head(ctx context.Context, key string) (hearth.Object, error) {
	return x.Names.Head(x.ledger.About(ctx, x.url), key)
}

// List implements Names. A question with a limit lists no whole directory, and is not among the Listings.
func (x listed) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	ctx = x.ledger.About(ctx, x.url)
	if q.Limit > 0 {
		return x.Names.List(ctx, q, each)
	}
	l := &listing{url: x.base + q.Prefix, began: time.Now()}
	x.all.mu.Lock()
	if x.all.running == nil {
		x.all.running = map[*listing]struct{}{}
	}
	x.all.running[l] = struct{}{}
	x.all.mu.Unlock()
	defer func() {
		x.all.mu.Lock()
		defer x.all.mu.Unlock()
		delete(x.all.running, l)
	}()
	return x.Names.List(ctx, q, func(o hearth.Object) error {
		l.names.Add(1)
		return each(o)
	})
}

// Running returns the listings in flight, the longest first.
func (l *Listings) Running() []status.Listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]status.Listing, 0, len(l.running))
	for x := range l.running {
		all = append(all, status.Listing{URL: x.url, Names: x.names.Load(), Seconds: time.Since(x.began).Seconds()})
	}
	slices.SortFunc(all, func(a, b status.Listing) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return all
}
