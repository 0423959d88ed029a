package draft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestNames(t *testing.T) {
	// A name has one draft until that is published; Below has a prefix's drafts in order; keys are bytes, over a restart, too.
	f, dir := newFake(part), t.TempDir()
	s := open(t, options(dir, f))
	for i, key := range []string{"b/2", "b/1", "a", "b/\xff", "c"} {
		create(t, s, key, uint64(i+1))
	}
	for _, id := range []uint64{1, 9} {
		if _, err := s.Create(Name{"link", "a"}, id, Attr{}); !errors.Is(err, syscall.EEXIST) {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(Name{"other", "a"}, 1, Attr{}); !errors.Is(err, syscall.EEXIST) {
		t.Fatal(err)
	}
	below := func(s *Store) (keys []string) {
		s.Below("link", "b/", func(d *Draft) bool {
			keys = append(keys, d.Info().Key)
			return true
		})
		return keys
	}
	want := []string{"b/1", "b/2", "b/\xff"}
	if got := below(s); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	d, _ := s.ID(3)
	must(t, d.Hold())
	published(t, d)
	e := create(t, s, "a", 9) // what is published gives its name to a new one
	if got, _ := s.Find(Name{"link", "a"}); got != e {
		t.Fatal("the old draft has the name")
	}
	d.Release()
	must(t, s.Close())
	s = open(t, options(dir, f))
	if got := below(s); !slices.Equal(got, want) || len(s.All()) != 5 {
		t.Fatalf("after a restart %q of %+v", got, s.All())
	}
}

func TestRename(t *testing.T) {
	// A draft gets another name over a draft that is open: its upload under the old name is aborted, the bucket has the new name alone, and whoever has the replaced one open reads on. What was published is not renamed.
	f, dir := newFake(part), t.TempDir()
	s := open(t, options(dir, f))
	d, old := create(t, s, "a.tmp", 1), create(t, s, "a", 2)
	must(t, old.Hold())
	write(t, old, []byte("old"), 0)
	want := content(5*part, 1)
	write(t, d, want, 0)
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if verb == "Complete" {
			return fails
		}
		return works
	}
	if _, err := d.Publish(t.Context()); err == nil {
		t.Fatal("published")
	}
	must(t, d.Hold()) // published drafts go with their last handle
	f.meets = nil
	must(t, d.Rename(t.Context(), Name{"link", "a"}, false, false))
	if got, _ := s.Find(Name{"link", "a"}); got != d {
		t.Fatal("the replaced one has the name")
	}
	published(t, d)
	f.has(t, "a", want)
	f.has(t, "a.tmp", nil)
	f.clean(t)
	p := make([]byte, 3)
	if _, err := old.ReadAt(p, 0); err != nil || string(p) != "old" {
		t.Fatalf("%q, %v", p, err)
	}
	if _, err := old.Publish(t.Context()); !errors.Is(err, ErrRemoved) {
		t.Fatal(err)
	}
	if err := d.Rename(t.Context(), Name{"link", "b"}, false, false); !errors.Is(err, ErrPublished) {
		t.Fatal(err)
	}
	old.Release()
	d.Release()
	if names := files(t, s); len(names) > 0 {
		t.Fatalf("left: %q", names)
	}
}

// muchLater is when the origin can do nothing any more that it was asked for before.
func muchLater(t testing.TB, s *Store) {
	t.Helper()
	s.o.Now = func() time.Time { return time.Now().Add(lateBegin) }
	must(t, s.Clean(t.Context()))
}

// copied is a copy of a store's directory as it is now: what a kill leaves of it.
func copied(t testing.TB, s *Store) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "drafts")
	must(t, err)
	must(t, os.CopyFS(filepath.Join(dir, "drafts"), os.DirFS(s.o.Dirs[0])))
	return dir
}

func TestKillsAtEachStep(t *testing.T) {
	// The node is killed before and after each request of a publish; later writes may have come. The next node lists the draft, publishes it as its file is, tells who has to know of it, aborts or uses the upload, and leaves nothing; the record told of each step before it was taken.
	for _, size := range []int{100, 6 * part} {
		for _, more := range []bool{false, true} {
			f := newFake(part)
			o := options(t.TempDir(), f)
			o.Parallel = 1
			s := open(t, o)
			d := create(t, s, "a", 1)
			must(t, d.Hold())
			want := content(size, 1)
			write(t, d, want, 0)
			restart := func(what string) {
				dir := copied(t, s)
				defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
				now := slices.Clone(want)
				if more {
					file, err := os.OpenFile(filepath.Join(dir, "drafts", filepath.Base(d.path(".data"))), os.O_WRONLY, 0)
					must(t, err)
					_, err = file.WriteAt([]byte("more"), 50)
					must(t, errors.Join(err, file.Close()))
					copy(now[50:], "more")
				}
				f2 := f.clone()
				o2, told := options(dir, f2), 0
				o2.Published = func(*Draft, hearth.Object) { told++ }
				s2, err := Open(o2)
				must(t, err)
				d2, there := s2.Find(Name{"link", "a"})
				if !there {
					t.Fatalf("%s: the draft is lost", what)
				}
				if i := d2.Info(); i.Size != int64(size) || i.ID != 1 || i.Attr.Mode != 0o644 || !i.Dirty {
					t.Fatalf("%s: %+v", what, i)
				}
				published(t, d2)
				if told == 0 { // the last process may have ended before it could tell
					t.Fatalf("%s: nobody was told", what)
				}
				f2.has(t, "a", now)
				f2.clean(t)
				writes := f2.count("Put") + f2.count("Complete")
				if _, there := f.clone().objects["a"]; there && !more && writes > 0 {
					t.Fatalf("%s: it was there and is written again", what)
				}
				muchLater(t, s2)
				if names := files(t, s2); len(names) > 0 {
					t.Fatalf("%s: left %q", what, names)
				}
				must(t, s2.Close())
			}
			check := func(verb string, u *hearth.Upload) {
				text, err := os.ReadFile(d.path(".json"))
				must(t, err)
				r, err := decode("", text)
				must(t, err)
				switch {
				case verb == "Begin" && (len(r.Begins) == 0 || string(r.Begins[len(r.Begins)-1].Key) != u.Key),
					verb == "PutPart" && r.Upload == nil,
					(verb == "Put" || verb == "Complete") && (r.State != Publishing || r.Pending == nil || r.Pending.Token != u.Draft):
					t.Errorf("%s, and the record has %+v", verb, r)
				}
			}
			after := "nothing"
			f.meets = func(verb string, u *hearth.Upload) fault {
				check(verb, u)
				restart("after " + after + ", before " + verb)
				after = verb
				return works
			}
			published(t, d)
			restart("at the end")
			f.meets = nil
			d.Release()
		}
	}
}

func TestARestartGoesOn(t *testing.T) {
	// A node ends after some of the parts: the next one sends the others alone, and those that were written over behind the record.
	f, dir := newFake(part), t.TempDir()
	o := options(dir, f)
	o.Parallel = 1
	s := open(t, o)
	d := create(t, s, "a", 1)
	want := content(32*part, 1)
	write(t, d, want, 0)
	n := 0
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if n++; n > 20 {
			return fails
		}
		return works
	}
	if _, err := d.Publish(t.Context()); err == nil {
		t.Fatal("published")
	}
	f.meets = nil
	must(t, s.Close())
	file, err := os.OpenFile(d.path(".data"), os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt([]byte("x"), 3*part)
	must(t, errors.Join(err, file.Close()))
	want[3*part] = 'x'
	s = open(t, o)
	d, _ = s.ID(1)
	before := f.count("PutPart")
	published(t, d)
	f.has(t, "a", want)
	if sent := f.count("PutPart") - before; f.begun != 1 || sent > 32-before+2 {
		t.Fatalf("%d uploads, %d parts before, %d after", f.begun, before, sent)
	}
}

func TestARemovedDraftOutlivesTheProcess(t *testing.T) {
	// Whoever has a removed draft open reads and writes on, also once another process has taken over from one that was killed. It is
	// never published, and its files go with the last who holds it, or where nobody comes.
	f, dir := newFake(part), t.TempDir()
	s := open(t, options(dir, f))
	for id, key := range []string{"unlinked", "replaced", "left"} {
		d := create(t, s, key, uint64(id+1))
		must(t, d.Hold())
		write(t, d, []byte(key), 0)
		if key != "replaced" {
			must(t, d.Remove(t.Context()))
		}
	}
	must(t, create(t, s, "other", 4).Rename(t.Context(), Name{"link", "replaced"}, false, false))
	dir = copied(t, s)
	defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
	s = open(t, options(dir, f))
	for id, key := range []string{"unlinked", "replaced"} {
		d, ok := s.ID(uint64(id + 1))
		if !ok {
			t.Fatalf("%s is lost", key)
		}
		must(t, d.Hold())
	}
	must(t, s.Clean(t.Context()))
	s.Unheld()
	for id, key := range []string{"unlinked", "replaced"} {
		d, _ := s.ID(uint64(id + 1))
		write(t, d, []byte("!"), int64(len(key)))
		p := make([]byte, len(key)+1)
		if _, err := d.ReadAt(p, 0); err != nil || string(p) != key+"!" || !d.Info().Removed {
			t.Fatalf("%q, %v, %+v", p, err, d.Info())
		}
		if _, err := d.Publish(t.Context()); !errors.Is(err, ErrRemoved) {
			t.Fatal(err)
		}
		must(t, d.Hold())
		d.Release()
		if key == "unlinked" {
			d.Release()
		}
	}
	if _, ok := s.ID(3); ok || len(files(t, s)) != 4 { // of what was replaced, and of what replaced it
		t.Fatalf("left: %q", files(t, s))
	}
	d, _ := s.ID(2)
	d.Release()
	if left := files(t, s); len(left) != 2 {
		t.Fatalf("left: %q", left)
	}
}

func TestWhatWasPublishedIsToldOnce(t *testing.T) {
	// A process ends after the bucket has a draft and before anybody was told: the next one, which sends nothing, tells it.
	f, dir := newFake(part), t.TempDir()
	o := options(dir, f)
	var copy string
	var s *Store
	o.Published = func(*Draft, hearth.Object) { copy = copied(t, s) }
	s = open(t, o)
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	write(t, d, []byte("hello"), 0)
	published(t, d)
	d.Release()
	defer func() { _ = os.RemoveAll(copy) }() // a temporary directory
	told, sent := 0, f.count("Put")
	o = options(copy, f)
	o.Published = func(*Draft, hearth.Object) { told++ }
	s = open(t, o)
	d, _ = s.ID(1)
	must(t, d.Hold())
	for range 2 {
		published(t, d)
	}
	if told != 1 || f.count("Put") != sent {
		t.Fatalf("told %d times, sent %d times more", told, f.count("Put")-sent)
	}
	d.Release()
}

func TestDamagedRecords(t *testing.T) {
	// A record is cut short at each length and flipped at each byte, or missing; data is missing: no open fails, the bytes stay, and each is listed as failed, with its name where that can be read, at later starts, too. A record of a newer version is refused, and nothing is touched.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "dir/a", 1)
	want := content(part, 1)
	write(t, d, want, 0)
	must(t, d.Sync())
	text, err := os.ReadFile(d.path(".json"))
	must(t, err)
	at := func(text []byte) (*Store, string, error) {
		dir := copied(t, s)
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
		name := filepath.Join(dir, "drafts", filepath.Base(d.path(".json")))
		if text == nil {
			must(t, os.Remove(name))
		} else {
			must(t, os.WriteFile(name, text, 0o600))
		}
		s2, err := Open(options(dir, f))
		return s2, dir, err
	}
	isAside := func(text []byte) {
		t.Helper()
		s2, dir, err := at(text)
		must(t, err)
		if d2, ok := s2.ID(1); ok {
			if text == nil || !bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(s.encoded(t, d2))) {
				t.Fatalf("a draft is made of %q", text)
			}
			must(t, s2.Close())
			return
		}
		for range 2 {
			all := s2.All()
			if len(all) != 1 || all[0].State != Failed || all[0].Why == "" || all[0].Key != "" && all[0].Key != "dir/a" && len(text) == 0 {
				t.Fatalf("%+v of %q", all, text)
			}
			if got, err := os.ReadFile(all[0].File); err != nil || !bytes.Equal(got, want) || s2.Allocated()[0] < part {
				t.Fatalf("%v, allocated %d", err, s2.Allocated())
			}
			must(t, s2.Close())
			s2, err = Open(options(dir, f))
			must(t, err)
		}
		create(t, s2, "dir/a", 1) // in nobody's way
		must(t, s2.Close())
	}
	isAside(nil)
	for n := 0; n < len(text)-1; n += 7 {
		isAside(text[:n])
	}
	for n := 13; n < len(text); n += 5 { // before it is the format's number
		flipped := slices.Clone(text)
		flipped[n] ^= 0x15
		if n == bytes.IndexByte(text, ' ')+7 { // the number itself
			continue
		}
		isAside(flipped)
	}
	isAside(bytes.Replace(text, []byte("hearth draft 1 "), []byte("hearth draft 1 0"), 1))
	newer := bytes.Replace(text, []byte("hearth draft 1"), []byte("hearth draft 3"), 1)
	_, dir, err := at(newer)
	if err == nil || !strings.Contains(err.Error(), "newer hearth") || !exists(filepath.Join(dir, "drafts", filepath.Base(d.path(".data")))) {
		t.Fatal(err)
	}

	dir = copied(t, s)
	defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
	must(t, os.Remove(filepath.Join(dir, "drafts", filepath.Base(d.path(".data")))))
	s2 := open(t, options(dir, f))
	if all := s2.All(); len(all) != 1 || all[0].Key != "dir/a" || all[0].Why != "its data is missing" {
		t.Fatalf("%+v", all)
	}
}

func (s *Store) encoded(t *testing.T, d *Draft) []byte {
	t.Helper()
	d.mu.RLock()
	defer d.mu.RUnlock()
	text, err := d.recordLocked().encode()
	must(t, err)
	return text
}

func TestNoRoom(t *testing.T) {
	// A directory refuses: a new draft goes to the next one, a write gets the refusal, and what was written before stays and is published.
	f, dir := newFake(part), t.TempDir()
	full := map[string]bool{}
	o := options(dir, f)
	o.Dirs = append(o.Dirs, filepath.Join(dir, "second"))
	o.Room = func(dir string, n int64) error {
		if full[dir] && n > 0 {
			return syscall.ENOSPC
		}
		return nil
	}
	s := open(t, o)
	full[o.Dirs[0]] = true
	d := create(t, s, "a", 1)
	write(t, d, []byte("held"), 0)
	if got := s.Allocated(); got[0] != 0 || got[1] == 0 {
		t.Fatalf("allocated %d", got)
	}
	full[o.Dirs[1]] = true
	if n, err := d.WriteAt([]byte("x"), 4); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(n, err)
	}
	if _, err := s.Create(Name{"link", "b"}, 2, Attr{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	published(t, d)
	f.has(t, "a", []byte("held"))
}

func TestTheCloseOfARemovedFile(t *testing.T) {
	// The last handle of a file that was removed goes, and then its close is heard of: nothing is left to keep, which is no error.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a.tmp", 1)
	must(t, d.Hold())
	must(t, d.Remove(t.Context()))
	must(t, d.Stage()) // who has it open goes on with it
	d.Release()
	must(t, d.Stage())
	if all := s.All(); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
}

func TestANameThatIsGivenBack(t *testing.T) {
	// A draft is removed, and what was to go with it did not: it has its name again, with all that the bucket has not got, also for the
	// next process. Where another one has the name by now, or the draft is gone, nothing changes.
	f, dir := newFake(part), t.TempDir()
	s := open(t, options(dir, f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	write(t, d, []byte("hello"), 0)
	was := d.Info()
	must(t, d.Remove(t.Context()))
	if _, err := d.Publish(t.Context()); !errors.Is(err, ErrRemoved) {
		t.Fatal(err)
	}
	must(t, d.Restore(was))
	if again, ok := s.Find(d.Info().Name); !ok || again != d || d.Info().Removed {
		t.Fatal("it has no name", d.Info())
	}
	must(t, d.Restore(was)) // it has it
	must(t, d.Remove(t.Context()))
	create(t, s, "a", 2)
	if err := d.Restore(was); !errors.Is(err, syscall.EEXIST) || !d.Info().Removed {
		t.Fatal(err, d.Info())
	}
	other, _ := s.Find(Name{"link", "a"})
	must(t, other.Remove(t.Context()))
	must(t, d.Restore(was))
	d.Release()
	must(t, s.Close())

	s = open(t, options(dir, f))
	d, ok := s.Find(Name{"link", "a"})
	if !ok {
		t.Fatal("the next process has no draft")
	}
	published(t, d)
	f.has(t, "a", []byte("hello"))
}

func TestAFullDisk(t *testing.T) {
	// The file system itself is full: the write fails, Create and Sync fail, and when there is room again all goes on with what was there.
	f, dir := newFake(part), hearthtest.Tmpfs(t, "size=256k")
	s := open(t, options(dir, f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	want := content(64*kib, 1)
	write(t, d, want, 0)
	must(t, d.Sync())
	n, err := d.WriteAt(content(400*kib, 2), 64*kib)
	if !errors.Is(err, syscall.ENOSPC) || d.Info().Size != int64(64*kib+n) {
		t.Fatal(n, err)
	}
	for range 2 {
		if err := d.SetAttr(func(a *Attr) { a.Mode = 0o600 }); !errors.Is(err, syscall.ENOSPC) || d.Info().Attr.Mode == 0o600 {
			t.Fatal(err)
		}
	}
	size := d.Info().Size
	if n, err := d.WriteAt([]byte("x"), 64<<20); n != 0 || !errors.Is(err, syscall.ENOSPC) || d.Info().Size != size {
		t.Fatal(n, err, d.Info().Size) // what was not written makes no file larger
	}
	if err := d.Sync(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for range 2 { // each close tells of it
		if err := d.Stage(); !errors.Is(err, syscall.ENOSPC) || d.Info().State == Staged {
			t.Fatal(err, d.Info().State)
		}
	}
	if _, err := d.Publish(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := s.Create(Name{"link", "b"}, 2, Attr{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	must(t, d.Truncate(64*kib))
	must(t, d.Sync())
	create(t, s, "b", 2)
	published(t, d)
	f.has(t, "a", want)
	d.Release()
}

func TestADiskThatFails(t *testing.T) {
	// The data cannot be read: Publish has the disk's error, nothing is sent, and the draft waits.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	write(t, d, content(10, 1), 0)
	must(t, os.Truncate(d.path(".data"), 3)) // somebody else did that
	if _, err := d.Publish(t.Context()); !errors.Is(err, io.EOF) || f.count("Put") > 0 || d.Info().State != Waiting {
		t.Fatal(err, d.Info())
	}
	d.Release()
}

func TestAgainstASlice(t *testing.T) {
	// Random writes, truncations, reads, publishes, faults and restarts: the draft is always the slice, and the bucket has a state that the file had.
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "drafts")
		must(t, err)
		defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
		const piece = 64
		f := newFake(piece)
		o := options(dir, f)
		o.Memory, o.Parallel = 5*piece, 3
		s, err := Open(o)
		must(t, err)
		d := create(t, s, "a", 1)
		must(t, d.Hold())
		var want []byte
		states := map[string]bool{"": true}
		var draws []int
		f.meets = func(string, *hearth.Upload) fault {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(draws) == 0 {
				return works
			}
			how := draws[0]
			draws = draws[1:]
			return fault(max(0, how))
		}
		check := func() {
			got := make([]byte, len(want)+10)
			n, err := d.ReadAt(got, 0)
			if err != io.EOF || !bytes.Equal(got[:n], want) || d.Info().Size != int64(len(want)) {
				rt.Fatalf("%d bytes, %v, want %d", n, err, len(want))
			}
			if o, ok := f.objects["a"]; ok && !states[string(o.data)] {
				rt.Fatal("the bucket has what never was")
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) { check() },
			"write": func(rt *rapid.T) {
				off := rapid.IntRange(0, 12*piece).Draw(rt, "off")
				p := rapid.SliceOfN(rapid.Byte(), 1, 3*piece).Draw(rt, "p")
				if end := off + len(p); end > len(want) {
					want = append(want, make([]byte, end-len(want))...)
				}
				copy(want[off:], p)
				write(t, d, p, int64(off))
				states[string(want)] = true
			},
			"truncate": func(rt *rapid.T) {
				size := rapid.IntRange(0, 14*piece).Draw(rt, "size")
				must(t, d.Truncate(int64(size)))
				want = append(want[:min(size, len(want)):min(size, len(want))], make([]byte, max(0, size-len(want)))...)
				states[string(want)] = true
			},
			"publish": func(rt *rapid.T) {
				f.mu.Lock()
				draws = rapid.SliceOfN(rapid.IntRange(-6, 3), 0, 12).Draw(rt, "faults")
				f.mu.Unlock()
				_, err := d.Publish(t.Context())
				f.mu.Lock()
				draws = nil
				f.mu.Unlock()
				if err == nil {
					f.has(t, "a", append([]byte{}, want...))
				} else if errors.Is(err, hearth.ErrConflict) {
					rt.Fatal(err) // nobody else writes
				}
			},
			"restart": func(rt *rapid.T) {
				killed := rapid.Bool().Draw(rt, "killed")
				if !killed {
					d.Release()
					must(t, s.Close())
				}
				dir2 := copied(t, s)
				if killed {
					must(t, s.Close())
				}
				_ = os.RemoveAll(filepath.Dir(s.o.Dirs[0])) // a temporary directory
				dir = dir2
				o.Dirs = []string{filepath.Join(dir2, "drafts")}
				s, err = Open(o)
				must(t, err)
				var ok bool
				if d, ok = s.ID(1); !ok {
					if killed || !bytes.Equal(f.objects["a"].data, want) {
						rt.Fatal("the draft is lost")
					}
					want = nil // it was published, and is the bucket's
					d = create(t, s, "a", 1)
					states[""] = true
				}
				must(t, d.Hold())
			},
		})
		f.meets = nil
		published(t, d)
		f.has(t, "a", append([]byte{}, want...))
		must(t, s.Clean(t.Context()))
		d.Release()
		must(t, s.Close())
		if names := fmt.Sprint(s.All()); len(s.All()) > 0 {
			rt.Fatal(names)
		}
	})
}

func TestAttributes(t *testing.T) {
	// Attributes are kept over a kill and a restart, a write sets the time, and changing them does not publish again.
	f, dir := newFake(part), t.TempDir()
	now := time.Unix(1000, 5)
	o := options(dir, f)
	o.Now = func() time.Time { return now }
	s := open(t, o)
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	published(t, d)
	must(t, d.SetAttr(func(a *Attr) { a.Mode, a.UID, a.GID = 0o600, 7, 8 }))
	if published(t, d); f.count("Put") != 1 {
		t.Fatal("published again")
	}
	b := create(t, s, "b", 2)
	must(t, b.Hold())
	for _, mode := range []uint32{0o600, 0o640} {
		must(t, b.SetAttr(func(a *Attr) { a.Mode = mode }))
		if c, ok := open(t, options(copied(t, s), f)).ID(2); !ok || c.Info().Attr.Mode != mode {
			t.Fatalf("after a kill it is not %o: %v", mode, ok)
		}
		must(t, b.Remove(t.Context())) // and it is open still
	}
	b.Release()
	write(t, d, []byte("x"), 0)
	must(t, s.Close())
	s = open(t, o)
	d, _ = s.ID(1)
	if a := d.Info().Attr; a.Mode != 0o600 || a.UID != 7 || a.GID != 8 || !a.ModTime.Equal(now) {
		t.Fatalf("%+v", a)
	}
}

func TestAWriteIsOnePwrite(t *testing.T) {
	// A write to a draft that is held allocates nothing and writes no record, however large the draft is.
	s := open(t, options(t.TempDir(), newFake(part)))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	must(t, d.Sync())
	before, err := os.Stat(d.path(".json"))
	must(t, err)
	p, off := content(part, 1), int64(0)
	if n := testing.AllocsPerRun(100, func() {
		write(t, d, p, off)
		off += part
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if after, err := os.Stat(d.path(".json")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the record was written: %v", err)
	}
	d.Release()
}

func TestARecordIsWrittenOverTheLastOne(t *testing.T) {
	// As long as nothing is promised of a draft, and its record is as long as the last one, the record's file stays the same, in which a
	// whole record is at each step. A longer one, one of a large draft or of one that was
	// synced, and the first one after a restart are new files.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	var last os.FileInfo
	renewed := func(d *Draft) bool {
		t.Helper()
		name := d.path(".json")
		now, err := os.Stat(name)
		must(t, err)
		text, err := os.ReadFile(name)
		must(t, err)
		if r, err := decode(name, text); err != nil || r.Draft != d.random || len(text)%recordStep != 0 {
			t.Fatalf("%v: a record of %d bytes: %q", err, len(text), text)
		}
		if exists(name + ".tmp") {
			t.Fatal("a record was left unfinished")
		}
		was := last
		last = now
		return was == nil || !os.SameFile(was, now)
	}
	renewed(d)
	f.meets = func(string, *hearth.Upload) fault {
		if renewed(d) {
			t.Error("the record that an attempt begins is a new file")
		}
		return works
	}
	for i := range byte(3) {
		write(t, d, content(100, i), 0)
		published(t, d)
		if renewed(d) {
			t.Error("the record of what was published is a new file")
		}
	}
	f.meets = nil
	write(t, d, content(100, 4), 0)
	d.mu.Lock()
	d.why = strings.Repeat("x", recordStep)
	d.mu.Unlock()
	must(t, d.save(false))
	if !renewed(d) {
		t.Error("a longer record was written over the last one")
	}

	dir := copied(t, s)
	defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
	s2 := open(t, options(dir, f))
	d2, there := s2.Find(Name{"link", "a"})
	if !there {
		t.Fatal("the draft is lost")
	}
	last = nil
	renewed(d2)
	must(t, d2.save(false))
	if !renewed(d2) {
		t.Error("the first record after a restart was written over one that another process wrote")
	}
	must(t, d2.save(false))
	if renewed(d2) {
		t.Error("the second record after a restart is a new file")
	}
	must(t, d2.Hold())
	must(t, d2.Truncate(hearth.BlockSize+1))
	must(t, d2.save(false))
	if !renewed(d2) {
		t.Error("a large draft's record was written over the last one")
	}
	d2.Release()
	must(t, d2.Sync())
	for range 2 {
		if !renewed(d2) {
			t.Error("a record of a synced draft was written over the last one")
		}
		must(t, d2.save(false))
	}
	d.Release()
}

func TestARenameThatWasBrokenOff(t *testing.T) {
	// The node is killed after a draft got another's name and before that was removed: the later one has the name, and the older one goes,
	// as after the rename. Where the older one was synced and the later one was not, it stays, failed: a power cut may have left too
	// little of the later one. It is not published, and can be removed.
	for _, c := range []struct{ old, now, stays bool }{{false, false, false}, {false, true, false}, {true, true, false}, {true, false, true}} {
		f, dir := newFake(part), t.TempDir()
		now := time.Unix(1000, 0)
		o := options(dir, f)
		o.Now = func() time.Time { now = now.Add(time.Second); return now }
		s := open(t, o)
		old, d := create(t, s, "a", 1), create(t, s, "a.tmp", 2)
		write(t, old, []byte("old"), 0)
		write(t, d, []byte("new"), 0)
		if c.old {
			must(t, old.Sync())
		}
		if c.now {
			must(t, d.Sync())
		}
		d.mu.Lock()
		d.name, d.named = Name{"link", "a"}, o.Now()
		d.mu.Unlock()
		must(t, d.save(false))
		copy := copied(t, s)
		t.Cleanup(func() { _ = os.RemoveAll(copy) }) // a temporary directory
		o.Dirs = options(copy, f).Dirs
		s2 := open(t, o)
		d, _ = s2.Find(Name{"link", "a"})
		if d.Info().ID != 2 || (len(s2.All()) == 2) != c.stays {
			t.Fatalf("%+v: %+v", c, s2.All())
		}
		if c.stays {
			old, _ = s2.ID(1)
			if i := old.Info(); i.State != Failed {
				t.Fatalf("%+v", i)
			}
			if _, err := old.Publish(t.Context()); err == nil {
				t.Fatal("published")
			}
			published(t, d)
			must(t, s2.Close())
			s2 = open(t, o) // where the later one has gone
			old, _ = s2.ID(1)
			if _, there := s2.Find(Name{"link", "a"}); there || old.Info().State != Failed {
				t.Fatalf("%+v", s2.All())
			}
			must(t, old.Remove(t.Context()))
		} else {
			published(t, d)
		}
		s2.Unheld() // nobody has the older one open
		f.has(t, "a", []byte("new"))
		if names := files(t, s2); len(names) > 0 {
			t.Fatalf("left: %q", names)
		}
	}
}

func TestAWriterWhoseDraftWasReplaced(t *testing.T) {
	// A file is open and published; somebody else replaces the object, and a second writer here changes that one. The first one's next
	// write is refused: it would be in no file, and no close would tell.
	f := newFake(part)
	s := open(t, changing(t.TempDir(), f))
	d := changed(t, s, f, "a", content(100, 1))
	write(t, d, []byte("first"), 0)
	published(t, d)
	other := []byte("theirs")
	f.objects["a"] = fakeObject{other, etagOf(other), ""}
	o := f.object("a")
	o.Link = "link"
	e, err := s.Change(&o, 2, Attr{})
	must(t, err)
	must(t, e.Hold())
	if n, err := d.WriteAt([]byte("lost"), 100); n != 0 || !errors.Is(err, syscall.ESTALE) {
		t.Fatalf("wrote %d: %v", n, err)
	}
	if err := d.Truncate(0); !errors.Is(err, syscall.ESTALE) {
		t.Fatalf("truncated: %v", err)
	}
	write(t, e, []byte("ours"), 0)
	published(t, e)
	f.has(t, "a", []byte("oursrs"))
	d.Release()
	e.Release()
	if left := files(t, s); len(left) > 0 {
		t.Fatalf("left %q", left)
	}
}

func TestAPowerCutLeavesNothingThatOverwrites(t *testing.T) {
	// A file that nobody has synced is written, and a close answers. Then the power fails, and of what was on the disk before the close, or
	// while it was sent, the disk has the record and the beginning of the bytes. That is not published over what the bucket has.
	for _, size := range []int{100, 3 * part} {
		f := newFake(part)
		o := options(t.TempDir(), f)
		o.boot = []byte{1}
		s := open(t, o)
		d := create(t, s, "a", 1)
		must(t, d.Hold())
		want := content(size, 1)
		write(t, d, want, 0)
		dirs := []string{copied(t, s)}
		f.meets = func(verb string, _ *hearth.Upload) fault {
			if verb == "Put" || verb == "Complete" {
				dirs = append(dirs, copied(t, s))
			}
			return works
		}
		published(t, d)
		f.meets = nil
		d.Release()
		for i, dir := range dirs {
			t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
			o, _ := conflicts(options(dir, f))
			o.boot = []byte{2}
			s := open(t, o)
			must(t, s.Close()) // it was started once before
			d, _ := s.ID(1)
			must(t, os.Truncate(d.Info().File, 10))
			s = open(t, o)
			d, _ = s.ID(1)
			if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) || d.Info().Key != "a.conflict" {
				t.Errorf("%d bytes, step %d: %v, %+v", size, i, err, d.Info())
			}
			must(t, s.Clean(t.Context()))
			f.has(t, "a", want)
		}
		f.clean(t)
	}
}

func TestWhatIsReplacedBesideAPublishIsRemoved(t *testing.T) {
	// A published draft is replaced while its publish still tells of it: nothing is left of it once that has ended.
	f := newFake(part)
	o := options(t.TempDir(), f)
	tells, goes := make(chan struct{}), make(chan struct{})
	o.Published = func(*Draft, hearth.Object) { close(tells); <-goes }
	s := open(t, o)
	d := create(t, s, "a", 1)
	write(t, d, []byte("x"), 0)
	ended := make(chan error)
	go func() {
		_, err := d.Publish(t.Context())
		ended <- err
	}()
	<-tells
	create(t, s, "a", 2)
	close(goes)
	must(t, <-ended)
	must(t, s.Clean(t.Context()))
	if left := files(t, s); len(left) != 2 || len(s.All()) != 1 || len(s.all()) != 1 {
		t.Fatalf("left %q, %+v", left, s.All())
	}
}
