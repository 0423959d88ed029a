package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/hearthfs/hearth/bench/scaling"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// ringSize is how many nodes hold the epoch that one of them reads.
const ringSize = 4

// ringReaders read at once.
const ringReaders = 8

// hub is where the bucket of a ring's nodes is.
const hub = "192.0.2.254"

// testbed is some nodes, each in a network namespace of its own that an unshaped veth pair
// joins to a bridge. The first one has a mount.
type testbed struct {
	b     *bench
	of    *build // whose nodes run
	dir   string
	nodes []*member
	proxy *faultproxy.Proxy // before the bucket, on the bridge
	plain bool              // cluster.encryption: off
	disk  string            // what each node gives, as of launch
	from  string            // the volume that each has attached; "": none
	fills bool              // as of launch
}

// member is a node's part in a ring.
type member struct {
	ring    *testbed
	space   *space
	number  int
	mounted *mounted
}

func (m *member) address() string { return fmt.Sprintf("192.0.2.%d", 10+m.number) }
func (m *member) socket() string  { return filepath.Join(m.ring.dir, fmt.Sprintf("%d.sock", m.number)) }

// config is what a node is told of its ring.
func (m *member) config() string {
	first := member{number: 0}
	return fmt.Sprintf("node: {name: node-%d, listen: \"%s:7946\"}\njoin: [\"%s:7946\"]\ncluster: {name: bench, key_file: %q, encryption: %s}\n",
		m.number, m.address(), first.address(), filepath.Join(m.ring.dir, "key"), map[bool]string{true: "off", false: "on"}[m.ring.plain])
}

// newRing makes the network of so many nodes; none runs yet.
func (b *bench) newRing(size int) (r *testbed, err error) {
	r = &testbed{b: b, dir: filepath.Join(b.dir, "ring")}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return r, err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "key"), []byte("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"), 0o600); err != nil {
		return r, err
	}
	err = errors.Join(said(exec.Command("ip", "link", "add", "nodes", "type", "bridge")), said(exec.Command("ip", "address", "add", hub+"/24", "dev", "nodes")),
		said(exec.Command("ip", "link", "set", "nodes", "up")))
	// A bridge is a switch here, no firewall, as it is where br_netfilter is not loaded.
	if e := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e) // of this namespace
	}
	for i := 0; i < size && err == nil; i++ {
		err = r.add(i)
	}
	if err != nil {
		return r, fmt.Errorf("join %d network namespaces: %w", size, err)
	}
	r.proxy, err = faultproxy.Start(faultproxy.Options{Listen: hub + ":0", Target: b.origin.Endpoint})
	return r, err
}

func (r *testbed) add(i int) error {
	s, err := newSpace()
	if err != nil {
		return err
	}
	m := &member{ring: r, space: s, number: i}
	r.nodes = append(r.nodes, m)
	end := fmt.Sprintf("node%d", i)
	return errors.Join(said(exec.Command("ip", "link", "add", end, "type", "veth", "peer", "name", "data", "netns", s.id())),
		said(exec.Command("ip", "link", "set", end, "master", "nodes", "up")), s.address(m.address()))
}

func (r *testbed) close() {
	for _, m := range r.nodes {
		m.space.close()
	}
	if r.proxy != nil {
		r.proxy.Close()
	}
	_ = exec.Command("ip", "link", "delete", "nodes").Run() // it may never have been there
}

// run starts all nodes, waits until each knows of all, runs do, and ends them.
func (r *testbed) run(do func() error) (err error) {
	defer func() {
		for _, m := range r.nodes {
			if m.mounted != nil {
				err = errors.Join(err, m.mounted.stop())
				m.mounted = nil
			}
		}
	}()
	for i, m := range r.nodes {
		l := launch{cache: fmt.Sprintf("ring-%d", i), ram: "64MiB", disk: r.disk, in: m, from: r.from, fills: r.fills}
		if i == 0 {
			l.open = "none"
		}
		if m.mounted, err = r.of.mount(l); err != nil {
			return err
		}
	}
	for _, m := range r.nodes {
		if err := scaling.Whole(r.b.ctx, m.socket(), len(r.nodes)); err != nil {
			return err
		}
	}
	return do()
}

// cpu is what each node has spent so far, in CPU seconds.
func (r *testbed) cpu() (all []float64) {
	for _, m := range r.nodes {
		all = append(all, daemonCPU(m.mounted.cmd.Process.Pid))
	}
	return all
}

// ringEpochs is W6's epoch: one of four nodes reads what all four hold, each a part and
// nobody more than its own. Each gives room for 0.3 of the set, so that it fits all of them
// and none of them, or room for all of it, which the reader fills with copies as it reads.
// The baseline is one node that holds all of it on its own disk.
func (b *bench) ringEpochs() error {
	const name = "W6 epoch of four nodes"
	if !b.wanted(name) {
		return nil
	}
	set := b.scaled("D1")
	if err := b.load(set); err != nil {
		return err
	}
	alone := launch{cache: "alone", ram: "64MiB", open: "none"}
	if b.old == nil {
		if err := b.hearth.loaded(alone, set); err != nil {
			return err
		}
	}
	r, err := b.newRing(ringSize)
	if err != nil {
		return err
	}
	defer r.close()
	paths, seed := pathsOf(set), uint64(900)
	own := baseline{Name: "one node's own disk", Command: "the same readers and files, of a node that holds them all and is in no ring", Version: b.hearth.Version,
		run: func(r round) (side, error) {
			m, err := b.hearth.mount(alone)
			if err != nil {
				return side{}, err
			}
			defer func() { _ = m.stop() }()
			return b.round(m, false, func() (sum, error) { return epoch(under(m.dir, paths), ringReaders, seed+r.number) }, nil)
		}}
	_, bytes := set.Count()
	part := fmt.Sprint(bytes * 3 / 10)
	for _, row := range []struct {
		name  string
		plain bool
		disk  string
	}{{"plaintext", true, part}, {"TLS", false, part}, {"with room for copies", true, ""}} {
		f := figure{name: name + " " + row.name, targets: []float64{0.4}, coreTargets: []float64{0.5}, threads: ringReaders, unit: "file", remote: true}
		r.plain, r.disk = row.plain, row.disk
		err := b.compare(f, func(h *build, turn round) (side, error) {
			r.of = h
			return r.epoch(set, seed+turn.number, turn.last)
		}, own)
		if err != nil {
			return err
		}
	}
	return nil
}

// epoch loads a set into the ring, restarts all nodes, and reads it through the first one.
func (r *testbed) epoch(set hearthtest.DataSet, seed uint64, last bool) (s side, err error) {
	near := r.b.origin.proxy
	r.b.origin.proxy = r.proxy
	defer func() { r.b.origin.proxy = near }()
	reader := r.nodes[0]
	// What the reader has copied in an earlier round goes: warming up loads at the owners.
	err = r.run(func() error {
		target := "/" + folder(set)
		for _, args := range [][]string{{"stat", target}, {"evict", "--yes", target}, {"warmup", target}} { // evict knows names that were looked up
			if err := said(exec.Command(r.of.Path, append(args, "--node", "unix://"+reader.socket())...)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("load %s into the ring: %w", set.Name, err)
	}
	paths := pathsOf(set)
	err = r.run(func() error {
		dir := reader.mounted.dir
		var spent []float64
		pass := func() (done sum, err error) {
			before := r.cpu()
			done, err = epoch(under(dir, paths), ringReaders, seed)
			for i, cpu := range r.cpu() {
				spent = append(spent, cpu-before[i])
			}
			return done, err
		}
		if s, err = r.b.round(reader.mounted, false, pass, r.b.checked(dir, paths, last)); err != nil {
			return err
		}
		s.DaemonCPU = 0
		for _, cpu := range spent {
			s.DaemonCPU += cpu
		}
		return r.asked(int64(len(paths)), spent)
	})
	return s, err
}

// asked makes sure that the reader had most of the files from the others.
func (r *testbed) asked(files int64, spent []float64) error {
	status, err := scaling.Status(r.b.ctx, r.nodes[0].socket())
	if err != nil {
		return err
	}
	if err := r.b.keep(map[string]any{"ring_reads": status.Reads, "ring_cpu": spent, "plain": r.plain, "disk": r.disk}); err != nil {
		return err
	}
	if asked := status.Reads.Asked; asked < files/2 {
		return fmt.Errorf("of %d files %d were read from other nodes, about three of four should be", files, asked)
	}
	return nil
}
