package s3gw

import (
	"net"
	"sync"
	"time"
)

// patient is a listener whose connections have patience.
type patient struct {
	net.Listener
	patience time.Duration
}

// patientListener gives each write on a TCP connection of a listener so much time, but where the server
// has set a deadline for it: what a server writes of its own, such as the headers of an answer, its
// last bytes or that a request was bad, has none, and whoever asks and reads nothing would keep the
// connection at work for ever. TLS goes above it.
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

// bounded is a connection whose writes end.
type bounded struct {
	*net.TCPConn
	patience time.Duration

	mu  sync.Mutex // guards set, and which deadline the connection has
	set bool       // there is a deadline, and it is the server's own
}

// Write is net.Conn's.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	if !b.set {
		_ = b.TCPConn.SetWriteDeadline(time.Now().Add(b.patience)) // the write says what is wrong
	}
	b.mu.Unlock()
	return b.TCPConn.Write(p)
}

// SetWriteDeadline is net.Conn's; without one a write has the connection's patience.
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
