package admin

import (
	"net"
	"sync"

	"github.com/hearthfs/hearth/internal/admit"
)

// shares is a listener at a Unix socket that knows who connects. A user who is no owner
// of the node has so many connections; one more ends that user's oldest, and nobody else's.
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

// Accept gives a *placed.
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
	if s.of[uid] == nil { // there are as many as users who may connect
		s.of[uid] = admit.New(mostOfOne, nil)
	}
	return s.of[uid]
}

// placed is a connection of somebody who is known.
type placed struct {
	net.Conn
	asker  Asker
	place  *admit.Place // nil: an owner's
	handed *handed      // nil: of no owner
}

// Close gives the place back, too.
func (c *placed) Close() error {
	if c.place != nil {
		c.place.Done()
	}
	return c.Conn.Close()
}
