package s3gw

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// This file holds how much all clients together may take of a server: connections, and
// requests that are at work.
//
// Nobody is turned away for what others only keep. At the bound of connections a new one is
// taken all the same, and of those that wait for a request, be it their first one, the one that
// has waited longest is closed: a crowd that asks for nothing closes itself, and whoever asks at
// once is heard. Only while a request of each is at work do new ones wait, unanswered, for the
// first that is answered; nobody's is at work for as long as they like, for writes end (Patient).
//
// At the bound of requests one more waits for a moment, as many as there are places, and is then
// told so; answers from the cache and ways to the origin have places of their own.

// boundedConnections is a listener that keeps at most so many connections open. Its State must be the
// http.Server's ConnState: that is how it knows of them.
type boundedConnections struct {
	net.Listener
	most int
	room chan struct{} // told when a connection closes, or begins to wait for a request
	quit chan struct{}
	once sync.Once // closes quit

	mu      sync.Mutex                 // guards the rest; never held across I/O
	open    map[net.Conn]*list.Element // of waiting; nil: its request is at work
	waiting list.List                  // of net.Conn: those that wait for a request, the longest first
	wanted  bool                       // a new one waits for the next that has no request at work
	closed  int64
}

// newBoundedConnections bounds a listener, in TLS or not: most, at least 1, may be open.
func newBoundedConnections(l net.Listener, most int) *boundedConnections {
	return &boundedConnections{Listener: l, most: most, room: make(chan struct{}, 1), quit: make(chan struct{}), open: map[net.Conn]*list.Element{}}
}

// Accept gives the next connection once there is room for it.
func (c *boundedConnections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for !c.makeRoom() {
		select {
		case <-c.room:
		case <-c.quit:
			_ = conn.Close() // nobody has said anything on it
			return nil, net.ErrClosed
		}
	}
	return conn, nil
}

// makeRoom reports whether one more may be open, and closes the one that has waited longest if
// that is needed. Its client may be sending just now, as it may when a server's time for idle
// connections ends: clients ask again then.
func (c *boundedConnections) makeRoom() bool {
	c.mu.Lock()
	if c.wanted = false; len(c.open) < c.most {
		c.mu.Unlock()
		return true
	}
	front := c.waiting.Front()
	if front == nil {
		c.wanted = true
		c.mu.Unlock()
		return false
	}
	conn := c.takeLocked(front)
	c.mu.Unlock()
	end(conn)
	return true
}

// takeLocked takes one that waits out of all, to be ended.
func (c *boundedConnections) takeLocked(at *list.Element) net.Conn {
	conn := c.waiting.Remove(at).(net.Conn)
	delete(c.open, conn)
	c.closed++
	return conn
}

func end(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn() // without a last word that its client may not take
	}
	_ = conn.Close() // the server finds it so
}

// State is http.Server's ConnState. While a new connection waits, one whose request was answered is
// ended here: its next one may have come already, and would have it at work again.
func (c *boundedConnections) State(conn net.Conn, s http.ConnState) {
	if c.state(conn, s) {
		end(conn)
	}
}

// state notes a connection's, and reports whether it is to be ended.
func (c *boundedConnections) state(conn net.Conn, s http.ConnState) (over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.open[conn]
	if !known && s != http.StateNew {
		return false // it was closed to make room
	}
	if at != nil {
		c.waiting.Remove(at)
	}
	switch s {
	case http.StateNew, http.StateIdle:
		c.open[conn] = c.waiting.PushBack(conn)
	case http.StateActive:
		c.open[conn] = nil
		return false
	default:
		delete(c.open, conn)
	}
	if over = c.wanted && s == http.StateIdle; over {
		c.takeLocked(c.open[conn])
		c.wanted = false
	}
	select {
	case c.room <- struct{}{}:
	default:
	}
	return over
}

// Close ends Accept; open connections go on.
func (c *boundedConnections) Close() error {
	c.once.Do(func() { close(c.quit) })
	return c.Listener.Close()
}

// ConnectionStats are figures of Connections.
type ConnectionStats struct {
	// Open connections now, and the Most there may be.
	Open, Most int64
	// Closed were waiting for a request and made room.
	Closed int64
}

// Stats returns the present ones.
func (c *boundedConnections) Stats() ConnectionStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ConnectionStats{Open: int64(len(c.open)), Most: int64(c.most), Closed: c.closed}
}
