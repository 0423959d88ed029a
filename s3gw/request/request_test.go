package request

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the table of docs/s3.md anew")
	goleak.VerifyTestMain(m)
}

// ask is a request as net/http reads it from a connection. Each header is "Name: value"; Host
// is s3.test unless one is given.
func ask(t testing.TB, method, target string, headers ...string) *http.Request {
	t.Helper()
	r, err := read(method, target, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return r
}

func read(method, target string, headers ...string) (*http.Request, error) {
	raw := method + " " + target + " HTTP/1.1\r\n"
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		raw += "Host: s3.test\r\n"
	}
	for _, h := range headers {
		raw += h + "\r\n"
	}
	return http.ReadRequest(bufio.NewReader(strings.NewReader(raw + "\r\n")))
}

func (h How) String() string {
	return [...]string{"Refuse", "Cached", "Pass", "Write", "Configure", "Own"}[h]
}

func (t Touch) String() string {
	return [...]string{"Nothing", "TheKey", "Below", "Listed", "Everything"}[t]
}

// brief is a Request in one line.
func brief(q *Request, err error) string {
	var f *Error
	if errors.As(err, &f) {
		return fmt.Sprintf("%s Refuse %s", q.Operation, f.Code)
	}
	s := fmt.Sprintf("%s %v %s %q", q.Operation, q.How, q.Bucket, q.Key)
	if q.Touches != Nothing {
		s += " " + q.Touches.String()
	} else if q.Changes {
		s += " changes"
	}
	return s
}

func TestOperations(t *testing.T) {
	// Amazon's calls are told apart by method, by what is named and by sub-resource, and each is
	// answered as it must be.
	for asked, want := range map[string]string{
		"GET /":                            `ListBuckets Cached  ""`,
		"GET /?x-id=ListBuckets":           `ListBuckets Cached  ""`,
		"GET /?max-buckets=2":              `ListBuckets Pass  ""`,
		"HEAD /":                           " Refuse MethodNotAllowed",
		"POST /":                           " Refuse MethodNotAllowed",
		"POST /?hearth-batch":              " Refuse InvalidRequest",
		"OPTIONS /":                        `Preflight Own  ""`,
		"OPTIONS *":                        `Preflight Own  ""`,
		"OPTIONS /bucket/a?acl":            `Preflight Own bucket "a"`,
		"PATCH /bucket/a":                  " Refuse MethodNotAllowed",
		"TRACE /bucket":                    " Refuse MethodNotAllowed",
		"GET /bucket":                      `ListObjects Cached bucket ""`,
		"GET /bucket/":                     `ListObjects Cached bucket ""`,
		"GET /bucket?list-type=2":          `ListObjectsV2 Cached bucket ""`,
		"GET /bucket?list-type=3":          `ListObjects Pass bucket ""`,
		"GET /bucket?uploads":              `ListMultipartUploads Pass bucket ""`,
		"GET /bucket?versions":             `ListObjectVersions Pass bucket ""`,
		"GET /bucket?location":             `GetBucketLocation Cached bucket ""`,
		"GET /bucket?location&acl":         `GetBucketLocation Pass bucket ""`,
		"GET /bucket?%61cl":                `GetBucketAcl Pass bucket ""`,
		"GET /bucket?policy":               `GetBucketPolicy Pass bucket ""`,
		"GET /bucket?object-lock":          `GetObjectLockConfiguration Pass bucket ""`,
		"GET /bucket?metrics":              `ListBucketMetricsConfigurations Pass bucket ""`,
		"GET /bucket?metrics&id=1":         `GetBucketMetricsConfiguration Pass bucket ""`,
		"GET /bucket?session":              "CreateSession Refuse NotImplemented",
		"GET /bucket?acl&session":          "CreateSession Refuse NotImplemented",
		"GET /bucket?uploadId=1":           `ListObjects Pass bucket ""`,
		"GET /bucket?new-thing":            `ListObjects Pass bucket ""`,
		"HEAD /bucket":                     `HeadBucket Cached bucket ""`,
		"HEAD /bucket?acl":                 `HeadBucket Pass bucket ""`,
		"PUT /bucket":                      `CreateBucket Configure bucket "" Everything`,
		"PUT /bucket/":                     `CreateBucket Configure bucket "" Everything`,
		"PUT /bucket?new-thing":            `CreateBucket Configure bucket "" Everything`,
		"PUT /bucket?cors":                 `PutBucketCors Configure bucket "" Everything`,
		"PUT /bucket?acl&policy":           "PutBucketAcl Refuse InvalidArgument",
		"PUT /Old_bucket":                  "CreateBucket Refuse InvalidBucketName",
		"PUT /Old_bucket?cors":             `PutBucketCors Configure Old_bucket "" Everything`,
		"DELETE /bucket":                   `DeleteBucket Configure bucket "" Everything`,
		"DELETE /bucket?lifecycle":         `DeleteBucketLifecycle Configure bucket "" Everything`,
		"POST /bucket":                     "PostObject Refuse NotImplemented",
		"POST /bucket?new-thing":           "PostObject Refuse NotImplemented",
		"POST /bucket?delete":              `DeleteObjects Write bucket "" Listed`,
		"POST /bucket?delete&x=1":          "DeleteObjects Refuse InvalidArgument",
		"POST /bucket?delete&acl":          " Refuse InvalidArgument",
		"POST /bucket?policy":              " Refuse MethodNotAllowed",
		"POST /bucket?metadataTable":       `CreateBucketMetadataTableConfiguration Configure bucket "" Everything`,
		"PUT /bucket?metadataJournalTable": `UpdateBucketMetadataJournalTableConfiguration Configure bucket "" Everything`,
		"POST /bucket?hearth-batch":        `GetBatch Own bucket ""`,

		"GET /bucket/a":                         `GetObject Cached bucket "a"`,
		"GET /bucket/a/":                        `GetObject Cached bucket "a/"`,
		"HEAD /bucket/a":                        `HeadObject Cached bucket "a"`,
		"HEAD /bucket/a?acl":                    `HeadObject Pass bucket "a"`,
		"GET /bucket/a?acl":                     `GetObjectAcl Pass bucket "a"`,
		"GET /bucket/a?attributes":              `GetObjectAttributes Pass bucket "a"`,
		"GET /bucket/a?tagging":                 `GetObjectTagging Pass bucket "a"`,
		"GET /bucket/a?retention":               `GetObjectRetention Pass bucket "a"`,
		"GET /bucket/a?legal-hold":              `GetObjectLegalHold Pass bucket "a"`,
		"GET /bucket/a?torrent":                 "GetObjectTorrent Refuse NotImplemented",
		"GET /bucket/a?uploadId=1":              `ListParts Pass bucket "a"`,
		"GET /bucket/a?policy":                  `GetObject Pass bucket "a"`,
		"GET /bucket/a?new-thing":               `GetObject Pass bucket "a"`,
		"PUT /bucket/a":                         `PutObject Write bucket "a" TheKey`,
		"PUT /bucket/a?versionId=1":             `PutObject Write bucket "a" TheKey`,
		"PUT /bucket/a?new-thing":               `PutObject Write bucket "a" TheKey`,
		"PUT /bucket/a?policy":                  `PutObject Write bucket "a" TheKey`,
		"PUT /bucket/a?uploadId=1&partNumber=1": `UploadPart Pass bucket "a" changes`,
		"PUT /bucket/a?uploadId=&partNumber=1":  `UploadPart Write bucket "a" TheKey`,
		"PUT /bucket/a?uploadId=1":              `PutObject Write bucket "a" TheKey`,
		"PUT /bucket/a?tagging":                 `PutObjectTagging Pass bucket "a" changes`,
		"PUT /bucket/a?tagging=":                `PutObjectTagging Pass bucket "a" changes`,
		"PUT /bucket/a?tagging=1":               `PutObjectTagging Write bucket "a" TheKey`,
		"PUT /bucket/a?tagging&new-thing":       `PutObjectTagging Write bucket "a" TheKey`,
		"PUT /bucket/a?tagging&acl":             "PutObjectTagging Refuse InvalidArgument",
		"PUT /bucket/a?retention":               `PutObjectRetention Write bucket "a" TheKey`,
		"PUT /bucket/a?legal-hold":              `PutObjectLegalHold Write bucket "a" TheKey`,
		"PUT /bucket/a?encryption":              `UpdateObjectEncryption Write bucket "a" TheKey`,
		"PUT /bucket/a?renameObject":            "RenameObject Refuse NotImplemented",
		"POST /bucket/a":                        "PostObject Refuse MethodNotAllowed",
		"POST /bucket/a?new-thing":              `PostObject Write bucket "a" TheKey`,
		"POST /bucket/a?uploads":                `CreateMultipartUpload Pass bucket "a" changes`,
		"POST /bucket/a?uploadId=1":             `CompleteMultipartUpload Write bucket "a" TheKey`,
		"POST /bucket/a?restore":                `RestoreObject Write bucket "a" TheKey`,
		"POST /bucket/a?select&select-type=2":   `SelectObjectContent Pass bucket "a"`,
		"POST /bucket/a?select&new-thing":       `PostObject Write bucket "a" TheKey`,
		"DELETE /bucket/a":                      `DeleteObject Write bucket "a" TheKey`,
		"DELETE /bucket/a?versionId=1":          `DeleteObject Write bucket "a" TheKey`,
		"DELETE /bucket/a?tagging":              `DeleteObjectTagging Pass bucket "a" changes`,
		"DELETE /bucket/a?uploadId=1":           `AbortMultipartUpload Pass bucket "a" changes`,
		"DELETE /bucket/a?uploadId=1&tagging":   "AbortMultipartUpload Refuse InvalidArgument",
		"DELETE /bucket/a?new-thing":            `DeleteObject Write bucket "a" Below`,
	} {
		method, target, _ := strings.Cut(asked, " ")
		got := brief(Parse(ask(t, method, target), Options{}))
		if got != want {
			t.Errorf("%s: %s, want %s", asked, got, want)
		}
	}
}

func TestByHeaders(t *testing.T) {
	// Some headers make a write another operation, or let it change more than its key.
	const source = "X-Amz-Copy-Source: /other/b"
	for _, c := range []struct{ method, target, header, want string }{
		{"PUT", "/bucket/a", source, `CopyObject Write bucket "a" TheKey`},
		{"PUT", "/bucket/a?uploadId=1&partNumber=1", source, `UploadPartCopy Pass bucket "a" changes`},
		{"PUT", "/bucket/a?x-amz-copy-source=other%2Fb", "Te: trailers", `CopyObject Write bucket "a" TheKey`},
		{"PUT", "/bucket/a?X-AMZ-copy-source=other%2Fb", source, " Refuse InvalidArgument"},
		{"PUT", "/bucket/a?x-amz-copy-source=o/b&X-Amz-Copy-Source=o/c", "Te: trailers", " Refuse InvalidArgument"},
		{"PUT", "/bucket/a", source + "\r\n" + source, " Refuse InvalidArgument"},
		{"DELETE", "/bucket/a", "X-Minio-Force-Delete: true", `DeleteObject Write bucket "a" Below`},
		{"DELETE", "/bucket/a?x-minio-force-delete=true", "Te: trailers", `DeleteObject Write bucket "a" Below`},
		{"POST", "/bucket?delete", "X-Minio-Force-Delete: true", "DeleteObjects Refuse InvalidArgument"},
		{"PUT", "/bucket/a", "X-Amz-Meta-Snowball-Auto-Extract: true", `PutObject Write bucket "a" Everything`},
		{"PUT", "/bucket/a", "X-Minio-Source-Etag: 1", " Refuse AccessDenied"},
		{"PUT", "/bucket", "X-Minio-Source-Mtime: 1", " Refuse AccessDenied"},
		{"GET", "/bucket/a", "X-Minio-Source-Proxy-Request: 1", `GetObject Pass bucket "a"`},
		{"GET", "/bucket/a", "X-HTTP-Method-Override: DELETE", " Refuse InvalidRequest"},
		{"GET", "/bucket/a", "X-Original-URL: /x", " Refuse InvalidRequest"},
		{"PUT", "/bucket/a", "Connection: x-amz-copy-source, close", " Refuse InvalidRequest"},
		{"GET", "/bucket/a", "Connection: If-Match", " Refuse InvalidRequest"},
		{"GET", "/bucket/a", "Connection: Upgrade, HTTP2-Settings, keep-alive", `GetObject Cached bucket "a"`},
	} {
		if got := brief(Parse(ask(t, c.method, c.target, c.header), Options{})); got != c.want {
			t.Errorf("%s %s with %s: %s, want %s", c.method, c.target, c.header, got, c.want)
		}
	}
}

func TestOnlyWhatTheCacheCanHonourIsCached(t *testing.T) {
	// The origin answers a read with a header or parameter that is unknown, or changes the answer.
	const get, v2, v1 = "/bucket/a", "/bucket?list-type=2&", "/bucket?"
	for _, c := range []struct {
		target string
		header string
		want   How
	}{
		{get, "Range: bytes=0-9", Cached},
		{get, "Range: bytes=5-", Cached},
		{get, "Range: bytes=-5", Cached},
		{get, "Range: bytes=9-10", Cached},
		{get, "Range: bytes=0009-10", Cached},
		{get, "Range: bytes=10-9", Pass},
		{get, "Range: bytes=-", Pass},
		{get, "Range: bytes=0-1,3-4", Pass},
		{get, "Range: bytes= 0-1", Pass},
		{get, "Range: BYTES=0-1", Pass},
		{get, "Range: bytes=0-9999999999999999999", Pass},
		{get, "Range: items=0-1", Pass},
		{get, "Range: bytes=0-1\r\nRange: bytes=0-1", Pass},
		{get, "If-Match: \"x\"", Cached},
		{get, "If-None-Match: *", Cached},
		{get, "If-None-Match: \"a\"\r\nIf-None-Match: \"b\"", Pass},
		{get, "If-Modified-Since: x", Cached},
		{get, "If-Range: \"x\"", Pass},
		{get, "X-Amz-Checksum-Mode: ENABLED", Cached},
		{get, "X-Amz-Checksum-Mode: x", Pass},
		{get, "X-Amz-Server-Side-Encryption-Customer-Algorithm: AES256", Pass},
		{get, "X-Amz-Expected-Bucket-Owner: 1", Pass},
		{get, "X-Amz-Request-Payer: requester", Pass},
		{get, "X-Amz-New: 1", Pass},
		{get, "X-Amz-Te: append-md5", Cached},
		{get, "X-Amz-Te: append-sha256", Pass},
		{get, "X-Amz-Te: append-md5\r\nX-Amz-Te: append-md5", Pass},
		{get, "New: 1", Pass},
		{get, "Content-Length: 0", Cached},
		{get, "Content-Length: 1", Pass},
		{get, "Transfer-Encoding: chunked", Pass},
		{get, "Origin: https://a.test", Pass},
		{get, "Authorization: x\r\nX-Amz-Date: x\r\nX-Amz-Content-Sha256: x\r\nUser-Agent: x\r\nAmz-Sdk-Request: attempt=1", Cached},
		{get + "?X-Amz-Algorithm=a&X-Amz-Credential=a%2Fb&X-Amz-Date=1&X-Amz-Expires=1&X-Amz-SignedHeaders=host;x-amz-date&X-Amz-Signature=0&x-id=GetObject", "A: b", Pass},
		{get + "?X-Amz-Algorithm=a&X-Amz-Credential=a%2Fb&X-Amz-Date=1&X-Amz-Expires=1&X-Amz-SignedHeaders=host;x-amz-date&X-Amz-Signature=0&x-id=GetObject", "Te: trailers", Cached},
		{get + "?response-content-type=text/plain&response-content-disposition=a%3Bb", "Te: trailers", Cached},
		{get + "?response-content-type=a&response-content-type=b", "Te: trailers", Pass},
		{get + "?response-content-disposition=a;b", "Te: trailers", Pass},
		{get + "?response-new=1", "Te: trailers", Pass},
		{get + "?partNumber=1", "Te: trailers", Pass},
		{get + "?versionId=1", "Te: trailers", Pass},
		{get + "?x-amz-checksum-mode=ENABLED", "Te: trailers", Pass},
		{get + "?=", "Te: trailers", Pass},
		{get + "?", "Te: trailers", Cached},
		{get + "?&&", "Te: trailers", Cached},
		{v2 + "prefix=a&delimiter=/&max-keys=10&start-after=b&encoding-type=url&continuation-token=x&fetch-owner=false", "Te: trailers", Cached},
		{v2 + "delimiter=&max-keys=100000", "Te: trailers", Cached},
		{v2 + "delimiter=-", "Te: trailers", Pass},
		{v2 + "fetch-owner=true", "Te: trailers", Cached},
		{v2 + "fetch-owner=yes", "Te: trailers", Pass},
		{v2 + "max-keys=-1", "Te: trailers", Pass},
		{v2 + "max-keys=", "Te: trailers", Pass},
		{v2 + "encoding-type=x", "Te: trailers", Pass},
		{v2 + "marker=x", "Te: trailers", Pass},
		{v2 + "prefix=%FF", "Te: trailers", Pass},
		{v2 + "prefix=%01", "Te: trailers", Pass},
		{v2 + "list-type=2", "Te: trailers", Pass},
		{v2, "Range: bytes=0-1", Pass},
		{v2, "If-Match: x", Pass},
		{v2, "X-Amz-Optional-Object-Attributes: RestoreStatus", Pass},
		{v1 + "prefix=a&marker=b&max-keys=0", "Te: trailers", Cached},
		{v1 + "start-after=b", "Te: trailers", Pass},
		{v1 + "list-type=1", "Te: trailers", Pass},
		{"/bucket?location=", "Te: trailers", Cached},
		{"/bucket?location=x", "Te: trailers", Pass},
	} {
		q, err := Parse(ask(t, "GET", c.target, c.header), Options{})
		if err != nil || q.How != c.want {
			t.Errorf("%s with %s: %v %v, want %v", c.target, c.header, q.How, err, c.want)
		}
	}
	q, _ := Parse(ask(t, "GET", get, "Origin: https://a.test"), Options{CORS: true})
	if q.How != Cached {
		t.Errorf("a page's origin, which the endpoint answers itself: %v", q.How)
	}
	if q, _ := Parse(ask(t, "GET", get+"?response-expires=1"), Options{}); !q.Overrides {
		t.Error("response-* is not told")
	}
}

func TestAddresses(t *testing.T) {
	// Bucket and key are what was sent, however odd. A malformed address is refused. A key that two
	// origins could take for two keys is not answered from the cache.
	long := strings.Repeat("k", 1024)
	for _, c := range []struct{ target, want, escaped string }{
		{"/bucket/a+b", `GetObject Cached bucket "a+b"`, "a+b"},
		{"/bucket/a%2Bb", `GetObject Cached bucket "a+b"`, "a%2Bb"},
		{"/bucket/a%2fb", `GetObject Cached bucket "a/b"`, "a%2fb"},
		{"/bucket/a%252Fb", `GetObject Cached bucket "a%2Fb"`, "a%252Fb"},
		{"/bucket/a;b=c&d:@", `GetObject Cached bucket "a;b=c&d:@"`, "a;b=c&d:@"},
		{"/bucket/a#b", `GetObject Cached bucket "a#b"`, "a%23b"},
		{"/bucket/\xc3\xa4\"<", `GetObject Cached bucket "ä\"<"`, "%C3%A4%22%3C"},
		{"/bucket/a%2F\xc3\xa4", `GetObject Cached bucket "a/ä"`, "a%2F%C3%A4"},
		{"/bucket//", `GetObject Pass bucket "/"`, "/"},
		{"/bucket//x", `GetObject Pass bucket "/x"`, "/x"},
		{"/bucket/%2F", `GetObject Pass bucket "/"`, "%2F"},
		{"/bucket/a//b", `GetObject Pass bucket "a//b"`, "a//b"},
		{"/bucket/..", `GetObject Pass bucket ".."`, ".."},
		{"/bucket/../other/x", `GetObject Pass bucket "../other/x"`, "../other/x"},
		{"/bucket/a/%2e%2E/b", `GetObject Pass bucket "a/../b"`, "a/%2e%2E/b"},
		{"/bucket/a/./b", `GetObject Pass bucket "a/./b"`, "a/./b"},
		{"/bucket/.a/..b/c.", `GetObject Cached bucket ".a/..b/c."`, ".a/..b/c."},
		{"/bucket/%FF", `GetObject Pass bucket "\xff"`, "%FF"},
		{"/bucket/%00", `GetObject Pass bucket "\x00"`, "%00"},
		{"/bucket/a%5Cb", `GetObject Pass bucket "a\\b"`, "a%5Cb"},
		{"/bucket/" + long, `GetObject Cached bucket "` + long + `"`, long},
		{"/bucket/" + long + "k", " Refuse KeyTooLongError", ""},
		{"/buck%65t/a", `GetObject Cached bucket "a"`, "a"},
		{"/Old_Bucket.1/a", `GetObject Cached Old_Bucket.1 "a"`, "a"},
		{"/bucket%2Fa", " Refuse InvalidBucketName", ""},
		{"/bu/a", " Refuse InvalidBucketName", ""},
		{"/.minio.sys/a", " Refuse InvalidBucketName", ""},
		{"/../a", " Refuse InvalidBucketName", ""},
		{"/" + strings.Repeat("b", 256), " Refuse InvalidBucketName", ""},
		{"/arn:aws:s3:::x/a", " Refuse InvalidBucketName", ""},
		{"//", " Refuse InvalidBucketName", ""},
		{"//bucket/a", " Refuse InvalidBucketName", ""},
		{"/%2Fbucket/a", " Refuse InvalidBucketName", ""},
		{"/bucket?a=%zz", " Refuse InvalidURI", ""},
		{"/bucket?%=a", " Refuse InvalidURI", ""},
		{"/bucket?prefix=a&prefix=b", " Refuse InvalidArgument", ""},
		{"/bucket?" + strings.Repeat("a&", 65), " Refuse InvalidRequest", ""},
		{"http://s3.test/bucket/a", `GetObject Cached bucket "a"`, "a"},
		{"http://s3.test", `ListBuckets Cached  ""`, ""},
		{"http://me@s3.test/bucket/a", " Refuse InvalidURI", ""},
		{"ftp://s3.test/bucket/a", " Refuse InvalidURI", ""},
		{"http:bucket/a", " Refuse InvalidURI", ""},
		{"*", " Refuse InvalidURI", ""},
	} {
		q, err := Parse(ask(t, "GET", c.target), Options{})
		if got := brief(q, err); got != c.want || q.EscapedKey != c.escaped {
			t.Errorf("%s: %s %s, want %s %s", c.target, got, q.EscapedKey, c.want, c.escaped)
		}
	}
	for _, bad := range []string{"/bucket/%", "/bucket/%zz", "/%2"} { // net/http lets none of them through
		r := ask(t, "GET", "/x")
		r.URL.RawPath = bad
		if _, err := Parse(r, Options{}); err == nil || !strings.Contains(err.Error(), "InvalidURI") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestVirtualHosts(t *testing.T) {
	// A bucket may stand before one of the endpoint's names, in any case, with any port and dot.
	// Otherwise it is in the path.
	o := Options{Hosts: []string{"s3.test", "test", "S3.Example.com"}}
	for _, c := range []struct{ host, target, want string }{
		{"s3.test", "/bucket/a", `GetObject Cached bucket "a"`},
		{"S3.TEST:9000", "/bucket/a", `GetObject Cached bucket "a"`},
		{"bucket.s3.test", "/", `ListObjects Cached bucket ""`},
		{"bucket.s3.test", "/a/b", `GetObject Cached bucket "a/b"`},
		{"bucket.s3.test", "/bucket/a", `GetObject Cached bucket "bucket/a"`},
		{"bucket.s3.test", "//", `GetObject Pass bucket "/"`},
		{"Bucket.s3.test.:80", "/a", `GetObject Cached bucket "a"`},
		{"a.bucket.s3.example.com", "/a", `GetObject Cached a.bucket "a"`},
		{"bucket.test", "/a", `GetObject Cached bucket "a"`},
		{"xs3.test", "/bucket/a", `GetObject Cached xs3 "bucket/a"`},
		{".s3.test", "/a", " Refuse InvalidBucketName"},
		{"b.s3.test", "/a", " Refuse InvalidBucketName"},
		{"[::1]:9000", "/bucket/a", `GetObject Cached bucket "a"`},
		{"[::1]", "/bucket/a", `GetObject Cached bucket "a"`},
		{"localhost", "/bucket/a", `GetObject Cached bucket "a"`},
		{"", "/bucket/a", `GetObject Cached bucket "a"`},
	} {
		if got := brief(Parse(ask(t, "GET", c.target, "Host: "+c.host), o)); got != c.want {
			t.Errorf("%s%s: %s, want %s", c.host, c.target, got, c.want)
		}
	}
	if got := brief(Parse(ask(t, "POST", "/?hearth-batch", "Host: bucket.s3.test"), o)); got != `GetBatch Own bucket ""` {
		t.Error(got)
	}
}

func TestBucketNames(t *testing.T) {
	// A new bucket has a name by Amazon's rules.
	for name, want := range map[string]bool{"abc": true, "a.b-c1": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false,
		"Abc": false, "a_b": false, "a..b": false, "abc-": false, "abc.": false, "192.168.0.1": false, "1.2.3": true, "xn--a": false,
		"sthree-a": false, "amzn-s3-demo-a": false, "a-s3alias": false, "a--ol-s3": false, "a--x-s3": false, "a.mrap": false} {
		_, err := Parse(ask(t, "PUT", "/"+name), Options{})
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !Reserved("minio") || Reserved("bucket") {
		t.Error("reserved names")
	}
}

func TestCopySources(t *testing.T) {
	// The source is the one that the origin will read. A source that could be two objects is
	// refused.
	for raw, want := range map[string]string{
		"bucket/key":                           "bucket key  ",
		"/bucket/key":                          "bucket key  ",
		"/bucket/a/b":                          "bucket a/b  ",
		"bucket%2Fa%2Fb":                       "bucket a/b  ",
		"%2Fbucket%2Fkey":                      "bucket key  ",
		"/bucket//a":                           "bucket /a  ",
		"/bucket/a%3Fb":                        "bucket a?b  ",
		"/bucket/a%2525":                       "bucket a%25  ",
		"/bucket/a?versionId=x%2By":            "bucket a x+y ",
		"/bucket/a+b":                          "bucket a+b  a b",
		"/bucket/a%2Bb":                        "bucket a+b  ",
		"/bucket/\xc3\xa4":                     "bucket ä  ",
		"/bucket/../x":                         "bucket ../x  ",
		"":                                     "-",
		"bucket":                               "-",
		"/bucket/":                             "-",
		"//bucket/key":                         "-",
		"http://h/bucket/key":                  "-",
		"/bucket/a#b":                          "-",
		"/bucket/a?b":                          "-",
		"/bucket/a?versionId=":                 "-",
		"/bucket/a?versionId=1&x=2":            "-",
		"/bucket/a?x=1&versionId=2":            "-",
		"/bucket/a%":                           "-",
		"/bucket/a%2Fb\tc":                     "-",
		"/bucket/a?versionId=%":                "-",
		"arn:aws:s3:eu:1:ap/x/obj/k":           "-",
		"/bucket/" + strings.Repeat("k", 1025): "-",
	} {
		r := ask(t, "PUT", "/bucket/a")
		r.Header["X-Amz-Copy-Source"] = []string{raw}
		q, err := Parse(r, Options{})
		got := "-"
		if err == nil {
			s := q.Source
			got = strings.Join([]string{s.Bucket, s.Key, s.Version, s.spaced}, " ")
		} else if !strings.HasPrefix(err.Error(), "InvalidArgument") {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}
