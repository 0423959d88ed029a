package members

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// patience is how long a test waits for a fact on a busy machine.
const patience = 30 * time.Second

// calm is the timing of the tests in which no node dies. News is quick, and nobody is
// taken for dead, however long the machine lets a node wait.
func calm() Timing {
	t := quick()
	t.Probe, t.Dial = time.Hour, patience
	t.ProbeTimeout = closeWithin / 2 // of each challenge to a rival; Close waits for one in flight
	return t
}

// quick is the timing of a ring in tenths of a second, for tests of a death. On a busy
// machine, live nodes are missed, too, for a while.
func quick() Timing {
	return Timing{Probe: 200 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond, Gossip: 20 * time.Millisecond,
		PushPull: time.Second, Suspicion: 3, Forget: 300 * time.Millisecond, Batch: 20 * time.Millisecond,
		Rejoin: 300 * time.Millisecond, Retry: 100 * time.Millisecond, Dial: 2 * time.Second, Save: time.Millisecond}
}

// said is what a node logged.
type said struct {
	mu    sync.Mutex
	text  strings.Builder
	wrote chan struct{}
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	close(s.wrote)
	s.wrote = make(chan struct{})
	return len(p), nil
}

func (s *said) await(t *testing.T, words ...string) {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		text, wrote := s.text.String(), s.wrote
		s.mu.Unlock()
		for line := range strings.Lines(text) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return
			}
		}
		select {
		case <-wrote:
		case <-late:
			t.Fatalf("no line with %q in:\n%s", words, text)
		}
	}
}

// idOf is the id of a test's node.
func idOf(t *testing.T, node string) ID {
	sum := sha256.Sum256([]byte(t.Name() + "\n" + node))
	return ID(sum[:len(ID{})])
}

func config(t *testing.T, name string, seeds ...*Members) (Config, *said) {
	t.Helper()
	log := &said{wrote: make(chan struct{})}
	c := Config{ID: idOf(t, name), Name: name, Cluster: "test", Listen: "127.0.0.1:0", Data: netip.MustParseAddrPort("127.0.0.1:7947"),
		Donated: 3 << 30, Protocol: Protocol{Speaks: 1}, Log: slog.New(slog.NewTextHandler(log, nil)), Timing: calm()}
	for _, s := range seeds {
		c.Seeds = append(c.Seeds, s.Address().String())
	}
	return c, log
}

func start(t *testing.T, c Config) *Members {
	t.Helper()
	m, err := Start(t.Context(), c)
	if err != nil {
		t.Fatalf("start %s: %v", c.Name, err)
	}
	t.Cleanup(func() { stop(t, m) })
	return m
}

func stop(t *testing.T, m *Members) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Errorf("close %s: %v", m.cfg.Name, err)
	}
}

// until waits for a snapshot for which f is true.
func until(t *testing.T, m *Members, what string, f func(*Snapshot) bool) *Snapshot {
	t.Helper()
	late := time.After(patience)
	for {
		s := m.Snapshot()
		if f(s) {
			return s
		}
		select {
		case <-s.Superseded():
		case <-late:
			t.Fatalf("%s does not see %s; members %+v, missing %+v", m.cfg.Name, what, s.Members, s.Missing)
		}
	}
}

func members(n int) func(*Snapshot) bool {
	return func(s *Snapshot) bool { return len(s.Members) == n }
}

func TestWhatANodeAnnouncesAloneIsHeard(t *testing.T) {
	// Two nodes join by a third, which has told both what it is, and becomes active
	// before it knows them. They hear of that without comparing all states once more.
	t.Parallel()
	ca, _ := config(t, "a")
	ca.Timing.PushPull, ca.Timing.Rejoin, ca.Timing.Gossip = time.Hour, time.Hour, 100*time.Millisecond
	meet, known := make(chan struct{}), make(chan struct{})
	ca.meets = func() {
		meet <- struct{}{}
		<-known
	}
	a := start(t, ca)
	var others sync.WaitGroup
	for _, name := range []string{"b", "c"} {
		c, _ := config(t, name, a)
		c.Timing = ca.Timing
		others.Go(func() {
			m := start(t, c)
			until(t, m, "three nodes, the first active", func(s *Snapshot) bool {
				x, _ := s.Find(ca.ID)
				return len(s.Members) == 3 && x.State == Active
			})
		})
	}
	<-meet
	<-meet
	if err := a.Announce(t.Context(), Active); err != nil {
		t.Error(err)
	}
	close(known)
	others.Wait()
}

func TestWhatANodeAnnouncesAloneSilencesNobody(t *testing.T) {
	// A node that announced itself alone lets two in before anything is passed on, and
	// would announce itself once more just then. Each of the two hears of the other,
	// though they never compare all states again.
	t.Parallel()
	ca, _ := config(t, "a")
	ca.Timing.PushPull, ca.Timing.Rejoin, ca.Timing.Gossip = time.Hour, time.Hour, time.Hour
	ca.Timing.Probe, ca.Timing.Suspicion = 500*time.Millisecond, 1000 // probes pass news on, but not while the two come
	a := start(t, ca)
	if err := a.Announce(t.Context(), Active); err != nil {
		t.Fatal(err)
	}
	a.life.Lock() // nothing is announced
	var two []*Members
	for _, name := range []string{"b", "c"} {
		c, _ := config(t, name, a)
		c.Timing = ca.Timing
		c.Timing.Probe = time.Hour
		two = append(two, start(t, c))
	}
	until(t, a, "three nodes", members(3))
	a.life.Unlock()
	for _, m := range two {
		until(t, m, "three nodes", members(3))
	}
}

func TestAnAnnouncementThatMayBeLostIsNoFailure(t *testing.T) {
	// A node's new state does not go out, because the network takes none of its packets.
	// It says so and goes on, and the others hear once packets go.
	t.Parallel()
	ca, _ := config(t, "a")
	ca.Timing.PushPull, ca.Timing.Rejoin = time.Hour, time.Hour
	a := start(t, ca)
	cb, log := config(t, "b", a)
	cb.Timing = ca.Timing
	var stuck atomic.Bool
	goes := make(chan struct{})
	release := sync.OnceFunc(func() { close(goes) })
	cb.reach = func(netip.AddrPort) bool {
		if stuck.Load() {
			<-goes
		}
		return true
	}
	b := start(t, cb)
	t.Cleanup(release) // before it is closed
	until(t, a, "b", members(2))
	until(t, b, "a", members(2))
	stuck.Store(true)
	soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := b.Announce(soon, Active); err != nil {
		t.Error(err)
	}
	log.await(t, "announce that this node is active", "once more")
	release()
	until(t, a, "b active", func(s *Snapshot) bool { x, ok := s.Find(cb.ID); return ok && x.State == Active })
}

func TestNodesFindEachOther(t *testing.T) {
	// The second knows the first, the third the second. Each sees all three, with what
	// they said of themselves, and hears when one of them becomes active.
	t.Parallel()
	ca, _ := config(t, "a")
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	b := start(t, cb)
	cc, _ := config(t, "c", b)
	cc.Zone, cc.Donated, cc.Protocol = "rack 7", 3<<30+5, Protocol{Speaks: 2, Oldest: 1}
	c := start(t, cc)
	for _, m := range []*Members{a, b, c} {
		s := until(t, m, "three nodes", members(3))
		if !slices.IsSortedFunc(s.Members, func(x, y Member) int { return strings.Compare(x.ID.String(), y.ID.String()) }) {
			t.Errorf("not sorted: %v", s.Members)
		}
		got, ok := s.Find(cc.ID)
		if !ok || got.Name != "c" || got.Zone != "rack 7" || got.Donated != 3<<30 || got.State != Joining || got.Address != c.Address() ||
			got.Data != cc.Data || got.Protocol != cc.Protocol || got.Health == Dead || got.Since.IsZero() {
			t.Errorf("%s sees c as %+v", m.cfg.Name, got)
		}
	}
	if err := c.Announce(t.Context(), Active); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Members{a, b, c} {
		until(t, m, "c active", func(s *Snapshot) bool { x, ok := s.Find(cc.ID); return ok && x.State == Active })
	}
}

func TestTheFirstSnapshotHasWhoIsHere(t *testing.T) {
	// Once Start returns, a joiner knows all members that the node which let it in knew
	// and did not suspect. That holds however rarely there is another snapshot. It joins
	// ten times, since a snapshot while it learns is rare.
	t.Parallel()
	first, _ := config(t, "first")
	first.Timing.Gossip = 100 * time.Millisecond // a joiner asks for all states, and waits for no gossip
	all := []*Members{start(t, first)}
	for i := range 15 {
		c, _ := config(t, fmt.Sprint("node ", i), all[0])
		c.Timing = first.Timing
		all = append(all, start(t, c))
	}
	until(t, all[0], "all nodes", members(len(all)))
	for i := range 10 {
		c, _ := config(t, fmt.Sprint("late ", i), all[0])
		c.Timing = first.Timing
		c.Timing.Batch = time.Hour
		late := start(t, c)
		for _, m := range all {
			if _, ok := late.Snapshot().Find(m.cfg.ID); !ok {
				t.Errorf("joiner %d does not know %s yet", i, m.cfg.Name)
			}
		}
	}
}

func TestWhoLeavesIsNotMissing(t *testing.T) {
	// A node says that it goes. Nobody takes it for dead, or looks for it. It may come
	// back.
	t.Parallel()
	ca, log := config(t, "a")
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	cb.Listen = "127.0.0.1:" + hearthtest.Port(t)
	b := start(t, cb)
	until(t, a, "b", members(2))
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := until(t, a, "nobody else", members(1)); len(s.Missing) != 0 {
		t.Errorf("who left is missing: %+v", s.Missing)
	}
	log.await(t, "left the ring", "node=b")
	if err := b.Announce(t.Context(), Active); !errors.Is(err, ErrLeft) {
		t.Errorf("after Leave: %v", err)
	}
	stop(t, b)
	if err := b.Announce(t.Context(), Active); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := b.Leave(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	again := start(t, cb)
	until(t, a, "b again", members(2))
	until(t, again, "a", members(2))
}

func TestASilentDeath(t *testing.T) {
	// A node dies without a word. The other suspects it, then misses it, and says since
	// when.
	t.Parallel()
	ca, log := config(t, "a")
	ca.Timing = quick()
	ca.Timing.Suspicion = 25 // for five seconds: this goroutine may wait for its processor
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	cb.Timing, cb.Listen = quick(), "127.0.0.1:"+hearthtest.Port(t)
	b := start(t, cb)
	until(t, a, "b", members(2))
	stop(t, b)
	until(t, a, "b suspected", func(s *Snapshot) bool { x, ok := s.Find(cb.ID); return ok && x.Health == Suspect })
	s := until(t, a, "b dead", members(1))
	if len(s.Missing) != 1 || s.Missing[0].ID != cb.ID || s.Missing[0].Health != Dead || time.Since(s.Missing[0].HealthSince) > patience {
		t.Errorf("missing: %+v", s.Missing)
	}
	log.await(t, "counts as dead", "node=b")
}

func TestARestartAtAnotherAddress(t *testing.T) {
	// A node is killed and comes back at once with another address, while the others
	// still believe in the first one. It is no copy, and is let in once they have
	// noticed.
	t.Parallel()
	ca, _ := config(t, "a")
	ca.Timing = quick()
	ca.Timing.Forget = time.Hour // the address of the dead node is still known
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	cb.Timing = quick()
	b := start(t, cb)
	until(t, a, "b", members(2))
	stop(t, b)
	cb.Listen = "127.0.0.2:0"
	again := start(t, cb)
	until(t, a, "b at its new address", func(s *Snapshot) bool {
		x, ok := s.Find(cb.ID)
		return ok && x.Address == again.Address() && len(s.Missing) == 0
	})
	until(t, again, "a", members(2))
}

func TestAnEmptiedCacheDirectory(t *testing.T) {
	// A node is killed and comes back with the same name and another id. It is let in
	// once the others have noticed that the first is silent.
	t.Parallel()
	ca, _ := config(t, "a")
	ca.Timing = quick()
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	cb.Timing = quick()
	b := start(t, cb)
	until(t, a, "b", members(2))
	stop(t, b)
	cb.ID = idOf(t, "b, emptied")
	start(t, cb)
	s := until(t, a, "the new b", func(s *Snapshot) bool { _, ok := s.Find(cb.ID); return ok })
	if len(s.Members) != 2 || len(s.Missing) != 0 {
		t.Errorf("members %+v, missing %+v", s.Members, s.Missing)
	}
}

func TestTwoHalvesFindEachOther(t *testing.T) {
	// A network is cut for longer than memberlist remembers the dead, and the name of the
	// seeds is gone for good. When the network heals, all are one ring again without
	// help, since each remembers the others.
	t.Parallel()
	var cut, nameless atomic.Bool
	resolve := func(context.Context, string) ([]netip.Addr, error) {
		if nameless.Load() {
			return nil, errors.New("no such name")
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.3")}, nil
	}
	side := func(host string) func(netip.AddrPort) bool {
		return func(to netip.AddrPort) bool { return !cut.Load() || to.Addr().String() == host }
	}
	var ring []*Members
	for i, host := range []string{"127.0.0.3", "127.0.0.3", "127.0.0.4", "127.0.0.4"} {
		c, _ := config(t, string(rune('a'+i)))
		c.Timing = quick()
		c.Listen, c.reach, c.Resolve = host+":0", side(host), resolve
		if i > 0 {
			c.Seeds = []string{fmt.Sprintf("ring.test:%d", ring[0].Address().Port())}
		}
		ring = append(ring, start(t, c))
	}
	for _, m := range ring {
		until(t, m, "four", members(4))
	}
	nameless.Store(true)
	cut.Store(true)
	for _, m := range ring {
		until(t, m, "its half", func(s *Snapshot) bool { return len(s.Members) == 2 && len(s.Missing) == 2 })
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, m := range ring {
		for _, gone := range m.Snapshot().Missing {
			for time.Since(gone.HealthSince) < 3*quick().Forget {
				<-tick.C
			}
		}
	}
	cut.Store(false)
	for _, m := range ring {
		until(t, m, "four again", func(s *Snapshot) bool { return len(s.Members) == 4 && len(s.Missing) == 0 })
	}
}

func TestAfterARestartOfAllNobodyNeedsSeeds(t *testing.T) {
	// All nodes stop and start again without a seed. They find each other by the files on
	// their disks. One of these files is damaged, which is reported, and hurts nobody.
	t.Parallel()
	var cfg []Config
	var logs []*said
	var ring []*Members
	for i := range 3 {
		c, log := config(t, string(rune('a'+i)), ring[:min(i, 1)]...)
		c.Dir, c.Listen = t.TempDir(), "127.0.0.1:"+hearthtest.Port(t)
		ring, cfg, logs = append(ring, start(t, c)), append(cfg, c), append(logs, log)
	}
	for _, m := range ring {
		until(t, m, "three", members(3))
	}
	for i, m := range ring {
		stop(t, m)
		cfg[i].Seeds = nil
	}
	if err := os.WriteFile(filepath.Join(cfg[2].Dir, KnownFile), []byte(`{"format":1,"clus`), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range cfg {
		ring[i] = start(t, c)
	}
	for _, m := range ring {
		until(t, m, "three again", func(s *Snapshot) bool { return len(s.Members) == 3 && len(s.Missing) == 0 })
	}
	logs[2].await(t, "ignore the last known members", "damaged")
	logs[1].mu.Lock()
	defer logs[1].mu.Unlock()
	if strings.Contains(logs[1].text.String(), "ignore") {
		t.Error(logs[1].text.String())
	}
}

func TestSeedsAreResolvedAgain(t *testing.T) {
	// A name has a dead address at first, and later also that of a running node. The new
	// node goes on alone, says so, and joins once the name resolves to that.
	t.Parallel()
	ca, _ := config(t, "a")
	port := hearthtest.Port(t)
	ca.Listen = "127.0.0.1:" + port
	a := start(t, ca)
	cb, log := config(t, "b")
	cb.Seeds = []string{"ring.test:" + port}
	var known atomic.Bool
	cb.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "ring.test" {
			return nil, errors.New("asked for " + host)
		}
		addrs := []netip.Addr{netip.MustParseAddr("127.0.0.5"), netip.MustParseAddr("::1")}
		if known.Load() {
			addrs = append(addrs, a.Address().Addr())
		}
		return addrs, nil
	}
	b := start(t, cb)
	log.await(t, "goes on alone", "ring.test", "127.0.0.5")
	if s := b.Snapshot(); len(s.Members) != 1 {
		t.Errorf("alone: %+v", s.Members)
	}
	known.Store(true)
	until(t, b, "a", members(2))
}

func TestWhoFindsOnlyItselfLooksAgainSoon(t *testing.T) {
	// A name of all nodes has only this one's address when it starts, as when many start
	// at once. It looks again at the pace of a node that is alone.
	t.Parallel()
	ca, _ := config(t, "a")
	port := hearthtest.Port(t)
	ca.Listen = "127.0.0.1:" + port
	a := start(t, ca)
	cb, _ := config(t, "b")
	cb.Listen, cb.Seeds, cb.Timing.Rejoin = "127.0.0.2:"+port, []string{"ring.test:" + port}, time.Hour
	looked := make(chan struct{}, 1000)
	var known atomic.Bool
	cb.Resolve = func(context.Context, string) ([]netip.Addr, error) {
		looked <- struct{}{}
		addrs := []netip.Addr{netip.MustParseAddr("127.0.0.2")}
		if known.Load() {
			addrs = append(addrs, a.Address().Addr())
		}
		return addrs, nil
	}
	b := start(t, cb)
	late := time.After(patience)
	for range 3 {
		select {
		case <-looked:
		case <-late:
			t.Fatal("it does not look again")
		}
	}
	known.Store(true)
	until(t, b, "a", members(2))
}

func TestATakenPort(t *testing.T) {
	// Another program has the port. The error says which port, and nothing is left
	// behind.
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c, _ := config(t, "a")
	c.Listen = other.Addr().String()
	if _, err := Start(t.Context(), c); !errors.Is(err, ErrPort) || !strings.Contains(err.Error(), c.Listen) || !strings.Contains(err.Error(), "node.listen") {
		t.Errorf("%v", err)
	}
}

func TestAfterAnyChurnAllAgree(t *testing.T) {
	// Five nodes start, die, leave and come back at other addresses in random order,
	// without a pause. In the end those that run see each other, at their addresses, and
	// no other node.
	t.Parallel()
	rng := rand.New(rand.NewPCG(hearthtest.Seed(t), 0))
	var cfg [5]Config
	up := map[int]*Members{}
	for i := range cfg {
		cfg[i], _ = config(t, string(rune('a'+i)))
		cfg[i].Timing = quick()
	}
	for range 12 {
		i := rng.IntN(len(cfg))
		if m := up[i]; m == nil {
			cfg[i].Seeds = nil
			for _, o := range up {
				cfg[i].Seeds = append(cfg[i].Seeds, o.Address().String())
			}
			up[i] = start(t, cfg[i])
			continue
		}
		if len(up) == 1 {
			continue // the next one would find nobody
		}
		if rng.IntN(2) == 0 {
			if err := up[i].Leave(t.Context()); err != nil {
				t.Log(err) // news was slow; the others find it silent
			}
		}
		stop(t, up[i])
		delete(up, i)
	}
	for _, m := range up {
		until(t, m, "all that run", func(s *Snapshot) bool {
			for i, o := range up {
				if x, ok := s.Find(cfg[i].ID); !ok || x.Address != o.Address() {
					return false
				}
			}
			return len(s.Members) == len(up)
		})
	}
}

func TestCloseEndsWhatWaits(t *testing.T) {
	// A seed takes the connection and never answers. The node starts alone, and Close
	// does not wait for the seed.
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	c, _ := config(t, "a")
	c.Seeds = []string{mute.Addr().String()}
	c.Timing.Dial, c.Timing.First = time.Hour, time.Millisecond
	m := start(t, c)
	begun := time.Now()
	stop(t, m)
	stop(t, m)
	if took := time.Since(begun); took > closeWithin {
		t.Errorf("Close took %v", took)
	}
	c.Timing.First = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who does not wait for the first answer: %v", err)
	}
}

func TestOneAnswerIsEnoughToStart(t *testing.T) {
	// Of two seeds one never answers. A starting node does not wait for it.
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ca, _ := config(t, "a")
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	cb.Seeds = append(cb.Seeds, mute.Addr().String())
	cb.Timing.Dial, cb.Timing.First = time.Hour, patience
	begun := time.Now()
	b := start(t, cb)
	if took := time.Since(begun); took >= patience {
		t.Errorf("Start took %v", took)
	}
	until(t, b, "a", members(2))
}

func TestRoundsKeepTheirPace(t *testing.T) {
	// A node that is alone asks after one second, two, four, and then, for days, each 30
	// s as the others do. One that is not let in yet asks each two seconds.
	p := pace{Timing: Timing{}.filled()}
	for i := range 10000 {
		want := 30 * time.Second
		if i < 5 {
			want = time.Second << i
		}
		if got := p.wait(false, true); got > want || got < want*9/10 {
			t.Fatalf("round %d comes after %v", i, got)
		}
	}
	if got := p.wait(true, true); got != 2*time.Second {
		t.Errorf("not let in: %v", got)
	}
	if got := p.wait(false, false); got > 30*time.Second || got < 27*time.Second {
		t.Errorf("in company: %v", got)
	}
	if got := p.wait(false, true); got != time.Second {
		t.Errorf("alone again: %v", got)
	}
}

func TestStrangersTakeNoMoreThanTheirRoom(t *testing.T) {
	// Eight connections more than there is room for say nothing. As many are closed at
	// once.
	t.Parallel()
	c, _ := config(t, "a")
	c.Timing.Dial = time.Hour
	m := start(t, c)
	const extra = 8
	closed := make(chan struct{}, maxInbound+extra)
	var readers sync.WaitGroup
	var all []net.Conn
	for range maxInbound + extra {
		conn, err := net.Dial("tcp", m.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
		readers.Go(func() {
			if n, err := conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("a stranger is told %d bytes", n)
			}
			closed <- struct{}{}
		})
	}
	late := time.After(patience)
	for range extra {
		select {
		case <-closed:
		case <-late:
			t.Fatal("connections beyond the bound stay open")
		}
	}
	for _, conn := range all {
		conn.Close()
	}
	readers.Wait()
}
