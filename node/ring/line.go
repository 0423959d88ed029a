package ring

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/wire"
)

// counted is what a Part remembers for its line in the node's status.
type counted struct {
	ledger
	company sync.Mutex // guards lately
	lately  time.Time  // when other members were last seen
}

// Line returns the node's part in the ring without asking other nodes. A node that has seen no other is alone
// since it started.
func (r *Part) Line(started time.Time) *status.RingLine {
	x := &status.RingLine{Name: r.members.Name, Zone: r.members.Zone, Cluster: r.name(), Encryption: r.encryption(),
		State: members.Joining.String(), Alive: 1, Join: r.members.Seeds, Reads: r.o.Reads()}
	joined := r.joined()
	if joined == nil {
		return x
	}
	s := joined.Members()
	x.Alive = 0
	for _, m := range s.Members {
		if m.ID == r.members.ID {
			x.Name, x.Address, x.State, x.Donated = m.Name, m.Address.String(), m.State.String(), m.Donated
		}
		if m.Health == members.Alive {
			x.Alive++
		} else {
			x.Suspect++
		}
	}
	x.Missing = int64(len(s.Missing))
	x.Absent = absent(s.Missing)
	if alone := r.aloneSince(s, started); len(x.Join) > 0 && !alone.IsZero() {
		x.AloneS = 1 + int64(time.Since(alone)/time.Second)
	}
	x.Share = r.share(r.members.ID)
	barred := barred(s, joined.Outages())
	x.Unreachable, x.Barred = int64(len(barred)), barred[:min(len(barred), status.MostAbsent)]
	m, served := joined.Stats()
	x.Refused, x.Cut, x.JoinsFailed, x.Served = m.Refused, m.Cut, m.JoinsFailed, servedOf(served)
	x.Refusal, x.Rival = m.Refusal, m.Rival
	x.Peers = r.counted.take()
	return x
}

// encryption returns on, off, or none if there is no key.
func (r *Part) encryption() string {
	switch {
	case r.cluster == nil:
		return "none"
	case r.o.Plain:
		return "off"
	}
	return "on"
}

// aloneSince returns when the last other member was there. It is zero if there is one now.
func (r *Part) aloneSince(s *members.Snapshot, started time.Time) time.Time {
	r.counted.company.Lock()
	defer r.counted.company.Unlock()
	if len(s.Members) > 1 {
		r.counted.lately = time.Now()
		return time.Time{}
	}
	alone := started
	if r.counted.lately.After(alone) {
		alone = r.counted.lately
	}
	for _, m := range s.Missing {
		if m.HealthSince.After(alone) {
			alone = m.HealthSince
		}
	}
	return alone
}

// absent returns the first of the missing members, by name.
func absent(missing []members.Member) (all []status.Absent) {
	for _, m := range missing {
		all = append(all, status.Absent{Name: m.Name, Address: m.Address.String(), ForS: int64(time.Since(m.HealthSince) / time.Second)})
	}
	slices.SortFunc(all, func(a, b status.Absent) int { return cmp.Compare(a.Name, b.Name) })
	return all[:min(len(all), status.MostAbsent)]
}

const (
	// barredAfter is the least time between the first and the last failure of a member that failed everything
	// in between. A member that died is missing by then.
	barredAfter = 10 * time.Second
	// barredFor is how long this is reported after the last attempt. A member that is not asked again may have
	// recovered.
	barredFor = 2 * time.Minute
)

// barred returns, by name, the members that are alive by gossip but fail what they are asked.
func barred(s *members.Snapshot, outages map[members.ID]wire.Outage) (all []status.Barred) {
	for _, m := range s.Members {
		o, out := outages[m.ID]
		if out && m.Health == members.Alive && o.Last.Sub(o.Since) >= barredAfter && time.Since(o.Last) < barredFor {
			all = append(all, status.Barred{Name: m.Name, Data: addressOf(m.Data), ForS: int64(time.Since(o.Since) / time.Second), Cause: o.Cause.Error()})
		}
	}
	slices.SortFunc(all, func(a, b status.Barred) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// servedOf returns the figures of the server that peers ask.
func servedOf(s wire.Stats) status.Served {
	return status.Served{Connections: s.Connections, Queued: s.Queued, Bytes: s.Sent, Answers: map[string]int64{
		"data": s.Answers, "miss": s.Misses, "refused": s.Refused, "stale": s.Stale, "error": s.Errors, "cancelled": s.Cancelled}}
}

// asked is a peer that this node asks, such as *wire.Peer. It keeps counting until its last connection has
// ended.
type asked interface {
	Name() string
	Stats() wire.Stats
}

// Asks sets which peers are asked from now on. The counts of the others stay.
func (r *Part) Asks(peers []*wire.Peer) {
	all := make([]asked, len(peers))
	for i, p := range peers {
		all[i] = p
	}
	r.counted.asks(all)
}

// ledger adds up what was asked of peers, by name, including peers that are gone. Otherwise a counter would
// fall when a peer goes, or comes back and counts from 0 again. It keeps Most rows for good, those with the
// most traffic if more arrive at once. Further names share the row "other". The zero ledger is ready.
type ledger struct {
	mu   sync.Mutex           // guards the rest
	sums SumsByDir            // by name and kind
	last map[asked]wire.Stats // by peer, the counts that are already in sums
	gone map[asked]bool       // peers in last that are no longer asked but may still count
}

// requests and bytes are two kinds of a ledger's sums. All other kinds are failures.
const (
	requests = "requests"
	bytes    = "bytes"
)

func kinds(s wire.Stats) map[string]int64 {
	return map[string]int64{requests: s.Requests, bytes: s.Received, "refused": s.Refused, "error": s.Errors,
		"mismatch": s.Mismatches, "silence": s.Silences, "broken": s.Broken}
}

// asks sets who is asked from now on. It adds up the counts of the others now: a node that falls silent is soon
// gone, and nobody may have looked since its silence was counted.
func (l *ledger) asks(peers []asked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.last
	l.last = map[asked]wire.Stats{}
	if l.gone == nil {
		l.sums, l.gone = SumsByDir{}, map[asked]bool{}
	}
	for _, p := range peers {
		l.last[p] = before[p]
		delete(before, p)
	}
	for p, last := range before {
		l.last[p], l.gone[p] = last, true
	}
	for p := range l.gone {
		l.add(p, p.Stats())
	}
}

// add adds what a peer has counted since the last time. A peer that is gone, and has nothing in flight, is
// forgotten.
func (l *ledger) add(p asked, now wire.Stats) {
	counts, before := kinds(now), kinds(l.last[p])
	for kind := range counts {
		counts[kind] -= before[kind]
	}
	l.sums.Add(p.Name(), counts)
	l.last[p] = now
	if l.gone[p] && now.Connections == 0 && now.InFlight == 0 {
		delete(l.last, p)
		delete(l.gone, p)
	}
}

// take adds what was asked of each peer since the last time, and returns all rows by name.
func (l *ledger) take() (all []status.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := map[asked]wire.Stats{}
	for p := range l.last {
		now[p] = p.Stats()
	}
	for _, p := range slices.SortedFunc(maps.Keys(now), func(a, b asked) int {
		return cmp.Or(cmp.Compare(now[b].Received, now[a].Received), cmp.Compare(a.Name(), b.Name()))
	}) {
		l.add(p, now[p])
	}
	for _, name := range slices.Sorted(maps.Keys(l.sums)) {
		p := status.Peer{Name: name, Failures: map[string]int64{}}
		for kind, n := range l.sums[name] {
			switch kind {
			case requests:
				p.Requests = n
			case bytes:
				p.Bytes = n
			default:
				p.Failures[kind] = n
			}
		}
		all = append(all, p)
	}
	return all
}
