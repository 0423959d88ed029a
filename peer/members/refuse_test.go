package members

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// refusedStart expects that a node is not let in, and returns the reason.
func refusedStart(t *testing.T, c Config, words ...string) {
	t.Helper()
	m, err := Start(t.Context(), c)
	if err == nil {
		_ = m.Close()
	}
	if !errors.Is(err, ErrRefused) {
		t.Fatalf("start %s: %v", c.Name, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in: %v", w, err)
		}
	}
}

func TestAnotherKey(t *testing.T) {
	// Two nodes have different keys, or one of them has none. The new one does not start,
	// and both say why.
	one, other := bytes.Repeat([]byte{1}, KeySize), bytes.Repeat([]byte{2}, KeySize)
	for _, c := range []struct {
		name          string
		first, second []byte
	}{{"different", one, other}, {"none", one, nil}, {"one too many", nil, one}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ca, log := config(t, "a")
			ca.Key = c.first
			a := start(t, ca)
			cb, _ := config(t, "b", a)
			cb.Key = c.second
			refusedStart(t, cb, a.Address().String(), "cluster key", "same key")
			log.await(t, "refused a node at 127.0.0.1", "cluster key")
			cb.Key = c.first
			start(t, cb)
			until(t, a, "who has the key", members(2))
		})
	}
}

func TestAnotherCluster(t *testing.T) {
	// A node of another cluster has a seed of this one. Both say which cluster each is
	// of.
	t.Parallel()
	ca, log := config(t, "a")
	a := start(t, ca)
	cb, theirs := config(t, "b", a)
	cb.Cluster = "other"
	refusedStart(t, cb, `"test"`, `"other"`, a.Address().String())
	log.await(t, "refused", "test", "other", "b at 127.0.0.1")
	theirs.await(t, "refused", "test", "other", "a at 127.0.0.1")
	if s := a.Snapshot(); len(s.Members) != 1 || a.Stats().Refused == 0 {
		t.Errorf("%+v, %+v", s.Members, a.Stats())
	}
}

func TestAnotherProtocol(t *testing.T) {
	// A node that speaks too new a protocol is refused. One that still understands the
	// old protocol is not.
	t.Parallel()
	ca, log := config(t, "a")
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	cb.Protocol = Protocol{Speaks: 3, Oldest: 2}
	refusedStart(t, cb, "protocol 1", "2-3", "update the older one")
	log.await(t, "refused", "protocol 2-3", "speaks 1")
	cb.Protocol.Oldest = 1
	start(t, cb)
	until(t, a, "b", members(2))
}

func TestACopiedCacheDirectory(t *testing.T) {
	// A second node runs with the id of one that is in the ring. It does not start,
	// others say who has the id, and the first stays.
	t.Parallel()
	ca, log := config(t, "a")
	a := start(t, ca)
	cb, _ := config(t, "b", a)
	b := start(t, cb)
	until(t, a, "b", members(2))
	copied, _ := config(t, "c", a)
	copied.ID = cb.ID
	refusedStart(t, copied, b.Address().String(), cb.ID.String(), "cache directory was copied")
	log.await(t, "refused a node", cb.ID.String(), "cache directory was copied", b.Address().String())
	x, ok := a.Snapshot().Find(cb.ID)
	if !ok || x.Address != b.Address() || x.Name != "b" {
		t.Errorf("a sees %+v", x)
	}
}

func TestANameTwice(t *testing.T) {
	// A second node has the name of one that is in the ring. It does not start, whether
	// its seed is that one or another.
	t.Parallel()
	ca, log := config(t, "a")
	a := start(t, ca)
	cb, logB := config(t, "b", a)
	b := start(t, cb)
	until(t, a, "b", members(2))
	until(t, b, "a", members(2))
	for _, seed := range []*Members{a, b} {
		twin, _ := config(t, "b", seed)
		twin.ID = idOf(t, "twin at "+seed.cfg.Name)
		refusedStart(t, twin, `"b"`, b.Address().String(), "another name")
	}
	log.await(t, "refused the node", "name", "another name")
	logB.await(t, "refused the node", "this node")
	if s := a.Snapshot(); len(s.Members) != 2 {
		t.Errorf("a sees %+v", s.Members)
	}
}

// apart waits until a node says, or no longer says, what keeps it from others.
func apart(t *testing.T, m *Members, what string, f func(Apart) bool) {
	t.Helper()
	if !hearthtest.Eventually(t.Context(), patience, func() bool { return f(m.Stats().Apart) }) {
		t.Errorf("%s: %s never says %s: %+v", m.cfg.Name, m.Address(), what, m.Stats().Apart)
	}
}

func TestARefusalAfterTheStartIsTold(t *testing.T) {
	// A seed answers only once the start has gone on without it, and has another key. The
	// node runs on, and tells why it is alone until the seed has the same key.
	t.Parallel()
	ca, _ := config(t, "a")
	port := hearthtest.Port(t)
	ca.Listen, ca.Key = "127.0.0.1:"+port, bytes.Repeat([]byte{1}, KeySize)
	a := start(t, ca)
	cb, log := config(t, "b")
	cb.Seeds, cb.Timing.First, cb.Key = []string{"ring.test:" + port}, time.Millisecond, bytes.Repeat([]byte{2}, KeySize)
	started := make(chan struct{})
	cb.Resolve = func(context.Context, string) ([]netip.Addr, error) {
		<-started
		return []netip.Addr{a.Address().Addr()}, nil
	}
	b := start(t, cb)
	if s := b.Stats(); s.Apart != (Apart{}) {
		t.Errorf("before anybody answered: %+v", s.Apart)
	}
	close(started)
	apart(t, b, "that it is refused", func(x Apart) bool {
		return strings.Contains(x.Refusal, a.Address().String()+" has another cluster key") && x.Rival == ""
	})
	log.await(t, "another cluster key")
	ca.Key = cb.Key
	stop(t, a)
	start(t, ca)
	until(t, b, "a", members(2))
	apart(t, b, "that all is well", func(x Apart) bool { return x == Apart{} })
}

func TestARivalAfterTheStartIsTold(t *testing.T) {
	// Two nodes got one name while the network between them was cut. Once it heals both
	// run on and report it, until one ends.
	t.Parallel()
	var healed atomic.Bool
	ca, _ := config(t, "x")
	ca.Timing = quick()
	a := start(t, ca)
	cb, log := config(t, "x", a)
	cb.ID, cb.Timing = idOf(t, "the second x"), quick()
	cb.reach = func(netip.AddrPort) bool { return healed.Load() }
	b := start(t, cb)
	healed.Store(true)
	for _, m := range []*Members{a, b} {
		apart(t, m, "who has its name", func(x Apart) bool { return strings.Contains(x.Rival, `has the name "x", too: `) })
	}
	log.await(t, `has the name \"x\", too`)
	stop(t, a)
	apart(t, b, "that all is well", func(x Apart) bool { return x == Apart{} })
}
