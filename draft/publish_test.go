package draft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

const (
	kib  = 1 << 10
	part = 4 * kib
)

// content is n bytes that are another for each seed.
func content(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8)*7 ^ seed
	}
	return p
}

func options(dir string, f *fakeUploader) Options {
	return Options{Dirs: []string{filepath.Join(dir, "drafts")}, Uploader: func(string) (hearth.Uploader, error) { return f, nil }}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, s *Store, key string, id uint64) *Draft {
	t.Helper()
	d, err := s.Create(Name{"link", key}, id, Attr{Mode: 0o644})
	must(t, err)
	return d
}

func write(t testing.TB, d *Draft, p []byte, off int64) {
	t.Helper()
	if n, err := d.WriteAt(p, off); n != len(p) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(p), err)
	}
}

func published(t testing.TB, d *Draft) hearth.Object {
	t.Helper()
	o, err := d.Publish(t.Context())
	must(t, err)
	return o
}

// files are the names in the store's directory.
func files(t testing.TB, s *Store) (names []string) {
	t.Helper()
	list, err := os.ReadDir(s.o.Dirs[0])
	must(t, err)
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

func TestPublish(t *testing.T) {
	// Drafts of no byte, of one part, of many and with holes become the objects that they are; without a new write nothing is asked; with the last handle nothing is left of them.
	for _, n := range []int{0, 1, part - 1, part, part + 1, 3 * part, 20*part + 7} {
		f := newFake(part)
		var told []hearth.Object
		o := options(t.TempDir(), f)
		o.Published = func(_ *Draft, o hearth.Object) { told = append(told, o) }
		s := open(t, o)
		d := create(t, s, "a", 1)
		must(t, d.Hold())
		want := make([]byte, n)
		copy(want[n/2:], content(n-n/2, 1))
		if n > 0 {
			write(t, d, want[n/2:], int64(n/2))
		}
		first := published(t, d)
		f.has(t, "a", want)
		calls := len(f.calls)
		again := published(t, d)
		if first != again || len(f.calls) != calls || f.count("Put")+f.count("Complete") != 1 || first.Link != "link" || !slices.Equal(told, []hearth.Object{first}) {
			t.Fatalf("%d bytes: %+v, then %+v, told %+v after %v", n, first, again, told, f.calls)
		}
		if i := d.Info(); i.State != Published || i.Dirty || i.Users != 1 {
			t.Fatalf("%+v", i)
		}
		write(t, d, []byte("x"), 0)
		if i := d.Info(); i.State != Opened || !i.Dirty {
			t.Fatalf("after a write %+v", i)
		}
		published(t, d)
		d.Release()
		if _, there := s.Find(Name{"link", "a"}); there || len(files(t, s)) > 0 || len(s.All()) > 0 {
			t.Fatalf("left: %q", files(t, s))
		}
		f.clean(t)
		if err := d.Hold(); err == nil {
			t.Fatal("a draft that is gone is held")
		}
	}
}

func TestAPartThatIsWrittenAsItIsTaken(t *testing.T) {
	// A part of a large file is written, or cut off, between a look at its generation and the reading of its bytes: it is sent
	// again, or not at all, and the object is what the file is in the end.
	for _, cut := range []bool{false, true} {
		f := newFake(part)
		o := options(t.TempDir(), f)
		o.Memory, o.Parallel = 2*part, 1
		s := open(t, o)
		d := create(t, s, "a", 1)
		now, takes := content(9*part+5, 1), 0
		write(t, d, now, 0)
		s.buffers.New = func() any { // where a part is about to be read
			if takes++; takes == 3 {
				if cut {
					now = now[:100]
					must(t, d.Truncate(100))
					return nil
				}
				for at := part / 2; at < len(now); at += part {
					copy(now[at:], "changed")
					if _, err := d.WriteAt(now[at:at+7], int64(at)); err != nil {
						t.Error(err)
					}
				}
			}
			return nil
		}
		published(t, d)
		if got := f.objects["a"].data; !bytes.Equal(got, now) {
			t.Errorf("the object has %d bytes, not the %d of the file", len(got), len(now))
		}
	}
}

func TestWhatIsSentIsOneMoment(t *testing.T) {
	// While parts are sent, and while Complete is under way, a writer changes parts that were sent, grows and shrinks the file: the object is a state that the file had, and the next publish has the last one.
	for _, size := range []int{9 * part, 40*part + 9} { // all in one look, and too much for one
		f := newFake(part)
		o := options(t.TempDir(), f)
		o.Memory = 10 * part
		s := open(t, o)
		d := create(t, s, "a", 1)
		var mu sync.Mutex
		now := content(size, 1)
		states := [][]byte{slices.Clone(now)}
		write(t, d, now, 0)
		n := 0
		f.meets = func(verb string, _ *hearth.Upload) fault {
			mu.Lock()
			defer mu.Unlock()
			if n++; n%3 != 0 || n > 45 || verb == "Written" {
				return works
			}
			at := n * 7919 % (len(now) - 100)
			copy(now[at:], bytes.Repeat([]byte{byte(n)}, 100))
			if _, err := d.WriteAt(now[at:at+100], int64(at)); err != nil {
				t.Error(err)
			}
			states = append(states, slices.Clone(now))
			if n%9 == 0 {
				now = append(now[:len(now)-50:len(now)-50], make([]byte, n%2*90)...)
				if err := d.Truncate(int64(len(now) - n%2*90)); err != nil {
					t.Error(err)
				}
				states = append(states, slices.Clone(now[:len(now)-n%2*90]))
				if err := d.Truncate(int64(len(now))); err != nil {
					t.Error(err)
				}
				states = append(states, slices.Clone(now))
			}
			return works
		}
		published(t, d)
		if !slices.ContainsFunc(states, func(p []byte) bool { return bytes.Equal(p, f.objects["a"].data) }) {
			t.Fatalf("what was published never existed")
		}
		f.meets = nil
		published(t, d)
		f.has(t, "a", now)
		f.clean(t)
	}
}

func TestLostAnswers(t *testing.T) {
	// Each request in turn fails, is not heard, or is done without an answer, once or for good: then the object is there whole as soon as a Publish says so, no write was done twice after it, and no upload is left.
	for _, size := range []int{100, 6 * part} {
		for _, how := range []fault{fails, unheard, lost} {
			for at := range 12 {
				for _, times := range []int{1, 20} {
					f := newFake(part)
					o := options(t.TempDir(), f)
					o.Parallel = 1
					s := open(t, o)
					d := create(t, s, "a", 1)
					want := content(size, 1)
					write(t, d, want, 0)
					var n atomic.Int64
					f.meets = func(string, *hearth.Upload) fault {
						if i := int(n.Add(1)) - 1; i >= at && i < at+times {
							return how
						}
						return works
					}
					var err error
					for range 40 {
						if _, err = d.Publish(t.Context()); err == nil {
							break
						}
						if i := d.Info(); i.State != Waiting || i.Why == "" {
							t.Fatalf("%+v after %v", i, err)
						}
					}
					if err != nil {
						t.Fatalf("%d bytes, request %d, %d times %d: %v", size, at, times, how, err)
					}
					f.has(t, "a", want)
					f.meets = nil
					must(t, s.Clean(t.Context()))
					f.clean(t)
				}
			}
		}
	}
}

func TestAnUnknownOutcomeIsAskedForFirst(t *testing.T) {
	// The answer of a Put is lost and the origin is gone: the draft waits. It was done; meanwhile the file changes. The next Publish asks, and then replaces just that object.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	write(t, d, []byte("one"), 0)
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if verb == "Put" {
			return lost
		}
		return fails
	}
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrUnanswered) || d.Info().State != Waiting {
		t.Fatalf("%v, %+v", err, d.Info())
	}
	var verbs []string
	f.meets = func(verb string, u *hearth.Upload) fault {
		verbs = append(verbs, verb+" "+u.IfMatch)
		return works
	}
	write(t, d, []byte("two"), 0)
	published(t, d)
	f.has(t, "a", []byte("two"))
	if want := []string{"Written ", "Put " + etagOf([]byte("one"))}; !slices.Equal(verbs, want) {
		t.Fatalf("%q, want %q", verbs, want)
	}
}

func TestTwoPublishesAtOnce(t *testing.T) {
	// Whoever comes while another publishes waits, and gets the same object or the same error without a request; a write before it came is published by it.
	for _, c := range []struct {
		how  fault
		more bool
		puts int
	}{{works, false, 1}, {fails, false, 1}, {works, true, 2}, {fails, true, 2}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(part)
			s := open(t, options(t.TempDir(), f))
			d := create(t, s, "a", 1)
			must(t, d.Hold())
			write(t, d, []byte("one"), 0)
			gate, n := make(chan struct{}), 0
			f.meets = func(string, *hearth.Upload) fault {
				<-gate
				n++
				return c.how
			}
			errs := make([]error, 2)
			var wait sync.WaitGroup
			wait.Go(func() { _, errs[0] = d.Publish(t.Context()) })
			synctest.Wait()
			if c.more {
				write(t, d, []byte("two"), 0)
			}
			wait.Go(func() { _, errs[1] = d.Publish(t.Context()) })
			synctest.Wait()
			close(gate)
			wait.Wait()
			if n != c.puts || (errs[0] == nil) != (c.how == works) || (errs[1] == nil) != (c.how == works) {
				t.Errorf("%+v: %d requests, %v", c, n, errs)
			}
		})
	}
}

func TestACancelledPublishIsNobodys(t *testing.T) {
	// The first of two publishes is interrupted: the second one does the work.
	synctest.Test(t, func(t *testing.T) {
		f := newFake(part)
		s := open(t, options(t.TempDir(), f))
		d := create(t, s, "a", 1)
		write(t, d, []byte("one"), 0)
		gate := make(chan struct{})
		f.meets = func(string, *hearth.Upload) fault { <-gate; return works }
		ctx, cancel := context.WithCancel(t.Context())
		var first, second error
		var wait sync.WaitGroup
		wait.Go(func() { _, first = d.Publish(ctx) })
		synctest.Wait()
		wait.Go(func() { _, second = d.Publish(t.Context()) })
		synctest.Wait()
		cancel()
		close(gate)
		wait.Wait()
		if !errors.Is(first, context.Canceled) || second != nil {
			t.Fatalf("%v, %v", first, second)
		}
		f.has(t, "a", []byte("one"))
	})
}

func TestConflicts(t *testing.T) {
	// An exclusive draft does not replace an object, and a published one is not written over by its draft once somebody else has changed it. Both drafts stay, failed; no upload is left.
	for _, size := range []int{10, 3 * part} {
		f := newFake(part)
		s := open(t, options(t.TempDir(), f))
		d, err := s.Create(Name{"link", "a"}, 1, Attr{Exclusive: true})
		must(t, err)
		must(t, d.Hold())
		write(t, d, content(size, 1), 0)
		f.objects["a"] = fakeObject{[]byte("theirs"), "x", ""}
		conflicts := func() {
			t.Helper()
			if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) || d.Info().State != Failed {
				t.Fatalf("%v, %+v", err, d.Info())
			}
			f.has(t, "a", []byte("theirs"))
			f.clean(t)
		}
		conflicts()
		delete(f.objects, "a")
		published(t, d)
		write(t, d, []byte("more"), 0)
		published(t, d) // over its own
		f.objects["a"] = fakeObject{[]byte("theirs"), "y", ""}
		write(t, d, []byte("most"), 0)
		conflicts()
		got := make([]byte, size)
		if n, err := d.ReadAt(got, 0); n != size || err != nil && err != io.EOF || string(got[:4]) != "most" {
			t.Fatalf("%d %v %q", n, err, got[:4])
		}
		d.Release()
	}
}

// slow answers a Put after some time. Whoever breaks it off before gets no answer, and the object is made all the same.
type slow struct {
	hearth.Uploader
	takes time.Duration
	made  chan error // what became of those that were broken off
}

func (s *slow) Put(ctx context.Context, u *hearth.Upload, body io.ReaderAt) (hearth.Object, error) {
	answer := time.After(s.takes)
	select {
	case <-answer:
		return s.Uploader.Put(ctx, u, body)
	case <-ctx.Done():
		go func() {
			<-answer
			_, err := s.Uploader.Put(context.WithoutCancel(ctx), u, body)
			s.made <- err
		}()
		return hearth.Object{}, fmt.Errorf("%w: %w", hearth.ErrUnanswered, context.Cause(ctx))
	}
}

func TestRemoveWaitsForAnAnswer(t *testing.T) {
	// A draft is removed, or another one takes its name, while the request that makes its object is under way. The origin could do that
	// later, if it were broken off: so there is nothing of it in the bucket in the end. An origin that never answers is not waited for.
	// A rename waits longer: what it would put there, it could be replaced by.
	for _, c := range []struct {
		renames bool
		takes   time.Duration
	}{{false, answerWait / 2}, {true, answerWait / 2}, {true, 10 * answerWait}} {
		renames := c.renames
		synctest.Test(t, func(t *testing.T) {
			f := newFake(part)
			o := options(t.TempDir(), f)
			up := &slow{f, c.takes, make(chan error, 1)}
			o.Uploader = func(string) (hearth.Uploader, error) { return up, nil }
			s := open(t, o)
			d, other := create(t, s, "a", 1), create(t, s, "b", 2)
			write(t, d, content(100, 1), 0)
			write(t, other, content(50, 2), 0)
			ended := make(chan error, 1)
			go func() {
				_, err := d.Publish(t.Context())
				ended <- err
			}()
			synctest.Wait() // it is under way
			if renames {
				must(t, other.Rename(t.Context(), Name{"link", "a"}, false, true))
				f.has(t, "a", content(50, 2))
			} else {
				must(t, d.Remove(t.Context()))
				f.has(t, "a", nil)
			}
			must(t, <-ended)
			f.clean(t)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(part)
		o := options(t.TempDir(), f)
		up := &slow{f, time.Hour, make(chan error, 1)}
		o.Uploader = func(string) (hearth.Uploader, error) { return up, nil }
		s := open(t, o)
		d := create(t, s, "a", 1)
		write(t, d, content(100, 1), 0)
		go func() { _, _ = d.Publish(t.Context()) }() // it is removed
		synctest.Wait()
		before := time.Now()
		must(t, d.Remove(t.Context()))
		if took := time.Since(before); took != answerWait {
			t.Errorf("it took %v", took)
		}
		must(t, <-up.made)
	})
}

func TestANameIsGivenBackBesideAPublish(t *testing.T) {
	// A draft is removed while its object is being made, which is so in time, and then has its name again. Where the bucket has kept that
	// object the draft is published, and told of. Where the object was deleted, the bucket has nothing of it, and gets it anew.
	for _, deletes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(part)
			o := options(t.TempDir(), f)
			up := &slow{f, answerWait / 2, make(chan error, 1)}
			o.Uploader = func(string) (hearth.Uploader, error) { return up, nil }
			told := 0
			o.Published = func(*Draft, hearth.Object) { told++ }
			s := open(t, o)
			d := create(t, s, "a", 1)
			must(t, d.Hold())
			write(t, d, content(100, 1), 0)
			f.meets = func(verb string, _ *hearth.Upload) fault {
				if verb == "Delete" && !deletes {
					return fails
				}
				return works
			}
			ended := make(chan error, 1)
			go func() {
				_, err := d.Publish(t.Context())
				ended <- err
			}()
			synctest.Wait() // it is under way
			was := d.Info()
			must(t, d.Remove(t.Context()))
			must(t, <-ended)
			must(t, d.Restore(was))
			if i := d.Info(); i.Dirty != deletes || i.State == Published == deletes || told == 1 == deletes {
				t.Errorf("deletes %v: told %d times, %+v", deletes, told, i)
			}
			published(t, d)
			f.has(t, "a", content(100, 1))
			d.Release()
			if all := s.All(); len(all) > 0 || told != 1 {
				t.Errorf("left %+v, told %d times", all, told)
			}
		})
	}
}

func TestNothingIsSentAgainOfARemovedDraft(t *testing.T) {
	// A draft is removed while its object is being made, which nobody hears of. It is not tried again.
	synctest.Test(t, func(t *testing.T) {
		f := newFake(part)
		o := options(t.TempDir(), f)
		up := turns{f, make(chan struct{})}
		o.Uploader = func(string) (hearth.Uploader, error) { return up, nil }
		s := open(t, o)
		d := create(t, s, "waits", 1)
		write(t, d, content(100, 1), 0)
		puts := 0
		f.meets = func(verb string, u *hearth.Upload) fault {
			if verb == "Put" {
				puts++
				return unheard
			}
			return works
		}
		ended := make(chan error, 1)
		go func() {
			_, err := d.Publish(t.Context())
			ended <- err
		}()
		synctest.Wait()
		go func() { // the answer is lost
			time.Sleep(answerWait / 2)
			close(up.turn)
		}()
		must(t, d.Remove(t.Context()))
		if err := <-ended; err == nil || puts != 1 {
			t.Errorf("sent %d times, %v", puts, err)
		}
		must(t, s.Clean(t.Context()))
		f.has(t, "waits", nil)
		f.clean(t)
	})
}

func TestAVersionThatSomebodyHasPutBackIsAConflict(t *testing.T) {
	// A file is published twice, and somebody puts the first version back. It is the draft's own, and not late: whoever has it open
	// does not overwrite it.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	write(t, d, content(100, 1), 0)
	published(t, d)
	first := f.objects["a"]
	write(t, d, content(100, 2), 0)
	published(t, d)
	f.objects["a"] = first
	write(t, d, content(100, 3), 0)
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
		t.Error(err)
	}
	f.has(t, "a", content(100, 1))
}

func TestWhatWasLeftIsNotUntouched(t *testing.T) {
	// A node was killed before a file was in the bucket, and the next one's first try fails. Whoever has it open and closes it is not told that
	// nothing was written.
	for _, size := range []int{100, 3 * part, 50} {
		f := newFake(part)
		o := changing(t.TempDir(), f)
		s := open(t, o)
		if size == 50 { // an object was cut
			must(t, changed(t, s, f, "a", content(100, 1)).Truncate(50))
		} else {
			write(t, create(t, s, "a", 1), content(size, 1), 0)
		}
		must(t, s.Close())
		s = open(t, o)
		d, _ := s.ID(1)
		f.meets = func(string, *hearth.Upload) fault { return fails }
		for range 2 {
			if _, err := d.Publish(t.Context()); !errors.Is(err, errDown) {
				t.Error(err)
			}
			if i := d.Info(); i.Untouched || !i.Dirty {
				t.Errorf("%d bytes: %+v", size, i)
			}
		}
		f.meets = nil
		published(t, d)
		if size == 50 {
			f.has(t, "a", content(100, 1)[:50])
		} else {
			f.has(t, "a", content(size, 1))
		}
	}
}

func TestARefusalSaysNothingOfTheTryBefore(t *testing.T) {
	// A try has no answer, and the next one is refused. The first one may be done still, and is the draft's own if it is.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d, err := s.Create(Name{"link", "a"}, 1, Attr{Exclusive: true})
	must(t, err)
	write(t, d, content(100, 1), 0)
	var first *hearth.Upload
	f.meets = func(verb string, u *hearth.Upload) fault {
		switch {
		case verb != "Put":
			return works
		case first == nil:
			sent := *u
			first = &sent
			return unheard
		}
		return fails
	}
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrUnanswered) || !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	write(t, d, content(100, 2), 0)
	done := false
	f.meets = func(verb string, u *hearth.Upload) fault {
		if verb == "Put" && !done {
			done = true
			f.mu.Lock()
			defer f.mu.Unlock()
			must(t, f.put(first, content(100, 1), first.Draft))
		}
		return works
	}
	published(t, d)
	f.has(t, "a", content(100, 2))
}

func TestAnUploadThatIsBegunLateIsAborted(t *testing.T) {
	// A file is removed, or published after a restart, and the origin begins then an upload that it was asked for before, and has not
	// answered. It is asked again for as long as it may do that, and the upload is aborted. Then nothing is left here, either.
	for _, c := range []struct{ never, restarts bool }{{false, false}, {true, false}, {false, true}} {
		f := newFake(part)
		o := options(t.TempDir(), f)
		s := open(t, o)
		d := create(t, s, "a", 1)
		data := content(3*part, 1)
		write(t, d, data, 0)
		var sent hearth.Upload
		f.meets = func(verb string, u *hearth.Upload) fault {
			if verb == "Begin" {
				sent = *u
				return unheard
			}
			return works
		}
		if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrUnanswered) {
			t.Fatal(err)
		}
		f.meets = nil
		if c.restarts {
			must(t, s.Close())
			s = open(t, o)
			d, _ = s.ID(1)
			published(t, d)
		} else {
			must(t, d.Remove(t.Context()))
		}
		must(t, s.Clean(t.Context()))
		if !c.never {
			f.uploads["late"] = &fakeUpload{"a", sent.Draft, map[int][]byte{}, time.Now()}
		}
		must(t, s.Clean(t.Context()))
		f.clean(t)
		if c.restarts {
			f.has(t, "a", data)
		} else {
			f.has(t, "a", nil)
		}
		if muchLater(t, s); len(files(t, s)) > 0 {
			t.Errorf("%+v: left %q", c, files(t, s))
		}
	}
}

func TestAFailedRenameNamesNothingThatIsGone(t *testing.T) {
	// A rename waits for the object that it is to replace. That is made, and its draft goes; then the rename is refused. The bucket has the name,
	// and no draft.
	synctest.Test(t, func(t *testing.T) {
		f := newFake(part)
		o := options(t.TempDir(), f)
		up := turns{f, make(chan struct{})}
		o.Uploader = func(string) (hearth.Uploader, error) { return up, nil }
		s := open(t, o)
		d, other := create(t, s, "waits", 1), create(t, s, "b", 2)
		write(t, d, content(100, 1), 0)
		write(t, other, content(50, 2), 0)
		f.meets = func(verb string, u *hearth.Upload) fault {
			if verb == "Put" && u.Size == 50 {
				return fails
			}
			return works
		}
		ended, renamed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := d.Publish(t.Context())
			ended <- err
		}()
		synctest.Wait()
		go func() { renamed <- other.Rename(t.Context(), Name{"link", "waits"}, false, true) }()
		synctest.Wait()
		if i := other.Info(); !i.Sending {
			t.Errorf("the rename waits, and %+v", i)
		}
		close(up.turn)
		must(t, <-ended)
		if err := <-renamed; !errors.Is(err, errDown) {
			t.Error(err)
		}
		f.has(t, "waits", content(100, 1))
		if found, there := s.Find(Name{"link", "waits"}); there {
			t.Errorf("the name has %+v", found.Info())
		}
		if found, there := s.Find(Name{"link", "b"}); !there || found != other {
			t.Error("the old name has another draft, or none")
		}
	})
}

// turns is an uploader that has a Put of a key wait for a connection, until its turn comes.
type turns struct {
	*fakeUploader
	turn chan struct{}
}

func (u turns) Put(ctx context.Context, x *hearth.Upload, body io.ReaderAt) (hearth.Object, error) {
	if x.Key == "waits" {
		<-u.turn
	}
	return u.fakeUploader.Put(ctx, x, body)
}

func TestWhatWaitsForAConnectionMoves(t *testing.T) {
	// Others have all connections to the origin. Whoever waits for one moves as they do: a rename does not take it for silence.
	synctest.Test(t, func(t *testing.T) {
		f := newFake(part)
		o := options(t.TempDir(), f)
		up := turns{f, make(chan struct{})}
		o.Uploader = func(string) (hearth.Uploader, error) { return up, nil }
		s := open(t, o)
		waits, other := create(t, s, "waits", 1), create(t, s, "other", 2)
		write(t, waits, content(100, 1), 0)
		write(t, other, content(100, 2), 0)
		ended := make(chan error)
		go func() {
			_, err := waits.Publish(t.Context())
			ended <- err
		}()
		synctest.Wait()
		before := waits.Info()
		published(t, other)
		if now := waits.Info(); !before.Sending || now.Moved == before.Moved {
			t.Errorf("it is at %d of %d: %v", now.Moved, before.Moved, before.Sending)
		}
		close(up.turn)
		must(t, <-ended)
		if now := waits.Info(); now.Moved != 100 || now.Sending {
			t.Errorf("in the end it is at %d", now.Moved)
		}
	})
}

func TestAnAttemptThatIsDoneLateIsNoConflict(t *testing.T) {
	// Nobody has the answer to an attempt: its process was killed, or the origin is slow. It does that after it was asked whether it has, just
	// before the next attempt, whose condition fails then. The object is the draft's own, which goes on from it. Another draft's is a conflict.
	for _, size := range []int{100, 3 * part} {
		for _, c := range []struct{ restarts, changes, others bool }{{false, false, false}, {true, false, false}, {false, true, false}, {true, true, false}, {false, false, true}} {
			f := newFake(part)
			o := options(t.TempDir(), f)
			s := open(t, o)
			var d *Draft
			if c.changes {
				must(t, f.put(&hearth.Upload{Key: "a"}, content(50, 9), ""))
				base := f.object("a")
				base.Link = "link"
				var err error
				o.Base = f.base
				d, err = s.Change(&base, 1, Attr{})
				must(t, err)
			} else {
				var err error
				d, err = s.Create(Name{"link", "a"}, 1, Attr{Exclusive: true})
				must(t, err)
			}
			write(t, d, content(size, 1), 0)
			var first *hearth.Upload
			f.meets = func(verb string, u *hearth.Upload) fault {
				if verb == "Put" || verb == "Complete" {
					first = u
					return unheard
				}
				return works
			}
			if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrUnanswered) {
				t.Fatal(err)
			}
			late := *first
			if c.others {
				late.Draft = "another-1"
			}
			if c.restarts {
				must(t, s.Close())
				s = open(t, o)
				d, _ = s.ID(1)
			}
			write(t, d, content(size, 2), 0)
			f.meets = func(verb string, u *hearth.Upload) fault {
				if late.Key != "" && (verb == "Put" || verb == "Complete") {
					f.mu.Lock()
					defer f.mu.Unlock()
					must(t, f.put(&late, content(size, 1), late.Draft))
					late.Key = ""
				}
				return works
			}
			_, err := d.Publish(t.Context())
			if c.others {
				if !errors.Is(err, hearth.ErrConflict) {
					t.Errorf("%d bytes, %+v: %v", size, c, err)
				}
				f.has(t, "a", content(size, 1))
				continue
			}
			if err != nil || late.Key != "" {
				t.Errorf("%d bytes, %+v: %v", size, c, err)
				continue
			}
			f.has(t, "a", content(size, 2))
			must(t, s.Clean(t.Context()))
			f.clean(t)
		}
	}
}

func TestRemoveAtEachStep(t *testing.T) {
	// A draft is removed while each of the requests of its publish is under way, or its answer is lost: nothing of it is in the bucket, no upload and no file is left, and whoever has it open reads and writes on.
	for _, size := range []int{100, 4 * part} {
		for _, how := range []fault{works, lost} {
			for at := range 7 {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(part)
					o := options(t.TempDir(), f)
					o.Parallel = 1
					s := open(t, o)
					d := create(t, s, "a", 1)
					must(t, d.Hold())
					write(t, d, content(size, 1), 0)
					removed := make(chan error, 1)
					var n atomic.Int64
					f.meets = func(string, *hearth.Upload) fault {
						if n.Add(1) != int64(at+1) {
							return works
						}
						before := d.isRemoved()
						go func() { removed <- d.Remove(context.Background()) }()
						for !before && !d.isRemoved() {
							runtime.Gosched()
						}
						return how
					}
					_, err := d.Publish(t.Context())
					if n.Load() <= int64(at) {
						must(t, err)
						must(t, d.Remove(t.Context()))
						return // it was published before, and is the caller's
					}
					must(t, <-removed)
					f.meets = nil
					f.has(t, "a", nil)
					if how == works || at > 0 || size == 100 {
						f.clean(t)
					}
					write(t, d, []byte("on"), 0)
					p := make([]byte, 2)
					if _, err := d.ReadAt(p, 0); err != nil || string(p) != "on" {
						t.Fatalf("%q %v", p, err)
					}
					if _, err := d.Publish(t.Context()); err == nil {
						t.Fatal("a removed draft is published")
					}
					if _, there := s.ID(1); !there {
						t.Fatal("it is held and has no id")
					}
					d.Release()
					if _, there := s.ID(1); there || len(files(t, s)) > 0 {
						t.Fatalf("left: %v %q", there, files(t, s))
					}
				})
			}
		}
	}
}

func (d *Draft) isRemoved() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.removed
}

func TestUploadsThatCannotBeAborted(t *testing.T) {
	// A draft is removed while the origin is away: its record stays over a restart until Clean has aborted the upload, and its data does not.
	f := newFake(part)
	dir := t.TempDir()
	s := open(t, options(dir, f))
	d := create(t, s, "a", 1)
	write(t, d, content(5*part, 1), 0)
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if verb == "Complete" || verb == "Abort" {
			return fails
		}
		return works
	}
	if _, err := d.Publish(t.Context()); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	must(t, d.Remove(t.Context()))
	if err := s.Clean(t.Context()); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	must(t, s.Close())
	s = open(t, options(dir, f))
	if names := files(t, s); !slices.Equal(names, []string{filepath.Base(d.path(".json"))}) || len(s.All()) > 0 {
		t.Fatalf("%q %+v", names, s.All())
	}
	f.meets = nil
	must(t, s.Clean(t.Context()))
	f.clean(t)
	if names := files(t, s); len(names) > 0 {
		t.Fatalf("left: %q", names)
	}
}

func TestPartsGoAhead(t *testing.T) {
	// A sequential writer's parts are at the origin before it publishes, and each byte is sent once; one that jumps sends nothing ahead.
	const size = 12 << 20
	for _, jumps := range []bool{false, true} {
		f := newFake(1 << 20)
		s := open(t, options(t.TempDir(), f))
		d := create(t, s, "a", 1)
		want := content(size, 1)
		for i := range size >> 16 {
			at := int64(i) << 16
			if jumps {
				at = size - at - 1<<16
			}
			write(t, d, want[at:at+1<<16], at)
		}
		if !jumps {
			if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return f.count("PutPart") >= 9 }) {
				t.Fatalf("%d parts were sent ahead", f.count("PutPart"))
			}
		} else if n := f.count("Begin"); n > 0 {
			t.Fatal("an upload was begun")
		}
		published(t, d)
		f.has(t, "a", want)
		f.clean(t)
		if sent := d.Info().Sent; sent != size {
			t.Fatalf("%d bytes were sent of %d", sent, size)
		}
	}
}

func TestWritersBesidePublishes(t *testing.T) {
	// Four writers each keep their blocks of the file at one number, in order, while it is published again and again: each object has whole blocks, and the last one has the last numbers.
	f := newFake(part)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	const block, last = 3000, 60
	write(t, d, make([]byte, 8*block), 0)
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			for n := range last {
				for _, at := range []int{w, w + 4} {
					if _, err := d.WriteAt(bytes.Repeat([]byte{byte(n + 1)}, block), int64(at*block)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	whole := func(want int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		data := f.objects["a"].data
		for i := range 8 {
			b := data[i*block : (i+1)*block]
			if bytes.Count(b, b[:1]) != block || want > 0 && int(b[0]) != want {
				t.Errorf("block %d is torn or old: %d", i, b[0])
			}
		}
		for i := range 4 { // the first of a writer's blocks is written first
			if a, b := data[i*block], data[(i+4)*block]; a != b && a != b+1 {
				t.Errorf("blocks of two moments: %d and %d", a, b)
			}
		}
	}
	for range 20 {
		if _, err := d.Publish(t.Context()); err != nil {
			t.Error(err)
		}
		whole(0)
	}
	wait.Wait()
	published(t, d)
	whole(last)
	d.Release()
}

func TestTheUploadOfWhatWasUndone(t *testing.T) {
	// More was written since the publish, sent ahead, and cut off again; then the node ended. The next one finds that the bucket has
	// the file, and leaves no upload.
	f, dir := newFake(1<<20), t.TempDir()
	s := open(t, options(dir, f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	write(t, d, []byte("x"), 0)
	published(t, d)
	sent := make(chan struct{}, 100)
	f.meets = func(verb string, _ *hearth.Upload) fault {
		if verb == "PutPart" {
			sent <- struct{}{}
		}
		return works
	}
	for i := range int64(24) {
		write(t, d, content(1<<20, 1), 1+i<<20)
	}
	<-sent
	must(t, d.Truncate(1))
	must(t, s.Close())
	s = open(t, options(dir, f))
	d, _ = s.ID(1)
	published(t, d)
	must(t, s.Clean(t.Context()))
	f.clean(t)
	if left := files(t, s); len(left) > 0 {
		t.Fatalf("left %q", left)
	}
}
