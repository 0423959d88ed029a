package admit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// fake is a connection of an address. It notes how it ended.
type fake struct {
	net.Conn
	name, from string
	reset      bool
	cut        *[]string
}

func (c *fake) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 7))
}

func (c *fake) SetLinger(sec int) error {
	c.reset = sec == 0
	return nil
}

func (c *fake) Close() error {
	*c.cut = append(*c.cut, c.name)
	return nil
}

// rig is a Table, and the names of the connections that were cut, in order.
type rig struct {
	*Table
	cut []string
}

func newRig(places int, known ...string) *rig {
	return &rig{Table: New(places, func(a netip.Addr) bool { return slices.Contains(known, a.String()) })}
}

// come begins a connection of each address. Its name is the address and a number.
func (r *rig) come(n int, from ...string) (all []*Place) {
	for _, a := range from {
		for i := range n {
			all = append(all, r.Begin(&fake{name: fmt.Sprint(a, "#", i), from: a, cut: &r.cut}))
		}
	}
	return all
}

// went checks which connections were cut since the last check.
func (r *rig) went(t *testing.T, what string, want ...string) {
	t.Helper()
	if !slices.Equal(r.cut, want) {
		t.Errorf("%s: cut were %q, not %q", what, r.cut, want)
	}
	r.cut = nil
}

func TestAFloodPushesOutItsOwn(t *testing.T) {
	// One address takes all places and opens more connections. Each newcomer of another address cuts
	// its oldest one, in order, and so does each further one of its own. Others lose none.
	r := newRig(4)
	r.come(5, "10.0.0.1")
	r.went(t, "the flood", "10.0.0.1#0")
	r.come(1, "10.0.0.2", "10.0.0.3")
	r.went(t, "two others", "10.0.0.1#1", "10.0.0.1#2")
	r.come(3, "10.0.0.1")
	r.went(t, "more of the flood", "10.0.0.1#3", "10.0.0.1#4", "10.0.0.1#0")
	if n := r.Evicted(); n != 6 {
		t.Errorf("%d are counted", n)
	}
}

func TestTheOldestGoesAmongEquals(t *testing.T) {
	// As many addresses as there are places have one connection each. The newcomer gets in, and the
	// oldest connection is cut.
	r := newRig(3)
	r.come(1, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	r.went(t, "one each", "10.0.0.1#0", "10.0.0.2#0")
}

func TestWhoIsKnownHoldsNoPlace(t *testing.T) {
	// Many connections of one address show whose they are. None of them counts, none is cut for
	// others, and each place is given back once, however often the connection ends.
	r := newRig(2)
	for range 5 {
		p := r.come(1, "10.0.0.1")[0]
		p.Done()
		p.Done()
	}
	r.come(1, "10.0.0.2", "10.0.0.3")
	r.went(t, "those that are known", []string(nil)...)
	if r.Held() != 2 || len(r.sources) != 2 {
		t.Errorf("%d places of %d sources are held", r.Held(), len(r.sources))
	}
}

func TestSources(t *testing.T) {
	// An IPv6 network is one source, and its addresses share its places. An IPv4 address is one
	// source in both spellings, and another address of its network is another source.
	for _, c := range []struct {
		name string
		come []string
		cut  string
	}{
		{"one network of IPv6 against another", []string{"2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:2::1"}, "2001:db8:0:1::1#0"},
		{"one address in a network of many", []string{"2001:db8::1", "2001:db8::2", "2001:db8::2", "2001:db8::3"}, "2001:db8::2#0"},
		{"two spellings of IPv4", []string{"10.0.0.2", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.3"}, "10.0.0.1#0"},
		{"a zone", []string{"fe80::1%eth0", "fe80::2%eth0", "fe80::2%eth0", "2001:db8::1"}, "fe80::2%eth0#0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(3)
			for _, from := range c.come {
				r.come(1, from)
			}
			r.went(t, c.name, c.cut)
		})
	}
}

func TestMembersAndStrangersHaveHalfEach(t *testing.T) {
	// Strangers from ever new addresses push out no member's connection. A flood from a member's
	// address pushes out no stranger's. A half that is not needed is free for anybody.
	r := newRig(4, "10.0.0.1", "10.0.0.2")
	r.come(1, "10.0.0.1", "10.0.0.2")
	r.come(1, "10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	r.went(t, "strangers", "10.9.0.1#0", "10.9.0.2#0")
	r.come(2, "10.0.0.1")
	r.went(t, "a flood from a member's address", "10.0.0.1#0", "10.0.0.1#0")
	r = newRig(4, "10.0.0.1")
	r.come(4, "10.0.0.1")
	r.went(t, "nobody else", []string(nil)...)
	r.come(3, "10.9.0.1")
	r.went(t, "the other half", "10.0.0.1#0", "10.0.0.1#1", "10.9.0.1#0")
}

func TestIdleAgain(t *testing.T) {
	// A busy connection becomes idle: it counts again, as the youngest. If it is cut, what it wrote
	// still arrives. A connection that was cut takes no place again.
	r := newRig(2)
	first := r.come(1, "10.0.0.1")[0]
	first.Again() // it holds one
	first.Done()
	second := r.come(1, "10.0.0.2")[0]
	first.Again()
	r.come(1, "10.0.0.3")
	r.went(t, "the oldest", "10.0.0.2#0")
	r.come(1, "10.0.0.4")
	r.went(t, "then the idle one", "10.0.0.1#0")
	second.Again()
	first.Again()
	r.went(t, "nobody", []string(nil)...)
	if second.conn.(*fake).reset != true || first.conn.(*fake).reset {
		t.Error("a stranger's connection stays in the kernel, or an answer is lost")
	}
}

func TestListener(t *testing.T) {
	// An HTTP server marks busy and idle connections. A third idle connection cuts the first one. A
	// connection that is busy meanwhile stays.
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	table, gate, begun, idles := New(2, nil), make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/busy" {
				close(begun)
				<-gate
			}
			_, _ = io.WriteString(w, "yes")
		}),
		ConnState: func(c net.Conn, s http.ConnState) {
			switch s {
			case http.StateActive:
				c.(*Conn).Done()
			case http.StateIdle:
				c.(*Conn).Again()
				idles <- struct{}{}
			}
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(Listener{Listener: inner, Table: table}) }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	busy := dial()
	_, _ = io.WriteString(busy, "GET /busy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	<-begun
	var idle []net.Conn
	for range 2 {
		c := dial()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		<-idles
		idle = append(idle, c)
	}
	silent := dial()
	if text, err := io.ReadAll(idle[0]); err != nil || !strings.HasSuffix(string(text), "yes") {
		t.Errorf("the first idle one got %q, %v", text, err)
	}
	close(gate)
	if text, err := io.ReadAll(busy); err != nil || !strings.HasSuffix(string(text), "yes") {
		t.Errorf("the busy one got %q, %v", text, err)
	}
	if n := table.Evicted(); n != 1 {
		t.Errorf("%d were cut", n)
	}
	silent.Close()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
