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

// Table is a routing table: the nodes, as one of them knows them at a moment.
type Table struct {
	// Map says who owns what. It must be given.
	Map *place.Map
	// Peers has every node that can be asked, by its place.Node.ID, without this node.
	Peers map[string]Peer
	// Changed is the time of the last change of owners. Zero means never.
	Changed time.Time
}

// Walk goes along the ranks of a slot, its owner first, in the order in which one node asks them.
// It ends with the ranks, or after as many peers as may be asked. It sends no request itself.
type Walk struct {
	table *Table // nil means that the node is alone, and has rank 1 of everything
	self  string
	slot  place.Slot
	most  int // most peers to ask
	rank  int // the last rank, from 1
	asked int
}

// Step says what node has a rank.
type Step int

const (
	// Nobody means that the walk is over.
	Nobody Step = iota
	// Here means this node itself.
	Here
	// There means a peer that can be asked.
	There
	// Down means a peer that cannot be asked now. The next rank may be.
	Down
)

func (t *Table) walk(self string, s place.Slot, most int) Walk {
	return Walk{table: t, self: self, slot: s, most: most}
}

// Next is the node of the next rank, with its Peer if the step is There.
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

// Rank is the rank of the last node, from 1.
func (w *Walk) Rank() int { return w.rank }

// Asked is the number of peers that were There.
func (w *Walk) Asked() int { return w.asked }

// unreached is the error for a node that cannot be asked.
func unreached(id string) error { return fmt.Errorf("node %s: %w", id, wire.ErrDown) }

// Elsewhere reports whether an error means that a rank could not be asked, so that the next one may
// be, rather than being its answer.
func Elsewhere(ctx context.Context, err error) bool { return judge(ctx, err) == detour }

// judgement says what to do after an answer.
type judgement int

const (
	final   judgement = iota // data, or the answer that any other node would give
	useless                  // a further rank is no better than the bucket
	detour                   // the next rank may do
)

func judge(ctx context.Context, err error) judgement {
	if err == nil {
		return final // the usual case; without it said would be allocated
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
