//go:build !race

package draft

import (
	"bytes"
	"errors"
	"os"
	"slices"
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

func TestAPowerCutMakesNoBytesUp(t *testing.T) {
	// An object is changed in place, here and there and at its end, synced, published, changed and truncated, and the power fails at any moment. What Sync answered for is there; of each byte that was written since the next start has the new or the old value, and of no other any but the object's. What was never synced is gone, and the object stays.
	base := bytes.Repeat([]byte{'b'}, 3*part)
	one, two, three := bytes.Repeat([]byte{'1'}, 1000), bytes.Repeat([]byte{'2'}, part), bytes.Repeat([]byte{'3'}, 500)
	origin := func(data []byte) *fakeUploader {
		f := newFake(part)
		f.objects["a"] = fakeObject{data: data, etag: etagOf(data)}
		return f
	}
	// What the file is after each step.
	synced := slices.Clone(base)
	copy(synced[100:], one)
	published := slices.Concat(synced, two)
	copy(published[600:], two)
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		f := origin(base)
		o := changing(dir, f)
		o.boot = []byte("first")
		s, err := Open(o)
		must(t, err)
		x := f.object("a")
		x.Link = "link"
		d, err := s.Change(&x, 1, Attr{})
		must(t, err)
		must(t, d.Hold())
		write(t, d, one, 100)
		must(t, d.Sync())
		mark("synced")
		write(t, d, two, 600)
		write(t, d, two, int64(len(base)))
		mark("publishes")
		_, err = d.Publish(t.Context())
		must(t, err)
		mark("published")
		write(t, d, three, 50)
		must(t, d.Truncate(part))
		write(t, d, three, 2*part)
		must(t, d.Sync())
		mark("end")
	})
	t.Logf("%d operations", len(tr.Ops))
	tr.Cuts(t, 1, 8, func(t *testing.T, c powercut.Cut) {
		now := base
		if c.Passed("published") {
			now = published
		}
		f := origin(now)
		o := changing(c.Dir, f)
		o.boot = []byte("second")
		s, err := Open(o)
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		defer func() { must(t, s.Close()) }()
		d, there := s.ID(1)
		if !there {
			if c.Passed("synced") {
				t.Errorf("%v: the draft is gone: %+v", c, s.All())
			}
			return
		}
		if c.Passed("publishes") && !c.Passed("published") {
			return // the origin is as before or after it, and the record knows which
		}
		got := make([]byte, 4*part)
		n, err := d.ReadAt(got, 0)
		if n == 0 {
			t.Fatalf("%v: %d bytes, %v", c, n, err)
		}
		for i, b := range got[:n] {
			old, new := synced, published
			if c.Passed("published") {
				old, new = published, slices.Clone(published)
				copy(new[50:], three)
			}
			ok := i < len(old) && b == old[i] || i < len(new) && b == new[i]
			switch {
			case i >= len(base): // it was appended, and the size may be there without the bytes
				ok = ok || b == 0
			case c.Passed("published") && i >= part: // it was truncated, and grown again
				ok = ok || b == 0 || b == '3'
			}
			if !ok {
				t.Errorf("%v: byte %d of %d is %q", c, i, n, b)
				return
			}
		}
		if !c.Passed("published") && c.Passed("synced") && !bytes.Equal(got[:600], synced[:600]) {
			t.Errorf("%v: what was synced is not there: %q", c, got[90:110])
		}
	})
}
