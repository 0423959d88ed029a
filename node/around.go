package node

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/share"
	"github.com/hearthfs/hearth/node/ring"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/node/wiring"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/peer"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/warmup/owners"
)

// ringAhead bounds the read-ahead of one reader in a ring, in bytes. Nodes that read one large file reach its
// extents at the same time. With 2 extents ahead, all of them wait for one owner after another, and the links
// of the other owners stay idle. Five nodes at 200 Mbit/s each took 82 s for 1 GiB with 2 extents ahead, 64 s
// with 8, 59 s with 16 and 60 s with 32.
const ringAhead = 16 * hearth.ExtentBlocks * hearth.BlockSize

// around is this node's part in a ring. It has the router of its reads, what it answers peers, and, once
// the node has joined, the other members.
type around struct {
	*route.Router
	part  *ring.Part
	names *share.Names
	ring  *peer.Ring // nil until the node has joined

	// owners has blocks warmed up at their owners, and volumes does so onto volumes. served does the same here for
	// peers. owners is nil on a node without a disk tier.
	owners, volumes *owners.Owners
	served          *owners.Served

	lending func(wiring.Answers) wiring.Answers // adds what the node seeds
}

var _ wiring.Router = (*around)(nil)

// List implements wiring.Router. The tree finds by a type assertion that the result is a Sharer.
func (a *around) List(origin namespace.Origin) namespace.Origin { return a.names.Over(origin) }

// Serve implements wiring.Router.
func (a *around) Serve(answers wiring.Answers) error {
	answers.Owned = watch.Peers{Source: answers.Owned}
	a.part.Answer(a.lending(answers))
	return nil
}

// lists returns the node that lists a directory, and whether that is this node. An empty id means that no node
// does. No other node is asked for the directory.
func (a *around) lists(dir [16]byte) (id string, self bool) {
	id, at := a.Owner(place.OfDirectory(dir))
	return id, at == route.Here
}

// openOwners has warm-up and prefetch do their work at the owners of blocks.
func (n *Node) openOwners() {
	a := n.ring
	if a == nil {
		return
	}
	o := owners.ServedOptions{Known: a.part.Check, Peek: n.seedFrom, Readers: n.readers, Throttled: n.throttled, Connections: n.forWarmUp,
		Volumes: &owners.Kept{Own: n.toVolumes(), Store: n.volumes, Known: n.volumesKnown}}
	var load ring.Load
	if n.disk != nil {
		o.Own, o.Ahead, o.Disk = watch.WarmUp{Loader: n.tiers.Own}, n.tiers.Own, n.disk
	}
	a.served = owners.NewServed(o)
	if n.disk != nil {
		load = a.served.Run
		a.owners = owners.New(owners.Options{Router: a.Router, Names: a.part.Active, Disk: n.disk, Served: a.served})
	}
	a.volumes = owners.New(owners.Options{Router: a.Router, Names: a.part.Active, Disk: n.volumes, Volumes: true, Served: a.served})
	a.part.Warms(load, a.served.Calls())
}

// throttled adds the SlowDown answers that owners report to this node's own count. A nil around returns own as
// it is.
func (a *around) throttled(own func() int64) func() int64 {
	if a == nil {
		return own
	}
	return func() int64 {
		n := a.volumes.Throttled(own())
		if a.owners != nil {
			n = a.owners.Throttled(n)
		}
		return n
	}
}

// leave tells the other members that this node goes, and ends what it asks and answers. If nobody hears of it,
// that is no failure: the others have left as well, or cannot be reached.
func (a *around) leave(unheard func(cause error)) (err error) {
	if a.ring != nil {
		if err := a.ring.Leave(context.Background()); err != nil && !errors.Is(err, members.ErrLeft) && !errors.Is(err, members.ErrClosed) {
			unheard(err)
		}
		err = a.ring.Close()
	}
	a.names.Close()
	if a.owners != nil {
		a.owners.Close()
	}
	if a.served != nil {
		a.volumes.Close()
		a.served.Close()
	}
	return err
}

// routes adds the admin API's questions about the ring. On a nil around they answer that the node is in no
// ring.
func (a *around) routes(add func(string, func(*http.Request) (any, error)), file func(context.Context, string) (*hearth.Object, error)) {
	var part *ring.Part
	if a != nil {
		part = a.part
	}
	part.Routes(add, file)
}

// line returns the ring's part of the node's status. It is nil if the node is in no ring.
func (a *around) line(started time.Time) *status.RingLine {
	if a == nil {
		return nil
	}
	x, s := a.part.Line(started), a.names.Stats()
	x.Names = map[string]int64{"asked": s.Pages + s.Finds, "bucket": s.Elsewhere, "told": s.ToldPages + s.ToldFinds, "refused": s.Refused, "failed": s.Failed}
	x.News = map[string]int64{"told": s.NewsTold, "heard": s.NewsHeard, "asked": s.NewsAsked, "lost": s.NewsLost}
	return x
}

// reads returns the counts of this node's reads of others' blocks.
func (a *around) reads() status.RingReads {
	s := a.Stats()
	strays := int64(0)
	if a.owners != nil {
		strays = a.owners.Strays()
	}
	return status.RingReads{Strays: strays, Asked: s.Asked, Loaded: s.Loaded, Detours: s.Detours, Bytes: s.Bytes, Elsewhere: s.Elsewhere, Passed: s.Passed, Most: s.Most,
		Peeks: s.Peeks, Found: s.Found, Late: s.Late, Gone: s.Gone, Alone: s.Alone}
}

// openRing makes the node's part in a ring, if the configuration has one.
func (n *Node) openRing(ctx context.Context) error {
	if !n.config.Ring.On() {
		return nil
	}
	id := ""
	if n.disk != nil {
		id = n.disk.NodeID()
	}
	a := &around{lending: n.lending}
	part, err := ring.New(ctx, ring.Options{Membership: n.config.Ring, Pool: n.pool, Log: n.config.Log, Link: n.linked, Away: origin.Away,
		Figures: n.figures, Reads: a.reads}, id)
	if err != nil {
		return err
	}
	a.part, a.Router, n.ring = part, part.Router, a
	n.owner.router.Store(a.Router)
	a.names = share.New(share.Options{Owner: a.lists, Others: a.Others, Call: a.Call, Pool: n.pool})
	return nil
}

// owner tells whether this node owns a block. The disk tier needs the answer as soon as it opens, and the ring
// is made only after that.
type owner struct{ router atomic.Pointer[route.Router] }

// owns reports whether this node is to keep a block. Until the ring is made, it keeps every block.
func (o *owner) owns(id hearth.ID) bool {
	r := o.router.Load()
	return r == nil || r.Owns(id)
}

// joinRing announces this node to the other members.
func (n *Node) joinRing(ctx context.Context) error {
	if n.ring == nil {
		return nil
	}
	donated := n.pool.Stats().Budget
	if n.disk != nil {
		donated = 0
		for _, d := range n.dirs {
			donated += d.Budget
		}
	}
	a := n.ring
	a.names.Serve(n.tree.Tree)
	identity, err := a.part.Identity()
	if err != nil {
		return err
	}
	c := a.part.Members(donated, n.dirs.First())
	handler := a.part.Handler()
	maps.Copy(handler.Calls, a.names.Calls())
	a.ring, err = peer.Start(ctx, peer.Config{Members: c, GossipKey: c.Key, Identity: identity, Pool: n.pool, Router: a.Router, Asked: a.part.Asks, Handler: handler, Silence: n.config.PeerSilence, Trouble: func(what, who string, cause error) {
		n.events.Trouble(what, what, "node", who, "cause", cause)
	}})
	if err != nil {
		return ring.Unjoined(err)
	}
	return a.part.Joined(ctx, a.ring, a.ring.Announce)
}

// linked returns the identity of a link's origin and the prefix of its keys.
func (n *Node) linked(name string) (identity, prefix string, ok bool) {
	l := n.links.named(name)
	if l == nil {
		return "", "", false
	}
	named, ok := l.origin.(interface{ Identity() string })
	if !ok {
		return "", "", false
	}
	return named.Identity(), l.prefix, true
}

// figures returns what the node tells other members about itself.
func (n *Node) figures() status.MemberFigures {
	f := status.MemberFigures{Version: n.config.Version, UptimeS: int64(time.Since(n.started).Seconds()), HitRatio: -1}
	for _, t := range n.tierStatus() {
		if t.Name == "disk" || n.disk == nil {
			f.Used += t.Used
		}
	}
	if hits := n.seen.reads.Reads().SinceStart.HitBytes; hits != nil {
		f.HitRatio = *hits
	}
	return f
}

// fileOf returns the object at a path or a URL.
func (n *Node) fileOf(ctx context.Context, asked string) (*hearth.Object, error) {
	_, x, err := n.resolve(ctx, asked)
	if err == nil && x.Dir {
		err = usage("%s is a directory: name a file", asked)
	}
	return &x.Object, err
}
