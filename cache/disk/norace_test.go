//go:build !race

package disk

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// One goroutine works here after another, or the index of many blocks is what is looked at: the
// race detector finds nothing in it, and makes it take several times as long.

func TestDamagedFilesAreMisses(t *testing.T) {
	// Bytes are flipped all over the files, with the Store up and over a restart: blocks are missed or right, never wrong, and they can be put again.
	dir := t.TempDir()
	o := Options{Dirs: []DirOptions{{Path: dir, Budget: 200 << 20}}}
	rng := rand.New(rand.NewPCG(7, 7))
	for round := range 4 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			s := openReal(t, o)
			pool := s.dirs[0].opt.Pool
			lost := 0
			for pass := range 2 {
				for i := range 40 {
					for n := range mixed(i).Blocks() {
						b := mixed(i).Block(n)
						if hearthtest.CheckGet(t, s, b, 0, b.Len(), 1) {
							lost++
							v := hearthtest.View(t, pool, b, 1)
							if err := s.Keep(t.Context(), b, v); err != nil {
								t.Fatal(err)
							}
							v.Release()
						}
					}
				}
				if pass == 0 {
					flip(t, dir, rng, 30)
				}
			}
			t.Logf("round %d: %d blocks written, %+v", round, lost, s.Stats().Dirs[0])
		})
		flip(t, dir, rng, 30)
	}
}

// flip changes some bytes in the files of a cache directory.
func flip(t *testing.T, dir string, rng *rand.Rand, n int) {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != LockFile {
			files = append(files, name)
		}
		return nil
	})
	if err != nil || len(files) == 0 {
		t.Fatal("no files to damage", err)
	}
	for range n {
		f, err := os.OpenFile(files[rng.IntN(len(files))], os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := f.Stat(); err == nil && fi.Size() > 0 {
			at, b := rng.Int64N(fi.Size()), make([]byte, 1)
			_, _ = f.ReadAt(b, at)
			_, _ = f.WriteAt([]byte{b[0] ^ byte(1+rng.IntN(255))}, at)
		}
		_ = f.Close()
	}
}

func TestPinsOutlastAShrinkingInManySteps(t *testing.T) {
	// A directory must shrink by more blocks than go in one go. Only these go, in the next
	// ones, and nothing that is pinned, which there is no index of either.
	const pins = 100
	r := newRig(t, Options{Dirs: []DirOptions{{Budget: 4 << 20}}, Pinned: func(hearth.ID) bool { return false }})
	a := r.area(0)
	a.mu.Lock()
	a.spared = pins
	for i := range int64(maxEvictions + 5000) {
		a.keepLocked(hearth.ID{Version: [16]byte{1}, Index: i}, []byte{1})
	}
	a.mu.Unlock()
	r.until("all of that gone", func() bool { return a.used() <= 4<<20 })
	if n, _ := a.unindexed(); n != pins {
		t.Errorf("%d of %d pinned blocks are left", n, pins)
	}
}

func TestOpeningReadsLittleForEachBlock(t *testing.T) {
	// Blocks of 1 to 4 KiB were written through Put by a process that ended well, or
	// was killed: opening finds them and reads no more than 64 bytes for each, and of
	// few blocks after a kill, the open segment.
	for _, end := range []string{"closed", "killed"} {
		t.Run(end, func(t *testing.T) {
			dir := t.TempDir()
			n := readyBlocks(t)
			t.Logf("%+v", openReady(t, dir, fillReady(t, dir, end, n), besides(end, n)))
		})
	}
}
