package request

import (
	"net/http"
	"strings"
)

// Source is the object that a copy reads.
type Source struct {
	Bucket, Key string
	// Version is its versionId, "" for the current version.
	Version string

	// spaced is Key with + read as a space, "" where there is no +. Amazon reads it so, MinIO does
	// not: a client needs the right to both.
	spaced string
}

// copies reads x-amz-copy-source from the headers or the query.
func (q *Request) copies(h http.Header, p *params) *Error {
	values := h["X-Amz-Copy-Source"]
	raw := p.source
	switch n := len(values) + p.sources; {
	case n == 0:
		return nil
	case n > 1:
		return New("InvalidArgument", "There is more than one x-amz-copy-source")
	case p.sources == 0:
		raw = values[0]
	}
	s, ok := source(raw)
	if ok && !id(s.Version) {
		return New("InvalidArgument", "The versionId of x-amz-copy-source has letters, digits and ._~+=- alone, and is not made of dots")
	}
	if !ok {
		return New("InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey, percent-encoded")
	}
	q.Source = s
	return nil
}

// source reads BUCKET/KEY, percent-encoded as a whole or in parts, perhaps with a leading slash and
// with ?versionId=ID behind. It refuses what could be read as another object, too: a fragment, a
// second question mark, a host, a control byte. For a control byte MinIO leaves all escapes
// undecoded.
func source(raw string) (*Source, bool) {
	path, version, versioned := strings.Cut(raw, "?versionId=")
	if strings.ContainsFunc(raw, control) || strings.ContainsAny(path, "?#") || strings.ContainsAny(version, "?#&") || versioned && version == "" {
		return nil, false
	}
	s := &Source{}
	var ok bool
	if s.Version, ok = unescape(version, false); !ok {
		return nil, false
	}
	if s.Bucket, s.Key, ok = split(path, false); !ok || versions(s.Key) {
		return nil, false
	}
	if strings.Contains(path, "+") {
		_, s.spaced, ok = split(path, true)
	}
	return s, ok
}

// versions reports whether some server may read a version of another key in this one.
func versions(key string) bool {
	for key := range readings(key) {
		if strings.Contains(strings.ToLower(key), "?versionid=") {
			return true
		}
	}
	return false
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

func split(path string, spaces bool) (bucket, key string, ok bool) {
	path, ok = unescape(path, spaces)
	if !ok {
		return "", "", false
	}
	bucket, key, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return bucket, key, plausible(bucket) && key != "" && len(key) <= maxKey
}
