// Package object answers GetObject and HeadObject of a known version from the cache.
//
// A GET has to say what the origin would say: type, encoding, user metadata and all else that
// lies beside an object's bytes. Whoever asks for a version first has its origin asked by one
// HEAD, all who want it at that time share the attempt, and what belongs to the version (not to
// that one answer) is kept, packed, within a budget. Then conditions are judged and the range is
// read, and the bytes come from the tiers: what lies within one block as a View of it, longer
// ranges through a reader that reads ahead.
//
// Only what is surely right is answered here. The rest, which has the caller pass the request to
// the origin: several ranges, a range that is malformed or lies behind the end, If-Range, a
// precondition that fails (but for 304), forms of conditions that servers differ about, objects
// in an archive, and headers or first bytes that cannot be had. Nothing was written then, not
// even into the answer's headers.
//
// Nobody waits for a slow client. What answers hold of blocks at once is bounded by a share of the
// Pool, which is only tried: who gets none of it is written copies, 64 KiB at a time. Before a
// piece is written, at most 512 KiB, the kernel is asked whether the connection has room for it;
// one that has none for 100 ms has its block given back, and holds nothing until there is room,
// for a copy then. A client that takes nothing within StallAfter is cut off, and so is one whose
// bytes cannot be had in the midst: every answer tells its length, so no short one looks whole.
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

// ErrGone says that the client went away, or took nothing for too long, in the midst of an answer.
var ErrGone = errors.New("client is gone")

const (
	// stallDefault is longer than who takes 1 KiB/s needs for what loopback's TCP opens its
	// window by, 64 KiB: less than a segment it does not tell of (tcp_output.c,
	// __tcp_select_window).
	stallDefault = 2 * time.Minute
	freshDefault = time.Minute
	// headerDefault holds the headers of some ten thousand versions.
	headerDefault = 8 << 20
)

// Bytes reads one object ahead of its reader.
type Bytes interface {
	// ViewAt returns n bytes from off on, which lie in one block. The caller releases it.
	ViewAt(ctx context.Context, off int64, n int) (*hearth.View, error)
	// Close ends reading ahead.
	Close()
}

// Options of a Server; Source, Head and Pool must be there.
type Options struct {
	// Source is the whole read side.
	Source hearth.Getter
	// Open returns a reader for a range of several blocks, which ends before byte until and is
	// read to its end unless the client goes. nil: their Views come from Source one by one.
	Open func(o *hearth.Object, until int64) Bytes
	// Head asks the origin for the headers of exactly this version: with If-Match, and
	// with x-amz-checksum-mode: ENABLED, or answers would lack checksums that were asked
	// for. Names are as net/http has them; user metadata may be spelled otherwise.
	// hearth.ErrStale: the object is another one now. It ends by itself.
	Head func(ctx context.Context, o *hearth.Object) (http.Header, error)
	// Away reports whether an error of Head means that the origin cannot be asked now;
	// then older headers are used. nil: never.
	Away func(err error) bool
	// Pool counts remembered headers, and a quarter of it is as much as answers hold of
	// what Source lends.
	Pool *hearth.Pool
	// HeaderBytes is the most memory in bytes for remembered headers. 0: 8 MiB.
	HeaderBytes int64
	// Fresh says how long a link's headers are believed: below 0 for ever, 0 not at
	// all. nil: a minute.
	Fresh func(link string) time.Duration
	// StallAfter is how long a client may take nothing of an answer. 0: two minutes.
	StallAfter time.Duration
	// Now is the time that headers age by. nil: time.Now.
	Now func() time.Time
}

// Server answers reads of objects. It is safe for many goroutines.
type Server struct {
	o      Options
	known  *shelf
	asking *flight.Group[key, *set]

	changes changes
	large   *semaphore.Weighted // what answers hold of blocks at once, a quarter of the Pool; only tried
	spare   sync.Pool           // of *[pieceSlow]byte, for copies; one is held while it is written

	slow time.Duration // slowAfter, but in tests

	hits, asks atomic.Int64
}

// New returns a Server. Close it.
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

// Close ends what is asked of the origin and forgets all headers. Nobody may call Serve then.
func (s *Server) Close() {
	s.asking.Close()
	s.known.close()
}

// Stats are a Server's figures.
type Stats struct {
	// Entries and Bytes of headers are remembered now.
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Hits are answers by remembered headers, Asks are HEADs of the origin.
	Hits int64 `json:"hits"`
	Asks int64 `json:"asks"`
}

// Stats returns the present figures.
func (s *Server) Stats() Stats {
	entries, bytes := s.known.size()
	return Stats{Entries: entries, Bytes: bytes, Hits: s.hits.Load(), Asks: s.asks.Load()}
}

// Changed says that a key was written, or what lies beside its bytes (tags, retention): headers
// that were asked for until now are used no more.
func (s *Server) Changed(key string) {
	s.changes.some[xxh3.HashString(key)%uint64(len(s.changes.some))].Add(1)
}

// AllChanged is Changed of every key.
func (s *Server) AllChanged() { s.changes.all.Add(1) }

// Serve answers a GET or HEAD of an object. What else may change the answer (versionId, SSE-C,
// ...) is the caller's to keep away, and so are response-* parameters of anonymous requests.
//
// answered false: nothing was written, and the caller passes the request to the origin; err may
// say why, and with hearth.ErrStale the caller forgets the name first. answered true with an
// error: the client did not get all of it and the connection ends; hearth.ErrStale and ErrGone
// are told by errors.Is. n counts the body's bytes.
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

// announce writes the headers of a 200 or 206 and returns which of them it is.
func announce(h http.Header, t *set, ask *asked, p part) int {
	kinds := kindPlain | kindShort
	if ask.checksums && !p.partial {
		// Of the whole object: MinIO leaves them out of a 206, too, where a client
		// would compare them with a part.
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
