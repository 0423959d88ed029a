package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/sign"
)

// errFull says that no connection became free within the origin's timeout.
var errFull = errors.New("too many requests are on their way to the origin")

// Forward sends a request on as its client made it, signed with the origin's own key. It is for a
// bucket ("": the account, as for ListBuckets) and a key in its escaped form. onward.go says what is
// sent on. The bucket may be another than the origin's own: the caller must check that the client may
// ask for it. The context must end when nobody wants an answer any more, and the answer's body must be
// closed.
//
// Every answer of the origin is returned, whatever its status, except a refusal of Hearth's own
// signature. That is an *Error, as is an unreachable origin. While nothing of a body was read yet, a
// request that another key or region cures is sent again. So is, within the budget of a read, a GET or
// HEAD without an answer, and any request whose connection failed. An error of the client's body is
// returned as it is: the origin has then seen a request that was cut off.
//
// A silent origin is given up. Over a read that is within three times its timeout, as for reads of our
// own. Over a write, which the origin may be working on, silence.go says how long.
//
// Forwarded requests use at most half of the connections of reads, and those that change nothing at
// most half of these: clients read such answers as slowly as they like, and no number of them must stop
// a write. One client (ForClient) has at most half of those again. HEADs may take any connection: no
// body follows their headers that a slow client could hold up, and reads wait for them.
func (s *S3) Forward(ctx context.Context, r *http.Request, bucket, escapedKey string) (*http.Response, error) {
	f := &forward{s: s, r: r, bucket: bucket}
	key, err := url.PathUnescape(escapedKey)
	if err == nil {
		err = checkBucketName(bucket)
	}
	if err == nil {
		f.payload, err = passedPayload(r.Header)
	}
	if err == nil && r.ContentLength == 0 && r.Body != nil && r.Body != http.NoBody {
		if n, e := io.CopyN(io.Discard, r.Body, 1); n > 0 || e != io.EOF { // it may be checked even so
			err = fmt.Errorf("an empty body of %d bytes or more: %w", n, e)
		}
	}
	if err != nil {
		return nil, err
	}
	f.key = key
	leave, err := s.room(ctx, r)
	if err != nil {
		return nil, f.wrap(err)
	}
	resp, err := f.ask(ctx, leave)
	if err != nil {
		leave()
	}
	return resp, err
}

// passes are the semaphores of forwarded requests.
type passes struct {
	slots   chan struct{} // each request holds one, and one of data
	reading *shares       // requests that change nothing hold one of these as well
}

// room acquires a connection of those for forwarded requests; a HEAD needs only one of those for reads.
// It waits no longer than the origin's timeout: while nobody reads the client's body, the server does
// not see that the client has gone.
func (s *S3) room(ctx context.Context, r *http.Request) (leave func(), err error) {
	wait, stop := context.WithTimeoutCause(ctx, s.silence.Read, errFull)
	defer stop()
	var taken []func()
	leave = func() {
		for _, give := range slices.Backward(taken) {
			give()
		}
	}
	take := func(give func(), e error) {
		if err = e; err == nil {
			taken = append(taken, give)
		}
	}
	if r.Method != http.MethodHead || r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		if reads(r) {
			take(s.passes.reading.Take(wait))
		}
		if err == nil {
			take(acquire(wait, s.passes.slots))
		}
	}
	if err == nil {
		take(acquire(wait, s.data))
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// reads reports whether a request changes nothing and has an answer with a body to read.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && r.URL.Query().Has("select")
}

// forward is one request on its way.
type forward struct {
	s                    *S3
	r                    *http.Request
	bucket, key, payload string
	region               string // of a bucket that is not the origin's own, once the origin named it
	at                   *place // where the origin redirected it to, base and key in one; nil: nowhere
	used                 credentials.Value
}

func (f *forward) wrap(err error) error {
	err = f.s.wrap("pass", f.key, err)
	if e := new(Error); errors.As(err, &e) {
		e.Where = "s3://" + f.bucket + "/" + f.key
	}
	return err
}

// ask sends the request until there is an answer. leave is called when the answer's body is closed.
func (f *forward) ask(ctx context.Context, leave func()) (*http.Response, error) {
	b := budget{Retry: f.s.retry}
	for renewed, moved := 0, 0; ; {
		p, err := f.send(ctx)
		if err == nil {
			if at := f.elsewhere(p); at != nil && moved < mostMoves && p.body.Unread() {
				moved++
				f.at = at
				p.end()
				continue
			}
			if err = f.refused(p); err == nil {
				p.resp.Body, p.leave = p, leave
				return p.resp, nil
			}
		}
		if said := p.body.Err(); said != nil && said != io.EOF && p.resp == nil {
			p.end()
			return nil, fmt.Errorf("read the client's body: %w", said)
		}
		if ctx.Err() == nil {
			f.s.failed("pass", f.key, err)
		}
		cured := p.resp != nil && f.renew(ctx, err) // later requests profit even if this one cannot be sent again
		again := p.resp == nil && f.repeatable(err)
		if (cured && renewed < 2 || again) && p.body.Unread() {
			p.end()
			if cured {
				renewed++
			} else if err = b.spend(ctx, err); err != nil {
				return nil, f.wrap(err)
			}
			f.s.counts.retries.Add(1)
			continue
		}
		p.end()
		return nil, f.wrap(err)
	}
}

// repeatable reports whether a request without an answer may be sent again. A write may not, since the
// origin may have acted on it, unless no connection was made.
func (f *forward) repeatable(err error) bool {
	var op *net.OpError
	return f.r.Method == http.MethodGet || f.r.Method == http.MethodHead || errors.As(err, &op) && op.Op == "dial"
}

// renew is S3.renew, but the region of another bucket is kept for this request only.
func (f *forward) renew(ctx context.Context, err error) bool {
	var e *Error
	if f.bucket == f.s.bucket || !errors.As(err, &e) || e.Region == "" || f.s.fixedRegion {
		return f.s.renew(ctx, err, &f.used)
	}
	before := f.region
	f.region = e.Region
	return before != e.Region
}

// send makes one attempt. The caller must end the passage, whatever the result.
func (f *forward) send(ctx context.Context) (*passage, error) {
	p, patience := &passage{s: f.s}, f.s.silence.Of(f.r)
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	silent := func() { p.cancel(errStalled) }
	p.body = newPassedBody(p.ctx, f.r, passWaits{Asked: f.s.transport.ExpectContinueTimeout, Stall: 3 * f.s.silence.Read, Answer: patience}, silent)
	req, err := f.request(p)
	p.watch = time.AfterFunc(patience, silent)
	if p.body != nil { // the body has a watchdog of its own, and the client may take its time
		p.watch.Stop()
	}
	if err == nil {
		f.s.counts.passes.Add(1)
		p.resp, err = f.s.transport.RoundTrip(req)
	}
	p.watch.Stop()
	if err != nil {
		return p, (&answer{ctx: p.ctx}).cause(err)
	}
	p.body.Answered()
	p.answer = p.resp.Body
	p.in = watched{Reader: p.answer, Watch: p.watch, Patience: patience}
	return p, nil
}

func (f *forward) request(p *passage) (*http.Request, error) {
	at := f.place()
	path := at.path(f.key)
	if f.at != nil {
		at, path = *f.at, f.at.base
	}
	req := &http.Request{Method: f.r.Method, URL: &url.URL{Scheme: at.scheme, Host: at.host, Path: path, RawPath: sign.Encode(path, true), RawQuery: passedQuery(f.r.URL.RawQuery)},
		Host: at.host, Header: passedHeader(f.r.Header), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	req.Header["X-Amz-Content-Sha256"] = []string{f.payload}
	if f.s.says.payer != nil {
		req.Header["X-Amz-Request-Payer"] = f.s.says.payer
	}
	if p.body != nil {
		req.Body, req.ContentLength = p.body, f.r.ContentLength
		// versitygw answers such an upload with a trailer twice: the second answer would be
		// taken for the one to the next request over that connection.
		req.Close = f.r.ContentLength < 0
	}
	ctx := p.ctx
	if t := p.body.Trace(); t != nil {
		ctx = httptrace.WithClientTrace(ctx, t)
	}
	if !f.s.anonymous {
		v, err := f.s.keys.Get(ctx)
		if err != nil {
			return nil, err
		}
		f.used = v
		f.s.signer.Any(req, v, at.region, time.Now())
	}
	return req.WithContext(ctx), nil
}

// place is where requests for the bucket go.
func (f *forward) place() place {
	p := *f.s.place.Load()
	if f.bucket == f.s.bucket {
		return p
	}
	if !f.s.pathStyle {
		p.host = strings.TrimPrefix(p.host, f.s.bucket+".")
	}
	if f.region != "" {
		p.host = strings.Replace(p.host, "s3."+p.region+".", "s3."+f.region+".", 1)
		p.region = f.region
	}
	switch p.base, p.whole = f.s.root, ""; {
	case f.bucket == "":
	case f.s.pathStyle || strings.Contains(f.bucket, "."):
		p.base += "/" + f.bucket
		p.whole = p.base
	default:
		p.host = f.bucket + "." + p.host
	}
	return p
}

// elsewhere is the place that an answer redirects the request to. Nil means that it does not.
func (f *forward) elsewhere(p *passage) *place {
	if p.resp.StatusCode/100 != 3 {
		return nil
	}
	from := f.at
	if from == nil {
		at := f.place()
		from = &at
	}
	return f.s.elsewhere(&Error{Status: p.resp.StatusCode, location: p.resp.Header.Get("Location")}, from, passedQuery(f.r.URL.RawQuery))
}

// refused returns the error of an answer that refuses the signature, which is ours and not the
// client's. The answer stays readable. For a key that is not UTF-8 MinIO finds every signature wrong,
// the client's own too, because it signs U+FFFD in its place. That is the client's answer, and our key
// is as good as before.
func (f *forward) refused(p *passage) error {
	switch p.resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
	default:
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(p.in, 64<<10)) // an error shows again at the next read
	p.in = io.MultiReader(bytes.NewReader(text), p.in)
	e := readError(&http.Response{StatusCode: p.resp.StatusCode, Header: p.resp.Header, Body: io.NopCloser(bytes.NewReader(text))})
	if e.Code == "SignatureDoesNotMatch" && !utf8.ValidString(f.key) {
		return nil
	}
	switch e.Code {
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestTimeTooSkewed",
		"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "XAdminUserNotFound":
		return e
	}
	if e.Code == "" && e.Region != "" && e.Region != f.place().region && !f.s.fixedRegion { // the answer to a HEAD
		return e
	}
	return nil
}

// passage is an attempt, and the body of its answer.
type passage struct {
	s      *S3
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   *passedBody // the request's; nil: it has none
	resp   *http.Response
	answer io.ReadCloser // the answer's own body
	in     io.Reader     // the answer under the watchdog, after what was read ahead
	leave  func()        // releases its connection
	once   sync.Once
	watch  *time.Timer // watchdog; runs while the origin is waited for, except where the body's own does
}

// Read returns the next bytes of the origin.
func (p *passage) Read(b []byte) (int, error) {
	n, err := p.in.Read(b[:min(len(b), hearth.BlockSize)])
	p.s.counts.bytes.Add(int64(n))
	if n > 0 && p.s.limit != nil {
		if e := p.s.limit.WaitN(p.ctx, n); e != nil {
			return n, e
		}
	}
	if err != nil && err != io.EOF {
		err = p.s.wrap("pass", "", (&answer{ctx: p.ctx}).cause(err))
	}
	return n, err
}

// Close releases the connection. A connection whose answer was not read to its end is closed.
func (p *passage) Close() error {
	p.once.Do(func() {
		p.end()
		p.leave()
	})
	return nil
}

// end drops what is left of an attempt.
func (p *passage) end() {
	if p.answer != nil {
		p.answer.Close()
	}
	p.watch.Stop()
	p.cancel(nil)
	p.body.End()
}
