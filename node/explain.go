package node

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

// serveExplain answers where a file's bytes are, and what a read at off would do.
func (n *Node) serveExplain(r *http.Request) (any, error) {
	off, err := strconv.ParseInt(r.FormValue("off"), 10, 64)
	if err != nil || off < 0 {
		return nil, usage("explain: an offset is a number of bytes, 0 or more")
	}
	return n.explain(r.Context(), r.FormValue("path"), off)
}

// explain looks the name up without asking the origin, so that the answer tells how fresh the name is. Only an
// unknown name is asked for at the origin.
func (n *Node) explain(ctx context.Context, asked string, off int64) (*status.Explanation, error) {
	name := status.ExplainedName{Path: asked}
	p, x, err := n.resolve(namespace.Quiet(ctx), asked)
	if err != nil && admin.KindOf(err) == admin.KindNotFound {
		name.Asked = true
		p, x, err = n.resolve(ctx, asked)
	}
	if err != nil {
		return nil, err
	}
	name.Dir, name.Left = x.Dir, x.TTL
	var l *link
	if isURL(asked) {
		l, _, err = n.links.holding(asked)
	} else if l, _ = n.links.at(p); l == nil {
		err = usage("%s is a directory that the links make: it names no keys", asked)
	}
	if err != nil {
		return nil, err
	}
	name.Link, name.Origin, name.Freshness = l.Path, l.Origin.URL, l.freshness
	if f := l.health.Last(); f != nil && !f.OneKey {
		name.Away = f.Says
	}
	if cause := l.doubted.Load(); cause != nil {
		name.Away = *cause
	}
	return status.Explain(name, &x.Object, off, n.knowledge(ctx, l, p)), nil
}

// peersAnswer bounds the time in which the nodes of a ring say what they hold.
const peersAnswer = 2 * time.Second

// knowledge returns what the tiers know without reading.
func (n *Node) knowledge(ctx context.Context, l *link, p string) status.ExplainedBy {
	k := status.ExplainedBy{RAM: n.mem.Has, Fetching: func(id hearth.ID) bool {
		return n.tiers.Reads.Fetching(id) || n.tiers.Own.Fetching(id)
	}}
	if n.disk != nil {
		k.Find, k.Whole, k.WouldTake = n.disk.Find, n.disk.Whole, n.disk.WouldTake
	}
	if len(n.volumes.All()) > 0 {
		k.Volume = n.volumes.At
	}
	if n.ring != nil {
		k.Owners = func(b hearth.Block) ([]string, bool) { return n.ring.part.Names(b), n.ring.Mine(b) }
	}
	if n.ring != nil && n.ring.owners != nil {
		k.Peers = func(blocks []hearth.Block) func(hearth.ID) string {
			asking, cancel := context.WithTimeout(ctx, peersAnswer)
			defer cancel()
			by := n.ring.owners.Holders(asking, blocks)
			return func(id hearth.ID) string {
				if at := by(id); at != "" {
					return n.ring.part.Name(at)
				}
				return ""
			}
		}
	}
	for _, x := range n.mounts.standing() {
		if _, shows := belowPath(p, x.Prefix); shows || isURL(p) && x.link == l {
			s := x.server.Stats()
			k.Mounts = append(k.Mounts, status.LendingMount{Dir: x.Dir, Open: string(s.Open), Why: s.Why})
		}
	}
	return k
}
