package draft

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

// changed makes the draft of an object that the bucket has, held once.
func changed(t testing.TB, s *Store, f *fakeUploader, key string, data []byte) *Draft {
	t.Helper()
	f.mu.Lock()
	f.objects[key] = fakeObject{data: data, etag: etagOf(data)}
	o := f.object(key)
	f.mu.Unlock()
	o.Link = "link"
	d, err := s.Change(&o, 1, Attr{Mode: 0o644})
	must(t, err)
	must(t, d.Hold())
	return d
}

func changing(dir string, f *fakeUploader) Options {
	o := options(dir, f)
	o.Base = f.base
	o.Parallel = 1 // the n-th request is the same in each run
	return o
}

// reads fails the test unless a draft has these bytes.
func reads(t testing.TB, d *Draft, want []byte) {
	t.Helper()
	got := make([]byte, len(want)+1)
	n, err := d.Read(t.Context(), got, 0)
	if len(want) > 0 && n != len(want) || !bytes.Equal(got[:n], want) {
		t.Fatalf("%d of %d bytes, the first other one at %d: %v", n, len(want), firstOther(got[:n], want), err)
	}
}

func firstOther(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestWhatIsNotWrittenIsCopied(t *testing.T) {
	// A byte in the midst of a large object: one part is sent, the base's bytes of it are read once, all others are copies in the bucket. So it is after an append and a truncation, and nothing is read where nothing of a part is the base's.
	f := newFake(part)
	s := open(t, changing(t.TempDir(), f))
	want := content(6*part+100, 1)
	d := changed(t, s, f, "a", slices.Clone(want))
	defer d.Release()
	if n := f.count("Base"); n > 0 || d.Info().Dirty || d.allocated() > 0 {
		t.Fatalf("%d reads, %+v", n, d.Info())
	}
	counts := func(base, copies, parts int) {
		t.Helper()
		published(t, d)
		f.has(t, "a", want)
		f.clean(t)
		reads(t, d, want)
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.calls, "Base") // reads' are not counted
		if f.calls["CopyPart"] != copies || f.calls["PutPart"] != parts || base != 0 {
			t.Fatalf("%v", f.calls)
		}
		clear(f.calls)
	}
	write(t, d, []byte("x"), 2*part+7)
	want[2*part+7] = 'x'
	published(t, d)
	if n := f.count("Base"); n != 2 {
		t.Fatalf("the base was read %d times", n)
	}
	counts(0, 6, 1)
	more := content(part, 2)
	write(t, d, more, int64(len(want)))
	want = append(want, more...)
	counts(0, 5, 3) // the third part has bytes of its own, and the one before the append
	must(t, d.Truncate(3*part))
	want = want[:3*part]
	counts(0, 2, 1)
	write(t, d, more, 0)
	copy(want, more)
	counts(0, 1, 2)
	must(t, d.Truncate(0))
	must(t, d.Truncate(10))
	want = make([]byte, 10)
	counts(0, 0, 0)
}

func TestWhatWasChangedElsewhereIsNotOverwritten(t *testing.T) {
	// Somebody else writes the object after the draft began: publishing it is a conflict, whether it is sent as a whole or in parts; the bucket keeps the other's, the draft its bytes, and no upload is left. Deleted elsewhere, likewise.
	for _, size := range []int{100, 3 * part} {
		for _, gone := range []bool{false, true} {
			f := newFake(part)
			s := open(t, changing(t.TempDir(), f))
			d := changed(t, s, f, "a", content(size, 1))
			write(t, d, []byte("mine"), 3)
			other := content(50, 3)
			f.mu.Lock()
			f.objects["a"] = fakeObject{data: other, etag: etagOf(other)}
			if gone {
				other = nil
				delete(f.objects, "a")
			}
			f.mu.Unlock()
			if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) || d.Info().State != Failed {
				t.Fatalf("%v, %+v", err, d.Info())
			}
			f.has(t, "a", other)
			f.clean(t)
			got := make([]byte, 4)
			if n, err := d.Read(t.Context(), got, 3); n != 4 || string(got) != "mine" {
				t.Fatalf("%q, %v", got, err)
			}
			if _, err := d.Read(t.Context(), got, 0); !errors.Is(err, hearth.ErrStale) {
				t.Fatalf("bytes of a version that nobody has: %v", err)
			}
			d.Release()
		}
	}
}

func TestWhatIsEmptiedOverwrites(t *testing.T) {
	// A draft that is published and still open is emptied and written again, while somebody else has written the object: it is a new file,
	// and overwrites, over a restart, too. One that was changed before it was emptied does not.
	for _, first := range []bool{false, true} {
		f, dir := newFake(part), t.TempDir()
		s := open(t, changing(dir, f))
		d := changed(t, s, f, "a", content(100, 1))
		if first {
			write(t, d, []byte("x"), 0)
		}
		must(t, d.Truncate(0))
		write(t, d, []byte("new"), 0)
		must(t, d.Sync())
		f.mu.Lock()
		f.objects["a"] = fakeObject{data: []byte("other"), etag: "other"}
		f.mu.Unlock()
		must(t, s.Close())
		s = open(t, changing(dir, f))
		d, _ = s.ID(1)
		_, err := d.Publish(t.Context())
		if first != errors.Is(err, hearth.ErrConflict) || !first && err != nil {
			t.Fatal(err)
		}
		if !first {
			f.has(t, "a", []byte("new"))
		}
	}
}

func TestChangesOfAnObject(t *testing.T) {
	// Whatever is written, truncated, published with faults of the origin, synced, killed and started again: a draft of an object has the bytes that a file would have, and the bucket those of the last publish. After a power cut it has what was synced; of what was written since, each byte is the new or the old one, and none is made up.
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "drafts")
		must(t, err)
		defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
		f := newFake(part)
		boot := byte(1)
		o := changing(dir, f)
		o.boot = []byte{boot}
		s, err := Open(o)
		must(t, err)
		want := content(rapid.SampledFrom([]int{0, 1, 100, part, 3 * part, 5*part + 17}).Draw(rt, "size"), 1)
		d := changed(t, s, f, "a", slices.Clone(want))
		has := slices.Clone(want) // the bucket
		synced, durable := slices.Clone(want), false
		restart := func(reboot bool) bool {
			next := copied(t, s)
			must(t, s.Close())
			_ = os.RemoveAll(dir)
			if dir, f = next, f.clone(); reboot {
				boot++
			}
			o := changing(dir, f)
			o.boot = []byte{boot}
			s, err = Open(o)
			must(t, err)
			var ok bool
			if d, ok = s.ID(1); ok {
				must(t, d.Hold())
			}
			return ok
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			size := len(want)
			switch rapid.SampledFrom([]string{"write", "write", "write", "append", "truncate", "publish", "fault", "sync", "kill", "cut"}).Draw(rt, "do") {
			case "write":
				off, n := rapid.IntRange(0, size+part/2).Draw(rt, "off"), rapid.IntRange(1, 2*part).Draw(rt, "n")
				p := content(n, rapid.Byte().Draw(rt, "seed"))
				write(t, d, p, int64(off))
				want = append(want, make([]byte, max(0, off+n-size))...)
				copy(want[off:], p)
			case "append":
				p := content(rapid.IntRange(1, part).Draw(rt, "n"), rapid.Byte().Draw(rt, "seed"))
				write(t, d, p, int64(size))
				want = append(want, p...)
			case "truncate":
				n := rapid.IntRange(0, size+part).Draw(rt, "to")
				must(t, d.Truncate(int64(n)))
				want = append(want[:min(n, size)], make([]byte, max(0, n-size))...)
			case "fault":
				at, how := rapid.IntRange(1, 9).Draw(rt, "at"), fault(rapid.IntRange(1, 3).Draw(rt, "how"))
				down := rapid.Bool().Draw(rt, "and then it is down")
				f.meets = func(string, *hearth.Upload) fault {
					switch at--; {
					case at == 0:
						return how
					case at < 0 && down:
						return fails
					}
					return works
				}
				_, err := d.Publish(t.Context())
				f.meets = nil
				if err != nil { // it is kept
					synced, durable = slices.Clone(want), true
				}
				if rapid.Bool().Draw(rt, "killed then") {
					if !restart(false) {
						rt.Fatal("the draft is gone")
					}
					reads(t, d, want) // though the base may be another one by now
				}
				if err != nil || d.Info().Dirty {
					_, err = d.Publish(t.Context())
				}
				must(t, err)
				has = slices.Clone(want)
			case "publish":
				published(t, d)
				has = slices.Clone(want)
			case "sync":
				must(t, d.Sync())
				synced, durable = slices.Clone(want), true
			case "kill":
				if !restart(false) {
					rt.Fatal("the draft is gone")
				}
			case "cut":
				there := restart(true)
				if !there && durable || there && !durable {
					rt.Fatalf("the draft is there: %v, and was synced: %v", there, durable)
				}
				if !there {
					f.has(t, "a", has)
					must(t, s.Close())
					return
				}
				got := make([]byte, len(want)+1)
				n, _ := d.Read(t.Context(), got, 0)
				if n != len(want) {
					rt.Fatalf("%d bytes of %d", n, len(want))
				}
				for i, b := range got[:n] {
					if b != want[i] && (i >= len(synced) || b != synced[i]) && (i >= len(has) || b != has[i]) {
						rt.Fatalf("byte %d is %d: it was %d at the end, %d in all", i, b, want[i], len(want))
					}
				}
				want = got[:n]
				synced = slices.Clone(want)
			}
			reads(t, d, want)
		}
		published(t, d)
		f.has(t, "a", want)
		f.clean(t)
		d.Release()
		muchLater(t, s)
		if left := files(t, s); len(left) > 0 {
			rt.Fatalf("left: %q", left)
		}
		must(t, s.Close())
		_ = os.RemoveAll(dir)
	})
}

func TestExtents(t *testing.T) {
	// The journal, read again, has what was written; a sequential writer has one row; what is beyond the base has none.
	name := filepath.Join(t.TempDir(), "x")
	f, err := os.Create(name)
	must(t, err)
	defer func() { _ = f.Close() }() // it is a test's
	e := newExtents(1000)
	for i := range int64(50) {
		must(t, e.add(f, 100+10*i, 110+10*i))
	}
	must(t, e.add(f, 200, 300))
	must(t, e.add(f, 1000, 1<<40))
	if e.rows != 1 || e.tree.Len() != 1 {
		t.Fatalf("%d rows, %d extents", e.rows, e.tree.Len())
	}
	must(t, e.add(f, 700, 2000))
	must(t, e.shrink(f, 900))
	must(t, e.add(f, 0, 50))
	want := []extent{{50, 100}, {600, 700}}
	e2 := newExtents(1000)
	must(t, e2.load(name, false))
	for _, e := range []*extents{e, e2} {
		if got := e.holes(extent{0, 1 << 40}); !slices.Equal(got, want) || e.over != 900 {
			t.Fatalf("%v, %d", got, e.over)
		}
	}
	if got := e.holes(extent{60, 650}); !slices.Equal(got, []extent{{60, 100}, {600, 650}}) {
		t.Fatal(got)
	}
}

func TestAPowerCutInAPublishDeletesNothing(t *testing.T) {
	// A draft of an object is being published, without a Sync, when the power fails: before the request, or once the bucket has the new
	// object, and the record does not tell of it. The draft is gone then, and the bucket keeps what it has, the old or the new one.
	for _, size := range []int{100, 3 * part} {
		f := newFake(part)
		o := changing(t.TempDir(), f)
		o.boot = []byte{1}
		s := open(t, o)
		old := content(size, 1)
		d := changed(t, s, f, "a", slices.Clone(old))
		write(t, d, []byte("new"), 3)
		want := slices.Clone(old)
		copy(want[3:], "new")
		var dir string
		f.meets = func(verb string, _ *hearth.Upload) fault {
			if verb == "Put" || verb == "Complete" {
				dir = copied(t, s)
			}
			return works
		}
		published(t, d)
		f.meets = nil
		d.Release()
		defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
		o = changing(dir, f)
		o.boot = []byte{2}
		s = open(t, o)
		must(t, s.Clean(t.Context()))
		f.has(t, "a", want)
		f.clean(t)
		if left := files(t, s); len(s.All()) > 0 || len(left) > 0 {
			t.Fatalf("left %q, %+v", left, s.All())
		}
	}
}

func TestWhatIsKeptOutlivesTheMachine(t *testing.T) {
	// The close of a draft of an object failed, so that it is kept: since the bucket is down, or as a conflict. Nobody has called Sync,
	// and the machine is started again: it is there with its bytes.
	for _, how := range []string{"down", "conflict"} {
		f, dir := newFake(part), t.TempDir()
		o, _ := conflicts(changing(dir, f))
		o.boot = []byte{1}
		s := open(t, o)
		want := content(100, 1)
		d := changed(t, s, f, "a", slices.Clone(want))
		write(t, d, []byte("new"), 3)
		copy(want[3:], "new")
		base := f.objects["a"]
		switch how {
		case "down":
			f.meets = func(string, *hearth.Upload) fault { return fails }
		case "conflict":
			f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
		}
		if _, err := d.Publish(t.Context()); err == nil {
			t.Fatal("published")
		}
		f.meets = nil
		d.Release()
		must(t, s.Close())
		o, _ = conflicts(changing(dir, f))
		o.boot = []byte{2}
		s = open(t, o)
		d, there := s.ID(1)
		if !there {
			t.Fatalf("%s: it is gone", how)
		}
		f.objects["a"] = base // where the cache has it
		reads(t, d, want)
	}
}

func TestATruncationThatAKillBrokeOff(t *testing.T) {
	// A kill between the truncation of the file and its row: what is grown again later is zeros, over another kill, too, and never the base's.
	f, dir := newFake(part), t.TempDir()
	s := open(t, changing(dir, f))
	d := changed(t, s, f, "a", content(100, 1))
	write(t, d, []byte("x"), 0)
	must(t, os.Truncate(d.Info().File, 10))
	must(t, s.Close())
	s = open(t, changing(dir, f))
	d, _ = s.ID(1)
	must(t, d.Truncate(50))
	want := append(append([]byte("x"), content(10, 1)[1:]...), make([]byte, 40)...)
	reads(t, d, want)
	must(t, s.Close())
	s = open(t, changing(dir, f))
	d, _ = s.ID(1)
	reads(t, d, want)
}

func TestAReadPublishesNothing(t *testing.T) {
	// A close got no answer, though the bucket has the object by now. Who writes on and reads what is the base's gets it from that
	// one, and what was not closed stays here.
	for _, size := range []int{100, 3 * part} {
		f := newFake(part)
		s := open(t, changing(t.TempDir(), f))
		want := content(size, 1)
		d := changed(t, s, f, "a", slices.Clone(want))
		write(t, d, []byte("closed"), 3)
		copy(want[3:], "closed")
		down := false
		f.meets = func(verb string, _ *hearth.Upload) fault {
			switch {
			case down:
				return fails
			case verb == "Put" || verb == "Complete":
				down = true
				return lost
			}
			return works
		}
		if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrUnanswered) {
			t.Fatal(err)
		}
		f.meets = nil
		closed := slices.Clone(want)
		write(t, d, []byte("half"), 50)
		copy(want[50:], "half")
		reads(t, d, want)
		f.has(t, "a", closed)
		published(t, d)
		f.has(t, "a", want)
		f.clean(t)
		d.Release()
	}
}
