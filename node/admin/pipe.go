package admin

import (
	"context"
	"net"
	"sync"
)

// Pipe is a net.Listener within the process. With it, a command that runs its own node asks that node as it
// asks any other.
type Pipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// newPipe returns a Pipe without connections.
func newPipe() *Pipe {
	return &Pipe{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for a Dial.
func (p *Pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (p *Pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr is a name for logs.
func (p *Pipe) Addr() net.Addr { return &net.UnixAddr{Name: "in-process", Net: "unix"} }

// Dial connects to the goroutine that accepts.
func (p *Pipe) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- within{b}:
		return a, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// within is the node's end of a connection that was dialled from its own process.
type within struct{ net.Conn }
