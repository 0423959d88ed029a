package object

import (
	"net/http"
	"strings"
	"time"
)

// conditions are a request's preconditions, each as it was sent; "" means that there is none.
type conditions struct {
	match, noneMatch   string
	unmodified, modify string // If-Unmodified-Since, If-Modified-Since
}

// verdict is the answer that the conditions of a request lead to.
type verdict uint8

const (
	send        verdict = iota // the object or range itself
	notModified                // 304
	unsure                     // or 412: the origin decides both
)

// judge follows RFC 9110, section 13.2.2, as far as Amazon, MinIO and versitygw do (tried).
// If-Match, if it holds, makes If-Unmodified-Since void. If-None-Match, if it matches, makes
// If-Modified-Since void. If it does not match, servers differ about an If-Modified-Since that
// would mean 304. They also differ about times in the future. modified is in whole seconds; the
// zero time means that it is not known.
func (c *conditions) judge(etag string, modified, now time.Time) verdict {
	if *c == (conditions{}) {
		return send
	}
	before, ok := date(c.unmodified)
	since, ok2 := date(c.modify)
	if !ok || !ok2 || modified.IsZero() && c.unmodified+c.modify != "" {
		return unsure
	}
	switch {
	case c.match != "":
		if listed(c.match, etag) != yes {
			return unsure
		}
	case c.unmodified != "" && modified.After(before):
		return unsure
	}
	changed := c.modify == "" || modified.After(since)
	switch listed(c.noneMatch, etag) {
	case yes:
		return notModified
	case maybe:
		return unsure
	}
	switch {
	case changed:
		return send
	case c.noneMatch != "" || since.After(now):
		return unsure
	}
	return notModified
}

// opinion is whether a list of ETags holds a given one.
type opinion uint8

const (
	no opinion = iota
	yes
	maybe // servers differ
)

// listed looks for a strong ETag, given without its quotes, in an If-Match or If-None-Match. It
// returns yes if the list is exactly that one, and no for a well-formed list of others. All else is
// maybe, since servers differ: one of several, "*", weak ETags, and ETags without quotes. versitygw
// and MinIO compare the whole list with the ETag.
func listed(list, etag string) opinion {
	if list == "" {
		return no
	}
	if len(list) == len(etag)+2 && list[0] == '"' && list[1:len(list)-1] == etag && list[len(list)-1] == '"' {
		return yes
	}
	for rest := list; ; {
		tag, after, ok := quoted(rest)
		if !ok || tag == etag {
			return maybe
		}
		after = strings.TrimLeft(after, " \t")
		if after == "" {
			return no
		}
		if after[0] != ',' {
			return maybe
		}
		rest = strings.TrimLeft(after[1:], " \t")
	}
}

// quoted cuts a strong ETag (RFC 9110, section 8.8.3) from the beginning of s.
func quoted(s string) (tag, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[1:i], s[i+1:], true
		case c <= ' ' || c == 0x7f:
			return "", "", false
		}
	}
	return "", "", false
}

// date reads a date in the one form that is in use today (RFC 9110: IMF-fixdate). An empty text is
// the zero time.
func date(s string) (time.Time, bool) {
	if s == "" {
		return time.Time{}, true
	}
	t, err := time.Parse(http.TimeFormat, s)
	if err != nil {
		return time.Time{}, false
	}
	var space [len(http.TimeFormat)]byte // Parse would take "9" for a day, and any weekday
	return t, string(t.AppendFormat(space[:0], http.TimeFormat)) == s
}
