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

// errFull is a request that found no connection free for it within the origin's timeout.
var errFull = errors.New("too many requests are on their way to the origin")

// Forward sends a request on as its client made it, for a bucket ("": the account, as ListBuckets
// asks) and a key in its escaped form, signed with the origin's own key; onward says what goes on.
// The bucket may be another than the origin's own: whether a client may ask for it is the caller's
// to know. The context must end when nobody wants an answer any more, and the answer's body must be closed.
//
// Every answer of the origin is one, whatever its status, but what it says against Hearth's own
// signature: that is an *Error, as is an origin that cannot be asked. Where nothing of a body was
// asked for yet, what another key or region cures is sent again, and within the budget of a read a
// GET or HEAD that was not answered, and whatever found nobody there. An error of the client's
// body comes back as it is: the origin has then seen a request that was cut off.
//
// An origin that goes silent over a read is given up as it is by reads of ours, within three times
// its timeout; over a write, which it may be at work on, as silence says.
//
// Requests use the connections of reads, half of them at most, and what changes nothing half of that:
// clients read such answers as slowly as they like, and no number of them stops a write. One client
// (ForClient) has half of those again. HEADs may take any: nothing comes behind their headers that a slow
// client could hold up, and reads wait for them.
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

// passes are tokens of requests that are forwarded.
type passes struct {
	slots   chan struct{} // one for each, beside that of data
	reading *shares       // those of slots that change nothing
}

// room takes a connection of those that passes may have, for a HEAD of all for reads, and waits for
// one no longer than the origin's timeout: while nobody reads its body, a client's going away is not
// seen.
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

// reads reports whether a request changes nothing and has an answer to be read.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && r.URL.Query().Has("select")
}

// forward is one request on its way.
type forward struct {
	s                    *S3
	r                    *http.Request
	bucket, key, payload string
	region               string // of another bucket than the origin's own, once it was told
	at                   *place // that the origin sent it on to, base and key in one; nil: nowhere
	used                 credentials.Value
}

func (f *forward) wrap(err error) error {
	err = f.s.wrap("pass", f.key, err)
	if e := new(Error); errors.As(err, &e) {
		e.Where = "s3://" + f.bucket + "/" + f.key
	}
	return err
}

// ask sends until there is an answer; leave is called at the end of its body.
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
		cured := p.resp != nil && f.renew(ctx, err) // even if it is too late for this one
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

// repeatable says of a request without an answer whether it may be sent again: the origin may have
// done what it asked for.
func (f *forward) repeatable(err error) bool {
	var op *net.OpError
	return f.r.Method == http.MethodGet || f.r.Method == http.MethodHead || errors.As(err, &op) && op.Op == "dial"
}

// renew is S3's, but that another bucket's region is kept for this request alone.
func (f *forward) renew(ctx context.Context, err error) bool {
	var e *Error
	if f.bucket == f.s.bucket || !errors.As(err, &e) || e.Region == "" || f.s.fixedRegion {
		return f.s.renew(ctx, err, &f.used)
	}
	before := f.region
	f.region = e.Region
	return before != e.Region
}

// send makes one attempt; the passage is to be ended whatever came of it.
func (f *forward) send(ctx context.Context) (*passage, error) {
	p, patience := &passage{s: f.s}, f.s.silence.Of(f.r)
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	silent := func() { p.cancel(errStalled) }
	p.body = newPassedBody(p.ctx, f.r, passWaits{Asked: f.s.transport.ExpectContinueTimeout, Stall: 3 * f.s.silence.Read, Answer: patience}, silent)
	req, err := f.request(p)
	p.watch = time.AfterFunc(patience, silent)
	if p.body != nil { // it is watched itself, and the client may take its time
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
		// versitygw answers such an upload twice where it has a trailer: the second one would be
		// the answer to whoever asks next over that connection.
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

// place is where the bucket is asked for.
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

// elsewhere is the place that an answer sends the request on to; nil: none.
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

// refused finds what an answer says against the signature, which is ours and not the client's. The
// answer stays readable. Of a key that is no UTF-8 MinIO finds each signature wrong, the client's
// own too, for it signs U+FFFD in its place: that is its answer, and our key is as good as before.
func (f *forward) refused(p *passage) error {
	switch p.resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
	default:
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(p.in, 64<<10)) // an error shows again behind it
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
	body   *passedBody // of the request; nil: none
	resp   *http.Response
	answer io.ReadCloser // the answer's own body
	in     io.Reader     // the same under the watch, or what was read ahead and then the rest
	leave  func()        // gives its connection's token back
	once   sync.Once
	watch  *time.Timer // runs while the origin is waited for, but for what the body's own runs for
}

// Read gives what the origin sends next.
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

// Close gives the connection back, or up where the answer was not read to its end.
func (p *passage) Close() error {
	p.once.Do(func() {
		p.end()
		p.leave()
	})
	return nil
}

// end gives up what is left of an attempt.
func (p *passage) end() {
	if p.answer != nil {
		p.answer.Close()
	}
	p.watch.Stop()
	p.cancel(nil)
	p.body.End()
}
