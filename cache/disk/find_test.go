package disk

import (
	"errors"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestFind(t *testing.T) {
	// Where blocks lie is told without a read, without a word to the policy, and without
	// beginning a verification; after a start the index of a large object is not read for it.
	pool := hearthtest.Pool(t, 64<<20)
	dir := t.TempDir()
	o := Options{Pool: pool, Dirs: []DirOptions{{Path: dir, Budget: 64 << 20}}}
	large, packed := hearthtest.NewObject("large", 2<<20+99, 1), small(0, 1000)
	s := openReal(t, o)
	keep := func(b hearth.Block) {
		v := hearthtest.View(t, pool, b, 1)
		defer v.Release()
		if err := s.Keep(t.Context(), b, v); err != nil {
			t.Fatal(err)
		}
	}
	find := func(b hearth.Block, wantKind string, wantUnread bool) {
		t.Helper()
		got, kind, unread := s.Find(b.ID())
		if kind != wantKind || unread != wantUnread || (got == dir) != (kind != "") {
			t.Errorf("%s block %d: %q, %q, %v; want %q, %v", b.Object.Key, b.Index, got, kind, unread, wantKind, wantUnread)
		}
	}
	find(large.Block(0), "", false)
	keep(packed.Block(0))
	keep(large.Block(1))
	find(packed.Block(0), "segment", false)
	find(large.Block(0), "", false)
	find(large.Block(1), "sparse", false)
	if whole, _ := s.Whole(large); whole {
		t.Error("a part is taken for the whole")
	}
	keep(large.Block(0))
	keep(large.Block(2))
	if whole, _ := s.Whole(large); !whole {
		t.Error("the whole is taken for a part")
	}
	if got, err := s.WouldTake(large.Block(0)); err != nil || got != dir {
		t.Errorf("a directory with room: %q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openReal(t, o)
	find(packed.Block(0), "segment", false)
	find(large.Block(1), "sparse", true)
	if whole, verified := s.Whole(large); !whole || verified {
		t.Errorf("after a start: whole %v, verified %v", whole, verified)
	}
	if st := s.Stats().Dirs[0]; st.Hits != 0 {
		t.Errorf("looking counted %d hits", st.Hits)
	}
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool {
		file, release, err := s.LocalFile(large)
		if err == nil {
			_ = file.Close()
			release()
		}
		return err == nil
	}) {
		t.Fatal("it is never handed out")
	}
	find(large.Block(1), "sparse", false)
	if whole, verified := s.Whole(large); !whole || !verified {
		t.Errorf("once it was handed out: whole %v, verified %v", whole, verified)
	}
	s.dirs[0].eject(errors.New("sick"), true)
	if got, err := s.WouldTake(large.Block(0)); !errors.Is(err, ErrEjected) || got != "" {
		t.Errorf("an ejected directory: %q, %v", got, err)
	}
	find(packed.Block(0), "", false)
}
