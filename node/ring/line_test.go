package ring

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
)

// some are Peers that are there and answer nothing.
type some struct {
	snapshot *members.Snapshot
	outages  map[members.ID]wire.Outage
}

// part returns the Part of a node called a.
func part(o Options, c members.Config) *Part {
	c.ID, c.Name = members.ID{'a'}, "a"
	return &Part{Router: route.New(c.ID.String()), o: o, members: c}
}

// joined makes p the other members of r.
func joined(t *testing.T, r *Part, p *some) {
	t.Helper()
	p.own(t, r)
	if err := r.Joined(t.Context(), p, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func (s *some) Outages() map[members.ID]wire.Outage { return s.outages }

func (s *some) Members() *members.Snapshot { return s.snapshot }

// own makes all members own what they donate.
func (s *some) own(t *testing.T, r *Part) {
	t.Helper()
	var nodes []place.Node
	for _, m := range s.snapshot.Members {
		nodes = append(nodes, place.Node{ID: m.ID.String(), Weight: m.Donated})
	}
	where, err := place.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	r.Router.Set(route.Table{Map: where})
}

func (s *some) Stats() (members.Stats, wire.Stats) {
	return members.Stats{Refused: 2, Cut: 4, JoinsFailed: 3, Apart: members.Apart{Refusal: "another key", Rival: "a twin"}}, wire.Stats{Sent: 70, Answers: 7}
}

// fakeAsked is a peer whose counts the test sets.
type fakeAsked struct {
	name  string
	stats wire.Stats
}

func (f *fakeAsked) Name() string { return f.name }

func (f *fakeAsked) Stats() wire.Stats { return f.stats }

// someone is a member whose name is a letter.
func someone(letter byte, h members.Health) members.Member {
	return members.Member{ID: members.ID{letter}, Name: string(letter), Address: netip.MustParseAddrPort("10.0.0.5:7946"), State: members.Active,
		Donated: 1 << 30, Health: h, HealthSince: time.Now()}
}

func TestALineOfStatusAsksNobody(t *testing.T) {
	// The line is taken before the node has joined, in company, with a member missing, and alone. It says how
	// many members there are, since when the node is alone, and what was asked of whom.
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		r := part(Options{Membership: config.Membership{Plain: true}, Reads: func() status.RingReads { return status.RingReads{Asked: 9} }},
			members.Config{Zone: "z", Seeds: []string{"b"}})
		if x := r.Line(started); x.State != "joining" || x.Alive != 1 || x.AloneS != 0 || x.Cluster != "hearth" || x.Encryption != "none" || x.Zone != "z" {
			t.Errorf("before it joins: %+v", x)
		}
		p := &some{snapshot: &members.Snapshot{Members: []members.Member{someone('a', members.Alive)}}}
		joined(t, r, p)
		time.Sleep(90 * time.Second)
		if x := r.Line(started); x.AloneS != 91 || x.Alive != 1 || x.Share != 1 || x.Address != "10.0.0.5:7946" || x.State != "active" || x.Donated != 1<<30 || x.Peers != nil {
			t.Errorf("nobody was ever there: %+v", x)
		}
		p.snapshot = &members.Snapshot{Members: []members.Member{someone('a', members.Alive), someone('b', members.Suspect), someone('c', members.Alive)}, Missing: []members.Member{someone('e', members.Dead), someone('d', members.Dead)}}
		p.own(t, r)
		r.counted.asks([]asked{&fakeAsked{"b", wire.Stats{Requests: 4, Received: 40}}, &fakeAsked{"x", wire.Stats{Received: 1}}})
		time.Sleep(10 * time.Second)
		x := r.Line(started)
		if x.AloneS != 0 || x.Alive != 2 || x.Suspect != 1 || x.Missing != 2 || fmt.Sprint(x.Absent) != "[{d 10.0.0.5:7946 10} {e 10.0.0.5:7946 10}]" {
			t.Errorf("with others: %+v", x)
		}
		if x.Share < 0.3 || x.Share > 0.37 || x.Refused != 2 || x.Cut != 4 || x.JoinsFailed != 3 || x.Refusal != "another key" || x.Rival != "a twin" || x.Served.Bytes != 70 || x.Reads.Asked != 9 || len(x.Peers) != 2 || row(x.Peers, "b").Bytes != 40 || row(x.Peers, "x").Bytes != 1 {
			t.Errorf("figures: %+v", x)
		}
		time.Sleep(time.Minute)
		p.snapshot = &members.Snapshot{Members: p.snapshot.Members[:1]} // they left
		if x := r.Line(started); x.AloneS != 61 {
			t.Errorf("alone for %d s", x.AloneS)
		}
		p.snapshot = &members.Snapshot{Members: p.snapshot.Members[:1], Missing: []members.Member{someone('b', members.Dead)}} // one died, now
		if x := r.Line(started); x.AloneS != 1 {
			t.Errorf("alone for %d s", x.AloneS)
		}
		for range 20 {
			p.snapshot.Missing = append(p.snapshot.Missing, someone('f', members.Dead))
		}
		r.members.Seeds = nil
		if x := r.Line(started); x.AloneS != 0 || len(x.Absent) != status.MostAbsent || x.Missing != 21 {
			t.Errorf("a first node: %+v", x)
		}
	})
}

func TestWhoAnnouncesItselfKnowsTheOthers(t *testing.T) {
	// Other members ask as soon as they hear of a node, so it knows them by then. An error of the announcement
	// is an error of joining.
	r := part(Options{}, members.Config{})
	unheard := errors.New("nobody heard of it")
	p := &some{snapshot: &members.Snapshot{Members: []members.Member{someone('a', members.Alive)}}}
	announce := func(context.Context) error {
		if r.joined() == nil {
			t.Error("the others are not known yet")
		}
		return unheard
	}
	if err := r.Joined(t.Context(), p, announce); !errors.Is(err, unheard) || !strings.Contains(err.Error(), "join the ring") {
		t.Error(err)
	}
}

func TestEachNodeSaysWhomItDoesNotThinkAlive(t *testing.T) {
	// What a node says of itself to others names suspect and missing members, and none that is alive. Before it
	// has joined it names nobody.
	r := part(Options{Figures: func() status.MemberFigures { return status.MemberFigures{Used: 7, HitRatio: 0.5} },
		Reads: func() status.RingReads { return status.RingReads{Bytes: 9} }}, members.Config{})
	if x := r.own(); x.Suspects != nil || x.Used != 7 || x.HitRatio != 0.5 || x.Served != 0 || x.Asked != 0 {
		t.Errorf("before it joins: %+v", x)
	}
	p := &some{snapshot: &members.Snapshot{Members: []members.Member{someone('a', members.Alive), someone('b', members.Suspect), someone('c', members.Alive)}, Missing: []members.Member{someone('d', members.Dead)}}}
	joined(t, r, p)
	if x := r.own(); fmt.Sprint(x.Suspects) != "[b d]" || x.Used != 7 || x.HitRatio != 0.5 || x.Served != 70 || x.Asked != 9 {
		t.Errorf("in the ring: %+v", x)
	}
	p.snapshot = &members.Snapshot{Members: []members.Member{someone('a', members.Alive), someone('b', members.Alive)}}
	if x := r.own(); x.Suspects != nil {
		t.Errorf("all are well: %+v", x)
	}
}

func TestWhoIsAliveAndAnswersNothingIsNamed(t *testing.T) {
	// A member that gossips but fails what it is asked is named after ten seconds, with the cause, also in what
	// the node says of itself. A suspect member is not, nor is one that was asked long ago.
	synctest.Test(t, func(t *testing.T) {
		r := part(Options{Figures: func() status.MemberFigures { return status.MemberFigures{} },
			Reads: func() status.RingReads { return status.RingReads{} }}, members.Config{})
		p := &some{snapshot: &members.Snapshot{Members: []members.Member{someone('a', members.Alive), someone('b', members.Suspect), someone('c', members.Alive), someone('d', members.Alive)}}}
		joined(t, r, p)
		fails := func() wire.Outage {
			return wire.Outage{Since: time.Now(), Last: time.Now(), Cause: errors.New("no connection")}
		}
		p.outages = map[members.ID]wire.Outage{{'b'}: fails(), {'c'}: fails(), {'d'}: fails()}
		asked := func(ids ...byte) {
			for _, id := range ids {
				o := p.outages[members.ID{id}]
				o.Last = time.Now()
				p.outages[members.ID{id}] = o
			}
		}
		time.Sleep(barredAfter - 1)
		asked('b', 'c', 'd')
		if x := r.Line(time.Now()); x.Unreachable != 0 || x.Barred != nil || r.own().Unreached != nil {
			t.Errorf("one that may be dying: %+v", x)
		}
		time.Sleep(time.Nanosecond)
		if x := r.Line(time.Now()); x.Unreachable != 0 {
			t.Errorf("nobody has asked since: %+v", x)
		}
		asked('b', 'c', 'd')
		if x := r.Line(time.Now()); x.Unreachable != 2 || fmt.Sprint(x.Barred) != "[{c  10 no connection} {d  10 no connection}]" || fmt.Sprint(r.own().Unreached) != "[c d]" {
			t.Errorf("two that answer nothing: %+v, %q", x, r.own().Unreached)
		}
		time.Sleep(barredFor - 1)
		asked('d')
		time.Sleep(time.Nanosecond)
		if x := r.Line(time.Now()); x.Unreachable != 1 || x.Barred[0].Name != "d" || x.Barred[0].ForS != 130 {
			t.Errorf("one that was asked again: %+v", x)
		}
		delete(p.outages, members.ID{'d'})
		if x := r.Line(time.Now()); x.Unreachable != 0 {
			t.Errorf("one that answers: %+v", x)
		}
	})
}

// row returns one row of a ledger's result.
func row(all []status.Peer, name string) status.Peer {
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	return status.Peer{}
}

func TestSumsOfPeersNeverFall(t *testing.T) {
	// A peer that goes keeps its row. A peer that is made again, and counts from 0, adds to that row.
	var l ledger
	a, b := &fakeAsked{"a", wire.Stats{Requests: 5, Received: 100, Silences: 1}}, &fakeAsked{"b", wire.Stats{Requests: 1, Received: 7}}
	l.asks([]asked{a, b})
	l.take()
	l.asks([]asked{b})
	b.stats = wire.Stats{Requests: 2, Received: 9}
	l.take()
	l.asks([]asked{&fakeAsked{"a", wire.Stats{Requests: 2, Received: 30}}, &fakeAsked{"b", wire.Stats{Requests: 1, Received: 50}}})
	all := l.take()
	if a, b := row(all, "a"), row(all, "b"); a.Requests != 7 || a.Bytes != 130 || a.Failures["silence"] != 1 || b.Requests != 3 || b.Bytes != 59 || len(all) != 2 {
		t.Errorf("%+v", all)
	}
	again := l.take()
	if fmt.Sprint(again) != fmt.Sprint(all) {
		t.Errorf("nothing was asked: %+v, then %+v", all, again)
	}
}

func TestWhatAPeerCountedUntilItWentIsKept(t *testing.T) {
	// Nobody looked between a peer's silence and its end. Its row still has that silence, and what arrived on
	// its last connection beside its successor. Then the old peer is forgotten.
	var l ledger
	old := &fakeAsked{"a", wire.Stats{Requests: 1, Connections: 1}}
	l.asks([]asked{old})
	l.take()
	old.stats.Requests, old.stats.Silences = 4, 1
	next := &fakeAsked{"a", wire.Stats{}}
	l.asks([]asked{next})
	old.stats.Received, next.stats.Requests = 50, 2
	for range 2 {
		if a := row(l.take(), "a"); a.Requests != 6 || a.Bytes != 50 || a.Failures["silence"] != 1 {
			t.Errorf("%+v", a)
		}
		old.stats.Connections = 0
	}
	if len(l.last) != 1 || len(l.gone) != 0 {
		t.Errorf("%d are kept, %d of them gone", len(l.last), len(l.gone))
	}
	brief := &fakeAsked{"b", wire.Stats{Requests: 3, Silences: 1}}
	l.asks([]asked{next, brief})
	l.asks([]asked{next})
	if b := row(l.take(), "b"); b.Requests != 3 || b.Failures["silence"] != 1 || len(l.last) != 1 {
		t.Errorf("one that came and went unseen: %+v, %d are kept", b, len(l.last))
	}
}

func TestPeersHaveABoundedNumberOfRows(t *testing.T) {
	// Of a hundred peers, those with the most traffic have a row each, and the others share one. Nothing is
	// lost.
	var l ledger
	now, want := []asked{}, int64(0)
	for i := range 100 {
		now = append(now, &fakeAsked{fmt.Sprintf("n%03d", i), wire.Stats{Requests: 1, Received: int64(i)}})
		want += int64(i)
	}
	l.asks(now)
	all := l.take()
	if len(all) != Most+1 || row(all, "n099").Bytes != 99 || row(all, "n036").Bytes != 36 || row(all, "n035").Name != "" || row(all, others).Requests != 36 {
		t.Errorf("%d rows: %+v", len(all), all)
	}
	now[0].(*fakeAsked).stats = wire.Stats{Requests: 2, Received: 1 << 40}
	all = l.take()
	got := int64(0)
	for _, p := range all {
		got += p.Bytes
	}
	if len(all) != Most+1 || got != want+1<<40 {
		t.Errorf("%d rows, %d bytes", len(all), got)
	}
}

func TestServedIsByAnswer(t *testing.T) {
	// What a server counts of its answers is in the figures, each under its own name.
	s := servedOf(wire.Stats{Connections: 1, Queued: 2, Sent: 3, Answers: 4, Misses: 5, Refused: 6, Stale: 7, Errors: 8, Cancelled: 9})
	if s.Connections != 1 || s.Queued != 2 || s.Bytes != 3 || fmt.Sprint(s.Answers) != "map[cancelled:9 data:4 error:8 miss:5 refused:6 stale:7]" {
		t.Errorf("%+v", s)
	}
}
