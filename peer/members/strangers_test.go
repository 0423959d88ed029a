package members

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// connect opens a connection from an address of loopback, and sends what the caller
// gives.
func connect(t *testing.T, from string, to netip.AddrPort, sent []byte) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	conn, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	return conn
}

// ended waits until the other side has ended a connection.
func ended(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		t.Fatalf("%s stays open", what)
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// open expects that the other side has not ended connections.
func open(t *testing.T, what string, all ...net.Conn) {
	t.Helper()
	for i, conn := range all {
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !isTimeout(err) {
			t.Errorf("%s, %d of %d, ended: %v", what, i, len(all), err)
		}
	}
}

// sealedState is the head of a sealed message of so many bytes, as memberlist writes it.
func sealedState(n int) []byte {
	return []byte{10, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

func TestWhoHasNoKeyKeepsNoNodeOut(t *testing.T) {
	// All places at the gossip port are taken by connections that never end by
	// themselves. They come from one address, from the joiner's own, or from more
	// addresses than there are places, and more come. A node still joins at its start.
	// For each connection after the last place was taken, one was cut.
	key := bytes.Repeat([]byte{7}, KeySize)
	const more = 24
	for _, c := range []struct {
		name string
		from func(i int) string
		sent []byte
	}{
		{"one address", func(int) string { return "127.9.0.2" }, nil},
		{"the joiner's address", func(int) string { return "127.0.0.1" }, nil},
		{"eight addresses", func(i int) string { return fmt.Sprint("127.9.0.", 2+i%8) }, nil},
		{"an address each", func(i int) string { return fmt.Sprintf("127.9.%d.%d", 1+i/250, 1+i%250) }, nil},
		{"a byte", func(int) string { return "127.9.0.2" }, sealedState(0)[:1]},
		{"half a label", func(int) string { return "127.9.0.2" }, []byte{244, 200, 'x'}},
		{"a state that does not come", func(int) string { return "127.9.0.2" }, append(sealedState(1<<20), 'x')},
	} {
		t.Run(c.name, func(t *testing.T) {
			ca, _ := config(t, "a")
			ca.Key, ca.Timing.Dial = key, time.Hour
			a := start(t, ca)
			for i := range maxInbound + more {
				connect(t, c.from(i), a.Address(), c.sent)
			}
			cb, _ := config(t, "b", a)
			cb.Key = key
			b := start(t, cb)
			if n := len(b.Snapshot().Members); n != 2 {
				t.Errorf("%d members at its start", n)
			}
			until(t, a, "b", members(2))
			if n := a.Stats().Cut; n < more+1 {
				t.Errorf("%d were cut", n)
			}
		})
	}
}

// ends is a transport whose connections the test takes itself.
func ends(t *testing.T, known ...string) *transport {
	t.Helper()
	tr, err := listen(netip.MustParseAddrPort("127.0.0.1:0"), nil,
		func(a netip.Addr) bool { return slices.Contains(known, a.String()) }, memberlist.NetTransportConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Shutdown() })
	return tr
}

// pair is both ends of a connection that a transport accepted.
func (t *transport) pair(test *testing.T, from string) (theirs, ours net.Conn) {
	test.Helper()
	theirs = connect(test, from, t.address, nil)
	ours = <-t.StreamCh()
	test.Cleanup(func() { ours.Close() })
	return theirs, ours
}

func TestTheOldestOfAnAddressGoes(t *testing.T) {
	// One address has all places. For a newcomer from another address its oldest
	// connection goes, then the next, in order. The same holds for a newcomer of its own.
	// A member's connection goes for none of these, and an answered connection holds no
	// place.
	tr := ends(t, "127.9.0.9")
	member, _ := tr.pair(t, "127.9.0.9")
	var flood []net.Conn
	answered, ours := tr.pair(t, "127.9.0.2")
	if _, err := ours.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for range maxInbound - 1 {
		theirs, _ := tr.pair(t, "127.9.0.2")
		flood = append(flood, theirs)
	}
	if n := tr.unheard.Evicted(); n != 0 {
		t.Errorf("%d were cut while there was room", n)
	}
	for i, from := range []string{"127.9.0.3", "127.9.0.4", "127.9.0.2"} {
		theirs, _ := tr.pair(t, from)
		ended(t, "the oldest of the address", flood[i])
		open(t, "the newcomer", theirs)
	}
	open(t, "a younger one", flood[3:]...)
	open(t, "the member's", member)
	if n := tr.unheard.Evicted(); n != 3 {
		t.Errorf("%d were cut", n)
	}
	b := make([]byte, 1)
	_ = answered.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(answered, b); err != nil {
		t.Errorf("what was answered: %v", err)
	}
	open(t, "the answered one", answered)
}

func TestStatesOfStrangersTakeBoundedMemory(t *testing.T) {
	// More connections than may send much each send more than the small state that all
	// may. The oldest of the address that sends most goes. No connection of another
	// address goes, nor one that sent little.
	tr := ends(t)
	send := func(from string, n int) (theirs, ours net.Conn) {
		theirs, ours = tr.pair(t, from)
		sent := make(chan error, 1)
		go func() {
			_, err := theirs.Write(make([]byte, n))
			sent <- err
		}()
		if _, err := io.ReadFull(ours, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		return theirs, ours
	}
	little, _ := send("127.9.0.2", smallState)
	other, _ := send("127.9.0.3", smallState+1)
	var flood []net.Conn
	for range maxLarge {
		theirs, _ := send("127.9.0.2", smallState+1)
		flood = append(flood, theirs)
	}
	ended(t, "the oldest", flood[0])
	open(t, "a younger one", flood[1:]...)
	open(t, "another address's", other)
	open(t, "one that sent little", little)
	if n := tr.large.Evicted(); n != 1 {
		t.Errorf("%d were cut", n)
	}
}

func TestPlacesComeBack(t *testing.T) {
	// Strangers that came and went, in whatever way, hold no places: twice as many as
	// there are places come one after the other, and none is cut.
	c, _ := config(t, "a")
	c.Key = bytes.Repeat([]byte{7}, KeySize)
	a := start(t, c)
	for i := range 2 * maxInbound {
		conn := connect(t, "127.9.0.2", a.Address(), [][]byte{nil, {1}, {244, 0}, append(sealedState(3), "abc"...)}[i%4])
		if i%4 == 0 {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		ended(t, "a stranger's connection", conn)
	}
	if !hearthtest.Eventually(t.Context(), patience, func() bool { return a.transport.unheard.Held() == 0 }) || a.Stats().Cut != 0 {
		t.Errorf("%d are held, %d were cut", a.transport.unheard.Held(), a.Stats().Cut)
	}
}
