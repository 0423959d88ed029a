package origin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hearthfs/hearth/origin/sign"
)

// This file carries a write from minio-go to the origin. minio-go says what is asked, and reads the
// answer. The courier says where it goes, who pays and who asks, and signs it, as for reads: so an
// endpoint's path, a region that was learnt, a redirect and renewed credentials hold for writes too, and
// a key is sent byte for byte. It keeps the error as it was, which minio-go would turn into words.

// attempt is one attempt at a write.
type attempt struct {
	s      *S3
	w      *write
	ctx    context.Context
	cancel context.CancelCauseFunc
	parcel *parcel // nil: no body of ours
	body   *passedBody
	used   credentials.Value
	query  string
	sent   bool        // the origin may have seen it
	header http.Header // of a 2xx; nil: there was none
	err    error       // why there was none
}

type attemptKey struct{}

// errUnread is of a body whose owner cannot read it.
var errUnread = errors.New("what is to be written cannot be read")

// courier is minio-go's transport. It finds the attempt in the request's context.
type courier struct{}

// RoundTrip sends the request of an attempt.
func (courier) RoundTrip(r *http.Request) (*http.Response, error) {
	a, _ := r.Context().Value(attemptKey{}).(*attempt)
	resp, err := a.carry(r)
	if err != nil {
		a.err = err
		a.cancel(err) // else minio-go would wait before it gives up
	}
	return resp, err
}

// answerMost bounds an answer to a write. A page of 1,000 parts is 300 KB.
const answerMost = 8 << 20

func (a *attempt) carry(from *http.Request) (*http.Response, error) {
	s := a.s
	req, err := a.request(from)
	if err != nil {
		return nil, err
	}
	patience, silent := s.silence.Of(req), func() { a.cancel(errStalled) }
	watch := time.AfterFunc(patience, silent)
	defer watch.Stop()
	if a.body = newPassedBody(a.ctx, req, passWaits{Stall: 3 * s.silence.Read, Answer: patience}, silent); a.body != nil {
		watch.Stop() // the body has a watchdog of its own
		req.Body = a.body
		defer a.body.End()
	}
	a.sent = true
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		if said := a.body.Err(); said != nil && said != io.EOF && a.ctx.Err() == nil {
			return nil, fmt.Errorf("%w: %w", errUnread, said)
		}
		return nil, (&answer{ctx: a.ctx}).cause(err)
	}
	a.body.Answered()
	in := watched{Reader: resp.Body, Watch: watch, Patience: patience}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		resp.Body = io.NopCloser(in)
		return nil, readError(resp)
	}
	text, err := io.ReadAll(io.LimitReader(in, answerMost))
	if err != nil && resp.Header.Get("ETag") == "" { // else the headers say all
		return nil, (&answer{ctx: a.ctx}).cause(err)
	}
	if e := saidInOK(text); e != nil {
		return nil, e
	}
	a.header = resp.Header
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, nil
}

// request is minio-go's request, to the place of the bucket.
func (a *attempt) request(from *http.Request) (*http.Request, error) {
	s, p := a.s, a.s.place.Load()
	path := p.path(a.w.key)
	if a.w.at != nil {
		p, path = a.w.at, a.w.at.base
	}
	a.query = from.URL.RawQuery
	req := &http.Request{Method: from.Method, URL: &url.URL{Scheme: p.scheme, Host: p.host, Path: path, RawPath: sign.Encode(path, true), RawQuery: a.query},
		Host: p.host, Header: from.Header.Clone(), Body: from.Body, ContentLength: from.ContentLength, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	h := req.Header
	h.Del("Cookie") // of minio-go's jar: reads have none
	for name, values := range a.w.header {
		h[name] = values
	}
	if h["User-Agent"] = s.says.agent; s.says.payer != nil {
		h["X-Amz-Request-Payer"] = s.says.payer
	}
	h["X-Amz-Content-Sha256"] = []string{unsignedPayload}
	if a.parcel == nil && req.Body != nil { // a list of parts
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		req.Body, h["X-Amz-Content-Sha256"] = io.NopCloser(bytes.NewReader(text)), []string{hex.EncodeToString(sum[:])}
	}
	if !s.anonymous {
		v, err := s.keys.Get(a.ctx)
		if err != nil {
			return nil, err
		}
		a.used = v
		s.signer.Any(req, v, p.region, time.Now())
	}
	return req.WithContext(a.ctx), nil
}

// saidInOK is the error that a 200 has in its body: of a copy, or of the joining of parts, S3 sends the
// head before it knows. It has the status that S3 would have sent.
func saidInOK(text []byte) *Error {
	var body struct {
		XMLName       xml.Name
		Code, Message string
	}
	if !bytes.Contains(text, []byte("<Error>")) && !bytes.Contains(text, []byte("<Error ")) {
		return nil
	}
	if xml.Unmarshal(text, &body) != nil || body.XMLName.Local != "Error" {
		return nil
	}
	e := &Error{Status: http.StatusBadRequest, Code: body.Code, Message: strings.Join(strings.Fields(body.Message), " ")}
	switch e.Code {
	case "InternalError", "":
		e.Status = http.StatusInternalServerError
	case "SlowDown", "ServiceUnavailable":
		e.Status = http.StatusServiceUnavailable
	case "PreconditionFailed":
		e.Status = http.StatusPreconditionFailed
	case "NoSuchUpload", "NoSuchKey":
		e.Status = http.StatusNotFound
	case "AccessDenied":
		e.Status = http.StatusForbidden
	}
	e.Err = sentinel(e.Status, e.Code)
	return e
}

// acted reports whether the origin may have done what the attempt asked, though it failed with err. It
// has not without the whole body, whose last byte is held back until then.
func (a *attempt) acted(err error) bool {
	var (
		e      *Error
		name   *net.DNSError
		op     *net.OpError
		cert   *tls.CertificateVerificationError
		record tls.RecordHeaderError
	)
	switch {
	case !a.sent, a.body != nil && a.body.Err() != io.EOF:
		return false
	case errors.As(err, &e) && e.Status != 0:
		return e.Status >= 500 && e.Status != http.StatusNotImplemented && e.Status != http.StatusServiceUnavailable &&
			e.Status != http.StatusInsufficientStorage
	}
	return !errors.As(err, &name) && !(errors.As(err, &op) && op.Op == "dial") && !errors.As(err, &cert) && !errors.As(err, &record)
}

// failure is why an attempt failed, given what minio-go says.
func (a *attempt) failure(err error) error {
	if a.err != nil {
		return a.err
	}
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if a.header != nil {
		return fmt.Errorf("%w: %w", errLied, err)
	}
	return err // minio-go, or what was to be written, was at fault: nothing was sent
}

// parcel is a body on its way, for one attempt.
type parcel struct {
	a  *attempt
	mu sync.Mutex // guards the rest; held while in is read
	in io.Reader  // nil: the attempt is over
}

// parcel makes size bytes the attempt's body. Nothing of it is kept in memory.
func (a *attempt) pack(from io.ReaderAt, size int64) io.Reader {
	a.parcel = &parcel{a: a, in: io.NewSectionReader(from, 0, size)}
	return a.parcel
}

// Read returns the next bytes, as fast as the bandwidth allows.
func (p *parcel) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in == nil {
		return 0, errTaken
	}
	out := p.a.s.out
	if out.limit != nil {
		b = b[:min(len(b), out.limit.Burst())]
	}
	n, err := p.in.Read(b)
	out.counts.bytes.Add(int64(n))
	if n > 0 && out.limit != nil {
		if e := out.limit.WaitN(p.a.ctx, n); e != nil {
			return n, e
		}
	}
	return n, err
}

// end makes sure that nothing is read any more: its owner may close it.
func (p *parcel) end() {
	if p != nil {
		p.mu.Lock()
		p.in = nil
		p.mu.Unlock()
	}
}
