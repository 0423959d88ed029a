package s3gw

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/s3gw/object"
)

const (
	// headersWithin bounds the time in which a client sends a request's headers. idleFor is how
	// long an idle connection is kept.
	headersWithin, idleFor = 15 * time.Second, 2 * time.Minute
	// mostHeaders bounds the bytes of headers, including the request's line: twice what Amazon
	// takes. net/http lets 4 KiB more pass, and 8 KiB on a connection that has answered before.
	mostHeaders = 16 << 10
	// answerWithin bounds how long a client may take nothing of an answer without a deadline of its
	// own: headers and other short answers, refusals and errors. To a client that reads before it
	// asks again they are sent at once.
	answerWithin = 5 * time.Second
	// refusedGrace is how long a client with too long headers may go on sending its body: if it is
	// cut off meanwhile, it may lose the answer.
	refusedGrace = 500 * time.Millisecond
	// endWithin is how long requests under way may take when the endpoint ends.
	endWithin = 5 * time.Second
	// DefaultConnections may be open at once: some 200 MiB if all are idle.
	DefaultConnections = 10_000
	// fileShare is the part of the open files limit for connections: a quarter. The rest is for the
	// cache's files, the names, and connections to origins and peers.
	fileShare = 4
	// certificateEvery is how often we check whether the certificate's files changed.
	certificateEvery = 10 * time.Second
)

// Server answers at an address.
type Server struct {
	http     http.Server
	listener *boundedConnections
	keep     *certificate // nil means no TLS
	done     chan struct{}
	err      error // from Serve; valid once done is closed
}

// ServerOptions configure a Server.
type ServerOptions struct {
	// Listen is HOST:PORT or :PORT.
	Listen string
	// Certificate and Key are PEM files, read again when they change; "" means no TLS.
	Certificate, Key string
	// Handler answers.
	Handler http.Handler
	// MostConnections may be open at once, or fewer by the open files limit; 0 means
	// DefaultConnections.
	MostConnections int
	// AnswerWithin bounds how long a client may take nothing of a short answer; 0 means some
	// seconds.
	AnswerWithin time.Duration
	// Trouble gets a certificate that cannot be read again; the one before stays in force.
	Trouble func(err error)
	// Said gets net/http's log lines: an answer that ended in a panic, or a failed accept. It also
	// hears of fewer connections than were asked for. It may be nil. Failed handshakes of strangers
	// are left out.
	Said func(line string)
}

// Listen starts a Server; the caller must Close it.
func Listen(ctx context.Context, o ServerOptions) (*Server, error) {
	var keep *certificate
	if o.Certificate != "" || o.Key != "" {
		keep = &certificate{files: [2]string{o.Certificate, o.Key}, trouble: o.Trouble}
		if err := keep.read(); err != nil {
			return nil, err
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for S3 clients: %w (give s3.listen another address)", err)
	}
	return o.serve(l, keep), nil
}

// serve starts to answer on a listener, with TLS where there is a certificate.
func (o *ServerOptions) serve(l net.Listener, keep *certificate) *Server {
	s := &Server{keep: keep, done: make(chan struct{})}
	l = patientListener(l, cmp.Or(o.AnswerWithin, answerWithin))
	if keep != nil {
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: keep.get})
	}
	most, err := connections(o.MostConnections)
	if err != nil && o.Said != nil {
		o.Said(err.Error())
	}
	s.listener = newBoundedConnections(l, most)
	s.http = http.Server{ConnState: s.listener.State, Handler: brief{o.Handler}, ReadHeaderTimeout: headersWithin, IdleTimeout: idleFor, MaxHeaderBytes: mostHeaders, DisableGeneralOptionsHandler: true, ConnContext: object.OnConnection,
		ErrorLog: log.New(lines(o.Said), "", 0)} // without it net/http uses the process's log
	go func() { // ends with Close
		defer close(s.done)
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
		}
	}()
	return s
}

// brief is a Handler that refuses more than mostHeaders.
type brief struct{ http.Handler }

// ServeHTTP is http.Handler's. It counts what net/http has read, each header as clients write it,
// and refuses as net/http does.
func (b brief) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := len(r.Method) + len(r.RequestURI) + len(r.Proto) + len("  \r\n") + len("\r\n")
	line := func(name, value string) { n += len(name) + len(value) + len(": \r\n") }
	if r.Host != "" {
		line("Host", r.Host)
	}
	for _, coding := range r.TransferEncoding {
		line("Transfer-Encoding", coding)
	}
	for name := range r.Trailer {
		line("Trailer", name)
	}
	for name, values := range r.Header {
		for _, v := range values {
			line(name, v)
		}
	}
	if n <= mostHeaders {
		b.Handler.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Connection", "close")
	if r.ContentLength != 0 { // net/http reads some of a body, which may never come
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedGrace))
	}
	http.Error(w, "431 "+http.StatusText(http.StatusRequestHeaderFieldsTooLarge), http.StatusRequestHeaderFieldsTooLarge)
}

// connections returns how many may be open. An error says that these are fewer than were asked for.
func connections(asked int) (int, error) {
	most := cmp.Or(asked, DefaultConnections)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return most, nil // accept itself will say when there are no more
	}
	room := int(min(limit.Cur/fileShare, 1<<30))
	switch {
	case most <= room:
		return most, nil
	case asked == 0:
		return max(1, room), nil
	}
	return max(1, room), fmt.Errorf("s3.max_connections: %d of %d, a quarter of the limit on open files: raise it (LimitNOFILE=, ulimit -n)", max(1, room), most)
}

// lines is an io.Writer for log lines.
type lines func(line string)

// Write is io.Writer's.
func (f lines) Write(p []byte) (int, error) {
	if f != nil && !bytes.HasPrefix(p, []byte("http: TLS handshake error")) {
		f(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}

// Addr returns the address at which it answers.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Connections returns figures of the clients' connections.
func (s *Server) Connections() ConnectionStats { return s.listener.Stats() }

// Done is closed when the Server has stopped; then Err says why.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why it stopped; nil after Close.
func (s *Server) Err() error { return s.err }

// Reload reads the certificate again, changed or not. A bad one leaves the old one in force.
func (s *Server) Reload() error {
	if s.keep == nil {
		return nil
	}
	return s.keep.read()
}

// Close lets requests under way end for some seconds, and cuts off the rest.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	<-s.done
}

// certificate is the content of the files.
type certificate struct {
	files   [2]string
	trouble func(error)

	mu     sync.Mutex // guards the rest
	now    *tls.Certificate
	looked time.Time
	stamps [2]time.Time // of the files when they were read
}

// get is tls.Config's.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) >= certificateEvery {
		if err := c.readLocked(); err != nil && c.trouble != nil {
			c.trouble(err)
		}
	}
	return c.now, nil
}

// read reads the files, changed or not.
func (c *certificate) read() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stamps = [2]time.Time{}
	return c.readLocked()
}

// readLocked reads the files if they changed.
func (c *certificate) readLocked() error {
	c.looked = time.Now()
	var stamps [2]time.Time
	for i, name := range c.files {
		if name == "" {
			return errors.New("the endpoint's certificate and its key belong together: give s3.certificate and s3.certificate_key")
		}
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("the endpoint's certificate: %w", err)
		}
		stamps[i] = info.ModTime()
	}
	if c.now != nil && stamps == c.stamps {
		return nil
	}
	read, err := tls.LoadX509KeyPair(c.files[0], c.files[1])
	if err != nil {
		return fmt.Errorf("the endpoint's certificate, %s and %s: %w", c.files[0], c.files[1], err)
	}
	c.now, c.stamps = &read, stamps
	return nil
}
