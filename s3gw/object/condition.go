package object

import (
	"net/http"
	"strings"
	"time"
)

// conditions are a request's preconditions, each as it was sent; "" is none.
type conditions struct {
	match, noneMatch   string
	unmodified, modify string // If-Unmodified-Since, If-Modified-Since
}

// verdict is what becomes of a request by its conditions.
type verdict uint8

const (
	send        verdict = iota // what was asked for
	notModified                // 304
	unsure                     // or 412: both are the origin's to say
)

// judge follows RFC 9110, section 13.2.2, where Amazon, MinIO and versitygw do so, too (tried):
// If-Match, if it holds, makes If-Unmodified-Since void; If-None-Match, if it matches, makes
// If-Modified-Since void. If it does not match, servers differ about an If-Modified-Since that
// would say 304, and they differ about what lies in the future. modified is in whole seconds; a
// zero time is not known.
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

// opinion is whether a list of ETags has the one that is asked for.
type opinion uint8

const (
	no opinion = iota
	yes
	maybe // servers differ
)

// listed looks for a strong ETag, given without its quotes, in an If-Match or If-None-Match. It
// says yes to exactly that one, and no to a list of others, well written. About it being one of
// several, about "*", about weak ones and about such as have no quotes servers differ: versitygw
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

// date reads a date in the one form that is written today (RFC 9110: IMF-fixdate). An empty one
// is the zero time.
func date(s string) (time.Time, bool) {
	if s == "" {
		return time.Time{}, true
	}
	t, err := time.Parse(http.TimeFormat, s)
	if err != nil {
		return time.Time{}, false
	}
	var space [len(http.TimeFormat)]byte // Parse takes "9" for a day and any weekday
	return t, string(t.AppendFormat(space[:0], http.TimeFormat)) == s
}
