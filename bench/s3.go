package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/hearthfs/hearth/bench/clients"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
)

// clientsProgram is this binary as clients, told by a line of JSON what to do.
const clientsProgram = "clients"

// bareProgram is this binary as a server without a cache.
const bareProgram = "bare"

// buckets is what W5 compares: MinIO, and a node's endpoint that has its origin there.
type buckets struct {
	*clients.Data
	b      *bench
	listen map[*build]string // of each build's endpoint
	keys   string            // the endpoints' file of keys, in which MinIO's own is
}

func (b *bench) buckets() (*buckets, error) {
	d, err := clients.Start(b.ctx, filepath.Join(b.dir, "minio"), b.scale)
	if err != nil {
		return nil, err
	}
	k := &buckets{Data: d, b: b, listen: map[*build]string{}, keys: filepath.Join(b.dir, "s3-keys")}
	err = b.each(func(h *build) (err error) { k.listen[h], err = freeAddress(); return err })
	if err == nil {
		err = os.WriteFile(k.keys, fmt.Appendf(nil, "%s %s rw *\n", d.MinIO.AccessKey, d.MinIO.SecretKey), 0o600)
	}
	if err != nil {
		d.MinIO.Stop()
		return nil, err
	}
	return k, nil
}

// freeAddress is one of the loopback's that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// config is the node's part of the configuration.
func (k *buckets) config(h *build) string {
	return fmt.Sprintf("s3: {listen: %q, credentials_file: %q}\n", k.listen[h], k.keys)
}

// account is the same key at a node's endpoint, or, where none is given, at MinIO.
func (k *buckets) account(at *build) hearthtest.S3 {
	a := k.MinIO.S3
	if a.Client = nil; at != nil {
		a.Endpoint = "http://" + k.listen[at]
	}
	return a
}

// s3 is W5: S3 clients of a node that has all they ask for, beside the same clients of MinIO.
func (b *bench) s3() (err error) {
	if !b.wanted("W5") {
		return nil
	}
	k, err := b.buckets()
	if err != nil {
		return err
	}
	defer k.MinIO.Stop()
	for _, tier := range []struct{ name, ram string }{{"RAM", "2GiB"}, {"disk", "64MiB"}} {
		if err := k.figures(tier.name, tier.ram); err != nil {
			return err
		}
	}
	return nil
}

// figures are those of a node whose data lies in one tier: in its memory; or on its disk, which it
// reads past the page cache, where MinIO's files lie.
func (k *buckets) figures(tier, ram string) (err error) {
	b := k.b
	nodes, err := b.mountEach(func(*build) launch { return launch{cache: "cache-w5", ram: ram, s3: k} })
	defer func() { err = errors.Join(err, nodes.stop()) }()
	if err == nil {
		err = b.each(func(h *build) error { return errors.Join(listensTCP(k.listen[h], nodes[h].done), k.warm(nodes[h])) })
	}
	if err != nil {
		return err
	}
	scaled := func(n int) int { return max(s3Connections, int(float64(n)*b.scale)) }
	for _, f := range []load{
		{"GET 16 KiB", scaled(20_000), 4, 0, k.Gets},
		{"GET 1 MiB", scaled(2000), 2, 0, func(seed uint64) []clients.Ask { return k.Ranges(1<<20, seed) }},
		{"GET 64 MiB", scaled(32), 2, 0, func(seed uint64) []clients.Ask { return k.Ranges(64<<20, seed) }},
		{"LIST 10,000", scaled(100), 0, 10, func(uint64) []clients.Ask { return k.Pages() }},
	} {
		if tier == "disk" && strings.HasPrefix(f.name, "LIST") {
			continue // names lie in neither
		}
		if err := k.figure(nodes, tier, f); err != nil {
			return err
		}
	}
	if tier == "RAM" || b.old != nil { // memory alone is compared, not time
		return nil
	}
	for _, kind := range []string{"idle", "slow"} {
		if err := k.crowd(nodes[b.hearth], kind); err != nil {
			return err
		}
	}
	return nil
}

// s3Connections of the clients of a figure, at once.
const s3Connections = 16

// load is what the clients of a figure ask for.
type load struct {
	name         string
	requests     int
	perCore, all float64 // wanted
	asks         func(seed uint64) []clients.Ask
}

// figure measures one load of a node, of MinIO, and from memory of a server that only writes.
func (k *buckets) figure(of nodes, tier string, f load) error {
	b := k.b
	run := func(server *mounted, at hearthtest.S3, r round, check bool) (side, error) {
		w := clients.Work{Account: at, Bucket: clients.Bucket, Connections: s3Connections, Asks: f.asks(r.number), Requests: f.requests}
		s, err := k.clients(server, w)
		if err != nil || !check {
			return s, err
		}
		w.Requests, w.Check = len(w.Asks), true
		checked, err := k.clients(server, w)
		s.Checked, s.Wrong = true, checked.Wrong
		return s, err
	}
	others := []baseline{{Name: "MinIO", Command: "minio server --address ADDRESS DIR, on loopback, its files in the page cache", Version: minioVersion(),
		run: func(r round) (side, error) { return run(&mounted{cmd: k.MinIO.Command}, k.account(nil), r, false) }}}
	if tier == "RAM" && strings.HasPrefix(f.name, "GET") {
		others = append(others, baseline{Name: "bare server", Command: "net/http that writes from memory, without a cache", Version: runtime.Version(),
			run: func(r round) (s side, err error) {
				bare, at, err := k.bare()
				if err != nil {
					return s, err
				}
				defer func() { err = errors.Join(err, bare.stop()) }()
				return run(bare, at, r, false)
			}})
	}
	row := figure{name: "W5 " + f.name + " " + tier, threads: s3Connections, unit: "request", remote: true, targets: []float64{f.all}, coreTargets: []float64{f.perCore}}
	return b.compare(row, func(h *build, r round) (side, error) { return run(of[h], k.account(h), r, r.last) }, others...)
}

// bare starts a server that only writes.
func (k *buckets) bare() (*mounted, hearthtest.S3, error) {
	at := k.account(nil)
	self, err := os.Executable()
	if err != nil {
		return nil, at, err
	}
	ended := make(chan struct{})
	m := &mounted{cmd: exec.Command(self, bareProgram), done: ended}
	m.cmd.Stderr = os.Stderr
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, at, err
	}
	if err := hearthtest.Spawn(m.cmd); err != nil {
		return nil, at, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() { _ = m.cmd.Wait(); close(ended) }()
	at.Endpoint = "http://" + strings.TrimSpace(line)
	return m, at, err
}

func minioVersion() string {
	_, version, _ := versioned("minio")
	return version
}

// warm has every byte read and compared through the node, twice, so that its tiers hold
// what they can; and the names listed.
func (k *buckets) warm(m *mounted) error {
	for range 2 {
		for _, asks := range [][]clients.Ask{k.Gets(0), k.Ranges(1<<20, 0), k.Pages()} {
			s, err := k.clients(m, clients.Work{Account: k.account(m.of), Bucket: clients.Bucket, Connections: s3Connections, Asks: asks, Requests: len(asks), Check: true})
			if err == nil && s.Wrong > 0 {
				err = fmt.Errorf("%d answers with wrong bytes", s.Wrong)
			}
			if err != nil {
				return fmt.Errorf("warm the endpoint: %w", err)
			}
		}
	}
	return nil
}

// clients has a process of clients work, and notes what it cost the server.
func (k *buckets) clients(server *mounted, w clients.Work) (side, error) {
	text, err := json.Marshal(w)
	if err != nil {
		return side{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return side{}, err
	}
	cmd := exec.Command(self, clientsProgram)
	cmd.Stdin = bytes.NewReader(text)
	before, err := k.asked(server.of)
	if err != nil {
		return side{}, err
	}
	s, out, err := k.b.command(server, cmd)
	if err != nil {
		return s, err
	}
	after, err := k.asked(server.of)
	if err != nil {
		return s, err
	}
	s.OriginRequests = after - before
	var sum clients.Sum
	if err := json.Unmarshal(out, &sum); err != nil {
		return s, err
	}
	s.Seconds, s.Units, s.Bytes, s.Wrong, s.Connections = sum.Seconds, sum.Requests, sum.Bytes, sum.Wrong, w.Connections
	s.P50us, s.P99us, s.MaxUs = percentiles(sum.Latencies)
	return s, nil
}

// crowd measures clients that stay, of both servers.
func (k *buckets) crowd(m *mounted, kind string) error {
	name := "W5 memory of 1,000 " + kind + " clients"
	if k.b.only != "" && !strings.HasPrefix(name+" ", k.b.only+" ") {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for round := range k.b.rounds {
		for _, at := range []*build{nil, m.of} {
			c := clients.Crowd{Name: name, Kind: kind, Server: "MinIO", PID: k.MinIO.Command.Process.Pid, Round: round}
			if at != nil {
				c.Server, c.PID = "Hearth", m.cmd.Process.Pid
			}
			if err := c.Measure(exec.Command(self, clientsProgram), k.account(at), k.Data); err != nil {
				return fmt.Errorf("%s of %s: %w", name, c.Server, err)
			}
			if at != nil && c.Stayed < clients.CrowdSize {
				return fmt.Errorf("%s: %d of %d were turned away", name, clients.CrowdSize-c.Stayed, clients.CrowdSize)
			}
			k.b.crowds = append(k.b.crowds, c)
			if err := k.b.keep(map[string]any{"crowd": c}); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%s: %s, round %d: %d MiB, then %d MiB\n", name, c.Server, round+1, c.Before>>20, c.Most>>20)
		}
	}
	return nil
}

// asked counts what the endpoint did not answer from the cache, or asked its origin for first, by
// its status; of MinIO it is 0.
func (k *buckets) asked(of *build) (n int64, err error) {
	if of == nil {
		return 0, nil
	}
	node, err := admin.Dial("unix://" + of.socket())
	if err != nil {
		return 0, err
	}
	defer node.Close()
	s, err := node.Status(k.b.ctx)
	if err != nil || s.S3 == nil {
		return 0, errors.Join(err, errors.New("a status without the endpoint"))
	}
	for _, r := range s.S3.Requests {
		if r.How != "cached" {
			n += r.Requests
		}
	}
	return n + s.S3.Headers.Asks, nil
}

// listensTCP waits until an endpoint answers, or its node has ended.
func listensTCP(at string, ended <-chan struct{}) error {
	for range 3000 {
		if conn, err := net.Dial("tcp", at); err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("nothing listens on %s", at)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("nothing listens on %s within 30 s", at)
}
