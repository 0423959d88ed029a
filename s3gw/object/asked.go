package object

import (
	"net/http"
	"net/url"
	"strings"
)

// asked holds the parts of a request that change its answer.
type asked struct {
	conditions
	span      string // the Range header; "" means the whole object
	checksums bool
	overrides []override
}

// override is a header that the client wants in the answer, by a response-* parameter.
type override struct{ name, value string }

// read takes from a request what changes its answer. sure is false if there is something that it
// does not understand.
func read(r *http.Request) (a asked, sure bool) {
	h := r.Header
	sure = len(h["If-Range"]) == 0
	var sums string
	for _, f := range [...]struct {
		to   *string
		from []string
	}{
		{&a.match, h["If-Match"]}, {&a.noneMatch, h["If-None-Match"]}, {&a.unmodified, h["If-Unmodified-Since"]},
		{&a.modify, h["If-Modified-Since"]}, {&a.span, h["Range"]}, {&sums, h["X-Amz-Checksum-Mode"]},
	} {
		if len(f.from) == 1 && f.from[0] != "" {
			*f.to = f.from[0]
		} else if len(f.from) > 0 {
			sure = false
		}
	}
	a.checksums = sums == "ENABLED" // servers differ about other spellings
	if !sure || sums != "" && !a.checksums {
		return a, false
	}
	a.overrides, sure = overrides(r.URL.RawQuery)
	return a, sure
}

// part is the range of an object to send: n bytes from off on, of size.
type part struct {
	off, n, size int64
	partial      bool // of a Range: the status is 206
}

// within reads a Range header: bytes=a-b, bytes=a- or bytes=-n, cut off at the object's end. ok is
// false if the header is anything else, or selects no byte of the object.
func within(s string, size int64) (p part, ok bool) {
	if s == "" {
		return part{n: size, size: size}, true
	}
	s, ok = strings.CutPrefix(s, "bytes=")
	from, to, dash := strings.Cut(s, "-")
	a, haveA := number(from)
	b, haveB := number(to)
	switch {
	case !ok || !dash || haveA == bad || haveB == bad || haveA == none && haveB == none:
		return part{}, false
	case haveA == none:
		a, b = max(0, size-b), size-1
	case haveB == none:
		b = size - 1
	}
	b = min(b, size-1)
	if a > b {
		return part{}, false
	}
	return part{off: a, n: b - a + 1, size: size, partial: true}, true
}

type digits uint8

const (
	none digits = iota
	some
	bad
)

// number reads up to 18 decimal digits, which an int64 holds.
func number(s string) (n int64, d digits) {
	if len(s) > 18 {
		return 0, bad
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, bad
		}
		n = n*10 + int64(s[i]-'0')
	}
	if s == "" {
		return 0, none
	}
	return n, some
}

const (
	// maxQuery is more than a presigned URL has. The origin answers longer ones.
	maxQuery = 16 << 10
	// maxOverride is the longest value in bytes of an override that is answered here.
	maxOverride = 1024
)

// overrides finds the response-* parameters of a query (GetObject in Amazon's API reference).
func overrides(raw string) (found []override, sure bool) {
	if len(raw) > maxQuery {
		return nil, false
	}
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		name, value, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name) // allocates only if there is an escape
		if err != nil || strings.Contains(pair, ";") {
			return nil, false
		}
		if !strings.HasPrefix(name, "response-") {
			continue
		}
		value, err = url.QueryUnescape(value)
		name = overridden(name)
		if err != nil || name == "" || !plain(value) {
			return nil, false
		}
		if _, ok := date(value); name == "Expires" && !ok {
			return nil, false
		}
		for _, f := range found {
			if f.name == name {
				return nil, false
			}
		}
		found = append(found, override{name, value})
	}
	return found, true
}

// overridden returns the header that a parameter sets; "" means that the parameter is not known.
func overridden(parameter string) string {
	switch parameter {
	case "response-content-type":
		return "Content-Type"
	case "response-content-language":
		return "Content-Language"
	case "response-expires":
		return "Expires"
	case "response-cache-control":
		return "Cache-Control"
	case "response-content-disposition":
		return "Content-Disposition"
	case "response-content-encoding":
		return "Content-Encoding"
	}
	return ""
}

// plain reports whether every server would send s as it is. An empty value sets the header at some
// servers and does nothing at others.
func plain(s string) bool {
	if s == "" || len(s) > maxOverride || s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
