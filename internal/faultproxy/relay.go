package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"
)

// headLimit bounds a message's head; S3's own bound is 8 KiB.
const headLimit = 64 << 10

var (
	errHead  = errors.New("malformed or oversized head")
	errIdle  = errors.New("the server ended the connection before this request")
	errEnded = errors.New("the connection ends here on purpose")
)

// serve relays the requests of one client connection, one after another.
func (p *Proxy) serve(client *net.TCPConn) {
	if !p.keep(client) {
		_ = client.Close() // the proxy ends
		return
	}
	defer p.drop(client)
	c := &side{conn: client, in: bufio.NewReaderSize(client, headLimit)}
	from := p.caller(client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
	var s *side
	defer func() {
		if s != nil {
			p.drop(s.conn)
		}
	}()
	for {
		req, err := c.readHead()
		if err != nil {
			return
		}
		x := &exchange{proxy: p, client: c, start: time.Now(), request: req}
		x.method, x.target = requestLine(req.raw)
		x.verb = verbOf(x.method, x.target)
		p.counts.begin(x.verb)
		if x.rule = p.take(x.verb, x.target); x.rule != nil && (x.rule.Refuse || x.rule.Status != 0) {
			err = x.standIn()
		} else {
			s, err = x.through(s)
		}
		from.add(x.verb, x.sent) // before it leaves the requests in flight
		p.counts.end(x.verb, x.sent)
		if err != nil {
			return
		}
	}
}

// through relays a request by the connection s. It opens a new one if there is none, or if the
// server has ended it meanwhile. With Exclusive it waits first for other requests for the key.
func (x *exchange) through(s *side) (*side, error) {
	if x.proxy.keys != nil {
		release, reads := x.proxy.keys.claim(x.method, x.target)
		defer release()
		if reads {
			x.headCame = release
		}
	}
	var err error
	if x.server = s; s != nil {
		if err = x.relay(); !errors.Is(err, errIdle) {
			return s, err
		}
		x.proxy.drop(s.conn)
	}
	if x.server, err = x.proxy.dial(); err != nil {
		return nil, err
	}
	return x.server, x.relay()
}

func (p *Proxy) dial() (*side, error) {
	conn, err := net.Dial("tcp", p.target)
	if err != nil {
		return nil, err
	}
	if !p.keep(conn) {
		conn.Close()
		return nil, net.ErrClosed
	}
	return &side{conn: conn.(*net.TCPConn), in: bufio.NewReaderSize(conn, headLimit)}, nil
}

// side is one of the two connections, with the bytes that were read from it but not used.
type side struct {
	conn *net.TCPConn
	in   *bufio.Reader
}

// head is what a message's head says about its body.
type head struct {
	raw     []byte // valid until the next read of the same side
	length  int64  // -1 means until the connection ends
	chunked bool
	expects bool // Expect: 100-continue
	closes  bool // Connection: close
}

// readHead waits for a head and takes it from the buffer, without a copy.
func (s *side) readHead() (head, error) {
	for have := 1; ; have = s.in.Buffered() + 1 {
		if have > headLimit {
			return head{}, errHead
		}
		if _, err := s.in.Peek(have); err != nil {
			return head{}, err
		}
		buf, _ := s.in.Peek(s.in.Buffered()) // buffered bytes cannot fail
		if end := bytes.Index(buf, []byte("\r\n\r\n")); end >= 0 {
			_, _ = s.in.Discard(end + 4) // nor can this; the bytes stay until the next read
			return parseHead(buf[:end+4]), nil
		}
	}
}

func parseHead(raw []byte) head {
	h := head{raw: raw, length: -1}
	rest := raw[bytes.IndexByte(raw, '\n')+1:]
	for len(rest) > 2 {
		end := bytes.IndexByte(rest, '\n')
		line := rest[:end]
		rest = rest[end+1:]
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			continue
		}
		value := bytes.TrimSpace(line[colon+1:])
		switch name := line[:colon]; {
		case len(name) == 14 && bytes.EqualFold(name, []byte("Content-Length")):
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				h.length = n
			}
		case len(name) == 17 && bytes.EqualFold(name, []byte("Transfer-Encoding")):
			h.chunked = bytes.EqualFold(value, []byte("chunked"))
		case len(name) == 10 && bytes.EqualFold(name, []byte("Connection")):
			h.closes = bytes.EqualFold(value, []byte("close"))
		case len(name) == 6 && bytes.EqualFold(name, []byte("Expect")):
			h.expects = bytes.EqualFold(value, []byte("100-continue"))
		}
	}
	return h
}

func requestLine(raw []byte) (method, target string) {
	line, _, _ := strings.Cut(string(raw[:bytes.IndexByte(raw, '\n')]), "\r")
	method, rest, _ := strings.Cut(line, " ")
	target, _, _ = strings.Cut(rest, " ")
	return method, target
}

// verbOf classifies a request in path style: "/bucket?query" or "/bucket/key".
func verbOf(method, target string) string {
	path, query, _ := strings.Cut(target, "?")
	bucket, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case method == "HEAD":
		return Head
	case method != "GET" || bucket == "":
		return Other
	case key != "":
		return Get
	case strings.Contains(query, "list-type") || strings.Contains(query, "delimiter") || strings.Contains(query, "prefix") || query == "":
		return List
	}
	return Other
}

// exchange is one request and its answer.
type exchange struct {
	proxy          *Proxy
	client, server *side
	request        head
	method, target string
	verb           string
	rule           *Rule
	headCame       func() // called when the answer's head has come; may be nil
	start          time.Time
	sent           int64 // bytes of the answer's body
}

// relay passes the request on and the answer back. An error ends both connections.
func (x *exchange) relay() error {
	if _, err := x.server.conn.Write(x.rule.strip(x.request.raw)); err != nil {
		return errIdle
	}
	if !x.request.expects {
		if err := x.passRequest(); err != nil {
			return err
		}
	}
	answer, err := x.server.readHead()
	if err != nil && x.server.in.Buffered() == 0 && x.request.length <= 0 && !x.request.chunked {
		return errIdle // tried again on a new connection; the second time it is final
	}
	for err == nil && status(answer.raw)/100 == 1 {
		if _, err = x.client.conn.Write(answer.raw); err == nil && x.request.expects {
			err = x.passRequest()
		}
		if err == nil {
			answer, err = x.server.readHead()
		}
	}
	if err != nil {
		return err
	}
	if x.headCame != nil {
		x.headCame()
	}
	code := status(answer.raw)
	if x.method == "HEAD" || code == 204 || code == 304 {
		answer.length, answer.chunked = 0, false
	}
	if err := x.passAnswer(answer); err != nil {
		return err
	}
	if x.request.closes || answer.closes || x.request.expects && code >= 300 {
		return errEnded
	}
	return nil
}

func (x *exchange) passRequest() error {
	if x.request.length < 0 && !x.request.chunked {
		return nil // a request without a length has no body
	}
	n, err := pass(x.server.conn, x.client, x.request)
	x.proxy.counts.received.Add(n)
	return err
}

// passAnswer sends head and body, spoilt by the rule. Bytes of the body that are here already go
// out with the head in one write.
func (x *exchange) passAnswer(h head) error {
	x.hold()
	if x.rule != nil {
		body := x.rule.Body
		if x.method == "HEAD" {
			body = "" // there is none to spoil
		}
		if h.raw = x.rule.spoil(h.raw, body); body != "" {
			return x.spoilBody(h)
		}
	}
	if h.chunked || h.length < 0 {
		if _, err := x.client.conn.Write(h.raw); err != nil {
			return err
		}
		var err error
		x.sent, err = pass(x.client.conn, x.server, h)
		return err
	}
	here, _ := x.server.in.Peek(int(min(h.length, int64(x.server.in.Buffered())))) // buffered bytes cannot fail
	if _, err := (&net.Buffers{h.raw, here}).WriteTo(x.client.conn); err != nil {
		return err
	}
	_, _ = x.server.in.Discard(len(here)) // nor can this
	h.length -= int64(len(here))
	n, err := pass(x.client.conn, x.server, h)
	x.sent = n + int64(len(here))
	return err
}

// hold waits until the first byte may be sent, and notes when it was.
func (x *exchange) hold() {
	d := time.Duration(x.proxy.delay.Load())
	if x.rule != nil {
		d += time.Duration(x.rule.Delay)
	}
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-x.proxy.ended:
		}
	}
	if x.rule != nil && x.rule.Until != nil {
		select {
		case <-x.rule.Until:
		case <-x.proxy.ended:
		}
	}
	x.proxy.counts.firstByte(time.Since(x.start))
}

// standIn answers in the server's place, after it has read the request's body.
func (x *exchange) standIn() error {
	if x.rule.Refuse {
		_ = x.client.conn.SetLinger(0) // an RST; if it fails the close is a FIN
		return errEnded
	}
	if !x.request.expects && (x.request.length > 0 || x.request.chunked) {
		if _, err := pass(io.Discard, x.client, x.request); err != nil {
			return err
		}
	}
	answer := x.rule.answer(x.method)
	x.hold()
	if _, err := x.client.conn.Write(answer); err != nil {
		return err
	}
	if x.request.expects || x.request.closes {
		return errEnded
	}
	return nil
}

// spoilBody sends the head and the body up to the rule's offset, and does there what the rule says.
func (x *exchange) spoilBody(h head) error {
	if _, err := x.client.conn.Write(h.raw); err != nil {
		return err
	}
	if x.rule.Body == Endless {
		return x.goOn(h)
	}
	at := x.rule.At
	if h.length >= 0 {
		at = min(at, max(0, h.length-1)) // a shorter body is spoilt in its last byte
	}
	var err error
	if x.sent, err = io.CopyN(x.client.conn, x.server.in, at); err != nil {
		return err
	}
	switch x.rule.Body {
	case Reset:
		_ = x.client.conn.SetLinger(0) // see standIn
		return errEnded
	case Stall:
		_, _ = x.client.in.Peek(1) // until the client goes away, or Down
		return errEnded
	case Flip:
		b, err := x.server.in.ReadByte()
		if err != nil {
			return err
		}
		if _, err := x.client.conn.Write([]byte{b ^ 1}); err != nil {
			return err
		}
		h.length -= at + 1
		n, err := pass(x.client.conn, x.server, h)
		x.sent += n + 1
		return err
	}
	return errEnded // Truncate, and any misspelt word
}

// goOn sends the body and then line feeds, until the client goes away or Down is called.
func (x *exchange) goOn(h head) error {
	body := io.Reader(x.server.in)
	switch {
	case h.chunked:
		body = httputil.NewChunkedReader(body)
	case h.length >= 0:
		body = io.LimitReader(body, h.length)
	}
	var err error
	if x.sent, err = io.Copy(x.client.conn, body); err != nil {
		return err
	}
	lines := bytes.Repeat([]byte{'\n'}, 16<<10)
	for {
		n, err := x.client.conn.Write(lines)
		if x.sent += int64(n); err != nil {
			return errEnded
		}
	}
}

// pass copies one body: first the buffered bytes, then from socket to socket, which Go leaves to
// splice(2).
func pass(to io.Writer, from *side, h head) (int64, error) {
	switch {
	case h.chunked:
		return passChunked(to, from.in)
	case h.length < 0:
		n, err := io.Copy(to, from.in)
		if err == nil {
			err = errEnded
		}
		return n, err
	}
	buffered := min(h.length, int64(from.in.Buffered()))
	n, err := io.CopyN(to, from.in, buffered)
	if err != nil || n == h.length {
		return n, err
	}
	if conn, ok := to.(*net.TCPConn); ok {
		m, err := conn.ReadFrom(&io.LimitedReader{R: from.conn, N: h.length - n})
		if n += m; err == nil && n < h.length {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	m, err := io.CopyN(to, from.in, h.length-n)
	return n + m, err
}

// passChunked copies a chunked body with its framing and trailers. Only the bytes of the chunks are
// counted.
func passChunked(to io.Writer, in *bufio.Reader) (int64, error) {
	var total int64
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return total, err
		}
		digits, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(";"))
		n, err := strconv.ParseInt(string(digits), 16, 64)
		if err != nil {
			return total, err
		}
		if _, err := to.Write(line); err != nil {
			return total, err
		}
		if n == 0 {
			return total, passTrailer(to, in)
		}
		if _, err := io.CopyN(to, in, n+2); err != nil { // the chunk and its CRLF
			return total, err
		}
		total += n
	}
}

func passTrailer(to io.Writer, in *bufio.Reader) error {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if _, err := to.Write(line); err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
	}
}

func status(raw []byte) int {
	if len(raw) < 12 {
		return 0
	}
	n, _ := strconv.Atoi(string(raw[9:12])) // 0 is no status either
	return n
}
