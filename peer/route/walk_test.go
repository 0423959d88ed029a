package route

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/wire"
)

func TestAWalkAlongTheRanks(t *testing.T) {
	// Of the ranks of a slot, this node is Here, and a node that can be asked is There. A
	// node that cannot be asked is Down and passed by. After two nodes that can be asked,
	// the walk is over.
	const slot = 7
	for _, c := range []struct {
		nodes int
		self  int   // this node's rank; 0 means that it has none
		down  []int // ranks
		most  int
		want  string // ranks and steps
	}{
		{nodes: 0, most: 2, want: ""},
		{nodes: 8, most: 2, want: "1 There, 2 There"},
		{nodes: 8, most: 1, want: "1 There"},
		{nodes: 8, self: 1, most: 1, want: "1 Here, 2 There"},
		{nodes: 8, self: 2, most: 2, want: "1 There, 2 Here, 3 There"},
		{nodes: 8, self: 3, most: 2, want: "1 There, 2 There"},
		{nodes: 8, down: []int{1}, most: 2, want: "1 Down, 2 There, 3 There"},
		{nodes: 8, down: []int{1, 2}, most: 1, want: "1 Down, 2 Down, 3 There"},
		{nodes: 8, down: []int{1, 2, 3, 4}, most: 2, want: "1 Down, 2 Down, 3 Down, 4 Down"},
		{nodes: 8, self: 3, down: []int{1, 4}, most: 2, want: "1 Down, 2 There, 3 Here, 4 Down"},
		{nodes: 8, most: place.Ranks, want: "1 There, 2 There, 3 There, 4 There"},
		{nodes: 1, self: 1, most: 2, want: "1 Here"},
		{nodes: 2, self: 2, down: []int{1}, most: 2, want: "1 Down, 2 Here"},
	} {
		m, err := place.New(ids(c.nodes))
		if err != nil {
			t.Fatal(err)
		}
		rank := func(n int) string {
			node, _ := m.Rank(slot, n)
			return node.ID
		}
		table := &Table{Map: m, Peers: map[string]Peer{}}
		for _, n := range ids(c.nodes) {
			table.Peers[n.ID] = &fakePeer{}
		}
		for _, n := range c.down {
			delete(table.Peers, rank(n))
		}
		w := table.walk(rank(c.self), slot, c.most)
		got, there := []string(nil), 0
		for id, p, at := w.Next(); at != Nobody; id, p, at = w.Next() {
			if at == There {
				there++
			}
			if id != rank(w.Rank()) || (p != nil) != (at == There) || w.Asked() != there {
				t.Errorf("%+v: rank %d is %q, a peer %v, %d asked", c, w.Rank(), id, p, w.Asked())
			}
			got = append(got, fmt.Sprintf("%d %s", w.Rank(), [...]string{"Nobody", "Here", "There", "Down"}[at]))
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
		if id, p, at := w.Next(); id != "" || p != nil || at != Nobody {
			t.Errorf("%+v: behind the end there is %q", c, id)
		}
	}
	alone := (*Table)(nil).walk("me", slot, 2)
	if id, _, at := alone.Next(); id != "me" || at != Here {
		t.Errorf("alone: %q, %v", id, at)
	}
	if _, _, at := alone.Next(); at != Nobody {
		t.Errorf("alone there is a second rank: %v", at)
	}
}

func TestWhatSaysToGoElsewhere(t *testing.T) {
	// A node that is silent or refuses leaves the question to the next rank. An answer
	// does not, nor does the end of the asker's context.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		next bool
	}{
		{t.Context(), nil, false}, {t.Context(), wire.ErrDown, true}, {t.Context(), wire.ErrSilent, true}, {t.Context(), hearth.ErrRefused, true},
		{t.Context(), wire.ErrMemory, true}, {t.Context(), wire.ErrChecksum, true}, {t.Context(), fs.ErrPermission, true}, {t.Context(), hearth.ErrStale, false},
		{t.Context(), hearth.ErrMiss, false}, {t.Context(), &wire.Error{Class: wire.Away}, false}, {t.Context(), &wire.Error{Class: wire.Permission}, false},
		{t.Context(), fmt.Errorf("at node a: %w", &wire.Error{Class: wire.NotKept}), false}, {gone, wire.ErrDown, false}, {gone, errors.New("any"), false},
	} {
		if got := Elsewhere(c.ctx, c.err); got != c.next {
			t.Errorf("%v, who asks is gone: %v: the next one: %v", c.err, c.ctx.Err() != nil, got)
		}
	}
}
