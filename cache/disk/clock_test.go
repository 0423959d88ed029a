package disk

import (
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestStatesKnowNoWallClock(t *testing.T) {
	// Blocks of both areas are written and read: when that was is told by the directory's own clock, which began with it and which
	// nobody can set back.
	s := openReal(t, Options{Dirs: []DirOptions{{Path: t.TempDir(), Budget: 80 << 20}}})
	d := s.dirs[0]
	objects := []*hearth.Object{hearthtest.NewObject("small", 5000, 1), hearthtest.NewObject("large", 3<<20, 1)}
	for _, o := range objects {
		for i := range o.Blocks() {
			v := hearthtest.View(t, d.opt.Pool, o.Block(i), 1)
			err := s.Keep(t.Context(), o.Block(i), v)
			if v.Release(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		hearthtest.CheckGet(t, s, o.Block(0), 0, o.Block(0).Len(), 1)
	}
	vol, last := d.use(), evict.Fresh(uint32(time.Since(d.clock.began)/time.Second)+1)
	defer vol.release()
	for _, area := range []area{vol.packed, vol.whole} {
		drawn := 0
		area.sample(1, 8, func(e entry) {
			if drawn++; e.state > last {
				t.Errorf("block %v was used at %d, and it is %d now", e.id, e.state>>9, last>>9)
			}
		})
		if drawn == 0 {
			t.Error("nothing was drawn")
		}
	}
	if past, next := d.clock.at(d.clock.began.Add(-time.Hour)), d.clock.at(d.clock.began.Add(1500*time.Millisecond)); past != -3600 || next != 1 {
		t.Errorf("an hour before its beginning it is %d, after 1.5 s %d", past, next)
	}
}
