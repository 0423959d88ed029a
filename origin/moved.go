package origin

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// mostMoves bounds the redirects of one request.
const mostMoves = 3

// elsewhere is the place that an answer redirects a request to, which is signed anew for it. Nil means
// that it does not. S3 redirects while a bucket's name is not known everywhere yet ("Making requests
// using the REST API" in the S3 user guide), other servers to spread load. The scheme and the query
// must stay the same: a Location that is signed already is for the server's own kind of clients.
func (s *S3) elsewhere(err error, from *place, query string) *place {
	var e *Error
	if !errors.As(err, &e) || e.Status != http.StatusTemporaryRedirect && e.Status != http.StatusPermanentRedirect || e.location == "" {
		return nil
	}
	to, err := url.Parse(e.location)
	if err != nil {
		return nil
	}
	if from == nil {
		from = s.place.Load()
	}
	at := &place{region: from.region, scheme: from.scheme, host: to.Host, base: to.Path}
	switch {
	case to.Host == "" && strings.HasPrefix(to.Path, "/"):
		at.host = from.host
	case to.Scheme != from.scheme || to.Path == "":
		return nil
	}
	if to.RawQuery != "" && !sameQuery(to.RawQuery, query) {
		return nil
	}
	return at
}

// sameQuery reports whether two queries ask the same, in whatever order and encoding.
func sameQuery(a, b string) bool {
	x, err1 := url.ParseQuery(a)
	y, err2 := url.ParseQuery(b)
	if err1 != nil || err2 != nil || len(x) != len(y) {
		return false
	}
	for name, values := range x {
		if !slices.Equal(values, y[name]) {
			return false
		}
	}
	return true
}

// sentOn adds to an error the place that the request was redirected to, and who did that.
func (s *S3) sentOn(err error, at *place) error {
	if at == nil {
		return err
	}
	e := new(Error)
	if !errors.As(err, &e) {
		e = &Error{Err: err}
		err = e
	}
	e.via, e.Endpoint = s.place.Load().url(), at.url()
	return err
}

// movedTo is the host that an answer names as the place of what was asked for; "" means none.
func (e *Error) movedTo() string {
	to, err := url.Parse(e.location)
	if err != nil || to.Host == "" || e.Status/100 != 3 {
		return ""
	}
	return to.Scheme + "://" + to.Host
}
