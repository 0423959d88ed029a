// Package faultproxy is a proxy between a client and an S3 server that counts and delays what
// passes, and fails on purpose.
//
// It is a relay of HTTP/1.1 messages, not an HTTP client and server. Each client connection has one
// connection to the server. Heads are read, looked at and passed on byte for byte, so that
// signatures stay valid. Bodies are copied by the kernel where it can. That costs two system calls
// for a head and little for a body, because the proxy stands in benchmarks.
//
// A request meets the first Rule that matches it and is not used up. A rule answers in the server's
// place (a status, a refused connection), or it lets the server answer and spoils the answer. It
// can change the head, or cut off, reset, stall or flip the body. A request that meets no rule is
// only delayed by the first-byte delay.
//
// An Exclusive proxy serializes requests for one key, for servers on which they race. versitygw
// looks an object's ETag up by its path and opens the file by its path afterwards. After a PUT in
// between it sends the old ETag with the new bytes, with If-Match or without. No client can notice,
// so no test may blame a client for it.
//
// Control (control.go) is a second HTTP endpoint, in JSON, for proxies that run as processes of
// their own (cmd/faultproxy).
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options say where a proxy listens, and for which server.
type Options struct {
	// Listen is the address to serve, "127.0.0.1:0" for a free port.
	Listen string
	// Target is the server's host:port.
	Target string
	// FirstByte delays the first byte of each answer.
	FirstByte time.Duration
	// Exclusive lets a change of a key (PUT, DELETE, an upload's completion) and any other request
	// for the key exclude each other. A change holds the lock from its head to the end of its
	// answer. A GET or HEAD holds it until the head of its answer; by then the server has the object
	// open. The source of a copy and the keys of a multi-object delete are not known.
	Exclusive bool
}

// Proxy is a running relay.
type Proxy struct {
	target  string
	address string
	delay   atomic.Int64 // nanoseconds
	counts  counters
	keys    *keyLocks     // nil unless Exclusive
	armed   atomic.Bool   // rules is not empty
	ended   chan struct{} // closed by Close: delays end

	mu       sync.Mutex // guards what follows
	rules    []*Rule
	listener net.Listener
	conns    map[net.Conn]struct{}
	callers  map[netip.Addr]*caller
	closed   bool
	hole     bool // packets to us are dropped
	wait     sync.WaitGroup
}

// Start listens and relays until Close.
func Start(o Options) (*Proxy, error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	o.Target = strings.TrimPrefix(o.Target, "http://")
	p := &Proxy{target: o.Target, address: o.Listen, conns: map[net.Conn]struct{}{}, callers: map[netip.Addr]*caller{}, ended: make(chan struct{})}
	if o.Exclusive {
		p.keys = &keyLocks{held: map[string]*keyLock{}}
	}
	p.SetFirstByte(o.FirstByte)
	if err := p.Up(); err != nil {
		return nil, err
	}
	return p, nil
}

// URL is the endpoint that clients use in place of the server's.
func (p *Proxy) URL() string { return "http://" + p.address }

// SetFirstByte changes the delay of first bytes.
func (p *Proxy) SetFirstByte(d time.Duration) { p.delay.Store(int64(d)) }

// Down closes the port and every connection, as if the origin were gone: connecting is refused. Up
// brings it back at the same address.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	_ = p.listener.Close()
	p.listener = nil
	for c := range p.conns {
		c.Close()
	}
}

// Up listens again after Down.
func (p *Proxy) Up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	var listen net.ListenConfig
	listen.SetMultipathTCP(false) // its sockets take no filter: see BlackHole
	l, err := listen.Listen(context.Background(), "tcp", p.address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", p.address, err)
	}
	p.listener, p.address = l, l.Addr().String()
	if p.hole {
		if err := filter(l.(*net.TCPListener), true); err != nil {
			return err
		}
	}
	p.wait.Go(func() { p.accept(l) })
	return nil
}

// Close ends every connection and waits for what served them.
func (p *Proxy) Close() {
	p.Down()
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.ended)
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: the next try may succeed
			continue
		}
		p.wait.Go(func() { p.serve(c.(*net.TCPConn)) })
	}
}

// keep notes a connection for Down. false means that the proxy is down already.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return false
	}
	p.conns[c] = struct{}{}
	// A connection inherits the listener's filter, which may have changed since.
	return filter(c.(*net.TCPConn), p.hole) == nil
}

func (p *Proxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}
