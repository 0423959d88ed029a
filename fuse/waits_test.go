package fuse

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/namespace"
)

// slow is a tree of one file and its bytes: who waits by a context takes as long as it
// says, and a block that is held takes a device's time.
type slow struct {
	Tree
	pool        *hearth.Pool
	held        bool
	waits, disk time.Duration
	fails       error // of a Get, once it has waited
}

func (s *slow) wait(ctx context.Context) {
	if s.waits > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(s.waits):
		}
	}
}

func (s *slow) file() namespace.Node {
	return namespace.Node{ID: 2, Name: "f", TTL: time.Hour, Object: fakeObject("f", 1, 100)}
}

func (s *slow) Lookup(ctx context.Context, _ uint64, _ string) (namespace.Node, error) {
	s.wait(ctx)
	return s.file(), nil
}

func (s *slow) Get(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	if s.wait(ctx); s.disk > 0 {
		time.Sleep(s.disk)
	}
	if s.fails != nil {
		return nil, s.fails
	}
	return s.pool.Alloc(ctx, n)
}

func (s *slow) mounted(l *waits.Ledger) *fileSystem {
	f := newFileSystem(&Options{Root: rootID, Tree: s, Reads: s, FSName: "s3://b", Has: func(hearth.ID) bool { return s.held }, Events: Events{Waits: l}})
	f.news = newNews(nil, &newsOps{}) // nobody tells any
	return f
}

// read is a READ of the file by a thread.
func (f *fileSystem) readAs(thread uint32, buf []byte) gofuse.Status {
	in := &gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: 2, Caller: gofuse.Caller{Pid: thread}}}
	a, status := f.Read(nil, in, buf)
	if status == gofuse.OK {
		a.(*answer).Done()
	}
	return status
}

func TestWaitsAreCountedByTheirCause(t *testing.T) {
	// A look-up and READs: what waits for an origin is counted there, what a disk answers
	// there, what is held no more once, and what is answered at once nowhere.
	synctest.Test(t, func(t *testing.T) {
		l := waits.New()
		s := &slow{pool: hearth.NewPool(1 << 26), waits: 2 * time.Second}
		f := s.mounted(l)
		buf := make([]byte, 100)
		lookup := func() {
			if status := f.Lookup(nil, &gofuse.InHeader{NodeId: rootID, Caller: gofuse.Caller{Pid: 1}}, "f", &gofuse.EntryOut{}); status != gofuse.OK {
				t.Fatal(status)
			}
		}
		read := func(held bool, origin, disk time.Duration) {
			if s.held, s.waits, s.disk = held, origin, disk; f.readAs(1, buf) != gofuse.OK {
				t.Fatal("a READ failed")
			}
		}
		lookup()
		s.waits = 0
		lookup()
		read(false, 3*time.Second, 0)
		read(true, 0, time.Second)
		read(true, 5*time.Second, 0) // it was held no more
		read(true, 0, 0)
		want := map[string]float64{"origin": 8, "throttled": 0, "disk": 1, "list": 2}
		if got := l.Seconds(); !maps.Equal(got, want) {
			t.Errorf("waited %v, not %v", got, want)
		}
	})
}

func TestAReadThatFailedSlowlyAnswersForASecond(t *testing.T) {
	// A READ waits and fails; who asks within the next second hears the same at once, who asks
	// later waits again. One that failed quickly answers for nobody.
	synctest.Test(t, func(t *testing.T) {
		s := &slow{pool: hearth.NewPool(1 << 26), waits: 3 * time.Second, fails: errors.New("the origin is away")}
		f := s.mounted(waits.New())
		f.records.put(2, &record{node: s.file(), until: time.Now().Add(time.Hour)})
		buf := make([]byte, 100)
		takes := func(what string, want time.Duration) {
			t.Helper()
			began := time.Now()
			if status := f.readAs(1, buf); status != gofuse.EIO || time.Since(began) != want {
				t.Errorf("%s: %v after %v, not after %v", what, status, time.Since(began), want)
			}
		}
		takes("the first", 3*time.Second)
		takes("at once", 0)
		time.Sleep(askAgain - time.Millisecond)
		takes("just within a second", 0)
		time.Sleep(time.Millisecond)
		takes("a second later", 3*time.Second)
		time.Sleep(askAgain)
		s.waits = longWait / 2
		takes("a quick failure", longWait/2)
		takes("after that", longWait/2)
		s.fails = nil
		if status := f.readAs(1, buf); status != gofuse.OK {
			t.Errorf("once the origin is back: %v", status)
		}
	})
}

// BenchmarkHeldRead is a READ of 100 bytes that this node holds, in memory: the least that
// the looks at the clock can be a part of.
func BenchmarkHeldRead(b *testing.B) {
	s := &slow{pool: hearth.NewPool(1 << 26), held: true}
	f := s.mounted(waits.New())
	f.records.put(2, &record{node: s.file(), until: time.Now().Add(time.Hour)})
	buf := make([]byte, 100)
	for b.Loop() {
		f.readAs(1, buf)
	}
}
