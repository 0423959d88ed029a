package s3gw

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// patience is how long a test waits for what takes a fraction of a second where nobody else is at work.
const patience = time.Minute

// dialog is a connection on which a client writes what it likes.
func (s *stand) dialog(text string) (net.Conn, *bufio.Reader) {
	s.Helper()
	return s.dialogBy(net.Dialer{}, text)
}

// narrow dials connections that hold some 100 KiB of what nobody reads, and not the megabytes that
// loopback's hold: to fill those takes ten thousands of short answers.
func narrow() net.Dialer {
	return net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536)) // the server's room is of so many segments
		}), err)
	}}
}

// dialogBy is a dialog on a connection of a dialer's.
func (s *stand) dialogBy(d net.Dialer, text string) (net.Conn, *bufio.Reader) {
	s.Helper()
	c, err := d.DialContext(s.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		s.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		s.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// raw is a signed request as text, with a length that its body may not have.
func (s *stand) raw(who, method, target string, length int) string {
	r := s.request(who, method, target, "")
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", method, target, r.URL.Host, length)
	_ = r.Header.Write(&b) // to memory
	return b.String() + "\r\n"
}

func TestBodiesThatNeverCome(t *testing.T) {
	// A client announces a body and sends none: one that may not ask is answered and its
	// connection ended, one whose body is for the endpoint is told so; nobody is waited for long.
	rules, err := Setup{CORS: []string{"https://app.example"}}.rules()
	if err != nil {
		t.Fatal(err)
	}
	s := newStand(t, func(o *Options) { o.CORS = rules }, shownLink{bucket: "bucket"})
	s.g.patience, s.g.leave = 50*time.Millisecond, 50*time.Millisecond
	for _, c := range []struct {
		who, method, target string
		status              int
	}{{"stranger", "PUT", "/bucket/k", 403}, {"reader", "PUT", "/bucket/k", 403}, {"root", "POST", "/bucket?delete=", 400}, {"root", "POST", "/bucket?hearth-batch=", 400}, {"root", "GET", "/", 200}, {"root", "PUT", "/bucket", 409}, {"", "PUT", "/", 405}, {"", "OPTIONS", "/bucket/k", 200}, {"", "OPTIONS", "/bucket/none", 200}} {
		page := "Origin: https://app.example\r\nAccess-Control-Request-Method: GET\r\n"
		_, in := s.dialog(strings.Replace(s.raw(c.who, c.method, c.target, 1000), "\r\n", "\r\n"+page, 1))
		resp, err := http.ReadResponse(in, &http.Request{Method: c.method})
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.target, err)
			continue
		}
		text, err := io.ReadAll(resp.Body)
		if resp.StatusCode != c.status || err != nil {
			t.Errorf("%s %s by %s: %d, want %d: %s, %v", c.method, c.target, c.who, resp.StatusCode, c.status, text, err)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("%s %s by %s: the connection goes on: %v", c.method, c.target, c.who, err)
		}
	}
}

func TestStrangersThatReadNothing(t *testing.T) {
	// Strangers ask and ask and read no answer, on as many connections as may be open: who has a key
	// is answered nonetheless.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "k", "of k")
	x, err := Listen(t.Context(), ServerOptions{Listen: "127.0.0.1:0", Handler: s.g, MostConnections: 3, AnswerWithin: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	s.url = "http://" + x.Addr().String()
	for _, asks := range []string{"GET /bucket/" + strings.Repeat("k", 900) + " HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /bucket/k HTTP/1.1\r\nHost: h\r\n\r\n"} {
		var crowd sync.WaitGroup
		many := strings.Repeat(asks, 20)
		for range 3 {
			c, _ := s.dialogBy(narrow(), asks)
			crowd.Go(func() {
				for { // ends when it is cut off
					if _, err := io.WriteString(c, many); err != nil {
						if os.IsTimeout(err) {
							t.Error("it is still there")
						}
						return
					}
				}
			})
		}
		crowd.Wait()
		s.gets(200, "of k", "root", "GET", "/bucket/k", "")
	}
}

func TestHeadersAtTheLimit(t *testing.T) {
	// A request whose line and headers have as many bytes as may be is answered as any other, also
	// on a connection that has answered before; with a byte more it is refused, and the connection
	// ended.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "k", "of k")
	x, err := s.endpoint(t.Context(), Setup{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	s.url = "http://" + x.Summary().Listen
	sized := func(n int) string {
		text := s.raw("root", "GET", "/bucket/k", 0)
		const name = "User-Agent: "
		text = strings.Replace(text, "\r\n", "\r\n"+name+strings.Repeat("x", n-len(text)-len(name)-2)+"\r\n", 1)
		if len(text) != n {
			t.Fatalf("%d bytes and not %d", len(text), n)
		}
		return text
	}
	if mostHeaders != 16<<10 {
		t.Errorf("docs/s3.md says 16 KiB, and it is %d", mostHeaders)
	}
	for _, c := range []struct {
		size, status int
		text         string
	}{{mostHeaders - 1, 200, "of k"}, {mostHeaders, 200, "of k"}, {mostHeaders + 1, 431, ""}, {mostHeaders + 2000, 431, ""}, {20 << 10, 431, ""}, {1 << 20, 431, ""}} {
		for _, before := range []int{0, 1} {
			conn, in := s.dialog("")
			for i := range before + 1 {
				size, status, want := c.size, c.status, c.text
				if i < before {
					size, status, want = 1000, 200, "of k"
				}
				_, _ = io.WriteString(conn, sized(size)) // who is answered before its end may be cut off
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Errorf("%d bytes after %d requests: %v", size, i, err)
					break
				}
				text, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != status || want != "" && string(text) != want {
					t.Errorf("%d bytes after %d requests: %d, want %d: %.100s, %v", size, i, resp.StatusCode, status, text, err)
				}
			}
			if c.status == 200 {
				continue
			}
			if _, err := in.ReadByte(); err == nil || os.IsTimeout(err) {
				t.Errorf("%d bytes: the connection goes on: %v", c.size, err)
			}
		}
	}
	conn, in := s.dialog(strings.Replace(sized(mostHeaders+1), "Content-Length: 0", "Content-Length: 9", 1)) // and no body
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 431 {
		t.Errorf("%v, %v", resp, err)
	} else if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("who sends no body: %v", err)
	}
	if n := x.Stats().UnderWay; n != 0 {
		t.Errorf("%d requests are under way", n)
	}
}

func TestNoContinueBeforeItIsAllowed(t *testing.T) {
	// A client that waits for 100 Continue gets it if it may write, and else only the answer.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	for who, want := range map[string]string{"stranger": "HTTP/1.1 403", "reader": "HTTP/1.1 403", "root": "HTTP/1.1 100"} {
		c, in := s.dialog(strings.Replace(s.raw(who, "PUT", "/bucket/k", 4), "\r\n", "\r\nExpect: 100-continue\r\n", 1))
		line, err := in.ReadString('\n')
		if !strings.HasPrefix(line, want) {
			t.Errorf("%s: %q, %v", who, line, err)
		}
		if who == "root" {
			if _, err := io.WriteString(c, "text"); err != nil {
				t.Error(err)
			}
			if line, err := in.ReadString('\n'); line != "\r\n" {
				t.Errorf("behind the 100: %q, %v", line, err)
			}
			if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 200 {
				t.Errorf("the upload: %v, %v", resp, err)
			}
		}
	}
	s.gets(200, "text", "root", "GET", "/bucket/k", "")
}

func TestDeletesInChunks(t *testing.T) {
	// The keys of a DeleteObjects come in chunks with a checksum behind them, as SDKs send
	// streams: the origin gets the document itself, and a checksum.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "k", "x")
	document := "<Delete><Object><Key>k</Key></Object></Delete>"
	crc := crc32.ChecksumIEEE([]byte(document))
	sum := base64.StdEncoding.EncodeToString([]byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)})
	body := fmt.Sprintf("%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n", len(document), document, sum)
	r := s.request("", "POST", "/bucket?delete=", body, "Content-Encoding: aws-chunked", "X-Amz-Trailer: x-amz-checksum-crc32", fmt.Sprintf("X-Amz-Decoded-Content-Length: %d", len(document)))
	signed(r, "root", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
	resp, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || !strings.Contains(string(text), "<Deleted>") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	s.gets(404, "NoSuchKey", "root", "GET", "/bucket/k", "")

	r = s.request("", "PUT", "/bucket/k", "what was sent")
	signed(r, "root", fmt.Sprintf("%x", sha256.Sum256([]byte("what was signed"))))
	if resp, err = s.client.Do(r); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 400 {
		t.Errorf("a body that is not the signed one: %d", resp.StatusCode)
	}
	s.gets(404, "NoSuchKey", "root", "GET", "/bucket/k", "")
}

func TestPagesInBrowsers(t *testing.T) {
	// A page of an allowed origin is told so in every answer, errors among them, and is answered
	// from the cache; a preflight needs no signature and asks nobody.
	rules, err := Setup{CORS: []string{"https://app.example"}}.rules()
	if err != nil {
		t.Fatal(err)
	}
	s := newStand(t, func(o *Options) { o.CORS = rules }, shownLink{bucket: "bucket"})
	s.put("bucket", "k", "of k")
	s.gets(200, "of k", "root", "GET", "/bucket/k", "")
	s.went()
	page := "Origin: https://app.example"
	for _, c := range []struct {
		status              int
		who, method, target string
	}{{200, "root", "GET", "/bucket/k"}, {200, "root", "GET", "/bucket?list-type=2"}, {403, "stranger", "GET", "/bucket/k"}, {404, "root", "GET", "/bucket/none"}, {200, "root", "PUT", "/bucket/new"}} {
		resp, text := s.ask(c.who, c.method, c.target, "", page)
		if h := resp.Header; resp.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "ETag") {
			t.Errorf("%s %s: %d %v %s", c.method, c.target, resp.StatusCode, h, text)
		}
		if resp, _ := s.ask(c.who, c.method, c.target, "", "Origin: https://other.example"); len(resp.Header["Access-Control-Allow-Origin"]) > 0 {
			t.Errorf("%s %s of another page: %v", c.method, c.target, resp.Header)
		}
		if n := len(s.went()); c.status == 200 && c.method == "GET" && strings.HasSuffix(c.target, "k") && n != 0 {
			t.Errorf("%s %s: %d requests to the origin", c.method, c.target, n)
		}
	}
	s.went()
	resp, _ := s.ask("", "OPTIONS", "/bucket/k", "", page, "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-amz-date, authorization")
	if h := resp.Header; resp.StatusCode != 200 || h.Get("Access-Control-Allow-Headers") != "x-amz-date, authorization" || h.Get("Access-Control-Max-Age") != "3600" || len(s.went()) != 0 {
		t.Errorf("a preflight: %d %v", resp.StatusCode, h)
	}
	s.gets(403, "AccessForbidden", "", "OPTIONS", "/bucket/k", "", "Origin: https://other.example", "Access-Control-Request-Method: PUT")
	if _, err := newCORS(nil); err != nil {
		t.Error(err)
	}
	if p := (Setup{Listen: ":0", Anonymous: []string{"*"}, CORS: []string{"app.example"}}).Problems(); p["s3.cors"] == nil || len(p) != 1 {
		t.Errorf("an origin without a scheme: %v", p)
	}
	if p := (Setup{CORS: []string{"*"}}).Problems(); p["s3.cors"] == nil {
		t.Errorf("pages of no endpoint: %v", p)
	}
}

func TestFiguresAndLines(t *testing.T) {
	// Each request is counted and gets a line, whatever became of it; no header of a client makes
	// a line of its own.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "a key", "12345")
	s.gets(200, "12345", "root", "GET", "/bucket/a%20key", "", "User-Agent: odd \"agent\" - - 200")
	s.gets(403, "", "reader", "PUT", "/bucket/a", "x")
	s.gets(200, "", "root", "PUT", "/bucket/a", "x")
	if !hearthtest.Eventually(t.Context(), 10*time.Second, func() bool { return s.g.Stats().UnderWay == 0 }) {
		t.Fatal("requests are under way")
	}
	kinds := s.g.Stats().Kinds
	for k, want := range map[Kind]Sum{{"GetObject", "200", "cached"}: {Requests: 1, Bytes: 5}, {"PutObject", "403", "refused"}: {Requests: 1}, {"PutObject", "200", "written"}: {Requests: 1}} {
		if got := kinds[k]; got.Requests != want.Requests || want.Bytes > 0 && got.Bytes != want.Bytes || got.Seconds <= 0 {
			t.Errorf("%v: %+v", k, got)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) != 3 || len(s.told) != 1 {
		t.Fatalf("%d lines, %d refusals", len(s.lines), len(s.told))
	}
	got := string(s.lines[0].Append(nil))
	for _, want := range []string{" root ", " REST.GetObject a%20key \"GET /bucket/a%20key HTTP/1.1\" 200 - 5 - ", ` "odd ?agent? - - 200" `} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if strings.Count(got, "\n") != 1 || len(strings.Split(got, `"`))%2 != 1 {
		t.Errorf("the line %q", got)
	}
	if l := string(s.lines[1].Append(nil)); !strings.Contains(l, " 403 AccessDenied ") {
		t.Errorf("a refusal: %q", l)
	}
}

func TestKeysThatChange(t *testing.T) {
	// The file of keys is written anew while the endpoint answers: keys come and go.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "k", "of k")
	s.gets(200, "of k", "root", "GET", "/bucket/k", "")
	s.gets(403, "InvalidAccessKeyId", "late", "GET", "/bucket/k", "")
	s.write("late latesecret ro bucket\n")
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool {
		resp, _ := s.ask("late", "GET", "/bucket/k", "")
		return resp.StatusCode == http.StatusOK
	}) {
		t.Error("the new key is not known")
	}
	s.gets(403, "InvalidAccessKeyId", "root", "GET", "/bucket/k", "")
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	s.gets(200, "of k", "late", "GET", "/bucket/k", "")
}
