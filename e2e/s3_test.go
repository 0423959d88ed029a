package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// s3Scenarios are those of the S3 endpoint.
func s3Scenarios() []scenario {
	is := func(text string) func(level) string { return func(level) string { return text } }
	differential := func(l level) string {
		return fmt.Sprintf("%d generated requests, both ways", differentialSteps(l))
	}
	list := []scenario{
		{name: "s3-differential", from: core, limit: 3 * time.Minute, origin: "versitygw", size: differential, run: func(e *env) { s3Differential(e, e.exclusive(), false) }},
		{name: "s3-differential-minio", from: full, limit: 3 * time.Minute, origin: "MinIO", size: differential, run: func(e *env) { s3Differential(e, e.minio(), true) }},
		{name: "s3-attacks", from: all, limit: 3 * time.Minute, origin: "versitygw", size: is("what no honest client sends"), run: func(e *env) { s3Attacks(e, e.exclusive()) }},
		{name: "s3-attacks-minio", from: full, limit: 3 * time.Minute, origin: "MinIO", size: is("what no honest client sends"), run: func(e *env) { s3Attacks(e, e.minio()) }},
		{name: "s3-tls", from: all, limit: 3 * time.Minute, origin: "versitygw", size: is("2 certificates, 2 authorities"), run: s3TLS},
		{name: "s3-versions", from: full, limit: 3 * time.Minute, origin: "MinIO", size: is("2 versions, a marker"), run: func(e *env) { s3Versions(e, e.minio()) }},
		{name: "s3-ring", from: all, limit: 3 * time.Minute, origin: "versitygw behind the fault proxy", size: is("3 nodes, 7 writes, and 4 by each of several clients"), run: s3Ring, root: true},
	}
	list = append(overBoth(s3Uses()), list...)
	for i := range list {
		list[i].issue = "s3"
	}
	return list
}

// endpoint is a node's S3 endpoint and a key that may do all.
type endpoint struct {
	*env
	url            string
	access, secret string
	wrap           []string // a program before each client, such as another machine's
	ca             string   // the file of the authority that clients trust; "": it is not in TLS
}

// serveS3 mounts a bucket by a node that answers S3 clients as well; more are further settings
// of its endpoint, as "max_requests: 40".
func (e *env) serveS3(o *server, more ...string) (*hearth, *endpoint) {
	e.Helper()
	return e.serveS3With(o, settings{}, more...)
}

// serveS3With is serveS3 with settings of the node's.
func (e *env) serveS3With(o *server, set settings, more ...string) (*hearth, *endpoint) {
	e.Helper()
	at := freePort(e)
	keys := e.path("s3-keys")
	lines := fmt.Sprintf("# who may do what\nall all-of-it-secret rw *\nreader reads-only-new ro %s/new/\n", o.bucket)
	e.must(os.WriteFile(keys, []byte(lines), 0o600), "write the keys")
	set.extra = fmt.Sprintf("s3: {%s}\n", strings.Join(append(more, fmt.Sprintf("listen: %q, credentials_file: %q", at, keys)), ", "))
	h := e.mount(o, set)
	return h, &endpoint{env: e, url: "http://" + at, access: "all", secret: "all-of-it-secret"}
}

// environ has the endpoint's key under the usual names.
func (p *endpoint) environ(o *server) []string {
	return append(append(p.env.environ(nil), p.clientVariables(o)...), "AWS_ACCESS_KEY_ID="+p.access, "AWS_SECRET_ACCESS_KEY="+p.secret, "ORIGIN_ACCESS="+o.access, "ORIGIN_SECRET="+o.secret)
}

// uses runs a client with the endpoint's key, and fails where it does. In TLS the aws of Debian 12
// crashes now and then in libcrypto (2 runs of some 60), its copy being whole: it is run again.
func (p *endpoint) uses(o *server, name string, args ...string) string {
	p.Helper()
	line := append(append(slices.Clone(p.wrap), name), args...)
	for again := p.ca != "" && filepath.Base(name) == "aws"; ; again = false {
		cmd := exec.CommandContext(p.ctx, line[0], line[1:]...)
		cmd.Env, cmd.Dir = p.environ(o), p.dir
		out, err := hearthtest.Output(cmd)
		if ended := new(exec.ExitError); again && errors.As(err, &ended) && ended.Sys().(syscall.WaitStatus).Signal() == syscall.SIGSEGV {
			p.Logf("%s %s crashed, and is run again: %v", name, strings.Join(args, " "), err)
			continue
		}
		if err != nil {
			p.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}

// script runs one of testdata's programs with the endpoint's key.
func (p *endpoint) script(o *server, name string, args ...string) {
	p.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	p.must(err, "read the client")
	client := p.path(name) // the checkout may lie where only its owner comes to
	p.must(os.WriteFile(client, text, 0o644), "copy the client")
	p.uses(o, "/usr/bin/python3", append([]string{client, p.url}, args...)...)
}

// s3Boto has a program with boto3 do what such programs do, beside a mount.
func s3Boto(e *env, o *server) {
	h, s3 := e.serveS3(o)
	s3.script(o, "s3_client.py", o.Endpoint, o.bucket, h.dir)
	h.quit()
}

// s3Commands uses the endpoint by the command lines that people have.
func s3Commands(e *env, o *server) {
	list := e.load(o, e.few(map[level]int{all: 8, full: 80}[e.level], 25))
	h, s3 := e.serveS3(o)
	if out := s3.aws(o, "s3", "ls"); !strings.Contains(out, o.bucket) {
		e.Errorf("aws s3 ls: %s", out)
	}
	to := e.path("synced")
	s3.aws(o, "s3", "sync", "--only-show-errors", "s3://"+o.bucket, to)
	e.good("synced by aws", epoch(to, list, 1, 2, 0))
	s3.aws(o, "s3", "sync", "--only-show-errors", to, "s3://"+o.bucket+"/back")
	e.good("synced back, in the mount", epoch(filepath.Join(h.dir, "back"), list, 1, 2, 0))
	s3.aws(o, "s3", "rm", "--only-show-errors", "--recursive", "s3://"+o.bucket+"/back")
	if _, err := os.Stat(filepath.Join(h.dir, "back")); err == nil {
		e.Error("the mount has what was removed")
	}
	f := list[0]
	s3.s3cmd(o, "get", "s3://"+o.bucket+"/"+f.Path, e.path("got"))
	got, err := os.ReadFile(e.path("got"))
	e.must(err, "read what s3cmd got")
	if err := hearthtest.Check(got, f.Path, 0, 0); err != nil {
		e.Errorf("s3cmd get: %v", err)
	}
	s3.s3cmd(o, "put", e.path("got"), "s3://"+o.bucket+"/put/by-s3cmd")
	if there, err := os.ReadFile(filepath.Join(h.dir, "put/by-s3cmd")); err != nil || string(there) != string(got) {
		e.Errorf("what s3cmd put: %d bytes of %d, %v", len(there), len(got), err)
	}
	if out := s3.s3cmd(o, "ls", "s3://"+o.bucket+"/put/"); !strings.Contains(out, "by-s3cmd") {
		e.Errorf("s3cmd ls: %s", out)
	}
	s3.s3cmd(o, "del", "s3://"+o.bucket+"/put/by-s3cmd")
	s3.aws(o, "s3", "cp", "--only-show-errors", "s3://"+o.bucket+"/"+f.Path, "s3://"+o.bucket+"/copied/by-aws")
	if there, err := os.ReadFile(filepath.Join(h.dir, "copied/by-aws")); err != nil || string(there) != string(got) {
		e.Errorf("what aws copied in the bucket: %d bytes of %d, %v", len(there), len(got), err)
	}
	if e.level == full {
		s3cmdSyncs(e, s3, h, o, list)
	}
	url := strings.TrimSpace(s3.aws(o, "s3", "presign", "s3://"+o.bucket+"/"+f.Path))
	if out := s3.uses(o, "curl", "-sSf", url); hearthtest.Check([]byte(out), f.Path, 0, 0) != nil {
		e.Errorf("curl of a presigned URL: %d bytes", len(out))
	}
	h.quit()
}

// s3cmdSyncs has s3cmd bring one of the directories here, bring it back to another place, and do
// both again when nothing has changed; then a file is copied and moved within the bucket.
func s3cmdSyncs(e *env, s3 *endpoint, h *hearth, o *server, list []hearthtest.File) {
	e.Helper()
	dir := filepath.Dir(list[0].Path) + "/"
	var in []hearthtest.File
	for _, f := range list {
		if strings.HasPrefix(f.Path, dir) {
			in = append(in, f)
		}
	}
	to := e.path("synced-by-s3cmd")
	e.must(os.MkdirAll(filepath.Join(to, dir), 0o755), "make a directory")
	for range 2 {
		s3.s3cmd(o, "sync", "s3://"+o.bucket+"/"+dir, filepath.Join(to, dir)+"/")
		e.good("synced by s3cmd", epoch(to, in, 1, 2, 0))
		s3.s3cmd(o, "sync", filepath.Join(to, dir)+"/", "s3://"+o.bucket+"/back-by-s3cmd/"+dir)
		e.good("synced back by s3cmd, in the mount", epoch(filepath.Join(h.dir, "back-by-s3cmd"), in, 1, 2, 0))
	}
	// From here on within the bucket.
	f, at := list[0], "s3://"+o.bucket+"/"
	from := f.Path
	for _, x := range []struct {
		to    string
		stays bool
		run   func(from, to string)
	}{
		{"copied/by-s3cmd", true, func(from, to string) { s3.s3cmd(o, "cp", at+from, at+to) }},
		{"moved/by-s3cmd", false, func(from, to string) { s3.s3cmd(o, "mv", at+from, at+to) }},
		{"moved/by-aws", false, func(from, to string) { s3.aws(o, "s3", "mv", "--only-show-errors", at+from, at+to) }},
	} {
		x.run(from, x.to)
		got, err := os.ReadFile(filepath.Join(h.dir, x.to))
		if err != nil || int64(len(got)) != f.Size || hearthtest.Check(got, f.Path, 0, 0) != nil {
			e.Errorf("%s: %d bytes of %d, %v", x.to, len(got), f.Size, err)
		}
		if _, err := os.Stat(filepath.Join(h.dir, from)); os.IsNotExist(err) == x.stays {
			e.Errorf("%s, of which %s was made: %v", from, x.to, err)
		}
		from = x.to
	}
}
