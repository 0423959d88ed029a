package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

func TestFailingDisk(t *testing.T) {
	// The disk fails under the tree: names go on in memory, and stats say so.
	var failing atomic.Bool
	disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.EIO
		}
		return nil
	}))
	told := make(chan error, 1)
	w := open(t, func(o *Options) {
		o.Dir, o.fs = "names", disk
		o.Events.Ill = func(err error) { told <- err }
	})
	for i := range 5000 {
		w.b.put(fmt.Sprintf("d%d/%d", i%3, i), "A", 1)
	}
	w.names("/d0")
	before := w.resolve("/d0/0")
	failing.Store(true)
	w.names("/d1")
	w.names("/d2")
	if err := w.tree.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := <-told; !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	asked := w.b.requests()
	for i := range 5000 {
		w.resolve(fmt.Sprintf("/d%d/%d", i%3, i))
	}
	if n, err := w.tree.Node(context.Background(), before.ID); err != nil || n.Object != before.Object {
		t.Errorf("%+v, %v", n, err)
	}
	if s := w.tree.Stats(); s.Ill == nil || s.Rebuilds != 0 || w.b.requests() != asked {
		t.Errorf("%+v, %d requests", s, w.b.requests()-asked)
	}
}

func TestCorruptDatabase(t *testing.T) {
	// A corrupt database is set aside; the tree starts anew, and no node id comes back.
	dir := t.TempDir() + "/names"
	w := open(t, func(o *Options) { o.Dir = dir })
	w.b.put("d/x", "A", 1)
	w.names("/d")
	old := w.resolve("/d/x")
	if err := w.tree.Close(); err != nil {
		t.Fatal(err)
	}
	w.tree = nil
	manifests, err := filepath.Glob(dir + "/MANIFEST-*")
	if err != nil || len(manifests) == 0 {
		t.Fatal(manifests, err)
	}
	for _, m := range manifests {
		if err := os.WriteFile(m, []byte("not a manifest"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.reopen()
	if n := w.resolve("/d/x"); n.ID <= old.ID || n.Object != old.Object {
		t.Errorf("%+v, before %+v", n, old)
	}
	if aside, _ := filepath.Glob(dir + ".corrupt-*"); len(aside) != 1 || w.tree.Stats().Rebuilds != 1 {
		t.Errorf("%v, %+v", aside, w.tree.Stats())
	}
}

func TestNewerFormat(t *testing.T) {
	// Names that a newer version wrote are refused.
	dir := t.TempDir() + "/names"
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	e := db.Edit()
	e.Set([]byte(record.FormatKey), []byte{record.Format + 1})
	if err := errors.Join(e.Commit(true), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Error(err)
	}
}

func TestNoNameIsOldAfterTheClockWentBack(t *testing.T) {
	// A name was asked for by itself, the clock went back while the node was down, and the object changed.
	// The listing made after that counts, also when the clock has come back to where it was.
	for _, c := range []struct{ back, later time.Duration }{{50 * time.Hour, 0}, {10 * time.Second, 0}, {10 * time.Second, 11 * time.Second}} {
		w := open(t, func(o *Options) { o.Dir = t.TempDir() + "/names" })
		w.b.put("d/x", "A", 1)
		w.names("/d")
		x := w.resolve("/d/x")
		w.clock.add(time.Second)
		w.tree.Forget(&x.Object)
		w.resolve("/d/x")
		if err := w.tree.Close(); err != nil {
			t.Fatal(err)
		}
		w.tree = nil
		w.clock.add(-c.back)
		w.b.put("d/x", "B", 1)
		w.reopen()
		w.clock.add(c.later)
		if c.later == 0 {
			w.names("/d")
		}
		if n := w.resolve("/d/x"); n.Object.ETag != "B" {
			t.Errorf("the clock went back by %v, %v ago: %+v", c.back, c.later, n)
		}
	}
}

func TestClock(t *testing.T) {
	// The clock never goes back. It follows jumps ahead, and keeps its pace after a jump was undone.
	wall := newClock()
	var c clock
	c.Start(wall.Now)
	at := c.Now()
	for _, step := range []struct{ wall, want time.Duration }{
		{time.Second, time.Second}, {-time.Hour, 0}, {time.Second, time.Second}, {time.Hour, time.Hour}, {time.Second, time.Second},
	} {
		wall.add(step.wall)
		now := c.Now()
		if got := time.Duration(now-at) * time.Millisecond; got != step.want {
			t.Errorf("%v of the wall clock are %v", step.wall, got)
		}
		at = now
	}
}
