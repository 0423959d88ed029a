//go:build !race

package namespace

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// One goroutine works here after another: the race detector finds nothing in it, and makes it take
// several times as long.

func TestLostNames(t *testing.T) {
	// Names in memory outgrow their limit and start anew while they are read. Readers see every name, and no
	// id twice.
	w := open(t, func(o *Options) { o.MemoryBytes = 8 << 20 })
	tree, err := Open(Options{MemoryBytes: 1 << 20, Links: []Link{{Path: "/", Name: "/", Origin: flat{60_000}, Identity: "test"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, tree)
	dir, err := tree.Resolve(context.Background(), "/train")
	if err != nil {
		t.Fatal(err)
	}
	err = tree.ReadDir(context.Background(), dir.ID, "", func(Node) bool { return true })
	if s := tree.Stats(); s.Rebuilds == 0 {
		t.Errorf("%v, %+v", err, s)
	}
	w.b.put("x", "A", 1)
	w.resolve("/x")
}

func TestMemoryOfListing(t *testing.T) {
	// Listing and reading 200,000 names, twice, keeps one page of them in memory. While the reader stands still,
	// no more is left once the database has written what it had: its four memtables have room for that. The
	// database's own cache has a budget and is left out. With it this would grow by 34 bytes a name: how much,
	// depended on how soon tables were merged.
	tree, err := Open(Options{Dir: t.TempDir() + "/names", CacheBytes: 1,
		Links: []Link{{Path: "/", Name: "/", Origin: flat{200_000}, Identity: "test"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, tree)
	dir, err := tree.Resolve(context.Background(), "/train")
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range 2 {
		n := 0
		err = tree.ReadDir(context.Background(), dir.ID, "", func(Node) bool {
			if n++; n%50_000 == 0 {
				var grown int64
				small := func() bool { grown = heap() - before; return grown <= 16<<20 }
				if !hearthtest.Eventually(t.Context(), time.Minute, small) {
					t.Errorf("%d MB more after %d names", grown>>20, n)
				}
			}
			return true
		})
		if err != nil || n != 200_000 {
			t.Fatal(n, err)
		}
	}
}
