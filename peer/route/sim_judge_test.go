//go:build !race

package route

import (
	"slices"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
)

// lag is how long after a look at the ring a reader may ask the bucket: two ranks were
// silent, and the rest of a run waited for a block that others had asked for.
func (s *sim) lag() time.Duration { return 2*simSilence + s.bucketTakes + 50*time.Millisecond }

// judge checks the requests to the bucket against the maps that coexisted at that time.
// By each of them, every owner of a block may fetch it once, or the next rank if the
// owner is dead. Once all know one map, nobody whose former owners have the block may.
func (s *sim) judge() {
	for id, all := range s.fetches {
		slot := place.OfID(id)
		for i, f := range all {
			if slices.ContainsFunc(all[:i], func(before fetch) bool { return before.node == f.node }) {
				s.faults["a node fetched a block twice"]++
			}
			if owns, _ := s.allowed(slot, f.at); !owns[f.node] {
				what := "a node fetched what it did not own"
				if s.once(slot, f.node) {
					what = "a node fetched what another one owned by then"
				}
				s.faults[what]++
			}
			if s.had(slot, f, all[:i]) {
				s.faults["a node fetched what a former owner has"]++
			}
		}
	}
	for id, all := range s.strays {
		for _, f := range all {
			if _, orphan := s.allowed(place.OfID(id), f.at); !orphan {
				s.faults["a reader went to the bucket though an owner lived"]++
			}
		}
	}
}

// coexisting are the maps by which a node may have read at a time, or so shortly before
// that the bucket is asked only now. A map goes when all have heard of the next one.
func (s *sim) coexisting(at time.Time) (all []simMap) {
	for i, m := range s.maps {
		over := i+1 < len(s.maps) && at.After(s.maps[i+1].told.Add(simHears+s.lag()))
		if !at.Before(m.told) && !over {
			all = append(all, m)
		}
	}
	return all
}

// allowed are the nodes that may have to fetch a slot's blocks at a time. orphan means
// that all nodes that are asked for them are dead.
func (s *sim) allowed(slot place.Slot, at time.Time) (nodes map[string]bool, orphan bool) {
	nodes = map[string]bool{}
	for _, m := range s.coexisting(at) {
		alive := false
		for rank := 1; rank <= mostFills && !alive; rank++ {
			if n, ok := m.Rank(slot, rank); ok {
				nodes[n.ID] = true
				alive = !s.diedBy(n.ID, at)
			}
		}
		orphan = orphan || !alive
	}
	return nodes, orphan
}

func (s *sim) diedBy(node string, at time.Time) bool {
	died := s.dead[node]
	return !died.IsZero() && !died.After(at)
}

// once reports whether a node ever owned a slot.
func (s *sim) once(slot place.Slot, node string) bool {
	return slices.ContainsFunc(s.maps, func(m simMap) bool {
		n, ok := m.Owner(slot)
		return ok && n.ID == node
	})
}

// had reports whether a node fetched a block, while all knew one map, that a node which it
// asks before the bucket had by then.
func (s *sim) had(slot place.Slot, f fetch, before []fetch) bool {
	last := -1
	for i, m := range s.maps {
		if !m.told.After(f.at) {
			last = i
		}
	}
	// An owner looks at its ring when it asks former owners, right before the bucket.
	const right = 50 * time.Millisecond
	if last < 1 || f.at.Before(s.maps[last].told.Add(simHears+right)) {
		return false
	}
	asked := 0
	for rank := 1; rank <= place.Ranks && asked < mostPeeks; rank++ {
		n, ok := s.maps[last].Rank(slot, rank)
		if !ok || n.ID == f.node {
			continue
		}
		asked++
		has := slices.ContainsFunc(before, func(b fetch) bool {
			return b.node == n.ID && b.at.Add(s.bucketTakes+right).Before(f.at)
		})
		if has && !s.diedBy(n.ID, f.at) { // a node that died after it was asked has not answered
			return true
		}
	}
	return false
}

// counted is how often each node fetched a block.
func counted(all map[hearth.ID][]fetch) map[hearth.ID]map[string]int {
	counts := map[hearth.ID]map[string]int{}
	for id, fetches := range all {
		counts[id] = map[string]int{}
		for _, f := range fetches {
			counts[id][f.node]++
		}
	}
	return counts
}
