package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth/origin"
)

const bucket = "demo"

// server is a real S3 server in a process of its own, and the counting proxy in front of it. Hearth
// talks to the proxy.
type server struct {
	cmd            *exec.Cmd
	dir            string
	endpoint       string // of the proxy
	direct         *url.URL
	access, secret string
	proxy          *http.Server
	requests       atomic.Int64
	bytes          atomic.Int64
	sent           atomic.Int64
}

// counts is the number of requests to an origin and the bytes that it answered, the bytes that nodes got from
// each other, and those that they sent to the origin.
type counts struct{ requests, bytes, peers, sent int64 }

func (c counts) plus(b counts) counts {
	return counts{c.requests + b.requests, c.bytes + b.bytes, c.peers + b.peers, c.sent + b.sent}
}

func (c counts) minus(b counts) counts {
	return c.plus(counts{-b.requests, -b.bytes, -b.peers, -b.sent})
}

func (s *server) counts() counts {
	return counts{requests: s.requests.Load(), bytes: s.bytes.Load(), sent: s.sent.Load()}
}

// objects is where the server keeps its objects, as plain files.
func (s *server) objects() string { return filepath.Join(s.dir, bucket) }

func startServer(ctx context.Context, dir string) (*server, error) {
	program, err := lookFor("versitygw")
	if err != nil {
		return nil, errors.New("the demo's S3 server, versitygw, is not installed: run `make demo`, or scripts/setup, in a checkout of Hearth, " +
			"or `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`; or use a bucket of your own: hearth demo --origin s3://BUCKET")
	}
	s := &server{dir: filepath.Join(dir, "origin"), access: "demo", secret: random()}
	if err := os.MkdirAll(s.objects(), 0o755); err != nil {
		return nil, fmt.Errorf("make the origin's directory: %w", err)
	}
	address, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	s.direct = &url.URL{Scheme: "http", Host: address}
	s.cmd = exec.Command(program, "--port", address, "--quiet", "--keep-alive", "posix", s.dir)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.access, "ROOT_SECRET_KEY="+s.secret)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &log, &log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	if err := s.answers(ctx); err != nil {
		s.stop()
		return nil, fmt.Errorf("start %s: %w: %s", program, err, log.String())
	}
	return s, s.count()
}

// answers waits until the server takes connections.
func (s *server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.direct.Host)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer at %s: %w", s.direct.Host, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// count starts the proxy that counts requests and bytes of bodies.
func (s *server) count() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the counting proxy: %w", err)
	}
	s.endpoint = "http://" + l.Addr().String()
	forward := &httputil.ReverseProxy{
		// The Host header stays, since it is signed.
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(s.direct); r.Out.Host = r.In.Host },
		Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true},
		// It is normal that a client goes away: one node is killed.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && r.ContentLength > 0 {
				s.bytes.Add(r.ContentLength)
			}
			return nil
		},
	}
	s.proxy = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.sent.Add(max(0, r.ContentLength))
		forward.ServeHTTP(w, r)
	})}
	go func() { _ = s.proxy.Serve(l) }()
	return nil
}

// upload stores the files as objects at the server, sixteen at a time. The signature covers no
// payload hash, since the bytes pass over this machine's loopback only.
func (s *server) upload(ctx context.Context, files []file) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range files {
		group.Go(func() error { return s.put(ctx, files[i].name, files[i].content()) })
	}
	return group.Wait()
}

func (s *server) put(ctx context.Context, key string, data []byte) error {
	target := s.direct.JoinPath(bucket, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, target.String(), bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(origin.Sign(req, s.access, s.secret, "us-east-1"))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("put %s: %s", key, resp.Status)
	}
	return nil
}

func (s *server) stop() {
	if s.proxy != nil {
		_ = s.proxy.Close()
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func random() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return hex.EncodeToString(b[:])
}
