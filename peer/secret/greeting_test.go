package secret

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestGreetingRoundTrip(t *testing.T) {
	// What a node can say is read as it was said, with nothing before and after it.
	rapid.Check(t, func(t *rapid.T) {
		g := greeting{mode: rapid.SampledFrom([]mode{encrypted, plain, keyless}).Draw(t, "mode")}
		copy(g.tag[:], rapid.SliceOfN(rapid.Byte(), tagBytes, tagBytes).Draw(t, "tag"))
		if g.mode != encrypted {
			copy(g.nonce[:], rapid.SliceOfN(rapid.Byte(), nonceBytes, nonceBytes).Draw(t, "nonce"))
			g.id = rapid.StringMatching(`[A-Za-z0-9._-]{1,64}`).Draw(t, "id")
		}
		var wire bytes.Buffer
		if err := send(&wire, clientGreeting, g.encode()); err != nil {
			t.Fatal(err)
		}
		wire.WriteString("rest")
		m, err := receive(&wire)
		if err != nil || m.version != version || m.kind != clientGreeting || wire.String() != "rest" {
			t.Fatal(m, err)
		}
		if got, err := parseGreeting(m.body); err != nil || got != g {
			t.Fatal(got, err)
		}
	})
}

func TestMalformedGreetings(t *testing.T) {
	// What no node says is refused, for example an id that would look bad in a log.
	said := func(m mode, nonce int, id string) string {
		return string(append([]byte{byte(m)}, make([]byte, tagBytes+nonce)...)) + id
	}
	for name, body := range map[string]string{
		"nothing":            "",
		"no tag":             said(plain, -1, ""),
		"half a nonce":       said(plain, nonceBytes/2, ""),
		"no id":              said(plain, nonceBytes, ""),
		"no id, keyless":     said(keyless, nonceBytes, ""),
		"a line break":       said(plain, nonceBytes, "a\nb"),
		"a long id":          said(plain, nonceBytes, strings.Repeat("x", maxName+1)),
		"more, encrypted":    said(encrypted, 0, "a"),
		"mode 0":             said(0, nonceBytes, "a"),
		"a mode of tomorrow": said(keyless+1, nonceBytes, "a"),
	} {
		if _, err := parseGreeting([]byte(body)); !errors.Is(err, ErrNotHearth) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// script is a peer that sends what is written down, and ends.
type script struct {
	io.Reader
	heard bytes.Buffer
}

func (s *script) Write(b []byte) (int, error)      { return s.heard.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

func FuzzPlainHandshake(f *testing.F) {
	// Nothing that a stranger sends passes a plain handshake or gets a proof from the
	// server. Of a greeting, all is read and no byte more.
	a, b := nodes(f, Options{Plain: true})
	hello := message{version: version, kind: clientGreeting, body: a.greet()}.encode()
	reply := message{version: version, kind: serverGreeting, body: b.greet()}.encode()
	shown := message{version: version, kind: proof, body: make([]byte, proofBytes)}.encode()
	f.Add([]byte{})
	f.Add(hello)
	f.Add(append(bytes.Clone(hello), shown...))
	f.Add(append(bytes.Clone(reply), shown...))
	f.Add(append(bytes.Clone(reply), message{version: version, kind: refusal}.encode()...))
	f.Add(message{version: 2, kind: 9, body: []byte("later")}.encode())
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		atServer := &script{Reader: bytes.NewReader(sent)}
		if _, _, err := b.Server(t.Context(), atServer); err == nil {
			t.Error("the server takes a stranger for a node")
		}
		if most := headerBytes + len(b.greet()) + headerBytes; atServer.heard.Len() > most {
			t.Errorf("the server told a stranger %d bytes, at most %d", atServer.heard.Len(), most)
		}
		if _, _, err := a.Client(t.Context(), &script{Reader: bytes.NewReader(sent)}, ""); err == nil {
			t.Error("the client takes a stranger for a node")
		}
		m, err := receive(bytes.NewReader(sent))
		if err != nil {
			return
		}
		if !bytes.HasPrefix(sent, m.encode()) {
			t.Error("a message is not what was sent")
		}
		if g, err := parseGreeting(m.body); err == nil && !bytes.Equal(g.encode(), m.body) {
			t.Error("a greeting is not what was sent")
		}
	})
}
