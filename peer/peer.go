// Package peer joins the parts of a ring: who is in it (members), which node owns what (place), who
// may talk (secret), what is said (wire), and who is asked next (route).
//
// A Ring listens at two addresses: for gossip, and for reads one port above it. Each snapshot of
// the members becomes the Table of a route.Router: a Map of the active members, and a wire.Peer for
// each member that can be asked. The change takes effect at once; reads in flight end with the
// Table before. A member that leaves owns nothing from then on, and is asked for what it holds
// until it is gone. The Table is all that a node knows about ownership, so nothing is shown as an
// owner's before reads go by it.
package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/admit"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/peer/wire"
)

const (
	// leaveWithin bounds how long a leaving node informs the others.
	leaveWithin = 2 * time.Second
	// maxHandshakes is the most handshakes in flight: a whole ring that comes back at once. They
	// take some 25 MiB of memory. The more there are, the longer each has while strangers come.
	maxHandshakes = 512
)

// Config is a node's part in a ring.
type Config struct {
	// Members is what the node says of itself and how it finds the others. Its Data and
	// Key are set by Start.
	Members members.Config
	// GossipKey is nil without a cluster key.
	GossipKey []byte
	// Identity proves to other nodes that this one belongs to the ring. Its id is Members.ID.
	Identity *secret.Identity
	// Pool is where the answers of peers lie.
	Pool *hearth.Pool
	// Router gets the Table of each change, the first before Start returns.
	Router *route.Router
	// Asked is called at each change with the peers that the node asks from then on, before the
	// Router gets them. It must not block. nil means that nobody wants to know.
	Asked func(peers []*wire.Peer)
	// Handler answers peers.
	Handler wire.Handler
	// Trouble is called again and again with a node that cannot be talked to, and why. nil means
	// that nobody wants to know.
	Trouble func(what, who string, cause error)

	// Silence is how long a peer that owes an answer may send nothing before it is given up. 0
	// means wire.Silence. Nodes that share one process wait for its processors, and need more.
	Silence time.Duration
}

// Ring is a node among others.
type Ring struct {
	c         Config
	members   *members.Members
	server    *wire.Server
	listener  net.Listener
	strangers *admit.Table // connections that have not shown yet who they are
	stop      context.Context
	cancel    context.CancelFunc
	end       func() error // close, once
	work      sync.WaitGroup

	mu    sync.Mutex // guards peers; held while the next Map is computed
	peers map[members.ID]*neighbour
}

// neighbour is a member that can be asked, with its address at the time it was made.
type neighbour struct {
	*wire.Peer
	at netip.AddrPort
}

// Start finds the others of a ring. It returns when a member has answered, or when none did and the
// node is alone for now. No member asks this node for anything before Announce. The caller closes
// the Ring.
func Start(ctx context.Context, c Config) (*Ring, error) {
	if id := c.Members.ID.String(); c.Identity.ID() != id {
		return nil, fmt.Errorf("the identity is of node %s, not of %s", c.Identity.ID(), id)
	}
	gossip, err := members.ResolveListen(c.Members.Listen, members.DefaultPort)
	if err != nil {
		return nil, err
	}
	port := gossip.Port()
	if port != 0 { // 0 is for tests: any
		if port++; port == 0 {
			return nil, fmt.Errorf("listen at %v: reads are answered one port above, and there is none", gossip)
		}
	}
	r := &Ring{c: c, peers: map[members.ID]*neighbour{}}
	r.end = sync.OnceValue(r.close)
	r.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(gossip.Addr(), port).String())
	if err != nil {
		return nil, fmt.Errorf("listen for reads of peers, one port above node.listen: %w (give node.listen another address or port)", err)
	}
	c.Members.Data, err = netip.ParseAddrPort(r.listener.Addr().String())
	if err == nil {
		c.Members.Key = c.GossipKey
		r.server = wire.NewServer(wire.ServerOptions{Handler: c.Handler, Pool: c.Pool})
		r.members, err = members.Start(ctx, c.Members)
	}
	if err != nil {
		return nil, errors.Join(err, r.listener.Close())
	}
	r.stop, r.cancel = context.WithCancel(context.Background())
	r.strangers = admit.New(maxHandshakes, func(a netip.Addr) bool { return r.members.Snapshot().Knows(a) })
	r.work.Go(r.accept)
	first := r.members.Snapshot()
	r.take(first)
	r.work.Go(func() { r.follow(first) })
	return r, nil
}

// Announce makes the others take this node for the owner of its share, as it does itself since
// Start. Some of them ask it from the first moment on. It returns when all are likely to know,
// after some rounds of gossip, or as members.Announce does.
func (r *Ring) Announce(ctx context.Context) error { return r.members.Announce(ctx, members.Active) }

// accept serves new connections until Close.
func (r *Ring) accept() {
	for {
		conn, err := r.listener.Accept()
		if errors.Is(err, net.ErrClosed) || r.stop.Err() != nil {
			return
		}
		if err != nil { // out of descriptors, most often: they come back
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-r.stop.Done():
				return
			}
		}
		place := r.strangers.Begin(conn)
		r.work.Go(func() {
			safe, id, err := r.c.Identity.Server(r.stop, conn)
			place.Done()
			if err == nil {
				r.serve(safe, id)
			} else if secret.Refused(err) { // else it broke, or somebody only probed the port
				r.say("a connection of a node is refused", conn.RemoteAddr().String(), err)
			}
		})
	}
}

// serve answers a member until its connection ends.
func (r *Ring) serve(conn net.Conn, id string) {
	err := r.server.Serve(r.stop, conn, id)
	if errors.Is(err, wire.ErrProtocol) || errors.Is(err, wire.ErrChecksum) || errors.Is(err, wire.ErrIncompatible) || errors.Is(err, hearth.ErrRefused) {
		r.say("a connection of a member was cut", id, err)
	}
}

func (r *Ring) say(what, who string, err error) {
	if r.c.Trouble != nil {
		r.c.Trouble(what, who, err)
	}
}

// follow takes each snapshot after s, until Close.
func (r *Ring) follow(s *members.Snapshot) {
	for {
		select {
		case <-s.Superseded():
		case <-r.stop.Done():
			return
		}
		s = r.members.Snapshot()
		r.take(s)
	}
}

// take makes a snapshot the Table that this node reads by.
func (r *Ring) take(s *members.Snapshot) {
	var nodes []place.Node
	for _, m := range s.Members {
		if m.State == members.Active || m.State == members.Joining && m.ID == r.c.Members.ID {
			nodes = append(nodes, place.Node{ID: m.ID.String(), Zone: m.Zone, Weight: m.Donated})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop.Err() != nil {
		return // nobody would close what is made now
	}
	before := cmp.Or(r.c.Router.Table(), &route.Table{})
	where, err := next(before.Map, nodes)
	if err != nil { // more members than a Map may have: the ring stays as it was
		r.say("the ring stays as it is", "", err)
		return
	}
	now := route.Table{Map: where, Peers: map[string]route.Peer{}, Changed: before.Changed}
	if before.Map != where { // a node that has just joined has everything from others
		now.Changed = time.Now()
	}
	gone := r.peers
	r.peers = map[members.ID]*neighbour{}
	asked := make([]*wire.Peer, 0, len(s.Members))
	for _, m := range s.Members {
		if m.ID == r.c.Members.ID {
			continue
		}
		p := gone[m.ID]
		if p == nil || p.at != m.Data || p.Name() != m.Name {
			p = r.neighbour(m)
		} else {
			delete(gone, m.ID)
		}
		r.peers[m.ID], now.Peers[m.ID.String()] = p, p.Peer
		asked = append(asked, p.Peer)
	}
	if r.c.Asked != nil {
		r.c.Asked(asked)
	}
	r.c.Router.Set(now)
	for _, p := range gone {
		r.work.Go(p.Close)
	}
}

// next is the Map after before. It is the same Map if no owner changed.
func next(before *place.Map, nodes []place.Node) (*place.Map, error) {
	if before == nil {
		return place.New(nodes)
	}
	return before.Next(nodes)
}

// neighbour makes the Peer of a member.
func (r *Ring) neighbour(m members.Member) *neighbour {
	id, at := m.ID.String(), m.Data
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
		if err != nil {
			return nil, err
		}
		safe, _, err := r.c.Identity.Client(ctx, conn, id)
		if secret.Refused(err) {
			r.say("a member of the ring refuses this node", m.Name, err)
		}
		return safe, err
	}
	return &neighbour{Peer: wire.NewPeer(m.Name, wire.PeerOptions{Dial: dial, Pool: r.c.Pool, Silence: r.c.Silence}), at: at}
}

// Members is who is in the ring.
func (r *Ring) Members() *members.Snapshot { return r.members.Snapshot() }

// Stats returns the present figures: of members, with the connections cut at both ports, and of all
// peers that ask this node. Each peer that it asks has its own Stats; Asked gets these peers.
func (r *Ring) Stats() (m members.Stats, served wire.Stats) {
	m = r.members.Stats()
	m.Cut += r.strangers.Evicted()
	return m, r.server.Stats()
}

// Outages returns the members that can be asked and fail now, by id.
func (r *Ring) Outages() map[members.ID]wire.Outage {
	all := map[members.ID]wire.Outage{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.peers {
		if o, out := p.Outage(); out {
			all[id] = o
		}
	}
	return all
}

// Leave tells the others that this node leaves, so that nobody waits for it. It still answers until
// Close.
func (r *Ring) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	return r.members.Leave(ctx)
}

// Close ends everything in flight and waits for it. The others find this node silent, unless it
// left. Later calls return the result of the first.
func (r *Ring) Close() error { return r.end() }

func (r *Ring) close() error {
	r.cancel()
	err := errors.Join(r.listener.Close(), r.members.Close())
	r.mu.Lock()
	peers := r.peers
	r.peers = nil
	r.mu.Unlock()
	for _, p := range peers {
		p.Close()
	}
	r.work.Wait()
	return err
}
