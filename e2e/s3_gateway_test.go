package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
)

const (
	// gatewayAccess and gatewaySecret are docs/s3.md's own.
	gatewayAccess, gatewaySecret = "reader", "not-a-secret"
	// gatewayLarge is more than a slow transfer gets through before it is cut, and gatewayShort
	// what one of a MiB a second gets through within the time that requests have at the end.
	gatewayLarge, gatewayShort = 24 << 20, 3 << 20
	// gatewayTime is how long a program may take that has something to end for.
	gatewayTime = 30 * time.Second
)

// curl signs a request by the endpoint's key, and fails where the answer is an error.
func (p *endpoint) curl(o *server, args ...string) string {
	p.Helper()
	if p.ca != "" {
		args = append([]string{"--cacert", p.ca}, args...)
	}
	return p.uses(o, "curl", p.curlArgs(args...)...)
}

func (p *endpoint) curlArgs(args ...string) []string {
	return append([]string{"-sSf", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", p.access + ":" + p.secret, "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"}, args...)
}

// s3Gateway runs `hearth gateway` and `hearth up --s3-listen` as their users do: clients work, the
// status has the endpoint, what cannot be is refused with the cure, and Ctrl-C and SIGTERM end
// either with transfers under way.
func s3Gateway(e *env, o *server) {
	large, short := hearthtest.File{Path: "d/large", Size: gatewayLarge}, hearthtest.File{Path: "d/short", Size: gatewayShort}
	for _, f := range []hearthtest.File{large, short} {
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
	}
	at := freePort(e)
	s3 := &endpoint{env: e, url: "http://" + at, access: gatewayAccess, secret: gatewaySecret}
	key := []string{"HEARTH_S3_ACCESS_KEY=" + gatewayAccess, "HEARTH_S3_SECRET_KEY=" + gatewaySecret, "AWS_ENDPOINT_URL=" + o.endpoint, "HEARTH_ADMIN_LISTEN=-"}
	begin := func(args ...string) *process {
		cmd := exec.Command(e.hearth, args...)
		cmd.Env = append(e.environ(o), key...)
		return e.start(cmd)
	}
	own := []string{"--admin-socket", e.path("gateway.sock"), "--cache-ram", "128MiB", "--cache-disks", e.path("gateway-cache") + "=2GiB", "--cache-free-floor", "1GiB"}
	p := begin(append([]string{"gateway", "--s3-listen", at, "s3://" + o.bucket}, own...)...)
	p.waitFor("answering S3 clients at " + at)
	s3.copies(o, large)
	s3.seen(e.path("gateway.sock"))
	s3.refused(o, at, key)
	s3.copies(o, large)
	s3.endsInTransfers(o, p, e.path("gateway.sock"), os.Interrupt, large, short)

	dir := e.path("mnt-up")
	e.must(os.Mkdir(dir, 0o755), "make the mount point")
	config := e.writeConfig(o, settings{cache: "up-cache", extra: "mounts: [{path: " + dir + "}]"})
	p = begin("up", "--config", config, "--s3-listen", at)
	p.waitFor("answering S3 clients at " + at)
	s3.copies(o, large)
	if there, err := os.ReadFile(filepath.Join(dir, "new/by-curl")); err != nil || len(there) != gatewayLarge {
		e.Errorf("what curl put, in the mount of hearth up: %d bytes, %v", len(there), err)
	}
	sock := strings.TrimSuffix(config, ".yaml") + ".sock"
	s3.seen(sock)
	s3.endsInTransfers(o, p, sock, syscall.SIGTERM, large, short)
	if left := mountsBelow(dir); len(left) > 0 {
		e.Errorf("hearth up left %v", left)
	}
}

// copies has curl and aws bring an object down and each the other's up.
func (p *endpoint) copies(o *server, f hearthtest.File) {
	p.Helper()
	is := func(what, name string) {
		p.Helper()
		if got, err := os.ReadFile(p.path(name)); err != nil || int64(len(got)) != f.Size || hearthtest.Check(got, f.Path, 0, 0) != nil {
			p.Errorf("%s: %d bytes of %d, %v", what, len(got), f.Size, err)
		}
		_ = os.Remove(p.path(name))
	}
	p.curl(o, "-o", p.path("by-curl"), p.url+"/"+o.bucket+"/"+f.Path)
	p.aws(o, "s3", "cp", "--only-show-errors", p.path("by-curl"), "s3://"+o.bucket+"/new/by-aws")
	is("what curl got", "by-curl")
	p.aws(o, "s3", "cp", "--only-show-errors", "s3://"+o.bucket+"/"+f.Path, p.path("by-aws"))
	p.curl(o, "-T", p.path("by-aws"), p.url+"/"+o.bucket+"/new/by-curl")
	is("what aws got", "by-aws")
	p.curl(o, "-o", p.path("of-aws"), p.url+"/"+o.bucket+"/new/by-aws")
	is("what aws put", "of-aws")
	p.aws(o, "s3", "cp", "--only-show-errors", "s3://"+o.bucket+"/new/by-curl", p.path("of-curl"))
	is("what curl put", "of-curl")
}

// seen has `hearth status` show the endpoint.
func (p *endpoint) seen(sock string) {
	p.Helper()
	out, code := p.run(p.hearth, "status", "-v", "--node", "unix://"+sock)
	for _, line := range []string{"s3  " + regexp.QuoteMeta(p.url) + `; \d+ requests?, \d+(\.\d+)?% from the cache; sent \d[0-9.]* MiB; \d+ under way`, `s3 GetObject 20[06], cached: \d+ requests?, \d`, `s3 PutObject 200, written: \d+ requests?`} {
		if !regexp.MustCompile(`(?m)^\s*` + line).MatchString(out) {
			p.Errorf("hearth status, exit %d, has no line %q:\n%s", code, line, out)
		}
	}
}

// refused starts what cannot be beside a node that has the port: each ends with one line that
// names the cure.
func (p *endpoint) refused(o *server, busy string, key []string) {
	p.Helper()
	open := p.path("open-keys")
	p.must(os.WriteFile(open, []byte("reader not-a-secret ro *\n"), 0o644), "write a file of keys")
	p.must(os.Mkdir(p.path("plain"), 0o755), "make a directory")
	for _, c := range []struct {
		name, args, says string
		code             int
		noKey            bool
	}{
		{name: "a port that is taken", args: "gateway --s3-listen " + busy, says: "address already in use (give s3.listen another address)", code: 8},
		{name: "a port that is taken, of hearth up", args: "up --s3-listen " + busy, says: "address already in use (give s3.listen another address)", code: 8},
		{name: "no address", args: "gateway --s3-listen nonsense", says: "missing port in address (give s3.listen another address)", code: 8},
		{name: "nobody's key", args: "gateway", says: "HEARTH_S3_ACCESS_KEY", code: 2, noKey: true},
		{name: "keys that all may read", args: "gateway --s3-credentials-file " + open, says: "chmod 600", code: 8, noKey: true},
		{name: "half of a certificate", args: "gateway --s3-certificate c.pem", says: "s3.certificate and s3.certificate_key belong together: give both", code: 2},
		{name: "no certificate", args: "gateway --s3-listen 127.0.0.1:0 --s3-certificate none.pem --s3-certificate-key none.key", says: "none.pem: no such file", code: 8},
		{name: "an endpoint's setting without one", args: "up --s3-anonymous data", says: "say where (s3.listen)", code: 2},
		{name: "a flag that there is not", args: "gateway --s3-port 9000", says: "--s3-port", code: 2},
		{name: "no bucket", args: "gateway --s3-listen 127.0.0.1:0 file://" + p.path("plain"), says: "give an origin s3://bucket/prefix", code: 8},
	} {
		args := append(strings.Fields(c.args), "--admin-socket", p.path("other.sock"), "--cache-ram", "128MiB", "--cache-disks", p.path("other-cache")+"=1GiB", "--cache-free-floor", "1GiB")
		if !strings.Contains(c.args, "file://") {
			args = append(args, "s3://"+o.bucket)
		}
		cmd := exec.Command(p.hearth, args...)
		cmd.Env = append(p.env.environ(o), key...)
		if c.noKey {
			cmd.Env = append(p.env.environ(o), key[2:]...)
		}
		x := p.start(cmd)
		code, text := x.exit(gatewayTime), strings.TrimSpace(x.out.String())
		last := text[strings.LastIndexByte(text, '\n')+1:]
		if code != c.code || !strings.Contains(last, c.says) || strings.Contains(text, "answering S3 clients") || strings.Contains(text, gatewaySecret) {
			p.Errorf("%s: exit %d, expected %d and %q:\n%s", c.name, code, c.code, c.says, text)
		}
	}
}

// endsInTransfers signals a node while a download stands still, an upload almost does and a short
// download is under way: it ends with 0, the short one is whole, and the others are broken off,
// which their clients know.
func (p *endpoint) endsInTransfers(o *server, x *process, sock string, sig os.Signal, large, short hearthtest.File) {
	p.Helper()
	begin := func(args ...string) *process {
		cmd := exec.Command("curl", p.curlArgs(args...)...)
		cmd.Env = p.environ(o)
		return p.start(cmd)
	}
	file := p.makeFile(p.path("up"), large, 0)
	began := func(name string) bool {
		s, err := os.Stat(p.path(name))
		return err == nil && s.Size() > 0
	}
	client, err := admin.Dial(sock)
	p.must(err, "dial the node")
	defer client.Close()
	slow := begin("--limit-rate", "4M", "-o", p.path("slow"), p.url+"/"+o.bucket+"/"+large.Path)
	up := begin("--limit-rate", "100K", "-T", file, p.url+"/"+o.bucket+"/new/cut")
	p.eventually("a download and an upload under way", func() bool {
		s, err := client.Status(p.ctx)
		return err == nil && s.S3 != nil && s.S3.UnderWay >= 2 && began("slow")
	})
	p.pause(slow.Process)
	quick := begin("--limit-rate", "1M", "-o", p.path("quick"), p.url+"/"+o.bucket+"/"+short.Path)
	p.eventually("a short download under way", func() bool { return began("quick") })
	if code := x.terminate(sig); code != 0 {
		p.Errorf("%v with transfers under way: exit %d:\n%s", sig, code, x.out)
	}
	p.must(slow.Process.Signal(syscall.SIGCONT), "let the slow download go on")
	if code := quick.exit(gatewayTime); code != 0 {
		p.Errorf("the short download, at %v: exit %d: %s", sig, code, quick.out)
	}
	if got, err := os.ReadFile(p.path("quick")); err != nil || int64(len(got)) != short.Size || hearthtest.Check(got, short.Path, 0, 0) != nil {
		p.Errorf("the short download, at %v: %d bytes of %d, %v", sig, len(got), short.Size, err)
	}
	for name, c := range map[string]*process{"download": slow, "upload": up} {
		if code := c.exit(gatewayTime); code == 0 {
			p.Errorf("the slow %s ended well at %v: %s", name, sig, c.out)
		}
	}
	if p.sc.origin == "MinIO" { // versitygw takes what it has got for all of it
		p.wants(p.direct(o), 404, s3Ask{method: "HEAD", bucket: o.bucket, path: "/new/cut"})
	}
	p.must(errors.Join(os.Remove(p.path("slow")), os.Remove(p.path("quick"))), "remove what came")
}
