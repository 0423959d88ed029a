package node

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// pipeListener accepts connections from within the process, so that a command
// with a node of its own asks it as it asks any other.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for dial.
func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr is a name for logs.
func (p *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "in-process", Net: "unix"} }

func (p *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Client returns a Client of this node within its process.
func (n *Node) Client() *Client {
	p := n.doors.pipe.(*pipeListener)
	return &Client{socket: "(in process)", http: &http.Client{Transport: &http.Transport{DialContext: p.dial}}}
}
