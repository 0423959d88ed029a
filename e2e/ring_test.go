package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

const (
	// nodeLink and originLink are rates of links in Mbit/s where time is judged.
	nodeLink, originLink = 200, 400
	// inVain is how many owners one read asks in vain at most. Each costs it a silence of half a
	// second at most; that is tested in virtual time, as is that both and the bucket are all that
	// a read takes (peer/wire, peer/route).
	inVain = 2
	// readWithin is the watchdog of a read: twenty times two silences and a read of a slow origin.
	readWithin = 30 * time.Second
	// agreement is how soon after a change all nodes of a ring know the same.
	agreement = time.Minute
	// gossipPort is where nodes gossip.
	gossipPort = 7946
)

// ring is machines around a router, with a `hearth mount` on each, and one more for the
// origin that they all read.
type ring struct {
	*env
	net    *nets.Net
	bucket *nets.Host // the origin's
	o      *server
	p      *proxied
	key    string // its file
	off    bool   // the nodes do not encrypt
	set    settings
	nodes  []*member
	gone   int64  // blocks that disks declined of nodes that run no more
	warm   bool   // the nodes have read before
	seed   uint64 // of the orders in which readers read

	longest time.Duration // of the system calls of all readers so far
}

// member is a node and the machine on which it runs.
type member struct {
	*hearth
	ring *ring
	at   *nets.Host
	name string
	set  settings
	own  string // lines of its own in the configuration, instead of those of the cluster
	// clock holds how far the node's is ahead; "": the machine's, which nobody moves.
	clock string
	join  []*member
}

// ring makes an origin on a machine of its own, whose link has a rate of so many Mbit/s; 0: no
// limit. nil: no network can be made here, and the row says so.
func (e *env) ring(mbit int) *ring {
	e.Helper()
	n, err := nets.New()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		e.detail = "skipped because no network can be made here"
		e.Logf("skipped because %v", err)
		return nil
	}
	e.must(err, "make a network")
	e.Cleanup(n.Close)
	r := &ring{env: e, net: n, o: e.origin(), key: e.path("key"), seed: hearthtest.Seed(e.T)}
	r.bucket = r.machine(mbit)
	e.must(os.WriteFile(r.key, []byte(strings.Repeat("one more word of a phrase that nobody guesses\n", 2)), 0o600), "write the cluster key")
	e.must(r.bucket.Do(func() error {
		p, err := faultproxy.Start(faultproxy.Options{Listen: net.JoinHostPort(r.bucket.Addr().String(), "80"), Target: r.o.endpoint})
		if err == nil {
			e.Cleanup(p.Close)
			r.p = &proxied{Proxy: p, endpoint: p.URL()}
		}
		return err
	}), "start the fault proxy")
	r.set.endpoint = r.p.endpoint
	return r
}

func (r *ring) machine(mbit int) *nets.Host {
	r.Helper()
	h, err := r.net.Host(mbit)
	r.must(err, "make a machine")
	return h
}

// add makes more machines for nodes; none of them runs yet.
func (r *ring) add(n, mbit int) []*member {
	r.Helper()
	for range n {
		name := fmt.Sprintf("n%d", len(r.nodes)+1)
		m := &member{ring: r, at: r.machine(mbit), name: name, set: r.set}
		m.set.cache, m.set.wrap = "cache-"+name, m.at.Wrap()
		if len(r.nodes) > 0 {
			m.join = r.nodes[:min(2, len(r.nodes))]
		}
		r.nodes = append(r.nodes, m)
	}
	return r.nodes[len(r.nodes)-n:]
}

// up is so many nodes of a ring that know each other. The first one is there before the
// others seek it: who finds nobody tries again later.
func (r *ring) up(n, mbit int) []*member {
	r.Helper()
	nodes := r.add(n, mbit)
	r.start(nodes[0])
	r.start(nodes[1:]...)
	r.agree(nodes...)
	return nodes
}

// start starts nodes, all at once, and waits for their mounts.
func (r *ring) start(nodes ...*member) {
	r.Helper()
	for _, m := range nodes {
		m.launch()
	}
	for _, m := range nodes {
		m.mounted()
	}
}

// launch starts the node's process and does not wait for its mount.
func (m *member) launch() {
	m.ring.Helper()
	set := m.set
	set.extra += m.lines()
	m.hearth = m.ring.configure(m.ring.o, set)
	if m.clock != "" {
		set.environ = m.wired(set)
	}
	m.spawn(m.ring.o, set)
}

// listen is where the node gossips.
func (m *member) listen() string { return netip.AddrPortFrom(m.at.Addr(), gossipPort).String() }

// lines are what the node is told of the ring.
func (m *member) lines() string {
	var seeds []string
	for _, s := range m.join {
		seeds = append(seeds, fmt.Sprintf("%q", s.listen()))
	}
	lines := fmt.Sprintf("node: {name: %s, listen: %q}\njoin: [%s]\n", m.name, m.listen(), strings.Join(seeds, ", "))
	if m.own != "" {
		return lines + m.own
	}
	return lines + m.ring.cluster("e2e", m.ring.key, m.ring.off)
}

// cluster are a node's lines on it. Without a key's file it has none.
func (r *ring) cluster(name, key string, off bool) string {
	lines := "cluster: {name: " + name
	if key != "" {
		lines += fmt.Sprintf(", key_file: %q", key)
	}
	if off {
		lines += ", encryption: off"
	}
	return lines + "}\n"
}

// sees is how a node sees the ring; nil: it does not say.
func (m *member) sees() *status.RingStatus {
	s, err := m.client.Ring(m.e.ctx)
	if err != nil {
		return nil
	}
	return s
}

// agree waits until each of the nodes knows them all as alive and active, and no other, and
// reads by it.
func (r *ring) agree(nodes ...*member) {
	r.Helper()
	var names []string
	for _, m := range nodes {
		names = append(names, m.name)
	}
	slices.Sort(names)
	start := time.Now()
	over := start.Add(agreement)
	for _, m := range nodes {
		var s *status.RingStatus
		r.eventually(fmt.Sprintf("%s knowing %v", m.name, names), func() bool {
			if time.Now().After(over) {
				r.Fatalf("after %v %s knows not just %v:\n%+v", agreement, m.name, names, s)
			}
			if s = m.sees(); s == nil {
				return false
			}
			return slices.Equal(alive(s), names)
		})
	}
	r.Logf("%s: %v know each other after %v", start.Format("05.0"), names, time.Since(start).Round(time.Millisecond))
}

// alive are the names of the members that a node takes for alive and active, sorted. Those
// that give something are on its map.
func alive(s *status.RingStatus) (names []string) {
	for _, m := range s.Members {
		if m.Health == "alive" && m.State == "active" && (m.Share > 0) == (m.Donated > 0) {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// owner is the node that owns the part of a file at an offset, as a node says, and the rank
// behind it.
func (r *ring) owner(by *member, f hearthtest.File, off int64) (first, second *member) {
	r.Helper()
	o := r.owners(by, f)
	for _, x := range slices.Backward(o.Extents) {
		if x.Offset <= off && len(x.Owners) > 1 {
			return r.named(x.Owners[0]), r.named(x.Owners[1])
		}
	}
	r.Fatalf("%s at %d has no two owners: %+v", f.Path, off, o)
	return nil, nil
}

// owners waits until a node knows a file, which may have come just now, and is told who owns
// its parts.
func (r *ring) owners(by *member, f hearthtest.File) (o *status.Owned) {
	r.Helper()
	var err error
	over := time.Now().Add(agreement)
	r.eventually("who owns "+f.Path, func() bool {
		if o, err = by.client.Owners(r.ctx, "/"+f.Path); err != nil && time.Now().After(over) {
			r.Fatalf("ask %s who owns %s: %v", by.name, f.Path, err)
		}
		return err == nil
	})
	return o
}

func (r *ring) named(name string) *member {
	r.Helper()
	i := slices.IndexFunc(r.nodes, func(m *member) bool { return m.name == name })
	if i < 0 {
		r.Fatalf("there is no node %q", name)
	}
	return r.nodes[i]
}

// but are the nodes without some of them.
func (r *ring) but(out ...*member) []*member {
	return slices.DeleteFunc(slices.Clone(r.nodes), func(m *member) bool { return slices.Contains(out, m) })
}

// all reads a set on each of the nodes at once, each in an order of its own, and checks
// every byte. On an empty ring readers that began one after the other would find what the
// first one brought.
func (r *ring) all(what string, list []hearthtest.File, seed uint64, nodes ...*member) {
	r.Helper()
	var ready sync.WaitGroup
	begin, ends := make(chan struct{}), make([]chan reading, len(nodes))
	begun, ended := make([]time.Time, len(nodes)), make([]time.Time, len(nodes))
	for i, m := range nodes {
		ends[i] = make(chan reading, 1)
		ready.Add(1)
		go func() {
			ready.Done()
			<-begin
			begun[i] = time.Now()
			got := epoch(m.dir, list, r.seed+seed*100+uint64(i), readersOfAll, 0)
			ended[i] = time.Now()
			ends[i] <- got
		}()
	}
	ready.Wait()
	close(begin)
	for i, m := range nodes {
		r.good(what+", "+m.name, <-ends[i])
	}
	last, first := slices.MaxFunc(begun, time.Time.Compare), slices.MinFunc(ended, time.Time.Compare)
	if last.After(first) && !r.warm {
		r.Errorf("%s: a reader had ended %v before another one began, and they were to read at once", what, last.Sub(first))
	}
	r.warm = true
}

// readersOfAll are the threads that read at once on each node.
const readersOfAll = 4

// readers start a process on each of the nodes that reads the files in an order of its own;
// loop: again and again.
func (r *ring) readers(list []hearthtest.File, loop bool, nodes ...*member) (all []*reader) {
	r.Helper()
	for i, m := range nodes {
		files := slices.Clone(list)
		rand.New(rand.NewPCG(r.seed+uint64(r.count), uint64(i))).Shuffle(len(files), func(a, b int) { files[a], files[b] = files[b], files[a] })
		all = append(all, r.reader(job{Op: "read", Dir: m.dir, Files: files, Loop: loop}))
	}
	return all
}

// well waits for the readers: each has read everything at least once, without an error or a
// wrong byte. It returns the longest system call of all.
func (r *ring) well(readers []*reader) (longest time.Duration) {
	r.Helper()
	for _, x := range readers {
		x.end()
	}
	within := 5 * time.Minute
	if r.level == full {
		within = 30 * time.Minute
	}
	for _, x := range readers {
		a := x.result(within)
		if a.Done == 0 || len(a.Errors) > 0 || len(a.Wrong) > 0 {
			r.Errorf("%s read all %d times; errors %v, wrong %q", x.name, a.Done, a.Errors, a.Wrong[:min(3, len(a.Wrong))])
		}
		longest = max(longest, a.Longest)
	}
	r.longest = max(r.longest, longest)
	return longest
}

// bounded fails the scenario where a read asked more owners in vain than it may, as the nodes
// say that run, or took so long that it waited for something else; the row shows the longest.
func (r *ring) bounded(longest time.Duration) {
	r.Helper()
	most, passed := int64(0), map[string]int64{}
	for _, m := range r.nodes {
		if !m.running() {
			continue
		}
		x := m.status().Ring.Reads
		most = max(most, x.Most)
		for why, n := range x.Passed {
			passed[why] += n
		}
	}
	r.Logf("so far reads went past owners for these many blocks: %v, one read past %d", passed, most)
	if most > inVain {
		r.Errorf("one read asked %d owners in vain, at most %d: %v", most, inVain, passed)
	}
	if longest > readWithin {
		r.Errorf("the longest read took %v: it waited for something else than %d silences", longest, inVain)
	}
	r.shows("longest read %v, past %d owners", longest.Round(time.Millisecond), most)
}

// running reports whether the node's process has not ended and is not stopped.
func (m *member) running() bool {
	select {
	case <-m.done:
		return false
	default:
		return !hearthtest.Stopped(m.Process.Pid)
	}
}

// shows adds to what the row shows.
func (e *env) shows(format string, args ...any) {
	if e.detail != "" {
		e.detail += ", "
	}
	e.detail += fmt.Sprintf(format, args...)
}

// capture looks at all packets until stop, or the end of the scenario. Every one must have
// been seen.
func (r *ring) capture(see func(nets.Packet)) (stop func()) {
	r.Helper()
	c, err := r.net.Capture(see)
	r.must(err, "capture packets")
	stop = sync.OnceFunc(func() {
		r.Helper()
		seen, lost, err := c.Stop()
		if err != nil || lost > 0 {
			r.Errorf("the capture missed %d packets of %d: %v", lost, seen+lost, err)
		}
	})
	r.Cleanup(stop)
	return stop
}

// asked is what came from the origin while do ran, bodies in bytes and requests.
func (r *ring) asked(do func()) (bytes, gets int64) {
	b, g := r.p.bytes(), r.p.gets()
	do()
	r.eventually("the end of all requests", func() bool { return r.p.Stats().InFlight == 0 })
	return r.p.bytes() - b, r.p.gets() - g
}

// fetched is what nodes asked the origin for until now, as that counts it: bodies in bytes
// and requests.
func (r *ring) fetched(nodes ...*member) (bytes, gets int64) {
	r.Helper()
	r.eventually("the end of all requests", func() bool { return r.p.Stats().InFlight == 0 })
	for _, m := range nodes {
		c := r.p.Gets(m.at.Addr())
		bytes, gets = bytes+c.Bytes, gets+c.Requests
	}
	return bytes, gets
}

// quit ends nodes, each of which must end well, the last started first. What came of their
// reads is in the log.
func (r *ring) quit(nodes ...*member) {
	r.Helper()
	for _, m := range nodes {
		if s := m.sees(); s != nil {
			r.Logf("%s: %+v", m.name, s.Reads)
		}
	}
	for _, m := range slices.Backward(nodes) {
		m.quit()
	}
}

// once has nodes do what brings a set that none of them holds, of which more comes from the
// origin than it is large only for what nodes account for: a block that an owner did not give in
// time, one that its disk declined and memory has no more, and a request that was sent again.
func (r *ring) once(what string, list []hearthtest.File, nodes []*member, do func()) {
	r.Helper()
	before, declined := r.events(nodes...), r.declined(nodes...)
	got, _ := r.asked(do)
	since := r.events(nodes...).since(before)
	declined = r.declined(nodes...) - declined
	largest := int64(0)
	for _, f := range list {
		largest = max(largest, min(f.Size, block))
	}
	twice := since.passed + since.retries + declined
	if got > sum(list)+twice*largest {
		r.Errorf("%s: the origin sent %d bytes for a set of %d; %d blocks were declined, %v", what, got, sum(list), declined, since)
	}
	r.steady(what, since)
	r.excuses(what, twice, max(int64(len(list)), sum(list)/block))
	r.shows("%s %.3f of the set", what, float64(got)/float64(sum(list)))
	if twice > 0 {
		r.shows("%d blocks declined, %v", declined, since)
	}
}
