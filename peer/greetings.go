package peer

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

const (
	// mostGreetings under way are enough for a ring that comes back at once; who comes then
	// waits in the kernel's queue.
	mostGreetings = 64
	// fewGreetings of one address are more than one node has: it opens four connections to
	// another at most.
	fewGreetings = 8
)

// greetings are the connections that have not shown yet whose they are. Each may say nothing
// for ten seconds; where all room is taken, and one address has more of it than a node needs,
// its oldest one goes for a new one: who opens many and says nothing keeps nobody out but
// those of its own address.
type greetings struct {
	mu    sync.Mutex // guards under
	under []*greeting
	ended chan struct{} // capacity 1: there may be room again
}

type greeting struct {
	net.Conn
	from netip.Addr
}

func newGreetings() *greetings { return &greetings{ended: make(chan struct{}, 1)} }

// begin makes room for a connection; nil: there is none until another one has ended.
func (g *greetings) begin(conn net.Conn) *greeting {
	x := &greeting{Conn: conn}
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		x.from = at.Addr().Unmap()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.under) >= mostGreetings {
		i := g.tooManyLocked()
		if i < 0 {
			return nil
		}
		_ = g.under[i].Close() // its handshake fails
		g.under = slices.Delete(g.under, i, i+1)
	}
	g.under = append(g.under, x)
	return x
}

// tooManyLocked is the oldest greeting of the address that has most of them; -1: no address
// has many.
func (g *greetings) tooManyLocked() int {
	many, of := fewGreetings, netip.Addr{}
	counts := map[netip.Addr]int{}
	for _, x := range g.under {
		if counts[x.from]++; counts[x.from] > many {
			many, of = counts[x.from], x.from
		}
	}
	if many == fewGreetings {
		return -1
	}
	return slices.IndexFunc(g.under, func(x *greeting) bool { return x.from == of })
}

// end gives the room of a greeting back.
func (g *greetings) end(x *greeting) {
	g.mu.Lock()
	g.under = slices.DeleteFunc(g.under, func(o *greeting) bool { return o == x })
	g.mu.Unlock()
	select {
	case g.ended <- struct{}{}:
	default:
	}
}
