package segment

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/hearthfs/hearth"
)

func newPool() *hearth.Pool { return hearth.NewPool(64 << 20) }

func TestManyAtOnce(t *testing.T) {
	// Readers, writers, evictors and a compacter work at once, and Close comes in their midst.
	// Every byte that comes out is right.
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, OpenFiles: 2, Touch: func(s uint32) uint32 { return s + 1 }})
	length := func(i int) int { return 1 + i*7919%120_000 }
	const blocks = 150
	data := make([][]byte, blocks)
	for i := range data {
		data[i] = blockData(i, length(i))
	}
	var wg sync.WaitGroup
	work := func(seed uint64, rounds int, f func(r *rand.Rand) error) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range rounds {
				if err := f(r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for seed := range uint64(4) {
		work(seed, 1500, func(r *rand.Rand) error {
			i := r.IntN(blocks)
			off := r.IntN(length(i))
			n := 1 + r.IntN(length(i)-off)
			v, err := l.Get(context.Background(), blockID(i), length(i), off, n)
			if errors.Is(err, hearth.ErrMiss) {
				return nil
			}
			if err != nil {
				return err
			}
			defer v.Release()
			if !bytes.Equal(v.Bytes(), data[i][off:off+n]) {
				return errors.New("wrong bytes")
			}
			return nil
		})
	}
	for seed := range uint64(2) {
		work(seed+10, 150, func(r *rand.Rand) error {
			var batch []Entry
			for range 1 + r.IntN(8) {
				i := r.IntN(blocks)
				batch = append(batch, Entry{ID: blockID(i), Data: data[i]})
			}
			return l.Append(batch)
		})
		work(seed+20, 500, func(r *rand.Rand) error {
			l.Sample(r.Uint64(), 2, func(c Candidate) { l.Evict(c.ID) })
			return nil
		})
	}
	work(30, 60, func(*rand.Rand) error {
		_, err := l.Compact(context.Background())
		return err
	})
	work(31, 20, func(*rand.Rand) error { return l.Sync() })
	wg.Wait()
	if s := l.Stats(); s.Corrupt != 0 {
		t.Errorf("%d blocks called corrupt", s.Corrupt)
	}
	if used := l.Used(); used != allocated(t, dir) {
		t.Errorf("used %d, allocated %d", used, allocated(t, dir))
	}
	for seed := range uint64(3) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 2))
			for !l.closed.Load() {
				i := r.IntN(blocks)
				if v, err := l.Get(context.Background(), blockID(i), length(i), 0, length(i)); err == nil {
					v.Release()
				}
				l.Evict(blockID(r.IntN(blocks)))
				_ = l.Append([]Entry{{ID: blockID(i), Data: data[i]}})
			}
		})
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
