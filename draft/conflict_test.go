package draft

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// conflicts has drafts in conflict kept as KEY.conflict, and notes what is told of them.
func conflicts(o Options) (Options, *[]string) {
	told := new([]string)
	o.Conflict = func(n Name) Name { return Name{n.Link, n.Key + ".conflict"} }
	o.Conflicted = func(d *Draft, was Info, err error) {
		state := "kept"
		if err == nil {
			state = "removed"
		}
		*told = append(*told, was.Key+" "+d.Info().Key+" "+state)
	}
	return o, told
}

func TestAConflictIsKeptBesideTheOther(t *testing.T) {
	// A draft whose name another object has gives the name up, and is kept beside it with its bytes: it is not sent by a publish, by
	// the next process neither. Claimed it is published under its new name; renamed it is published under that one.
	for _, size := range []int{10, 3 * part} {
		for _, was := range []string{"new", "published"} {
			f := newFake(part)
			dir := t.TempDir()
			o, told := conflicts(options(dir, f))
			s := open(t, o)
			d, err := s.Create(Name{"link", "a"}, 1, Attr{New: true, Exclusive: true})
			must(t, err)
			must(t, d.Hold())
			write(t, d, content(size, 1), 0)
			if was == "published" {
				published(t, d)
				write(t, d, content(size, 2), 0)
			}
			f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
			refused := func() {
				t.Helper()
				calls := f.count("Put") + f.count("Complete")
				if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
					t.Fatal(err)
				}
				x := d.Info()
				if x.Key != "a.conflict" || !x.Conflict || x.State != Failed || x.ID != 1 || x.Attr.Exclusive != (was == "new") || x.Base != nil || x.Object != nil {
					t.Fatalf("%+v", x)
				}
				if len(*told) != 1 {
					t.Fatalf("told %q", *told)
				}
				if n := f.count("Put") + f.count("Complete") - calls; len(f.objects) != 1 || n > 1 {
					t.Fatalf("the bucket has %v after %d requests", f.objects, n)
				}
				f.has(t, "a", []byte("theirs"))
				f.clean(t)
			}
			refused()
			write(t, d, []byte("more"), 0)
			refused() // who has it open
			if _, found := s.Find(Name{"link", "a"}); found || (*told)[0] != "a a.conflict kept" {
				t.Fatalf("the name has a draft, told %q", *told)
			}
			e, err := s.Create(Name{"link", "a"}, 2, Attr{New: true})
			must(t, err)
			write(t, e, []byte("second"), 0)
			_, err = e.Publish(t.Context())
			if !errors.Is(err, hearth.ErrConflict) || e.Info().Key != "a.conflict-2" {
				t.Fatalf("%v, %+v", err, e.Info())
			}
			d.Release()
			must(t, s.Close())

			s = open(t, o)
			*told = (*told)[:1]
			d, _ = s.Find(Name{"link", "a.conflict"})
			e, _ = s.Find(Name{"link", "a.conflict-2"})
			refused()
			d.Claim()
			published(t, d)
			f.mu.Lock()
			got := string(f.objects["a.conflict"].data[:4])
			f.mu.Unlock()
			if got != "more" {
				t.Fatalf("published %q", got)
			}
			must(t, e.Rename(t.Context(), Name{"link", "a"}, false, true))
			f.has(t, "a", []byte("second"))
			if len(s.All()) > 0 {
				t.Fatalf("left %+v", s.All())
			}
		}
	}
}

func TestAConflictWithoutAByte(t *testing.T) {
	// Two make a file and neither writes (touch): the one that comes later has nothing to keep, and goes. Written, or held by
	// somebody who may write, it is kept.
	for _, c := range []struct {
		held, written bool
		want          string
	}{{false, false, "a a removed"}, {true, false, "a a.conflict kept"}, {false, true, "a a.conflict kept"}} {
		f := newFake(part)
		o, told := conflicts(options(t.TempDir(), f))
		s := open(t, o)
		d, err := s.Create(Name{"link", "a"}, 1, Attr{New: true})
		must(t, err)
		must(t, d.Sync())
		if c.held {
			must(t, d.Hold())
		}
		if c.written {
			write(t, d, []byte("x"), 0)
		}
		f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
		if _, err := d.Publish(t.Context()); (err == nil) != (c.want == "a a removed") {
			t.Fatal(err)
		}
		if len(*told) != 1 || (*told)[0] != c.want {
			t.Fatalf("told %q, want %q", *told, c.want)
		}
		if n := len(files(t, s)); c.want == "a a removed" && (n > 0 || len(s.All()) > 0) {
			t.Fatalf("left %q, %+v", files(t, s), s.All())
		}
		if c.held {
			d.Release()
		}
	}
}

func TestARenameThatMeetsAnotherObjectIsNoConflict(t *testing.T) {
	// RENAME_NOREPLACE is refused, and the draft goes back to the name that it had, also where that was a conflict's.
	f := newFake(part)
	o, told := conflicts(staging(options(t.TempDir(), f)))
	s := open(t, o)
	d, err := s.Create(Name{"link", "a"}, 1, Attr{New: true})
	must(t, err)
	write(t, d, []byte("ours"), 0)
	f.objects["a"], f.objects["b"] = fakeObject{data: []byte("theirs"), etag: "x"}, fakeObject{data: []byte("theirs"), etag: "x"}
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
	if err := d.Rename(t.Context(), Name{"link", "b"}, true, true); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
	if x := d.Info(); x.Key != "a.conflict" || !x.Conflict || len(*told) != 1 {
		t.Fatalf("%+v, told %q", x, *told)
	}
	must(t, d.Rename(t.Context(), Name{"link", "b"}, false, true))
	f.has(t, "b", []byte("ours"))
}

func TestKillsAtAConflict(t *testing.T) {
	// The node is killed at each step of a conflict: the next one has the draft with its bytes, and ends where this one would have.
	f := newFake(part)
	o, _ := conflicts(options(t.TempDir(), f))
	s := open(t, o)
	d, err := s.Create(Name{"link", "a"}, 1, Attr{New: true})
	must(t, err)
	write(t, d, content(100, 1), 0)
	f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
	var dirs []string
	s.o.Now = func() time.Time { // each record that is written asks for the time before
		dirs = append(dirs, copied(t, s))
		return time.Now()
	}
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
	dirs = append(dirs, copied(t, s))
	if len(dirs) < 3 {
		t.Fatalf("%d steps", len(dirs))
	}
	for i, dir := range dirs {
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
		o, _ := conflicts(options(dir, f))
		next := open(t, o)
		all := next.All()
		if len(all) != 1 || all[0].Size != 100 {
			t.Fatalf("step %d: %+v", i, all)
		}
		d, _ := next.ID(1)
		if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) || d.Info().Key != "a.conflict" {
			t.Errorf("step %d: %v, %+v", i, err, d.Info())
		}
		f.has(t, "a", []byte("theirs"))
	}
}

func TestAConflictIsPublishedFromTheCache(t *testing.T) {
	// A large object was changed in place, and by somebody else, too. The old version is gone from the bucket, and cached here: the
	// conflict is published under its own name, and by a rename over the other's object.
	for _, renamed := range []bool{false, true} {
		f := newFake(part)
		want := content(5*part+17, 1)
		cached := slices.Clone(want)
		o, _ := conflicts(changing(t.TempDir(), f))
		o.Base = func(_ context.Context, _ *hearth.Object, p []byte, off int64) error {
			copy(p, cached[off:])
			return nil
		}
		s := open(t, o)
		d := changed(t, s, f, "a", slices.Clone(want))
		write(t, d, []byte("x"), 2*part+7)
		want[2*part+7] = 'x'
		f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
		if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
			t.Fatal(err)
		}
		f.has(t, "a", []byte("theirs"))
		if renamed {
			must(t, d.Rename(t.Context(), Name{"link", "a"}, false, true))
			f.has(t, "a", want)
		} else {
			d.Claim()
			published(t, d)
			f.has(t, "a.conflict", want)
		}
		f.clean(t)
		d.Release()
	}
}

func TestAConflictOfWhichSomeIsGone(t *testing.T) {
	// A conflict is to be published, and of the old version one part is cached nowhere: it is refused, kept with what there is, and leaves
	// no upload.
	f := newFake(part)
	o, _ := conflicts(changing(t.TempDir(), f))
	cached := content(5*part, 1)
	o.Base = func(_ context.Context, _ *hearth.Object, p []byte, off int64) error {
		if off >= 3*part && off < 4*part {
			return hearth.ErrStale
		}
		copy(p, cached[off:])
		return nil
	}
	s := open(t, o)
	d := changed(t, s, f, "a", slices.Clone(cached))
	write(t, d, []byte("x"), 2*part+7)
	f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
	d.Claim()
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrStale) || d.Info().State != Failed {
		t.Fatalf("%v, %+v", err, d.Info())
	}
	f.clean(t)
	d.Release()
	if _, there := s.Find(Name{"link", "a.conflict"}); !there {
		t.Fatal("it is gone")
	}
}

func TestAConflictIsNotSentAhead(t *testing.T) {
	// Who has a conflict open writes on, much and sequentially: nothing is sent, and no upload is begun.
	f := newFake(1 << 20)
	o, _ := conflicts(options(t.TempDir(), f))
	s := open(t, o)
	d, err := s.Create(Name{"link", "a"}, 1, Attr{New: true})
	must(t, err)
	must(t, d.Hold())
	write(t, d, []byte("x"), 0)
	f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
	for i := range int64(24) {
		write(t, d, content(1<<20, 1), 1+i<<20)
	}
	d.Release()
	must(t, s.Close()) // waits for what is sent
	f.clean(t)
}

func TestNobodyOpensWhatAConflictHasRemoved(t *testing.T) {
	// A file that was made and not written goes since another one has its name. Who opens it in that moment gets ESTALE, and looks
	// the name up again: what they wrote would be in no file.
	f := newFake(part)
	o, _ := conflicts(options(t.TempDir(), f))
	var late error
	o.Conflicted = func(d *Draft, _ Info, _ error) { late = d.Hold() }
	s := open(t, o)
	d, err := s.Create(Name{"link", "a"}, 1, Attr{New: true})
	must(t, err)
	f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
	if _, err := d.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(late, syscall.ESTALE) {
		t.Fatalf("opened: %v", late)
	}
}

func TestWhatIsEmptiedOverwritesThoughItWasEmpty(t *testing.T) {
	// Who empties a file overwrites what others have made of it meanwhile, also where it was empty here: once it was published, and
	// after a restart.
	for _, again := range []bool{false, true} {
		f := newFake(part)
		dir := t.TempDir()
		s := open(t, options(dir, f))
		d, err := s.Create(Name{"link", "a"}, 1, Attr{})
		must(t, err)
		must(t, d.Hold())
		published(t, d)
		if again {
			must(t, s.Close())
			s = open(t, options(dir, f))
			d, _ = s.Find(Name{"link", "a"})
			must(t, d.Hold())
		}
		f.objects["a"] = fakeObject{[]byte("theirs"), "w", ""}
		must(t, d.Truncate(0))
		published(t, d)
		f.has(t, "a", []byte{})
		f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
		must(t, d.Truncate(0))
		write(t, d, []byte("ours"), 0)
		published(t, d)
		f.has(t, "a", []byte("ours"))
		must(t, d.Truncate(4)) // empties nothing
		f.objects["a"] = fakeObject{[]byte("theirs"), "y", ""}
		write(t, d, []byte("more"), 0)
		if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
			t.Errorf("%v", err)
		}
		d.Release()
		must(t, s.Close())
	}
}
