package members

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func testMember(i int) Member {
	return Member{ID: ID{byte(i >> 8), byte(i), 1}, Name: ID{byte(i >> 8), byte(i)}.String(),
		Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 7946)}
}

func TestManyEventsAreFewSnapshots(t *testing.T) {
	// A thousand nodes come within a second, one each millisecond. The first makes a
	// snapshot at once, the others make one each 250 ms. Then there is none.
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(ID{9}, time.Hour)
		tab.replace(nil)
		stop := make(chan struct{})
		begun := time.Now()
		var at []time.Duration
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			tab.publish(stop, 250*time.Millisecond, func(_, next *Snapshot) { at = append(at, time.Since(begun)) })
		}()
		synctest.Wait()
		before := tab.current.Load()
		for i := range 1000 {
			tab.came(testMember(i))
			if i == 0 {
				<-before.Superseded()
				if got := time.Since(begun); got != 0 {
					t.Errorf("the first snapshot came after %v", got)
				}
			}
			time.Sleep(time.Millisecond) // virtual
		}
		time.Sleep(time.Hour)
		close(stop)
		<-ended
		if len(at) != 5 {
			t.Errorf("snapshots at %v", at)
		}
		for i := 1; i < len(at); i++ {
			if d := at[i] - at[i-1]; d < 250*time.Millisecond {
				t.Errorf("snapshots %v apart", d)
			}
		}
		if s := tab.current.Load(); len(s.Members) != 1000 || s.Generation != 6 {
			t.Errorf("the last has %d members and generation %d", len(s.Members), s.Generation)
		}
		if len(before.Members) != 0 {
			t.Error("an old snapshot changed")
		}
	})
}

func TestTheMissingAreBounded(t *testing.T) {
	// Of a thousand that die the last 256 are remembered, for a day, and no longer.
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(ID{9}, 24*time.Hour)
		for i := range 1000 {
			m := testMember(i)
			tab.came(m)
			tab.went(m.ID)
			time.Sleep(time.Millisecond) // virtual
		}
		s := tab.take()
		if len(s.Missing) != maxMissing || len(s.Members) != 0 {
			t.Fatalf("%d missing, %d members", len(s.Missing), len(s.Members))
		}
		for _, m := range s.Missing {
			if m.ID[0] < 2 {
				t.Fatalf("%v is remembered instead of a later one", m.ID)
			}
		}
		time.Sleep(25 * time.Hour)
		<-tab.changed
		if tab.expire(); len(tab.changed) != 1 {
			t.Error("nobody is told that the missing are forgotten")
		}
		if s := tab.take(); len(s.Missing) != 0 {
			t.Errorf("%d missing", len(s.Missing))
		}
	})
}

func TestTheTableOfMembers(t *testing.T) {
	// This is what each event leaves behind.
	tab := newTable(ID{9}, time.Hour)
	a, b := testMember(1), testMember(2)
	tab.came(a)
	tab.suspect(a.ID, Suspect)
	if x, _ := tab.find(a.ID); x.Health != Suspect || x.HealthSince.Before(x.Since) {
		t.Errorf("suspected: %+v", x)
	}
	renamed := a
	renamed.Name = "other"
	tab.came(renamed)
	if x, _ := tab.find(a.ID); x.Health != Suspect || x.Name != "other" {
		t.Errorf("renamed: %+v", x)
	}
	if _, ok := tab.holder(a.Name); ok {
		t.Error("a name that was given up is held")
	}
	tab.went(a.ID)
	b.Name = "other"
	tab.came(b) // the same machine with a new id
	if s := tab.take(); len(s.Missing) != 0 || len(s.Members) != 1 {
		t.Errorf("replaced: %+v", s)
	}
	b.State = Leaving
	tab.came(b)
	tab.went(b.ID)
	if s := tab.take(); len(s.Missing) != 0 || len(s.Members) != 0 {
		t.Errorf("left: %+v", s)
	}
	tab.came(Member{ID: ID{9}, Name: "me"})
	tab.went(ID{9})
	tab.miss([]Member{{ID: ID{9}}, {ID: ID{7}, Name: "me"}, {ID: ID{6}, Name: "x", Address: testMember(6).Address, HealthSince: time.Now()}})
	if s := tab.take(); len(s.Missing) != 1 || len(s.Members) != 1 {
		t.Errorf("this node: %+v", s)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	// A snapshot of 1,000 members: at most four a second.
	tab := newTable(ID{9}, time.Hour)
	for i := range 1000 {
		tab.came(testMember(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		tab.take()
	}
}

func BenchmarkCame(b *testing.B) {
	// An event under memberlist's locks, in a ring of 1,000.
	tab := newTable(ID{9}, time.Hour)
	for i := range 1000 {
		tab.came(testMember(i))
	}
	m := testMember(500)
	b.ReportAllocs()
	for b.Loop() {
		tab.came(m)
	}
}

func TestWhereMembersAre(t *testing.T) {
	// A snapshot knows the addresses of gossip and of reads of live and missing members,
	// also in IPv6's spelling of IPv4. It knows no others.
	at := netip.MustParseAddrPort
	s := &Snapshot{Members: []Member{{Address: at("10.0.0.1:1"), Data: at("10.0.1.1:2")}}, Missing: []Member{{Address: at("[fd00::1]:1"), Data: at("[fd00::1]:2")}}}
	for a, want := range map[string]bool{"10.0.0.1": true, "::ffff:10.0.0.1": true, "10.0.1.1": true, "fd00::1": true, "fd00::2": false, "10.0.0.2": false} {
		if got := s.Knows(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s is known: %v", a, got)
		}
	}
}
