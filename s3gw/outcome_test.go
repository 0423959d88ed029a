package s3gw

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/s3gw/request"
)

// steady is an origin that ends what it has begun, whatever becomes of who asked for it.
type steady struct {
	*stand
	asked   chan string   // a write that it has all of
	release chan struct{} // that it goes on with
	wrote   chan struct{} // and has ended
	mu      sync.Mutex    // guards the rest
	lose    bool          // it hangs up in place of an answer, before it writes
	heads   int           // for k
	others  int           // HEADs for other
}

// newSteady shows a bucket that is believed for ever, in which k has been read.
func newSteady(t *testing.T) *steady {
	t.Helper()
	s := &steady{stand: newStand(t, nil), asked: make(chan string, 10), release: make(chan struct{}, 10), wrote: make(chan struct{}, 10)}
	s.server.Bucket(t, "bucket")
	real, err := url.Parse(s.server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	on := httputil.NewSingleHostReverseProxy(real)
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		lose := s.lose
		if r.Method == http.MethodHead && r.URL.Path == "/bucket/k" {
			s.heads++
		}
		if r.Method == http.MethodHead && r.URL.Path == "/bucket/other" {
			s.others++
		}
		s.mu.Unlock()
		if r.URL.Path != "/bucket/k" || r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.RawQuery != "" && !strings.Contains(r.URL.RawQuery, "uploadId=") || strings.Contains(r.URL.RawQuery, "partNumber") {
			on.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			s.asked <- "cut"
			return
		}
		s.asked <- r.Method
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		if lose {
			s.hangsUp(w)
			w = httptest.NewRecorder()
		}
		<-s.release
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // of one that cannot end the proxy watches the connection
		defer cancel()
		on.ServeHTTP(w, r.WithContext(ctx))
		s.wrote <- struct{}{}
	}))
	direct := s.server.Endpoint
	s.server.Endpoint = at.URL
	_, err = s.add(t.Context(), shownLink{bucket: "bucket", timeout: time.Minute, freshness: namespace.Freshness{Mode: namespace.Immutable}})
	if s.server.Endpoint = direct; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.Close)
	s.put("bucket", "k", "old")
	s.put("bucket", "source", "newer")
	s.gets(200, "<Size>3</Size>", "root", "GET", "/bucket?list-type=2&prefix=k", "")
	s.gets(200, "old", "root", "GET", "/bucket/k", "")
	return s
}

// soon has uncertain writes asked for so many times, each 50 ms after the one before.
func (s *steady) soon(times int) {
	var after []time.Duration
	for i := range times {
		after = append(after, time.Duration(i+1)*50*time.Millisecond)
	}
	s.g.work.writes.Close()
	s.g.work.writes = s.tree.Writes(namespace.WritesOptions{Links: s.g.linksTo, Changed: s.g.changed, After: after})
}

func (s *steady) hangsUp(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err != nil {
		s.Error(err)
	} else {
		_ = c.Close()
	}
}

// shows reports whether the endpoint lists k with a size, and tells of it.
func (s *steady) shows(size int) bool {
	_, text := s.ask("root", "GET", "/bucket?list-type=2&prefix=k", "")
	head, _ := s.ask("root", "HEAD", "/bucket/k", "")
	return strings.Contains(text, fmt.Sprintf("<Size>%d</Size>", size)) && head.ContentLength == int64(size)
}

func (s *steady) becomes(size int, what string) {
	s.Helper()
	if !hearthtest.Eventually(s.Context(), 20*time.Second, func() bool { return s.shows(size) }) {
		s.Errorf("%s: the endpoint still shows what was there before", what)
	}
}

func TestAWriteWhoseClientGoes(t *testing.T) {
	// The origin has all of a request when its client gives up, and ends it a while later: the
	// endpoint knows, for as long as it takes. So it is for a copy, an upload, and one of parts.
	s := newSteady(t)
	_, text := s.ask("root", "POST", "/bucket/k?uploads", "")
	_, id, _ := strings.Cut(text, "<UploadId>")
	id, _, _ = strings.Cut(id, "</UploadId>")
	part, _ := s.ask("root", "PUT", "/bucket/k?partNumber=1&uploadId="+id, "of parts")
	for _, c := range []struct {
		method, target, body, header string
		size                         int
	}{
		{"PUT", "/bucket/k", "", "X-Amz-Copy-Source: bucket/source", 5},
		{"PUT", "/bucket/k", "uploaded", "", 8},
		{"DELETE", "/bucket/k", "", "", 0},
		{"POST", "/bucket/k?uploadId=" + id, "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + part.Header.Get("Etag") + "</ETag></Part></CompleteMultipartUpload>", "", 8},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { // ends with cancel
			resp, err := s.client.Do(s.request("root", c.method, c.target, c.body, c.header).WithContext(ctx))
			if err == nil {
				resp.Body.Close()
			}
			ended <- err
		}()
		if got := <-s.asked; got != c.method {
			t.Fatalf("the origin is asked for %s", got)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("the client is answered")
		}
		if hearthtest.Eventually(t.Context(), 200*time.Millisecond, func() bool { return s.g.Stats().UnderWay == 0 }) {
			t.Errorf("%s %s was given up with its client", c.method, c.target)
		}
		s.release <- struct{}{}
		if c.method != "DELETE" {
			s.becomes(c.size, c.method+" "+c.target)
		} else if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { head, _ := s.ask("root", "HEAD", "/bucket/k", ""); return head.StatusCode == 404 }) {
			t.Error("what was deleted is still told of")
		}
	}
}

func TestAnUploadWhoseClientGoes(t *testing.T) {
	// A client leaves in the midst of its body: the origin sees no whole one, nothing is written,
	// and the key is asked for all the same, at once and later.
	s := newSteady(t)
	s.soon(2)
	c, _ := s.dialog(s.raw("root", "PUT", "/bucket/k", 1000))
	if _, err := io.WriteString(c, "half"); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.heads = 0
	s.mu.Unlock()
	_ = c.Close()
	if got := <-s.asked; got != "cut" {
		t.Errorf("the origin has %s", got)
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.heads >= 3 }) {
		t.Errorf("the key is asked for %d times", s.heads)
	}
	s.becomes(3, "the upload that was cut")
}

func TestAWriteThatIsDoneAfterItsAnswerWasLost(t *testing.T) {
	// The origin's connection breaks when it has the request, and it writes a while later: the
	// client is told to try again, and the endpoint finds out by asking again.
	s := newSteady(t)
	s.lose = true
	s.soon(400) // it writes before the last turn
	answered := make(chan struct{})
	go func() { // ends with the answer
		s.gets(503, "ServiceUnavailable", "root", "PUT", "/bucket/k", "uploaded")
		close(answered)
	}()
	<-s.asked
	<-answered
	if !s.shows(3) {
		t.Error("it shows what is not there yet")
	}
	s.release <- struct{}{}
	<-s.wrote
	s.becomes(8, "the write whose answer was lost")
}

func TestTheEndWithAWriteUnderWay(t *testing.T) {
	// The endpoint ends while the origin is at work on a write whose client has gone: it is not waited
	// for beyond what requests have, and who reads the name later, when it is done, finds it.
	s := newSteady(t)
	x, err := s.endpoint(t.Context(), Setup{})
	if err != nil {
		t.Fatal(err)
	}
	here := s.url
	s.url = "http://" + x.Summary().Listen
	c, _ := s.dialog(s.raw("root", "PUT", "/bucket/k", 8) + "uploaded")
	<-s.asked
	s.url = here
	_ = c.Close()
	x.Close() // or this hangs: the write is let go below
	if n := x.Stats().UnderWay; n != 0 {
		t.Errorf("%d requests are under way", n)
	}
	s.release <- struct{}{}
	<-s.wrote // who asks before that is told what is there, and believes it
	s.becomes(8, "the next one")
}

func TestAnswersThatDoubtWhatIsBelieved(t *testing.T) {
	// An answer says that there is no such thing, or another one: what is believed of the key is
	// asked for again. An upload of parts that is not there any more may have been completed, by a
	// request whose answer was lost.
	s := newStand(t, nil, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.Method == http.MethodPost { // versitygw answers 200 where the object is there, and Amazon this
			w := httptest.NewRecorder()
			w.WriteHeader(http.StatusNotFound)
			return w.Result(), nil
		}
		return forward()
	})
	s.put("bucket", "k404", "old")
	s.put("bucket", "k412", "old")
	s.gets(200, "k412", "root", "GET", "/bucket?list-type=2", "")
	for status, c := range map[int]struct{ method, query, body, header string }{
		404: {"POST", "?uploadId=gone", "<CompleteMultipartUpload/>", ""},
		412: {"PUT", "", "again", "If-None-Match: *"},
	} {
		key := fmt.Sprintf("k%d", status)
		s.put("bucket", key, "newer")
		s.gets(200, "<Size>3</Size>", "root", "GET", "/bucket?list-type=2&prefix="+key, "")
		s.gets(status, "", "root", c.method, "/bucket/"+key+c.query, c.body, c.header)
		s.gets(200, "<Size>5</Size>", "root", "GET", "/bucket?list-type=2&prefix="+key, "")
	}
}

func TestWhatAnAnswerSaysOfAWrite(t *testing.T) {
	// An answer, its loss or its end in the midst says what became of a write: a proxy that gave up, and what
	// broke off, say nothing; an origin that has another object than the client expects has doubts about ours.
	xml := http.Header{"Content-Type": {"application/xml"}}
	for i, c := range []struct {
		answer *http.Response
		err    error
		broken bool
		one    namespace.Outcome // of a key
		listed namespace.Outcome // of those in a body
	}{
		{nil, nil, false, namespace.Undone, namespace.Undone},
		{nil, errLost, false, namespace.Unknown, namespace.Unknown},
		{&http.Response{StatusCode: 200}, nil, false, namespace.Done, namespace.Done},
		{&http.Response{StatusCode: 200}, nil, true, namespace.Unknown, namespace.Unknown},
		{&http.Response{StatusCode: 403}, nil, false, namespace.Undone, namespace.Undone},
		{&http.Response{StatusCode: 404}, nil, false, namespace.Done, namespace.Undone},
		{&http.Response{StatusCode: 412}, nil, false, namespace.Done, namespace.Undone},
		{&http.Response{StatusCode: 501}, nil, false, namespace.Done, namespace.Done},
		{&http.Response{StatusCode: 503, Header: xml}, nil, false, namespace.Done, namespace.Done},
		{&http.Response{StatusCode: 503}, nil, false, namespace.Unknown, namespace.Unknown},
		{&http.Response{StatusCode: 504}, nil, false, namespace.Unknown, namespace.Unknown},
	} {
		for touches, want := range map[request.Touch]namespace.Outcome{request.TheKey: c.one, request.Listed: c.listed} {
			x := &exchange{asks: &request.Request{Touches: touches}}
			if got := x.outcome(c.answer, c.err, c.broken); got != want {
				t.Errorf("%d, touches %d: %d, want %d", i, touches, got, want)
			}
		}
	}
}

func TestMoreUncertainWritesThanAreRemembered(t *testing.T) {
	// More keys are uncertain than are asked for one by one: the names that were listed are listed again.
	s := newSteady(t)
	s.soon(400)
	elsewhere := namespace.Write{Bucket: "elsewhere"}
	for i := range 10_000 {
		elsewhere.Keys = append(elsewhere.Keys, fmt.Sprint(i))
	}
	s.g.work.writes.Ended(elsewhere, namespace.Unknown)
	s.put("bucket", "k", "newest")
	s.g.work.writes.Ended(namespace.Write{Bucket: "bucket", Keys: []string{"other"}}, namespace.Unknown)
	s.mu.Lock()
	others := s.others
	s.mu.Unlock()
	s.becomes(6, "what is uncertain beyond that")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.others != others {
		t.Error("it has found room")
	}
}
