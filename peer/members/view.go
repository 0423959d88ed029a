package members

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Health is what this node thinks of a member.
type Health uint8

const (
	// Alive members answer, as far as this node knows.
	Alive Health = iota
	// Suspect members answered neither this node's probe nor those that it asked others
	// for.
	Suspect
	// Dead members were found silent by this node or by others, and did not deny it.
	Dead
)

// String is the health in a word.
func (h Health) String() string { return [...]string{"alive", "suspect", "dead"}[min(h, Dead)] }

// Member is a node as this one sees it.
type Member struct {
	ID   ID
	Name string
	// Address is where it gossips, Data where it answers reads.
	Address, Data netip.AddrPort
	Zone          string
	// Donated is in bytes, as the function Donated rounds them.
	Donated  int64
	State    State
	Protocol Protocol
	// Since is when this node saw it come, HealthSince when its Health began. Both are
	// times of this node's clock, with the monotonic reading that time.Since uses. Since
	// is zero for a member that this process never saw.
	Since       time.Time
	Health      Health
	HealthSince time.Time
}

// Snapshot is who is in the ring, as this node knows it at one time. It is immutable:
// readers must not change its slices.
type Snapshot struct {
	// Generation grows by one with each snapshot of this process, from 1 on.
	Generation uint64
	// Members are in the ring, with this node and the suspects. Missing are those that
	// died and have been unseen for less than a day. Both are sorted by id.
	Members, Missing []Member

	superseded chan struct{}
	once       sync.Once // sets known
	known      map[netip.Addr]bool
}

// Knows reports whether a live or missing member gossips or answers reads at an address.
func (s *Snapshot) Knows(a netip.Addr) bool {
	s.once.Do(func() {
		s.known = make(map[netip.Addr]bool, len(s.Members)+len(s.Missing))
		for _, list := range [][]Member{s.Members, s.Missing} {
			for _, m := range list {
				s.known[m.Address.Addr()], s.known[m.Data.Addr()] = true, true
			}
		}
	})
	return s.known[a.Unmap()]
}

// Superseded is closed once there is a newer snapshot.
func (s *Snapshot) Superseded() <-chan struct{} { return s.superseded }

// Find returns the member with an id, if it is in the ring.
func (s *Snapshot) Find(id ID) (Member, bool) {
	at, ok := slices.BinarySearchFunc(s.Members, id, func(m Member, id ID) int { return bytes.Compare(m.ID[:], id[:]) })
	if !ok {
		return Member{}, false
	}
	return s.Members[at], true
}

func (s *Snapshot) misses(id ID) bool {
	_, ok := slices.BinarySearchFunc(s.Missing, id, func(m Member, id ID) int { return bytes.Compare(m.ID[:], id[:]) })
	return ok
}

// maxMissing members are remembered while they are missing, some 200 bytes each. A member
// that is found knows the others.
const maxMissing = 256

// table is what events have told so far. memberlist calls its methods under its own
// locks: they take one short lock and wait for nothing else.
type table struct {
	self   ID
	absent time.Duration // how long a member may be missing before it is forgotten

	mu      sync.Mutex // guards the rest but changed and current; no other lock is taken under it
	live    map[ID]Member
	names   map[string]ID // of the live members
	missing map[ID]Member
	made    uint64

	changed chan struct{} // capacity 1: there was a change since the last snapshot
	current atomic.Pointer[Snapshot]
}

func newTable(self ID, absent time.Duration) *table {
	return &table{self: self, absent: absent, live: map[ID]Member{}, names: map[string]ID{}, missing: map[ID]Member{}, changed: make(chan struct{}, 1)}
}

func (t *table) change() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// came notes a member that joined, came back, or says something new of itself.
func (t *table) came(m Member) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Since, m.Health, m.HealthSince = now, Alive, now
	if old, ok := t.live[m.ID]; ok {
		m.Since, m.Health, m.HealthSince = old.Since, old.Health, old.HealthSince
		delete(t.names, old.Name)
	}
	t.live[m.ID] = m
	t.names[m.Name] = m.ID
	delete(t.missing, m.ID)
	for id, gone := range t.missing {
		if gone.Name == m.Name || gone.Address == m.Address {
			delete(t.missing, id) // its machine is back with a new cache directory
		}
	}
	t.change()
}

// went notes a member that died or left.
func (t *table) went(id ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.live[id]
	if !ok || id == t.self {
		return
	}
	delete(t.live, id)
	delete(t.names, m.Name)
	if m.State != Leaving {
		m.Health, m.HealthSince = Dead, time.Now()
		t.missLocked(m)
	}
	t.change()
}

// miss notes members that an earlier process knew.
func (t *table) miss(known []Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range known {
		if !t.replacedLocked(m) {
			t.missLocked(m)
		}
	}
	t.change()
}

// replacedLocked reports whether a live member is the missing one, or runs on its machine
// now.
func (t *table) replacedLocked(m Member) bool {
	for _, l := range t.live {
		if l.ID == m.ID || l.Name == m.Name || l.Address == m.Address {
			return true
		}
	}
	return false
}

func (t *table) missLocked(m Member) {
	t.missing[m.ID] = m
	if len(t.missing) <= maxMissing {
		return
	}
	longest := m
	for _, o := range t.missing {
		if o.HealthSince.Before(longest.HealthSince) {
			longest = o
		}
	}
	delete(t.missing, longest.ID)
}

// expire reports a change if a member has been missing for too long, so that take forgets
// it.
func (t *table) expire() {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.missing {
		if now.Sub(m.HealthSince) > t.absent {
			t.change()
			return
		}
	}
}

// suspect notes that a live member does not answer this node, or that it does again.
func (t *table) suspect(id ID, h Health) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.live[id]
	if !ok || m.Health == h || id == t.self {
		return
	}
	m.Health, m.HealthSince = h, time.Now()
	t.live[id] = m
	t.change()
}

// holder is the live member that has a name.
func (t *table) holder(name string) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.names[name]
	return t.live[id], ok
}

// find returns a live member.
func (t *table) find(id ID) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.live[id]
	return m, ok
}

// addresses are where the live members gossip, this node included.
func (t *table) addresses() map[netip.AddrPort]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := make(map[netip.AddrPort]bool, len(t.live))
	for _, m := range t.live {
		at[m.Address] = true
	}
	return at
}

// former is where the missing members gossiped.
func (t *table) former() []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	var at []netip.AddrPort
	for _, m := range t.missing {
		at = append(at, m.Address)
	}
	return at
}

// take makes the next snapshot.
func (t *table) take() *Snapshot {
	now := time.Now()
	t.mu.Lock()
	t.made++
	next := &Snapshot{Generation: t.made, superseded: make(chan struct{}), Members: make([]Member, 0, len(t.live))}
	for _, m := range t.live {
		next.Members = append(next.Members, m)
	}
	for id, m := range t.missing {
		if now.Sub(m.HealthSince) > t.absent {
			delete(t.missing, id)
			continue
		}
		next.Missing = append(next.Missing, m)
	}
	t.mu.Unlock()
	byID := func(a, b Member) int { return bytes.Compare(a.ID[:], b.ID[:]) }
	slices.SortFunc(next.Members, byID)
	slices.SortFunc(next.Missing, byID)
	return next
}

// publish makes a snapshot at the first change, and from then on at most one per
// interval, until stop is closed. It hands each to told, with the one before.
func (t *table) publish(stop <-chan struct{}, every time.Duration, told func(old, next *Snapshot)) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-rest.C:
		case <-stop:
			return
		}
		select {
		case <-t.changed:
		case <-stop:
			return
		}
		t.replace(told)
		rest.Reset(every)
	}
}

func (t *table) replace(told func(old, next *Snapshot)) {
	select {
	case <-t.changed:
	default:
	}
	next := t.take()
	old := t.current.Swap(next)
	if old == nil {
		return // the first; nobody has seen an earlier one
	}
	told(old, next)
	close(old.superseded)
}
