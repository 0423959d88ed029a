package origin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// setup is a wrong set-up: what to open, and an object that is not found or read.
type setup struct {
	name string
	make func(t *testing.T, g *ground) Config
}

// ground is what the wrong set-ups are made of: a right one.
type ground struct {
	*hearthtest.Server
	proxy *faultproxy.Proxy
}

// wrong are the nine set-ups of the issue, and some more that are as easily made.
func wrong() []setup {
	rule := func(r faultproxy.Rule) func(*testing.T, *ground) Config {
		return func(t *testing.T, g *ground) Config {
			g.proxy.AddRule(r)
			t.Cleanup(g.proxy.ClearRules)
			return Config{URL: "s3://golden/data", Endpoint: g.proxy.URL()}
		}
	}
	return []setup{
		{"no-such-bucket", func(*testing.T, *ground) Config { return Config{URL: "s3://nosuch/data"} }},
		{"list-denied", rule(faultproxy.Denied(faultproxy.List))},
		{"get-denied", rule(faultproxy.Denied(faultproxy.Get))},
		{"wrong-region", func(*testing.T, *ground) Config { return Config{URL: "s3://golden/data", Region: "eu-north-1"} }},
		{"http-on-https-port", func(t *testing.T, _ *ground) Config {
			return Config{URL: "s3://golden/data", Endpoint: strings.Replace(tlsServer(t).Endpoint, "https", "http", 1)}
		}},
		{"unknown-ca", func(t *testing.T, _ *ground) Config {
			return Config{URL: "s3://golden/data", Endpoint: tlsServer(t).Endpoint}
		}},
		{"clock-skewed", rule(faultproxy.Skewed())},
		{"name-not-found", func(*testing.T, *ground) Config {
			return Config{URL: "s3://golden/data", Endpoint: "http://nosuch.invalid:9000"}
		}},
		{"no-credentials", func(t *testing.T, _ *ground) Config {
			t.Setenv("AWS_ACCESS_KEY_ID", "")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "")
			return Config{URL: "s3://golden/data"}
		}},
		{"no-such-profile", func(t *testing.T, _ *ground) Config {
			t.Setenv("AWS_ACCESS_KEY_ID", "")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "")
			t.Setenv("AWS_PROFILE", "absent")
			return Config{URL: "s3://golden/data"}
		}},
		{"invalid-bucket-name", rule(faultproxy.Rule{Status: 400, Code: "InvalidBucketName", Message: "The specified bucket is not valid."})},
		{"https-on-http-port", func(_ *testing.T, g *ground) Config {
			return Config{URL: "s3://golden/data", Endpoint: strings.Replace(g.Endpoint, "http", "https", 1)}
		}},
		{"nobody-listens", func(t *testing.T, _ *ground) Config {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			return Config{URL: "s3://golden/data", Endpoint: "http://" + l.Addr().String()}
		}},
		{"wrong-secret", func(t *testing.T, _ *ground) Config {
			t.Setenv("AWS_SECRET_ACCESS_KEY", "not this")
			return Config{URL: "s3://golden/data"}
		}},
		{"wrong-key", func(t *testing.T, _ *ground) Config {
			t.Setenv("AWS_ACCESS_KEY_ID", "NOTTHIS")
			return Config{URL: "s3://golden/data"}
		}},
		{"no-ranges", rule(faultproxy.Rule{Verb: faultproxy.Get, Whole: true})},
		{"silent", func(t *testing.T, g *ground) Config {
			c := rule(faultproxy.Rule{Verb: faultproxy.List, Delay: faultproxy.Duration(time.Second)})(t, g)
			c.Timeout = 200 * time.Millisecond
			return c
		}},
	}
}

func TestGoldenEachWrongSetUpHasOneLineWithItsCure(t *testing.T) {
	// A probe of each wrong set-up fails with the line in testdata/explain.
	s := hearthtest.StartS3(t)
	s.Bucket(t, "golden")
	if _, err := s.PutBytes(t.Context(), "golden", "data/a", []byte("abc")); err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	for _, w := range wrong() {
		t.Run(w.name, func(t *testing.T) {
			account(t, &s.S3)
			c := w.make(t, &ground{s, proxy})
			c.Retry = Retry{Attempts: 3, First: time.Millisecond}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := open(t, c).Probe(ctx)
			if err == nil {
				t.Fatal("the probe passed")
			}
			golden(t, "explain/"+w.name, ports(Explain(err))+"\n")
		})
	}
}

// ports takes the ports of loopback addresses out, which differ each time.
func ports(s string) string {
	words := strings.Fields(s)
	for i, w := range words {
		if before, after, ok := strings.Cut(w, "127.0.0.1:"); ok {
			words[i] = before + "127.0.0.1:PORT" + strings.TrimLeft(after, "0123456789")
		}
	}
	return strings.Join(words, " ")
}

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s (UPDATE_GOLDEN=1 writes it):\n got %swant %s%v", path, got, want, err)
	}
}

// tlsServer is a real server under a certificate of an authority of its own,
// whose PEM file is CertFile.
func tlsServer(t *testing.T) *hearthtest.Server {
	t.Helper()
	cert, key := certificate(t)
	return hearthtest.Start(t, hearthtest.ServerOptions{Dir: t.TempDir(), CertFile: cert, KeyFile: key})
}

func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestAnOwnCAIsTrusted(t *testing.T) {
	// The same server that is of an unknown authority answers once its authority's
	// certificate is named, by the configuration or by AWS_CA_BUNDLE.
	cert, key := certificate(t)
	s := hearthtest.Start(t, hearthtest.ServerOptions{Dir: t.TempDir(), CertFile: cert, KeyFile: key})
	if err := os.Mkdir(filepath.Join(s.Dir, "ca-bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	account(t, &s.S3)
	if _, err := open(t, Config{URL: "s3://ca-bucket", CAFile: cert}).Probe(t.Context()); err != nil {
		t.Error(Explain(err))
	}
	t.Setenv("AWS_CA_BUNDLE", cert)
	if _, err := open(t, Config{URL: "s3://ca-bucket"}).Probe(t.Context()); err != nil {
		t.Error(Explain(err))
	}
	if _, err := Open(t.Context(), Config{URL: "s3://ca-bucket", CAFile: key}); err == nil {
		t.Error("a file without a certificate was taken for one")
	}
}

func TestEveryErrorIsOneLine(t *testing.T) {
	// Whatever an origin says, Explain's answer has one line and names the place.
	for _, e := range []*Error{
		{Op: "get", Where: "s3://b/k", Status: 500, Code: "Internal", Message: "two\nlines", Err: fmt.Errorf("x")},
		{Op: "list", Where: "s3://b/k", Status: 301, Region: "eu-west-1", Err: fmt.Errorf("x")},
		{Op: "get", Where: "s3://b/k", Status: 400, Code: "ExpiredToken", Err: fmt.Errorf("x")},
	} {
		if line := Explain(e); strings.Contains(line, "\n") || !strings.HasPrefix(strings.TrimPrefix(line, e.Op+" "), e.Where) {
			t.Errorf("%q", line)
		}
	}
}

func TestWhatTheServerSaysIsInTheLine(t *testing.T) {
	// A denial names the action that the server names, on what and why, and no other right; a server that wants
	// its buckets in hosts' names, a bucket whose readers pay, and a name that only a path cures are told by their options.
	const user = "User: arn:aws:iam::1:user/u is not authorized to perform: "
	for _, x := range []struct {
		e    Error
		want string
	}{
		{Error{Op: "get", Status: 403, Code: "AccessDenied", Message: user + "kms:Decrypt on resource: arn:aws:kms:eu-1:1:key/k because no identity-based policy allows the kms:Decrypt action"},
			"s3://b/k: reading is denied (" + user + "kms:Decrypt on resource: arn:aws:kms:eu-1:1:key/k because no identity-based policy allows the kms:Decrypt action); grant kms:Decrypt on arn:aws:kms:eu-1:1:key/k to these credentials"},
		{Error{Op: "list", Status: 403, Code: "AccessDenied", Message: user + `s3:ListBucket on resource: "arn:aws:s3:::b" with an explicit deny in a resource-based policy`},
			"s3://b/k: listing is denied (" + user + `s3:ListBucket on resource: "arn:aws:s3:::b" with an explicit deny in a resource-based policy); take back the explicit deny of s3:ListBucket, or use other credentials`},
		{Error{Op: "get", Status: 403, Code: "AccessDenied", Message: user + "s3:GetObjectVersion"},
			"s3://b/k: reading is denied (" + user + "s3:GetObjectVersion); grant s3:GetObjectVersion to these credentials"},
		{Error{Op: "get", Status: 403, Code: "AccessDenied", Message: "Access Denied."},
			"s3://b/k: reading is denied; grant s3:GetObject on arn:aws:s3:::b/* to these credentials"},
		{Error{Op: "get", Status: 403, Endpoint: "https://b.s3.eu-1.amazonaws.com"},
			"s3://b/k: reading is denied; grant s3:GetObject on arn:aws:s3:::b/* to these credentials; if the bucket has its readers pay, set requester_pays: true"},
		{Error{Op: "get", Status: 403, Endpoint: "https://b.s3.eu-1.amazonaws.com", pays: true},
			"s3://b/k: reading is denied; grant s3:GetObject on arn:aws:s3:::b/* to these credentials"},
		{Error{Op: "get", Status: 403, Code: "AccessDenied", Message: "Bucket is Requester Pays"},
			"s3://b/k: reading is denied (Bucket is Requester Pays); the bucket has its readers pay: set requester_pays: true (--requester-pays), with credentials of an account that may be charged"},
		{Error{Op: "list", Status: 400, Code: "UserProjectMissing", Message: "Bucket is a requester pays bucket but no user project provided."},
			"s3://b/k: reading is refused (UserProjectMissing: Bucket is a requester pays bucket but no user project provided); Google wants the project that pays, which Hearth does not name: use credentials that may charge the bucket's own (serviceusage.services.use)"},
		{Error{Op: "get", Status: 403, Code: "AccountProblem", Message: "Pay first."},
			"s3://b/k: reading is denied (AccountProblem: Pay first); look that up in the origin's list of errors; if it is about rights, grant s3:GetObject on arn:aws:s3:::b/* to these credentials"},
		{Error{Op: "get", Status: 400, Code: "KMS.NotFoundException", Message: "Key x does not exist"},
			"s3://b/k: the key that it is encrypted with cannot be used (KMS.NotFoundException: Key x does not exist); enable that key (aws kms enable-key) and grant kms:Decrypt on it to these credentials, or store the object under another one"},
		{Error{Op: "list", Status: 403, Code: "SecondLevelDomainForbidden", Message: "no", Endpoint: "http://h"},
			"s3://b/k: http://h wants the bucket in the host's name (SecondLevelDomainForbidden: no); set path_style: false (--path-style false)"},
		{Error{Op: "list", Status: 400, Code: "Ours", Message: "Please use virtual hosted style.", Endpoint: "http://h"},
			"s3://b/k: http://h wants the bucket in the host's name (Ours: Please use virtual hosted style.); set path_style: false (--path-style false)"},
		{Error{Op: "list", Endpoint: "http://b.h:9000", Err: &net.DNSError{Name: "b.h", IsNotFound: true}},
			"s3://b/k: the host name b.h is not found; set path_style: true (--path-style true), unless the server has the bucket in its host's name; then check this machine's DNS"},
		{Error{Op: "list", Endpoint: "http://h:9000", Err: &net.DNSError{Name: "h", IsNotFound: true}},
			"s3://b/k: the host name h is not found; check the endpoint, the region in it, and this machine's DNS"},
	} {
		if x.e.Where = "s3://b/k"; x.e.Err == nil {
			x.e.Err = sentinel(x.e.Status, x.e.Code)
		}
		if got := Explain(&x.e); got != x.want {
			t.Errorf("%s:\n got %s\nwant %s", x.e.Code, got, x.want)
		}
	}
}
