package s3gw

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWhatAServerSays(t *testing.T) {
	// A panic is told; a stranger who speaks no TLS is not, and neither is written past the log.
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"s3.test"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"c.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), "k.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := make(chan string, 8)
	s, err := Listen(t.Context(), ServerOptions{Listen: "127.0.0.1:0", Certificate: filepath.Join(dir, "c.pem"), Key: filepath.Join(dir, "k.pem"),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("told") }), Said: func(line string) { said <- line }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dial := func(wrap bool) {
		c, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		to := io.ReadWriter(c)
		if !wrap {
			to = c.NetConn() // no record of TLS
		}
		if _, err := io.WriteString(to, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Error(err)
		}
		_, _ = bufio.NewReader(to).ReadByte() // the server has ended it
	}
	stranger, err := http.Get("http://" + s.Addr().String()) // answered in plain words, and told as a handshake
	if err == nil {
		stranger.Body.Close()
	}
	dial(false)
	dial(true)
	if line := <-said; !strings.HasPrefix(line, "http: panic serving") || !strings.Contains(line, "told") || len(said) != 0 {
		t.Errorf("%.100q, and %d more", line, len(said))
	}
}
