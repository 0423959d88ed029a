package peer

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/peer/wire"
)

// from connects to a node's address of reads from an address of loopback.
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

// held waits until so many connections are accepted that have not shown whose they are.
func held(t *testing.T, n *node, want int) {
	t.Helper()
	if !hearthtest.Eventually(t.Context(), patience, func() bool { return n.strangers.Held() == want }) {
		t.Fatalf("%d places are held, not %d", n.strangers.Held(), want)
	}
}

// greeted expects that a node is let in from an address.
func greeted(t *testing.T, n *node, cluster *secret.Cluster, address string) {
	t.Helper()
	identity, err := cluster.Identity(members.ID{15: 2}.String(), secret.Options{Within: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, id, err := identity.Client(ctx, from(t, n, address), ""); err != nil || id != (members.ID{15: 1}).String() {
		t.Errorf("greeted by %q: %v", id, err)
	}
}

// ended waits until the other side has ended a connection.
func ended(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, conn)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatalf("%s stays open", what)
	}
}

func TestWhoSaysNothingKeepsNobodyOut(t *testing.T) {
	// More connections than there is room for say nothing. They come from one address,
	// from the node's own, from eight, or from more addresses than there are places. A
	// node of the ring is still greeted. For it, the connections that have said nothing
	// for the longest are cut, and counted.
	cluster := clusterOf(t, theKey, "test")
	const more = 40
	for _, c := range []struct {
		name string
		from func(i int) string
	}{
		{"one address", func(int) string { return "127.0.0.1" }},
		{"the node's address", func(int) string { return "127.0.0.2" }},
		{"eight addresses", func(i int) string { return fmt.Sprint("127.0.0.", 3+i%8) }},
		{"an address each", func(i int) string { return fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, &bucket{}, cluster, 1)
			for i := range maxHandshakes + more {
				from(t, a, c.from(i))
			}
			greeted(t, a, cluster, "127.0.0.2")
			if m, _ := a.Ring.Stats(); m.Cut != more+1 {
				t.Errorf("%d were cut", m.Cut)
			}
		})
	}
}

func TestTheOldestHandshakeOfAnAddressGoes(t *testing.T) {
	// Two addresses have all places. The one with the most loses its oldest connection to
	// the other, and to one of its own.
	cluster := clusterOf(t, theKey, "test")
	a := start(t, &bucket{}, cluster, 1)
	few := from(t, a, "127.0.0.3")
	var flood []net.Conn
	for range maxHandshakes - 1 {
		flood = append(flood, from(t, a, "127.0.0.2"))
	}
	held(t, a, maxHandshakes)
	for i, address := range []string{"127.0.0.3", "127.0.0.2"} {
		from(t, a, address)
		ended(t, "the oldest of the address", flood[i])
	}
	for i, conn := range append(flood[2:], few) {
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := conn.Read(make([]byte, 1))
		if e, ok := err.(net.Error); !ok || !e.Timeout() {
			t.Errorf("connection %d ended: %v", i, err)
		}
	}
	if n := a.strangers.Evicted(); n != 2 {
		t.Errorf("%d were cut", n)
	}
}

func TestStrangersPushOutNoMember(t *testing.T) {
	// A connection from a member's address is in the middle of its handshake when
	// strangers come, one each from more addresses than there are places. It stays.
	cluster := clusterOf(t, theKey, "test")
	k := &bucket{}
	a := start(t, k, cluster, 1)
	agree(t, a, start(t, k, cluster, 2, a)) // at 127.0.0.1
	held(t, a, 0)
	member := from(t, a, "127.0.0.1")
	held(t, a, 1)
	for i := range maxHandshakes + 40 {
		from(t, a, fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250))
	}
	if !hearthtest.Eventually(t.Context(), patience, func() bool { return a.strangers.Evicted() >= 41 }) {
		t.Errorf("%d were cut", a.strangers.Evicted())
	}
	_ = member.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := member.Read(make([]byte, 1))
	if e, ok := err.(net.Error); !ok || !e.Timeout() {
		t.Errorf("the member's connection ended: %v", err)
	}
}

// halfway is a client's connection on which some of the server's bytes never come.
type halfway struct {
	net.Conn
	left int // how many bytes still come
}

// greetingBytes is the size of a server's greeting, with encryption.
const greetingBytes = 23

func (c *halfway) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func (c *halfway) Close() error { return nil } // the end of the handshake is not that of the connection

func TestWhoStopsHalfwayHoldsAPlaceAndNoMore(t *testing.T) {
	// Clients with the right greeting stop after it, after TLS's first message, or after
	// some of the answer. Others say nothing. Each holds a place, and the oldest goes for
	// a node that comes.
	cluster := clusterOf(t, theKey, "test")
	a := start(t, &bucket{}, cluster, 1)
	identity, err := cluster.Identity(members.ID{15: 3}.String(), secret.Options{Within: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var all []net.Conn
	for _, n := range []int{0, greetingBytes, greetingBytes + 100} {
		conn := from(t, a, "127.0.0.1")
		half := &halfway{Conn: conn, left: n}
		if _, _, err := identity.Client(t.Context(), half, ""); err == nil || half.left > 0 {
			t.Fatalf("a handshake with the first %d bytes: %v, %d left", n, err, half.left)
		}
		all = append(all, conn)
	}
	for range maxHandshakes - len(all) {
		from(t, a, "127.0.0.1")
	}
	held(t, a, maxHandshakes)
	greeted(t, a, cluster, "127.0.0.1")
	ended(t, "the oldest", all[0])
	if n := a.strangers.Evicted(); n != 1 {
		t.Errorf("%d were cut", n)
	}
	held(t, a, maxHandshakes-1)
}

func TestManyNodesOfOneAddressStay(t *testing.T) {
	// Nodes behind one address that have shown the key hold no places. All of them stay
	// while strangers from that address take all places and more.
	cluster := clusterOf(t, theKey, "test")
	a := start(t, &bucket{}, cluster, 1)
	var peers []*wire.Peer
	ask := func(p *wire.Peer) {
		v, err := p.Call(t.Context(), 7, nil)
		if err != nil {
			t.Fatalf("asked: %v", err)
		}
		v.Release()
	}
	for i := range 40 {
		identity, err := cluster.Identity(members.ID{14: 1, 15: byte(i)}.String(), secret.Options{Within: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		dial := func(ctx context.Context) (net.Conn, error) {
			conn, _, err := identity.Client(ctx, from(t, a, "127.0.0.1"), "")
			return conn, err
		}
		p := wire.NewPeer("a", wire.PeerOptions{Dial: dial, Pool: a.pool, Silence: patience})
		t.Cleanup(p.Close)
		ask(p)
		peers = append(peers, p)
	}
	held(t, a, 0)
	for range 2 * maxHandshakes {
		from(t, a, "127.0.0.1")
	}
	if !hearthtest.Eventually(t.Context(), patience, func() bool { return a.strangers.Evicted() == maxHandshakes }) {
		t.Errorf("%d were cut", a.strangers.Evicted())
	}
	for i, p := range peers {
		ask(p)
		if s := p.Stats(); s.Broken != 0 || s.Connections != 1 {
			t.Errorf("node %d: %+v", i, s)
		}
	}
}
