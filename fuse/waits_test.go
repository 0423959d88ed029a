package fuse

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/namespace"
)

// slow is a tree of one file and its bytes: who waits by a context takes as long as it
// says, and a block that is held takes a device's time.
type slow struct {
	Tree
	pool        *hearth.Pool
	held        bool
	gone        bool  // a Get finds that it is held no more
	size        int64 // of the file in bytes; 0: 100
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
	return namespace.Node{ID: 2, Name: "f", TTL: time.Hour, Object: fakeObject("f", 1, cmp.Or(s.size, 100))}
}

func (s *slow) Lookup(ctx context.Context, _ uint64, _ string) (namespace.Node, error) {
	s.wait(ctx)
	return s.file(), nil
}

func (s *slow) Get(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) {
	if s.gone {
		s.held = false
	}
	if s.wait(ctx); s.disk > 0 {
		time.Sleep(s.disk)
	}
	if s.fails != nil {
		return nil, s.fails
	}
	return s.pool.Alloc(ctx, n)
}

func (s *slow) mounted(l *waits.Ledger) *fileSystem {
	f := newFileSystem(&Options{Root: rootID, Tree: s, Reads: reads(s), FSName: "s3://b", Reader: cache.ReaderOptions{Has: func(hearth.ID) bool { return s.held }}, Events: Events{Waits: l}})
	f.news = newNews(nil, &newsOps{}) // nobody tells any
	return f
}

// read is a READ of the file by a thread.
func (f *fileSystem) readAs(thread uint32, buf []byte) gofuse.Status {
	return f.readAt(thread, 0, buf)
}

func (f *fileSystem) readAt(thread uint32, off uint64, buf []byte) gofuse.Status {
	in := &gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: 2, Caller: gofuse.Caller{Pid: thread}}, Offset: off}
	a, status := f.Read(nil, in, buf)
	if status == gofuse.OK {
		a.(*answer).Done()
	}
	return status
}

func TestWaitsAreCountedByTheirCause(t *testing.T) {
	// A look-up and READs: what waits for an origin is counted there, what a disk answers
	// there, also what it brings into memory meanwhile, what is held no more once, and what
	// is answered at once nowhere.
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
		read(true, 7*time.Second, 0)
		s.gone = true
		read(true, 5*time.Second, 0)
		s.gone = false
		read(true, 0, 0)
		want := map[string]float64{"origin": 8, "throttled": 0, "volume": 0, "disk": 8, "list": 2}
		if got := l.Seconds(); !maps.Equal(got, want) {
			t.Errorf("waited %v, not %v", got, want)
		}
	})
}

func TestReadAheadWaitsForADiskOnce(t *testing.T) {
	// The kernel reads ahead in a large file that a slow disk holds: eight READs of a thread
	// at a time, each behind the one before, and another thread's one. Each thread has
	// waited once, at any moment.
	synctest.Test(t, func(t *testing.T) {
		l := waits.New()
		s := &slow{pool: hearth.NewPool(1 << 26), held: true, size: 12 << 20, disk: 4 * time.Second}
		f := s.mounted(l)
		defer f.readers.close()
		f.records.put(2, &record{node: s.file(), until: time.Now().Add(time.Hour)})
		waited := func(when string, disk float64) {
			t.Helper()
			want := map[string]float64{"origin": 0, "throttled": 0, "volume": 0, "disk": disk, "list": 0}
			if got := l.Seconds(); !maps.Equal(got, want) {
				t.Errorf("%s: waited %v, not %v", when, got, want)
			}
		}
		var reads sync.WaitGroup
		read := func(thread uint32, off uint64) {
			reads.Go(func() {
				if status := f.readAt(thread, off, make([]byte, 256<<10)); status != gofuse.OK {
					t.Error(status)
				}
			})
		}
		read(2, 11<<20)
		for i := range uint64(8) {
			read(1, i<<20)
			time.Sleep(time.Second / 2)
		}
		waited("after 4 s", 4+4)
		time.Sleep(time.Second)
		waited("a second later", 5+4)
		reads.Wait()
		waited("at the end", 7.5+4)
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
