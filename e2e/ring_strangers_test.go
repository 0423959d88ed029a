package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// refused is the exit code of a node that a ring does not take, as docs/ring.md says.
const refused = 8

// stranger is a node that a ring does not take, and what is said of it.
type stranger struct {
	what, cluster string // its lines on the cluster
	says, told    string // what it says itself, and what a node of the ring does
	code          int    // its exit code
}

// ringStrangers has nodes try to join that must not, a ring that encrypts or one that does
// not: each is refused, and both sides say why. The ring goes on.
func ringStrangers(off bool) func(*env) {
	return func(e *env) {
		if r := e.ring(0); r != nil {
			r.off = off
			r.strangers()
		}
	}
}

func (r *ring) strangers() {
	r.Helper()
	list := r.load(r.o, r.few(1, 30))
	r.set.mount = append(r.set.mount, "--log-level", "info")
	nodes := r.up(3, 0)
	other := r.path("other-key")
	r.must(os.WriteFile(other, []byte(strings.Repeat("these are words of another phrase indeed\n", 2)), 0o600), "write another key")
	for _, s := range []stranger{
		{"another key", r.cluster("e2e", other, r.off), "has another cluster key or another cluster.name than this one", "refused a node at %v: it has another cluster key or another cluster.name than this one", refused},
		{"another cluster", r.cluster("elsewhere", r.key, r.off), "another cluster.name than this one", "refused a node at %v: it has another cluster key or another cluster.name", refused},
		{"no key", r.cluster("e2e", "", r.off), "without a cluster key", "", 2},
	} {
		r.refused(s)
	}
	r.copied(nodes[1])
	r.unlike(list)
	r.agree(nodes...)
	r.all("beside strangers", list, 1, nodes...)
	r.quit(nodes...)
}

// stranger is a machine whose node is none of the ring's.
func (r *ring) stranger(cluster string) *member {
	r.Helper()
	m := r.add(1, 0)[0]
	r.nodes = r.nodes[:len(r.nodes)-1]
	m.name, m.own = "stranger", cluster
	m.set.cache = fmt.Sprintf("cache-stranger-%d", r.count)
	return m
}

func (r *ring) refused(s stranger) {
	r.Helper()
	m := r.stranger(s.cluster)
	m.launch()
	if code := m.exit(30 * time.Second); code != s.code || !strings.Contains(m.out.String(), s.says) {
		r.Errorf("%s: exit %d of %d, or it does not say %q:\n%s", s.what, code, s.code, s.says, m.out)
	}
	if s.told != "" {
		r.nodes[0].waitFor(fmt.Sprintf(s.told, m.at.Addr()))
	}
}

// copied starts a node with a copy of another's cache directory.
func (r *ring) copied(of *member) {
	r.Helper()
	of.quit()
	m := r.stranger("")
	m.name = "copy"
	cmd := exec.Command("cp", "-a", r.path(of.set.cache), r.path(m.set.cache))
	out, err := cmd.CombinedOutput()
	r.must(err, "copy a cache directory: %s", out)
	r.start(of)
	r.agree(r.nodes...)
	m.launch()
	const says = "a cache directory was copied"
	if code := m.exit(time.Minute); code != refused || !strings.Contains(m.out.String(), says) {
		r.Errorf("a copied cache directory: exit %d of %d, or it does not say %q:\n%s", code, refused, says, m.out)
	}
	// It asks nodes that it knew as well as its seed, and ends with the first answer.
	r.eventually("a node that says so", func() bool {
		return slices.ContainsFunc(r.nodes, func(m *member) bool { return strings.Contains(m.out.String(), says) })
	})
}

// unlike has a node join that does not encrypt while the others do, or the other way round: the same key lets it
// into the ring, no read of it is answered, and both sides say what to set.
func (r *ring) unlike(list []hearthtest.File) {
	r.Helper()
	m := r.stranger(r.cluster("e2e", r.key, !r.off))
	r.start(m)
	r.agree(append(slices.Clone(r.nodes), m)...)
	r.all("unlike the others", list, 2, m)
	r.all("beside one that is unlike", list, 3, r.nodes...)
	const says = "set cluster.encryption alike"
	m.waitFor(says)
	r.nodes[0].waitFor(says)
	r.eventually("what status says of it", func() bool {
		for _, x := range []*member{r.nodes[0], r.nodes[1], m} { // who is asked nothing fails nothing
			x.sees()
		}
		warned := slices.ContainsFunc(r.nodes[0].status().Warnings, func(w string) bool {
			return strings.Contains(w, m.name) && strings.Contains(w, says)
		})
		return warned && slices.ContainsFunc(m.status().Problems, func(p string) bool {
			return strings.HasPrefix(p, "none of the ring's other nodes") && strings.Contains(p, says)
		})
	})
	if out, code := r.nodes[1].ask("ring", "ls"); code != 0 || !strings.Contains(out, m.name+" is alive, and fails what these ask it: ") {
		r.Errorf("hearth ring ls: exit %d:\n%s", code, out)
	}
	m.quit()
}

// marker is in bytes and names of objects, and nowhere else.
const marker = "HEARTH-E2E-MARKER"

// ringCapture looks at all packets between nodes while they read objects with a marker in
// their bytes and names: it is not in one of them, and in those of the origin it is.
func ringCapture(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	content := bytes.Repeat([]byte(marker+" is what these bytes say. "), 4000)
	var names []string
	for i := range 30 {
		name := fmt.Sprintf("%s-dir/%s-%d", marker, marker, i)
		_, err := r.o.PutBytes(r.ctx, r.o.bucket, name, content)
		r.must(err, "put an object")
		names = append(names, name)
	}
	seen, stop := r.markers()
	nodes := r.up(3, 0)
	for _, m := range nodes {
		for _, name := range names {
			got, err := os.ReadFile(filepath.Join(m.dir, name))
			if err != nil || !bytes.Equal(got, content) {
				r.Fatalf("read %s at %s: %d bytes, %v", name, m.name, len(got), err)
			}
		}
	}
	stop()
	if n := seen.plain.Load(); n > 0 {
		r.Errorf("%d packets between nodes have the marker", n)
	}
	// The two that do not own an object get it from the one that does.
	if total := int64(len(names) * len(content)); seen.between.Load() < total || seen.control.Load() == 0 {
		r.Errorf("%d bytes were seen between nodes, who read %d; of the origin's packets %d have the marker", seen.between.Load(), total, seen.control.Load())
	}
	// Three nodes tell each other of all three by TCP, and look after each other by UDP.
	r.shows("%d packets of gossip by UDP, %d by TCP", seen.udp.Load(), seen.tcp.Load())
	if seen.udp.Load() == 0 || seen.tcp.Load() == 0 {
		r.Errorf("of gossip %d packets by UDP and %d by TCP were seen", seen.udp.Load(), seen.tcp.Load())
	}
	r.quit(nodes...)
}

// sightings are what was seen on the way.
type sightings struct {
	between        atomic.Int64 // bytes between nodes
	udp, tcp       atomic.Int64 // packets of their gossip
	plain, control atomic.Int64 // packets with the marker, between nodes and of the origin
}

// markers counts what passes until stop.
func (r *ring) markers() (seen *sightings, stop func()) {
	r.Helper()
	seen = &sightings{}
	origin := func(a netip.Addr) bool { return a == r.bucket.Addr() }
	stop = r.capture(func(p nets.Packet) {
		marked := bytes.Contains(p.Data, []byte(marker))
		if origin(p.From) || origin(p.To) {
			if marked {
				seen.control.Add(1)
			}
			return
		}
		if marked {
			seen.plain.Add(1)
		}
		seen.between.Add(int64(len(p.Data)))
		protocol, from, to := p.Ports()
		switch {
		case from != gossipPort && to != gossipPort:
		case protocol == unix.IPPROTO_UDP:
			seen.udp.Add(1)
		default:
			seen.tcp.Add(1)
		}
	})
	return seen, stop
}
