package sigv4

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/s3gw/request"
)

// work holds the buffers of a verification; the next one reuses them.
type work struct {
	pairs []pair   // of the query, sorted
	names []string // of the signed headers
	text  []byte   // the canonical request
	sign  message
}

// pair is a parameter of a query, both parts in canonical encoding.
type pair struct{ name, value string }

// split splits a query into pairs, sorted by encoded name and then by encoded value.
func (w *work) split(query string) error {
	w.pairs = w.pairs[:0]
	if len(query) > maxText {
		return request.New("InvalidURI", "The query is longer than %d bytes", maxText)
	}
	for rest := query; rest != ""; {
		var part string
		if part, rest, _ = strings.Cut(rest, "&"); part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, ok := encoded(name, false)
		value, also := encoded(value, false)
		if !ok || !also || len(w.pairs) == maxPairs {
			return request.New("InvalidURI", "Couldn't parse the specified URI: the query has a wrong %%-escape, or more than %d parameters", maxPairs)
		}
		w.pairs = append(w.pairs, pair{name, value})
	}
	slices.SortFunc(w.pairs, func(a, b pair) int {
		if by := strings.Compare(a.name, b.name); by != 0 {
			return by
		}
		return strings.Compare(a.value, b.value)
	})
	return nil
}

// covered checks that the host, each x-amz-* header and each x-minio-* header are signed. Otherwise
// the holder of a presigned URL could, for example, remove more by it than its signer meant.
func (w *work) covered(r *http.Request, c *claim) error {
	if !slices.Contains(w.names, "host") {
		return request.New("AccessDenied", "There were headers present in the request which were not signed: host")
	}
	for name := range r.Header {
		if !begins(name, "x-amz-") && !begins(name, "x-minio-") {
			continue
		}
		if !slices.ContainsFunc(w.names, func(signed string) bool { return len(signed) == len(name) && strings.EqualFold(signed, name) }) {
			return request.New("AccessDenied", "There were headers present in the request which were not signed: %s", strings.ToLower(name))
		}
	}
	return nil
}

func begins(name, with string) bool {
	return len(name) >= len(with) && strings.EqualFold(name[:len(with)], with)
}

// signature returns the right signature of a claim, in hexadecimal, for one form of path and host.
func (w *work) signature(r *http.Request, c *claim, key *[32]byte, form [2]string) [64]byte {
	w.canonical(r, c, form)
	sum := sha256.Sum256(w.text)
	m := w.sign.begin(algorithm)
	m = append(append(m, '\n'), c.stamp...)
	m = append(append(m, '\n'), c.scope...)
	m = append(m, '\n')
	w.sign = hex.AppendEncode(m, sum[:])
	return w.sign.mac(key)
}

// canonical writes the canonical request.
func (w *work) canonical(r *http.Request, c *claim, form [2]string) {
	t := append(w.text[:0], r.Method...)
	t = append(append(t, '\n'), form[0]...)
	t = append(t, '\n')
	first := true
	for _, p := range w.pairs {
		if c.presigned && p.name == "X-Amz-Signature" {
			continue
		}
		if !first {
			t = append(t, '&')
		}
		first = false
		t = append(append(append(t, p.name...), '='), p.value...)
	}
	t = append(t, '\n')
	for _, name := range w.names {
		t = append(append(t, name...), ':')
		t = appendHeader(t, r, name, form[1])
		t = append(t, '\n')
	}
	t = append(append(t, '\n'), c.names...)
	w.text = append(append(t, '\n'), c.payload...)
}

// appendHeader appends the canonical value of a header. Host, Content-Length and
// Transfer-Encoding are where net/http keeps them.
func appendHeader(t []byte, r *http.Request, name, host string) []byte {
	values := r.Header[headerKey(name)]
	switch {
	case name == "host":
		return appendTrimmed(t, host)
	case name == "content-length" && len(values) == 0 && r.ContentLength >= 0:
		return strconv.AppendInt(t, r.ContentLength, 10)
	case name == "transfer-encoding":
		values = r.TransferEncoding
	}
	for i, v := range values {
		if i > 0 {
			t = append(t, ',')
		}
		t = appendTrimmed(t, v)
	}
	return t
}

// headerKey returns net/http's form of a header's name. It allocates no string for the usual names.
func headerKey(name string) string {
	switch name {
	case "x-amz-date":
		return "X-Amz-Date"
	case "x-amz-content-sha256":
		return "X-Amz-Content-Sha256"
	case "amz-sdk-invocation-id":
		return "Amz-Sdk-Invocation-Id"
	case "amz-sdk-request":
		return "Amz-Sdk-Request"
	}
	return http.CanonicalHeaderKey(name)
}

// appendTrimmed appends a value without blanks at its ends; each run of blanks within becomes one.
func appendTrimmed(t []byte, value string) []byte {
	begin, blank := len(t), false
	for i := range len(value) {
		c := value[i]
		if c == ' ' || c == '\t' {
			blank = true
			continue
		}
		if blank && len(t) > begin {
			t = append(t, ' ')
		}
		blank = false
		t = append(t, c)
	}
	return t
}

// sentPath returns the path as the client sent it.
func sentPath(r *http.Request) string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.EscapedPath()
	}
	if path == "" {
		return "/"
	}
	return path
}

// encodedPath returns the canonical encoding of a path: decoded once and encoded again.
func encodedPath(sent string) string {
	if path, ok := encoded(sent, true); ok {
		return path
	}
	return sent
}

// encoded returns the canonical encoding of a part of a URL. Unreserved characters (RFC 3986) stay
// as they are, in a path slashes too; others become %XX in upper case. A canonical text is returned
// itself; ok is false if an escape is malformed.
func encoded(s string, path bool) (string, bool) {
	if isEncoded(s, path) {
		return s, true
	}
	t := make([]byte, 0, len(s)+32)
	for at := 0; at < len(s); at++ {
		c := s[at]
		switch {
		case c == '%':
			if at+2 >= len(s) || digit(s[at+1]) > 15 || digit(s[at+2]) > 15 {
				return s, false
			}
			c = digit(s[at+1])<<4 | digit(s[at+2])
			at += 2
		case c == '+' && !path:
			c = ' '
		}
		if unreserved(c) || path && c == '/' {
			t = append(t, c)
			continue
		}
		t = append(t, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
	}
	return string(t), true
}

// isEncoded reports whether a part of a URL is in canonical encoding.
func isEncoded(s string, path bool) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if unreserved(c) || path && c == '/' {
			continue
		}
		if c != '%' || i+2 >= len(s) || !upperHex(s[i+1]) || !upperHex(s[i+2]) {
			return false
		}
		c = digit(s[i+1])<<4 | digit(s[i+2])
		if unreserved(c) || path && c == '/' {
			return false
		}
		i += 2
	}
	return true
}

func upperHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }

// decoded decodes a text that is in canonical encoding.
func decoded(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	t := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			c = digit(s[i+1])<<4 | digit(s[i+2])
			i += 2
		}
		t = append(t, c)
	}
	return string(t)
}

// digit returns the value of a hexadecimal digit; 16 or more means that it is none.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~'
}
