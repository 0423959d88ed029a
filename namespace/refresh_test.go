package namespace

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

func TestRefresh(t *testing.T) {
	// Refresh lists a directory anew, whatever the link's freshness says. It does so once for all who ask as
	// of the same time, also while an earlier listing runs. Mounts hear what has changed, and a failed
	// listing is no answer.
	for _, f := range []Freshness{{Mode: Immutable}, {Mode: Bounded, Bound: time.Hour}, {Mode: Strict}} {
		w := open(t, func(o *Options) { o.Links[0].Freshness = f })
		old := w.b.put("d/x", "A", 1)
		w.b.put("d/gone", "A", 1)
		d := w.resolve("/d")
		w.names("/d")
		w.clock.add(time.Second)
		now := w.b.put("d/x", "B", 2)
		w.b.remove("d/gone")
		var mu sync.Mutex
		was := map[string]Node{}
		cancel := w.tree.Subscribe(func(c Change) {
			n, err := w.tree.Node(t.Context(), c.Old)
			if err != nil {
				t.Errorf("%v: what %s meant: %v", f, c.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			was[c.Name] = n
		})
		w.settle() // the parent is listed beside the first look-up
		before := w.b.requests()
		since := w.tree.Now()
		for range 3 {
			if err := w.tree.Refresh(t.Context(), d.ID, since); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.b.requests() - before; n != 1 {
			t.Errorf("%v: %d requests", f, n)
		}
		var names []string
		if err := w.tree.ReadSince(t.Context(), d.ID, since, "", func(n Node) bool {
			names = append(names, n.Name)
			if n.Object != now {
				t.Errorf("%v: %+v", f, n)
			}
			return true
		}); err != nil || !slices.Equal(names, []string{"x"}) || w.b.requests()-before != 1 {
			t.Errorf("%v: %q, %v", f, names, err)
		}
		mu.Lock()
		if len(was) != 2 || was["x"].Object != old || was["gone"].Object.Key != "d/gone" {
			t.Errorf("%v: told of %+v", f, was)
		}
		mu.Unlock()
		cancel()
		w.clock.add(time.Second)
		w.b.down(errDown)
		if err := w.tree.Refresh(t.Context(), d.ID, w.tree.Now()); !errors.Is(err, errDown) {
			t.Errorf("%v: of an origin that is away: %v", f, err)
		}
		w.b.down(nil)
	}
}

func TestADirectoryIsListedOnceForWhoDecidedEarlier(t *testing.T) {
	// A reader and a walk find that a directory is not listed, and are held up until another listing
	// of it has begun and ended: they begin no second one. They do once that one grows old.
	w := open(t, nil)
	w.b.put("d/x", "A", 1)
	n := w.resolve("/d")
	w.names("/d")
	d, err := w.tree.dirs.get(w.tree, n.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer d.release()
	before := w.b.requests()
	w.tree.kick(d)
	l, err := w.tree.listExpired(t.Context(), d, nil)
	if n := w.b.requests() - before; l != nil || err != nil || d.running.Load() != nil || n != 0 {
		t.Errorf("a fresh directory is listed again: %d requests, %v", n, err)
	}
	for i, held := range []time.Duration{50 * time.Second, time.Hour} {
		w.clock.add(held)
		l, err = w.tree.listExpired(t.Context(), d, nil)
		if old := i == 1; old != (l != nil) || err != nil {
			t.Errorf("%v later: listed again is %v, %v", held, l != nil, err)
		}
		w.tree.kick(d)
		if l = d.running.Load(); l != nil && l.Wait(t.Context()) != nil {
			t.Error(l.Err())
		}
		if n := w.b.requests() - before; n != i+1 {
			t.Errorf("%v later: %d requests", held, n)
		}
	}
}

func TestARefreshWaitsForAListingThatIsTooOld(t *testing.T) {
	// A listing is under way when a caller wants one as of now. It is too old for the caller.
	w := open(t, nil)
	w.b.put("d/x", "A", 1)
	d := w.resolve("/d")
	w.later(24 * time.Hour)
	running, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.b.mu.Lock()
	w.b.onPage = func(string, int) {
		once.Do(func() {
			close(running)
			<-goOn
		})
	}
	lists := w.b.lists
	w.b.mu.Unlock()
	first := make(chan error)
	go func() { first <- w.tree.ReadDir(t.Context(), d.ID, "", func(Node) bool { return true }) }()
	<-running
	w.clock.add(time.Second)
	second := make(chan error)
	since := w.tree.Now()
	go func() { second <- w.tree.Refresh(t.Context(), d.ID, since) }()
	close(goOn)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if n := w.b.lists - lists; n != 2 {
		t.Errorf("%d listings", n)
	}
}

// captured is an origin that answers a listing when it may, with what it read before.
type captured struct {
	*bucket
	read, free chan struct{} // of d/; nil: at once
}

func (c *captured) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	var all []hearth.Object
	err := c.bucket.List(ctx, q, func(o hearth.Object) error { all = append(all, o); return nil })
	if q.Prefix == "d/" && c.free != nil {
		close(c.read)
		<-c.free
	}
	for _, o := range all {
		err = errors.Join(err, each(o))
	}
	return err
}

func TestWhoFindsAListingThatBeganLongAgo(t *testing.T) {
	// A listing that began before the machine slept tells nothing new. A reader that comes afterwards, and
	// finds it running, asks again.
	origin := &captured{}
	w := open(t, func(o *Options) {
		started := time.Now()
		o.monotonic = func() time.Time { return started } // it stood still
		origin.bucket = o.Links[0].Origin.(*bucket)
		o.Links[0].Origin = origin
	})
	w.b.put("d/x", "A", 1)
	d := w.resolve("/d")
	w.names("/d")
	w.clock.add(55 * time.Second)
	origin.read, origin.free = make(chan struct{}), make(chan struct{})
	w.resolve("/d/x") // has it listed anew
	<-origin.read
	dir, err := w.tree.dirs.get(w.tree, d.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.release()
	l, q := dir.running.Load(), inquiry{t: w.tree, d: dir, segment: "x"}
	now := w.b.put("d/x", "B", 2)
	if !l.believed() {
		t.Error("it has just begun")
	}
	w.clock.add(61 * time.Second)
	close(origin.free)
	if err := l.Wait(t.Context()); err != nil || l.Err() != nil || l.believed() || q.passed(l) {
		t.Errorf("%v, %v: it began a minute ago", err, l.Err())
	}
	origin.read, origin.free = nil, nil
	if n := w.resolve("/d/x"); n.Object != now {
		t.Errorf("it is %+v", n.Object)
	}
}
