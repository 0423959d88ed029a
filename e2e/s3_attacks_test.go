package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

const (
	// rawWithin is the watchdog of what is sent by hand: many times the 15 s that the endpoint gives
	// a request's headers, which are tested in virtual time.
	rawWithin = 2 * time.Minute
	// idleClients is how many connections ask for nothing: four times mostClients, the endpoint's
	// bound.
	idleClients, mostClients = 2000, 500
	// mostRequests are at work at once, mostReads of them answered from the cache.
	mostRequests, mostReads = 40, 30
	// settled is how long requests may be under way behind their clients, who are gone: the
	// endpoint's patience, and what a busy machine adds.
	settled = 45 * time.Second
)

// raw sends text over a connection of its own and returns what comes back until it ends, or the
// first answer where more may come.
func (p *endpoint) raw(text string) (status int, answer string) {
	p.Helper()
	c := p.dial()
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, text)               // who is answered before its end may be cut off
	b, _ := io.ReadAll(io.LimitReader(c, 1<<20)) // a deadline ends one that is kept open
	_, _ = fmt.Sscanf(string(b), "HTTP/1.1 %d", &status)
	return status, string(b)
}

func (p *endpoint) dial() net.Conn {
	p.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	p.must(err, "dial the endpoint")
	p.must(c.SetDeadline(time.Now().Add(rawWithin)), "set a deadline")
	return c
}

// wire is a signed request as text, its headers changed and its body behind it. The connection
// is to end with it.
func (p *endpoint) wire(c *s3Client, a s3Ask, body string, change ...string) string {
	p.Helper()
	r, err := c.request(p.ctx, a)
	p.must(err, "sign")
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.URL.RequestURI(), r.URL.Host)
	for name, values := range r.Header {
		text += name + ": " + values[0] + "\r\n"
	}
	for _, line := range change {
		text += line + "\r\n"
	}
	return text + "Connection: close\r\n\r\n" + body
}

// s3Attacks sends what no honest client sends. Afterwards all is as it was.
func s3Attacks(e *env, o *server) {
	e.must(o.CreateBucket(e.ctx, "other"), "make another bucket")
	h, s3 := e.serveS3(o, fmt.Sprintf("max_connections: %d, max_requests: %d", mostClients, mostRequests))
	good := newS3Client(e, s3.url, s3.access, s3.secret)
	there := newS3Client(e, o.Endpoint, o.access, o.secret)
	put := s3Ask{method: "PUT", bucket: "data", path: "/kept", body: strings.Repeat("kept ", 100)}
	get := s3Ask{method: "GET", bucket: "data", path: "/kept"}
	e.wants(good, 200, put)
	e.wants(good, 200, s3Ask{method: "PUT", bucket: "data", path: "/secret", body: "secret"})
	slow := s3.slowly(good, get)
	s3.strangers(good, get)
	s3.tampered(good)
	s3.smuggled(good)
	s3.presigned()
	s3.truncated(good)
	s3.malformed(good)
	s3.documents(good)
	s3.unread(good)
	slow() // all the above was answered beside it; before the crowd, that would have it closed earlier
	s3.crowd()
	s3.cut(good, there)
	for _, key := range append(neverKept(), "/tampered", "/short", "/chunk", "/expect", "/smuggled") {
		e.wants(there, 404, s3Ask{method: "GET", bucket: "data", path: key})
		e.wants(good, 404, s3Ask{method: "GET", bucket: "data", path: key})
	}
	for range 2 {
		if got := e.wants(good, 200, get); string(got.body) != put.body {
			e.Errorf("afterwards the endpoint has %.60q", got.body)
		}
	}
	if !hearthtest.Eventually(e.ctx, settled, func() bool { s := h.status().S3; return s != nil && s.UnderWay == 0 }) {
		e.Errorf("afterwards requests are under way: %+v", h.status().S3)
	}
	s := h.status().S3
	if b := s.Bounds; b.Reads+b.Ways+b.Waiting > 0 || b.MostConnections != mostClients || b.Closed < idleClients-mostClients {
		e.Errorf("afterwards clients take %+v", b)
	}
	for _, code := range []string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "RequestTimeTooSkewed", "SlowDown"} {
		if s.Faults[code] == 0 {
			e.Errorf("afterwards no %s is counted: %v", code, s.Faults)
		}
	}
	h.quit()
}

// strangers have no key, a wrong one, or the signature of another request.
func (p *endpoint) strangers(good *s3Client, get s3Ask) {
	p.Helper()
	for what, c := range map[string]struct {
		access, secret, code string
	}{"a key that nobody has": {"nobody", "x", "InvalidAccessKeyId"}, "a wrong secret": {p.access, "wrong", "SignatureDoesNotMatch"}, "no secret": {p.access, "", "SignatureDoesNotMatch"}} {
		if got := p.wants(newS3Client(p.env, p.url, c.access, c.secret), 403, get); got.code() != c.code {
			p.Errorf("%s: %s", what, got.code())
		}
	}
	signed := p.wire(good, get, "")
	for range 2 { // as at S3, the same request may come again
		if status, answer := p.raw(signed); status != 200 || !strings.HasSuffix(answer, "kept ") {
			p.Errorf("a request that is sent again: %d %.300s", status, answer)
		}
	}
	again := p.wire(good, s3Ask{method: "PUT", bucket: "data", path: "/again"}, "", "Content-Length: 3")
	for _, body := range []string{"one", "two"} { // of which the payload is not signed
		if status, answer := p.raw(again + body); status != 200 {
			p.Errorf("an upload that is sent again: %d %.300s", status, answer)
		}
		if got := p.wants(good, 200, s3Ask{method: "GET", bucket: "data", path: "/again"}); string(got.body) != body {
			p.Errorf("an upload that is sent again: the object is %.300q, and not %q", got.body, body)
		}
	}
	for what, x := range map[string]struct{ text, code string }{
		"replayed to another key": {strings.Replace(signed, "/data/kept", "/data/secret", 1), "SignatureDoesNotMatch"},
		"by another verb":         {strings.Replace(signed, "GET /", "DELETE /", 1), "SignatureDoesNotMatch"},
		"with a parameter":        {strings.Replace(signed, "/kept ", "/kept?versionId=null ", 1), "SignatureDoesNotMatch"},
		"to another host":         {strings.Replace(signed, "Host: ", "Host: not.", 1), "SignatureDoesNotMatch"},
		"not signed":              {"GET /data/kept HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "AccessDenied"},
		"a clock that is off":     {stamped(signed, time.Now().Add(-20*time.Minute)), "RequestTimeTooSkewed"},
		"a clock ahead":           {stamped(signed, time.Now().Add(20*time.Minute)), "RequestTimeTooSkewed"},
	} {
		if status, answer := p.raw(x.text); status != 403 || !strings.Contains(answer, "<Code>"+x.code+"<") || strings.Contains(answer, "secret\n") {
			p.Errorf("%s: %d %.400s", what, status, answer)
		}
	}
	if status, answer := p.raw("GET /data/kept HTTP/1.1\r\nHost: x\r\nX-Large: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"); status != 431 {
		p.Errorf("huge headers: %d %.200s", status, answer)
	}
}

// stamped has a signed request tell another time.
func stamped(text string, at time.Time) string {
	before, rest, _ := strings.Cut(text, "X-Amz-Date: ")
	_, after, _ := strings.Cut(rest, "\r\n")
	return before + "X-Amz-Date: " + at.UTC().Format("20060102T150405Z") + "\r\n" + after
}

// tampered sends bodies that are not those that were signed, or not all of them.
func (p *endpoint) tampered(good *s3Client) {
	p.Helper()
	sum := sha256.Sum256([]byte("what was signed"))
	ask := func(key, hash string) s3Ask {
		return s3Ask{method: "PUT", bucket: "data", path: key, header: http.Header{"X-Amz-Content-Sha256": {hash}}}
	}
	if status, answer := p.raw(p.wire(good, ask("/tampered", hex.EncodeToString(sum[:])), "what was changed", "Content-Length: 16")); status != 400 || !strings.Contains(answer, "XAmzContentSHA256Mismatch") {
		p.Errorf("a tampered body: %d %.300s", status, answer)
	}
	chunked := ask("/chunk", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
	chunked.header.Set("X-Amz-Decoded-Content-Length", "5")
	chunk := "5;chunk-signature=" + strings.Repeat("0", 64) + "\r\nhello\r\n"
	if status, answer := p.raw(p.wire(good, chunked, chunk, fmt.Sprintf("Content-Length: %d", len(chunk)))); status < 400 || status > 403 {
		p.Errorf("a chunk that nobody signed: %d %.300s", status, answer)
	}
	p.part(good, "/short", "")
	c := p.dial()
	defer func() { _ = c.Close() }()
	stranger := newS3Client(p.env, p.url, p.access, "wrong")
	_, err := io.WriteString(c, p.wire(stranger, ask("/expect", "UNSIGNED-PAYLOAD"), "", "Content-Length: 100000", "Expect: 100-continue"))
	p.must(err, "ask whether to go on")
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 403") {
		p.Errorf("who may not write is told %q, %v", line, err)
	}
}

// part sends a part of a body and goes away.
func (p *endpoint) part(c *s3Client, key, body string) {
	p.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	p.must(err, "dial")
	_, err = io.WriteString(conn, p.wire(c, s3Ask{method: "PUT", bucket: "data", path: key}, body, "Content-Length: 200000"))
	p.must(err, "send a part of a body")
	p.must(conn.Close(), "go away")
}

// cut ends an upload in its midst. versitygw, whose server is fasthttp, takes what it has got for
// all of it, whoever sends it: then this shows nothing but that the endpoint has what the origin has.
func (p *endpoint) cut(good, there *s3Client) {
	p.Helper()
	body := strings.Repeat("x", 100_000)
	p.part(there, "/cut-there", body)
	p.part(good, "/cut", body)
	look := s3Ask{method: "GET", bucket: "data", path: "/cut-there"}
	takes := hearthtest.Eventually(p.ctx, 10*time.Second, func() bool { // a busy one takes its time
		got, err := there.do(p.ctx, look)
		return err == nil && got.status == http.StatusOK
	})
	p.Logf("an origin that is sent a part of an upload keeps it: %v", takes)
	look.path = "/cut"
	for _, c := range []*s3Client{there, good} {
		got, err := c.do(p.ctx, look)
		p.must(err, "ask for what was cut")
		if got.status == http.StatusOK && !takes {
			p.Errorf("%s has %d bytes of an upload that was cut off", c.base, len(got.body))
		}
	}
}

// smuggled sends what two servers could take for two things. A second request in it must not be
// answered, nor get to the origin.
func (p *endpoint) smuggled(good *s3Client) {
	p.Helper()
	a := s3Ask{method: "PUT", bucket: "data", path: "/smuggled"}
	inner := "0\r\n\r\nGET /data/secret HTTP/1.1\r\nHost: x\r\n\r\n"
	length := fmt.Sprintf("Content-Length: %d", len(inner))
	for what, text := range map[string]string{
		"two lengths":            p.wire(good, a, inner, length, "Content-Length: 3"),
		"an odd coding":          p.wire(good, a, inner, "Transfer-Encoding: xchunked"),
		"two codings":            p.wire(good, a, inner, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
		"a space before a colon": p.wire(good, a, inner, "Content-Length : 3"),
		"a negative length":      p.wire(good, a, inner, "Content-Length: -1"),
		"a signed length":        p.wire(good, a, inner, "Content-Length: +3"),
		"a bare CR":              p.wire(good, a, inner, length, "X-Bare: a\rTransfer-Encoding: chunked"),
		"another method's name":  p.wire(good, a, inner, length, "X-Http-Method-Override: DELETE"),
		"a hidden header":        p.wire(good, a, inner, length, "Connection: X-Amz-Date"),
	} {
		status, answer := p.raw(text)
		if status != 400 && status != 501 || strings.Count(answer, "HTTP/1.1 ") > 1 {
			p.Errorf("%s: %d %.500s", what, status, answer)
		}
	}
	// These are to be understood in one way: the length is void (RFC 9112, 6.3), and the target's
	// host counts (3.2.2). What follows is no request.
	both := strings.Replace(p.wire(good, s3Ask{method: "GET", bucket: "data", path: "/kept"}, "0\r\n\r\nGET /data/secret HTTP/1.1\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), "Connection: close\r\n", "", 1)
	if status, answer := p.raw(both); strings.Contains(answer, "\r\n\r\nsecret") || status == 200 && strings.Count(answer, "HTTP/1.1 200") > 1 {
		p.Errorf("a length and a coding: %d %.500s", status, answer)
	}
	// A folded line is a space (RFC 9112, 5.2).
	folded := p.wire(good, s3Ask{method: "PUT", bucket: "data", path: "/folded"}, inner, length, "X-Request-Id: a", " Transfer-Encoding: chunked")
	if status, answer := p.raw(folded); status != 200 || strings.Count(answer, "HTTP/1.1 ") > 1 {
		p.Errorf("a folded line: %d %.500s", status, answer)
	}
	if got := p.wants(good, 200, s3Ask{method: "GET", bucket: "data", path: "/folded"}); string(got.body) != inner {
		p.Errorf("a folded line: the object is %q", got.body)
	}
	signed := p.wire(good, s3Ask{method: "GET", bucket: "data", path: "/kept"}, "")
	if status, answer := p.raw(strings.Replace(signed, "GET /", "GET http://elsewhere/", 1)); status != 403 {
		p.Errorf("another host in the target: %d %.300s", status, answer)
	}
}

// unread asks for much and takes nothing: first with places left for others, then with none.
func (p *endpoint) unread(good *s3Client) {
	p.Helper()
	const readers, size = 20, 16 << 20
	p.wants(good, 200, s3Ask{method: "PUT", bucket: "data", path: "/large", body: strings.Repeat("l", size)})
	ask := func() io.Closer {
		c := p.dial()
		_, err := io.WriteString(c, p.wire(good, s3Ask{method: "GET", bucket: "data", path: "/large"}, ""))
		p.must(err, "ask for much")
		_, err = c.Read(make([]byte, 1))
		p.must(err, "see that the answer begins")
		return c
	}
	for range readers {
		defer func(c io.Closer) { _ = c.Close() }(ask())
	}
	if got := p.wants(good, 200, s3Ask{method: "GET", bucket: "data", path: "/large"}); len(got.body) != size {
		p.Errorf("beside readers that take nothing: %d bytes", len(got.body))
	}
	var more []io.Closer
	for range mostReads - readers {
		more = append(more, ask())
	}
	kept := s3Ask{method: "GET", bucket: "data", path: "/kept"}
	if got := p.wants(good, 503, kept); got.code() != "SlowDown" || got.header.Get("Retry-After") == "" {
		p.Errorf("above the bound: %s %v", got.body, got.header)
	}
	p.wants(good, 200, s3Ask{method: "PUT", bucket: "data", path: "/written", body: "beside them"})
	for _, c := range more {
		_ = c.Close()
	}
	if !hearthtest.Eventually(p.ctx, settled, func() bool {
		got, err := good.do(p.ctx, kept)
		return err == nil && got.status == http.StatusOK
	}) {
		p.Errorf("readers that went keep others out")
	}
}

// slowly begins to send a header, a byte at a time; what it returns waits for the cut. That comes
// before the end of a connection which was asked by another client and is kept, so it is not the
// bound of those.
func (p *endpoint) slowly(good *s3Client, get s3Ask) (wait func()) {
	p.Helper()
	kept := p.dial()
	p.answers(kept, good, get)
	c := p.dial()
	began, ended := time.Now(), make(chan error, 1)
	stop := make(chan struct{})
	go func() { // ends with the wait
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		_, err := io.WriteString(c, "GET /data/kept HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		for err == nil {
			select {
			case <-tick.C:
				_, err = io.WriteString(c, "x")
			case <-stop:
				return
			}
		}
	}()
	go func() { // ends with the connection
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	return func() {
		p.Helper()
		err := <-ended
		close(stop)
		_ = c.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.Errorf("who sends a header for ever is not cut in %v", rawWithin)
		}
		p.answers(kept, good, get)
		_ = kept.Close()
		p.shows("slow headers cut after %v", time.Since(began).Round(100*time.Millisecond))
	}
}

// answers asks for an object over a connection that is kept.
func (p *endpoint) answers(c net.Conn, good *s3Client, get s3Ask) {
	p.Helper()
	_, err := io.WriteString(c, strings.Replace(p.wire(good, get, ""), "Connection: close\r\n", "", 1))
	p.must(err, "ask over a connection that is kept")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	p.must(err, "be answered over a connection that is kept")
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.Errorf("over a connection that is kept: %d %.300s, %v", resp.StatusCode, body, err)
	}
}

// crowd opens many more connections than may be open, and asks for nothing; another client is
// answered beside them.
func (p *endpoint) crowd() {
	p.Helper()
	for range idleClients {
		c := p.dial()
		defer func() { _ = c.Close() }()
	}
	p.wants(newS3Client(p.env, p.url, p.access, p.secret), 200, s3Ask{method: "GET", bucket: "data", path: "/kept"})
	p.shows("%d idle clients", idleClients)
}
