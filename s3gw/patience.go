package s3gw

import (
	"net"
	"sync"
	"time"
)

// patient is a listener whose connections have a write timeout.
type patient struct {
	net.Listener
	patience time.Duration
}

// patientListener gives each write on a TCP connection a timeout, unless the server has set a
// deadline. What a server writes by itself has no deadline: the headers of an answer, its last
// bytes, or that a request was bad. A client that asks and reads nothing would keep the connection
// at work for ever. TLS goes on top of it.
func patientListener(l net.Listener, patience time.Duration) net.Listener {
	return patient{l, patience}
}

// Accept is net.Listener's.
func (p patient) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if t, ok := c.(*net.TCPConn); ok {
		return &bounded{TCPConn: t, patience: p.patience}, err
	}
	return c, err
}

// bounded is a connection whose writes have a timeout.
type bounded struct {
	*net.TCPConn
	patience time.Duration

	mu  sync.Mutex // guards set, and which deadline the connection has
	set bool       // the server itself has set a deadline
}

// Write is net.Conn's.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	if !b.set {
		_ = b.TCPConn.SetWriteDeadline(time.Now().Add(b.patience)) // the write returns the error
	}
	b.mu.Unlock()
	return b.TCPConn.Write(p)
}

// SetWriteDeadline is net.Conn's. Without a deadline a write has the connection's timeout.
func (b *bounded) SetWriteDeadline(at time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set = !at.IsZero()
	return b.TCPConn.SetWriteDeadline(at)
}

// SetDeadline is net.Conn's.
func (b *bounded) SetDeadline(at time.Time) error {
	if err := b.SetReadDeadline(at); err != nil {
		return err
	}
	return b.SetWriteDeadline(at)
}
