// Package peer joins the parts of a ring: who is in it (members), where everything is
// (place), who may talk (secret), what is said (wire), and who is asked next (route).
//
// A Ring listens at two addresses: for gossip, and for reads one port above it. Each
// snapshot of the members becomes the Table of a route.Router: a Map of those that are
// active, and a wire.Peer for each that can be asked, at once; what is under way ends with
// those before. A member that leaves owns nothing from then on, and is asked for what it
// holds until it has gone. The Table is all that a node knows of who owns what, so that
// nothing is shown as an owner's before it is read by.
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
	// leaveWithin is how long the others are told that this node goes.
	leaveWithin = 2 * time.Second
	// maxHandshakes are under way at a time: a ring that comes back at once, and in
	// memory some 25 MiB. The more there are, the longer each has while strangers come.
	maxHandshakes = 512
)

// Config is a node's part in a ring.
type Config struct {
	// Members is what the node says of itself and how it finds the others. Its Data and
	// Key are set by Start.
	Members members.Config
	// GossipKey is nil without a cluster key.
	GossipKey []byte
	// Identity is by whom others know that it is one of theirs; its id is Members.ID.
	Identity *secret.Identity
	// Pool is where what peers send lies.
	Pool *hearth.Pool
	// Router takes the nodes of each change, the first before Start returns.
	Router *route.Router
	// Asked is told at each change whom the node asks from then on, before the Router is. It
	// must not block; nil: nobody is told.
	Asked func(peers []*wire.Peer)
	// Handler answers peers.
	Handler wire.Handler
	// Trouble hears which node cannot be talked to, and why, again and again; nil: nobody
	// does.
	Trouble func(what, who string, cause error)

	// Silence is after how long without a byte a peer that owes an answer is given up; 0:
	// wire.Silence. Nodes of one process, which wait for its processors, want more.
	Silence time.Duration
}

// Ring is a node among others.
type Ring struct {
	c         Config
	members   *members.Members
	server    *wire.Server
	listener  net.Listener
	strangers *admit.Table // connections that have not shown yet whose they are
	stop      context.Context
	cancel    context.CancelFunc
	end       func() error // close, once
	work      sync.WaitGroup

	mu    sync.Mutex // guards peers; held while the next Map is worked out
	peers map[members.ID]*neighbour
}

// neighbour is a member that can be asked, where it was when it was made.
type neighbour struct {
	*wire.Peer
	at netip.AddrPort
}

// Start finds the others of a ring. It returns when a member has answered, or when none did and
// the node is alone for now. None of them asks it for anything before Announce. Close it.
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

// Announce has the others take this node for the owner of what is its own, as it does itself
// since Start. Some of them ask it from the first moment on; it returns when all are likely to
// know, after some rounds of gossip, or as members.Announce does.
func (r *Ring) Announce(ctx context.Context) error { return r.members.Announce(ctx, members.Active) }

// accept answers who comes, until Close.
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
			} else if secret.Refused(err) { // else it broke, or somebody only looked whether the port is open
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

// follow takes each snapshot after one, until Close.
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

// take makes a snapshot what this node reads by.
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
		return // what is made now nobody closes
	}
	before := cmp.Or(r.c.Router.Table(), &route.Table{})
	where, err := next(before.Map, nodes)
	if err != nil { // more members than a Map may have: the ring stays as it was
		r.say("the ring stays as it is", "", err)
		return
	}
	now := route.Table{Map: where, Peers: map[string]route.Peer{}, Changed: before.Changed}
	if before.Map != where { // a node that has just come has everything from others
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

// next is where everything is with other nodes than before. The Map is the same one where no
// owner changed.
func next(before *place.Map, nodes []place.Node) (*place.Map, error) {
	if before == nil {
		return place.New(nodes)
	}
	return before.Next(nodes)
}

// neighbour makes the way to a member.
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

// Stats are the present figures: of members, with connections that were cut at both ports, and
// of all that ask this node. Each that it asks has its own, of which Asked is told.
func (r *Ring) Stats() (m members.Stats, served wire.Stats) {
	m = r.members.Stats()
	m.Cut += r.strangers.Evicted()
	return m, r.server.Stats()
}

// Outages are those of members that can be asked, and fail what they are asked now, by id.
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

// Leave tells the others that this node goes, so that nobody waits for it; it answers
// until Close.
func (r *Ring) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	return r.members.Leave(ctx)
}

// Close ends all that is under way and waits for it. The others find this node silent,
// unless it left. Each call after the first returns what that did.
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
