package admit

import "net"

// Listener is a listener whose connections have places in a Table. It is for servers that accept by
// themselves, such as http.Server: its ConnState calls Done for active connections and Again for
// idle ones. Under TLS the connection is what NetConn of the tls.Conn returns.
type Listener struct {
	net.Listener
	// Table is where they have their places. It must be given.
	Table *Table
}

// Conn is a connection that a Listener accepted. It holds a place until Done or Close.
type Conn struct {
	net.Conn
	place *Place
}

// Accept returns a *Conn.
func (l Listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: conn, place: l.Table.Begin(conn)}, nil
}

// Done gives the place back while the connection stays open, since it is known or busy.
func (c *Conn) Done() { c.place.Done() }

// Again takes a place again, since the connection is idle. Another connection may be cut for it.
func (c *Conn) Again() { c.place.Again() }

// Close gives the place back, too.
func (c *Conn) Close() error {
	c.place.end()
	return c.Conn.Close()
}
