package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// seenBy is how soon all nodes of a ring show what was written through one of them.
const seenBy = 2 * time.Second

// s3Ring writes through one node's endpoint; the writer sees it at once, the others' mounts and
// endpoints soon. What is written is the only name of its directory, which comes and goes with it.
func s3Ring(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	keys := e.path("s3-keys")
	e.must(os.WriteFile(keys, []byte("all all-of-it-secret rw *\n"), 0o600), "write the keys")
	r.set.extra = fmt.Sprintf("s3: {listen: \":9000\", credentials_file: %q}\n", keys)
	nodes := r.up(3, 0)
	var clients []*s3Client
	for _, m := range nodes {
		c := newS3Client(e, "http://"+net.JoinHostPort(m.at.Addr().String(), "9000"), "all", "all-of-it-secret")
		c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = m.at.Do(func() (err error) {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		}
		clients = append(clients, c)
	}
	longest := time.Duration(0)
	const name, copied = "/shared/name", "/copies/name"
	for i, w := range []struct{ method, path, want string }{
		{"PUT", name, "first"}, {"PUT", name, "second, and longer"}, {"DELETE", name, ""}, {"PUT", name, "third"}, {"COPY", copied, "third"}, {"DELETE", name, ""},
		{"DELETE", copied, ""},
	} {
		writer, want := i%len(nodes), w.want
		ask := s3Ask{method: w.method, bucket: r.o.bucket, path: w.path, body: want}
		status := http.StatusOK
		switch w.method {
		case "COPY":
			ask.method, ask.body, ask.header = "PUT", "", http.Header{"X-Amz-Copy-Source": {r.o.bucket + name}}
		case "DELETE":
			status = http.StatusNoContent
		}
		e.wants(clients[writer], status, ask)
		wrote := time.Now()
		get := s3Ask{method: "GET", bucket: r.o.bucket, path: w.path}
		sees := func(j int) bool {
			got, err := clients[j].do(e.ctx, get)
			e.must(err, "ask %s", nodes[j].name)
			data, err := os.ReadFile(filepath.Join(nodes[j].dir, w.path))
			if want == "" {
				return got.status == http.StatusNotFound && os.IsNotExist(err)
			}
			return got.status == http.StatusOK && string(got.body) == want && err == nil && string(data) == want
		}
		if !sees(writer) {
			got, err := clients[writer].do(e.ctx, get)
			_, stat := os.Stat(filepath.Join(nodes[writer].dir, w.path))
			e.Errorf("write %d: %s, through which it was written, does not show it: then its endpoint says %v, %v, and its mount %v", i, nodes[writer].name, got, err, stat)
		}
		for j := range nodes {
			e.eventually(fmt.Sprintf("write %d at %s", i, nodes[j].name), func() bool { return sees(j) })
			longest = max(longest, time.Since(wrote))
		}
	}
	if longest > seenBy {
		e.Errorf("a write was seen by all after %v", longest)
	}
	e.shows("seen by all after %v", longest.Round(time.Millisecond))
	r.quit(nodes...)
}
