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
	// headersWithin is how long a client may take to send a request's headers, and idleFor
	// how long a connection is kept that asks nothing.
	headersWithin, idleFor = 15 * time.Second, 2 * time.Minute
	// mostHeaders bytes of headers are read, the request's line with them: twice what Amazon
	// takes. net/http lets 4 KiB more pass, and 8 on a connection that has answered before.
	mostHeaders = 16 << 10
	// answerWithin is how long a client may take nothing of what has no time of its own: headers
	// and other short answers, refusals and errors. To who reads before it asks again they are
	// sent at once.
	answerWithin = 5 * time.Second
	// refusedGrace is how long a client whose headers were too long may go on with its body: one
	// that is cut off while it sends may lose the answer.
	refusedGrace = 500 * time.Millisecond
	// endWithin is how long requests under way may go on when the endpoint ends.
	endWithin = 5 * time.Second
	// DefaultConnections are open at once: they take some 200 MiB if all of them ask for nothing.
	DefaultConnections = 10_000
	// fileShare of the limit on open files is for connections: a quarter. The cache's files, names
	// and the ways to origins and peers have the rest.
	fileShare = 4
	// certificateEvery is how often it is looked whether the certificate's files changed.
	certificateEvery = 10 * time.Second
)

// Server answers at an address.
type Server struct {
	http     http.Server
	listener *boundedConnections
	keep     *certificate // nil: no TLS
	done     chan struct{}
	err      error // of Serve; valid once done is closed
}

// ServerOptions say where a Server answers.
type ServerOptions struct {
	// Listen is HOST:PORT or :PORT.
	Listen string
	// Certificate and Key are PEM files, read again when they change; "": no TLS.
	Certificate, Key string
	// Handler answers.
	Handler http.Handler
	// MostConnections are open at once, or fewer if the limit on open files says so; 0:
	// DefaultConnections.
	MostConnections int
	// AnswerWithin is how long a client may take nothing of a short answer; 0: some seconds.
	AnswerWithin time.Duration
	// Trouble hears of a certificate that cannot be read again; the one before goes on.
	Trouble func(err error)
	// Said hears in words what net/http says when an answer ended in a panic, or no connection
	// is taken, and of fewer connections than were asked for; nil: nobody does. Strangers'
	// handshakes that fail are not told of.
	Said func(line string)
}

// Listen begins to answer. Close it.
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

// serve begins to answer what comes to a listener, in TLS where there is a certificate.
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
		ErrorLog: log.New(lines(o.Said), "", 0)} // without one it writes into whatever log the process has
	go func() { // ends with Close
		defer close(s.done)
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
		}
	}()
	return s
}

// brief answers what has no more than mostHeaders.
type brief struct{ http.Handler }

// ServeHTTP is http.Handler's. It counts what net/http has read, each header as clients write
// it, and refuses as net/http does.
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
	if r.ContentLength != 0 { // net/http reads some of a body, and that may never come
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedGrace))
	}
	http.Error(w, "431 "+http.StatusText(http.StatusRequestHeaderFieldsTooLarge), http.StatusRequestHeaderFieldsTooLarge)
}

// connections is how many may be open; the error says that these are fewer than were asked for.
func connections(asked int) (int, error) {
	most := cmp.Or(asked, DefaultConnections)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return most, nil // and accept says when there are no more
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

// lines hears what a log is told.
type lines func(line string)

// Write is io.Writer's.
func (f lines) Write(p []byte) (int, error) {
	if f != nil && !bytes.HasPrefix(p, []byte("http: TLS handshake error")) {
		f(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}

// Addr is where it answers.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Connections are figures of those that clients have.
func (s *Server) Connections() ConnectionStats { return s.listener.Stats() }

// Done is closed when it answers no more; Err says why then.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is why it ended; nil: Close.
func (s *Server) Err() error { return s.err }

// Reload reads the certificate again, changed or not. What is wrong keeps the one before.
func (s *Server) Reload() error {
	if s.keep == nil {
		return nil
	}
	return s.keep.read()
}

// Close lets requests under way end for some seconds, and cuts off those that do not.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	<-s.done
}

// certificate is what the files have.
type certificate struct {
	files   [2]string
	trouble func(error)

	mu     sync.Mutex // guards the rest
	now    *tls.Certificate
	looked time.Time
	stamps [2]time.Time // of the files, as they were read
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
