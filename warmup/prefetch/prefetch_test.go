package prefetch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeStore is a store before an origin that answers after latency. It counts, and can be
// full, fall behind or fail.
type fakeStore struct {
	mu      sync.Mutex // guards the rest
	held    map[hearth.ID]bool
	flying  map[hearth.ID]chan struct{}
	slow    bool // begun is called late
	most    int  // how many were in flight at once
	asked   map[hearth.ID]int
	room    int // how many more objects it takes; < 0 means any number
	declare bool
	oldest  time.Time // when the object that a full store would evict was last used; zero means that it evicts none
	behind  bool
	fail    error
	latency time.Duration

	elsewhere             bool // all of it is held where Has does not know of it
	questions, questioned int  // of Held, and blocks in them
}

func newFakeStore() *fakeStore {
	return &fakeStore{held: map[hearth.ID]bool{}, flying: map[hearth.ID]chan struct{}{}, asked: map[hearth.ID]int{}, room: -1, declare: true, latency: 20 * time.Millisecond}
}

func (s *fakeStore) Has(id hearth.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[id]
}

func (s *fakeStore) Fetching(id hearth.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flying[id] != nil
}

func (s *fakeStore) Held(_ context.Context, blocks []hearth.Block) func(hearth.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.questions++
	s.questioned += len(blocks)
	if s.elsewhere {
		return func(hearth.ID) bool { return true }
	}
	return s.Has
}

// Takes says that a full store is full, unless prefetch is to find that out.
func (s *fakeStore) Takes(_ hearth.Block, since time.Time) (would, soon bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room != 0 || !s.declare || s.yieldsLocked(since), !s.behind
}

func (s *fakeStore) yieldsLocked(since time.Time) bool {
	return !s.oldest.IsZero() && s.oldest.Before(since)
}

func (s *fakeStore) Fill(ctx context.Context, b hearth.Block, begun func()) error {
	s.mu.Lock()
	id := b.ID()
	if other := s.flying[id]; other != nil || s.held[id] {
		s.mu.Unlock()
		if other != nil {
			<-other
		}
		return nil
	}
	done := make(chan struct{})
	s.flying[id] = done
	s.asked[id]++
	s.most = max(s.most, len(s.flying))
	slow := s.slow
	s.mu.Unlock()
	if slow {
		time.Sleep(time.Millisecond)
	}
	begun()
	var err error
	select {
	case <-time.After(s.latency):
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flying, id)
	close(done)
	if err == nil {
		err = s.fail
	}
	if err == nil && (s.room != 0 || !s.oldest.IsZero()) {
		s.held[id] = true
		if s.room > 0 {
			s.room--
		}
	}
	return err
}

// rig has readers of the fake store, and what prefetch hears of them.
type rig struct {
	*fakeStore
	*Prefetch
	dirs      map[string][]hearth.Object
	used      int64 // of the memory
	throttled atomic.Int64
	others    atomic.Int64 // connections in use by others
}

// Page gives a few names at a time.
func (r *rig) Page(_ context.Context, _, prefix, after string) (page []hearth.Object, next string, err error) {
	for _, o := range r.dirs[prefix] {
		if o.Key > after {
			page = append(page, o)
		}
		if len(page) == 100 {
			return page, o.Key, nil
		}
	}
	return page, "", nil
}

func newRig(dirs, files int) *rig {
	r := &rig{fakeStore: newFakeStore(), dirs: map[string][]hearth.Object{}}
	for d := range dirs {
		dir := fmt.Sprintf("t/%04d/", d)
		for i := range files {
			r.dirs[dir] = append(r.dirs[dir], *object(dir, i, 100_000))
		}
	}
	r.Prefetch = New(Options{Store: r.fakeStore, Names: r, Memory: 256 << 20,
		Reserve: func(n int64) bool { r.used += n; return true }, Unreserve: func(n int64) { r.used -= n },
		Connections: func(string) (int, int) {
			r.fakeStore.mu.Lock()
			defer r.fakeStore.mu.Unlock()
			return len(r.flying) + int(r.others.Load()), 56
		},
		Throttled: r.throttled.Load})
	return r
}

func (r *rig) all() (all []*hearth.Object) {
	for _, objects := range r.dirs {
		for i := range objects {
			all = append(all, &objects[i])
		}
	}
	return all
}

// get is a READ of all of an object.
func (r *rig) get(o *hearth.Object) {
	held := r.Has(o.Block(0).ID())
	r.Read(o, int(o.Size), held)
	if !held {
		r.fakeStore.mu.Lock()
		other := r.flying[o.Block(0).ID()]
		r.fakeStore.mu.Unlock()
		if other != nil {
			<-other
		} else {
			_ = r.Fill(context.Background(), o.Block(0), func() {})
		}
		r.Came(o)
		return
	}
}

// epoch has so many readers share the objects, in some order.
func (r *rig) epoch(readers int, order []*hearth.Object) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(order)); i = next.Add(1) - 1 {
				r.get(order[i])
			}
		})
	}
	all.Wait()
}

// shuffled are all objects, in the order of a seed that is logged.
func (r *rig) shuffled(t *testing.T) []*hearth.Object {
	all := r.all()
	rand.New(rand.NewPCG(hearthtest.Seed(t), 5)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// once fails unless each object was asked for at most once.
func (r *rig) once(t *testing.T) {
	t.Helper()
	for id, n := range r.asked {
		if n != 1 {
			t.Errorf("%v was asked for %d times", id, n)
		}
	}
}

// end is the end of a test: nothing is in use any more.
func (r *rig) end(t *testing.T) {
	t.Helper()
	r.Close()
	if s := r.Stats(); s.Bytes != s.ReadBytes+s.WastedBytes+s.UnreadBytes || s.UnreadBytes < 0 {
		t.Errorf("the sums are wrong: %+v", s)
	}
	if r.Prefetch.pace.flying != 0 || r.Prefetch.walkers != 0 || r.used != 0 {
		t.Errorf("left behind: %+v, %d walkers, %d bytes of memory", r.Prefetch.pace, r.Prefetch.walkers, r.used)
	}
}

func TestARandomEpochIsAsFastAsADownloader(t *testing.T) {
	// Eight readers read a tree in random order, 20 ms away. Each object is asked for
	// once, and it takes much less time than eight requests at a time would. There are
	// never more requests than connections, and nothing is wasted in the end.
	for dirs, files := range map[int]int{1: 2000, 20: 100, 500: 4} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(dirs, files)
			r.slow = dirs == 20 // so that readers come between
			began := time.Now()
			r.epoch(8, r.shuffled(t))
			took := time.Since(began)
			r.once(t)
			best := 2000 / 64 * r.latency
			first := time.Duration(dirs/8) * r.latency // in each directory
			if took > 2*best+first || r.most > 56+8 || r.most < 32 || len(r.asked) != 2000 {
				t.Errorf("%d directories: %v, a downloader takes %v; %d at once, %d asked for", dirs, took, best, r.most, len(r.asked))
			}
			time.Sleep(silence + 2*watchEvery)
			if s := r.Stats(); s.WastedBytes != 0 || s.UnreadBytes != 0 || s.ReadBytes != s.Bytes || s.Files < 1000 || s.Areas != 0 || r.used != 0 {
				t.Errorf("%d directories: %+v, %d bytes of memory", dirs, s, r.used)
			}
			r.end(t)
		})
	}
}

func TestWhatIsHeldElsewhereIsAskedForOnce(t *testing.T) {
	// Of a tree that other nodes hold nothing is brought. Each of its names is asked
	// about once, many at a time.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(20, 150) // two pages each
		r.elsewhere = true
		r.epoch(8, r.shuffled(t))
		r.once(t)
		time.Sleep(silence + 2*watchEvery)
		if s := r.Stats(); s.Files != 0 || s.Bytes != 0 || r.questions != 40 || r.questioned != 3000 {
			t.Errorf("%+v, %d questions for %d blocks", s, r.questions, r.questioned)
		}
		r.end(t)
	})
}

func TestInOrderNothingIsBrought(t *testing.T) {
	// Readers in order, and a mount without prefetch, bring what they read and no more.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 500)
		var order []*hearth.Object
		for i := range 300 {
			order = append(order, &r.dirs["t/0000/"][i])
		}
		r.epoch(4, order)
		for _, o := range r.shuffled(t)[:200] {
			if r.Used(o, false) {
				t.Error("something was brought")
			}
		}
		if s := r.Stats(); len(r.asked) != 300 || s != (Stats{}) {
			t.Errorf("%d asked for, %+v", len(r.asked), s)
		}
		r.end(t)
	})
}

func TestWhoStopsReading(t *testing.T) {
	// A reader stops after some files. At most sixteen times what it read is brought. 30
	// s later that is wasted, and its memory is given back. Prefetch begins there again
	// only after an hour.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 3000)
		order := r.shuffled(t)
		r.epoch(1, order[:64])
		time.Sleep(silence - 2*time.Second)
		s := r.Stats()
		if s.Areas != 1 || s.UnreadBytes == 0 || s.UnreadBytes > aheadOfReaders*64*100_000 || s.WastedBytes != 0 {
			t.Errorf("before: %+v", s)
		}
		time.Sleep(2*time.Second + 2*watchEvery)
		if is := r.Stats(); is.Areas != 0 || is.WastedBytes != s.UnreadBytes || is.UnreadBytes != 0 || r.used != 0 {
			t.Errorf("after: %+v, before: %+v, %d bytes of memory", is, s, r.used)
		}
		brought := len(r.asked)
		r.epoch(8, order[1500:1700])
		if s := r.Stats(); len(r.asked) > brought+200 || s.Areas != 0 {
			t.Errorf("it goes on: %+v", s)
		}
		time.Sleep(distrust)
		r.epoch(8, order[1700:2000])
		if s := r.Stats(); s.Areas != 1 {
			t.Errorf("an hour later: %+v", s)
		}
		r.end(t)
	})
}

func TestReadersGoFirst(t *testing.T) {
	// While others have all connections, the disk is behind or the memory is used,
	// nothing begins. Once they are free it does. An origin that throttles halves the
	// number of requests.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 3000)
		r.others.Store(56)
		order := r.shuffled(t)
		r.epoch(1, order[:64])
		quiet := func(what string) {
			t.Helper()
			before := r.Stats().Files
			time.Sleep(time.Second)
			if n := r.Stats().Files; n != before {
				t.Errorf("%s: %d files were brought", what, n-before)
			}
		}
		if r.Stats().Areas != 1 {
			t.Fatal("nothing is to be brought")
		}
		quiet("others have the connections")
		r.fakeStore.mu.Lock()
		r.behind = true
		r.fakeStore.mu.Unlock()
		r.others.Store(0)
		quiet("the disk is behind")
		r.fakeStore.mu.Lock()
		r.behind, r.most = false, 0
		r.fakeStore.mu.Unlock()
		for range 5 {
			r.throttled.Add(1)
			time.Sleep(paceEvery + askAgain)
			r.fakeStore.mu.Lock()
			if len(r.flying) > mostRequests/2 {
				t.Errorf("%d in flight for an origin that asks to slow down", len(r.flying))
			}
			r.fakeStore.mu.Unlock()
		}
		time.Sleep(20 * time.Second)
		if r.Stats().Files == 0 {
			t.Error("nothing was brought after all")
		}
		r.end(t)
	})
}

func TestPace(t *testing.T) {
	// Requests are halved when an origin asks to slow down, at most once an interval,
	// down to one. They grow back two seconds later.
	c, now := newPace(), time.Unix(1, 0)
	c.look(5, now) // from before
	for _, x := range []struct {
		after     time.Duration
		throttled int64
		most      int
	}{{paceEvery, 5, 128}, {paceEvery, 6, 64}, {paceEvery / 2, 9, 64}, {paceEvery / 2, 9, 32}, {time.Second, 9, 32}, {restAfter, 9, 40}, {paceEvery, 9, 50}, {paceEvery, 10, 25}} {
		now = now.Add(x.after)
		if c.look(x.throttled, now); c.most != x.most {
			t.Fatalf("%+v: %d", x, c.most)
		}
	}
	for i := range 10 {
		now = now.Add(paceEvery)
		c.look(int64(11+i), now)
	}
	if c.most != 1 {
		t.Errorf("down to %d", c.most)
	}
}

func TestAFullStore(t *testing.T) {
	// A full store gets nothing more, whether it says that it is full or declines what
	// was fetched. What was declined is wasted. What is held may still be read.
	for _, declares := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(1, 3000)
			r.room, r.declare = 200, declares
			order := r.shuffled(t)
			r.epoch(8, order[:300])
			time.Sleep(time.Second)
			s := r.Stats()
			if lost := s.WastedBytes / 100_000; s.Files == 0 || s.Files > 200+mostRequests+mostFailures || s.UnreadBytes == 0 || lost > mostRequests+mostFailures || !declares && lost == 0 {
				t.Errorf("declares %v: %+v", declares, s)
			}
			r.epoch(8, order[300:500])
			if is := r.Stats(); is.Files != s.Files || is.ReadBytes == s.ReadBytes {
				t.Errorf("declares %v: it goes on: %+v, was %+v", declares, is, s)
			}
			r.end(t)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 1000)
		r.room = 0
		r.epoch(8, r.shuffled(t)[:200])
		time.Sleep(time.Second)
		if s := r.Stats(); len(r.asked) != 200 || s.Files != 0 || s.Areas != 1 {
			t.Errorf("full from the start: %d asked for, %+v", len(r.asked), s)
		}
		r.end(t)
	})
}

func TestAFullStoreThatReplaces(t *testing.T) {
	// A prefetched block comes to a full store that evicts. It takes the place of a block
	// last used before the directory was read, and of no other.
	for _, later := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(10, 300)
			r.room, r.oldest = 0, time.Now()
			if later {
				r.oldest = time.Now().Add(time.Hour)
			}
			time.Sleep(time.Second)
			order := r.shuffled(t)
			r.epoch(8, order[:500])
			s := r.Stats()
			if (s.Files > 0) == later || s.Areas != 1 {
				t.Errorf("used later %v: %+v", later, s)
			}
			r.fakeStore.mu.Lock()
			r.oldest = time.Now().Add(-r.latency / 2) // all that is older has gone
			r.fakeStore.mu.Unlock()
			time.Sleep(time.Second)
			is := r.Stats()
			r.epoch(8, order[500:1000])
			if now := r.Stats(); now.Files > is.Files+mostWalkers || is.Files > s.Files+mostRequests {
				t.Errorf("it goes on: %+v, was %+v, before %+v", now, is, s)
			}
			r.end(t)
		})
	}
}

func TestAnEpochUsesFewOfWhatIsBroughtUntilItsEnd(t *testing.T) {
	// This is why an area does not end while less than half of what it brought is used.
	// Eight readers read 20,000 files in random order over 100 directories. Once half of
	// the set is there, they have used a few in a hundred of what was brought. When
	// nearly all is there, they have used less than half, and in the end all.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(100, 200)
		const all = 20_000
		shares := map[int]float64{}
		began, ended := time.Now(), make(chan struct{})
		go func() {
			defer close(ended)
			for seen := 0; seen < all; time.Sleep(10 * time.Millisecond) {
				r.fakeStore.mu.Lock()
				seen = len(r.asked)
				r.fakeStore.mu.Unlock()
				for _, part := range []int{4, 8, 15} { // sixteenths of the set
					if s := r.Stats(); shares[part] == 0 && seen >= all/16*part {
						shares[part] = float64(s.ReadBytes) / float64(s.Bytes)
					}
				}
			}
		}()
		r.epoch(8, r.shuffled(t))
		took, best := time.Since(began), all/64*r.latency
		<-ended
		t.Logf("used of what was brought: %.3f with a quarter of the set there, %.3f with half, %.3f with fifteen sixteenths; %v, a downloader takes %v", shares[4], shares[8], shares[15], took, best)
		if shares[4] == 0 || shares[4] > 0.1 || shares[8] > 0.2 || shares[15] > 0.5 {
			t.Errorf("used of what was brought, by sixteenths of the set: %v", shares)
		}
		if s := r.Stats(); took > 3*best/2 || s.ReadBytes != s.Bytes || s.WastedBytes != 0 || s.Files < all/2 {
			t.Errorf("%v, a downloader takes %v; %+v", took, best, s)
		}
		r.once(t)
		r.end(t)
	})
}

func TestAFailingOrigin(t *testing.T) {
	// An origin that fails is asked some times. Then it is asked no more, until somebody
	// reads there again after a silence. The sums stay right.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 3000)
		order := r.shuffled(t)
		r.epoch(1, order[:64])
		r.fakeStore.mu.Lock()
		r.fail = errors.New("out of order")
		r.fakeStore.mu.Unlock()
		r.epoch(1, order[64:80])
		time.Sleep(5 * time.Second)
		r.fakeStore.mu.Lock()
		asked := len(r.asked)
		r.fakeStore.mu.Unlock()
		time.Sleep(5 * time.Second)
		r.fakeStore.mu.Lock()
		if len(r.asked) != asked {
			t.Errorf("%d objects more are asked for", len(r.asked)-asked)
		}
		r.fakeStore.mu.Unlock()
		r.end(t)
	})
}

func TestEvictedUnread(t *testing.T) {
	// What is evicted before anybody reads it is wasted, and ends the area.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 1000)
		order := r.shuffled(t)
		r.epoch(1, order[:64])
		time.Sleep(time.Second)
		r.fakeStore.mu.Lock()
		clear(r.held)
		r.fakeStore.mu.Unlock()
		brought := r.Stats()
		r.epoch(8, order[64:])
		time.Sleep(2 * watchEvery)
		if s := r.Stats(); s.WastedBytes == 0 || s.Areas != 0 || s.Bytes != brought.Bytes {
			t.Errorf("%+v, before %+v", s, brought)
		}
		r.end(t)
	})
}

func TestAHitCostsNothing(t *testing.T) {
	// A READ of what is held allocates nothing, whether something was prefetched or not.
	// Neither does the first READ of what was prefetched.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 1000)
		order := r.shuffled(t)
		hit := func(what string, next func() *hearth.Object) {
			t.Helper()
			if n := testing.AllocsPerRun(100, func() { r.Read(next(), 1, true) }); n != 0 {
				t.Errorf("%s: %v allocations", what, n)
			}
		}
		same := func() *hearth.Object { return order[0] }
		hit("nothing brought", same)
		r.epoch(1, order[:64])
		time.Sleep(time.Second)
		if r.Stats().UnreadBytes == 0 {
			t.Fatal("nothing was brought")
		}
		hit("another was brought", same)
		i := 64
		hit("it was brought", func() *hearth.Object { i++; return order[i] })
		r.end(t)
	})
}

func TestWithoutMemory(t *testing.T) {
	// Without memory to note what was brought, nothing is brought.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 1000)
		r.o.Reserve = func(int64) bool { return false }
		r.epoch(8, r.shuffled(t)[:200])
		if s := r.Stats(); s != (Stats{}) || len(r.asked) != 200 {
			t.Errorf("%+v, %d asked for", s, len(r.asked))
		}
		r.end(t)
	})
}

func TestLittleMemory(t *testing.T) {
	// With little memory, one request is in flight at a time. No more objects are unread
	// than the table has words for.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(1, 1000)
		r.o.Memory = 1 << 20
		r.epoch(1, r.shuffled(t)[:64])
		r.fakeStore.mu.Lock()
		r.most = 0
		r.fakeStore.mu.Unlock()
		time.Sleep(20 * time.Second)
		if s, words := r.Stats(), int64(leastSets*ways/4); r.most != 1 || s.UnreadBytes != words*100_000 || r.used != leastSets*ways*8 {
			t.Errorf("%d at once, %+v, %d words, %d bytes of memory", r.most, s, words, r.used)
		}
		r.end(t)
	})
}

func TestCloseInTheMidst(t *testing.T) {
	// A node that ends while directories are filled waits for what is in flight, and
	// leaves nothing.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(20, 500)
		order := r.shuffled(t)
		r.epoch(8, order[:100])
		r.end(t)
		r.get(order[200])
		if len(r.flying) != 0 {
			t.Errorf("%d are flying", len(r.flying))
		}
	})
}
