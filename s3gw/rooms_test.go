package s3gw

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestRequestsAboveTheBound(t *testing.T) {
	// The origin keeps all waiting that may be on their way to it: others that need it are told to
	// slow down, and what is cached is answered; with the places of those taken, so are its readers.
	s := newStand(t, func(o *Options) { o.MostRequests = 8 }, shownLink{bucket: "bucket"})
	s.put("bucket", "k", "of k")
	s.gets(200, "of k", "root", "GET", "/bucket/k", "")
	hold, freed := make(chan struct{}), make(chan error, 2)
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		<-hold
		return forward()
	})
	for range 2 {
		go func() {
			resp, err := s.client.Do(s.request("root", "PUT", "/bucket/w", "x"))
			if err == nil {
				resp.Body.Close()
			}
			freed <- err
		}()
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return s.g.rooms.bounds().Ways == 2 }) {
		t.Fatalf("%+v", s.g.rooms.bounds())
	}
	for _, path := range []string{"/bucket/other", "/bucket/k?versionId=null"} {
		resp, text := s.ask("root", "GET", path, "")
		if resp.StatusCode != 503 || !strings.Contains(text, "<Code>SlowDown<") || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("GET %s: %d %v %s", path, resp.StatusCode, resp.Header, text)
		}
	}
	s.gets(200, "of k", "root", "GET", "/bucket/k", "")
	if err := s.g.rooms.reads.Take(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	s.gets(503, "SlowDown", "root", "GET", "/bucket/k", "")
	s.gets(403, "AccessDenied", "", "GET", "/bucket/k", "") // who may not is told so
	s.g.rooms.reads.Give(6)
	close(hold)
	for range 2 {
		if err := <-freed; err != nil {
			t.Error(err)
		}
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return s.g.Stats().UnderWay == 0 }) {
		t.Error("requests are under way")
	}
	if got, want := s.g.rooms.bounds(), (Bounds{MostReads: 6, MostWays: 2}); got != want || s.g.Stats().Faults["SlowDown"] != 3 {
		t.Errorf("%+v, %v", got, s.g.Stats().Faults)
	}
}

func TestReadersThatTakeNothing(t *testing.T) {
	// Readers ask for what passes to the bucket, by one key, and take nothing of it: as many as they
	// are, all writes are answered.
	s := newStand(t, func(o *Options) { o.MostRequests = 800 }, shownLink{bucket: "bucket"})
	s.put("bucket", "large", strings.Repeat("l", 32<<20))
	s.put("bucket", "small", "of small")
	const crowd = 300 // more than the 70 that the origin lets pass, and the 200 places for what passes
	for range crowd {
		s.dialog(strings.Replace(s.raw("reader", "GET", "/bucket/large?partNumber=1", 0), "Content-Length: 0\r\n", "", 1))
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return s.g.rooms.bounds().Ways >= 100 }) {
		t.Fatalf("%+v, %d under way", s.g.rooms.bounds(), s.g.Stats().UnderWay)
	}
	s.gets(200, "", "root", "PUT", "/bucket/new", "x")
	s.gets(200, "", "root", "POST", "/bucket/parts?uploads=", "")
	s.gets(204, "", "root", "DELETE", "/bucket/new", "")
}

func TestOneReaderThatTakesNothing(t *testing.T) {
	// One key's readers take nothing of what passes to the bucket: another's reads that pass go on.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "large", strings.Repeat("l", 32<<20))
	s.put("bucket", "small", "of small")
	const crowd = 40 // more than all that may read at once
	for range crowd {
		s.dialog(strings.Replace(s.raw("reader", "GET", "/bucket/large?partNumber=1", 0), "Content-Length: 0\r\n", "", 1))
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return s.g.rooms.bounds().Ways == crowd }) {
		t.Fatalf("%+v", s.g.rooms.bounds())
	}
	s.gets(206, "of small", "root", "GET", "/bucket/small?partNumber=1", "")
	s.gets(404, "NoSuchKey", "root", "GET", "/bucket/none", "")
	s.gets(200, "", "root", "GET", "/bucket?uploads=", "")
	s.gets(200, "", "root", "PUT", "/bucket/new", "x")
}

func TestBodiesAboveTheBound(t *testing.T) {
	// There is memory for so many bodies at once; one more is told to slow down, and what they held
	// comes back.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.g.rooms.bodies = newPlaces(100, 10, time.Millisecond)
	if err := s.g.rooms.bodies.Take(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	document := "<Delete><Object><Key>k</Key></Object></Delete>"
	s.gets(200, "<Deleted>", "root", "POST", "/bucket?delete=", document)
	document = "<Delete><Object><Key>k</Key></Object> </Delete>" + strings.Repeat(" ", 10)
	s.gets(503, "SlowDown", "root", "POST", "/bucket?delete=", document)
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return s.g.rooms.bodies.Taken() == 50 }) {
		t.Errorf("%d bytes are held", s.g.rooms.bodies.Taken())
	}
}

func TestABodyThatTrickles(t *testing.T) {
	// A client that sends a byte now and then is waited for as long as for one that sends nothing.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.g.patience = 300 * time.Millisecond
	c, in := s.dialog(s.raw("root", "POST", "/bucket?delete=", 1000))
	var sent atomic.Int64
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := c.Write([]byte(" ")); err != nil {
					return
				}
				sent.Add(1)
			case <-stop:
				return
			}
		}
	}()
	resp, err := http.ReadResponse(in, nil)
	close(stop)
	<-ended
	if err != nil || resp.StatusCode != 400 || sent.Load() > 900 {
		t.Errorf("after %d bytes: %v, %v", sent.Load(), resp, err)
	}
}

func TestRefusalsThatAreTold(t *testing.T) {
	// Whoever keeps the endpoint hears who was refused, what and why: once for many of the same, and
	// no secret and no signature.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	for range 3 {
		s.gets(403, "InvalidAccessKeyId", "stranger", "GET", "/bucket/k", "")
	}
	s.gets(403, "AccessDenied", "reader", "PUT", "/bucket/k", "x")
	s.gets(403, "AccessDenied", "", "GET", "/bucket/k", "")
	wrong := s.request("reader", "GET", "/bucket/k", "")
	wrong.URL.Path = "/bucket/another"
	resp, err := s.client.Do(wrong)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.gets(403, "InvalidAccessKeyId", "rootsecret", "GET", "/bucket/k", "")
	s.gets(404, "NoSuchKey", "root", "GET", "/bucket/k", "")
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return s.g.Stats().UnderWay == 0 }) {
		t.Fatal("requests are under way")
	}
	s.mu.Lock()
	told := strings.Join(s.told, "\n")
	n := len(s.told)
	s.mu.Unlock()
	for _, want := range []string{"key stranger", "code AccessDenied", "key reader", "operation PutObject", "code SignatureDoesNotMatch", "object another", "from 127.0.0.1", "(a secret in an access key's place)", "others_since_last 2"} {
		if !strings.Contains(told, want) {
			t.Errorf("no %q in %s", want, told)
		}
	}
	if _, signature, _ := strings.Cut(wrong.Header.Get("Authorization"), "Signature="); n != 5 || strings.Contains(told, "secret ") && !strings.Contains(told, "a secret in") || strings.Contains(told, signature) || strings.Contains(told, "rootsecret") {
		t.Errorf("%d lines: %s", n, told)
	}
	want := map[string]int64{"InvalidAccessKeyId": 4, "AccessDenied": 2, "SignatureDoesNotMatch": 1}
	if got := s.g.Stats().Faults; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
}

func TestAFloodOfRefusals(t *testing.T) {
	// A thousand senders are told of in some lines a minute; the next minute's first says how many
	// there were.
	now := time.Unix(1, 0)
	a := audit{now: func() time.Time { return now }}
	lines := 0
	for i := range 1000 {
		if _, ok := a.take(refusal{host: fmt.Sprint(i)}); ok {
			lines++
		}
	}
	if lines != mostAudited {
		t.Errorf("%d lines", lines)
	}
	now = now.Add(auditEach)
	if also, ok := a.take(refusal{host: "0"}); !ok || also != 1000-mostAudited {
		t.Errorf("a minute later: %v, %d others", ok, also)
	}
}

func TestTargetsWithoutSignatures(t *testing.T) {
	// A log does not give away a URL that others could use; nothing else is taken out of it.
	for from, want := range map[string]string{
		"/b/k?X-Amz-Signature=abc&x=1":     "/b/k?X-Amz-Signature=hidden&x=1",
		"/b/k?x=1&X%2dAmz-Signature=abc":   "/b/k?x=1&X-Amz-Signature=hidden",
		"/b/k?Signature=abc&Expires=1":     "/b/k?Signature=hidden&Expires=1",
		"/b/k?x-id=GetObject&a=%zz":        "/b/k?x-id=GetObject&a=%zz",
		"https://h/?X-Amz-Security-Token=": "https://h/?X-Amz-Security-Token=hidden",
		"/b/Signature=abc":                 "/b/Signature=abc",
	} {
		if got := unsigned(from); got != want {
			t.Errorf("%s: %s", from, got)
		}
	}
}

func TestConnectionsWithinTheLimitOnFiles(t *testing.T) {
	// What is asked for is given, but for what a quarter of the limit on open files forbids: that is
	// said where somebody asked for more.
	if n, err := connections(5); n != 5 || err != nil {
		t.Errorf("5: %d, %v", n, err)
	}
	if n, err := connections(0); n < 1 || n > DefaultConnections || err != nil {
		t.Errorf("the default: %d, %v", n, err)
	}
	if n, err := connections(1 << 40); n < 1 || n > 1<<30 || err == nil || !strings.Contains(err.Error(), "LimitNOFILE") {
		t.Errorf("more than any limit: %d, %v", n, err)
	}
}
