package secret

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// A message is magic, version, kind, length of the body (2 bytes, big-endian), body. This
// layout and the longest body are the same in all versions, so that nodes of two versions
// can say that they differ.
const (
	// magic ends as the head of an HTTP request does. So a web server answers at once
	// that it is no valid request, and the error names HTTP. Otherwise it would wait for
	// more.
	magic       = "hearth\r\n\r\n"
	version     = 1
	headerBytes = len(magic) + 4
	maxBody     = 1024
	tagBytes    = 8
	nonceBytes  = 32
	proofBytes  = 32 // SHA-256
)

// kind of a message. Greetings of clients and servers differ, so that no echo is a
// greeting.
type kind byte

const (
	clientGreeting kind = 1 + iota
	serverGreeting
	proof
	welcome
	refusal
)

type message struct {
	version byte
	kind    kind
	body    []byte
}

func (m message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.body))
	b = append(b, magic...)
	b = append(b, m.version, byte(m.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.body)))
	return append(b, m.body...)
}

func send(w io.Writer, k kind, body []byte) error {
	_, err := w.Write(message{version: version, kind: k, body: body}.encode())
	return err
}

// receive reads one message and no byte beyond it.
func receive(r io.Reader) (message, error) {
	header := make([]byte, headerBytes)
	n, err := io.ReadFull(r, header)
	if seen := header[:min(n, len(magic))]; string(seen) != magic[:len(seen)] {
		return message{}, stranger(header[:n])
	}
	if err != nil {
		return message{}, err
	}
	m := message{version: header[len(magic)], kind: kind(header[len(magic)+1])}
	size := int(binary.BigEndian.Uint16(header[len(magic)+2:]))
	if size > maxBody {
		return message{}, fmt.Errorf("%w: its message is %d bytes long", ErrNotHearth, size)
	}
	m.body = make([]byte, size)
	if _, err := io.ReadFull(r, m.body); err != nil {
		return message{}, err
	}
	return m, nil
}

// receiveBody reads a message of this version whose body has that size.
func receiveBody(r io.Reader, k kind, size int) ([]byte, error) {
	m, err := receive(r)
	switch {
	case err != nil:
		return nil, err
	case m.version == version && m.kind == refusal:
		return nil, fmt.Errorf("%w: the peer says so", ErrKey)
	case m.version != version || m.kind != k || len(m.body) != size:
		return nil, fmt.Errorf("%w: it sent message %d of %d bytes, and %d of %d was due", ErrNotHearth, m.kind, len(m.body), k, size)
	}
	return m.body, nil
}

// stranger says what the peer is, as far as its first bytes tell.
func stranger(first []byte) error {
	text := string(first)
	is := func(prefix string) bool { return strings.HasPrefix(text, prefix) }
	switch {
	case is("HTTP/"), is("GET "), is("HEAD "), is("PUT "), is("POST "), is("OPTIONS "), is("CONNECT "), is("PRI * "):
		return fmt.Errorf("%w: it speaks HTTP", ErrNotHearth)
	case is("\x16\x03"), is("\x15\x03"):
		return fmt.Errorf("%w: it speaks TLS without a greeting", ErrNotHearth)
	case is("SSH-"):
		return fmt.Errorf("%w: it speaks SSH", ErrNotHearth)
	}
	return fmt.Errorf("%w: it began with %q", ErrNotHearth, text)
}

// greeting is what a side says of itself. It means nothing until it is proved.
type greeting struct {
	mode mode
	tag  [tagBytes]byte
	// nonce and id are absent if encrypted: TLS has its own.
	nonce [nonceBytes]byte
	id    string
}

func (g greeting) encode() []byte {
	b := append([]byte{byte(g.mode)}, g.tag[:]...)
	if g.mode == encrypted {
		return b
	}
	b = append(b, g.nonce[:]...)
	return append(b, g.id...)
}

func parseGreeting(body []byte) (greeting, error) {
	malformed := fmt.Errorf("%w: its greeting is malformed", ErrNotHearth)
	var g greeting
	if len(body) < 1+tagBytes {
		return g, malformed
	}
	g.mode = mode(body[0])
	rest := bytes.NewReader(body[1:])
	_, _ = io.ReadFull(rest, g.tag[:])
	switch g.mode {
	case encrypted:
		if rest.Len() > 0 {
			return g, malformed
		}
		return g, nil
	case plain, keyless:
	default:
		return g, malformed
	}
	if _, err := io.ReadFull(rest, g.nonce[:]); err != nil {
		return g, malformed
	}
	g.id = string(body[len(body)-rest.Len():])
	if checkName(g.id) != nil {
		return g, malformed
	}
	return g, nil
}
