// Package faultproxy stands between a client and an S3 server, counts what
// passes, delays it, and fails on purpose.
//
// It is a relay of HTTP/1.1 messages, not an HTTP client and server: each
// client connection has one connection to the server; heads are read, looked
// at and passed on byte for byte, so that signatures stay valid, and bodies are
// copied by the kernel where it can. That costs two system calls for a head and
// little for a body, because the proxy stands in benchmarks.
//
// A request meets the first Rule that matches it and has not been used up. A
// rule either answers in the server's place (a status, a refused connection),
// or lets the server answer and spoils that answer (a head that lies, a body
// that is cut off, reset, stalled or flipped). What no rule meets is delayed by
// the first-byte delay, and that is all.
//
// An Exclusive proxy makes the answers whole of a server whose requests for one key
// race: versitygw looks an object's ETag up by its path and opens the file by its path
// afterwards, and a PUT in between has it send the old ETag with the new bytes, If-Match
// or not. No client can tell, so no test may hold that against one.
//
// Control (control.go) is a second HTTP endpoint, in JSON, for proxies that run
// as processes of their own (cmd/faultproxy).
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

// Options say where a proxy stands.
type Options struct {
	// Listen is the address to serve, "127.0.0.1:0" for a free port.
	Listen string
	// Target is the server's host:port.
	Target string
	// FirstByte delays the first byte of each answer.
	FirstByte time.Duration
	// Exclusive has a change of a key (PUT, DELETE, an upload's completion) and every
	// other request for it exclude each other: a change from its head to the end of its
	// answer, a GET or HEAD until its answer's head, by when a server has the object
	// open. The source of a copy and the keys of a multi-object delete are not known.
	Exclusive bool
}

// Proxy is a running relay.
type Proxy struct {
	target  string
	address string
	delay   atomic.Int64 // nanoseconds
	counts  counters
	keys    *keyLocks     // nil: not Exclusive
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

// Down closes the port and every connection: the origin is gone, and connecting
// is refused. Up brings it back at the same address.
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
			time.Sleep(10 * time.Millisecond) // out of descriptors: the next may go
			continue
		}
		p.wait.Go(func() { p.serve(c.(*net.TCPConn)) })
	}
}

// keep notes a connection for Down; false: the proxy is down already.
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
