package draft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// staging has names that end in .tmp, or lie below such a directory, foretell theirs without it; .lock foretells nothing.
func staging(o Options) Options {
	o.Staged = func(n Name) (bool, string) {
		staged, final := false, n.Key
		for _, s := range strings.Split(n.Key, "/") {
			switch path.Ext(s) {
			case ".tmp":
				staged, final = true, strings.Replace(final, s, strings.TrimSuffix(s, ".tmp"), 1)
			case ".lock":
				return true, ""
			}
		}
		return staged, final
	}
	return o
}

func TestARenameIsTheUpload(t *testing.T) {
	// What is closed under a temporary name stays here, over a restart. Renamed, it is in the bucket under the new name alone, over what was there.
	f, dir := newFake(part), t.TempDir()
	o := staging(options(dir, f))
	s := open(t, o)
	for i, n := range []int{0, 100, 6 * part} {
		key := fmt.Sprint("a", i)
		d := create(t, s, key+".tmp", uint64(i+1))
		if n > 0 {
			write(t, d, content(n, 1), 0)
		}
		must(t, d.Stage())
		if x := d.Info(); x.State != Staged || !x.Dirty {
			t.Fatalf("%+v", x)
		}
	}
	if f.count("Put")+f.count("Complete") > 0 || len(f.objects) > 0 {
		t.Fatalf("staged: %v", f.calls)
	}
	must(t, s.Close())
	s = open(t, o)
	for i, n := range []int{0, 100, 6 * part} {
		key := fmt.Sprint("a", i)
		d, _ := s.Find(Name{"link", key + ".tmp"})
		if x := d.Info(); x.State != Staged || x.Size != int64(n) {
			t.Fatalf("after a restart %+v", x)
		}
		must(t, d.Rename(t.Context(), Name{"link", key}, false, true))
		f.has(t, key, content(n, 1))
		f.has(t, key+".tmp", nil)
	}
	f.clean(t)
	if len(s.All()) > 0 || len(files(t, s)) > 0 {
		t.Fatalf("left: %q", files(t, s))
	}
}

func TestPartsGoAheadToTheFinalName(t *testing.T) {
	// A name that tells which one it gets has its parts sent there ahead, so that the rename sends each byte once. Another one's wait.
	for key, ahead := range map[string]bool{"a.tmp": true, "a.lock": false, "d.tmp/a": true} {
		f := newFake(part)
		s := open(t, staging(options(t.TempDir(), f)))
		d := create(t, s, key, 1)
		must(t, d.Hold())
		const n = 3 * firstWake
		data := content(n, 1)
		for off := 0; off < n; off += 1 << 20 {
			write(t, d, data[off:off+1<<20], int64(off))
		}
		s.work.Wait() // sending ahead
		if sent := d.Info().Sent; (sent > 0) != ahead {
			t.Fatalf("%s: %d bytes went ahead", key, sent)
		}
		must(t, d.Rename(t.Context(), Name{"link", strings.NewReplacer(".tmp", "", ".lock", "").Replace(key)}, false, true))
		if sent := d.Info().Sent; sent != n {
			t.Fatalf("%s: %d bytes were sent for %d", key, sent, n)
		}
		d.Release()
		f.clean(t)
	}
}

func TestARenameThatFails(t *testing.T) {
	// The bucket refuses what is renamed: both names are what they were, the draft that was to be replaced, too. Once it takes it, the rename succeeds.
	for _, held := range []bool{false, true} {
		f := newFake(part)
		s := open(t, staging(options(t.TempDir(), f)))
		d, old := create(t, s, "a.tmp", 1), create(t, s, "a", 2)
		write(t, d, content(100, 1), 0)
		write(t, old, []byte("old"), 0)
		if held {
			must(t, old.Hold())
		}
		f.meets = func(string, *hearth.Upload) fault { return fails }
		if err := d.Rename(t.Context(), Name{"link", "a"}, false, true); !errors.Is(err, errDown) {
			t.Fatal(err)
		}
		f.meets = nil
		for key, want := range map[string]*Draft{"a.tmp": d, "a": old} {
			if got, _ := s.Find(Name{"link", key}); got != want || got.Info().Key != key || got.Info().Removed {
				t.Fatalf("%s is %+v", key, got)
			}
		}
		published(t, old)
		f.has(t, "a", []byte("old"))
		must(t, d.Rename(t.Context(), Name{"link", "a"}, false, true))
		f.has(t, "a", content(100, 1))
		if held {
			old.Release()
		}
		if len(files(t, s)) > 0 {
			t.Fatalf("left: %q", files(t, s))
		}
	}
}

func TestARenameWithoutAnAnswer(t *testing.T) {
	// Nobody knows whether the rename's upload was done: the draft has the new name, and the next publish finds out.
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	d := create(t, s, "a.tmp", 1)
	write(t, d, content(100, 1), 0)
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if verb == "Written" {
			return fails
		}
		return lost
	}
	if err := d.Rename(t.Context(), Name{"link", "a"}, false, true); !errors.Is(err, hearth.ErrUnanswered) {
		t.Fatal(err)
	}
	f.meets = nil
	if got, _ := s.Find(Name{"link", "a"}); got != d {
		t.Fatal("the old name is back, and the bucket may have the new one")
	}
	published(t, d)
	f.has(t, "a", content(100, 1))
	if n := f.count("Put"); n != 1 {
		t.Fatalf("%d PUTs", n)
	}
}

func TestWhatARenameWithoutAnAnswerReplaced(t *testing.T) {
	// A rename whose upload has no answer keeps its new name. The draft that had it before is gone, and does not come back at the next
	// start, over what has come since; whoever has it open reads on.
	f, dir := newFake(part), t.TempDir()
	s := open(t, staging(options(dir, f)))
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if verb == "Written" {
			return fails
		}
		return lost
	}
	first, reader := create(t, s, "a.tmp", 1), (*Draft)(nil)
	write(t, first, []byte("first"), 0)
	if err := first.Rename(t.Context(), Name{"link", "a"}, false, true); !errors.Is(err, hearth.ErrUnanswered) {
		t.Fatal(err)
	}
	reader, _ = s.Find(Name{"link", "a"})
	must(t, reader.Hold())
	second := create(t, s, "a.tmp", 2)
	write(t, second, []byte("second"), 0)
	if err := second.Rename(t.Context(), Name{"link", "a"}, false, true); !errors.Is(err, hearth.ErrUnanswered) {
		t.Fatal(err)
	}
	if i := reader.Info(); reader != first || !i.Removed {
		t.Fatalf("%+v", i)
	}
	buf := make([]byte, 5)
	if _, err := reader.ReadAt(buf, 0); err != nil || string(buf) != "first" {
		t.Fatalf("%q, %v", buf, err)
	}
	f.meets = nil
	published(t, second)
	f.has(t, "a", []byte("second"))
	again := copied(t, s)                         // as a kill leaves it
	t.Cleanup(func() { _ = os.RemoveAll(again) }) // a temporary directory
	o := staging(options(again, f))
	s = open(t, o)
	s.Unheld()
	if d, there := s.Find(Name{"link", "a"}); there && d.Info().ID == 1 {
		t.Fatalf("%+v", d.Info())
	}
	for _, i := range s.All() {
		d, _ := s.ID(i.ID)
		_, _ = d.Publish(t.Context()) // as a start does
	}
	must(t, s.Clean(t.Context()))
	f.has(t, "a", []byte("second"))
}

func TestARenameOntoNothingAlone(t *testing.T) {
	// RENAME_NOREPLACE does not replace what the bucket has; any other rename does, also of a file made with O_EXCL.
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	f.objects["a"] = fakeObject{data: []byte("theirs"), etag: "x"}
	d, err := s.Create(Name{"link", "a.tmp"}, 1, Attr{Exclusive: true})
	must(t, err)
	write(t, d, []byte("ours"), 0)
	if err := d.Rename(t.Context(), Name{"link", "a"}, true, true); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
	f.has(t, "a", []byte("theirs"))
	must(t, d.Rename(t.Context(), Name{"link", "a"}, false, true))
	f.has(t, "a", []byte("ours"))
}

// tree makes the drafts of a directory: in this order are they written.
func tree(t *testing.T, s *Store, dir string, names ...string) {
	now := time.Unix(1e9, 0)
	for i, name := range append([]string{""}, names...) {
		d := create(t, s, dir+"/"+name, uint64(i+1))
		if !d.Info().IsDir() {
			write(t, d, content(100+i, 1), 0)
		}
		must(t, d.SetAttr(func(a *Attr) { a.ModTime = now.Add(time.Duration(i) * time.Second) }))
		must(t, d.Stage())
	}
}

func TestADirectoryIsRenamed(t *testing.T) {
	// All below a directory goes to the bucket under its new name; the file that was written last goes last. Under another temporary name nothing goes.
	f := newFake(part)
	var mu sync.Mutex
	var order []string
	f.meets = func(verb string, u *hearth.Upload) fault {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, u.Key)
		return works
	}
	s := open(t, staging(options(t.TempDir(), f)))
	tree(t, s, "d.tmp", "b", "sub/", "sub/c", "a")
	to := func(from, to string) error {
		return s.RenameDir(t.Context(), Name{"link", from}, Name{"link", to}, func(i Info) bool { staged, _ := s.o.Staged(i.Name); return !staged }, nil)
	}
	must(t, to("d.tmp/", "e.tmp/"))
	if len(order) > 0 {
		t.Fatalf("sent %q", order)
	}
	must(t, to("e.tmp/", "d/"))
	slices.Sort(order[:4])
	if !slices.Equal(order, []string{"d/", "d/b", "d/sub/", "d/sub/c", "d/a"}) || len(f.objects) != 5 || len(s.All()) > 0 {
		t.Fatalf("sent %q, left %+v", order, s.All())
	}
}

func TestADirectoryThatCannotBeRenamed(t *testing.T) {
	// One file is refused, or a file below is in the bucket already: the names are what they were, and the bucket has nothing of it. Then it is done.
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	tree(t, s, "d.tmp", "a", "b", "c")
	want := s.All()
	all := func(Info) bool { return true }
	unwrite := func(ctx context.Context, o hearth.Object) error { return f.Delete(ctx, o.Key, o.ETag) }
	f.meets = func(_ string, u *hearth.Upload) fault {
		if u.Key == "d/c" {
			return fails
		}
		return works
	}
	from, to := Name{"link", "d.tmp/"}, Name{"link", "d/"}
	if err := s.RenameDir(t.Context(), from, to, all, unwrite); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	f.meets = nil
	for i, x := range s.All() {
		if x.Name != want[i].Name || x.Users != 0 || x.Object != nil || !x.Dirty {
			t.Errorf("%+v", x)
		}
	}
	if len(f.objects) > 0 || len(s.All()) != len(want) {
		t.Fatalf("the bucket has %v", f.objects)
	}
	d, _ := s.Find(Name{"link", "d.tmp/a"})
	must(t, d.Hold())
	published(t, d)
	if err := s.RenameDir(t.Context(), from, to, all, unwrite); !errors.Is(err, ErrPublished) {
		t.Fatal(err)
	}
	f.has(t, "d.tmp/a", content(101, 1))
	d.Release()
	must(t, s.RenameDir(t.Context(), from, to, all, unwrite))
	if len(f.objects) != 4 || len(s.All()) > 0 {
		t.Fatalf("the bucket has %v", f.objects)
	}
}

func TestADirectoryThatCannotBeTakenBackYet(t *testing.T) {
	// The bucket goes away in the midst of a directory's rename: what it has got cannot be deleted. All names are as before at once, and the
	// bucket has nothing once it can be asked, also after a restart. Then the directory is renamed.
	for _, again := range []bool{false, true} {
		f, dir := newFake(part), t.TempDir()
		s := open(t, staging(options(dir, f)))
		tree(t, s, "d.tmp", "a", "b", "c")
		want := s.All()
		all := func(Info) bool { return true }
		f.meets = func(_ string, u *hearth.Upload) fault {
			if u.Key == "d/c" {
				return fails
			}
			return works
		}
		from, to := Name{"link", "d.tmp/"}, Name{"link", "d/"}
		away := func(context.Context, hearth.Object) error { return errDown }
		if err := s.RenameDir(t.Context(), from, to, all, away); !errors.Is(err, errDown) {
			t.Fatal(err)
		}
		f.meets = nil
		if len(f.objects) == 0 {
			t.Fatal("nothing was to be taken back")
		}
		if again {
			must(t, s.Close())
			s = open(t, staging(options(dir, f)))
		}
		for i, x := range s.All() {
			if x.Name != want[i].Name || !x.Dirty || x.Removed || x.Users > 0 {
				t.Errorf("%+v", x)
			}
		}
		must(t, s.Clean(t.Context()))
		if len(f.objects) > 0 || len(s.All()) != len(want) {
			t.Fatalf("the bucket has %v, and drafts are %+v", f.objects, s.All())
		}
		must(t, s.RenameDir(t.Context(), from, to, all, away))
		if len(f.objects) != 4 || len(s.All()) > 0 {
			t.Fatalf("the bucket has %v", f.objects)
		}
	}
}

func TestKillsWhileADirectoryIsRenamed(t *testing.T) {
	// The node is killed at each step of the rename of a directory: the next one has all names old or all new, and each byte.
	var dirs []string
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	tree(t, s, "d.tmp", "a", "b", "sub/", "sub/c")
	dirs = append(dirs, copied(t, s))
	saved := func() { dirs = append(dirs, copied(t, s)) }
	s.o.Now = func() time.Time { // each record that is written asks for the time before
		saved()
		return time.Now()
	}
	must(t, s.RenameDir(t.Context(), Name{"link", "d.tmp/"}, Name{"link", "e.tmp/"}, func(Info) bool { return false }, nil))
	saved()
	if len(dirs) < 6 {
		t.Fatalf("%d steps", len(dirs))
	}
	for i, dir := range dirs {
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
		next := open(t, staging(options(dir, f)))
		var names []string
		for _, x := range next.All() {
			names = append(names, x.Key)
			if !x.IsDir() && x.Size < 100 {
				t.Errorf("step %d: %+v", i, x)
			}
		}
		old, now := []string{"d.tmp/", "d.tmp/a", "d.tmp/b", "d.tmp/sub/", "d.tmp/sub/c"}, []string{"e.tmp/", "e.tmp/a", "e.tmp/b", "e.tmp/sub/", "e.tmp/sub/c"}
		if !slices.Equal(names, old) && !slices.Equal(names, now) {
			t.Errorf("step %d: %q", i, names)
		}
		must(t, next.Close())
	}
}

func TestARenameOfADirectoryIsTakenBackBesideAClose(t *testing.T) {
	// One file of a directory is refused while the writer of another one closes it, and waits to be told to those who know names:
	// neither is in the bucket in the end, and both are drafts under their old names.
	f := newFake(part)
	o := staging(options(t.TempDir(), f))
	told, goOn := make(chan bool), make(chan bool)
	o.Published = func(d *Draft, _ hearth.Object) {
		if d.Info().Key == "d/a" {
			close(told)
			<-goOn
		}
	}
	s := open(t, o)
	tree(t, s, "d.tmp", "a", "b", "c")
	a, _ := s.Find(Name{"link", "d.tmp/a"})
	must(t, a.Hold())
	ended := make(chan error, 1)
	f.meets = func(_ string, u *hearth.Upload) fault {
		if u.Key != "d/c" {
			return works
		}
		go func() {
			_, err := a.Publish(context.Background())
			ended <- err
		}()
		<-told
		close(goOn)
		return fails
	}
	err := s.RenameDir(t.Context(), Name{"link", "d.tmp/"}, Name{"link", "d/"}, func(i Info) bool { return i.Key != "d/a" },
		func(ctx context.Context, o hearth.Object) error { return f.Delete(ctx, o.Key, o.ETag) })
	if !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	must(t, <-ended)
	if x := a.Info(); x.Key != "d.tmp/a" || !x.Dirty || x.Object != nil || len(f.objects) > 0 {
		t.Fatalf("%+v, the bucket has %v", x, f.objects)
	}
	a.Release()
}

func TestADirectoryIsPublishedByTwo(t *testing.T) {
	// After a kill the next process publishes a directory by itself, and is asked for its rename again: both succeed, each file is
	// sent once, whichever is first.
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	tree(t, s, "d", "a", "b", "c")
	dir := Name{"link", "d/"}
	all := func(Info) bool { return true }
	moves := s.moves(dir, dir)
	must(t, s.RenameDir(t.Context(), dir, dir, all, nil))
	for _, m := range moves {
		if err := m.d.Hold(); !errors.Is(err, syscall.ESTALE) {
			t.Fatalf("a draft that is gone is held: %v", err)
		}
	}
	s.mu.Lock() // as if the second had found them before
	for i := range moves {
		s.nameLocked(moves[i].d)
	}
	s.mu.Unlock()
	must(t, s.RenameDir(t.Context(), dir, dir, all, nil))
	if n := f.count("Put"); n != 4 {
		t.Fatalf("%d PUTs", n)
	}
	s.mu.Lock()
	for i := range moves {
		s.unnameLocked(moves[i].d)
	}
	s.mu.Unlock()
}

func TestKillsWhileTheRenameOfADirectoryIsTakenBack(t *testing.T) {
	// One file of a directory is refused, and the node is killed at each step from there on. The next one has each file, as a draft or
	// in the bucket, and once it has cleaned up and the rename is asked for again, all of it is in the bucket, once.
	type step struct {
		dir string
		f   *fakeUploader
	}
	var steps []step
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	tree(t, s, "d.tmp", "a", "b", "c")
	var mu sync.Mutex
	refused := false
	snap := func() {
		mu.Lock()
		defer mu.Unlock()
		if refused {
			steps = append(steps, step{copied(t, s), f.clone()})
		}
	}
	f.meets = func(_ string, u *hearth.Upload) fault {
		if u.Key == "d/c" {
			mu.Lock()
			refused = true
			mu.Unlock()
			return fails
		}
		snap()
		return works
	}
	s.o.Now = func() time.Time { // each record that is written asks for the time before
		snap()
		return time.Now()
	}
	all := func(Info) bool { return true }
	from, to := Name{"link", "d.tmp/"}, Name{"link", "d/"}
	err := s.RenameDir(t.Context(), from, to, all, func(ctx context.Context, o hearth.Object) error {
		snap()
		err := f.Delete(ctx, o.Key, o.ETag)
		snap()
		return err
	})
	if !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	snap()
	if len(steps) < 8 {
		t.Fatalf("%d steps", len(steps))
	}
	for i, x := range steps {
		t.Cleanup(func() { _ = os.RemoveAll(x.dir) }) // a temporary directory
		next := open(t, staging(options(x.dir, x.f)))
		for j, name := range []string{"a", "b", "c"} {
			d, found := next.Find(Name{"link", "d.tmp/" + name})
			if !found {
				d, found = next.Find(Name{"link", "d/" + name})
			}
			if !found || d.Info().Size != int64(101+j) {
				t.Fatalf("step %d: %s is not there", i, name)
			}
		}
		must(t, next.Clean(t.Context()))
		dir := from
		if _, found := next.Find(from); !found {
			dir = to // its drafts are published under the new name, as the node does
		}
		must(t, next.RenameDir(t.Context(), dir, to, all, func(ctx context.Context, o hearth.Object) error { return x.f.Delete(ctx, o.Key, o.ETag) }))
		for j, name := range []string{"a", "b", "c"} {
			x.f.has(t, "d/"+name, content(101+j, 1))
		}
		if len(x.f.objects) != 4 || len(next.All()) > 0 {
			t.Fatalf("step %d: the bucket has %v, left %+v", i, x.f.objects, next.All())
		}
	}
}

func TestAPublishThatWaitedForARename(t *testing.T) {
	// A publish waits for the rename of the draft, whose new name is temporary: nothing is sent under that.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	must(t, d.lock(t.Context()))
	done := make(chan error)
	go func() {
		_, err := d.PublishAt(t.Context(), Name{"link", "a"})
		done <- err
	}()
	hearthtest.Eventually(t.Context(), time.Minute, func() bool { return d.wanted.Load() > 0 })
	m := move{d: d, to: Name{"link", "a.tmp"}}
	must(t, m.swap(t.Context(), false))
	d.unlock()
	if err := <-done; !errors.Is(err, ErrRenamed) || f.count("Put") > 0 {
		t.Fatalf("%v, %d requests", err, f.count("Put"))
	}
	if _, err := d.PublishAt(t.Context(), Name{"link", "a.tmp"}); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasEmptiedInARenameThatFailed(t *testing.T) {
	// A file of a directory is emptied once the directory's rename has published it, and then that is taken back. Renamed onto nothing
	// alone, it does not replace what somebody else has made there.
	f := newFake(part)
	s := open(t, staging(options(t.TempDir(), f)))
	create(t, s, "d.tmp/", 1)
	d, last := create(t, s, "d.tmp/a", 2), create(t, s, "d.tmp/b", 3)
	must(t, errors.Join(d.Hold(), last.Hold()))
	write(t, d, []byte("text"), 0)
	write(t, last, []byte("last"), 0)
	f.meets = func(verb string, u *hearth.Upload) fault {
		if verb == "Put" && u.Key == "d/b" {
			must(t, d.Truncate(0))
			return fails
		}
		return works
	}
	all := func(Info) bool { return true }
	unwrite := func(ctx context.Context, o hearth.Object) error { return f.Delete(ctx, o.Key, o.ETag) }
	if err := s.RenameDir(t.Context(), Name{"link", "d.tmp/"}, Name{"link", "d/"}, all, unwrite); err == nil {
		t.Fatal("renamed")
	}
	f.meets = nil
	f.objects["x"] = fakeObject{[]byte("theirs"), "x", ""}
	if err := d.Rename(t.Context(), Name{"link", "x"}, true, true); !errors.Is(err, hearth.ErrConflict) {
		t.Errorf("%v", err)
	}
	f.has(t, "x", []byte("theirs"))
	d.Release()
	last.Release()
}
