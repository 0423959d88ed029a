package namespace

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func TestNamesMove(t *testing.T) {
	// The disk of the names fails while names are looked up, listed and changed. They move to the next
	// directory. No reader sees an error, or asks the origin again for what is known. No id changes its
	// meaning or comes twice, not after a restart there either.
	var failing atomic.Bool
	mem := vfs.NewMem()
	disk := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasPrefix(op.Path, "a/") {
			return syscall.EIO
		}
		return nil
	}))
	moved := make(chan string, 1)
	w := open(t, func(o *Options) {
		o.Dir, o.fs, o.moveRetry = "a/names", disk, time.Millisecond
		o.Next = func() []string { return []string{"a/names", "b/names"} }
		o.Events.Moved = func(dir string) { moved <- dir }
		o.Links[0].Freshness = Freshness{Mode: Immutable}
	})
	const dirs, names = 4, 1500
	for i := range dirs * names {
		w.b.put(fmt.Sprintf("d%d/%04d", i%dirs, i), "A", 1)
	}
	for d := range dirs - 1 {
		w.names(fmt.Sprintf("/d%d", d))
	}
	ids := map[string]uint64{}
	for i := range dirs * names {
		if i%dirs != dirs-1 {
			p := fmt.Sprintf("/d%d/%04d", i%dirs, i)
			ids[p] = w.resolve(p).ID
		}
	}
	w.settle()
	asked := w.b.requests()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range 3 {
		wg.Go(func() {
			for i := g; ; i = (i + 7) % (dirs * names) {
				select {
				case <-stop:
					return
				default:
				}
				p := fmt.Sprintf("/d%d/%04d", i%dirs, i)
				if i%dirs == dirs-1 {
					continue
				}
				if n, err := w.tree.Resolve(context.Background(), p); err != nil || n.ID != ids[p] {
					t.Errorf("%s: %+v, %v; want id %d", p, n, err, ids[p])
					return
				}
				if n, err := w.tree.Node(context.Background(), ids[p]); err != nil || n.ID != ids[p] {
					t.Errorf("id %d: %+v, %v", ids[p], n, err)
					return
				}
			}
		})
	}
	failing.Store(true)
	w.names(fmt.Sprintf("/d%d", dirs-1)) // the first write that fails, and new ids
	if dir := <-moved; dir != "b/names" {
		t.Errorf("moved to %s", dir)
	}
	close(stop)
	wg.Wait()
	if n := w.b.requests() - asked; n != 2 { // two pages of the last directory
		t.Errorf("%d requests", n)
	}
	if s := w.tree.Stats(); s.Where != "b/names" || s.Ill != nil || s.Moves != 1 || s.Rebuilds != 0 {
		t.Errorf("%+v", s)
	}
	for i := range dirs * names {
		p := fmt.Sprintf("/d%d/%04d", i%dirs, i)
		n := w.resolve(p)
		if want, ok := ids[p]; ok && n.ID != want {
			t.Errorf("%s has id %d, had %d", p, n.ID, want)
		}
		ids[p] = n.ID
	}
	last := w.tree.Stats().LastID
	w.o.Dir, w.o.fs = "b/names", mem
	w.reopen()
	for p, want := range ids {
		if n := w.resolve(p); n.ID != want {
			t.Fatalf("%s has id %d after the restart, had %d", p, n.ID, want)
		}
	}
	if id, err := w.tree.ids.Next(); err != nil || id <= last {
		t.Errorf("id %d after %d, %v", id, last, err)
	}
}
