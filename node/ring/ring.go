// Package ring is a node's part in a ring, as far as it is not of peers alone: what it
// was configured to be, what it answers, and how the ring looks from here. Package node
// puts it together with peer.Ring, by which it is joined. Its Router is how the node reads.
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

// protocol is what this release speaks with peers.
const protocol = 1

// Options are what a Part is made of.
type Options struct {
	config.Membership
	// Pool is the node's.
	Pool *hearth.Pool
	// Log receives what people can act on; nil: slog.Default().
	Log *slog.Logger
	// Link is the identity of a link's origin, of which versions are made, and what its keys
	// begin with; false: this node has no such link.
	Link func(name string) (identity, prefix string, ok bool)
	// Away reports whether an error says that an origin cannot be asked now.
	Away func(error) bool
	// Figures are what the node says of itself; Served, Asked and Suspects are filled in.
	Figures func() status.MemberFigures
	// Reads are what came of reads of others' blocks.
	Reads func() status.RingReads
}

// Peers are the others once the ring was joined; *peer.Ring is.
type Peers interface {
	Members() *members.Snapshot
	Stats() (m members.Stats, served wire.Stats)
	Outages() map[members.ID]wire.Outage
}

// Part is this node's in the ring.
type Part struct {
	// Router is how the others are asked; alone until the ring was joined.
	Router *route.Router

	o       Options
	cluster *secret.Cluster // nil: there is no key
	members members.Config
	answers wiring.Answers
	load    Load                   // for peers that warm up
	calls   map[uint16]wire.Answer // beside its own; nil: none
	peers   atomic.Pointer[Peers]  // nil until it has joined
	counted counted
}

// New makes the part of a node whose id is 32 hexadecimal digits, as its cache directory
// keeps it; "": one for as long as it runs. No other node hears of it yet. An error is an
// admin.Error: of usage where the configuration cannot be meant, or the key.
func New(ctx context.Context, o Options, id string) (*Part, error) {
	if id == "" {
		id = newID()
	}
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != len(members.ID{}) {
		return nil, wrong(fmt.Errorf("the cache directory's node id %q is none: 32 hexadecimal digits", id))
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

// settle has Listen name one address of this machine.
func (r *Part) settle() error {
	c := r.members
	c.Data = netip.AddrPortFrom(netip.IPv6LinkLocalAllNodes(), 1) // known once peers are listened for; no other is longer
	if err := c.Check(); err != nil {
		return wrong(err)
	}
	at, err := members.ResolveListen(c.Listen, members.DefaultPort)
	if err != nil {
		return lacking(err)
	}
	c.Listen = at.String()
	r.members.Listen = c.Listen
	return wrong(c.Check()) // whether that address needs a key
}

// name is the cluster's.
func (r *Part) name() string { return cmp.Or(r.o.Cluster, members.DefaultCluster) }

// keyOf reads the cluster key; nil: there is none.
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

// ID is the node's.
func (r *Part) ID() string { return r.Router.Self() }

// Members is what the node says of itself: it donates bytes, and keeps in dir who the
// others are; "": nowhere.
func (r *Part) Members(donated int64, dir string) members.Config {
	c := r.members
	c.Donated, c.Dir = donated, dir
	return c
}

// Identity is by whom others know that the node is one of theirs.
func (r *Part) Identity() (*secret.Identity, error) {
	if r.cluster == nil {
		return secret.Keyless(r.name(), r.ID())
	}
	return r.cluster.Identity(r.ID(), secret.Options{Plain: r.o.Plain})
}

// Joined has the Part know the others, and then has announce tell them that the node can be
// asked for what it owns: whoever hears of it asks for names and blocks at once.
func (r *Part) Joined(ctx context.Context, p Peers, announce func(context.Context) error) error {
	r.peers.Store(&p)
	if err := announce(ctx); err != nil {
		return Unjoined(err)
	}
	return nil
}

// joined are the others; nil: it has not joined.
func (r *Part) joined() Peers {
	if p := r.peers.Load(); p != nil {
		return *p
	}
	return nil
}

// Active are the names of the members that own blocks, by id.
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
