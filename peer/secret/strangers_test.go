package secret

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// forgeries are certificates that no node has made for this cluster.
func forgeries(t *testing.T) map[string]tls.Certificate {
	t.Helper()
	right := cluster(t, keyHex, "test")
	sign := func(c *Cluster, change func(*x509.Certificate)) tls.Certificate {
		template := nodeTemplate("a")
		change(template)
		certificate, err := c.sign(template)
		if err != nil {
			t.Fatal(err)
		}
		return certificate
	}
	keep := func(*x509.Certificate) {}
	all := map[string]tls.Certificate{
		"another key":  sign(cluster(t, otherHex, "test"), keep),
		"another name": sign(cluster(t, keyHex, "prod"), keep),
		"expired":      sign(right, func(c *x509.Certificate) { c.NotAfter = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC) }),
		"not yet":      sign(right, func(c *x509.Certificate) { c.NotBefore = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC) }),
		"shorter":      sign(right, func(c *x509.Certificate) { c.NotAfter = time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC) }),
		"no id":        sign(right, func(c *x509.Certificate) { c.URIs = nil }),
		"two ids":      sign(right, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }),
		"malformed id": sign(right, func(c *x509.Certificate) { c.URIs[0] = &url.URL{Scheme: uriScheme, Opaque: uriPrefix + "a/b"} }),
		"another URI":  sign(right, func(c *x509.Certificate) { c.URIs[0] = &url.URL{Scheme: "https", Host: "a.example"} }),
		"other use":    sign(right, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }),
		"none":         {},
	}
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := nodeTemplate("a")
	template.SerialNumber, template.IsCA, template.BasicConstraintsValid = big.NewInt(1), true, true
	template.Subject = right.authority.Subject // as if it were the authority's own
	der, err := x509.CreateCertificate(rand.Reader, template, template, pair.Public(), pair)
	if err != nil {
		t.Fatal(err)
	}
	all["self-signed"] = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: pair}
	// A node's certificate is no authority.
	leaf := sign(right, keep)
	parent, err := x509.ParseCertificate(leaf.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	template = nodeTemplate("c")
	template.SerialNumber = big.NewInt(2)
	if der, err = x509.CreateCertificate(rand.Reader, template, parent, pair.Public(), leaf.PrivateKey); err != nil {
		t.Fatal(err)
	}
	all["signed by a node"] = tls.Certificate{Certificate: [][]byte{der, leaf.Certificate[0]}, PrivateKey: pair}
	return all
}

// impostor greets as a node does and then shows whatever certificate it has.
func impostor(certificate tls.Certificate) *tls.Config {
	c := &tls.Config{InsecureSkipVerify: true, ServerName: serverName, NextProtos: []string{protocol}, ClientAuth: tls.RequestClientCert}
	if certificate.PrivateKey != nil {
		c.Certificates = []tls.Certificate{certificate}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	return c
}

func TestForgedClients(t *testing.T) {
	// An impostor greets as a node does, without a certificate that a node of the cluster
	// has made. It is refused, learns why by TLS's alert, and never gets a welcome.
	_, b := nodes(t, Options{})
	for name, certificate := range forgeries(t) {
		t.Run(name, func(t *testing.T) { forgedClient(t, b, impostor(certificate)) })
	}
	good, err := cluster(t, keyHex, "test").sign(nodeTemplate("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		old := impostor(good)
		old.MaxVersion = tls.VersionTLS12
		forgedClient(t, b, old)
	})
	t.Run("another protocol", func(t *testing.T) {
		other := impostor(good)
		other.NextProtos = []string{"h2"}
		forgedClient(t, b, other)
	})
}

func forgedClient(t *testing.T, b *Identity, config *tls.Config) {
	near, far := pair(t)
	heard := make(chan error, 1)
	go func() {
		defer near.Close()
		heard <- func() error {
			if err := send(near, clientGreeting, b.greet()); err != nil {
				return err
			}
			if _, err := receive(near); err != nil {
				return err
			}
			_, err := receive(tls.Client(near, config))
			return err
		}()
	}()
	_, id, err := b.Server(t.Context(), far)
	if !errors.Is(err, ErrKey) || id != "" {
		t.Errorf("the server: %q %v", id, err)
	}
	var op *net.OpError
	if err := <-heard; !errors.As(err, &op) || op.Op != "remote error" {
		t.Errorf("the client heard no alert: %v", err)
	}
}

func TestForgedServers(t *testing.T) {
	// A client refuses the same certificates at a server.
	a, b := nodes(t, Options{})
	for name, certificate := range forgeries(t) {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer far.Close()
				if _, err := receive(far); err != nil {
					return
				}
				if err := send(far, serverGreeting, b.greet()); err != nil {
					return
				}
				_ = send(tls.Server(far, impostor(certificate)), welcome, nil)
			}()
			_, id, err := a.Client(t.Context(), near, "")
			if !errors.Is(err, ErrKey) || id != "" {
				t.Errorf("%q %v", id, err)
			}
			<-done
		})
	}
}

func TestStrangers(t *testing.T) {
	// Whatever is no Hearth node is named as what it is, as far as it tells, on both
	// sides.
	a, b := nodes(t, Options{})
	for _, x := range []struct {
		name, sends, says string
		want              error
	}{
		{"a browser", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it speaks HTTP", ErrNotHearth},
		{"a web server", "HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP", ErrNotHearth},
		{"TLS at once", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abc", "it speaks TLS", ErrNotHearth},
		{"an alert of TLS", "\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS", ErrNotHearth},
		{"ssh", "SSH-2.0-OpenSSH_10.0\r\n", "it speaks SSH", ErrNotHearth},
		{"garbage", "\x00\xff\x80garbage", `it began with "\x00\xff\x80garbage"`, ErrNotHearth},
		{"magic and garbage", magic + "\x01\x01\x00\x09garbage!!", "", ErrNotHearth},
		{"a long message", magic + "\x01\x01\xff\xff", "65535 bytes", ErrNotHearth},
		{"a proof first", string(message{version: version, kind: proof, body: make([]byte, proofBytes)}.encode()), "message 3", ErrNotHearth},
		{"nothing", "", "ended the connection", io.ErrUnexpectedEOF},
		{"half a greeting", magic[:4], "ended the connection", io.ErrUnexpectedEOF},
		{"a later version", string(message{version: 2, kind: 77, body: []byte("unknown")}.encode()), "2 there, 1 here", ErrVersion},
	} {
		for _, end := range []string{"client", "server"} {
			t.Run(x.name+" at a "+end, func(t *testing.T) {
				near, far := pair(t)
				_, err := io.WriteString(far, x.sends)
				if err = errors.Join(err, far.(*net.TCPConn).CloseWrite()); err != nil {
					t.Fatal(err)
				}
				if end == "client" {
					_, _, err = a.Client(t.Context(), near, "")
				} else {
					_, _, err = b.Server(t.Context(), near)
				}
				if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
					t.Error(err)
				}
			})
		}
	}
}

func TestVersionsAreToldToBoth(t *testing.T) {
	// A node of another version gets a greeting, so that it can say the same.
	_, b := nodes(t, Options{})
	near, far := pair(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := b.Server(t.Context(), far)
		done <- err
	}()
	if _, err := near.Write(message{version: 2, kind: clientGreeting, body: []byte("of tomorrow")}.encode()); err != nil {
		t.Fatal(err)
	}
	m, err := receive(near)
	if err != nil || m.version != version {
		t.Errorf("version %d, %v", m.version, err)
	}
	if err := <-done; !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

func TestWebServer(t *testing.T) {
	// A real web server is named at once: to it, the greeting is a bad request.
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	a, _ := nodes(t, Options{})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = a.Client(t.Context(), conn, "")
	if !errors.Is(err, ErrNotHearth) || !strings.Contains(err.Error(), "it speaks HTTP") {
		t.Error(err)
	}
}

// tape notes what an end sends.
type tape struct {
	net.Conn
	sent bytes.Buffer
}

func (t *tape) Write(b []byte) (int, error) {
	t.sent.Write(b)
	return t.Conn.Write(b)
}

func TestReplay(t *testing.T) {
	// A replay of what an honest client or server has sent convinces nobody.
	a, b := nodes(t, Options{Plain: true})
	near, far := pair(t)
	client, server := &tape{Conn: near}, &tape{Conn: far}
	if c, s := shake(t.Context(), client, server, a, b); c.err != nil || s.err != nil {
		t.Fatal(c.err, s.err)
	}
	near, far = pair(t)
	if _, err := near.Write(client.sent.Bytes()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Server(t.Context(), far); !errors.Is(err, ErrKey) {
		t.Errorf("a replayed client: %v", err)
	}
	near, far = pair(t)
	if _, err := far.Write(server.sent.Bytes()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Client(t.Context(), near, ""); !errors.Is(err, ErrKey) {
		t.Errorf("a replayed server: %v", err)
	}
}

func TestReflection(t *testing.T) {
	// A client that hears its own words, as they were or made to look like a server's,
	// believes none.
	a, _ := nodes(t, Options{Plain: true})
	for name, x := range map[string]struct {
		turn kind // what a client's greeting becomes
		want error
	}{"an echo": {clientGreeting, ErrNotHearth}, "turned round": {serverGreeting, ErrKey}} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			var mirror sync.WaitGroup
			mirror.Go(func() {
				for {
					m, err := receive(far)
					if err != nil {
						return
					}
					if m.kind == clientGreeting {
						m.kind = x.turn
					}
					if _, err := far.Write(m.encode()); err != nil {
						return
					}
				}
			})
			if _, id, err := a.Client(t.Context(), near, ""); !errors.Is(err, x.want) || id != "" {
				t.Errorf("%q %v", id, err)
			}
			mirror.Wait()
		})
	}
}

// tamperer changes one bit of what it sends or of what it receives.
type tamperer struct {
	net.Conn
	in, out *int // bytes until then
}

func flip(b []byte, left *int) {
	if *left >= 0 && *left < len(b) {
		b[*left] ^= 0x10
	}
	*left -= len(b)
}

func (t tamperer) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	flip(b, t.out)
	return t.Conn.Write(b)
}

func (t tamperer) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	flip(b[:n], t.in)
	return n, err
}

func TestTampering(t *testing.T) {
	// Whichever byte of a plain handshake is changed on its way, the client does not go
	// on. The server goes on at most if the byte was in the last message.
	synctest.Test(t, func(t *testing.T) {
		a, b := nodes(t, Options{Plain: true})
		greet := headerBytes + len(a.greet())
		prove := headerBytes + proofBytes
		for at := range 2 * (greet + prove) {
			in, out := at-greet-prove, at
			near, far := net.Pipe()
			c, s := shake(t.Context(), tamperer{near, &in, &out}, far, a, b)
			if c.err == nil || s.err == nil && at < 2*greet+prove {
				t.Errorf("byte %d: %v; %v", at, c.err, s.err)
			}
			near.Close()
			far.Close()
		}
	})
}
