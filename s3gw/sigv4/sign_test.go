package sigv4

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The example key of Amazon's documentation.
const (
	testAccess = "AKIAIOSFODNN7EXAMPLE"
	testSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	testRegion = "us-east-1"
)

func testTime() time.Time { return time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC) }

func verifier(at time.Time) *Verifier {
	return New(Options{
		Secret: func(access string) (string, bool) { return testSecret, access == testAccess },
		Now:    func() time.Time { return at },
	})
}

// signer signs by the documentation, with nothing of the package: an oracle for requests that no
// other signer makes.
type signer struct {
	method, target, host string
	headers              [][2]string // as sent; those in lower case are signed
	payload              string
	at                   time.Time
	access, secret       string
	service              string
	region               string // "" means testRegion
	expires              int    // above 0 means presigned
	// canonicalPath, if set, replaces the path in the signature.
	canonicalPath string

	key  []byte
	seed string
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func (s *signer) stamp() string { return s.at.Format("20060102T150405Z") }

func (s *signer) scope() string {
	return s.at.Format("20060102") + "/" + cmp.Or(s.region, testRegion) + "/" + s.service + "/aws4_request"
}

func newSigner(method, target string) *signer {
	return &signer{method: method, target: target, host: "hearth:9000", payload: unsignedPayload, at: testTime(), access: testAccess, secret: testSecret, service: "s3"}
}

// request returns the signed request, with a body.
func (s *signer) request(t testing.TB, body string) *http.Request {
	t.Helper()
	path, query, _ := strings.Cut(s.target, "?")
	headers := slices.Clone(s.headers)
	if s.expires == 0 {
		headers = append(headers, [2]string{"x-amz-date", s.stamp()}, [2]string{"x-amz-content-sha256", s.payload})
	}
	lines := map[string][]string{"host": {s.host}}
	for _, h := range headers {
		if h[0] == strings.ToLower(h[0]) {
			lines[h[0]] = append(lines[h[0]], strings.Join(strings.Fields(h[1]), " "))
		}
	}
	var names []string
	for name := range lines {
		names = append(names, name)
	}
	slices.Sort(names)
	signed := strings.Join(names, ";")
	if s.expires > 0 {
		if query != "" {
			query += "&"
		}
		query += "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + url.QueryEscape(s.access+"/"+s.scope()) + "&X-Amz-Date=" + s.stamp() +
			"&X-Amz-Expires=" + strconv.Itoa(s.expires) + "&X-Amz-SignedHeaders=" + url.QueryEscape(signed)
	}
	canonical := s.method + "\n" + path + "\n"
	if s.canonicalPath != "" {
		canonical = s.method + "\n" + s.canonicalPath + "\n"
	}
	canonical += naiveQuery(t, query) + "\n"
	for _, name := range names {
		canonical += name + ":" + strings.Join(lines[name], ",") + "\n"
	}
	canonical += "\n" + signed + "\n" + s.payload
	s.key = []byte("AWS4" + s.secret)
	for part := range strings.SplitSeq(s.scope(), "/") {
		s.key = mac(s.key, part)
	}
	s.seed = hex.EncodeToString(mac(s.key, "AWS4-HMAC-SHA256\n"+s.stamp()+"\n"+s.scope()+"\n"+sum(canonical)))
	if s.expires > 0 {
		query += "&X-Amz-Signature=" + s.seed
	} else {
		headers = append(headers, [2]string{"Authorization", "AWS4-HMAC-SHA256 Credential=" + s.access + "/" + s.scope() + ", SignedHeaders=" + signed + ", Signature=" + s.seed})
	}
	if query != "" {
		query = "?" + query
	}
	raw := s.method + " " + path + query + " HTTP/1.1\r\nHost: " + s.host + "\r\n"
	for _, h := range headers {
		raw += h[0] + ": " + h[1] + "\r\n"
	}
	return parse(t, []byte(raw+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)))
}

// naiveQuery returns the canonical query by net/url.
func naiveQuery(t testing.TB, query string) string {
	type pair struct{ name, value string }
	var pairs []pair
	escape := func(s string) string {
		plain, err := url.QueryUnescape(s)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(url.QueryEscape(plain), "+", "%20")
	}
	for part := range strings.SplitSeq(query, "&") {
		if part != "" {
			name, value, _ := strings.Cut(part, "=")
			pairs = append(pairs, pair{escape(name), escape(value)})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return slices.Compare([]string{a.name, a.value}, []string{b.name, b.value})
	})
	var parts []string
	for _, p := range pairs {
		parts = append(parts, p.name+"="+p.value)
	}
	return strings.Join(parts, "&")
}

// chunked returns a body of signed chunks; trailers are lines "name:value".
func (s *signer) chunked(chunks []string, trailers ...string) string {
	var body strings.Builder
	previous := s.seed
	for _, chunk := range append(slices.Clone(chunks), "") {
		previous = hex.EncodeToString(mac(s.key, strings.Join([]string{"AWS4-HMAC-SHA256-PAYLOAD", s.stamp(), s.scope(), previous, sum(""), sum(chunk)}, "\n")))
		fmt.Fprintf(&body, "%x;chunk-signature=%s\r\n%s", len(chunk), previous, chunk)
		if chunk != "" {
			body.WriteString("\r\n")
		}
	}
	if trailers != nil {
		text := strings.Join(append(slices.Clone(trailers), ""), "\n")
		signature := hex.EncodeToString(mac(s.key, strings.Join([]string{"AWS4-HMAC-SHA256-TRAILER", s.stamp(), s.scope(), previous, sum(text)}, "\n")))
		body.WriteString(strings.ReplaceAll(text, "\n", "\r\n") + "x-amz-trailer-signature:" + signature + "\r\n")
	}
	body.WriteString("\r\n")
	return body.String()
}

// stream returns a signed request whose body is signed chunks.
func stream(t testing.TB, chunks []string, trailers ...string) (*signer, *http.Request) {
	s := newSigner("PUT", "/bucket/key")
	s.payload = signedChunks
	size := len(strings.Join(chunks, ""))
	s.headers = [][2]string{{"x-amz-decoded-content-length", strconv.Itoa(size)}, {"content-encoding", "aws-chunked"}}
	if trailers != nil {
		s.payload = signedTrailing
		for _, line := range trailers {
			name, _, _ := strings.Cut(line, ":")
			s.headers = append(s.headers, [2]string{"x-amz-trailer", name})
		}
	}
	s.request(t, "")
	return s, s.request(t, s.chunked(chunks, trailers...))
}

// parse reads a request as a server does.
func parse(t testing.TB, raw []byte) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufioReader(bytes.NewReader(raw)))
	if err != nil {
		t.Fatalf("%v in %.200q", err, raw)
	}
	return r
}
