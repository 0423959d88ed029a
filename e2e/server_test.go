package e2e

import (
	"encoding/json"
	"os"
	"os/exec"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// server is a real S3 server with one bucket.
type server struct {
	*hearthtest.Server
	endpoint, access, secret, bucket string
	log                              bool // it notes what it was asked for, in requestLog
}

// origin starts versitygw over a directory of the scenario.
func (e *env) origin() *server {
	e.Helper()
	return e.originWith(hearthtest.ServerOptions{})
}

func (e *env) originWith(set hearthtest.ServerOptions) *server {
	e.Helper()
	set.Dir = e.path("origin")
	e.must(os.MkdirAll(set.Dir, 0o755), "make the origin's directory")
	s := hearthtest.Start(e.T, set)
	return &server{Server: s, endpoint: s.Endpoint, access: s.AccessKey, secret: s.SecretKey, bucket: s.Bucket(e.T, "data")}
}

// exclusive starts an origin whose answers are whole, for who writes while others
// read: versitygw may answer with the ETag of before a PUT and the bytes of after it
// (package faultproxy has why), and what nobody can tell is not held against Hearth.
// Both go through a proxy that lets the requests of a key wait for each other. It is a
// process of its own: a page fault holds a processor of the process that maps, and this
// proxy brings the page.
func (e *env) exclusive() *server {
	e.Helper()
	o := e.origin()
	cmd := exec.Command(e.program("faultproxy"), "-exclusive", "-target", o.endpoint)
	_, err := cmd.StdinPipe() // which the program would end with
	e.must(err, "make a pipe")
	p := e.start(cmd)
	p.waitFor("\n")
	var said struct{ URL string }
	e.must(json.Unmarshal([]byte(p.out.String()), &said), "read the proxy's address")
	o.endpoint, o.Endpoint = said.URL, said.URL
	return o
}

// aws runs the aws CLI against the server.
func (e *env) aws(o *server, args ...string) string {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, "/usr/bin/aws", append([]string{"--endpoint-url", o.endpoint}, args...)...)
	cmd.Env = append(e.environ(o), "AWS_DEFAULT_REGION=us-east-1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.Fatalf("aws %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// proxied is the way to a server that counts and can fail.
type proxied struct {
	*faultproxy.Proxy
	endpoint string
}

// proxy puts a fault proxy before the server.
func (e *env) proxy(o *server) *proxied {
	e.Helper()
	p, err := faultproxy.Start(faultproxy.Options{Target: o.endpoint})
	e.must(err, "start the fault proxy")
	e.Cleanup(p.Close)
	return &proxied{Proxy: p, endpoint: p.URL()}
}

// gets is how often objects were asked for.
func (p *proxied) gets() int64 { return p.Stats().Get.Requests }

// requests counts all verbs.
func (p *proxied) requests() int64 { return p.Stats().Requests() }

// bytes is what objects' bodies came to.
func (p *proxied) bytes() int64 { return p.Stats().Get.Bytes }
