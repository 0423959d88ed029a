package object

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// clock is a time that tests set.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time { return time.Unix(1_700_000_000, c.now.Load()) }

func (c *clock) pass(d time.Duration) { c.now.Add(int64(d)) }

func TestOneHeadForAllWhoWantIt(t *testing.T) {
	// Hundreds of clients ask for a version at once, and the first of them goes away. The origin is
	// asked once, and all others are answered.
	k := newBucket(t)
	k.wait, k.begun = make(chan struct{}), make(chan struct{}, 1)
	s := serve(t, k, Options{})
	o := object("shared", 100)
	ctx, leave := context.WithCancel(t.Context())
	var first, others sync.WaitGroup
	first.Go(func() {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/b/k", nil)
		if answered, _, err := s.Serve(httptest.NewRecorder(), r, o); answered || !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v, %v", answered, err)
		}
	})
	<-k.begun
	var asking atomic.Int64
	for i := range 200 {
		others.Go(func() {
			asking.Add(1)
			if w := s.get(o, []string{http.MethodGet, http.MethodHead}[i%2]); w.Code != http.StatusOK {
				t.Errorf("%d", w.Code)
			}
		})
	}
	if !hearthtest.Eventually(t.Context(), 10*time.Second, func() bool { return asking.Load() == 200 && s.asking.Flying(s.keyOf(o)) }) {
		t.Fatal("nobody asks")
	}
	leave()
	first.Wait()
	close(k.wait)
	others.Wait()
	// A client that came between the end of the first attempt and the others' may have begun a
	// second one. There cannot be more.
	if n := k.heads.Load(); n > 2 {
		t.Errorf("%d HEADs", n)
	}
	if x := s.Stats(); x.Entries != 1 || x.Asks != k.heads.Load() || x.Bytes == 0 {
		t.Errorf("%+v", x)
	}
}

func TestHeadersAge(t *testing.T) {
	// Headers are believed as long as their link says: for ever, a while, not at all. Those that
	// change without a new version are believed a minute at most. A forgotten or rewritten object
	// is asked for at once.
	for _, x := range []struct {
		fresh time.Duration
		extra http.Header
		asks  [4]int64 // after: two reads, 50 s, 20 s, a year
	}{
		{-1, nil, [4]int64{1, 1, 1, 1}},
		{-1, http.Header{"X-Amz-Tagging-Count": {"1"}}, [4]int64{1, 1, 2, 3}},
		{time.Minute, nil, [4]int64{1, 1, 2, 3}},
		{time.Hour, http.Header{"X-Amz-Expiration": {"x"}}, [4]int64{1, 1, 2, 3}},
		{time.Hour, nil, [4]int64{1, 1, 1, 2}},
		{0, nil, [4]int64{2, 3, 4, 5}},
	} {
		k, c := newBucket(t), &clock{}
		k.extra = x.extra
		s := serve(t, k, Options{Now: c.Now, Fresh: func(string) time.Duration { return x.fresh }})
		o := object("ages", 10)
		s.get(o, http.MethodGet)
		for i, d := range []time.Duration{0, 50 * time.Second, 20 * time.Second, 365 * 24 * time.Hour} {
			c.pass(d)
			s.get(o, http.MethodGet)
			if n := k.heads.Load(); n != x.asks[i] {
				t.Errorf("fresh %v with %v: %d HEADs in step %d, want %d", x.fresh, x.extra, n, i, x.asks[i])
			}
		}
		if kept := s.Stats().Entries; (kept == 0) != (x.fresh == 0) {
			t.Errorf("fresh %v: %d kept", x.fresh, kept)
		}
		n := k.heads.Load()
		s.Changed(o.Key)
		s.get(o, http.MethodGet)
		rewritten := *o
		rewritten.ModTime = o.ModTime.Add(time.Second)
		s.get(&rewritten, http.MethodGet)
		if k.heads.Load() != n+2 {
			t.Errorf("fresh %v: %d HEADs after it was forgotten and rewritten", x.fresh, k.heads.Load()-n)
		}
	}
}

func TestHeadersOfAnOriginThatIsAway(t *testing.T) {
	// While the origin is away, old headers are used, and it is asked again after ten seconds. Any
	// other error passes the request, and a change forgets the headers.
	errAway := errors.New("away")
	k, c := newBucket(t), &clock{}
	s := serve(t, k, Options{Now: c.Now, Away: func(err error) bool { return errors.Is(err, errAway) }})
	o := object("away", 10)
	for _, step := range []struct {
		pass  time.Duration
		fails error
		code  int
		heads int64
	}{
		{0, errAway, 599, 1}, // nothing is known yet
		{0, nil, 200, 2},
		{time.Hour, errAway, 200, 3},
		{9 * time.Second, errAway, 200, 3},
		{2 * time.Second, errAway, 200, 4},
		{time.Hour, errBroken, 599, 5},
		{0, nil, 200, 6},
		{time.Hour, hearth.ErrStale, 599, 7},
		{0, errAway, 599, 8},
	} {
		c.pass(step.pass)
		k.fail(step.fails)
		if w := s.get(o, http.MethodGet); w.Code != step.code || k.heads.Load() != step.heads {
			t.Errorf("%+v: %d, %d HEADs", step, w.Code, k.heads.Load())
		}
	}
}

func TestHeadersWithinTheirBudget(t *testing.T) {
	// Many goroutines ask for thousands of versions. The headers stay within the budget, and the
	// last used stay. The Pool counts them and has all back at the end. Without memory answers go
	// on and nothing is kept.
	k := newBucket(t)
	k.extra = http.Header{"X-Amz-Meta-Fill": {strings.Repeat("x", 500)}}
	const budget = 64 << 10
	s := serve(t, k, Options{HeaderBytes: budget})
	hot := object("hot", 0)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 500 {
				s.get(object(fmt.Sprint(g, "/", i), 0), http.MethodHead)
				if w := s.get(hot, http.MethodHead); w.Code != http.StatusOK {
					t.Errorf("%d", w.Code)
				}
				if _, bytes := s.known.size(); bytes > budget {
					t.Errorf("%d bytes", bytes)
				}
			}
		})
	}
	all.Wait()
	x := s.Stats()
	p := k.pool.Stats()
	if x.Entries < 32 || p.Used-p.Idle != x.Bytes {
		t.Errorf("%+v, %d bytes in the Pool", x, p.Used-p.Idle)
	}
	if x.Hits < 3980 {
		t.Errorf("what is used all the time was dropped: %+v", x)
	}
	s.known.close()
	if n := k.pool.Stats().Budget - k.pool.Stats().Used + k.pool.Stats().Idle; !k.pool.Reserve(n) {
		t.Fatal("the Pool is not empty")
	} else {
		defer k.pool.Unreserve(n)
	}
	if w := s.get(hot, http.MethodHead); w.Code != http.StatusOK || s.Stats().Entries != 0 {
		t.Errorf("without memory: %d, %+v", w.Code, s.Stats())
	}
}

func BenchmarkKnown(b *testing.B) {
	// All cores look up remembered headers, and write them.
	k := newBucket(b)
	s := serve(b, k, Options{})
	o := object("known", 100)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			t, err := s.headers(b.Context(), o)
			if err != nil {
				b.Fatal(err)
			}
			t.render(http.Header{}, kindPlain|kindShort)
		}
	})
}

func TestHeadersOnTheirWayWhenTheyChange(t *testing.T) {
	// A HEAD is in flight when the object's tags are changed. Its answer may be older than the
	// change, so the next client asks again, and then all is remembered as before.
	for name, change := range map[string]func(*Server, *hearth.Object){
		"of the key": func(s *Server, o *hearth.Object) { s.Changed(o.Key) }, "of all": func(s *Server, _ *hearth.Object) { s.AllChanged() },
	} {
		k := newBucket(t)
		k.wait, k.begun = make(chan struct{}), make(chan struct{}, 4)
		s := serve(t, k, Options{Fresh: func(string) time.Duration { return -1 }})
		o := object("tagged", 10)
		done := make(chan struct{})
		go func() { // ends when the HEAD does
			defer close(done)
			s.get(o, http.MethodGet)
		}()
		<-k.begun
		change(s.Server, o)
		close(k.wait)
		<-done
		for range 2 {
			s.get(o, http.MethodGet)
		}
		if n := k.heads.Load(); n != 2 {
			t.Errorf("a change %s: %d HEADs", name, n)
		}
	}
}
