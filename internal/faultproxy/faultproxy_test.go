package faultproxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const size = 300_000

// between starts a server of fixed answers, a proxy in front, and a client.
func between(t *testing.T) (*faultproxy.Proxy, *http.Client) {
	body := make([]byte, size)
	hearthtest.Fill(body, "k", 0, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == "PUT":
			n, _ := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprint(w, n)
		case r.URL.Query().Has("chunked"):
			for part := range bytes.Lines([]byte("one\ntwo\nthree\n")) {
				_, _ = w.Write(part)
				w.(http.Flusher).Flush()
			}
		default:
			w.Header().Set("ETag", `"abc"`)
			http.ServeContent(w, r, "k", time.Unix(0, 0), bytes.NewReader(body))
		}
	}))
	p, err := faultproxy.Start(faultproxy.Options{Target: server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	t.Cleanup(func() { client.CloseIdleConnections(); p.Close(); server.Close() })
	return p, client
}

func TestGetsAreCountedByAddress(t *testing.T) {
	// Two clients ask from addresses of their own, one of them twice. Each has its own GETs and
	// their bytes. HEAD and LIST do not count.
	p, _ := between(t)
	for from, n := range map[string]int64{"127.0.0.2": 1, "127.0.0.3": 2, "127.0.0.4": 0} {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
		for range n {
			if _, data, err := get(t, client, p.URL()+"/b/k"); err != nil || len(data) != size {
				t.Errorf("%d bytes, %v", len(data), err)
			}
		}
		if _, _, err := get(t, client, p.URL()+"/b?list-type=2"); err != nil {
			t.Error(err)
		}
		client.CloseIdleConnections()
	}
	for p.Stats().InFlight > 0 {
		runtime.Gosched()
	}
	for from, n := range map[string]int64{"127.0.0.1": 0, "127.0.0.2": 1, "127.0.0.3": 2, "127.0.0.4": 0} {
		if got, want := p.Gets(netip.MustParseAddr(from)), (faultproxy.Counts{Requests: n, Bytes: n * size}); got != want {
			t.Errorf("%s: %+v, want %+v", from, got, want)
		}
	}
}

func get(t *testing.T, c *http.Client, url string) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=0-")
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, more))
	return resp, data, err
}

// more than the server has, of a body that does not end.
const more = 3 * size

func TestWhatNoRuleMeetsPassesUnchanged(t *testing.T) {
	// Bodies with a length, chunked ones, HEAD and uploads of both kinds and
	// with Expect pass, on one connection, and are counted by verb.
	p, c := between(t)
	for range 2 {
		_, data, err := get(t, c, p.URL()+"/b/k")
		if err != nil || hearthtest.Check(data, "k", 0, 1) != nil || len(data) != size {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		if _, data, err = get(t, c, p.URL()+"/b?chunked&list-type=2"); err != nil || string(data) != "one\ntwo\nthree\n" {
			t.Fatalf("%q, %v", data, err)
		}
		resp, err := c.Head(p.URL() + "/b/k")
		if err != nil || resp.ContentLength != size {
			t.Fatalf("HEAD: %v %v", resp, err)
		}
		resp.Body.Close()
	}
	for _, expect := range []string{"", "100-continue"} {
		for _, length := range []int64{size, -1} {
			req, _ := http.NewRequestWithContext(t.Context(), "PUT", p.URL()+"/b/k", io.LimitReader(endless{}, size))
			req.ContentLength = length
			req.Header.Set("Expect", expect)
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			data, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(data) != fmt.Sprint(size) {
				t.Errorf("upload with Expect %q and length %d: %q arrived", expect, length, data)
			}
		}
	}
	s := p.Stats()
	if s.Get.Requests != 2 || s.Head.Requests != 2 || s.List.Requests != 2 || s.Other.Requests != 4 || len(s.FirstByte) == 0 {
		t.Errorf("counts: %+v", s)
	}
	if !hearthtest.Eventually(t.Context(), 5*time.Second, func() bool { return p.Stats().Get.Bytes == 2*size }) {
		t.Errorf("bytes: %+v", p.Stats().Get)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestEachRuleFailsInItsWay(t *testing.T) {
	// One rule at a time, used once; the request after it is served.
	p, c := between(t)
	url := p.URL() + "/b/k"
	for name, test := range map[string]struct {
		rule faultproxy.Rule
		want func(resp *http.Response, data []byte, err error) bool
	}{
		"busy": {faultproxy.Rule{Status: 503, Code: "SlowDown", Header: map[string]string{"Retry-After": "3"}},
			func(r *http.Response, data []byte, err error) bool {
				return r.StatusCode == 503 && r.Header.Get("Retry-After") == "3" && strings.Contains(string(data), "<Code>SlowDown<")
			}},
		"skewed": {faultproxy.Skewed(), func(r *http.Response, data []byte, err error) bool {
			return r.StatusCode == 403 && strings.Contains(string(data), "RequestTimeTooSkewed")
		}},
		"refuse": {faultproxy.Rule{Refuse: true}, func(_ *http.Response, _ []byte, err error) bool {
			return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
		}},
		"reset": {faultproxy.Rule{Body: faultproxy.Reset, At: 1000}, func(_ *http.Response, data []byte, err error) bool {
			return err != nil && len(data) <= 1000
		}},
		"truncate": {faultproxy.Rule{Body: faultproxy.Truncate, At: 70_000}, func(_ *http.Response, data []byte, err error) bool {
			return errors.Is(err, io.ErrUnexpectedEOF) && len(data) == 70_000 && hearthtest.Check(data, "k", 0, 1) == nil
		}},
		"flip": {faultproxy.Rule{Body: faultproxy.Flip, At: 200_001}, func(_ *http.Response, data []byte, err error) bool {
			data[200_001] ^= 1
			return err == nil && len(data) == size && hearthtest.Check(data, "k", 0, 1) == nil
		}},
		"flip the last": {faultproxy.Rule{Body: faultproxy.Flip, At: 1 << 40}, func(_ *http.Response, data []byte, err error) bool {
			data[size-1] ^= 1
			return err == nil && hearthtest.Check(data, "k", 0, 1) == nil
		}},
		"whole": {faultproxy.Rule{Whole: true}, func(r *http.Response, data []byte, err error) bool {
			return r.StatusCode == 200 && r.Header.Get("Content-Range") == "" && len(data) == size
		}},
		"endless": {faultproxy.Rule{Body: faultproxy.Endless}, func(r *http.Response, data []byte, err error) bool {
			return r.StatusCode == 206 && r.ContentLength == -1 && len(data) == more && hearthtest.Check(data[:size], "k", 0, 1) == nil && data[more-1] == '\n'
		}},
		"shift": {faultproxy.Rule{Shift: 7}, func(r *http.Response, data []byte, err error) bool {
			return r.StatusCode == 206 && len(data) == size && r.Header.Get("Content-Range") == fmt.Sprintf("bytes 7-%d/%d", size+6, size)
		}},
		"strip": {faultproxy.Rule{Strip: "range"}, func(r *http.Response, data []byte, err error) bool {
			return r.StatusCode == 200 && len(data) == size // get asks for a range
		}},
		"etag": {faultproxy.Rule{Header: map[string]string{"ETag": `"other"`}}, func(r *http.Response, data []byte, err error) bool {
			return r.StatusCode == 206 && len(r.Header["Etag"]) == 1 && r.Header.Get("ETag") == `"other"`
		}},
	} {
		test.rule.Times, test.rule.Verb, test.rule.Match = 1, faultproxy.Get, "/k"
		p.AddRule(test.rule)
		c.CloseIdleConnections() // a kept one that ends unanswered is replaced unseen
		if resp, data, err := get(t, c, url); !test.want(resp, data, err) {
			t.Errorf("%s: %v %d bytes %v", name, resp, len(data), err)
		}
		if _, data, err := get(t, c, url); err != nil || len(data) != size {
			t.Errorf("after %s: %d bytes %v", name, len(data), err)
		}
		p.ClearRules()
	}
}

func TestDownIsRefusedAndUpIsBack(t *testing.T) {
	// Down closes the port, so that connecting is refused; Up opens the same one.
	p, c := between(t)
	p.Down()
	if _, _, err := get(t, c, p.URL()+"/b/k"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("down: %v", err)
	}
	if err := p.Up(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := get(t, c, p.URL()+"/b/k"); err != nil {
		t.Errorf("up: %v", err)
	}
}

func TestABlackHoleSwallowsAndGivesBack(t *testing.T) {
	// Packets are dropped: a kept connection and a new one are neither answered nor refused.
	// Afterwards both are answered.
	p, c := between(t)
	url := p.URL() + "/b/k"
	if _, _, err := get(t, c, url); err != nil { // leaves a connection behind
		t.Fatal(err)
	}
	if err := p.BlackHole(true); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"a kept connection", "a new one"} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := c.Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, %v", what, resp, err)
		}
		cancel()
	}
	if n := p.Stats().Requests(); n != 1 {
		t.Errorf("%d requests came through", n)
	}
	if err := p.BlackHole(false); err != nil {
		t.Fatal(err)
	}
	if _, data, err := get(t, c, url); err != nil || len(data) != size {
		t.Errorf("afterwards: %d bytes, %v", len(data), err)
	}
}

func TestControlDoesAllOverHTTP(t *testing.T) {
	// A delay and a rule set over the control endpoint act, and the figures say so.
	p, c := between(t)
	control := httptest.NewServer(p.Control())
	t.Cleanup(control.Close)
	post := func(path, body string) int {
		resp, err := c.Post(control.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if post("/first-byte", `{"delay":"30ms"}`) != 200 || post("/rules", `{"status":500,"times":1,"skip":1}`) != 200 || post("/rules", `{"stauts":500}`) != 400 {
		t.Fatal("control refused what is right, or took what is wrong")
	}
	start := time.Now()
	if resp, _, err := get(t, c, p.URL()+"/b/k"); err != nil || resp.StatusCode != 206 || time.Since(start) < 30*time.Millisecond {
		t.Errorf("skipped by the rule: %v %v after %v", resp, err, time.Since(start))
	}
	if resp, _, err := get(t, c, p.URL()+"/b/k"); err != nil || resp.StatusCode != 500 {
		t.Errorf("met by the rule: %v %v", resp, err)
	}
	if post("/black-hole", `{"on":true}`) != 200 || post("/black-hole", `{"on":false}`) != 200 {
		t.Error("no black hole by the control endpoint")
	}
	resp, err := c.Get(control.URL + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s faultproxy.Stats
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || s.Get.Requests != 2 || s.FirstByte[0].Below < faultproxy.Duration(30*time.Millisecond) {
		t.Errorf("stats: %+v %v", s, err)
	}
}

func TestAServerThatEndsIdleConnectionsIsAskedAgain(t *testing.T) {
	// The server closes its connections between two requests of one client.
	closing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "ok") }))
	defer closing.Close()
	p, err := faultproxy.Start(faultproxy.Options{Target: closing.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for range 3 {
		if _, data, err := get(t, c, p.URL()+"/b/k"); err != nil || string(data) != "ok" {
			t.Fatalf("%q %v", data, err)
		}
		closing.CloseClientConnections()
	}
}

func TestARealServerBehindTheProxyTakesSignedRequests(t *testing.T) {
	// Signatures of odd keys stay valid, since nothing is rewritten, the Host header included.
	s := hearthtest.StartS3(t)
	p, err := faultproxy.Start(faultproxy.Options{Target: strings.TrimPrefix(s.Endpoint, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	via := s.S3
	via.Endpoint = p.URL()
	if err := via.CreateBucket(t.Context(), "b1b"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a b", "a+b", "ü/☃", "%41"} {
		if _, err := via.PutBytes(t.Context(), "b1b", key, []byte(key)); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	via.Client.CloseIdleConnections()
}
