package namespace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// kernel is what one mount's kernel holds.
type kernel struct {
	mu  sync.Mutex
	ids map[uint64]hearth.Object
	end func()
}

func (k *kernel) holds(id uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.ids[id]
	return ok
}

func (k *kernel) take(n Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ids[n.ID] = n.Object
}

func mountOn(t *Tree) *kernel {
	k := &kernel{ids: map[uint64]hearth.Object{}}
	k.end = t.Hold(k.holds)
	return k
}

func TestTwoMounts(t *testing.T) {
	// At random two mounts look up and forget names that change, and end and begin again. An id that either
	// holds keeps its meaning. An id that none holds is dropped by the next sweep a minute later.
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t)
		w.o = Options{Clock: w.clock.Now, monotonic: w.clock.Now, behind: w.behind.add, Links: []Link{{Path: "/", Name: "/", Origin: w.b, Identity: "test",
			Freshness: Freshness{Mode: Bounded, Bound: time.Minute}}}}
		w.reopen()
		defer func() { _ = w.tree.Close() }()
		mounts := []*kernel{mountOn(w.tree), mountOn(w.tree)}
		seen := map[uint64]bool{}
		draw := func(r *rapid.T) *kernel { return mounts[rapid.IntRange(0, 1).Draw(r, "mount")] }
		key := func(r *rapid.T) string { return fmt.Sprint("k", rapid.IntRange(0, 2).Draw(r, "key")) }
		version := 0
		put := func(key string) { version++; w.b.put(key, fmt.Sprint("v", version), 1) }
		for _, k := range []string{"k0", "k1", "k2"} {
			put(k)
		}
		r.Repeat(map[string]func(*rapid.T){
			"change": func(r *rapid.T) { put(key(r)); w.later(2 * time.Minute) },
			"lookup": func(r *rapid.T) {
				n := w.resolve("/" + key(r))
				seen[n.ID] = true
				draw(r).take(n)
			},
			"forget": func(r *rapid.T) {
				k := draw(r)
				k.mu.Lock()
				defer k.mu.Unlock()
				for id := range k.ids {
					delete(k.ids, id)
					break
				}
			},
			"end": func(r *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(r, "mount")
				mounts[i].end()
				mounts[i] = mountOn(w.tree)
			},
			"sweep": func(r *rapid.T) {
				w.later(2 * grace)
				if err := w.tree.sweepSuperseded(w.tree.clock.Now() - grace.Milliseconds()); err != nil {
					r.Fatal(err)
				}
				for id := range seen {
					n, superseded, err := w.tree.node(id)
					kept := mounts[0].holds(id) || mounts[1].holds(id)
					if !kept && err == nil && superseded || err != nil && !errors.Is(err, hearth.ErrStale) {
						r.Fatalf("id %d, held by none: %+v, %v", id, n, err)
					}
				}
			},
			"": func(r *rapid.T) {
				for _, k := range mounts {
					for id, want := range k.ids {
						if n, err := w.tree.Node(context.Background(), id); err != nil || n.Object != want {
							r.Fatalf("id %d: %+v, %v; want %+v", id, n, err, want)
						}
					}
				}
			},
		})
	})
}

func TestSupersededAreBounded(t *testing.T) {
	// A directory of 1,000 names changes 16 times, and a mount holds ten of each version until it ends. The
	// records of other ids do not pile up, and at the end none is left. An answer in flight has its minute.
	w := open(t, nil)
	mount := mountOn(w.tree)
	records := func() int {
		var rows store.Rows
		if err := w.tree.db.Scan(&rows, []byte{record.KindSuperseded}, []byte{record.KindSuperseded + 1}, 1<<20); err != nil {
			t.Fatal(err)
		}
		return rows.Len()
	}
	const names, rounds, kept = 1000, 16, 10
	most := 0
	for round := range rounds {
		for i := range names {
			w.b.put(fmt.Sprintf("%04d", i), fmt.Sprint("v", round), 1)
		}
		w.names("/")
		for i := range kept {
			n := w.resolve(fmt.Sprintf("/%04d", i))
			mount.take(n)
		}
		w.clock.add(2 * time.Minute)
		w.settle() // a sweep that began has ended
		most = max(most, records())
	}
	if most < names || most > 3*4096 {
		t.Errorf("%d records", most)
	}
	for id, want := range mount.ids {
		if n, err := w.tree.Node(context.Background(), id); err != nil || n.Object != want {
			t.Fatalf("id %d: %+v, %v", id, n, err)
		}
	}
	for i := range names {
		w.b.put(fmt.Sprintf("%04d", i), "last", 1)
	}
	w.names("/")
	mount.end()
	if err := w.tree.sweepSuperseded(w.tree.clock.Now() - grace.Milliseconds()); err != nil {
		t.Fatal(err)
	}
	if n := records(); n != names {
		t.Errorf("%d records of answers that may be under way", n)
	}
	w.clock.add(2 * grace)
	if err := w.tree.sweepSuperseded(w.tree.clock.Now() - grace.Milliseconds()); err != nil {
		t.Fatal(err)
	}
	if n := records(); n != 0 {
		t.Errorf("%d records that nobody holds", n)
	}
}
