package origin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/hearthfs/hearth"
)

// Probe lists below the prefix, reads one byte of an object with a range, and
// asks for that byte under an ETag that it does not have. An origin that cannot
// list, or answers a range wrongly, is of no use; one that ignores If-Match is.
func (s *S3) Probe(ctx context.Context) (Abilities, error) {
	a, err := s.probe(ctx)
	var e *Error
	if errors.As(err, &e) && classify(err) == transient && s.speaksTLS(ctx) {
		e.Err = fmt.Errorf("%w: %w", errSpeaksTLS, e.Err)
	}
	return a, err
}

// speaksTLS tells whether a port that met HTTP with silence or a closed
// connection is one for HTTPS. Nothing is sent to whoever it is.
func (s *S3) speaksTLS(ctx context.Context) bool {
	p := s.place.Load()
	if p.scheme != "http" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.silence.Read, 5*time.Second))
	defer cancel()
	host := p.host
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "80")
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func (s *S3) probe(ctx context.Context) (Abilities, error) {
	a := Abilities{}
	start := time.Now()
	o, err := s.sample(ctx)
	if err != nil {
		return a, err
	}
	a.RoundTrip, a.Region = time.Since(start), s.place.Load().region
	if o == nil {
		return a, nil
	}
	a.Objects, a.StrongETag = true, o.Cacheable()
	start = time.Now()
	if err := s.probeRange(ctx, o); err != nil {
		return a, err
	}
	a.Range, a.RoundTrip = true, min(a.RoundTrip, time.Since(start))
	a.IfMatch, err = s.probeIfMatch(ctx, o)
	return a, err
}

// sample finds an object that has bytes, among the first hundred keys.
func (s *S3) sample(ctx context.Context) (*hearth.Object, error) {
	var found *hearth.Object
	err := s.List(ctx, hearth.Listing{Prefix: s.prefix, Recursive: true, Limit: 100}, func(o hearth.Object) error {
		if o.Size > 0 && found == nil {
			found = &o
		}
		return nil
	})
	return found, err
}

func (s *S3) probeRange(ctx context.Context, o *hearth.Object) error {
	body, err := s.Read(ctx, o, o.Size-1, 1)
	if errors.Is(err, hearth.ErrStale) {
		// It changed since it was listed; if it did not, list and get disagree.
		if *o, err = s.Head(ctx, o.Key); err == nil {
			body, err = s.Read(ctx, o, o.Size-1, 1)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile: it could be asked, and that is all
		}
	}
	if err != nil {
		return err
	}
	defer body.Close()
	var p [1]byte
	if _, err := body.Read(p[:]); err != nil {
		return err
	}
	return nil
}

func (s *S3) probeIfMatch(ctx context.Context, o *hearth.Object) (bool, error) {
	c, err := s.slot(ctx)
	if err != nil {
		return false, err
	}
	defer c.release()
	a, err := s.ask(ctx, &call{op: "get", method: http.MethodGet, key: o.Key, off: 0, n: 1, etag: "hearth-probe"}, &budget{Retry: s.retry})
	var e *Error
	switch {
	case err == nil:
		a.close()
		return false, nil
	case errors.As(err, &e) && e.Status == http.StatusPreconditionFailed:
		return true, nil
	case errors.As(err, &e) && e.Status/100 == 4:
		return false, nil // it does not know the question
	}
	return false, fmt.Errorf("probe If-Match: %w", err)
}
