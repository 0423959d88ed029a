package sigv4

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/s3gw/request"
	"pgregory.net/rapid"
)

func bufioReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

// code returns the S3 code of an error, or describes any other error.
func code(err error) string {
	var f *request.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &f):
		return f.Code
	}
	return err.Error()
}

// documented are the examples of Amazon's S3 API reference, "Authenticating Requests".
func documented() map[string]string {
	const (
		date = "x-amz-date: 20130524T000000Z\r\n"
		none = "x-amz-content-sha256: " + emptySum + "\r\n"
		auth = "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders="
		host = "Host: examplebucket.s3.amazonaws.com\r\n"
	)
	return map[string]string{
		"object": "GET /test.txt HTTP/1.1\r\n" + host + "Range: bytes=0-9\r\n" + none + date +
			auth + "host;range;x-amz-content-sha256;x-amz-date,Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41\r\n\r\n",
		"put": "PUT /test%24file.text HTTP/1.1\r\n" + host + "Date: Fri, 24 May 2013 00:00:00 GMT\r\nContent-Length: 21\r\n" + date +
			"x-amz-storage-class: REDUCED_REDUNDANCY\r\nx-amz-content-sha256: 44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072\r\n" +
			auth + "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class,Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd\r\n\r\nWelcome to Amazon S3.",
		"empty value": "GET /?lifecycle HTTP/1.1\r\n" + host + none + date +
			auth + "host;x-amz-content-sha256;x-amz-date,Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543\r\n\r\n",
		"list": "GET /?max-keys=2&prefix=J HTTP/1.1\r\n" + host + none + date +
			auth + "host;x-amz-content-sha256;x-amz-date,Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7\r\n\r\n",
		"presigned": "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request" +
			"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404 HTTP/1.1\r\n" + host + "\r\n",
		"chunks": "PUT /examplebucket/chunkObject.txt HTTP/1.1\r\nHost: s3.amazonaws.com\r\n" + date +
			"x-amz-storage-class: REDUCED_REDUNDANCY\r\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nContent-Encoding: aws-chunked\r\nx-amz-decoded-content-length: 66560\r\nContent-Length: 66824\r\n" +
			auth + "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class,Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9\r\n\r\n" +
			"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n" + strings.Repeat("a", 65536) + "\r\n" +
			"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n" + strings.Repeat("a", 1024) + "\r\n" +
			"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
		"chunks and trailer": "PUT /examplebucket/chunkObject.txt HTTP/1.1\r\nHost: s3.amazonaws.com\r\n" + date +
			"x-amz-storage-class: REDUCED_REDUNDANCY\r\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\r\nContent-Encoding: aws-chunked\r\nx-amz-decoded-content-length: 66560\r\nx-amz-trailer: x-amz-checksum-crc32c\r\nTransfer-Encoding: identity\r\nContent-Length: 66946\r\n" +
			auth + "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer,Signature=106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e\r\n\r\n" +
			"10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n" + strings.Repeat("a", 65536) + "\r\n" +
			"400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n" + strings.Repeat("a", 1024) + "\r\n" +
			"0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n" +
			"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n",
	}
}

func TestDocumented(t *testing.T) {
	// Amazon's examples verify, and their bodies can be read.
	for name, raw := range documented() {
		raw = strings.Replace(raw, "Transfer-Encoding: identity\r\n", "", 1)
		s, err := verifier(testTime()).Verify(parse(t, []byte(raw)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s.Access != testAccess || s.Presigned != (name == "presigned") {
			t.Errorf("%s: %+v", name, s)
		}
		body, err := io.ReadAll(s.Payload())
		if err != nil || int64(len(body)) != s.Length {
			t.Errorf("%s: %d bytes, %v; length %d", name, len(body), err, s.Length)
		}
	}
}

func TestOtherSigners(t *testing.T) {
	// Requests that botocore and minio-go signed verify, with odd keys, queries, and uploads in
	// every form. Their payload is read to its end.
	for _, file := range []string{"botocore.json", "minio.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		var vectors []struct {
			Name string
			At   int64
			Raw  []byte
		}
		if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) < 20 {
			t.Fatalf("%s: %d requests, %v", file, len(vectors), err)
		}
		for _, v := range vectors {
			at := time.Unix(v.At, 0)
			s, err := verifier(at).Verify(parse(t, v.Raw))
			if err != nil {
				t.Errorf("%s, %s: %v", file, v.Name, err)
				continue
			}
			body, err := io.ReadAll(s.Body())
			if err != nil || s.sent < 0 == (s.payload != unsignedTrailing) && len(body) == 0 {
				t.Errorf("%s, %s: %d bytes, %v", file, v.Name, len(body), err)
			}
			wrong := New(Options{Secret: func(string) (string, bool) { return testSecret + "x", true }, Now: func() time.Time { return at }})
			if _, err := wrong.Verify(parse(t, v.Raw)); code(err) != "SignatureDoesNotMatch" {
				t.Errorf("%s, %s with another secret: %v", file, v.Name, err)
			}
		}
	}
}

func TestMinioLive(t *testing.T) {
	// Whatever key and query minio-go signs verifies as it arrives. With another path or query it
	// does not verify.
	rapid.Check(t, func(t *rapid.T) {
		client := &hearthtest.S3{Endpoint: "http://127.0.0.1:9000", Region: testRegion, AccessKey: testAccess, SecretKey: testSecret}
		key := rapid.StringN(1, 60, 200).Draw(t, "key")
		query := url.Values{}
		for range rapid.IntRange(0, 4).Draw(t, "parameters") {
			query.Set(rapid.StringMatching(`[a-z-]{1,12}`).Draw(t, "name"), rapid.String().Draw(t, "value"))
		}
		r, err := client.Request(context.Background(), "GET", "bucket", key, query)
		if err != nil {
			t.Fatal(err)
		}
		var wire bytes.Buffer
		if err := r.Write(&wire); err != nil {
			t.Fatal(err)
		}
		got, err := http.ReadRequest(bufio.NewReader(&wire))
		if err != nil {
			t.Skip("net/http refuses it", err)
		}
		v := verifier(time.Now())
		if _, err := v.Verify(got); err != nil {
			t.Fatalf("%q %q: %v", key, query, err)
		}
		got.URL.RawQuery += "&more=1"
		if _, err := v.Verify(got); code(err) != "SignatureDoesNotMatch" {
			t.Fatalf("another query: %v", err)
		}
	})
}

func TestForms(t *testing.T) {
	// All these forms verify, by header and by URL: the path as sent and in canonical encoding, the
	// host with and without port, and `+` in a query as a space. So do runs of blanks in headers as
	// one, and repeated names and headers in their order.
	for name, change := range map[string]func(*signer){
		"plain":                 func(*signer) {},
		"no path":               func(s *signer) { s.target = "/" },
		"as sent":               func(s *signer) { s.target = "/bucket/a+b%2fc%7E!" },
		"canonical":             func(s *signer) { s.target, s.canonicalPath = "/bucket/a+b(%7e)", "/bucket/a%2Bb%28~%29" },
		"slash":                 func(s *signer) { s.target, s.canonicalPath = "/bucket/a%2Fb", "/bucket/a/b" },
		"dots":                  func(s *signer) { s.target = "//bucket//a/../b/./c/" },
		"not UTF-8":             func(s *signer) { s.target = "/bucket/%FF%80" },
		"raw bytes":             func(s *signer) { s.target, s.canonicalPath = "/bucket/\xc3\xa9", "/bucket/%C3%A9" },
		"raw bytes, as sent":    func(s *signer) { s.target = "/bucket/\xc3\xa9" },
		"plus in query":         func(s *signer) { s.target = "/bucket?prefix=a+b%20c%2Bd" },
		"query":                 func(s *signer) { s.target = "/bucket?b=2&b=1&a-b&a=&a&&=x&a=%c3%a9;d'(" },
		"sorted by name":        func(s *signer) { s.target = "/bucket?a-=1&a=2&a%2F=3&A=4&%C3%A9=5&z=6" },
		"header":                func(s *signer) { s.headers = [][2]string{{"x-amz-meta-a", " a   b\t\tc "}, {"content-type", "x/y"}} },
		"repeated header":       func(s *signer) { s.headers = [][2]string{{"x-amz-meta-a", "2  3"}, {"x-amz-meta-a", "1"}} },
		"empty header":          func(s *signer) { s.headers = [][2]string{{"x-amz-meta-a", ""}} },
		"not signed":            func(s *signer) { s.headers = [][2]string{{"Accept", "*/*"}, {"Content-Type", "x/y"}} },
		"bytes in header":       func(s *signer) { s.headers = [][2]string{{"x-amz-meta-a", "\xff\xc3\xa9"}} },
		"old, in the skew":      func(s *signer) { s.at = s.at.Add(-15 * time.Minute) },
		"ahead, in the skew":    func(s *signer) { s.at = s.at.Add(15 * time.Minute) },
		"method":                func(s *signer) { s.method = "DELETE" },
		"many signed headers":   func(s *signer) { s.headers = manyHeaders(200) },
		"host without its port": func(s *signer) { s.host = "[::1]" },
	} {
		for _, expires := range []int{0, 3600} {
			s := newSigner("GET", "/bucket/key")
			change(s)
			s.expires = expires
			r := s.request(t, "")
			if strings.HasPrefix(name, "host") {
				r.Host += ":9000"
			}
			got, err := verifier(testTime()).Verify(r)
			if err != nil || got.Access != testAccess || got.Presigned != (expires > 0) {
				t.Errorf("%s, expires %d: %v", name, expires, err)
			}
		}
	}
}

func manyHeaders(n int) (headers [][2]string) {
	for i := range n {
		headers = append(headers, [2]string{"x-amz-meta-" + strings.Repeat("a", i+1), "v"})
	}
	return headers
}

func TestOldDate(t *testing.T) {
	// A client may sign Date instead of x-amz-date.
	s := newSigner("GET", "/bucket/key")
	s.headers = [][2]string{{"date", "Fri, 24 May 2013 00:00:00 GMT"}}
	r := s.request(t, "")
	r.Header.Del("X-Amz-Date") // nobody signs it as empty: sign again without it
	canonical := "GET\n/bucket/key\n\ndate:Fri, 24 May 2013 00:00:00 GMT\nhost:hearth:9000\nx-amz-content-sha256:UNSIGNED-PAYLOAD\n\ndate;host;x-amz-content-sha256\nUNSIGNED-PAYLOAD"
	signature := hexMAC(s.key, "AWS4-HMAC-SHA256\n20130524T000000Z\n"+s.scope()+"\n"+sum(canonical))
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+testAccess+"/"+s.scope()+",SignedHeaders=date;host;x-amz-content-sha256,Signature="+signature)
	if _, err := verifier(testTime()).Verify(r); err != nil {
		t.Error(err)
	}
}

func TestTrimmed(t *testing.T) {
	// Blanks at both ends of a value are removed, and runs within become one. net/http does only
	// the first, and not for HTTP/2.
	for value, want := range map[string]string{"": "", "  ": "", " a": "a", "a \t ": "a", "a  \t b": "a b", "\" a  b\"": "\" a b\"", "a\u00a0 b": "a\u00a0 b"} {
		if got := string(appendTrimmed([]byte("x:"), value)); got != "x:"+want {
			t.Errorf("%q becomes %q", value, got)
		}
	}
}
