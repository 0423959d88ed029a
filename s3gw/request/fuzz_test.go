package request

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	// Whatever net/http lets through is understood or refused. No reader writes, nobody gets out of
	// its prefix, no id is a path, and no write has an unknown header. Bucket and key, written
	// again, are parsed to the same.
	for _, s := range [][3]string{
		{"GET", "/bucket/a%2Fb+c?response-expires=%20", "Range: bytes=0-"},
		{"PUT", "/bucket/a?uploadId=1&partNumber=2", "X-Amz-Copy-Source: /b/c?versionId=1"},
		{"DELETE", "//../%ff?x-minio-force-delete=true", "Connection: close, x"},
		{"GET", "/bucket?list-type=2&prefix=mine/..&delimiter=%2f&x;y=z", "Host: mine.s3.test"},
		{"POST", "http://bucket.s3.test?delete&tagging=", "X-Minio-Source-Mtime: 1"},
		{"PUT", "/bucket/mine/a", "X-Amz-Copy-Source: bucket%2Fmine/../mine/+x"},
		{"GET", "/bucket?versions&prefix=mine/../x&Prefix=mine/", "Accept: */*"},
		{"DELETE", "/bucket/mine/a?uploadId=..%2F..%2Fvictim", "X_Amz_Copy_Source: /b/c"},
		{"PUT", "/bucket/mine/%252e%252e/a?a=b;uploadid=..", "X-Copy-From: /b/c"},
		{"GET", "/bucket?list-type=2&prefix=mine/..%5C&start-after=mine/%252e%252e/x", "X-Amz-Version-Id: ../x"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, method, target, header string) {
		r, err := read(method, target, header)
		if err != nil {
			return
		}
		o := Options{Hosts: []string{"s3.test.example", "bucket.test"}}
		q, err := Parse(r, o)
		checkRequest(t, q, err)
		if err != nil || q.Bucket == "" || r.Method == http.MethodOptions {
			return
		}
		checkValues(t, r)
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			if q.Changes || q.How == Write || q.How == Configure {
				t.Errorf("a read changes: %s", brief(q, err))
			}
			again, err := Parse(ask(t, r.Method, "/"+q.Bucket+"/"+q.EscapedKey), Options{})
			if err != nil || again.Bucket != q.Bucket || again.Key != q.Key {
				t.Errorf("%s: again %s", brief(q, nil), brief(again, err))
			}
		}
		within := q.Allowed(func(n Need) bool {
			return n.Bucket == "bucket" && (n.Some || strings.HasPrefix(n.Key, "mine/"))
		})
		if !within {
			return
		}
		for key := range readings(q.Key) {
			if q.Key != "" && !below(key) && steps(key) {
				t.Errorf("the prefix mine/ reaches %q by %q", key, q.Key)
			}
		}
		if q.Key != "" && !below(q.Key) || q.Source != nil && (q.Source.Bucket != "bucket" || !below(q.Source.Key)) ||
			q.reach == reachesPrefix && !below(q.Prefix+"x") {
			t.Errorf("the prefix mine/ reaches %s, %+v, %q", brief(q, nil), q.Source, q.Prefix)
		}
		if q.Touches == Everything || q.How == Configure || q.Bucket != "bucket" {
			t.Errorf("the prefix mine/ reaches %s", brief(q, nil))
		}
	})
}

// checkValues checks what holds for the values of every request that is not refused.
func checkValues(t *testing.T, r *http.Request) {
	t.Helper()
	for pair := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		name, _ = url.QueryUnescape(name)
		value, _ = url.QueryUnescape(value)
		switch strings.ToLower(name) {
		case "uploadid", "versionid", "partnumber", "upload-id-marker", "version-id-marker":
			if value != "" && (path.Base(value) != value || strings.Trim(value, ". ") == "" || strings.ContainsAny(value, "\\%\x00")) {
				t.Errorf("%s is %q", name, value)
			}
		}
	}
	for name := range r.Header {
		switch {
		case r.Method == http.MethodGet || r.Method == http.MethodHead || strings.HasPrefix(name, "X-Amz-Meta-") || r.URL.Query().Has("hearth-batch"):
		case strings.Contains(name, "_"), strings.HasSuffix(name, "Copy-Source") && name != "X-Amz-Copy-Source", strings.HasSuffix(name, "Copy-From"), strings.Contains(name, "Manifest"), strings.Contains(name, "Symlink"):
			t.Errorf("%s passes", name)
		}
	}
}

// below reports whether a key lies below mine/ for a server that takes it for a path.
func below(key string) bool {
	key = path.Clean("/" + key)
	return key == "/mine" || strings.HasPrefix(key, "/mine/")
}

// checkRequest checks what holds for every Request.
func checkRequest(t *testing.T, q *Request, err error) {
	t.Helper()
	var f *Error
	if q == nil || (err != nil) != (q.How == Refuse) || (err != nil) != (q.Fault != nil) || err != nil && !errors.As(err, &f) {
		t.Fatalf("%+v, %v", q, err)
	}
	if err != nil {
		return
	}
	key, ok := unescape(q.EscapedKey, false)
	switch touches := q.How == Write || q.How == Configure; {
	case !ok || key != q.Key || len(key) > maxKey || legal(q.EscapedKey) != q.EscapedKey:
		t.Errorf("the key %q is escaped as %q", q.Key, q.EscapedKey)
	case touches != (q.Touches != Nothing), touches && !q.Changes:
		t.Errorf("%s: %v", brief(q, nil), q.Touches)
	case q.Operation == "" || q.Bucket == "" && q.Key != "" || q.Bucket != "" && !plausible(q.Bucket):
		t.Error(brief(q, nil))
	case q.How == Cached && !certain(q.Key):
		t.Errorf("cached: %q", q.Key)
	case !q.Allowed(func(Need) bool { return true }) || q.reach != reachesNothing && q.Allowed(func(Need) bool { return false }):
		t.Errorf("%s: rights", brief(q, nil))
	}
}

func TestSmuggling(t *testing.T) {
	// A request that two servers could take for two comes from net/http as one, or not at all. What
	// is parsed is what is passed on.
	heard := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := Parse(r, Options{Hosts: []string{"s3.test"}})
		heard <- fmt.Sprintf("%s length %d", brief(q, err), r.ContentLength)
		w.Header().Set("Connection", "close")
	}))
	defer server.Close()
	for _, c := range []struct{ raw, want string }{
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", `GetObject Pass bucket "a" length -1`},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n", "501"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n", "400"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "400"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nabcdef", "400"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400"},
		{"GET /bucket/a HTTP/1.1\r\n\r\n", "400"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\x00\r\n\r\n", "400"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nRa\x01nge: bytes=0-1\r\n\r\n", "400"},
		{"GET /bucket/a\x01 HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"GET /bucket/%zz HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"GET /bucket/a HTTP/1.1\r\nHost: x\r\nRange:\r\n bytes=0-1\r\n\r\n", `GetObject Cached bucket "a" length 0`},
		{"GET http://bucket.s3.test/a HTTP/1.1\r\nHost: other.s3.test\r\n\r\n", `GetObject Cached bucket "a" length 0`},
		{"GET /a HTTP/1.1\r\nHost: bucket.s3.test\r\n\r\n", `GetObject Cached bucket "a" length 0`},
		{"GET bucket/a HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"GET  /bucket/a HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"CONNECT bucket.s3.test:80 HTTP/1.1\r\nHost: x\r\n\r\n", " Refuse InvalidURI length 0"},
		{"get /bucket/a HTTP/1.1\r\nHost: x\r\n\r\n", " Refuse MethodNotAllowed length 0"},
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.raw); err != nil {
			t.Fatal(err)
		}
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			t.Fatalf("%q: %v", c.raw, err)
		}
		_ = conn.Close()
		got := strings.Fields(answer)[1]
		if got == "200" {
			got = <-heard
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.raw, got, c.want)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	usual := []string{"User-Agent: Boto3/1.34", "Accept-Encoding: identity", "X-Amz-Date: 20240101T000000Z", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD",
		"Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0", "Amz-Sdk-Invocation-Id: 1", "Amz-Sdk-Request: attempt=1"}
	for _, c := range []struct{ name, method, target, header string }{
		{"get", "GET", "/bucket/data/train/shard-000123.tar", "Range: bytes=0-16383"},
		{"host", "GET", "/data/train/shard-000123.tar", "Host: bucket.s3.example.com"},
		{"presigned", "GET", "/bucket/data/a.tar?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20240101%2Fus-east-1%2Fs3%2Faws4_request" +
			"&X-Amz-Date=20240101T000000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=0", "Accept: */*"},
		{"list", "GET", "/bucket?list-type=2&prefix=data%2Ftrain%2F&delimiter=%2F&max-keys=1000&encoding-type=url", "Accept: */*"},
		{"put", "PUT", "/bucket/data/train/shard-000123.tar", "Content-Length: 1"},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, o := ask(b, c.method, c.target, append(usual, c.header)...), Options{Hosts: []string{"s3.example.com"}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(r, o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
