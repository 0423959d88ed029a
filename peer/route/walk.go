package route

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/wire"
)

// Table is the nodes, as one of them knows them at a moment: a routing table.
type Table struct {
	// Map is where everything is. It must be given.
	Map *place.Map
	// Peers by their place.Node.ID: all that can be asked, without this node.
	Peers map[string]Peer
	// Changed is when owners last were others before; zero: never.
	Changed time.Time
}

// Walk goes along the ranks of a slot, its owner first, as one node asks them. It ends
// where the ranks do, or with as many peers as may be asked. It asks nobody by itself.
type Walk struct {
	table *Table // nil: the node is alone, and has rank 1 of everything
	self  string
	slot  place.Slot
	most  int // peers
	rank  int // the last one, from 1
	asked int
}

// Step is who has a rank.
type Step int

const (
	// Nobody has it: the walk is over.
	Nobody Step = iota
	// Here is this node itself.
	Here
	// There is a peer that can be asked.
	There
	// Down is one that cannot be asked now: the next may do.
	Down
)

func (t *Table) walk(self string, s place.Slot, most int) Walk {
	return Walk{table: t, self: self, slot: s, most: most}
}

// Next is the node of the next rank, and the way to it where it is There.
func (w *Walk) Next() (id string, p Peer, at Step) {
	if w.asked == w.most {
		return "", nil, Nobody
	}
	w.rank++
	if w.table == nil {
		if w.rank == 1 {
			return w.self, nil, Here
		}
		return "", nil, Nobody
	}
	n, ok := w.table.Map.Rank(w.slot, w.rank)
	switch {
	case !ok:
		return "", nil, Nobody
	case n.ID == w.self:
		return n.ID, nil, Here
	}
	if p = w.table.Peers[n.ID]; p == nil {
		return n.ID, nil, Down
	}
	w.asked++
	return n.ID, p, There
}

// Rank is that of the last node, from 1.
func (w *Walk) Rank() int { return w.rank }

// Asked is how many peers were There.
func (w *Walk) Asked() int { return w.asked }

// unreached is why a node is not asked.
func unreached(id string) error { return fmt.Errorf("node %s: %w", id, wire.ErrDown) }

// Elsewhere reports whether an error says that a rank could not be asked, so that the next one
// may do, rather than what it has to say.
func Elsewhere(ctx context.Context, err error) bool { return judge(ctx, err) == detour }

// judgement is what an answer leaves to do.
type judgement int

const (
	final   judgement = iota // data, or what any other would say
	useless                  // a further rank is no better than the bucket
	detour                   // the next rank may do
)

func judge(ctx context.Context, err error) judgement {
	if err == nil {
		return final // most often; said lies on the heap
	}
	var said *wire.Error
	switch {
	case errors.Is(err, hearth.ErrStale), ctx.Err() != nil:
		return final
	case errors.Is(err, hearth.ErrMiss):
		return useless // it does not know the link
	case errors.As(err, &said):
		if said.Class == wire.Away || said.Class == wire.Deadline || said.Class == wire.NotKept {
			return final
		}
		return useless
	}
	return detour
}
