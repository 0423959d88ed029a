package s3gw

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
)

// endpoint opens an Endpoint over a stand's links; what it reports is in told.
func (s *stand) endpoint(ctx context.Context, setup Setup) (*Endpoint, error) {
	o := s.g.o
	o.Access = nil
	setup.Listen, setup.CredentialsFile = "127.0.0.1:0", s.file
	return Open(ctx, setup, o)
}

// certify writes a certificate of its own for a name, and the key; the files are of a time.
func certify(t *testing.T, name, certificate, key string, at time.Time) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := errors.Join(os.WriteFile(file, pem.EncodeToMemory(block), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCertificateThatIsReplaced(t *testing.T) {
	// The certificate's files are written anew while the endpoint answers: new connections get
	// the new one; while they are wrong the old one goes on, and it is told.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	dir := t.TempDir()
	setup := Setup{Certificate: filepath.Join(dir, "c.pem"), CertificateKey: filepath.Join(dir, "k.pem")}
	if _, err := s.endpoint(t.Context(), setup); err == nil {
		t.Fatal("it begins without its certificate")
	}
	certify(t, "first.example", setup.Certificate, setup.CertificateKey, time.Now().Add(-time.Hour))
	var mu sync.Mutex
	told := 0
	keep := &certificate{files: [2]string{setup.Certificate, setup.CertificateKey}, trouble: func(error) { mu.Lock(); told++; mu.Unlock() }}
	if err := keep.read(); err != nil {
		t.Fatal(err)
	}
	name := func() string {
		t.Helper()
		keep.looked = time.Time{}
		c, err := keep.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.DNSNames[0]
	}
	if err := os.WriteFile(setup.CertificateKey, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := name(); n != "first.example" || told != 1 {
		t.Errorf("with a wrong key: %s, told %d times", n, told)
	}
	certify(t, "second.example", setup.Certificate, setup.CertificateKey, time.Now())
	if n := name(); n != "second.example" || told != 1 {
		t.Errorf("replaced: %s, told %d times", n, told)
	}

	x, err := s.endpoint(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	s.put("bucket", "k", "of k")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	s.url, s.client = "https://"+x.Summary().Listen, &http.Client{Transport: transport}
	resp, text := s.ask("root", "GET", "/bucket/k", "")
	if text != "of k" || resp.TLS == nil || resp.TLS.PeerCertificates[0].DNSNames[0] != "second.example" || !x.Summary().TLS {
		t.Errorf("in TLS: %s %+v", text, resp.TLS)
	}
}

func TestEndWhileRequestsAreUnderWay(t *testing.T) {
	// The endpoint ends while a download stands still and an upload is under way: both end, and
	// nothing of them is left.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "big", strings.Repeat("x", 8<<20))
	ctx, cancel := context.WithCancel(t.Context())
	log := filepath.Join(t.TempDir(), "log")
	x, err := s.endpoint(ctx, Setup{AccessLog: log})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- x.Wait(ctx) }() // ends with cancel
	s.url = "http://" + x.Summary().Listen
	_, in := s.dialog(s.raw("root", "GET", "/bucket/big", 0))
	if line, err := in.ReadString('\n'); !strings.Contains(line, " 200 ") {
		t.Errorf("the download: %q, %v", line, err)
	}
	c, up := s.dialog(s.raw("root", "PUT", "/bucket/up", 1000))
	if _, err := io.WriteString(c, "half"); err != nil {
		t.Error(err)
	}
	if !hearthtest.Eventually(t.Context(), 10*time.Second, func() bool { return x.Stats().UnderWay == 2 }) {
		t.Error("they are not under way")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := http.ReadResponse(up, nil); err == nil {
		t.Log("the upload was answered")
	}
	x.Close()
	if n := x.Stats().UnderWay; n != 0 {
		t.Errorf("%d are under way", n)
	}
	if got, err := os.ReadFile(log); err != nil || bytes.Count(got, []byte("\n")) != 2 {
		t.Errorf("the log: %s, %v", got, err)
	}
	s.originHas(404, "up")
}

// originHas asks the origin for a key of bucket.
func (s *stand) originHas(status int, key string) {
	s.Helper()
	if resp, err := s.server.Request(s.Context(), "GET", "bucket", key, nil); err != nil {
		s.Error(err)
	} else if answer, err := s.server.Client.Do(resp); err != nil || answer.StatusCode != status {
		s.Errorf("%s at the origin: %v, %v", key, answer, err)
	} else {
		answer.Body.Close()
	}
}

func TestWritesThatMayTouchAnyName(t *testing.T) {
	// An upload that its origin unpacks makes and changes names that it does not tell: what was
	// listed before is right afterwards, at every depth.
	s := newStand(t, nil, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	for _, key := range []string{"a/b/c/old", "a/old", "other/old", "old"} {
		s.put("bucket", key, "old")
	}
	s.gets(200, "<Key>a/b/c/old</Key>", "root", "GET", "/bucket?list-type=2", "")
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.Header.Get("X-Amz-Meta-Snowball-Auto-Extract") != "" {
			for _, key := range []string{"a/b/c/new", "a/new", "other/deep/new", "fresh/new"} {
				s.put("bucket", key, "new")
			}
			if err := s.server.Delete(t.Context(), "bucket", "a/b/c/old"); err != nil {
				t.Error(err)
			}
		}
		return forward()
	})
	s.gets(200, "", "root", "PUT", "/bucket/archive.tar", "a tar", "X-Amz-Meta-Snowball-Auto-Extract: true")
	_, text := s.ask("root", "GET", "/bucket?list-type=2", "")
	for key, there := range map[string]bool{"a/b/c/new": true, "a/new": true, "other/deep/new": true, "fresh/new": true, "a/b/c/old": false, "archive.tar": true, "old": true} {
		if strings.Contains(text, "<Key>"+key+"</Key>") != there {
			t.Errorf("%s: there is %v in %s", key, !there, text)
		}
	}
	s.gets(404, "NoSuchKey", "root", "GET", "/bucket/a/b/c/old", "")
	s.gets(200, "new", "root", "GET", "/bucket/fresh/new", "")

	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) { // as MinIO does
		if r.Method == http.MethodDelete {
			for _, key := range []string{"a/b/c/new", "a/new", "a/old"} {
				if err := s.server.Delete(t.Context(), "bucket", key); err != nil {
					t.Error(err)
				}
			}
		}
		return forward()
	})
	s.gets(204, "", "root", "DELETE", "/bucket/a", "", "X-Minio-Force-Delete: true")
	if _, text := s.ask("root", "GET", "/bucket?list-type=2", ""); strings.Contains(text, "<Key>a/") || !strings.Contains(text, "<Key>other/old</Key>") {
		t.Errorf("after all below a was removed: %s", text)
	}
}

func TestReloadReadsWhatChangedOrNot(t *testing.T) {
	// Certificate and keys are replaced by files as old as those before, which no look at their
	// times finds: Reload has both from the next connection on. What is wrong goes on as it was.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	dir := t.TempDir()
	at := time.Now().Add(-time.Hour)
	setup := Setup{Certificate: filepath.Join(dir, "c.pem"), CertificateKey: filepath.Join(dir, "k.pem")}
	certify(t, "first.example", setup.Certificate, setup.CertificateKey, at)
	x, err := s.endpoint(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	name := func() string {
		t.Helper()
		c, err := tls.Dial("tcp", x.Summary().Listen, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		return c.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	certify(t, "second.example", setup.Certificate, setup.CertificateKey, at)
	if got := name(); got != "first.example" {
		t.Errorf("before: %s", got)
	}
	if err := x.Reload(); err != nil || name() != "second.example" {
		t.Errorf("%s, %v", name(), err)
	}
	if err := os.WriteFile(setup.CertificateKey, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := x.Summary().Keys
	if err := os.WriteFile(s.file, []byte("no line of keys\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = x.Reload()
	if err == nil || !strings.Contains(err.Error(), setup.CertificateKey) || !strings.Contains(err.Error(), "read keys") {
		t.Errorf("both are wrong: %v", err)
	}
	if got := name(); got != "second.example" || x.Summary().Keys != keys || keys == 0 {
		t.Errorf("%s, %d keys of %d", got, x.Summary().Keys, keys)
	}
}
