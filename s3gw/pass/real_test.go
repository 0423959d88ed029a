package pass

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// real is versitygw with a bucket, and a gate in front of it.
func real(t *testing.T) (*hearthtest.Server, *gate) {
	t.Helper()
	server := hearthtest.StartS3(t)
	server.Bucket(t, "bucket")
	for _, v := range server.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	t.Setenv("AWS_SESSION_TOKEN", "")
	return server, at(t, server.Endpoint, Options{})
}

func TestAnswersAreThoseOfTheOrigin(t *testing.T) {
	// Each request goes to a real server, directly and through the gate. Status, headers and body
	// are the same.
	server, g := real(t)
	keys := []string{"plain", "a+b", "sp ace/x", "☃", "per%41cent", "d/e/f", "gone"}
	for _, key := range keys[:len(keys)-1] {
		if _, err := server.PutBytes(t.Context(), "bucket", key, bytes.Repeat([]byte(key), 1000)); err != nil {
			t.Fatal(err)
		}
	}
	type question struct {
		method, key string
		query       url.Values
		name, value string // a header
		body        string
	}
	var questions []question
	for _, key := range keys {
		for _, method := range []string{"GET", "HEAD"} {
			for _, h := range [][2]string{{}, {"Range", "bytes=1-10"}, {"Range", "bytes=-5"}, {"Range", "bytes=99999-"}, {"Range", "apples=1-2"}, {"If-None-Match", "*"}, {"If-Match", `"no"`},
				{"If-Modified-Since", "Tue, 15 Nov 1994 12:45:26 GMT"}, {"If-Modified-Since", "Tue, 15 Nov 2094 12:45:26 GMT"}, {"Accept-Encoding", "gzip"}} {
				questions = append(questions, question{method: method, key: key, name: h[0], value: h[1]})
			}
			for _, q := range []string{"partNumber=1", "versionId=none", "response-content-type=text%2Fx&response-cache-control=no", "unknown", "tagging", "attributes", "acl", "uploadId=x"} {
				values, _ := url.ParseQuery(q)
				questions = append(questions, question{method: method, key: key, query: values})
			}
		}
		questions = append(questions, question{method: "PUT", key: "new" + key, body: "body of " + key, name: "Content-Type", value: "text/x"}, question{method: "PUT", key: "new" + key, body: "x", name: "If-None-Match", value: "*"},
			question{method: "PUT", key: "new" + key, body: "y", name: "Content-Md5", value: "AAAAAAAAAAAAAAAAAAAAAA=="}, question{method: "GET", key: "new" + key}, question{method: "PUT", key: "new" + key, body: "<Tagging>", query: url.Values{"tagging": {""}}},
			question{method: "DELETE", key: "new" + key}, question{method: "HEAD", key: "new" + key}, question{method: "POST", key: key, query: url.Values{"restore": {""}}, body: "<x>"})
	}
	for _, q := range []string{"", "list-type=2", "list-type=2&prefix=a%2B", "list-type=2&delimiter=%2F&max-keys=2", "prefix=%E2&encoding-type=url", "list-type=2&max-keys=x", "location", "versioning", "uploads", "policy", "versions"} {
		values, _ := url.ParseQuery(q)
		questions = append(questions, question{method: "GET", query: values}, question{method: "HEAD", query: values})
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	ask := func(endpoint string, q question) string {
		r, err := server.Request(t.Context(), q.method, "bucket", q.key, q.query)
		if err != nil {
			t.Fatal(err)
		}
		if q.name != "" {
			r.Header.Set(q.name, q.value)
		}
		if q.body != "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(q.body)), int64(len(q.body))
		}
		if endpoint != server.Endpoint {
			r.URL.Host, r.Host = strings.TrimPrefix(endpoint, "http://"), ""
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return shown(resp, text, err)
	}
	for _, q := range questions {
		if direct, through := ask(server.Endpoint, q), ask(g.URL, q); direct != through {
			t.Errorf("%+v:\n%s\nand through the gate\n%s", q, direct, through)
		}
	}
	t.Logf("%d requests", len(questions))
}

// shown returns an answer without what differs each time.
func shown(resp *http.Response, text []byte, err error) string {
	var b strings.Builder
	fmt.Fprintln(&b, resp.StatusCode, resp.ContentLength, resp.TransferEncoding)
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		switch name {
		case "Date", "X-Amz-Request-Id", "X-Amz-Id-2", "Last-Modified", "Connection":
		default:
			if name == "Content-Type" && resp.StatusCode == http.StatusNotModified {
				continue // net/http's server never says the type of a body that is not there
			}
			fmt.Fprintln(&b, name, resp.Header[name])
		}
	}
	ids := regexp.MustCompile(`<(RequestId|HostId|LastModified)>[^<]*<`)
	fmt.Fprintf(&b, "%s %v", ids.ReplaceAll(text, nil), err)
	return b.String()
}

func TestLargeUploadsAndDownloads(t *testing.T) {
	// 32 MiB go up and come back.
	server, g := real(t)
	through := server.S3
	through.Endpoint = g.URL
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	if _, err := through.PutBytes(t.Context(), "bucket", "large", data); err != nil {
		t.Fatal(err)
	}
	r, err := through.Request(t.Context(), "GET", "bucket", "large", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := g.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(text, data) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if err := through.Delete(t.Context(), "bucket", "large"); err != nil {
		t.Error(err)
	}
	if o := <-g.done; o.err != nil || o.status != 200 {
		t.Error(o)
	}
}

// cpu is the process's CPU time.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkGet16K(b *testing.B) {
	// CPU time of a GET of 16 KiB: first of client and origin alone, then with a gate between. The
	// difference is the gate's.
	body := bytes.Repeat([]byte("x"), 16<<10)
	answer := append([]byte("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nLast-Modified: Tue, 15 Nov 1994 12:45:26 GMT\r\nContent-Type: x/y\r\nContent-Length: 16384\r\n\r\n"), body...)
	origin := canned(b, answer)
	g := serve(b, "http://"+origin, Options{})
	question := []byte("GET /bucket/d1/class0001/000123.bin HTTP/1.1\r\nHost: h\r\nUser-Agent: aws\r\nX-Amz-Content-Sha256: UNSIGNED-PAYLOAD\r\nX-Amz-Date: 20240101T000000Z\r\nAuthorization: x\r\n\r\n")
	for _, c := range []struct{ name, address string }{{"direct", origin}, {"through", g.Listener.Addr().String()}} {
		b.Run(c.name, func(b *testing.B) {
			asked := dialRaw(b, c.address)
			in := make([]byte, 32<<10)
			b.ReportAllocs()
			begin := cpu()
			for b.Loop() {
				if _, err := asked.Write(question); err != nil {
					b.Fatal(err)
				}
				for n, want := 0, 1<<20; n < want; {
					m, err := asked.Read(in[n:])
					if err != nil {
						b.Fatal(err)
					}
					n += m
					if end := bytes.Index(in[:n], []byte("\r\n\r\n")); end >= 0 {
						want = end + 4 + len(body)
					}
				}
			}
			b.ReportMetric(float64(cpu()-begin)/float64(b.N), "cpu-ns/op")
		})
	}
}
