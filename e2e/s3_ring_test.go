package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// seenBy is the watchdog of all nodes of a ring showing what was written through one of them:
// twenty times what docs/s3.md has. Names that nobody tells of are asked for again after a minute.
const seenBy = 40 * time.Second

// s3Nodes are the endpoints of a ring's nodes.
type s3Nodes struct {
	*ring
	nodes   []*member
	clients []*s3Client
	longest time.Duration // until all saw a write
}

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
	s := &s3Nodes{ring: r, nodes: r.up(3, 0)}
	for i, m := range s.nodes {
		c := newS3Client(e, s.url(i), "all", "all-of-it-secret")
		c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = m.at.Do(func() (err error) {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		}
		s.clients = append(s.clients, c)
	}
	const name, copied = "/shared/name", "/copies/name"
	for i, w := range []struct{ method, path, want string }{
		{"PUT", name, "first"}, {"PUT", name, "second, and longer"}, {"DELETE", name, ""}, {"PUT", name, "third"}, {"COPY", copied, "third"}, {"DELETE", name, ""},
		{"DELETE", copied, ""},
	} {
		ask := s3Ask{method: w.method, bucket: r.o.bucket, path: w.path, body: w.want}
		status := http.StatusOK
		switch w.method {
		case "COPY":
			ask.method, ask.body, ask.header = "PUT", "", http.Header{"X-Amz-Copy-Source": {r.o.bucket + name}}
		case "DELETE":
			status = http.StatusNoContent
		}
		writer := i % len(s.nodes)
		e.wants(s.clients[writer], status, ask)
		s.seen(fmt.Sprintf("write %d", i), writer, w.path, w.want)
	}
	s.byClients()
	if s.longest > seenBy {
		e.Errorf("a write was seen by all after %v", s.longest)
	}
	e.shows("seen by all after %v", s.longest.Round(time.Millisecond))
	r.quit(s.nodes...)
}

// byClients has clients that people use write, replace and remove, each time at another node's
// endpoint, and download at the next one what all have seen.
func (s *s3Nodes) byClients() {
	s.Helper()
	at := make([]*endpoint, len(s.nodes))
	for i, m := range s.nodes {
		at[i] = &endpoint{env: s.env, url: s.url(i), access: "all", secret: "all-of-it-secret", wrap: m.at.Wrap()}
	}
	which := at[0].allPutters(s.o)
	if s.level < full {
		which = which[:2] // make setup-full brings the others
	}
	for n, c := range which {
		key := "by-" + c.name + "/the only name"
		// The second is sent in parts.
		for i, want := range []string{"first by " + c.name, strings.Repeat("second by "+c.name+"\n", 1<<20), "third by " + c.name, ""} {
			writer := (n + i) % len(s.nodes)
			use, next := at[writer].allPutters(s.o)[n], at[(writer+1)%len(s.nodes)].getters(s.o)[c.name]
			from, to := s.path("from-"+c.name), s.path("to-"+c.name)
			if want == "" {
				use.remove(key)
			} else {
				s.must(os.WriteFile(from, []byte(want), 0o600), "write what %s sends", c.name)
				use.put(from, key)
			}
			s.seen(fmt.Sprintf("write %d by %s", i, c.name), writer, "/"+key, want)
			if want == "" {
				continue
			}
			next(key, to)
			if got, err := os.ReadFile(to); err != nil || string(got) != want {
				s.Errorf("write %d by %s, downloaded at the next node: %d bytes of %d, %v", i, c.name, len(got), len(want), err)
			}
			_ = os.Remove(to) // s3cmd replaces no file; it may never have been made
		}
	}
}

// url is the endpoint of a node.
func (s *s3Nodes) url(i int) string {
	return "http://" + net.JoinHostPort(s.nodes[i].at.Addr().String(), "9000")
}

// seen waits until all nodes show what was written through one, which must do so at once; "":
// it was removed.
func (s *s3Nodes) seen(what string, writer int, name, want string) {
	s.Helper()
	wrote := time.Now()
	if lacks := s.lacks(writer, name, want); lacks != "" {
		s.Errorf("%s: %s, through which it was written, does not show it: %s", what, s.nodes[writer].name, lacks)
	}
	for i, m := range s.nodes {
		s.eventually(what+" at "+m.name, func() bool { return s.lacks(i, name, want) == "" })
		s.longest = max(s.longest, time.Since(wrote))
	}
	if len(want) > brief {
		for i, m := range s.nodes {
			s.whole(what+" at "+m.name, i, name, want)
		}
	}
}

// brief is what is read each time that somebody looks whether it is there; of what is longer the
// size is enough, and that it is there is a promise of all of it.
const brief = 4 << 10

// lacks is where a node does not show what was written: "": everywhere it does.
func (s *s3Nodes) lacks(node int, name, want string) string {
	s.Helper()
	ask := s3Ask{method: "GET", bucket: s.o.bucket, path: keyPath(name[1:])}
	list := s3Ask{method: "GET", bucket: s.o.bucket, query: "list-type=2&delimiter=%2F&prefix=" + url.QueryEscape(path.Dir(name)[1:]+"/")}
	if len(want) > brief {
		ask.method = "HEAD"
	}
	got, err := s.clients[node].do(s.ctx, ask)
	s.must(err, "ask %s", s.nodes[node].name)
	names, err := s.clients[node].do(s.ctx, list)
	s.must(err, "ask %s for names", s.nodes[node].name)
	listed, size := pageOf(names).Contents, fmt.Sprint(len(want))
	file := filepath.Join(s.nodes[node].dir, name)
	stat, err := os.Stat(file)
	switch {
	case want == "" && got.status != http.StatusNotFound:
		return fmt.Sprintf("its endpoint answers %d", got.status)
	case want == "" && len(listed) > 0:
		return fmt.Sprintf("its endpoint lists %v", listed)
	case want == "" && !os.IsNotExist(err):
		return fmt.Sprintf("its mount says %v", err)
	case want == "":
		return ""
	case got.status != http.StatusOK || got.header.Get("Content-Length") != size || ask.method == "GET" && string(got.body) != want:
		return fmt.Sprintf("its endpoint answers %d, %s bytes, %.100q", got.status, got.header.Get("Content-Length"), got.body)
	case len(listed) != 1 || listed[0].Key != name[1:] || listed[0].Size != size:
		return fmt.Sprintf("its endpoint lists %v", listed)
	case err != nil || stat.Size() != int64(len(want)):
		return fmt.Sprintf("its mount says %v, %v", stat, err)
	}
	if len(want) <= brief {
		if data, err := os.ReadFile(file); err != nil || string(data) != want {
			return fmt.Sprintf("its mount reads %q, %v", data, err)
		}
	}
	return ""
}

// whole compares all bytes.
func (s *s3Nodes) whole(what string, node int, name, want string) {
	s.Helper()
	got := s.wants(s.clients[node], http.StatusOK, s3Ask{method: "GET", bucket: s.o.bucket, path: keyPath(name[1:])})
	data, err := os.ReadFile(filepath.Join(s.nodes[node].dir, name))
	if err != nil || !bytes.Equal(got.body, data) || string(data) != want {
		s.Errorf("%s: of %d bytes its endpoint gives %d and its mount %d, not all of them right: %v", what, len(want), len(got.body), len(data), err)
	}
}
