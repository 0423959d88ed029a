package origin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/hearthfs/hearth"
)

// Probe lists below the prefix, reads one byte of an object with a range, and asks for that byte under
// an ETag that the object does not have. An origin that cannot list, or answers a range wrongly, is
// unusable. One that ignores or refuses If-Match is usable.
//
// An object may be unreadable by itself, when it is archived or its encryption key is disabled. Then
// others are tried, and Abilities.Passed tells of the first.
func (s *S3) Probe(ctx context.Context) (Abilities, error) {
	a, err := s.probe(ctx)
	var e *Error
	if errors.As(err, &e) && classify(err) == transient && s.speaksTLS(ctx) {
		e.Err = fmt.Errorf("%w: %w", errSpeaksTLS, e.Err)
	}
	return a, err
}

// speaksTLS reports whether a port that met HTTP with silence or a closed connection speaks HTTPS. It
// sends nothing beyond the TLS handshake.
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
	until := start.Add(3 * s.silence.Read) // each object with contradicting answers takes a whole retry budget
	after, passed, refusal := "", error(nil), error(nil)
	for range samples {
		tries, next, err := s.sample(ctx, after)
		if err != nil {
			return a, err
		}
		if a.Region == "" {
			a.RoundTrip, a.Region = time.Since(start), s.place.Load().region
		}
		for _, o := range tries {
			a.Objects, a.StrongETag = true, o.Cacheable()
			start = time.Now()
			listed := o
			if err = s.readable(ctx, &o); err == nil {
				a.Range, a.RoundTrip = true, min(a.RoundTrip, time.Since(start))
				if err = s.agree(ctx, &a, &listed, &o); err != nil {
					return a, err
				}
				a.IfMatch, err = s.probeIfMatch(ctx, &o)
				a.Passed = told(passed)
				return a, err
			}
			if !OfOne(err) || time.Now().After(until) && !errors.Is(err, hearth.ErrArchived) {
				return a, cmp.Or(refusal, err)
			}
			if passed = cmp.Or(passed, err); !errors.Is(err, hearth.ErrArchived) {
				refusal = cmp.Or(refusal, err)
			}
		}
		if after = next; after == "" {
			break
		}
	}
	a.Passed = told(passed)
	return a, refusal // nil: all that was tried is archived; names can be shown, and restored objects read
}

// told is the text of Abilities.Passed for an error.
func told(err error) string {
	if err == nil {
		return ""
	}
	return Explain(err)
}

// samples is in how many places of a bucket a readable object is looked for.
const samples = 4

// sample chooses objects with bytes to try, among a hundred keys after a name: the first one, the first
// in no archive class, and the last such one. next is a name after the top directory of the last key,
// where other rules may hold; "" means that there are no more keys. Where the listing tells no sizes, a
// HEAD tells that of the first object that may have bytes.
func (s *S3) sample(ctx context.Context, after string) (tries []hearth.Object, next string, err error) {
	const most = 100
	var page []hearth.Object
	keys, last, vague := 0, "", ""
	err = s.List(ctx, hearth.Listing{Prefix: s.prefix, After: after, Recursive: true, Limit: most}, func(o hearth.Object) error {
		if keys, last = keys+1, o.Key; o.Size > 0 {
			page = append(page, o)
		}
		if o.Vague() && vague == "" {
			vague = o.Key
		}
		return nil
	})
	if keys == most {
		next = last
		if dir, ok := deeper(s.prefix, last); ok {
			next = dir + "\U0010FFFF"
		}
	}
	plain := func(o hearth.Object) bool { return !o.Archived() }
	first := slices.IndexFunc(page, plain)
	if first != 0 && len(page) > 0 {
		tries = append(tries, page[0])
	}
	if first >= 0 {
		tries = append(tries, page[first])
	}
	slices.Reverse(page)
	if last := slices.IndexFunc(page, plain); last >= 0 && len(page)-1-last > first {
		tries = append(tries, page[last])
	}
	if err == nil && len(page) == 0 && vague != "" {
		if told, err := s.Head(ctx, vague); err == nil && told.Size > 0 {
			tries = append(tries, told)
		}
	}
	return tries, next, err
}

// readable is probeRange. If the server rejects If-Match as an error, or matches no version by it,
// readable tries without.
func (s *S3) readable(ctx context.Context, o *hearth.Object) error {
	err := s.probeRange(ctx, o)
	var e *Error
	mistaken := errors.Is(err, errHeads) || errors.As(err, &e) && e.Status == http.StatusBadRequest
	if !mistaken || s.shown.plain.Swap(true) {
		return err
	}
	again := s.probeRange(ctx, o)
	if s.shown.plain.Store(false); again != nil {
		if errors.Is(err, errHeads) {
			return err // If-Match was not the cause
		}
		return again
	}
	if s.probeRange(ctx, o) != nil { // if it passes now, the object had only changed meanwhile
		s.shown.plain.Store(true)
	}
	return nil
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
		if errors.Is(err, hearth.ErrStale) {
			return s.wrap("probe", o.Key, fmt.Errorf("%w: GET has neither what is listed nor ETag %q of %d bytes, as HEAD says", errHeads, o.ETag, o.Size))
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
	if s.shown.plain.Load() {
		return false, nil
	}
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
	case errors.As(err, &e) && (e.Status/100 == 4 || e.Status == http.StatusNotImplemented):
		return false, nil // it does not know If-Match
	}
	return false, fmt.Errorf("probe If-Match: %w", err)
}
