// Package admit bounds the connections of strangers: those that were accepted and have not
// shown yet whose they are, or that a server of HTTP keeps open between two requests.
//
// A Table has a number of places. A connection takes one when it is accepted (Begin), and
// gives it back once it is known (Done) or closed. Whoever comes always gets a place: where
// all are taken, another connection is cut for it. The one that goes is the oldest of the
// source that has most places. So a source that opens many pushes out its own and nobody
// else's, however fast it opens them. Where as many sources come as there are places, a
// handshake still has the time that it takes to fill them all once.
//
// A source is an IPv4 address, or an IPv6 network of 64 bits: one machine may have all the
// addresses of that. Within the network the address with most places loses its oldest, so
// that neighbours on one wire are not one. An IPv6 address that is an IPv4 one counts as that.
//
// Sources that are known, such as members of a ring, have half of the places if they need
// them, and all others the other half. Strangers from any number of addresses push out no
// member, and who shares a member's address pushes out no newcomer.
//
// What is known holds no place, and is not bounded here. A server that calls Done for
// nobody bounds all its connections.
package admit

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// networkBits of an IPv6 address are the network that a machine is given, at least.
const networkBits = 64

// Table is who holds a place. Many goroutines may use it.
type Table struct {
	places int
	known  func(netip.Addr) bool

	mu      sync.Mutex // guards the rest; not held while a connection is closed
	under   []*Place   // that are held, the oldest first
	sources map[netip.Prefix]*source
	friends int // of under, those of known sources
	evicted int64
}

// source is an address or a network that has places.
type source struct {
	prefix netip.Prefix
	places int // guarded by the table's lock
}

// Place is what a connection has in a Table.
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

// New returns a Table of some places, at least one. known tells addresses that are preferred
// (see the package's comment); nil: none is. It is called once for each connection, and may
// be slow or lock.
func New(places int, known func(netip.Addr) bool) *Table {
	return &Table{places: max(places, 1), known: known, sources: map[netip.Prefix]*source{}}
}

// Begin gives a connection a place, for which another one may be cut. The caller gives it
// back by Done, at the latest when it closes the connection.
func (t *Table) Begin(conn net.Conn) *Place {
	p := &Place{table: t, conn: conn}
	addr := addrOf(conn.RemoteAddr())
	p.network, p.address = sourceOf(addr)
	p.known = t.known != nil && t.known(addr)
	t.take(p, false)
	return p
}

// Evicted is how many connections were cut so that others had a place.
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

// Done gives the place back: the connection is known, busy or closed. More calls do nothing.
func (p *Place) Done() {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.table.leaveLocked(p)
}

// Again takes a place once more, as the youngest, for a connection that became idle. It does
// nothing for one that holds a place, or was cut.
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

// victimLocked is who goes. It looks at all places, a microsecond of work for hundreds; to
// accept and cut a connection takes many.
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

// cut closes the connection. Nothing of it stays in the kernel, where one that is closed in
// good order waits a minute for a stranger who need not answer. Of one that was known before,
// what was written may still be on its way.
func (p *Place) cut() {
	if tcp, ok := p.conn.(interface{ SetLinger(sec int) error }); ok && !p.idle {
		_ = tcp.SetLinger(0)
	}
	_ = p.conn.Close()
}

// addrOf is where a connection comes from; the zero Addr where that is no address of IP.
func addrOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	at, _ := netip.ParseAddrPort(a.String())
	return at.Addr().Unmap()
}

// sourceOf counts an IPv4 address as a network of its own.
func sourceOf(a netip.Addr) (network, address netip.Prefix) {
	address = netip.PrefixFrom(a, a.BitLen())
	if a.Is4() {
		return address, address
	}
	network, _ = a.Prefix(networkBits)
	return network, address
}
