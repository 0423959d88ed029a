package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// inPlain is what a server in TLS tells who speaks plain HTTP to it.
const inPlain = "Client sent an HTTP request to an HTTPS server."

// authority signs certificates of this machine.
type authority struct {
	file string
	leaf *x509.Certificate
	key  *ecdsa.PrivateKey
}

// authority makes one, and its file for clients.
func (e *env) authority(name string) *authority {
	e.Helper()
	a := &authority{file: e.path(name + ".pem")}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.must(err, "make an authority's key")
	a.leaf = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, a.leaf, a.leaf, &a.key.PublicKey, a.key)
	e.must(err, "make an authority")
	e.must(os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644), "write the authority")
	return a
}

// certify writes a certificate of localhost and its key as those do that renew them: beside the
// files, and then in their place.
func (e *env) certify(a *authority, serial int64, certificate, key string) {
	e.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.must(err, "make a key")
	leaf := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprint("renewed ", serial)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.leaf, &own.PublicKey, a.key)
	e.must(err, "make a certificate")
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	e.must(err, "write a key")
	for name, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		e.must(errors.Join(os.WriteFile(name+".new", pem.EncodeToMemory(block), 0o600), os.Rename(name+".new", name)), "write a certificate")
	}
}

// s3TLS uses the endpoint in TLS by the clients that people have: they copy, also while the
// certificate is renewed, and refuse one that their authority did not sign.
func s3TLS(e *env) {
	o := e.exclusive()
	f := hearthtest.File{Path: "d/large", Size: gatewayLarge}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
	ours, other := e.authority("ours"), e.authority("other")
	certificate, key := e.path("s3.pem"), e.path("s3.key")
	e.certify(ours, 2, certificate, key)
	h, s3 := e.serveS3(o, fmt.Sprintf("certificate: %q, certificate_key: %q", certificate, key))
	s3.url, s3.ca = strings.Replace(s3.url, "http://", "https://", 1), ours.file
	s3.copies(o, f)
	if out, code := e.run(e.hearth, "status", "--node", "unix://"+h.socket()); !strings.Contains(out, "s3  "+s3.url+"; ") {
		e.Errorf("hearth status, exit %d: %s", code, out)
	}
	if e.level == full {
		s3.moreCopies(o, h, f)
	}
	s3.plain(o)
	s3.distrusted(o, other)
	s3.renewed(o, func() { e.certify(ours, 3, certificate, key) })
	s3.copies(o, f)
	if e.level == full {
		s3.moreCopies(o, h, f)
	}
	h.quit()
}

// moreCopies are copies by the clients that level full has.
func (p *endpoint) moreCopies(o *server, h *hearth, f hearthtest.File) {
	p.Helper()
	is := func(what, name string) {
		p.Helper()
		if got, err := os.ReadFile(name); err != nil || int64(len(got)) != f.Size || hearthtest.Check(got, f.Path, 0, 0) != nil {
			p.Errorf("%s: %d bytes of %d, %v", what, len(got), f.Size, err)
		}
	}
	authorities := p.path("mc/certs/CAs") // where mc looks for them
	p.must(errors.Join(os.MkdirAll(authorities, 0o755), os.RemoveAll(filepath.Join(authorities, "ours.pem")), os.Link(p.ca, filepath.Join(authorities, "ours.pem"))), "tell mc of the authority")
	from := p.makeFile(p.path("up"), f, 0)
	for client, c := range map[string]struct{ get, put func(key, file string) }{
		"boto3": {func(key, file string) { p.boto(o, "get", key, file) }, func(key, file string) { p.boto(o, "put", file, key) }},
		"s3cmd": {func(key, file string) { p.s3cmd(o, "get", "--force", "s3://"+o.bucket+"/"+key, file) }, func(key, file string) { p.s3cmd(o, "put", file, "s3://"+o.bucket+"/"+key) }},
		"rclone": {func(key, file string) { p.rclone(o, "copyto", "hearth:"+o.bucket+"/"+key, file) },
			func(key, file string) { p.rclone(o, "copyto", file, "hearth:"+o.bucket+"/"+key) }},
		"mc": {func(key, file string) { p.mc(o, "cp", "hearth/"+o.bucket+"/"+key, file) }, func(key, file string) { p.mc(o, "cp", file, "hearth/"+o.bucket+"/"+key) }},
	} {
		c.get(f.Path, p.path("by-"+client))
		is("what "+client+" got", p.path("by-"+client))
		c.put("new/by-"+client, from)
		is("what "+client+" put, in the mount", filepath.Join(h.dir, "new/by-"+client))
		_ = os.Remove(p.path("by-" + client))
	}
}

// plain speaks no TLS to the endpoint, or a version of it that nobody should.
func (p *endpoint) plain(o *server) {
	p.Helper()
	at := strings.TrimPrefix(p.url, "https://")
	if out := p.uses(o, "curl", "-sS", "-w", " %{http_code}", "http://"+at+"/"+o.bucket); out != inPlain+"\n 400" {
		p.Errorf("plain HTTP: %q", out)
	}
	p.fails(o, 254, "400", "", "/usr/bin/aws", "--endpoint-url", "http://"+at, "s3api", "list-objects-v2", "--bucket", o.bucket)
	if c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil { // curl itself does not offer it
		p.Error("the endpoint speaks TLS 1.1")
		_ = c.Close()
	}
	for _, text := range []string{"", "\x16\x03\x01", "\x16\x03\x01\x40\x00" + strings.Repeat("x", 1<<14), strings.Repeat("\x00", 1<<16)} {
		c, err := net.Dial("tcp", at)
		p.must(err, "dial the endpoint")
		_, _ = c.Write([]byte(text)) // it may be cut off
		defer func() { _ = c.Close() }()
	}
	p.curl(o, "-o", os.DevNull, p.url+"/"+o.bucket+"/d/large")
}

// fails runs a client that must end with a code and a word.
func (p *endpoint) fails(o *server, code int, says, ca, name string, args ...string) {
	p.Helper()
	cmd := exec.CommandContext(p.ctx, name, args...)
	cmd.Env, cmd.Dir = p.environ(o), p.dir
	if ca != "" {
		cmd.Env = append(cmd.Env, "AWS_CA_BUNDLE="+ca)
	}
	out, _ := hearthtest.Output(cmd)
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), says) {
		p.Errorf("%s %s: exit %d, expected %d and %q: %s", name, strings.Join(args, " "), got, code, says, out)
	}
}

// distrusted has clients that trust another authority, or those of the machine, end with nothing.
func (p *endpoint) distrusted(o *server, other *authority) {
	p.Helper()
	object := p.url + "/" + o.bucket + "/d/large"
	p.fails(o, 60, "certificate", "", "curl", p.curlArgs("--cacert", other.file, "-o", p.path("distrusted"), object)...)
	p.fails(o, 60, "certificate", "", "curl", p.curlArgs("-o", p.path("distrusted"), object)...)
	p.fails(o, 1, "SSL validation failed", other.file, "/usr/bin/aws", "--endpoint-url", p.url, "s3", "cp", "s3://"+o.bucket+"/d/large", p.path("distrusted"))
	if _, err := os.Stat(p.path("distrusted")); err == nil {
		p.Error("a client that does not trust the endpoint took something from it")
	}
}

// renewed has the certificate be another while a client is in the midst of a download, which goes
// on. From one handshake on all see the new one; how soon is tested in virtual time.
func (p *endpoint) renewed(o *server, renew func()) {
	p.Helper()
	serial := func() int64 {
		c, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			p.Fatalf("dial the endpoint in TLS: %v", err)
		}
		defer func() { _ = c.Close() }()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	cmd := exec.Command("curl", p.curlArgs("--cacert", p.ca, "--limit-rate", "4M", "-o", p.path("across"), p.url+"/"+o.bucket+"/d/large")...)
	cmd.Env = p.environ(o)
	across := p.start(cmd)
	p.eventually("a download under way", func() bool {
		s, err := os.Stat(p.path("across"))
		return err == nil && s.Size() > 0
	})
	p.pause(across.Process)
	before := serial()
	renew()
	began := time.Now()
	handshakes := 0
	p.eventually("the certificate that was renewed", func() bool { handshakes++; return serial() == before+1 })
	p.shows("renewed after %d handshakes, in %v", handshakes, time.Since(began).Round(100*time.Millisecond))
	for range handshakes {
		if now := serial(); now != before+1 {
			p.Fatalf("certificate %d is served, and %d was before", now, before+1)
		}
	}
	if out := p.curl(o, "-v", "-o", os.DevNull, p.url+"/"+o.bucket+"/d/large"); !strings.Contains(out, fmt.Sprint("CN=renewed ", before+1)) {
		p.Errorf("curl sees another certificate than the renewed one: %s", out)
	}
	p.must(across.Process.Signal(syscall.SIGCONT), "let the download go on")
	if code := across.exit(gatewayTime); code != 0 {
		p.Errorf("a download across the renewal: exit %d: %s", code, across.out)
	}
	got, err := os.ReadFile(p.path("across"))
	if err != nil || len(got) != gatewayLarge || hearthtest.Check(got, "d/large", 0, 0) != nil {
		p.Errorf("a download across the renewal: %d bytes, %v", len(got), err)
	}
}
