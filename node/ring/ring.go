// Package ring is a node's part in a ring, beyond what package peer does: its configuration, what it answers,
// and how it sees the ring. Package node connects it with peer.Ring, which joins the ring. The node reads
// through its Router.
package ring

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/wiring"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/peer/wire"
)

// protocol is the version of the protocol that this release speaks with peers.
const protocol = 1

// Options are what a Part is made of.
type Options struct {
	config.Membership
	// Pool is the node's memory budget.
	Pool *hearth.Pool
	// Log receives what people can act on. nil means slog.Default().
	Log *slog.Logger
	// Link returns the identity of a link's origin, from which versions are computed, and the prefix of its
	// keys. false means that this node has no such link.
	Link func(name string) (identity, prefix string, ok bool)
	// Away reports whether an error says that an origin cannot be asked now.
	Away func(error) bool
	// Figures returns what the node says of itself. The Part fills in Served, Asked and Suspects.
	Figures func() status.MemberFigures
	// Reads counts what became of reads of others' blocks.
	Reads func() status.RingReads
}

// Peers are the other members once the node has joined. *peer.Ring implements it.
type Peers interface {
	Members() *members.Snapshot
	Stats() (m members.Stats, served wire.Stats)
	Outages() map[members.ID]wire.Outage
}

// Part is this node's part in the ring.
type Part struct {
	// Router asks the other nodes. Until the node has joined, it knows of no other.
	Router *route.Router

	o       Options
	cluster *secret.Cluster // nil if there is no key
	members members.Config
	answers wiring.Answers
	load    Load                   // for peers that warm up
	calls   map[uint16]wire.Answer // in addition to its own; nil if there are none
	peers   atomic.Pointer[Peers]  // nil until the node has joined
	counted counted
}

// New makes the Part of a node. id is 32 hexadecimal digits, as the cache directory keeps it. With an empty id,
// the Part takes one for as long as it runs. No other node hears of it yet. An error is an admin.Error, of kind
// usage if the configuration or the key is not valid.
func New(ctx context.Context, o Options, id string) (*Part, error) {
	if id == "" {
		id = newID()
	}
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != len(members.ID{}) {
		return nil, wrong(fmt.Errorf("the cache directory's node id %q is not 32 hexadecimal digits", id))
	}
	r := &Part{Router: route.New(members.ID(b).String()), o: o, load: keepsNothing}
	key, err := keyOf(o.Membership)
	if err != nil {
		return nil, wrong(err)
	}
	if key != nil {
		if r.cluster, err = key.Cluster(r.name()); err != nil {
			return nil, wrong(fmt.Errorf("cluster.name: %w", err))
		}
	}
	r.members = members.Config{ID: members.ID(b), Name: o.Name, Cluster: o.Cluster, Listen: o.Listen, Zone: o.Zone,
		Protocol: members.Protocol{Speaks: protocol}, Seeds: o.Join, Log: o.Log}
	if r.cluster != nil {
		r.members.Key = r.cluster.GossipKey()
	}
	if r.members.Listen == "" {
		if r.members.Listen, err = towards(ctx, o.Join, routed); err != nil {
			return nil, err
		}
	}
	return r, r.settle()
}

// settle makes Listen one address of this machine.
func (r *Part) settle() error {
	c := r.members
	c.Data = netip.AddrPortFrom(netip.IPv6LinkLocalAllNodes(), 1) // known once the node listens; no other is longer
	if err := c.Check(); err != nil {
		return wrong(err)
	}
	at, err := members.ResolveListen(c.Listen, members.DefaultPort)
	if err != nil {
		return lacking(err)
	}
	c.Listen = at.String()
	r.members.Listen = c.Listen
	return wrong(c.Check()) // checks whether that address needs a key
}

// name returns the cluster's name.
func (r *Part) name() string { return cmp.Or(r.o.Cluster, members.DefaultCluster) }

// keyOf reads the cluster key. nil means that there is none.
func keyOf(c config.Membership) (*secret.Key, error) {
	var key secret.Key
	var err error
	switch {
	case c.KeyFile != "":
		if key, err = secret.ReadFile(c.KeyFile); err != nil {
			return nil, fmt.Errorf("cluster.key_file: %w", err)
		}
	case os.Getenv(config.KeyVariable) != "":
		if key, err = secret.ReadEnv(config.KeyVariable); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	return &key, nil
}

// ID returns the node's id.
func (r *Part) ID() string { return r.Router.Self() }

// Members returns the configuration of the gossip: the bytes that the node donates, and the directory in which
// it remembers the other members. An empty dir means that it does not.
func (r *Part) Members(donated int64, dir string) members.Config {
	c := r.members
	c.Donated, c.Dir = donated, dir
	return c
}

// Identity returns the identity by which other members recognize the node as one of theirs.
func (r *Part) Identity() (*secret.Identity, error) {
	if r.cluster == nil {
		return secret.Keyless(r.name(), r.ID())
	}
	return r.cluster.Identity(r.ID(), secret.Options{Plain: r.o.Plain})
}

// Joined gives the Part the other members, and then announces that the node can be asked for what it owns. A
// member that hears of it asks for names and blocks at once.
func (r *Part) Joined(ctx context.Context, p Peers, announce func(context.Context) error) error {
	r.peers.Store(&p)
	if err := announce(ctx); err != nil {
		return Unjoined(err)
	}
	return nil
}

// joined returns the other members. It is nil until the node has joined.
func (r *Part) joined() Peers {
	if p := r.peers.Load(); p != nil {
		return *p
	}
	return nil
}

// Active returns the names of the members that own blocks, by id.
func (r *Part) Active() map[string]string {
	all := map[string]string{}
	if joined := r.joined(); joined != nil {
		for _, m := range joined.Members().Members {
			if m.State == members.Active {
				all[m.ID.String()] = m.Name
			}
		}
	}
	return all
}
