package origin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// Credentials say where keys come from, never the keys themselves.
type Credentials struct {
	// Source in words.
	Source string
	// Expires is when they expire and new ones are searched for. Zero means that they do not, or that
	// the time is unknown.
	Expires time.Time
	// Token says that they have a session token, so they do expire.
	Token bool
}

// Credentials searches for them as a first request would.
func (s *S3) Credentials(ctx context.Context) (Credentials, error) {
	if s.anonymous {
		return Credentials{Source: "none are sent (anonymous)"}, nil
	}
	id, err := s.keys.Find(ctx)
	if err != nil {
		return Credentials{}, s.wrap("probe", s.prefix, err)
	}
	return Credentials{Source: id.How, Expires: id.Expires, Token: id.Value.SessionToken != ""}, nil
}

// ErrNoDate says that an origin's answer has no Date header.
var ErrNoDate = errors.New("the origin's answer has no Date")

// Ahead is how far this machine's clock is ahead of the origin's, within a second, by the Date of an
// answer. The request is not signed: with wrong credentials, or a clock too far off for them, the
// answer has a Date as well.
func (s *S3) Ahead(ctx context.Context) (time.Duration, error) {
	p := s.place.Load()
	req := &http.Request{Method: http.MethodHead, URL: &url.URL{Scheme: p.scheme, Host: p.host, Path: p.base + "/"}, Host: p.host,
		Header: http.Header{"User-Agent": s.says.agent}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	began := time.Now()
	resp, err := s.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return 0, s.wrap("probe", "", err)
	}
	resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, ErrNoDate
	}
	middle := began.Add(time.Since(began) / 2)
	return middle.Sub(date.Add(time.Second / 2)), nil // a Date is cut off to whole seconds
}
