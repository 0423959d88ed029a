package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestCrowd(t *testing.T) {
	// Hundreds of clients read ranges of small and large objects at once, with the smallest Pool.
	// Each gets exactly its bytes, and at the end no memory is held.
	s := serve(t, newBucket(t), Options{})
	var objects []*hearth.Object
	mux := map[string]http.Handler{}
	for _, size := range []int64{0, 16 << 10, 300_000, hearth.BlockSize, 2*hearth.BlockSize + 77} {
		o := object(fmt.Sprint("/crowd/", size), size)
		objects, mux[o.Key] = append(objects, o), s.handle(o)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mux[r.URL.Path].ServeHTTP(w, r) }))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for g := range 200 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 7))
			for range 3 {
				o := objects[random.IntN(len(objects))]
				off, n := int64(0), o.Size
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+o.Key, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if random.IntN(2) == 0 && o.Size > 0 {
					off = random.Int64N(o.Size)
					n = 1 + random.Int64N(o.Size-off)
					r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
				}
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				p, err := drain(t, resp.Body)
				if err != nil || int64(len(p)) != n || !bytes.Equal(p, content(o, off, n)) {
					t.Errorf("%s %d+%d: %d, %d bytes, %v", o.Key, off, n, resp.StatusCode, len(p), err)
				}
			}
		})
	}
	all.Wait()
	for _, err := range s.errs() {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestChangedBeforeTheFirstByte(t *testing.T) {
	// An object that is found changed or unreadable before anything is written passes, whether a
	// HEAD or a read finds it.
	for _, size := range []int64{1000, 3 * hearth.BlockSize} {
		for _, err := range []error{hearth.ErrStale, errBroken} {
			k := newBucket(t)
			s := serve(t, k, Options{})
			o := object("changed", size)
			k.failAt = map[int64]error{0: err}
			if w := s.get(o, http.MethodGet); w.Code != 599 || !errors.Is(s.errs()[0], err) {
				t.Errorf("a read of %d: %d, %v", size, w.Code, s.errs())
			}
			s.Changed(o.Key)
			k.fail(err)
			if w := s.get(o, http.MethodHead); w.Code != 599 || !errors.Is(s.errs()[1], err) {
				t.Errorf("a HEAD: %d, %v", w.Code, s.errs())
			}
		}
	}
}

func TestChangedInTheMidst(t *testing.T) {
	// An object is found changed after a part of it was sent. The client gets an error and not an
	// end, over HTTP/1.1 and HTTP/2, with a reader and without. The caller learns why.
	for _, two := range []bool{false, true} {
		for _, how := range ways() {
			k := newBucket(t)
			k.failAt = map[int64]error{2: hearth.ErrStale}
			s := serve(t, k, Options{})
			s.read(how)
			o := object("midst", 4*hearth.BlockSize)
			server := httptest.NewUnstartedServer(s.handle(o))
			server.EnableHTTP2 = two
			server.StartTLS()
			resp, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			p, err := drain(t, resp.Body)
			if err == nil || len(p) > 2*hearth.BlockSize || !bytes.Equal(p, content(o, 0, int64(len(p)))) || resp.ProtoMajor != map[bool]int{false: 1, true: 2}[two] {
				t.Errorf("HTTP/2 %v: %d bytes, %v", two, len(p), err)
			}
			server.Close()
			if errs := s.errs(); len(errs) != 1 || !errors.Is(errs[0], hearth.ErrStale) || errors.Is(errs[0], ErrGone) {
				t.Errorf("HTTP/2 %v: %v", two, errs)
			}
		}
	}
}

func TestCutConnectionIsNotUsedAgain(t *testing.T) {
	// A second request waits on the connection behind an answer that was cut. It is not answered,
	// so that nothing can be taken for the rest of the first answer.
	k := newBucket(t)
	k.failAt = map[int64]error{1: errBroken}
	s := serve(t, k, Options{})
	server := httptest.NewServer(s.handle(object("again", 2*hearth.BlockSize)))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	const ask = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	if _, err := fmt.Fprint(c, ask+ask); err != nil {
		t.Fatal(err)
	}
	p, _ := drain(t, c) // ends by EOF or by a reset
	if n := bytes.Count(p, []byte("HTTP/1.1")); n != 1 || len(p) > hearth.BlockSize+4096 {
		t.Errorf("%d answers in %d bytes", n, len(p))
	}
}

func TestStalledClient(t *testing.T) {
	// A client that takes nothing is cut off after StallAfter, and what it held is released, while
	// another client is served. That holds whether or not its connection can be asked for room.
	for _, asked := range []bool{false, true} {
		k := newBucket(t)
		s := serve(t, k, Options{StallAfter: 200 * time.Millisecond})
		o := object("stalled", 64*hearth.BlockSize)
		server := httptest.NewUnstartedServer(s.handle(o))
		if asked {
			server.Config.ConnContext = OnConnection
		}
		server.Start()
		defer server.Close()
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if w := s.get(o, http.MethodGet, "Range", "bytes=100-199"); w.Code != http.StatusPartialContent || !bytes.Equal(w.Body.Bytes(), content(o, 100, 100)) {
			t.Errorf("beside it: %d", w.Code)
		}
		if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return len(s.errs()) == 2 }) {
			t.Fatal("it was not cut off")
		}
		if errs := s.errs(); !errors.Is(errs[1], ErrGone) && !errors.Is(errs[0], ErrGone) {
			t.Errorf("%v", errs)
		}
		hearthtest.CheckViews(t, k.pool)
		if n, err := io.Copy(io.Discard, c); err == nil && n >= o.Size {
			t.Errorf("it got %d bytes", n)
		}
	}
}

func TestClientThatGoes(t *testing.T) {
	// A client that closes its connection within the answer ends the answer.
	s := serve(t, newBucket(t), Options{})
	server := httptest.NewServer(s.handle(object("goes", 64*hearth.BlockSize)))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return len(s.errs()) == 1 }) || !errors.Is(s.errs()[0], ErrGone) {
		t.Errorf("%v", s.errs())
	}
}

// taker is a client whose pace a test sets. It keeps the deadlines that were set.
type taker struct {
	*httptest.ResponseRecorder
	pace     func(n int) // called for each piece
	deadline time.Time
	flushes  int
}

func (c *taker) Write(p []byte) (int, error) {
	if c.deadline.IsZero() || time.Until(c.deadline) > stallDefault {
		panic(fmt.Sprintf("written with the deadline %v", c.deadline))
	}
	c.pace(len(p))
	if time.Now().After(c.deadline) {
		return 0, context.DeadlineExceeded
	}
	return c.ResponseRecorder.Write(p)
}

func (c *taker) SetWriteDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *taker) FlushError() error {
	if c.deadline.IsZero() {
		panic("flushed without a deadline")
	}
	c.flushes++
	return nil
}

func TestSlowClientHoldsLittle(t *testing.T) {
	// A client becomes slow, and its connection cannot be asked for room. The rest of its block is
	// released, and it gets copies, 64 KiB at a time, until it is quick again. Pieces are never
	// larger than 256 KiB. At the end no deadline is left on the connection.
	for _, how := range ways() {
		synctest.Test(t, func(t *testing.T) {
			k := newBucket(t)
			s := serve(t, k, Options{})
			s.read(how)
			o := object("slow", 5*hearth.BlockSize+1000)
			c := &taker{ResponseRecorder: httptest.NewRecorder()}
			var pieces []int
			c.pace = func(n int) {
				pieces = append(pieces, n)
				if i := len(pieces); i > 2 && i < 30 {
					time.Sleep(time.Second)
				}
				if i := len(pieces); i > 3 && i < 30 {
					if p := k.pool.Stats(); n > pieceSlow || p.Views != 0 || p.Used-p.Idle > 4096 {
						t.Errorf("piece %d of %d bytes: %d Views, %d bytes", i, n, p.Views, p.Used-p.Idle)
					}
				}
			}
			answered, n, err := s.Serve(c, httptest.NewRequest(http.MethodGet, "/", nil), o)
			if !answered || n != o.Size || err != nil || !bytes.Equal(c.Body.Bytes(), content(o, 0, o.Size)) {
				t.Errorf("%v, %d bytes, %v", answered, n, err)
			}
			most := 0
			for _, n := range pieces[30:] {
				most = max(most, n)
			}
			if pieces[0] != pieceFirst || pieces[1] != pieceMost || most != pieceMost {
				t.Errorf("%v", pieces)
			}
			if !c.deadline.IsZero() || c.flushes != 1 {
				t.Errorf("deadline %v, %d flushes", c.deadline, c.flushes)
			}
			s.Close()
		})
	}
}

func TestManySlowClients(t *testing.T) {
	// A hundred slow clients hold no more than their share of the smallest Pool, and all get their
	// whole answer.
	synctest.Test(t, func(t *testing.T) {
		k := newBucket(t)
		s := serve(t, k, Options{})
		o := object("many", hearth.BlockSize+hearth.BlockSize/2)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				c := &taker{ResponseRecorder: httptest.NewRecorder(), pace: func(int) {
					// Half of it with what is being read; the figures are read one after the other, while others take and give back.
					if p := k.pool.Stats(); p.Used-p.Idle-s.Stats().Bytes > p.Budget*5/8 {
						t.Errorf("%d bytes are lent", p.Used-p.Idle)
					}
					time.Sleep(time.Second)
				}}
				if _, n, err := s.Serve(c, httptest.NewRequest(http.MethodGet, "/", nil), o); n != o.Size || err != nil {
					t.Errorf("%d, %v", n, err)
				}
			})
		}
		all.Wait()
		s.Close()
	})
}

func TestOneReadForASmallObject(t *testing.T) {
	// A range within one block is one Get, and opens no reader. A HEAD reads no bytes.
	k := newBucket(t)
	var gets []int
	k.gets = func(off, n int) { gets = append(gets, off, n) }
	s := serve(t, k, Options{})
	s.o.Open = nil
	s.slow = time.Hour // a loaded machine takes long to write
	o := object("one", 700_000)
	s.get(o, http.MethodHead)
	s.get(o, http.MethodHead, "Range", "bytes=5-6")
	if len(gets) != 0 {
		t.Errorf("a HEAD read %v", gets)
	}
	if w := s.get(o, http.MethodGet); !bytes.Equal(w.Body.Bytes(), content(o, 0, o.Size)) || fmt.Sprint(gets) != "[0 700000]" {
		t.Errorf("%d, %v", w.Code, gets)
	}
}

func TestBlocksAreReadOnce(t *testing.T) {
	// A range that begins within a block is read block by block, each by one Get.
	for _, how := range ways() {
		k := newBucket(t)
		gets := 0
		k.gets = func(int, int) { gets++ }
		s := serve(t, k, Options{})
		s.read(how)
		s.slow = time.Hour // a loaded machine takes long to write
		o := object("once", 4*hearth.BlockSize)
		w := s.get(o, http.MethodGet, "Range", "bytes=500000-")
		if !bytes.Equal(w.Body.Bytes(), content(o, 500_000, o.Size-500_000)) || gets != 4 {
			t.Errorf("%s: %d, %d Gets", how, w.Code, gets)
		}
	}
}

func TestWhyAnAnswerEnded(t *testing.T) {
	// An error within the answer leaves a deadline in the past, so that nothing more goes out. It
	// counts as the client's fault only if the client is gone.
	for _, gone := range []bool{false, true} {
		k := newBucket(t)
		k.failAt = map[int64]error{1: errBroken}
		s := serve(t, k, Options{})
		ctx, leave := context.WithCancel(t.Context())
		c := &taker{ResponseRecorder: httptest.NewRecorder(), pace: func(int) {
			if gone {
				leave()
			}
		}}
		answered, n, err := s.Serve(c, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), object("ended", 2*hearth.BlockSize))
		if !answered || n != hearth.BlockSize || !errors.Is(err, errBroken) || errors.Is(err, ErrGone) != gone || c.deadline.IsZero() || !c.deadline.Before(time.Now()) {
			t.Errorf("%v, %d, %v, deadline %v", answered, n, err, c.deadline)
		}
		leave()
	}
}

// stock is a Source that has its blocks in memory, as the RAM tier does.
type stock map[int64]*hearth.View

func (m stock) Get(_ context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return m[b.Index].Slice(off, n), nil
}

func stocked(b *testing.B, o *hearth.Object) stock {
	m := stock{}
	for i := range o.Blocks() {
		block := o.Block(i)
		m[i] = hearth.NewView(content(o, block.Offset(), int64(block.Len())))
	}
	return m
}

// nobody is a client that takes everything, and does nothing with it.
type nobody struct{ h http.Header }

func (w *nobody) Header() http.Header                { return w.h }
func (w *nobody) Write(p []byte) (int, error)        { return len(p), nil }
func (w *nobody) WriteHeader(int)                    {}
func (w *nobody) SetWriteDeadline(_ time.Time) error { return nil }
func (w *nobody) FlushError() error                  { return nil }

func BenchmarkGet16K(b *testing.B) {
	// The cost of a GET of 16 KiB without net/http and the kernel.
	k := newBucket(b)
	k.extra = http.Header{"X-Amz-Meta-A": {"1"}, "Cache-Control": {"max-age=7"}, "X-Amz-Version-Id": {"abc"}, "X-Amz-Server-Side-Encryption": {"AES256"}}
	s := serve(b, k, Options{})
	o := object("16K", 16<<10)
	s.o.Source = stocked(b, o)
	for _, span := range []string{"", "bytes=100-1099"} {
		b.Run("range "+span, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/b/k?x-id=GetObject", nil)
			if span != "" {
				r.Header.Set("Range", span)
			}
			b.ReportAllocs()
			for b.Loop() {
				w := &nobody{h: http.Header{}}
				if answered, _, err := s.Serve(w, r, o); !answered || err != nil {
					b.Fatal(answered, err)
				}
			}
		})
	}
}

func BenchmarkLoopback16K(b *testing.B) {
	// The same with net/http, the kernel and a client in one.
	k := newBucket(b)
	s := serve(b, k, Options{})
	o := object("16K", 16<<10)
	s.o.Source = stocked(b, o)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answered, _, err := s.Serve(w, r, o); !answered || err != nil {
			b.Error(answered, err)
		}
	}))
	defer server.Close()
	b.ReportAllocs()
	for b.Loop() {
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != o.Size || err != nil {
			b.Fatal(n, err)
		}
		resp.Body.Close()
	}
}

func BenchmarkLarge(b *testing.B) {
	// 64 MiB from memory over loopback, by a reader and without one.
	for _, how := range ways() {
		b.Run(how, func(b *testing.B) {
			k := newBucket(b)
			o := object("large", 64*hearth.BlockSize)
			s := serve(b, k, Options{})
			blocks := stocked(b, o)
			s.o.Source = blocks
			s.read(how)
			server := httptest.NewServer(s.handle(o))
			defer server.Close()
			b.SetBytes(o.Size)
			for b.Loop() {
				resp, err := server.Client().Get(server.URL)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); n != o.Size || err != nil {
					b.Fatal(n, err)
				}
				resp.Body.Close()
			}
		})
	}
}
