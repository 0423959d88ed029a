package sigv4

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func hexMAC(key []byte, text string) string { return hex.EncodeToString(mac(key, text)) }

func TestRefused(t *testing.T) {
	// Each wrong request gets Amazon's code, and a message without the secret.
	auth := func(old, new string) func(*http.Request) {
		return func(r *http.Request) {
			value := r.Header.Get("Authorization")
			if !strings.Contains(value, old) {
				panic(old)
			}
			r.Header.Set("Authorization", strings.Replace(value, old, new, 1))
		}
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	only := func(change func(*http.Request)) func(*http.Request) {
		return func(r *http.Request) {
			r.Header = http.Header{}
			change(r)
		}
	}
	query := func(q string) func(*http.Request) { return func(r *http.Request) { r.URL.RawQuery = q } }
	for name, c := range map[string]struct {
		sign   func(*signer)
		change func(*http.Request)
		want   string
	}{
		"unknown key":       {nil, auth("AKIAIOSFODNN7", "AKIAIOSFODNN8"), "InvalidAccessKeyId"},
		"wrong secret":      {func(s *signer) { s.secret = "x" }, nil, "SignatureDoesNotMatch"},
		"path":              {nil, func(r *http.Request) { r.URL.Path = "/bucket/kez" }, "SignatureDoesNotMatch"},
		"method":            {nil, func(r *http.Request) { r.Method = "HEAD" }, "SignatureDoesNotMatch"},
		"query":             {nil, query("a"), "SignatureDoesNotMatch"},
		"host":              {nil, func(r *http.Request) { r.Host = "other:9000" }, "SignatureDoesNotMatch"},
		"port":              {nil, func(r *http.Request) { r.Host = "hearth:9001" }, "SignatureDoesNotMatch"},
		"payload":           {nil, set("X-Amz-Content-Sha256", emptySum), "SignatureDoesNotMatch"},
		"odd payload":       {func(s *signer) { s.payload = "UNSIGNED" }, nil, "InvalidArgument"},
		"no payload":        {nil, func(r *http.Request) { r.Header.Del("X-Amz-Content-Sha256"); r.ContentLength = 3 }, "InvalidRequest"},
		"not signed":        {nil, set("X-Amz-Meta-More", "1"), "AccessDenied"},
		"MinIO's":           {nil, set("X-Minio-Force-Delete", "true"), "AccessDenied"},
		"MinIO's presigned": {func(s *signer) { s.method, s.expires = "DELETE", 60 }, set("X-Minio-Force-Delete", "true"), "AccessDenied"},
		"host not signed":   {nil, auth("=host;", "="), "AccessDenied"},
		"old":               {func(s *signer) { s.at = s.at.Add(-15*time.Minute - time.Second) }, nil, "RequestTimeTooSkewed"},
		"ahead":             {func(s *signer) { s.at = s.at.Add(15*time.Minute + time.Second) }, nil, "RequestTimeTooSkewed"},
		"no date":           {nil, func(r *http.Request) { r.Header.Del("X-Amz-Date") }, "AccessDenied"},
		"bad date":          {nil, set("X-Amz-Date", "20130524T000000.0Z"), "AccessDenied"},
		"two dates":         {nil, func(r *http.Request) { r.Header.Add("X-Amz-Date", "20130524T000000Z") }, "InvalidArgument"},
		"other day":         {nil, auth("/20130524/", "/20130523/"), "AuthorizationHeaderMalformed"},
		"other region":      {nil, auth("us-east-1", "eu-west-1"), "AuthorizationHeaderMalformed"},
		"other service":     {func(s *signer) { s.service = "ec2" }, nil, "AuthorizationHeaderMalformed"},
		"other end":         {nil, auth("aws4_request", "aws5_request"), "AuthorizationHeaderMalformed"},
		"no access":         {nil, auth(testAccess, ""), "AuthorizationHeaderMalformed"},
		"no credential":     {nil, auth("Credential=", "Credentials="), "AuthorizationHeaderMalformed"},
		"short credential":  {nil, auth("/s3/aws4_request", ""), "AuthorizationHeaderMalformed"},
		"twice":             {nil, auth("SignedHeaders=", "Signature=x, SignedHeaders="), "AuthorizationHeaderMalformed"},
		"no signature":      {nil, auth("Signature=", "Signature=, X="), "AuthorizationHeaderMalformed"},
		"upper-case names":  {nil, auth("=host;", "=Host;"), "AuthorizationHeaderMalformed"},
		"empty name":        {nil, auth("=host;", "=host;;"), "AuthorizationHeaderMalformed"},
		"many names":        {nil, auth("=host;", "="+strings.Repeat("a;", maxNames)+"host;"), "AuthorizationHeaderMalformed"},
		"long":              {nil, auth("Credential=", "Credential="+strings.Repeat("a", maxText)), "AuthorizationHeaderMalformed"},
		"two headers":       {nil, func(r *http.Request) { r.Header.Add("Authorization", "x") }, "InvalidArgument"},
		"header and query":  {nil, query("X-Amz-Algorithm=AWS4-HMAC-SHA256"), "InvalidArgument"},
		"token":             {nil, set("X-Amz-Security-Token", "x"), "InvalidToken"},
		"basic":             {nil, set("Authorization", "Basic eDp5"), "InvalidArgument"},
		"nothing":           {nil, set("Authorization", ""), "InvalidArgument"},
		"v2":                {nil, set("Authorization", "AWS key:signature"), "InvalidRequest"},
		"v2 query":          {nil, only(query("AWSAccessKeyId=a&Expires=1&Signature=x")), "InvalidRequest"},
		"v4a":               {nil, set("Authorization", "AWS4-ECDSA-P256-SHA256 Credential=x"), "InvalidRequest"},
		"v4a query":         {nil, only(query("X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256&X-Amz-Signature=x")), "InvalidRequest"},
		"v4a body":          {func(s *signer) { s.payload = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD" }, nil, "InvalidRequest"},
		"form":              {func(s *signer) { s.method = "POST" }, only(set("Content-Type", "Multipart/Form-Data; boundary=x")), "NotImplemented"},
		"escape":            {nil, query("a=%zz"), "InvalidURI"},
		"cut escape":        {nil, query("a=%2"), "InvalidURI"},
		"many parameters":   {nil, query(strings.Repeat("a&", maxPairs+1)), "InvalidURI"},
		"long query":        {nil, query(strings.Repeat("a", maxText+1)), "InvalidURI"},
		"no decoded length": {func(s *signer) { s.payload = signedChunks }, nil, "MissingContentLength"},
		"bad decoded length": {func(s *signer) {
			s.payload = signedChunks
			s.headers = [][2]string{{"x-amz-decoded-content-length", "-1"}}
		}, nil, "InvalidArgument"},
		"no trailer announced": {func(s *signer) {
			s.payload = signedTrailing
			s.headers = [][2]string{{"x-amz-decoded-content-length", "1"}}
		}, nil, "InvalidRequest"},
		"odd trailer announced": {func(s *signer) {
			s.payload = signedTrailing
			s.headers = [][2]string{{"x-amz-decoded-content-length", "1"}, {"x-amz-trailer", "x-amz-meta-a"}}
		}, nil, "InvalidRequest"},
		"nobody's chunks": {func(s *signer) { s.payload = signedChunks }, func(r *http.Request) { r.Header.Del("Authorization") }, "AccessDenied"},
	} {
		s := newSigner("GET", "/bucket/key")
		if c.sign != nil {
			c.sign(s)
		}
		r := s.request(t, "")
		if c.change != nil {
			c.change(r)
		}
		v := verifier(testTime())
		v.options.Region = testRegion
		_, err := v.Verify(r)
		if code(err) != c.want || strings.Contains(err.Error(), testSecret) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestPresignedRefused(t *testing.T) {
	// A URL is valid for its time, and with each of its six parameters once.
	for name, c := range map[string]struct {
		at       time.Duration
		old, new string
		want     string
	}{
		"in time":           {time.Hour, "", "", ""},
		"expired":           {time.Hour + time.Second, "", "", "AccessDenied"},
		"in the skew":       {-15 * time.Minute, "", "", ""},
		"not yet":           {-15*time.Minute - time.Second, "", "", "AccessDenied"},
		"longer":            {0, "Expires=3600", "Expires=3601", "SignatureDoesNotMatch"},
		"too long":          {0, "Expires=3600", "Expires=604801", "AuthorizationQueryParametersError"},
		"for no time":       {0, "Expires=3600", "Expires=0", "AccessDenied"},
		"for none, ahead":   {-time.Minute, "Expires=3600", "Expires=0", "AccessDenied"},
		"negative":          {0, "Expires=3600", "Expires=-1", "AuthorizationQueryParametersError"},
		"no expires":        {0, "X-Amz-Expires", "X-Amz-Expire", "AuthorizationQueryParametersError"},
		"no signature":      {0, "X-Amz-Signature", "X-Amz-Sign", "AuthorizationQueryParametersError"},
		"no algorithm":      {0, "AWS4-HMAC", "AWS3-HMAC", "AuthorizationQueryParametersError"},
		"twice":             {0, "X-Amz-Expires", "X-Amz-Date=x&X-Amz-Expires", "AuthorizationQueryParametersError"},
		"bad date":          {0, "Date=2013", "Date=x013", "AuthorizationQueryParametersError"},
		"token":             {0, "X-Amz-Expires", "X-Amz-Security-Token=x&X-Amz-Expires", "InvalidToken"},
		"line end in names": {0, "SignedHeaders=host", "SignedHeaders=host%0A", "AuthorizationQueryParametersError"},
		"more":              {0, "X-Amz-Expires", "versionId=x&X-Amz-Expires", "SignatureDoesNotMatch"},
	} {
		s := newSigner("GET", "/bucket/key")
		s.expires = 3600
		r := s.request(t, "")
		if !strings.Contains(r.URL.RawQuery, c.old) {
			t.Fatal(name)
		}
		r.URL.RawQuery = strings.Replace(r.URL.RawQuery, c.old, c.new, 1)
		if _, err := verifier(testTime().Add(c.at)).Verify(r); code(err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	s := newSigner("GET", "/bucket/key")
	s.expires = 3600
	r := s.request(t, "")
	r.Header.Set("X-Amz-Meta-More", "1")
	if _, err := verifier(testTime()).Verify(r); code(err) != "AccessDenied" {
		t.Errorf("a header that is not signed: %v", err)
	}
}

func TestFlipped(t *testing.T) {
	// A request with any flipped bit (method, path, query, host, headers, body) is refused, unless
	// it still asks for the same.
	for _, expires := range []int{0, 600} {
		s := newSigner("PUT", "/bucket/a%20b/%C3%A9+c?partNumber=1&uploadId=x%2Fy&z")
		s.expires, s.payload = expires, sum("the body")
		s.headers = [][2]string{{"x-amz-meta-a", "one two"}, {"content-type", "text/x"}, {"if-match", `"e"`}}
		if expires > 0 {
			s.headers = append(s.headers, [2]string{"x-amz-content-sha256", s.payload})
		}
		right := s.request(t, "the body")
		raw := wireOf(right, "the body")
		for i := range raw {
			for bit := range 8 {
				changed := []byte(strings.Clone(raw))
				changed[i] ^= 1 << bit
				r, err := http.ReadRequest(bufioReader(strings.NewReader(string(changed))))
				if err != nil || same(r, right) {
					continue
				}
				got, err := verifier(testTime()).Verify(r)
				if err == nil && got.Access != "" {
					_, err = io.ReadAll(got.Body())
				}
				if err == nil && got.Access != "" {
					t.Errorf("accepted %.60q where %.60q was signed", changed[max(0, i-30):], raw[max(0, i-30):])
				}
			}
		}
	}
}

// wireOf returns a request in the form of the wire.
func wireOf(r *http.Request, body string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.URL.RequestURI(), r.Host)
	_ = r.Header.Write(&b)
	return b.String() + "\r\n" + body
}

// same reports whether two requests ask for the same. They may differ in the case of header names,
// in blanks, in the encoding of the same bytes, or in what nobody signs.
func same(a, b *http.Request) bool {
	query := func(r *http.Request) string { q, _ := url.ParseQuery(r.URL.RawQuery); return q.Encode() }
	if a.Method != b.Method || a.URL.Path != b.URL.Path || a.Host != b.Host || query(a) != query(b) || a.ContentLength != b.ContentLength {
		return false
	}
	for _, name := range []string{"Authorization", "Content-Type", "If-Match", "X-Amz-Meta-A", "X-Amz-Content-Sha256", "X-Amz-Date"} {
		if strings.Join(a.Header.Values(name), ",") != strings.Join(b.Header.Values(name), ",") {
			return false
		}
	}
	body, err := io.ReadAll(a.Body)
	a.Body = io.NopCloser(strings.NewReader(string(body)))
	return err == nil && string(body) == "the body"
}

func TestAnonymous(t *testing.T) {
	// A request without a signature is nobody's. Its body stays as it is, or is checked if it says
	// how.
	r := parse(t, []byte("PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"))
	s, err := verifier(testTime()).Verify(r)
	if err != nil || s.Access != "" || s.Length != 3 {
		t.Fatalf("%+v, %v", s, err)
	}
	if body, err := io.ReadAll(s.Body()); string(body) != "abc" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	r = parse(t, []byte("PUT /b/k HTTP/1.1\r\nHost: h\r\nX-Amz-Content-Sha256: "+emptySum+"\r\nContent-Length: 3\r\n\r\nabc"))
	if s, err = verifier(testTime()).Verify(r); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(s.Body()); code(err) != "XAmzContentSHA256Mismatch" {
		t.Error(err)
	}
}

func TestNothingReadBefore(t *testing.T) {
	// Verify reads nothing of the body, in any form, right or wrong: a client that waits for 100
	// Continue is not told to go on.
	for _, payload := range []string{unsignedPayload, sum("x"), signedChunks, signedTrailing, unsignedTrailing} {
		s := newSigner("PUT", "/bucket/key")
		s.payload = payload
		s.headers = [][2]string{{"x-amz-decoded-content-length", "1"}, {"x-amz-trailer", "x-amz-checksum-crc32"}}
		r := s.request(t, "")
		r.Body = untouchable{t}
		got, err := verifier(testTime()).Verify(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body()
		got.Payload()
		r.Method = "GET"
		if _, err := verifier(testTime()).Verify(r); code(err) != "SignatureDoesNotMatch" {
			t.Error(err)
		}
	}
}

type untouchable struct{ t *testing.T }

func (u untouchable) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }
func (u untouchable) Close() error             { return nil }

func TestNewSecret(t *testing.T) {
	// When a key's secret changes, the old one is no longer valid, though its derived key was
	// cached. And the cache is bounded.
	secret := testSecret
	v := New(Options{Secret: func(string) (string, bool) { return secret, true }, Now: testTime})
	for range 2 {
		if _, err := v.Verify(newSigner("GET", "/b/k").request(t, "")); err != nil {
			t.Fatal(err)
		}
	}
	if len(v.keys.keys) != 1 {
		t.Errorf("%d keys are kept", len(v.keys.keys))
	}
	secret = "another"
	if _, err := v.Verify(newSigner("GET", "/b/k").request(t, "")); code(err) != "SignatureDoesNotMatch" {
		t.Error(err)
	}
	for i := range 2 * maxKeys {
		v.keys.put(&claim{access: fmt.Sprint(i)}, secret, [32]byte{})
	}
	if len(v.keys.keys) > maxKeys {
		t.Errorf("%d keys are kept", len(v.keys.keys))
	}
}

func TestTheRegionsName(t *testing.T) {
	// A client may sign for any region, whose name is kept with the key. So the name is bounded in
	// bytes.
	for n, want := range map[int]string{1: "", maxRegion: "", maxRegion + 1: "Malformed", 10_000: "Malformed"} {
		for _, expires := range []int{0, 3600} {
			s := newSigner("GET", "/b/k")
			s.region, s.expires = strings.Repeat("r", n), expires
			v, want := verifier(testTime()), want
			switch {
			case want != "" && expires == 0:
				want = "AuthorizationHeaderMalformed"
			case want != "":
				want = "AuthorizationQueryParametersError"
			}
			if _, err := v.Verify(s.request(t, "")); code(err) != want || (want == "") != (len(v.keys.keys) == 1) {
				t.Errorf("a region of %d bytes, presigned for %d s: %v, %d keys are kept", n, expires, err, len(v.keys.keys))
			}
		}
	}
}
