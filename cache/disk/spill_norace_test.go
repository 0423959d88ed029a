//go:build !race

package disk

import (
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestUnindexedBlocksAreNotSpilled(t *testing.T) {
	// A directory comes back without memory for most of its index, and others fill the file system. What
	// has no index goes unread, and the rest is spilled if there is memory for its bytes.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	const n = 2000
	var free atomic.Int64
	free.Store(1 << 40)
	pool := hearthtest.Pool(t, 64<<20)
	spill := newFakeSpill(t)
	o := Options{Pool: pool, Spill: spill, Dirs: []DirOptions{{Path: t.TempDir(), Budget: 16 << 20, Floor: 1 << 30}},
		statfs: func(path string, st *unix.Statfs_t) error {
			err := unix.Statfs(path, st)
			st.Bsize, st.Bavail = 1, uint64(free.Load())
			return err
		}}
	t.Run("fill", func(t *testing.T) {
		s := openReal(t, o)
		for i := range n {
			keepAll(t, s, pool, small(i, 3000))
		}
	})
	more := starve(t, pool, 80<<10)
	s := openReal(t, o)
	t.Cleanup(more)
	before := s.Stats().Dirs[0]
	if before.Unindexed == 0 || before.Blocks == 0 || before.Unindexed+before.Blocks != n {
		t.Fatalf("%+v", before)
	}
	free.Store(0)
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return s.Stats().Dirs[0].Evicted == n }) {
		t.Fatalf("what is over the limit stays: %+v", s.Stats().Dirs[0])
	}
	asked, _ := spill.counts()
	if x := s.Stats().Dirs[0]; int64(asked) != before.Blocks || x.Blocks != 0 || x.Unindexed != 0 {
		t.Errorf("asked about %d blocks of %d with an index, %+v", asked, before.Blocks, x)
	}
}
