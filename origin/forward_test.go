package origin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// client is a request as net/http hands it to a server.
func client(t testing.TB, raw string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(raw, "\n", "\r\n"))))
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return r
}

// put is an upload of a length whose body comes from a reader.
func put(t testing.TB, body io.Reader, length int64) *http.Request {
	t.Helper()
	r := client(t, "PUT /bucket/k HTTP/1.1\nHost: h\n\n")
	r.Body, r.ContentLength = io.NopCloser(body), length
	return r
}

// key is the account of tests whose origin looks at no signature.
func key(t *testing.T) {
	t.Helper()
	account(t, &hearthtest.S3{AccessKey: "AKIDEXAMPLE", SecretKey: "secretsecretsecret"})
}

// forwarder is an origin that a handler plays.
func forwarder(t *testing.T, c Config, h http.HandlerFunc) *S3 {
	t.Helper()
	key(t)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c.URL, c.Endpoint = "s3://bucket", server.URL
	if c.Retry.First == 0 {
		c.Retry.First = time.Millisecond
	}
	return open(t, c).(*S3)
}

// answer reads an answer of Forward to its end.
func answerOf(t *testing.T, resp *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(text)
}

func TestWhatAClientAsksGoesOnAsItCame(t *testing.T) {
	// Method, query, headers, length and body are the client's, byte for byte; the signature, the
	// date, what is about its connection and what proxies tell of it are not.
	type seen struct {
		*http.Request
		body string
	}
	var last seen
	s := forwarder(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		last = seen{r, string(text)}
	})
	hash := strings.Repeat("0f", 32)
	for _, c := range []struct {
		raw, bucket, key string
		uri, header      string // "Name=value" of a header that must be there; "-Name" must not
		length           int64
		body             string
	}{
		{"GET /bucket/a+b?versionId=x+y&&a=%zz&b;c HTTP/1.1\nHost: h\n\n", "bucket", "a+b", "/bucket/a%2Bb?versionId=x+y&&a=%zz&b;c", "X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", 0, ""},
		{"GET /bucket//a%2Fb/../%ff HTTP/1.1\nHost: h\n\n", "bucket", "/a%2Fb/../%ff", "/bucket//a/b/../%FF", "-User-Agent", 0, ""},
		{"GET /bucket/k?X-Amz-Signature=1&x-id=GetObject&X-Amz-Credential=c&%58-amz-Date=d&X-Amz-Meta=kept HTTP/1.1\nHost: h\n\n", "bucket", "k", "/bucket/k?x-id=GetObject&X-Amz-Meta=kept", "", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nConnection: If-Match, close\nIf-Match: \"e\"\nTe: trailers\n\n", "bucket", "k", "/bucket/k", "If-Match=\"e\"", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nConnection: Upgrade\nUpgrade: h2c\n\n", "bucket", "k", "/bucket/k", "-Upgrade", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nUser-Agent: aws\nX-Amz-Security-Token: theirs\n\n", "bucket", "k", "/bucket/k", "-X-Amz-Security-Token", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nX-Forwarded-Host: other\n\n", "bucket", "k", "/bucket/k", "-X-Forwarded-Host", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nX_Forwarded_Host: other\n\n", "bucket", "k", "/bucket/k", "-X_forwarded_host", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nForwarded: host=other\n\n", "bucket", "k", "/bucket/k", "-Forwarded", 0, ""},
		{"GET /bucket/k HTTP/1.1\nHost: h\nX-Real-IP: 10.0.0.1\n\n", "bucket", "k", "/bucket/k", "-X-Real-Ip", 0, ""},
		{"PUT /bucket/k HTTP/1.1\nHost: h\nX-Amz-Copy-Source: /b/k%2B\n\n", "bucket", "k", "/bucket/k", "X-Amz-Copy-Source=/b/k%2B", 0, ""},
		{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 0\n\n", "bucket", "k", "/bucket/k", "Content-Length=0", 0, ""},
		{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 3\nX-Amz-Content-Sha256: " + hash + "\n\nabc", "bucket", "k", "/bucket/k", "X-Amz-Content-Sha256=" + hash, 3, "abc"},
		{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 3\nContent-Encoding: aws-chunked\nX-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\n\nabc", "bucket", "k", "/bucket/k", "X-Amz-Content-Sha256=STREAMING-UNSIGNED-PAYLOAD-TRAILER", 3, "abc"},
		{"PUT /bucket/k HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\nTrailer: X-Amz-Copy-Source\n\n3\nabc\n0\nX-Amz-Copy-Source: other\n\n", "bucket", "k", "/bucket/k", "-X-Amz-Copy-Source", -1, "abc"},
		{"DELETE /bucket/k HTTP/1.1\nHost: h\nContent-Length: 2\nExpect: 100-continue\n\nxy", "bucket", "k", "/bucket/k", "Expect=100-continue", 2, "xy"},
		{"GET / HTTP/1.1\nHost: h\n\n", "", "", "/", "", 0, ""},
		{"PUT /new HTTP/1.1\nHost: h\n\n", "new", "", "/new", "", 0, ""},
	} {
		resp, err := s.Forward(t.Context(), client(t, c.raw), c.bucket, c.key)
		if status, _ := answerOf(t, resp, err); status != 200 || last.RequestURI != c.uri || last.body != c.body || last.ContentLength != c.length {
			t.Errorf("%q: %d %s, %d bytes, %q", c.raw, status, last.RequestURI, last.ContentLength, last.body)
		}
		name, value, _ := strings.Cut(strings.TrimPrefix(c.header, "-"), "=")
		if got := last.Header.Get(name); name != "" && got != value {
			t.Errorf("%q: %s is %q", c.raw, name, got)
		}
		if strings.HasPrefix(last.RequestURI, "/bucket/k") && !strings.Contains(last.Header.Get("Authorization"), "AKIDEXAMPLE/") || last.Trailer != nil {
			t.Errorf("%q: %v", c.raw, last.Header)
		}
	}
	for raw, bucket := range map[string]string{
		"PUT /bucket/k HTTP/1.1\nHost: h\nX-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\nContent-Length: 1\n\n0": "bucket",
		"GET /x HTTP/1.1\nHost: h\n\n": "a/b",
		"GET /y HTTP/1.1\nHost: h\n\n": "..",
	} {
		if resp, err := s.Forward(t.Context(), client(t, raw), bucket, "k"); err == nil {
			t.Errorf("%q went on as %s", raw, resp.Request.URL)
		}
	}
	if n := s.Stats().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestOtherBucketsStandWhereTheStyleSays(t *testing.T) {
	// A bucket that is not the origin's own is asked for at its own virtual host, but where dots
	// are in it, and in the region that was told.
	s, err := Open(t.Context(), Config{URL: "s3://own", Region: "eu-west-1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ bucket, region, want string }{
		{"own", "", "own.s3.eu-west-1.amazonaws.com eu-west-1"},
		{"other", "", "other.s3.eu-west-1.amazonaws.com eu-west-1"},
		{"other", "us-west-2", "other.s3.us-west-2.amazonaws.com us-west-2"},
		{"with.dots", "", "s3.eu-west-1.amazonaws.com/with.dots eu-west-1"},
		{"", "", "s3.eu-west-1.amazonaws.com eu-west-1"},
	} {
		p := (&forward{s: s.(*S3), bucket: c.bucket, region: c.region}).place()
		if got := p.host + p.base + " " + p.region; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestARealServerTakesWhatIsForwarded(t *testing.T) {
	// versitygw accepts every signature and does what it is asked, for odd keys and queries too.
	server := hearthtest.StartS3(t)
	server.Bucket(t, "real")
	account(t, &server.S3)
	s := open(t, Config{URL: "s3://real", Endpoint: server.Endpoint}).(*S3)
	ask := func(raw, bucket, key string) (int, string) {
		t.Helper()
		resp, err := s.Forward(t.Context(), client(t, raw), bucket, key)
		return answerOf(t, resp, err)
	}
	for _, key := range []string{"plain", "a+b", "sp%20ace", "d/e%2Ff", "%E2%98%83", "per%25cent", "quo'te(1)!*", "eq=&q"} {
		raw := " /real/" + key + " HTTP/1.1\nHost: h\n"
		if status, text := ask("PUT"+raw+"x-amz-meta-Two-Words: a  b\nContent-Type: text/x;  y\nContent-Length: 3\n\nabc", "real", key); status != 200 {
			t.Errorf("put %s: %d %s", key, status, text)
		}
		if status, text := ask("GET"+raw+"Range: bytes=1-1\n\n", "real", key); status != 206 || text != "b" {
			t.Errorf("get %s: %d %s", key, status, text)
		}
		if status, text := ask("GET /real?prefix="+key+"&list-type=2&delimiter=&encoding-type=url HTTP/1.1\nHost: h\n\n", "real", ""); status != 200 || key == "plain" && !strings.Contains(text, "<Key>plain<") {
			t.Errorf("list %s: %d %s", key, status, text)
		}
		const tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
		if status, text := ask("PUT /real/"+key+"?tagging HTTP/1.1\nHost: h\nContent-Length: "+strconv.Itoa(len(tags))+"\n\n"+tags, "real", key); status != 200 {
			t.Errorf("tag %s: %d %s", key, status, text)
		}
	}
	for _, c := range []struct {
		raw, bucket, key string
		status           int
		text             string
	}{
		{"PUT /real/copy HTTP/1.1\nHost: h\nx-amz-copy-source: /real/sp%20ace\n\n", "real", "copy", 200, "CopyObjectResult"},
		{"GET /real/copy HTTP/1.1\nHost: h\n\n", "real", "copy", 200, "abc"},
		{"PUT /real/copy HTTP/1.1\nHost: h\nx-amz-content-sha256: " + strings.Repeat("0", 64) + "\nContent-Length: 3\n\nxyz", "real", "copy", 400, "XAmzContentSHA256Mismatch"},
		{"GET /real/copy HTTP/1.1\nHost: h\n\n", "real", "copy", 200, "abc"},
		{"PUT /real/none HTTP/1.1\nHost: h\nExpect: 100-continue\nIf-Match: \"0\"\nContent-Length: 3\n\nxyz", "real", "none", 404, "NoSuchKey"},
		{"POST /real/multi?uploads HTTP/1.1\nHost: h\n\n", "real", "multi", 200, "UploadId"},
		{"DELETE /real/copy HTTP/1.1\nHost: h\n\n", "real", "copy", 204, ""},
		{"HEAD /real/copy HTTP/1.1\nHost: h\n\n", "real", "copy", 404, ""},
		{"PUT /more HTTP/1.1\nHost: h\n\n", "more", "", 200, ""},
		{"GET / HTTP/1.1\nHost: h\n\n", "", "", 200, "<Name>more</Name>"},
		{"DELETE /more HTTP/1.1\nHost: h\n\n", "more", "", 204, ""},
	} {
		if status, text := ask(c.raw, c.bucket, c.key); status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%q: %d %s", c.raw, status, text)
		}
	}
}

func TestWhatIsAgainstOurSignatureIsNoAnswer(t *testing.T) {
	// A client is not told that Hearth's own key is wrong, nor sent elsewhere; that it may not is
	// an answer, which stays readable, and so is what MinIO has for a key that is no UTF-8: no
	// signature of such a one is right to it.
	var code atomic.Value
	s := forwarder(t, Config{Region: "us-east-1"}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code.Load())
	})
	for _, c := range []struct {
		code, key string
		ours      bool
	}{{"AccessDenied", "k", false}, {"SignatureDoesNotMatch", "k", true}, {"SignatureDoesNotMatch", "%C3%A4", true}, {"InvalidAccessKeyId", "k", true},
		{"SignatureDoesNotMatch", "bad%FF", false}, {"InvalidAccessKeyId", "bad%FF", true}} {
		code.Store(c.code)
		resp, err := s.Forward(t.Context(), client(t, "GET /bucket/"+c.key+" HTTP/1.1\nHost: h\n\n"), "bucket", c.key)
		if (err != nil) != c.ours || err != nil && !Away(err) {
			t.Errorf("%s: %v", c.code, err)
		}
		if err == nil {
			if status, text := answerOf(t, resp, err); status != http.StatusForbidden || !strings.Contains(text, c.code+"</Code></Error>") {
				t.Errorf("%s of %s: %d %s", c.code, c.key, status, text)
			}
		}
	}
}

func TestAPassLearnsTheRegion(t *testing.T) {
	// What has no body, and an upload whose body was not asked for, go out again for the region
	// that the origin names; an upload under way fails, and the next one does not.
	region := func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "/eu-north-1/") {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region></Error>")
			return
		}
		text, _ := io.ReadAll(r.Body)
		_, _ = w.Write(text)
	}
	for raw, lost := range map[string]bool{
		"PUT /bucket/k HTTP/1.1\nHost: h\nExpect: 100-continue\nContent-Length: 3\n\nabc": false,
		"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 3\n\nabc":                       true,
		"DELETE /bucket/k HTTP/1.1\nHost: h\n\n":                                          false,
	} {
		s := forwarder(t, Config{}, region)
		t.Setenv("AWS_REGION", "")
		t.Setenv("AWS_DEFAULT_REGION", "")
		resp, err := s.Forward(t.Context(), client(t, raw), "bucket", "k")
		if lost {
			if err == nil {
				t.Errorf("%q went out twice", raw)
			}
			resp, err = s.Forward(t.Context(), client(t, raw), "bucket", "k")
		}
		if status, text := answerOf(t, resp, err); status != 200 || !strings.HasSuffix(raw, "\n\n"+text) {
			t.Errorf("%q: %d %s", raw, status, text)
		}
	}
}

// failing is a body that gives some bytes and then an error.
func failing(text string, err error) io.Reader {
	return io.MultiReader(strings.NewReader(text), readerFunc(func([]byte) (int, error) { return 0, err }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestACutUploadIsCutAtTheOrigin(t *testing.T) {
	// However a client's body breaks off, the origin sees no whole one: of an announced length not
	// even when all bytes were there and the error came behind the last.
	whole := make(chan bool, 1)
	s := forwarder(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		whole <- err == nil
	})
	tampered := errors.New("the chunk's signature is wrong")
	for name, r := range map[string]*http.Request{
		"in the midst":    put(t, failing("abc", io.ErrUnexpectedEOF), 6),
		"at the last":     put(t, failing("abcdef", tampered), 6),
		"too short":       put(t, strings.NewReader("abc"), 6),
		"too long":        put(t, strings.NewReader("abcdefg"), 6),
		"without length":  put(t, failing("abcdef", tampered), -1),
		"large, at last":  put(t, failing(strings.Repeat("x", 1<<20), tampered), 1<<20),
		"of no announced": put(t, failing("", tampered), 6),
	} {
		resp, err := s.Forward(t.Context(), r, "bucket", "k")
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
		if Away(err) {
			t.Errorf("%s: the client's error is the origin's: %v", name, err)
		}
		if <-whole {
			t.Errorf("%s: the origin has it whole", name)
		}
	}
	if resp, err := s.Forward(t.Context(), put(t, failing("", tampered), 0), "bucket", "k"); !errors.Is(err, tampered) {
		t.Errorf("an empty body that is wrong went on: %v %v", resp, err)
	}
	resp, err := s.Forward(t.Context(), put(t, strings.NewReader("abcdef"), 6), "bucket", "k")
	if status, _ := answerOf(t, resp, err); status != 200 || !<-whole {
		t.Errorf("a whole one: %d", status)
	}
}

func TestABodyIsAskedForWhenTheOriginAsks(t *testing.T) {
	// A client that waits for 100 Continue is read from only after the origin's; an origin that
	// answers instead has the body left unread, though it keeps the connection.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	key(t)
	s := open(t, Config{URL: "s3://bucket", Endpoint: "http://" + l.Addr().String()}).(*S3)
	s.transport.ExpectContinueTimeout = time.Hour // a busy machine is no origin that says nothing
	for _, refuse := range []bool{false, true} {
		var reads atomic.Int64
		served := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				served <- err
				return
			}
			defer c.Close()
			in := bufio.NewReader(c)
			if _, err = http.ReadRequest(in); err == nil && reads.Load() != 0 {
				err = errors.New("the body was read before")
			}
			if refuse {
				_, _ = io.WriteString(c, "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 2\r\n\r\nno")
				_, _ = io.Copy(io.Discard, in)
			} else {
				_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
				_, _ = io.ReadFull(in, make([]byte, 3))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes")
			}
			served <- err
		}()
		r := put(t, io.TeeReader(strings.NewReader("abc"), readsCount(&reads)), 3)
		r.Header.Set("Expect", "100-continue")
		resp, err := s.Forward(t.Context(), r, "bucket", "k")
		status, text := answerOf(t, resp, err)
		if err := <-served; err != nil {
			t.Error(err)
		}
		if refuse && (status != 412 || text != "no" || reads.Load() != 0) || !refuse && (status != 200 || text != "yes" || reads.Load() == 0) {
			t.Errorf("refused %v: %d %s, %d reads", refuse, status, text, reads.Load())
		}
	}
}

type countWriter struct{ n *atomic.Int64 }

func (c countWriter) Write(p []byte) (int, error) { c.n.Add(1); return len(p), nil }

func readsCount(n *atomic.Int64) io.Writer { return countWriter{n} }

func TestWhatHasABodyIsSentOnce(t *testing.T) {
	// An origin that hangs up is asked again for a GET, never for what may have been done.
	var requests atomic.Int64
	s := forwarder(t, Config{Retry: Retry{Attempts: 4}}, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	})
	for raw, want := range map[string]int64{
		"GET /bucket/k HTTP/1.1\nHost: h\n\n":                       4,
		"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 1\n\nx":   1,
		"GET /bucket/k HTTP/1.1\nHost: h\nContent-Length: 1\n\nx":   1,
		"DELETE /bucket/k HTTP/1.1\nHost: h\n\n":                    1,
		"POST /bucket/k?uploads HTTP/1.1\nHost: h\n\n":              1,
		"PUT /bucket/k HTTP/1.1\nHost: h\nx-amz-copy-source: a\n\n": 1,
	} {
		requests.Store(0)
		_, err := s.Forward(t.Context(), client(t, raw), "bucket", "k")
		if e := new(Error); !errors.As(err, &e) || !Away(err) || requests.Load() != want {
			t.Errorf("%q: %d requests, %v", raw, requests.Load(), err)
		}
	}
}

func TestAnOriginThatTakesNothingIsGivenUp(t *testing.T) {
	// The body is large, the origin reads none of it: after three times its timeout that is told.
	done := make(chan struct{})
	defer close(done)
	s := forwarder(t, Config{Timeout: 20 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) { <-done })
	endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
	_, err := s.Forward(t.Context(), put(t, endless, 1<<40), "bucket", "k")
	if !errors.Is(err, errStalled) || !Away(err) || s.Stats().InFlight != 0 {
		t.Errorf("%v, %d in flight", err, s.Stats().InFlight)
	}
}

// pipes is a listener whose connections are pipes, for tests of virtual time.
type pipes struct {
	conns chan net.Conn
	ended context.Context
	end   context.CancelFunc
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended.Done():
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { p.end(); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// piped is a forwarder whose time is virtual: it is called in a bubble of synctest.
func piped(t *testing.T, c Config, h http.HandlerFunc) *S3 {
	t.Helper()
	key(t)
	p := pipes{conns: make(chan net.Conn)}
	p.ended, p.end = context.WithCancel(t.Context())
	server := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(p) // ends with Close
	}()
	t.Cleanup(func() { _ = server.Close(); <-served })
	c.URL, c.Endpoint = "s3://bucket", "http://origin.test"
	s := open(t, c).(*S3)
	s.transport.DialContext, s.transport.Proxy = p.dial, nil
	return s
}

func TestAnOriginThatNeverAnswersIsGivenUp(t *testing.T) {
	// It takes a request and says nothing, or not all of its answer: a read is given up within three
	// times its timeout, as reads of ours are, and a write when its own, longer time is over, which is
	// longer for what moves bytes. It is sent once.
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		s := piped(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.RawQuery == "begun" {
				_, _ = io.WriteString(w, "<a>")
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		})
		const read, said, work = DefaultTimeout, time.Minute, 10 * time.Minute
		for _, c := range []struct {
			raw         string
			from, until time.Duration
			retried     bool
		}{
			{"GET /bucket/k HTTP/1.1\nHost: h\n\n", read, 3 * read, true},
			{"HEAD /bucket/k HTTP/1.1\nHost: h\n\n", read, 3 * read, true},
			{"GET /bucket?begun HTTP/1.1\nHost: h\n\n", read, read, false},
			{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 0\n\n", said, said, false},
			{"DELETE /bucket/k HTTP/1.1\nHost: h\n\n", said, said, false},
			{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 1\n\nx", work, work, false},
			{"POST /bucket/k?uploadId=1 HTTP/1.1\nHost: h\nContent-Length: 1\n\nx", work, work, false},
			{"POST /bucket/k?begun HTTP/1.1\nHost: h\nContent-Length: 1\n\nx", work, work, false},
			{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 0\nX-Amz-Copy-Source: a\n\n", work, work, false},
			{"DELETE /bucket/k HTTP/1.1\nHost: h\nX-Minio-Force-Delete: true\n\n", work, work, false},
		} {
			requests.Store(0)
			began := time.Now()
			resp, err := s.Forward(t.Context(), client(t, c.raw), "bucket", "k")
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if took := time.Since(began); !errors.Is(err, errStalled) || !Away(err) || took < c.from || took > c.until {
				t.Errorf("%q: %v after %v", c.raw, err, took)
			}
			if n := requests.Load(); n < 1 || n > 1 != c.retried {
				t.Errorf("%q: asked %d times", c.raw, n)
			}
			if s.Stats().InFlight != 0 {
				t.Errorf("%q holds a connection", c.raw)
			}
		}
	})
}

func TestWhoReadsSlowlyIsNotTheOriginsSilence(t *testing.T) {
	// The answer is there, and a client takes it piece by piece, longer than the origin has.
	s := forwarder(t, Config{Timeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 8<<20))
	})
	resp, err := s.Forward(t.Context(), client(t, "GET /bucket/k HTTP/1.1\nHost: h\n\n"), "bucket", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 1<<20)
	for i := range 8 {
		if i < 3 {
			<-time.After(2 * s.silence.Read) // as a client's link takes its time
		}
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			t.Fatalf("after %d MiB: %v", i, err)
		}
	}
}

func TestPassesLeaveHalfOfTheConnections(t *testing.T) {
	// Answers that nobody reads hold half of the connections, a further request is refused within
	// the timeout, and reads go on, and HEADs, which they may need. What is closed makes room.
	s := forwarder(t, Config{Connections: 9, Timeout: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100))
	})
	var held []*http.Response
	get, post := client(t, "GET /bucket/k HTTP/1.1\nHost: h\n\n"), client(t, "POST /bucket/k?uploads HTTP/1.1\nHost: h\nContent-Length: 0\n\n")
	for _, r := range []*http.Request{get, get, post, post} { // of nine one is for names, half of eight for passes
		resp, err := s.Forward(t.Context(), r, "bucket", "k")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, resp)
	}
	for _, r := range []*http.Request{get, post} {
		if _, err := s.Forward(t.Context(), r, "bucket", "k"); !errors.Is(err, errFull) || !Away(err) {
			t.Error(err)
		}
	}
	head, err := s.Forward(t.Context(), client(t, "HEAD /bucket/k HTTP/1.1\nHost: h\n\n"), "bucket", "k")
	if err != nil {
		t.Fatalf("a HEAD, for which passes are not counted: %v", err)
	}
	head.Body.Close()
	for range 4 {
		if c, ok := s.trySlot(); !ok {
			t.Error("no connection is left for reads")
		} else {
			defer c.release()
		}
	}
	for _, resp := range held {
		resp.Body.Close()
		resp.Body.Close()
	}
	if n := s.Stats().InFlight; n != 4 {
		t.Errorf("%d in flight, want those of reads", n)
	}
}

func TestReadersLeaveRoomForWrites(t *testing.T) {
	// Clients ask and read nothing: one has its share and no more, several have half of what passes and
	// no more, and writes and another client's reads go on. What is given back others have.
	s := forwarder(t, Config{Connections: 18, Timeout: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100))
	})
	get := client(t, "GET /bucket/k HTTP/1.1\nHost: h\n\n")
	asks := func(who string, r *http.Request, want error) *http.Response {
		t.Helper()
		resp, err := s.Forward(ForClient(t.Context(), who), r, "bucket", "k")
		if !errors.Is(err, want) {
			t.Fatalf("%s by %q: %v, want %v", r.Method, who, err, want)
		}
		return resp
	}
	var held []*http.Response
	for _, who := range []string{"a", "a", "b", ""} { // of 18 two are for names, 8 of 16 for passes, 4 for those that read
		held = append(held, asks(who, get, nil))
		if who == "a" && len(held) == 2 {
			asks("a", get, errFull)
			asks("a", client(t, "POST /bucket/k?select&select-type=2 HTTP/1.1\nHost: h\nContent-Length: 1\n\nx"), errFull)
		}
	}
	asks("c", get, errFull)
	for _, raw := range []string{"PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 1\n\nx", "DELETE /bucket/k HTTP/1.1\nHost: h\n\n", "POST /bucket/k?uploads HTTP/1.1\nHost: h\nContent-Length: 0\n\n", "POST /bucket?delete HTTP/1.1\nHost: h\nContent-Length: 1\n\nx"} {
		held = append(held, asks("a", client(t, raw), nil)) // four: all that is left
	}
	held[2].Body.Close()
	held[2] = asks("c", get, nil)
	for _, resp := range held {
		resp.Body.Close()
	}
	if reads, clients := s.passes.reading.Taken(); reads != 0 || clients != 0 || s.Stats().InFlight != 0 {
		t.Errorf("%d reads and the shares of %d clients are left, %d in flight", reads, clients, s.Stats().InFlight)
	}
}

func TestACancelledPassEnds(t *testing.T) {
	// The client goes away while the origin thinks: the request ends there too.
	asked, gone := make(chan struct{}), make(chan struct{})
	s := forwarder(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := s.Forward(ctx, client(t, "POST /bucket/k?select HTTP/1.1\nHost: h\n\n"), "bucket", "k"); !errors.Is(err, context.Canceled) || Away(err) {
		t.Error(err)
	}
	<-gone
}
