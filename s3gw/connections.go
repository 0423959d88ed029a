package s3gw

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// A server has two bounds for all clients together: on connections, and on requests at work.
//
// An idle client never keeps a new one out. At the bound of connections a new one is accepted all
// the same. Of those that wait for a request, even their first one, the one that has waited longest
// is closed. So a crowd that asks nothing closes itself, and a client that asks at once is heard.
// New connections wait only while every open one has a request at work. They wait for the first
// that is answered. No request is at work for ever, since writes have deadlines (Patient).
//
// At the bound of requests a further one waits for a moment, and at most as many wait as there are
// places. Then it is shed. Answers from the cache and ways to the origin have separate places.

// boundedConnections is a listener that keeps at most so many connections open. Its State must be
// the http.Server's ConnState: by it the listener learns of the connections.
type boundedConnections struct {
	net.Listener
	most int
	room chan struct{} // signaled when a connection closes, or begins to wait for a request
	quit chan struct{}
	once sync.Once // closes quit

	mu      sync.Mutex                 // guards the rest; never held across I/O
	open    map[net.Conn]*list.Element // value: its element of waiting; nil means that its request is at work
	waiting list.List                  // of net.Conn that wait for a request, longest first
	wanted  bool                       // a new one waits for the next that has no request at work
	closed  int64
}

// newBoundedConnections bounds a listener, with TLS or without. most must be at least 1.
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

// makeRoom reports whether one more connection may be open. If needed it closes the one that has
// waited longest. Its client may be sending just now, as when a server's idle timeout ends; clients
// retry then.
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

// takeLocked removes a waiting connection from all lists. The caller ends it.
func (c *boundedConnections) takeLocked(at *list.Element) net.Conn {
	conn := c.waiting.Remove(at).(net.Conn)
	delete(c.open, conn)
	c.closed++
	return conn
}

func end(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn() // skip TLS's close notice, which the client may not take
	}
	_ = conn.Close() // the server sees the closed connection
}

// State is http.Server's ConnState. While a new connection waits, it ends one whose request was
// just answered: the next request of that one may have arrived already, and would put it to work
// again.
func (c *boundedConnections) State(conn net.Conn, s http.ConnState) {
	if c.state(conn, s) {
		end(conn)
	}
}

// state records a connection's state, and reports whether the connection is to be ended.
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
