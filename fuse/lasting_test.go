package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
)

// slowly has what is told of slow renames noted.
func (w *writer) slowly(patience time.Duration) *[]string {
	told := new([]string)
	w.write.w.Patience = func(string) time.Duration { return patience }
	w.write.w.Slow = func(from, to draft.Name, sent, size int64, err error) {
		*told = append(*told, fmt.Sprintf("%s %s %d/%d %v", from.Key, to.Key, sent, size, err != nil))
	}
	return told
}

func TestARenameThatTakesLong(t *testing.T) {
	// A rename is told of after 2 s, once. One that the bucket answers later succeeds; one of which no byte goes for as long as the
	// origin may be silent fails, and the draft has its old name and says why.
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t)
		defer w.end()
		told := w.slowly(10 * time.Second)
		wait := 5 * time.Second
		w.bucket.meets = func(ctx context.Context, request string) error {
			if request != "PUT a" {
				return nil
			}
			select {
			case <-time.After(wait):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		node, handle := w.made("a.tmp", "hello")
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		began := time.Now()
		w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
		w.is("it took", time.Since(began), wait)
		w.is("told", strings.Join(*told, ", "), "a.tmp a 5/5 false")
		w.is("the bucket has", w.bucket.has("a"), "hello")

		*told, wait = nil, time.Hour
		node, handle = w.made("b.tmp", "you")
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		began = time.Now()
		w.is("rename", w.rename("b.tmp", "a", 0, 0), syscall.EIO)
		w.is("it took", time.Since(began).Round(time.Second), 12*time.Second) // from the first look on
		w.is("told", strings.Join(*told, ", "), "b.tmp a 3/3 false, b.tmp a 3/3 true")
		w.is("the old name", w.look("b.tmp"), node)
		w.is("the bucket has", w.bucket.has("a"), "hello")
		d, _ := w.drafts.ID(node)
		if why := d.Info().Why; !strings.Contains(why, errSilent.Error()) {
			t.Errorf("why: %s", why)
		}
	})
}

// trickle is an origin that takes a byte each second.
type trickle struct{ *fakeBucket }

func (b trickle) Put(ctx context.Context, u *hearth.Upload, body io.ReaderAt) (hearth.Object, error) {
	for i := range u.Size {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return hearth.Object{}, context.Cause(ctx)
		}
		if _, err := body.ReadAt(make([]byte, 1), i); err != nil && !errors.Is(err, io.EOF) {
			return hearth.Object{}, err
		}
	}
	return b.fakeBucket.Put(ctx, u, body)
}

func TestARenameWithProgressGoesOn(t *testing.T) {
	// As long as bytes go a rename lasts as long as it must, and so does one whose copy the origin makes without a byte.
	synctest.Test(t, func(t *testing.T) {
		bucket := &fakeBucket{objects: map[string]fakeStored{}}
		tree := newFakeTree(0)
		w := takenOver(t, t.TempDir(), tree, bucket, nil, trickle{bucket})
		defer w.end()
		told := w.slowly(3 * time.Second)
		node, handle := w.made("a.tmp", strings.Repeat("x", 60))
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		began := time.Now()
		w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
		w.is("it took", time.Since(began), time.Minute)
		w.is("told", strings.Join(*told, ", "), "a.tmp a 60/60 false")
		*told = nil
		w.bucket.meets = func(ctx context.Context, request string) error {
			if strings.HasPrefix(request, "COPY") {
				time.Sleep(time.Minute) // of synctest's
			}
			return ctx.Err()
		}
		w.is("rename of an object", w.rename("a", "b", 0, 0), ok)
		w.is("told", strings.Join(*told, ", "), "a b 0/0 false")
	})
}

func TestARenameWaitsNoLongerThanForSilence(t *testing.T) {
	// The bucket makes the object of a file that is to be replaced. A rename over it waits for that, and not for longer than the bucket may be
	// silent: broken off, the old bytes could come over the new ones. Both files are as before, and it can be renamed again.
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t)
		defer w.end()
		told := w.slowly(10 * time.Second)
		node, handle := w.made("b.tmp", "new")
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		old, oldHandle := w.made("a", "old")
		answer := make(chan struct{})
		w.bucket.meets = func(_ context.Context, request string) error {
			if request == "PUT a" {
				<-answer
			}
			return nil
		}
		closed := make(chan gofuse.Status, 1)
		go func() { closed <- w.flush(old) }()
		synctest.Wait()
		began := time.Now()
		w.is("rename", w.rename("b.tmp", "a", 0, 0), syscall.EIO)
		w.is("it took", time.Since(began).Round(time.Second), 12*time.Second)
		w.is("told", len(*told), 2)
		w.is("the old name", w.look("b.tmp"), node)
		w.is("the name", w.look("a"), old)
		close(answer)
		w.is("close", <-closed, ok)
		w.is("the bucket has", w.bucket.has("a"), "old")
		w.release(old, oldHandle)
		w.is("rename again", w.rename("b.tmp", "a", 0, 0), ok)
		w.is("the bucket has", w.bucket.has("a"), "new")
	})
}

func TestASignalEndsARename(t *testing.T) {
	// Who waits in a rename and gets a signal has EINTR after the grace, and the draft its old name.
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t)
		defer w.end()
		w.slowly(time.Hour)
		node, handle := w.made("a.tmp", "hello")
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		w.bucket.meets = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		signal := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(signal) })
		began := time.Now()
		in := gofuse.RenameIn{InHeader: gofuse.InHeader{NodeId: 1}, Newdir: 1}
		w.is("rename", w.Rename(signal, &in, "a.tmp", "a"), syscall.EINTR)
		w.is("it took", time.Since(began), time.Minute+grace)
		w.is("the old name", w.look("a.tmp"), node)
		w.is("read", w.read(node), "hello")
		w.bucket.meets = nil
		w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
	})
}
