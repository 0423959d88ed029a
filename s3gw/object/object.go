// Package object answers GetObject and HeadObject of a known version from the cache.
//
// A GET must carry the headers that the origin would send: type, encoding, user metadata and all
// else that lies beside an object's bytes. The first request for a version asks its origin by one
// HEAD, which concurrent requests share (singleflight). What belongs to the version, not to that
// one answer, is kept, packed, within a budget. Then conditions are judged and the range is parsed.
// A range within one block is sent as a View from the tiers; longer ranges go through a reader that
// reads ahead.
//
// Only what is surely right is answered here; the caller passes the rest to the origin. It passes
// several ranges, a malformed range or one behind the end, and If-Range. It passes a failed
// precondition (but for 304), and forms of conditions that servers differ about. And it passes
// objects in an archive, and headers or first bytes that cannot be read. Then nothing was written,
// not even into the answer's headers.
//
// Nobody waits for a slow client. All answers together hold blocks of at most a share of the Pool,
// which they only try to take. An answer that gets none of it sends copies, 64 KiB at a time.
// Before it writes a piece, of at most 512 KiB, it asks the kernel whether the connection has room.
// If there is none for 100 ms, it gives its block back, and waits without memory until there is
// room, for a copy then. A client that takes nothing within StallAfter is cut off. So is a client
// whose bytes fail in the midst: every answer has a length, so a short one is never taken for
// complete.
package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/flight"
)

// ErrGone means that the client went away, or took nothing for too long, within an answer.
var ErrGone = errors.New("client is gone")

const (
	// stallDefault is longer than a client that takes 1 KiB/s needs for 64 KiB, the step by which
	// TCP over loopback opens its window. TCP does not announce less than a segment (tcp_output.c,
	// __tcp_select_window).
	stallDefault = 2 * time.Minute
	freshDefault = time.Minute
	// headerDefault holds the headers of some 10,000 versions, in bytes.
	headerDefault = 8 << 20
)

// Bytes is a reader of one object with read-ahead.
type Bytes interface {
	// ViewAt returns n bytes from off on, which lie in one block. The caller releases it.
	ViewAt(ctx context.Context, off int64, n int) (*hearth.View, error)
	// Close ends the read-ahead.
	Close()
}

// Options of a Server. Source, Head and Pool are required.
type Options struct {
	// Source is the whole read side.
	Source hearth.Getter
	// Open returns a reader for a range of several blocks, which ends before byte until. It is read
	// to its end unless the client goes away. nil means that their Views come from Source one by
	// one.
	Open func(o *hearth.Object, until int64) Bytes
	// Head asks the origin for the headers of exactly this version, with If-Match. It sends
	// x-amz-checksum-mode: ENABLED, or answers would lack the checksums that clients ask for. Names
	// are as net/http has them; user metadata may be spelled otherwise. hearth.ErrStale means that
	// the object is another one now. Head must end by itself.
	Head func(ctx context.Context, o *hearth.Object) (http.Header, error)
	// Away reports whether an error of Head means that the origin cannot be asked now; then older
	// headers are used. nil means never.
	Away func(err error) bool
	// Pool counts remembered headers. All answers together hold at most a quarter of it in blocks
	// from Source.
	Pool *hearth.Pool
	// HeaderBytes bounds the memory in bytes for remembered headers. 0 means 8 MiB.
	HeaderBytes int64
	// Fresh returns how long a link's headers are believed: below 0 for ever, 0 not at all. nil
	// means a minute.
	Fresh func(link string) time.Duration
	// StallAfter is how long a client may take nothing of an answer. 0 means two minutes.
	StallAfter time.Duration
	// Now is the time by which headers age. nil means time.Now.
	Now func() time.Time
}

// Server answers reads of objects. It is safe for many goroutines.
type Server struct {
	o      Options
	known  *shelf
	asking *flight.Group[key, *set]

	changes changes
	large   *semaphore.Weighted // bytes of blocks held by answers, a quarter of the Pool; only tried
	spare   sync.Pool           // of *[pieceSlow]byte, for copies; each is held while it is written

	slow time.Duration // slowAfter, except in tests

	hits, asks atomic.Int64
}

// New returns a Server, which must be closed.
func New(o Options) *Server {
	o.HeaderBytes = cmp.Or(o.HeaderBytes, headerDefault)
	o.StallAfter = cmp.Or(o.StallAfter, stallDefault)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Fresh == nil {
		o.Fresh = func(string) time.Duration { return freshDefault }
	}
	if o.Away == nil {
		o.Away = func(error) bool { return false }
	}
	nothing := func(*set) {} // sets are garbage collected
	budget := o.Pool.Stats().Budget
	return &Server{o: o, known: newShelf(o.Pool, o.HeaderBytes), asking: flight.NewGroup[key](nothing, nothing), slow: slowAfter,
		large: semaphore.NewWeighted(budget / 4)}
}

// Close ends the questions to the origin and forgets all headers. No Serve may be under way.
func (s *Server) Close() {
	s.asking.Close()
	s.known.close()
}

// Stats are the figures of a Server.
type Stats struct {
	// Entries and Bytes are of the headers that are remembered now.
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Hits counts answers from remembered headers, Asks counts HEADs to the origin.
	Hits int64 `json:"hits"`
	Asks int64 `json:"asks"`
}

// Stats returns the present figures.
func (s *Server) Stats() Stats {
	entries, bytes := s.known.size()
	return Stats{Entries: entries, Bytes: bytes, Hits: s.hits.Load(), Asks: s.asks.Load()}
}

// Changed invalidates the remembered headers of a key. Its caller wrote the key, or what lies
// beside its bytes (tags, retention).
func (s *Server) Changed(key string) {
	s.changes.some[xxh3.HashString(key)%uint64(len(s.changes.some))].Add(1)
}

// AllChanged is Changed for every key.
func (s *Server) AllChanged() { s.changes.all.Add(1) }

// Serve answers a GET or HEAD of an object. The caller keeps away whatever else may change the
// answer (versionId, SSE-C, ...), and response-* parameters of anonymous requests.
//
// If answered is false, nothing was written, and the caller passes the request to the origin. err
// may say why; with hearth.ErrStale the caller forgets the name first. If answered is true and err
// is not nil, the client did not get all of it and the connection ends. Then errors.Is finds
// hearth.ErrStale and ErrGone. n counts the body's bytes.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, o *hearth.Object) (answered bool, n int64, err error) {
	if (r.Method != http.MethodGet && r.Method != http.MethodHead) || !o.Cacheable() || o.Size < 0 {
		return false, 0, nil
	}
	ask, sure := read(r)
	if !sure {
		return false, 0, nil
	}
	part, sure := within(ask.span, o.Size)
	if !sure {
		return false, 0, nil
	}
	headers, err := s.headers(r.Context(), o)
	if err != nil || headers.archived {
		return false, 0, err
	}
	switch ask.judge(o.ETag, headers.modified, s.o.Now()) {
	case unsure:
		return false, 0, nil
	case notModified:
		headers.render(w.Header(), kindShort)
		return true, 0, s.finish(w, http.StatusNotModified)
	}
	if r.Method == http.MethodHead || part.n == 0 {
		return true, 0, s.finish(w, announce(w.Header(), headers, &ask, part))
	}
	d := s.sender(w, r, o, part)
	defer d.close()
	if err := d.take(); err != nil {
		return false, 0, fmt.Errorf("serve %s: %w", o.Key, err)
	}
	w.WriteHeader(announce(w.Header(), headers, &ask, part))
	if err := d.run(); err != nil {
		return true, d.n, fmt.Errorf("serve %s: %w", o.Key, err)
	}
	return true, d.n, nil
}

// announce writes the headers of a 200 or 206, and returns that status.
func announce(h http.Header, t *set, ask *asked, p part) int {
	kinds := kindPlain | kindShort
	if ask.checksums && !p.partial {
		// They are of the whole object. MinIO leaves them out of a 206, too: a client would compare
		// them with the part.
		kinds |= kindSum
	}
	t.render(h, kinds)
	for _, v := range ask.overrides {
		h[v.name] = []string{v.value}
	}
	var space [72]byte
	b := strconv.AppendInt(space[:0], p.n, 10)
	h["Content-Length"] = []string{string(b)}
	if !p.partial {
		return http.StatusOK
	}
	b = append(space[:0], "bytes "...)
	b = append(strconv.AppendInt(b, p.off, 10), '-')
	b = append(strconv.AppendInt(b, p.off+p.n-1, 10), '/')
	h["Content-Range"] = []string{string(strconv.AppendInt(b, p.size, 10))}
	return http.StatusPartialContent
}

// finish sends an answer without a body.
func (s *Server) finish(w http.ResponseWriter, status int) error {
	c := http.NewResponseController(w)
	s.allow(c)
	w.WriteHeader(status)
	return end(c)
}
