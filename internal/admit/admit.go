// Package admit bounds the connections of strangers: those that were accepted and have not yet
// shown who they are, or that an HTTP server keeps open between two requests.
//
// A Table has a number of places. A connection takes one when it is accepted (Begin), and gives it
// back once it is known (Done) or closed. A new connection always gets a place: if all are taken,
// another connection is cut for it. That is the oldest connection of the source with the most
// places. So a source that opens many connections pushes out only its own, however fast it opens
// them. If there are as many sources as places, a handshake still has the time that it takes to
// fill all places once.
//
// A source is an IPv4 address, or an IPv6 network of 64 bits, since one machine may have all the
// addresses of such a network. Within the network the address with most places loses its oldest
// connection, so that neighbours on one wire are told apart. An IPv4-mapped IPv6 address counts as
// IPv4.
//
// Sources that are known, such as members of a ring, have half of the places if they need them, and
// all others the other half. So strangers from any number of addresses push out no member. And
// somebody who shares a member's address pushes out no newcomer.
//
// A known connection holds no place, and is not bounded here. A server that never calls Done bounds
// all its connections.
package admit

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// networkBits is the size of the smallest IPv6 network that a machine is given.
const networkBits = 64

// Table holds the places. Many goroutines may use it.
type Table struct {
	places int
	known  func(netip.Addr) bool

	mu      sync.Mutex // guards the rest; not held while a connection is closed
	under   []*Place   // held places, the oldest first
	sources map[netip.Prefix]*source
	friends int // places in under of known sources
	evicted int64
}

// source is an address or a network that has places.
type source struct {
	prefix netip.Prefix
	places int // guarded by the table's lock
}

// Place is a connection's place in a Table.
type Place struct {
	table            *Table
	conn             net.Conn
	network, address netip.Prefix
	known            bool

	// These are guarded by the table's lock.
	of    [2]*source // network and address, while the place is held
	held  bool
	ended bool // the connection was cut or closed, and takes no place again
	idle  bool // taken by Again
}

// New returns a Table of at least one place. known reports the addresses that are preferred, as the
// package comment says; nil means that there are none. It is called once for each connection, and
// may be slow or lock.
func New(places int, known func(netip.Addr) bool) *Table {
	return &Table{places: max(places, 1), known: known, sources: map[netip.Prefix]*source{}}
}

// Begin gives a connection a place, and may cut another connection for it. The caller gives the
// place back by Done, at the latest when it closes the connection.
func (t *Table) Begin(conn net.Conn) *Place {
	p := &Place{table: t, conn: conn}
	addr := addrOf(conn.RemoteAddr())
	p.network, p.address = sourceOf(addr)
	p.known = t.known != nil && t.known(addr)
	t.take(p, false)
	return p
}

// Evicted is the number of connections that were cut so that others got a place.
func (t *Table) Evicted() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.evicted
}

// Held is how many places are taken.
func (t *Table) Held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.under)
}

// Done gives the place back: the connection is known, busy or closed. Further calls do nothing.
func (p *Place) Done() {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.table.leaveLocked(p)
}

// Again takes a place once more, as the youngest, for a connection that became idle. It does
// nothing if the connection holds a place or was cut.
func (p *Place) Again() { p.table.take(p, true) }

// end is Done for good.
func (p *Place) end() {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.table.leaveLocked(p)
	p.ended = true
}

func (t *Table) take(p *Place, idle bool) {
	t.mu.Lock()
	var victim *Place
	if !p.held && !p.ended {
		p.idle = idle
		t.enterLocked(p)
		if len(t.under) > t.places {
			victim = t.victimLocked()
			t.leaveLocked(victim)
			victim.ended = true
			t.evicted++
		}
	}
	t.mu.Unlock()
	if victim != nil {
		victim.cut()
	}
}

// victimLocked is the place whose connection is cut. It looks at all places, which takes a
// microsecond for hundreds; accepting and cutting a connection takes many.
func (t *Table) victimLocked() *Place {
	known := t.friends > (t.places+1)/2
	var most *Place
	for _, p := range t.under {
		if p.known == known && (most == nil || p.moreLocked(most)) {
			most = p
		}
	}
	return most
}

// moreLocked reports whether the source of p has more places than that of o, which is older.
func (p *Place) moreLocked(o *Place) bool {
	if a, b := p.of[0].places, o.of[0].places; a != b {
		return a > b
	}
	return p.of[1].places > o.of[1].places
}

func (t *Table) enterLocked(p *Place) {
	t.under = append(t.under, p)
	p.held = true
	if p.known {
		t.friends++
	}
	for i, prefix := range []netip.Prefix{p.network, p.address} {
		s := t.sources[prefix]
		if s == nil {
			s = &source{prefix: prefix}
			t.sources[prefix] = s
		}
		s.places++
		p.of[i] = s
	}
}

func (t *Table) leaveLocked(p *Place) {
	if !p.held {
		return
	}
	i := slices.Index(t.under, p)
	t.under = slices.Delete(t.under, i, i+1)
	p.held = false
	if p.known {
		t.friends--
	}
	for _, s := range p.of {
		if s.places--; s.places == 0 {
			delete(t.sources, s.prefix)
		}
	}
}

// cut closes the connection by a reset, so that nothing of it stays in the kernel. A stranger need
// not answer an orderly close, and the kernel would wait for a minute. A connection that was known
// before is closed in order, since written bytes may still be on their way.
func (p *Place) cut() {
	if tcp, ok := p.conn.(interface{ SetLinger(sec int) error }); ok && !p.idle {
		_ = tcp.SetLinger(0)
	}
	_ = p.conn.Close()
}

// addrOf is the remote IP address; the zero Addr if it is not an IP address.
func addrOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	at, _ := netip.ParseAddrPort(a.String())
	return at.Addr().Unmap()
}

// sourceOf returns the network and the address of a source. For IPv4 both are the address.
func sourceOf(a netip.Addr) (network, address netip.Prefix) {
	address = netip.PrefixFrom(a, a.BitLen())
	if a.Is4() {
		return address, address
	}
	network, _ = a.Prefix(networkBits)
	return network, address
}
