package sign

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Any signs a request of any method, headers, query and body at a given time. X-Amz-Content-Sha256 must
// be set: it says what the signature covers of the body, in one of the forms that S3 knows. Any covers
// host, Content-Type, Content-MD5 and every x-amz-* header. That is what S3 demands, and no more, so
// that a proxy on the way may change the rest. It changes neither path nor query: the origin decodes
// both before it compares, so any encoding is right.
//
// minio-go's signer gives the same signature where it follows S3. But it sorts the query, drops what
// net/url cannot parse, and replaces bytes that are not UTF-8 with U+FFFD.
func (s *Signer) Any(r *http.Request, v credentials.Value, region string, now time.Time) {
	at := now.UTC().Format("20060102T150405Z")
	r.Header["X-Amz-Date"] = []string{at}
	if v.SessionToken != "" {
		r.Header["X-Amz-Security-Token"] = []string{v.SessionToken}
	}
	k := s.keyFor(at[:8], region, v.SecretAccessKey)
	var space [2048]byte
	b := append(append(space[:0], r.Method...), '\n')
	b = append(append(b, Encode(r.URL.Path, true)...), '\n')
	b = append(appendQuery(b, r.URL.RawQuery), '\n')
	covered := covered(r.Header)
	for _, h := range covered {
		b = append(append(b, h.lower...), ':')
		if h.name == "" {
			b = append(b, r.Host...)
		}
		for i, value := range r.Header[h.name] {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendTrimmed(b, value)
		}
		b = append(b, '\n')
	}
	b = append(b, '\n')
	from := len(b)
	for i, h := range covered {
		if i > 0 {
			b = append(b, ';')
		}
		b = append(b, h.lower...)
	}
	names := string(b[from:])
	b = append(append(b, '\n'), r.Header.Get("X-Amz-Content-Sha256")...)
	canonical := sha256.Sum256(b)

	b = append(append(append(space[:0], "AWS4-HMAC-SHA256\n"...), at...), '\n')
	b = hex.AppendEncode(append(append(b, k.scope...), '\n'), canonical[:])
	signature := mac(k.key[:], string(b))
	r.Header["Authorization"] = []string{"AWS4-HMAC-SHA256 Credential=" + v.AccessKeyID + "/" + k.scope +
		", SignedHeaders=" + names + ", Signature=" + hex.EncodeToString(signature[:])}
}

// header is one that a signature covers: its name in the request, and its name as it is signed. The
// host has no name, since net/http keeps it apart.
type header struct{ name, lower string }

// covered are the headers that are signed, sorted.
func covered(h http.Header) []header {
	all := append(make([]header, 0, 16), header{"", "host"})
	for name := range h {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-amz-") || lower == "content-type" || lower == "content-md5" {
			all = append(all, header{name, lower})
		}
	}
	slices.SortFunc(all, func(a, b header) int { return strings.Compare(a.lower, b.lower) })
	return all
}

// appendTrimmed adds a value without leading and trailing spaces, with runs of spaces collapsed to one.
func appendTrimmed(b []byte, value string) []byte {
	value = strings.Trim(value, " \t")
	for i := range len(value) {
		if value[i] != ' ' || value[i-1] != ' ' {
			b = append(b, value[i])
		}
	}
	return b
}

// appendQuery adds a query as it is signed: decoded, encoded anew, sorted by name, then by value. A "+"
// is a space, as in every S3 server. A bad escape is taken literally.
func appendQuery(b []byte, raw string) []byte {
	if raw == "" {
		return b
	}
	pairs := make([][2]string, 0, 8)
	for pair := range strings.SplitSeq(raw, "&") {
		if pair != "" {
			name, value, _ := strings.Cut(pair, "=")
			pairs = append(pairs, [2]string{Encode(unescape(name), false), Encode(unescape(value), false)})
		}
	}
	slices.SortStableFunc(pairs, func(x, y [2]string) int {
		if c := strings.Compare(x[0], y[0]); c != 0 {
			return c
		}
		return strings.Compare(x[1], y[1])
	})
	for _, p := range pairs {
		b = append(append(append(append(b, p[0]...), '='), p[1]...), '&')
	}
	return bytes.TrimSuffix(b, []byte("&"))
}

func unescape(s string) string {
	if plain, err := url.QueryUnescape(s); err == nil {
		return plain
	}
	return s
}
