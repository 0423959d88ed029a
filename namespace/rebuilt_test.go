package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// rebuiltWorld is a tree whose database turns out corrupt at the nth read of its disk, and what a kernel
// knew of the tree before.
type rebuiltWorld struct {
	*world
	reads   atomic.Int64 // of the corrupt database, until the first that tells
	corrupt atomic.Int64 // its generation; none: no database is
	dirs    map[string]uint64
}

// none is no generation.
const none = -1

// corrupts makes the database turn out corrupt at the nth read of its disk from now on, and at each one
// after it: Pebble also reads by itself, and does not report what it finds then.
func (r *rebuiltWorld) corrupts(n int64) {
	r.reads.Store(n)
	r.corrupt.Store(r.tree.db.Generation())
}

const rebuiltDirs, rebuiltFiles = 3, 40

func rebuiltKey(i int) string {
	i %= rebuiltDirs * rebuiltFiles
	return fmt.Sprintf("top/d%d/%02d%s", i%rebuiltDirs, i/rebuiltDirs, strings.Repeat("x", 240*(i&1)))
}

func newRebuiltWorld(t *testing.T, f Freshness) *rebuiltWorld {
	mem := vfs.NewMem()
	r := &rebuiltWorld{dirs: map[string]uint64{}}
	r.corrupt.Store(none)
	disk := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") &&
			r.corrupt.Load() != none && r.corrupt.Load() == r.tree.db.Generation() && r.reads.Add(-1) <= 0 {
			return fmt.Errorf("a flipped bit: %w", pebble.ErrCorruption)
		}
		return nil
	}))
	r.world = open(t, func(o *Options) {
		o.Dir, o.fs, o.CacheBytes, o.Clock = "names", disk, 1, nil
		o.Links[0].Freshness = f
	})
	for i := range rebuiltDirs * rebuiltFiles {
		r.b.put(rebuiltKey(i), "A", 1)
	}
	for i := range rebuiltDirs {
		r.names(fmt.Sprintf("/top/d%d", i))
	}
	if err := r.tree.db.Flush(); err != nil {
		t.Fatal(err)
	}
	r.reopen()
	for _, dir := range []string{"top", "top/d0", "top/d1", "top/d2"} {
		r.dirs[dir] = r.resolve(dir).ID
	}
	return r
}

// stat does what a kernel does: it walks, opens what it found, and begins anew once
// when an id is not known any more.
func (r *rebuiltWorld) stat(ctx context.Context, path string) (n Node, err error) {
	for range 2 {
		n, err = r.tree.Resolve(ctx, path)
		if err == nil {
			n, err = r.tree.Open(ctx, n.ID)
		}
		if !errors.Is(err, hearth.ErrStale) {
			break
		}
	}
	return n, err
}

func (r *rebuiltWorld) reader(ctx context.Context, rng *rand.Rand) {
	for range 15 {
		i := rng.IntN(rebuiltDirs * rebuiltFiles)
		key := rebuiltKey(i)
		switch rng.IntN(4) {
		case 0:
			if _, err := r.stat(ctx, "/"+key[:9]+"-none"); !errors.Is(err, fs.ErrNotExist) {
				r.Errorf("%s-none: %v", key[:9], err)
			}
		case 1: // a directory that the kernel has held since before
			names, dir := 0, fmt.Sprintf("top/d%d", i%rebuiltDirs)
			err := r.tree.ReadDir(ctx, r.dirs[dir], "", func(Node) bool { names++; return true })
			if err != nil || names != rebuiltFiles {
				r.Errorf("%s: %d names, %v", dir, names, err)
			}
		default:
			n, err := r.stat(ctx, "/"+key)
			if err != nil || n.Object.Key != key {
				r.Errorf("%s: %+v, %v", key, n, err)
			}
		}
	}
}

func TestRebuiltWhileAsked(t *testing.T) {
	// The database turns out corrupt at some read. No name is missing, no name is shown that is not there,
	// and directories keep their ids.
	seed := hearthtest.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	rebuilds := 0
	for round := range 24 {
		f := Freshness{Mode: []Mode{Bounded, Immutable, Strict}[round%3], Bound: time.Minute}
		r := newRebuiltWorld(t, f)
		r.corrupts(1 + rng.Int64N(60))
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() { r.reader(t.Context(), rand.New(rand.NewPCG(seed, uint64(round*100+g)))) })
		}
		wg.Wait()
		rebuilds += r.tree.Stats().Rebuilds
		for dir, id := range r.dirs {
			if n, err := r.tree.Node(t.Context(), id); err != nil || !n.Dir {
				t.Errorf("%s by its id: %+v, %v", dir, n, err)
			}
			if now := r.resolve(dir).ID; now != id {
				t.Errorf("%s was %d and is %d", dir, id, now)
			}
		}
		// What a restart finds is believed no more than it should be.
		r.corrupt.Store(none)
		r.reopen()
		r.reader(t.Context(), rng)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	if rebuilds < 8 {
		t.Errorf("%d rebuilds", rebuilds)
	}
}
