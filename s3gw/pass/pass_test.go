package pass

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/request"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outcome is what a Serve returned.
type outcome struct {
	status int
	err    error
}

// gate is a server that passes all requests on to an origin.
type gate struct {
	*httptest.Server
	done   chan outcome // of each request
	ending func(bool)   // nil means none
	finish bool         // sets Target.Finish
}

// serve starts a gate for an S3 origin at an endpoint, whose bucket is "bucket".
func serve(t testing.TB, endpoint string, o Options) *gate {
	t.Helper()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secretsecretsecret", "AWS_SESSION_TOKEN": "",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"} {
		t.Setenv(name, value)
	}
	return at(t, endpoint, o)
}

// at is serve with the account from the environment.
func at(t testing.TB, endpoint string, o Options) *gate {
	t.Helper()
	from, err := origin.Open(context.Background(), origin.Config{URL: "s3://bucket", Endpoint: endpoint, Region: "us-east-1", Timeout: 5 * time.Second,
		Retry: origin.Retry{Attempts: 2, First: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	s3, pass := from.(*origin.S3), New(o)
	g := &gate{done: make(chan outcome, 100)}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
		to := Target{Forward: s3.Forward, Bucket: bucket, Key: key, ID: "our-id", Ending: g.ending, Finish: g.finish}
		if g.finish {
			to.Forward = func(ctx context.Context, r *http.Request, bucket, key string) (*http.Response, error) {
				return s3.Forward(context.WithoutCancel(ctx), r, bucket, key)
			}
		}
		status, err := pass.Serve(w, r, to)
		select {
		case g.done <- outcome{status, err}:
		default: // a benchmark takes none
		}
	}))
	t.Cleanup(func() {
		g.Close()
		hearthtest.Close(t, s3)
		if n := s3.Stats().InFlight; n != 0 {
			t.Errorf("%d requests hold a connection still", n)
		}
	})
	return g
}

// play starts a gate whose origin is a handler.
func play(t testing.TB, o Options, h http.HandlerFunc) *gate {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return serve(t, server.URL, o)
}

// wire is a client's connection.
type wire struct {
	net.Conn
	in   *bufio.Reader
	t    testing.TB
	sent time.Time // time of the last send
}

func (g *gate) dial(t testing.TB) *wire {
	t.Helper()
	c, err := net.Dial("tcp", g.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // a test that hangs fails
	return &wire{Conn: c, in: bufio.NewReader(c), t: t}
}

func (w *wire) send(text string) {
	w.t.Helper()
	w.sent = time.Now()
	if _, err := io.WriteString(w, strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
		w.t.Error(err)
	}
}

// answer reads an answer's status and headers in the form of the wire.
func (w *wire) head() string {
	w.t.Helper()
	var head strings.Builder
	for {
		line, err := w.in.ReadString('\n')
		if err != nil {
			w.t.Fatalf("%q: %v", head.String(), err)
		}
		if line == "\r\n" {
			return head.String()
		}
		head.WriteString(line)
	}
}

// rest returns what comes until the connection ends.
func (w *wire) rest() string {
	text, _ := io.ReadAll(w.in) // however it ends
	return string(text)
}

func TestAnAnswerComesAsItIs(t *testing.T) {
	// Status, headers and body are the origin's. What net/http adds by itself is not there.
	g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["Date"] = []string{"Tue, 15 Nov 1994 12:45:26 GMT"}
		h["Content-Type"] = nil
		h["x-amz-meta-two-words"] = []string{"a  b"}
		h["x-amz-request-id"], h["x-amz-id-2"] = []string{"theirs"}, []string{"theirs2"}
		switch r.URL.Path {
		case "/bucket/length", "/bucket/head":
			h["Content-Length"] = []string{"5"}
			if r.Method != "HEAD" {
				_, _ = io.WriteString(w, "12345")
			}
		case "/bucket/gzip":
			h["Content-Encoding"], h["Content-Length"] = []string{"gzip"}, []string{"3"}
			_, _ = io.WriteString(w, "\x1f\x8b\x08")
		case "/bucket/304":
			h["Etag"] = []string{`"e"`}
			w.WriteHeader(304)
		case "/bucket/204":
			w.WriteHeader(204)
		case "/bucket/none":
		case "/bucket/trailer":
			h["Trailer"] = []string{"X-Amz-Checksum-Crc32"}
			_, _ = io.WriteString(w, "abc")
			h["X-Amz-Checksum-Crc32"] = []string{"c"}
		default:
			w.WriteHeader(404)
			_, _ = io.WriteString(w, "<Error/>")
			_ = http.NewResponseController(w).Flush()
		}
	})
	for _, c := range []struct{ method, path, status, has, body string }{
		{"GET", "length", "200 OK", "Content-Length: 5\r\n", "12345"},
		{"HEAD", "head", "200 OK", "Content-Length: 5\r\n", ""},
		{"GET", "gzip", "200 OK", "Content-Encoding: gzip\r\n", "\x1f\x8b\x08"},
		{"GET", "304", "304 Not Modified", "Etag: \"e\"\r\n", ""},
		{"DELETE", "204", "204 No Content", "", ""},
		{"PUT", "none", "200 OK", "Content-Length: 0\r\n", ""},
		{"GET", "trailer", "200 OK", "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\nX-Amz-Checksum-Crc32: c\r\n\r\n"},
		{"GET", "else", "404 Not Found", "Transfer-Encoding: chunked\r\n", "8\r\n<Error/>\r\n0\r\n\r\n"},
	} {
		w := g.dial(t)
		w.send(c.method + " /bucket/" + c.path + " HTTP/1.1\nHost: h\nConnection: close\n\n")
		head := w.head()
		for _, want := range []string{"HTTP/1.1 " + c.status + "\r\n", c.has, "Date: Tue, 15 Nov 1994", "X-Amz-Request-Id: theirs\r\n", "X-Amz-Id-2: theirs2\r\n", "x-amz-meta-two-words: a  b\r\n"} {
			if !strings.Contains(head, want) {
				t.Errorf("%s: no %q in %q", c.path, want, head)
			}
		}
		if strings.Contains(head, "Content-Type") || strings.Count(head, "Date:") != 1 {
			t.Errorf("%s: %q", c.path, head)
		}
		if body := w.rest(); body != c.body {
			t.Errorf("%s: %q, want %q", c.path, body, c.body)
		}
		if o := <-g.done; o.err != nil || !strings.HasPrefix(c.status, fmt.Sprint(o.status)) {
			t.Errorf("%s: %+v", c.path, o)
		}
	}
}

func TestASlowAnswerIsSeenAsItComes(t *testing.T) {
	// Headers and each piece reach the client before the origin sends the next, with a known length
	// or without. So do interim answers.
	for _, length := range []string{"", "3"} {
		next := make(chan struct{})
		g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "early")
			w.WriteHeader(103)
			<-next
			w.Header().Del("Link")
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			for _, piece := range []string{"", "a", "b", "c"} {
				_, _ = io.WriteString(w, piece)
				_ = http.NewResponseController(w).Flush()
				if piece != "" || length == "" {
					<-next
				}
			}
		})
		w := g.dial(t)
		w.send("POST /bucket/k?select HTTP/1.1\nHost: h\nContent-Length: 2\n\nxy")
		if head := w.head(); !strings.Contains(head, "103 Early") || !strings.Contains(head, "Link: early") {
			t.Errorf("%q", head)
		}
		next <- struct{}{}
		head := w.head()
		if !strings.Contains(head, "200 OK") || strings.Contains(head, "Link") {
			t.Errorf("%q", head)
		}
		if length == "" {
			next <- struct{}{}
			w.in = bufio.NewReader(httpChunks(w.in))
		}
		for _, want := range "abc" {
			if c, err := w.in.ReadByte(); rune(c) != want {
				t.Errorf("%q %v", c, err)
			}
			next <- struct{}{}
		}
		if o := <-g.done; o.status != 200 || o.err != nil {
			t.Error(o)
		}
		w.Close()
	}
}

// httpChunks is the content of a body in chunks.
func httpChunks(in io.Reader) io.Reader {
	resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), in)), nil)
	if err != nil {
		panic(err)
	}
	return resp.Body
}

func TestABodyIsAskedForByTheOrigin(t *testing.T) {
	// A client that waits for 100 Continue gets it once the origin asks for the body. If the origin
	// refuses instead, the refusal reaches the client, whether or not the origin keeps its
	// connection, and the client's connection ends.
	g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "refused") {
			w.WriteHeader(412)
			_, _ = io.WriteString(w, "no")
			return
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(text)
	})
	raw := "PUT /bucket/%s HTTP/1.1\nHost: h\nExpect: 100-continue\nContent-Length: 3\n\n"
	w := g.dial(t)
	w.send(fmt.Sprintf(raw, "taken"))
	if head := w.head(); head != "HTTP/1.1 100 Continue\r\n" {
		t.Errorf("%q", head)
	}
	w.send("abc")
	if head := w.head(); !strings.Contains(head, "200 OK") || strings.Contains(head, "close") {
		t.Errorf("%q", head)
	}
	body := make([]byte, 3)
	if _, err := io.ReadFull(w.in, body); err != nil || string(body) != "abc" {
		t.Errorf("%q %v", body, err)
	}
	w.send(fmt.Sprintf(raw, "refused")) // over the same connection
	head := w.head()
	// An origin whose answer is a second late, on a busy machine, seemed to say nothing, and its client was asked.
	for asked := w.sent; strings.Contains(head, "100 Continue") && time.Since(asked) > origin.PassPatience; asked = w.sent {
		w = g.dial(t)
		w.send(fmt.Sprintf(raw, "refused"))
		head = w.head()
	}
	if !strings.Contains(head, "412 Precondition Failed") || !strings.Contains(head, "Connection: close") {
		t.Errorf("%q", head)
	}
	if rest := w.rest(); rest != "no" {
		t.Errorf("%q", rest)
	}
}

func TestAClientThatGoesAwayEndsTheRequest(t *testing.T) {
	// The client leaves before the answer, within it, or within its own body. The origin notices,
	// and sees no complete body.
	type seen struct{ err error }
	asked, ended := make(chan struct{}, 1), make(chan seen, 1)
	g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "answer") {
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
		}
		asked <- struct{}{}
		_, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			<-r.Context().Done()
			err = r.Context().Err()
		}
		ended <- seen{err}
	})
	for _, c := range []struct{ name, raw string }{
		{"silent", "GET /bucket/silent HTTP/1.1\nHost: h\n\n"},
		{"answer", "GET /bucket/answer HTTP/1.1\nHost: h\n\n"},
		{"posted", "POST /bucket/posted HTTP/1.1\nHost: h\nContent-Length: 3\n\nabc"},
		{"upload", "PUT /bucket/upload HTTP/1.1\nHost: h\nContent-Length: 9\n\nabc"},
		{"chunks", "PUT /bucket/chunks HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\n\n3\nabc\n"},
	} {
		w := g.dial(t)
		w.send(c.raw)
		<-asked
		if c.name == "answer" {
			w.head()
		}
		w.Close()
		if s := <-ended; s.err == nil {
			t.Errorf("%s: the origin was not told", c.name)
		}
		if o := <-g.done; o.err == nil || !errors.Is(o.err, ErrGone) && !strings.Contains(o.err.Error(), "IncompleteBody") {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
}

func TestWhatIsFinishedWithoutItsClient(t *testing.T) {
	// The client leaves before the answer, or within one like Amazon's to CompleteMultipartUpload:
	// its status at once, spaces, and after minutes the result. The origin finishes the request,
	// unless its answer breaks off. A request that was not begun is not begun then.
	for _, path := range []string{"silent", "spaces", "broken"} {
		asked, gone, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if path != "silent" {
				_, _ = io.WriteString(w, "  ")
				_ = http.NewResponseController(w).Flush()
			}
			close(asked)
			<-gone
			var err error
			for range 100 { // whoever does not read has its connection broken
				if _, err = w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
					break
				}
				_ = http.NewResponseController(w).Flush()
			}
			done <- err
			if path == "broken" {
				panic(http.ErrAbortHandler)
			}
		})
		ended := make(chan bool, 2)
		g.finish, g.ending = true, func(bool) { ended <- len(done) > 0 }
		w := g.dial(t)
		w.send("POST /bucket/k?uploadId=1 HTTP/1.1\nHost: h\nContent-Length: 1\n\nx")
		<-asked
		if path != "silent" {
			w.head()
		}
		w.Close()
		close(gone)
		if o := <-g.done; o.err == nil || errors.Is(o.err, ErrCut) != (path == "broken") {
			t.Errorf("%s: %+v", path, o)
		}
		if !<-ended {
			t.Errorf("%s: the end is told before it", path)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: the origin is left: %v", path, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequest("PUT", "/bucket/k", strings.NewReader("x")).WithContext(ctx)
	to := Target{Finish: true, Forward: func(context.Context, *http.Request, string, string) (*http.Response, error) {
		t.Error("it is begun for nobody")
		return nil, io.EOF
	}}
	defer func() {
		if recover() != http.ErrAbortHandler { // a recorder has no connection to cut
			t.Error("a client that has gone is answered")
		}
	}()
	_, _ = New(Options{}).Serve(httptest.NewRecorder(), r, to)
}

func TestAnAnswerThatBreaksOffIsCut(t *testing.T) {
	// The origin's answer breaks off, with a length or without, early or late. The client's answer
	// does not end as if it were complete, and its connection is not used again.
	for _, length := range []string{"", "200000"} {
		for _, sent := range []int{1, 100, 100000} {
			g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				_, _ = w.Write(bytes.Repeat([]byte("x"), sent))
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			resp, err := g.Client().Get(g.URL + "/bucket/k")
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Errorf("length %q, %d bytes: it looks whole", length, sent)
			}
			if o := <-g.done; !errors.Is(o.err, ErrCut) || o.status != 200 {
				t.Errorf("length %q, %d bytes: %+v", length, sent, o)
			}
		}
	}
}

func TestStreamsOfHTTP2AreCutToo(t *testing.T) {
	// Over HTTP/2, too, an upload arrives and its answer comes back. An answer that breaks off does
	// not look complete. The other streams of the connection go on.
	g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(text)
		if len(text) == 0 {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	second := httptest.NewUnstartedServer(g.Config.Handler)
	second.EnableHTTP2 = true
	second.StartTLS()
	defer second.Close()
	for _, body := range []string{"abc", "", "def"} {
		resp, err := second.Client().Post(second.URL+"/bucket/k", "x/y", strings.NewReader(body))
		var text []byte
		if err == nil {
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if (err == nil) != (body != "") || string(text) != body || err == nil && resp.ProtoMajor != 2 {
			t.Errorf("%q: %q %v", body, text, err)
		}
		if o := <-g.done; (o.err == nil) != (body != "") {
			t.Errorf("%q: %+v", body, o)
		}
	}
}

func TestWhatCannotWaitPanics(t *testing.T) {
	// A writer that has no deadlines is cut by net/http's own way.
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Error(p)
		}
	}()
	broken := io.NopCloser(io.MultiReader(strings.NewReader("x"), errorReader{}))
	_, _ = New(Options{}).Serve(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), Target{Forward: func(context.Context, *http.Request, string, string) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ContentLength: -1, Body: broken}, nil
	}})
	t.Error("it ended as whole")
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestAnOriginThatCannotBeAskedIsTold(t *testing.T) {
	// The error is in S3's words, with the cause only for the log; a HEAD gets the status alone.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	g := serve(t, "http://"+l.Addr().String(), Options{})
	for _, method := range []string{"GET", "HEAD", "PUT"} {
		req, err := http.NewRequest(method, g.URL+"/bucket/k", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := g.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var said struct{ Code, Message, RequestId string }
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 503 || method != "HEAD" && (xml.Unmarshal(text, &said) != nil || said.Code != "ServiceUnavailable" || said.RequestId != "our-id" || strings.Contains(said.Message, "refused")) || method == "HEAD" && len(text) != 0 {
			t.Errorf("%s: %d %s", method, resp.StatusCode, text)
		}
		var f *request.Error
		if o := <-g.done; o.status != 503 || !errors.As(o.err, &f) || !origin.Away(o.err) || !strings.Contains(o.err.Error(), "refused") {
			t.Errorf("%+v", o)
		}
	}
}

func TestSlowClientsAreCut(t *testing.T) {
	// A client that takes nothing of its answer is cut. One that sends nothing of its body, or only
	// a byte now and then, gets an error.
	const patience = 100 * time.Millisecond
	g := play(t, Options{Patience: patience}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PUT" {
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		w.Header().Set("Content-Length", "100000000")
		for range 1000 {
			if _, err := w.Write(make([]byte, 100000)); err != nil {
				return
			}
		}
	})
	taker := g.dial(t)
	taker.send("GET /bucket/k HTTP/1.1\nHost: h\n\n")
	if o := <-g.done; !errors.Is(o.err, ErrGone) {
		t.Errorf("%+v", o)
	}
	sender := g.dial(t)
	sender.send("PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 10\n\nabc")
	if head, body := sender.head(), sender.rest(); !strings.Contains(head, "400 Bad Request") || !strings.Contains(body, "RequestTimeout") {
		t.Errorf("%q %q", head, body)
	}
	if o := <-g.done; o.status != 400 {
		t.Errorf("%+v", o)
	}
	trickler := g.dial(t)
	trickler.send("PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 100000\n\n")
	tick := time.NewTicker(patience / 5)
	defer tick.Stop()
	late := time.After(100 * patience)
	for cut := false; !cut; {
		select {
		case <-tick.C:
			trickler.send("x")
		case o := <-g.done:
			if cut = true; o.status != 400 {
				t.Errorf("a byte now and then: %+v", o)
			}
		case <-late:
			t.Fatal("a byte now and then is waited for")
		}
	}
}

// single is a listener of one connection.
type single struct {
	conn  chan net.Conn
	ended chan struct{}
}

func (l single) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l single) Close() error   { close(l.ended); return nil }
func (l single) Addr() net.Addr { return &net.TCPAddr{} }

func TestWhomTheOriginKeepsWaitingIsNotCut(t *testing.T) {
	// An origin takes nothing of a body for longer than a client may send nothing, and then takes
	// all of it. The client, which always has more to send, is answered.
	synctest.Test(t, func(t *testing.T) {
		theirs, ours := net.Pipe()
		l := single{make(chan net.Conn, 1), make(chan struct{})}
		l.conn <- ours
		pass, began := New(Options{}), time.Now()
		to := Target{Bucket: "bucket", Key: "k", Forward: func(_ context.Context, r *http.Request, _, _ string) (*http.Response, error) {
			time.Sleep(3 * defaultPatience)
			n, err := io.Copy(io.Discard, r.Body)
			if n != 1_000_000 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		}}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := pass.Serve(w, r, to); err != nil {
				t.Error(err)
			}
		})}
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(l) }() // ends with Close
		waiting := &wire{Conn: theirs, in: bufio.NewReader(theirs), t: t}
		waiting.send("PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 1000000\n\n" + strings.Repeat("x", 1_000_000))
		if head := waiting.head(); !strings.Contains(head, "200 OK") || time.Since(began) != 3*defaultPatience {
			t.Errorf("after %v: %q", time.Since(began), head)
		}
		_ = theirs.Close()
		_ = server.Close()
		<-served
	})
}

func TestWhatIsLeftOfABodyIsNoRequest(t *testing.T) {
	// An origin answers without reading the body. The rest of the body is never taken for a
	// request, and a client that stalls in it does not delay the answer.
	var evil atomic.Int64
	g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "evil") {
			evil.Add(1)
		}
		w.Header().Set("Connection", "close")
		w.WriteHeader(403)
	})
	smuggled := "GET /bucket/evil HTTP/1.1\nHost: h\n\n"
	for name, raw := range map[string]string{
		"unread":            "PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 1000000\n\n" + strings.Repeat("x", 5000) + smuggled,
		"expect":            "PUT /bucket/k HTTP/1.1\nHost: h\nExpect: 100-continue\nContent-Length: 100\n\n" + smuggled,
		"both lengths":      "PUT /bucket/k HTTP/1.1\nHost: h\nConnection: close\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\n\n" + smuggled,
		"two lengths":       "PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: 5\nContent-Length: 6\n\n" + smuggled,
		"bad chunk":         "PUT /bucket/k HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\n\nzz\n" + smuggled,
		"odd coding":        "PUT /bucket/k HTTP/1.1\nHost: h\nTransfer-Encoding: xchunked\n\n" + smuggled,
		"space before":      "PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length : 5\n\n" + smuggled,
		"negative":          "PUT /bucket/k HTTP/1.1\nHost: h\nContent-Length: -1\n\n" + smuggled,
		"bare line in head": "PUT /bucket/k HTTP/1.1\nHost: h\nX: a\rGET /bucket/evil HTTP/1.1\n\n",
	} {
		w := g.dial(t)
		w.send(raw)
		if head := w.head(); !strings.Contains(head, " 40") && !strings.Contains(head, " 50") {
			t.Errorf("%s: %q", name, head)
		}
		w.rest()
		w.Close()
	}
	if n := evil.Load(); n != 0 {
		t.Errorf("%d requests were smuggled", n)
	}
}

func TestAnEarlyAnswerReachesWhoIsSending(t *testing.T) {
	// The origin refuses without reading a body that is being sent. Its answer arrives, whatever
	// the size of the rest, and the connection ends.
	g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(403)
		_, _ = io.WriteString(w, "<Error/>")
	})
	for _, length := range []string{"Content-Length: 100000", "Content-Length: 10000000", "Transfer-Encoding: chunked"} {
		w := g.dial(t)
		w.send("PUT /bucket/k HTTP/1.1\nHost: h\n" + length + "\n\n")
		if strings.HasPrefix(length, "Transfer") {
			w.send("989680\n")
		}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 1000 {
				if _, err := w.Write(make([]byte, 10000)); err != nil {
					return
				}
				if length == "Content-Length: 100000" {
					return // and stall
				}
			}
		}()
		if head, body := w.head(), w.rest(); !strings.Contains(head, "403 Forbidden") || !strings.Contains(head, "Connection: close") || !strings.HasPrefix(body, "<Error/>") && !strings.HasPrefix(body, "8\r\n<Error/>") {
			t.Errorf("%s: %q %q", length, head, body)
		}
		w.Close()
		<-sent
		if o := <-g.done; o.status != 403 {
			t.Errorf("%s: %+v", length, o)
		}
	}
}

func TestTheEndWaitsForWhatMustBeKnown(t *testing.T) {
	// Ending is called before the client can know of the answer: ahead of headers without a body,
	// or of the last byte. It is called once, even if all fails, and learns of an answer that broke
	// off.
	for _, path := range []string{"none", "length", "chunks", "broken", "cut"} {
		var calls, broken atomic.Int64
		read := make(chan struct{})
		g := play(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
			switch path {
			case "length":
				w.Header().Set("Content-Length", "3")
				_, _ = io.WriteString(w, "abc")
			case "chunks":
				for _, c := range "abc" {
					_, _ = io.WriteString(w, string(c))
					_ = http.NewResponseController(w).Flush()
				}
				<-read
			case "cut":
				w.Header().Set("Content-Length", "3")
				_, _ = io.WriteString(w, "ab")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case "broken":
				panic(http.ErrAbortHandler)
			}
		})
		g.ending = func(cut bool) {
			if calls.Add(1); cut {
				broken.Add(1)
			}
		}
		w := g.dial(t)
		w.send("POST /bucket/k HTTP/1.1\nHost: h\n\n")
		if path == "chunks" {
			w.head()
			in := httpChunks(w.in)
			if _, err := io.ReadFull(in, make([]byte, 2)); err != nil || calls.Load() != 0 {
				t.Errorf("%s: %v, %d calls", path, err, calls.Load())
			}
			close(read) // of three bytes two are there, and the last one waits
			_, _ = in.Read(make([]byte, 1))
		} else {
			w.head()
			if path == "length" {
				_, _ = io.ReadFull(w.in, make([]byte, 3))
			}
		}
		if path != "cut" && calls.Load() != 1 { // of that the client knows nothing
			t.Errorf("%s: %d calls when the client knew", path, calls.Load())
		}
		if <-g.done; calls.Load() != 1 {
			t.Errorf("%s: %d calls", path, calls.Load())
		}
		if (broken.Load() == 1) != (path == "cut") {
			t.Errorf("%s: told of %d answers that broke off", path, broken.Load())
		}
		w.Close()
	}
}

// taker is a client that looks at the origin's side while it takes its answer.
type taker struct {
	*httptest.ResponseRecorder
	takes func()
}

func (k taker) Write(p []byte) (int, error) {
	k.takes()
	return k.ResponseRecorder.Write(p)
}

// closer is a body that notes whether it was closed.
type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error {
	c.closed = true
	return nil
}

func TestTheLastPieceKeepsNoConnection(t *testing.T) {
	// While a client still takes the last of its answer, or all of a small one, its place at the
	// origin is free.
	for _, size := range []int{1, pieceBytes - 1, 3*pieceBytes + 1} {
		body := &closer{Reader: strings.NewReader(strings.Repeat("x", size))}
		w := taker{ResponseRecorder: httptest.NewRecorder()}
		w.takes = func() {
			if left := size - w.Body.Len(); body.closed != (left <= pieceBytes) {
				t.Errorf("of %d bytes, with %d to be taken: closed %v", size, left, body.closed)
			}
		}
		_, err := New(Options{}).Serve(w, httptest.NewRequest("GET", "/bucket/k", nil), Target{Forward: func(context.Context, *http.Request, string, string) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: body, ContentLength: int64(size)}, nil
		}})
		if err != nil || w.Body.Len() != size {
			t.Errorf("%d bytes of %d, %v", w.Body.Len(), size, err)
		}
	}
}
