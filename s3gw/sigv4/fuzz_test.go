package sigv4

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/s3gw/request"
)

func FuzzAuthorization(f *testing.F) {
	// Whatever stands in the headers of a signature, the result is a fault or the one signer of the
	// request.
	right := newSigner("GET", "/bucket/key").request(f, "")
	f.Add(right.Header.Get("Authorization"), "20130524T000000Z", unsignedPayload)
	f.Add("AWS4-HMAC-SHA256 Credential=a/20130524/r/s3/aws4_request,SignedHeaders=host,Signature="+emptySum, "Fri, 24 May 2013 00:00:00 GMT", "")
	f.Add("AWS a:b", "", signedTrailing)
	f.Add("AWS4-HMAC-SHA256 ,=;,/////", "2013", "STREAMING-")
	v := verifier(testTime())
	f.Fuzz(func(t *testing.T, authorization, date, payload string) {
		r := right.Clone(t.Context())
		r.Header = http.Header{"Authorization": {authorization}, "X-Amz-Date": {date}, "X-Amz-Content-Sha256": {payload}}
		s, err := v.Verify(r)
		checkFault(t, err)
		if err == nil && (s.Access != testAccess || !strings.Contains(authorization, "host")) {
			t.Errorf("%q is let in by %q", s.Access, authorization)
		}
	})
}

func FuzzQuery(f *testing.F) {
	// Whatever stands in a query, the result is a fault, nobody, or the signer. A canonical
	// encoding decodes to what net/url decodes, and is its own canonical encoding.
	s := newSigner("GET", "/bucket/key?a=+%20%2f")
	s.expires = 60
	f.Add(s.request(f, "").URL.RawQuery)
	f.Add("a&&b=%zz&=")
	f.Add("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=%00")
	v := verifier(testTime())
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{Method: "GET", URL: &url.URL{Path: "/bucket/key", RawQuery: query}, Host: "hearth:9000", Header: http.Header{}}
		_, err := v.Verify(r)
		checkFault(t, err)
		for _, path := range []bool{false, true} {
			text, ok := encoded(query, path)
			unescape := url.QueryUnescape
			if path {
				unescape = url.PathUnescape
			}
			plain, err := unescape(query)
			if ok != (err == nil) {
				t.Fatalf("%q: %v, but %v", query, ok, err)
			}
			if !ok {
				continue
			}
			if again, _ := encoded(text, path); decoded(text) != plain || again != text || !isEncoded(text, path) {
				t.Errorf("%q becomes %q and %q", query, text, again)
			}
		}
	})
}

func FuzzChunks(f *testing.F) {
	// Whatever comes as chunks, signed or not: the payload is never longer than announced, and
	// complete only at that length. The body that goes on has the announced length.
	signer, _ := stream(f, []string{"he", "llo"})
	f.Add(signer.chunked([]string{"he", "llo"}), uint8(0))
	signer, _ = stream(f, []string{"hello"}, "x-amz-checksum-crc32:"+crcOfHello)
	f.Add(signer.chunked([]string{"hello"}, "x-amz-checksum-crc32:"+crcOfHello), uint8(1))
	f.Add("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:"+crcOfHello+"\r\n\r\n", uint8(2))
	f.Add("5\r\nhello\r\n0\r\n\r\n", uint8(3))
	f.Fuzz(func(t *testing.T, body string, kind uint8) {
		s := &Signed{Length: 5, sent: int64(len(body)), payload: []string{signedChunks, signedTrailing, unsignedTrailing, sum("hello")}[kind%4],
			key: [32]byte(signer.key), stamp: signer.stamp(), scope: signer.scope(), seed: signer.seed}
		if kind%4 == 1 || kind%4 == 2 {
			s.trailers = []string{"x-amz-checksum-crc32"}
		}
		s.body = io.NopCloser(strings.NewReader(body))
		got, err := io.ReadAll(s.Payload())
		checkFault(t, err)
		if kind%4 != 3 && (len(got) > 5 || err == nil && len(got) != 5 || err != nil && len(got) == 5) || kind%4 < 2 && err == nil && string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		s.body = io.NopCloser(strings.NewReader(body))
		got, err = io.ReadAll(s.Body())
		checkFault(t, err)
		if want := s.Rewrite(http.Header{}); err == nil && int64(len(got)) != want || err != nil && int64(len(got)) >= max(want, 1) {
			t.Errorf("%d bytes, told were %d, %v", len(got), want, err)
		}
	})
}

// checkFault fails if an error is not one for clients.
func checkFault(t *testing.T, err error) {
	var told *request.Error
	if err != nil && (!errors.As(err, &told) || told.Code == "" || told.HTTPStatus() >= 500 && told.Code != "NotImplemented") {
		t.Errorf("%v is no fault of a client", err)
	}
}
