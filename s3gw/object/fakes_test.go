package object

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// modTime is the time of the write of all test objects.
func modTime() time.Time { return time.Date(2026, 5, 4, 3, 2, 1, 500e6, time.UTC) }

// object makes an Object with a key of its own.
func object(key string, size int64) *hearth.Object {
	o := hearthtest.NewObject(key, size, 1)
	o.ModTime = modTime()
	return o
}

// content returns the bytes of an object from off on.
func content(o *hearth.Object, off, n int64) []byte {
	p := make([]byte, n)
	hearthtest.Fill(p, o.Key, off, 1)
	return p
}

// bucket is an origin and a read side over it; it computes the bytes of any object.
type bucket struct {
	pool  *hearth.Pool
	heads atomic.Int64
	extra http.Header      // beside the usual headers
	wait  chan struct{}    // if set, HEADs wait for it
	begun chan struct{}    // if set, receives for each HEAD
	gets  func(off, n int) // if set, called for each Get

	mu      sync.Mutex
	failing error           // of HEAD
	failAt  map[int64]error // of Get, by block
}

func (k *bucket) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failing = err
}

func (k *bucket) head(ctx context.Context, o *hearth.Object) (http.Header, error) {
	k.heads.Add(1)
	if k.begun != nil {
		select {
		case k.begun <- struct{}{}:
		default: // it is known already
		}
	}
	if k.wait != nil {
		select {
		case <-k.wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failing != nil {
		return nil, k.failing
	}
	h := http.Header{"Etag": {`"` + o.ETag + `"`}, "Content-Length": {fmt.Sprint(o.Size)}, "Content-Type": {"text/x"},
		"Last-Modified": {o.ModTime.UTC().Format(http.TimeFormat)}, "Accept-Ranges": {"bytes"}}
	for name, v := range k.extra {
		h[name] = v
	}
	return h, nil
}

func (k *bucket) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if k.gets != nil {
		k.gets(off, n)
	}
	k.mu.Lock()
	err := k.failAt[b.Index]
	k.mu.Unlock()
	if err != nil {
		return nil, err
	}
	v, err := k.pool.Alloc(ctx, n)
	if err != nil {
		return nil, err
	}
	hearthtest.Fill(v.Bytes(), b.Object.Key, b.Offset()+int64(off), 1)
	return v, nil
}

// reader is Bytes over a Source.
type reader struct {
	src  hearth.Getter
	o    *hearth.Object
	open *atomic.Int64
}

func (r reader) ViewAt(ctx context.Context, off int64, n int) (*hearth.View, error) {
	b := r.o.Block(off / hearth.BlockSize)
	return r.src.Get(ctx, b, int(off-b.Offset()), n)
}

func (r reader) Close() { r.open.Add(-1) }

// ways are the two ways to read the bytes of several blocks.
func ways() []string { return []string{"by a reader", "without a reader"} }

// read sets up a Server that reads in one of ways, from its Source.
func (s *serving) read(how string) {
	src := s.o.Source
	s.o.Open = func(o *hearth.Object, _ int64) Bytes {
		s.open.Add(1)
		return reader{src, o, &s.open}
	}
	if how == "without a reader" {
		s.o.Open = nil
	}
}

// serving is a Server over a bucket.
type serving struct {
	*Server
	k    *bucket
	open atomic.Int64 // readers

	mu   sync.Mutex
	last []error // what Serve returned
}

func serve(t testing.TB, k *bucket, o Options) *serving {
	s := &serving{k: k}
	o.Source, o.Head, o.Pool = k, k.head, k.pool
	s.Server = New(o)
	s.read("by a reader")
	t.Cleanup(func() {
		s.Close()
		if n := s.open.Load(); n != 0 {
			t.Errorf("%d readers are open", n)
		}
		if !s.large.TryAcquire(k.pool.Stats().Budget / 4) {
			t.Error("memory is counted as lent that is not")
		}
		if p := k.pool.Stats(); p.Views == 0 && p.Used != p.Idle {
			t.Errorf("%d bytes are counted in the Pool for nothing", p.Used-p.Idle)
		}
	})
	return s
}

func newBucket(t testing.TB) *bucket { return &bucket{pool: hearthtest.Pool(t, hearth.MinRAM)} }

// handle serves an object to every client; 599 stands for a request that passes to the origin.
func (s *serving) handle(o *hearth.Object) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answered, _, err := s.Serve(w, r, o)
		s.mu.Lock()
		s.last = append(s.last, err)
		s.mu.Unlock()
		if !answered {
			if len(w.Header()) > 0 {
				panic(fmt.Sprintf("not answered, but with headers: %v", w.Header()))
			}
			w.WriteHeader(599)
		}
	})
}

// errs returns what Serve returned so far.
func (s *serving) errs() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.last...)
}

// get asks a Server for an object without a network.
func (s *serving) get(o *hearth.Object, method string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/b/k", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.handle(o).ServeHTTP(w, r)
	return w
}
