package members

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// refusedStart expects that a node is not let in, and says why.
func refusedStart(t *testing.T, c Config, words ...string) {
	t.Helper()
	m, err := Start(t.Context(), c)
	if err == nil {
		m.Close()
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
	// Two nodes with different keys, or one of them with none: the new one does not start,
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
	// A node of another cluster has a seed of this one: both say which is which.
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
	// A node that speaks too new a protocol is refused; one that still understands the old
	// one is not.
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
	// A second node runs with the id of one that is in the ring: it does not start, others
	// say who has the id, and the first stays.
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
	// A second node has the name of one that is in the ring: it does not start, whether its
	// seed is that one or another.
	t.Parallel()
	ca, log := config(t, "a")
	a := start(t, ca)
	cb, logB := config(t, "b", a)
	b := start(t, cb)
	until(t, a, "b", members(2))
	until(t, b, "a", members(2))
	for _, seed := range []*Members{a, b} {
		twin, _ := config(t, "b", seed)
		refusedStart(t, twin, `"b"`, b.Address().String(), "another name")
	}
	log.await(t, "refused the node", "name", "another name")
	logB.await(t, "refused the node", "this node")
	if s := a.Snapshot(); len(s.Members) != 2 {
		t.Errorf("a sees %+v", s.Members)
	}
}
