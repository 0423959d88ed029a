package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/sign"
)

// call is one request to an S3 server.
type call struct {
	op, method string
	key, query string // query is encoded and sorted, as signatures need it
	off, n     int64  // the range, n > 0
	etag       string // for If-Match
	at         *place // where an answer redirected it to, base and key in one; nil: the bucket's place
}

// answer is a 2xx, whose body is read under a watchdog timer: the request is cancelled when nothing
// came for the origin's timeout.
type answer struct {
	resp   *http.Response
	ctx    context.Context
	cancel context.CancelCauseFunc
	watch  *time.Timer
}

func (a *answer) close() {
	a.watch.Stop()
	a.resp.Body.Close()
	a.cancel(nil)
}

// errGivenUp says that the connection was closed by the cancellation of another request.
var errGivenUp = fmt.Errorf("the connection was given up with the request before: %w", io.ErrUnexpectedEOF)

// cause is why a request failed: its watchdog's error or its caller's, else err. A request that is
// cancelled as its answer ends may close the connection that the next request uses already. net/http
// then reports a cancellation that is not the next one's own.
func (a *answer) cause(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if errors.Is(err, context.Canceled) {
		return errGivenUp
	}
	return err
}

// ask sends a call until it is answered or the retry budget is spent. The caller holds a connection's
// token.
func (s *S3) ask(ctx context.Context, c *call, b *budget) (*answer, error) {
	renewed, moved := 0, 0
	for {
		var used credentials.Value
		a, err := s.send(ctx, c, &used)
		if err == nil {
			return a, nil
		}
		if at := s.elsewhere(err, c.at, c.query); at != nil && moved < mostMoves {
			moved++
			there := *c
			there.at, c = at, &there
			continue
		}
		err = s.sentOn(err, c.at)
		if renewed < 2 && s.renew(ctx, err, &used) {
			renewed++ // the answer named what the next attempt needs: this is no failure
			continue
		}
		s.failed(c.op, c.key+queryKey(c), err)
		if last := b.spend(ctx, err); last != nil {
			return nil, s.wrap(c.op, c.key+queryKey(c), last)
		}
		s.counts.retries.Add(1)
	}
}

// queryKey names a listing's prefix in errors.
func queryKey(c *call) string {
	if c.key == "" && c.query != "" {
		if q, err := url.ParseQuery(c.query); err == nil {
			return q.Get("prefix")
		}
	}
	return ""
}

// failed counts an attempt without an answer. That a name or a version does not exist is an answer, and
// so is that its object is archived. An attempt that nobody waited for any more is no failure of the origin:
// a HEAD, a LIST beside it has answered.
func (s *S3) failed(op, key string, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, hearth.ErrStale) || errors.Is(err, hearth.ErrArchived) || errors.Is(err, context.Canceled) ||
		errors.Is(err, hearth.ErrConflict) || errors.Is(err, errUnread) {
		return
	}
	s.counts.errors.Add(1)
	s.note(op, key, err)
	if classify(err) == throttled {
		s.counts.throttled.Add(1)
	}
}

// note keeps the last failure, except of an attempt that nobody waited for any more.
func (s *S3) note(op, key string, err error) {
	if !errors.Is(err, context.Canceled) {
		s.counts.last.Store(&Failure{time.Now(), Explain(s.wrap(op, key, err))})
	}
}

// send makes one attempt.
func (s *S3) send(ctx context.Context, c *call, used *credentials.Value) (*answer, error) {
	req, err := s.request(ctx, c, used)
	if err != nil {
		return nil, err
	}
	switch c.method {
	case http.MethodHead:
		s.counts.heads.Add(1)
	default:
		if c.key == "" {
			s.counts.lists.Add(1)
		} else {
			s.counts.gets.Add(1)
		}
	}
	a := &answer{}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.watch = time.AfterFunc(s.silence.Read, func() { a.cancel(errStalled) })
	began := time.Now()
	a.resp, err = s.transport.RoundTrip(req.WithContext(a.ctx))
	if err != nil {
		a.watch.Stop()
		err = a.cause(err)
		a.cancel(nil)
		return nil, err
	}
	now := time.Now()
	s.counts.firstByte.Observe(now.Sub(began), now)
	if a.resp.StatusCode/100 != 2 {
		e := readError(a.resp)
		a.close()
		return nil, e
	}
	a.watch.Stop()
	return a, nil
}

func (s *S3) request(ctx context.Context, c *call, used *credentials.Value) (*http.Request, error) {
	p := s.place.Load()
	u := &url.URL{Scheme: p.scheme, Host: p.host, Path: p.path(c.key), RawQuery: c.query}
	if c.at != nil {
		p = c.at
		u.Scheme, u.Host, u.Path = p.scheme, p.host, p.base
	}
	if raw := sign.Encode(u.Path, true); raw != u.Path {
		u.RawPath = raw
	}
	req := &http.Request{Method: c.method, URL: u, Host: p.host, Header: make(http.Header, 8),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	req.Header["User-Agent"] = s.says.agent
	if c.key != "" {
		req.Header["Accept-Encoding"] = s.says.coding
	}
	if s.says.payer != nil {
		req.Header["X-Amz-Request-Payer"] = s.says.payer
	}
	if c.n > 0 {
		var space [64]byte
		b := strconv.AppendInt(append(space[:0], "bytes="...), c.off, 10)
		b = strconv.AppendInt(append(b, '-'), c.off+c.n-1, 10)
		req.Header["Range"] = []string{string(b)}
	}
	if c.etag != "" {
		req.Header["If-Match"] = []string{`"` + c.etag + `"`}
	}
	if s.anonymous {
		return req, nil
	}
	v, err := s.keys.Get(ctx)
	if err != nil {
		return nil, err
	}
	*used = v
	s.signer.Read(req, v, p.region, time.Now())
	return req, nil
}
