//go:build !race

package draft

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

func TestWhatWasSyncedOutlivesAPowerCut(t *testing.T) {
	// A draft is written, synced, renamed, synced, published and released, beside one that is removed, and the power fails at any moment: what Sync answered for is there with its name and size, or in the bucket; no open fails, and nothing that was removed comes back.
	one, two := content(3*part+5, 1), content(part, 2)
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		f := newFake(part)
		s, err := Open(options(dir, f))
		must(t, err)
		d, e := create(t, s, "a", 1), create(t, s, "b", 2)
		must(t, errors.Join(d.Hold(), e.Hold()))
		write(t, d, one, 0)
		must(t, d.Sync())
		mark("a")
		write(t, e, two, 0)
		must(t, e.Sync())
		mark("b")
		mark("removes")
		must(t, e.Remove(t.Context()))
		mark("removed")
		mark("renames")
		must(t, d.Rename(t.Context(), Name{"link", "c"}, false, false))
		must(t, d.Sync())
		mark("c")
		mark("publishes")
		published(t, d)
		mark("published")
		d.Release()
		e.Release()
	})
	t.Logf("%d operations", len(tr.Ops))
	tr.Cuts(t, 1, 8, func(t *testing.T, c powercut.Cut) {
		f := newFake(part)
		s, err := Open(options(c.Dir, f))
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		_, a := s.Find(Name{"link", "a"})
		_, b := s.Find(Name{"link", "b"})
		_, renamed := s.Find(Name{"link", "c"})
		switch {
		case c.Passed("a") && !c.Passed("renames") && !a, c.Passed("renames") && !c.Passed("publishes") && !a && !renamed,
			c.Passed("c") && !c.Passed("published") && !renamed:
			t.Errorf("%v: the first draft is lost: %+v", c, s.All())
		case c.Passed("c") && a:
			t.Errorf("%v: it has its old name", c)
		case c.Passed("b") && !c.Passed("removes") && !b:
			t.Errorf("%v: the second draft is lost", c)
		case c.Passed("removed") && b:
			t.Errorf("%v: what was removed is back", c)
		}
		for _, i := range s.All() {
			if i.State == Failed || !(c.Passed("a") && i.ID == 1) {
				continue
			}
			got, err := os.ReadFile(i.File)
			if err != nil || !bytes.Equal(got, one) {
				t.Errorf("%v: %s has %d other bytes, %v", c, i.Key, len(got), err)
			}
			if d, ok := s.ID(i.ID); !ok {
				t.Errorf("%v: no draft", c)
			} else if _, err := d.Publish(t.Context()); err != nil {
				t.Errorf("%v: %v", c, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("%v: %v", c, err)
		}
	})
}
