package peer

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/secret"
)

// from connects to a node's reads from an address of loopback.
func from(t *testing.T, n *node, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := d.DialContext(t.Context(), "tcp", n.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestWhoSaysNothingKeepsNobodyOut(t *testing.T) {
	// As many connections as there is room for come from one address and say nothing, and then more of them: a node of the ring at another
	// address is greeted long before the first of these has had its ten seconds.
	cluster := clusterOf(t, theKey, "test")
	a := start(t, &bucket{}, cluster, 1)
	for range 2 * mostGreetings {
		from(t, a, "127.0.0.1")
	}
	identity, err := cluster.Identity(members.ID{15: 2}.String(), secret.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	if _, id, err := identity.Client(ctx, from(t, a, "127.0.0.2"), ""); err != nil || id != (members.ID{15: 1}).String() {
		t.Errorf("greeted by %q: %v", id, err)
	}
}

// stub is a connection of an address; it notes that it was closed.
type stub struct {
	net.Conn
	from   string
	closed bool
}

func (c *stub) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 7} }

func (c *stub) Close() error {
	c.closed = true
	return nil
}

func TestRoomForGreetingsIsShared(t *testing.T) {
	// There is no room more: who comes waits until one has ended. Where an address has more than a node needs, its oldest goes instead, and no other; that it ends makes no room.
	g := newGreetings()
	var all []*stub
	var under []*greeting
	add := func(from string) *greeting {
		all = append(all, &stub{from: from})
		x := g.begin(all[len(all)-1])
		under = append(under, x)
		return x
	}
	for i := range mostGreetings - fewGreetings {
		add(fmt.Sprint("10.0.0.", i))
	}
	for range fewGreetings {
		add("10.0.1.1")
	}
	if add("10.0.1.1") != nil {
		t.Error("there is room for one more")
	}
	g.end(under[0])
	select {
	case <-g.ended:
	default:
		t.Error("nobody is told of the room")
	}
	if add("10.0.1.1") == nil {
		t.Error("there is no room where one has ended")
	}
	if add("10.0.1.2") == nil {
		t.Error("who comes waits for one that has too many")
	}
	for i, c := range all {
		if want := i == mostGreetings-fewGreetings; c.closed != want {
			t.Errorf("%d, of %s, is closed: %v", i, c.from, c.closed)
		}
	}
	g.end(under[mostGreetings-fewGreetings])
	if add("10.0.1.3") != nil {
		t.Error("one made room twice")
	}
}
