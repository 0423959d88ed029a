package admin

import (
	"net"
	"sync"

	"github.com/hearthfs/hearth/internal/admit"
)

// shares is a listener at a Unix socket that knows who connects. A user who is no owner has at most mostOfOne
// connections. One more closes that user's oldest connection, and nobody else's.
type shares struct {
	net.Listener
	who func(net.Conn) Asker

	mu sync.Mutex // guards of
	of map[uint32]*admit.Table
}

func newShares(l net.Listener) *shares {
	return &shares{Listener: l, of: map[uint32]*admit.Table{},
		who: func(c net.Conn) Asker { return of(credentials(c)) }}
}

// Accept returns a *placed.
func (s *shares) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &placed{Conn: conn, asker: s.who(conn)}
	if c.asker.Rank < Owner {
		c.place = s.table(c.asker.UID).Begin(conn)
	} else if u, ok := conn.(*net.UnixConn); ok {
		r := &receiving{UnixConn: u}
		c.Conn, c.handed = r, &r.handed
	}
	return c, nil
}

func (s *shares) table(uid uint32) *admit.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[uid] == nil { // there is one table per user who may connect
		s.of[uid] = admit.New(mostOfOne, nil)
	}
	return s.of[uid]
}

// placed is a connection whose user is known.
type placed struct {
	net.Conn
	asker  Asker
	place  *admit.Place // nil for an owner
	handed *handed      // nil for all but owners
}

// Close also gives the connection's place back.
func (c *placed) Close() error {
	if c.place != nil {
		c.place.Done()
	}
	return c.Conn.Close()
}
