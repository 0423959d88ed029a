// Package scaling says what a ring of n nodes sends, and measures it for a few of them.
//
// The model is arithmetic on what the code does: Predict adds up frames of peer/wire, pages
// of namespace/share, records of TLS and frames of Ethernet for what each node reads; Gossip does
// it for memberlist's probes and exchanges; Outlook says the same of rings that no machine of
// ours can run. No figure in it was fitted to a measurement.
//
// Measure runs a ring: each node a process on a machine of its own, which is a network
// namespace around a router (e2e/nets), with a link whose kernel counts its bytes. Each node
// reads a set once in an order of its own, and once again. Then the ring idles for a while,
// and every packet that passes the router is looked at: gossip is what goes from or to its
// port. The bucket's answers are counted by the proxy before it; what the nodes' links
// carried, less what was the bucket's and gossip's part, is what nodes sent each other. TCP
// is told to send no more than a frame at a time, as it would leave a real network card, so
// headers and acknowledgements are in these figures.
package scaling

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/node/status"
)

// Options are what a measurement needs; all must be given.
type Options struct {
	// Hearth is the binary; Dir is where caches, mounts and logs of the nodes are made and
	// removed.
	Hearth, Dir string
	// Origin is the S3 server's host and port, Bucket what is mounted, Env the nodes'
	// environment with the credentials.
	Origin, Bucket string
	Env            []string
	// Read reads the set once below a directory, in an order that follows from the seed.
	Read func(dir string, seed uint64) error
	// Cold empties the machine's page cache.
	Cold func() error
	// Idle is for how long gossip is counted.
	Idle time.Duration
}

// Measured is what a ring of Nodes did.
type Measured struct {
	Nodes int `json:"nodes"`
	// IdleSeconds and IdleGossip: what all nodes sent by gossip in that time, in bytes of
	// their links.
	IdleSeconds float64 `json:"idle_seconds"`
	IdleGossip  int64   `json:"idle_gossip_bytes"`
	// Reads are what came of reads of others' blocks, of all nodes together.
	Reads status.RingReads `json:"reads"`
	// Cold and Again are the two passes.
	Cold  Pass `json:"cold"`
	Again Pass `json:"again"`
}

// Pass is one in which each node reads the whole set.
type Pass struct {
	Seconds float64 `json:"seconds"`
	// Origin is what the bucket was asked, and bytes of the bodies of its answers.
	Origin faultproxy.Stats `json:"origin"`
	// PeerBytes are those that nodes sent each other, as their links carry them, without
	// gossip.
	PeerBytes int64 `json:"peer_bytes"`
}

// GossipRate is what each node sent in a second, in bytes of its link.
func (m Measured) GossipRate() float64 {
	return float64(m.IdleGossip) / m.IdleSeconds / float64(m.Nodes)
}

// ErrNoNetwork says that no network namespaces can be made here.
var ErrNoNetwork = errors.New("no network can be made here")

const (
	gossipPort = "7946"
	// steadyAfter a start every node exchanges all it knows each 30 s: memberlist begins that
	// within the second 30 s, and the news of who came have long been told.
	steadyAfter = time.Minute
	// key is the cluster key's text; the network is nobody else's.
	key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"
	// Ring is the cluster's name.
	Ring = "bench"
)

// NameOf is a node's name, from 0 on.
func NameOf(i int) string { return fmt.Sprintf("node-%d", i) }

// testbed is what is measured.
type testbed struct {
	o     Options
	dir   string
	net   *nets.Net
	hub   *nets.Host // of the bucket
	proxy *faultproxy.Proxy
	nodes []*node
}

// Measure runs a ring of n nodes and ends it. ErrNoNetwork: not here.
func Measure(ctx context.Context, o Options, n int) (m Measured, err error) {
	network, err := nets.New()
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrNoNetwork, err)
	}
	r := &testbed{o: o, dir: filepath.Join(o.Dir, fmt.Sprintf("scaling-%d", n)), net: network}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.up(ctx, n); err != nil {
		return m, fmt.Errorf("start a ring of %d nodes: %w", n, err)
	}
	steady := time.Now().Add(steadyAfter)
	m.Nodes = n
	for i, pass := range []*Pass{&m.Cold, &m.Again} {
		if *pass, err = r.pass(uint64(i)); err != nil {
			return m, fmt.Errorf("pass %d of %d nodes: %w", i+1, n, err)
		}
	}
	if err := r.reads(ctx, &m.Reads); err != nil {
		return m, err
	}
	if err := sleep(ctx, time.Until(steady)); err != nil {
		return m, err
	}
	if err := r.idle(ctx, &m); err != nil {
		return m, err
	}
	for _, pass := range []*Pass{&m.Cold, &m.Again} {
		pass.PeerBytes -= int64(m.GossipRate() * pass.Seconds * float64(n))
	}
	return m, nil
}

// up starts the bucket's machine and then the nodes', the first one before the others, which
// look for it.
func (r *testbed) up(ctx context.Context, n int) (err error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(r.path("key"), []byte(key), 0o600); err != nil {
		return err
	}
	if r.hub, err = r.net.Host(0); err != nil {
		return err
	}
	err = r.hub.Do(func() error {
		r.proxy, err = faultproxy.Start(faultproxy.Options{Listen: net.JoinHostPort(r.hub.Addr().String(), "80"), Target: r.o.Origin})
		return err
	})
	if err != nil {
		return err
	}
	for i := range n {
		if err := r.start(i); err != nil {
			return fmt.Errorf("%s: %w", NameOf(i), err)
		}
	}
	for _, x := range r.nodes {
		if err := Whole(ctx, x.socket, n); err != nil {
			return err
		}
	}
	return nil
}

func (r *testbed) path(name string) string { return filepath.Join(r.dir, name) }

// close ends the nodes, the last ones first, and removes what they left.
func (r *testbed) close() (err error) {
	for i := range r.nodes {
		err = errors.Join(err, r.nodes[len(r.nodes)-1-i].stop())
	}
	if r.proxy != nil {
		r.proxy.Close()
	}
	r.net.Close()
	return errors.Join(err, os.RemoveAll(r.dir))
}

// idle counts what nodes gossip while nobody reads.
func (r *testbed) idle(ctx context.Context, m *Measured) error {
	var bytes int64
	start := time.Now()
	c, err := r.net.Capture(func(p nets.Packet) {
		if gossips(p.Data) {
			bytes += ethernet + int64(len(p.Data))
		}
	})
	if err != nil {
		return err
	}
	err = sleep(ctx, r.o.Idle)
	_, lost, ended := c.Stop()
	if err := errors.Join(err, ended); err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("%d packets were not seen", lost)
	}
	// Each packet was seen as it came to the router and as it went.
	m.IdleSeconds, m.IdleGossip = time.Since(start).Seconds(), bytes/2
	return nil
}

// gossips tells whether a packet of IPv4 is from or to a gossip port.
func gossips(p []byte) bool {
	at := int(p[0]&15) * 4
	if len(p) < at+4 || p[9] != 6 && p[9] != 17 {
		return false
	}
	return int(p[at])<<8|int(p[at+1]) == port || int(p[at+2])<<8|int(p[at+3]) == port
}

// pass has each node read the set in an order of its own.
func (r *testbed) pass(number uint64) (p Pass, err error) {
	if err := r.o.Cold(); err != nil {
		return p, err
	}
	r.proxy.Reset()
	before, err := r.sent()
	if err != nil {
		return p, err
	}
	start := time.Now()
	var all errgroup.Group
	for i, x := range r.nodes {
		all.Go(func() error { return r.o.Read(x.mount, 1000*number+uint64(i)) })
	}
	if err := all.Wait(); err != nil {
		return p, err
	}
	p.Seconds, p.Origin = time.Since(start).Seconds(), r.proxy.Stats()
	after, err := r.sent()
	p.PeerBytes = after - before
	return p, err
}

// reads adds up what the nodes say of their reads.
func (r *testbed) reads(ctx context.Context, all *status.RingReads) error {
	for _, x := range r.nodes {
		s, err := Status(ctx, x.socket)
		if err != nil {
			return err
		}
		all.Asked += s.Reads.Asked
		all.Loaded += s.Reads.Loaded
		all.Detours += s.Reads.Detours
		all.Bytes += s.Reads.Bytes
		all.Elsewhere += s.Reads.Elsewhere
		all.Peeks += s.Reads.Peeks
		all.Found += s.Reads.Found
		all.Late += s.Reads.Late
	}
	return nil
}

// sent is what the nodes have sent each other so far, gossip included: all but what came to
// the bucket.
func (r *testbed) sent() (sum int64, err error) {
	_, sum, err = r.hub.Traffic()
	sum = -sum
	for _, x := range r.nodes {
		n, _, failed := x.at.Traffic()
		sum, err = sum+n, errors.Join(err, failed)
	}
	return sum, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run runs a command that says nothing unless it fails.
func run(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
