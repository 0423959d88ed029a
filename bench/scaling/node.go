package scaling

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

// node is a `hearth mount` on a machine of its own.
type node struct {
	at            *nets.Host
	name          string
	mount, socket string
	log           string
	cmd           *exec.Cmd
	ended         chan struct{}
}

// within is how long a node may take to do what it is told.
const within = time.Minute

// start makes a machine, starts a node on it, and waits for its mount.
func (r *testbed) start(i int) (err error) {
	x := &node{name: NameOf(i), mount: r.path(fmt.Sprintf("mnt-%d", i)), socket: r.path(fmt.Sprintf("%d.sock", i)),
		log: r.path(fmt.Sprintf("%d.log", i)), ended: make(chan struct{})}
	if x.at, err = r.net.Host(0); err != nil {
		return err
	}
	if err := run(append(x.at.Wrap(), "ip", "link", "set", "eth0", "gso_max_segs", "1")...); err != nil {
		return err
	}
	if err := os.MkdirAll(x.mount, 0o755); err != nil {
		return err
	}
	config := r.path(fmt.Sprintf("%d.yaml", i))
	if err := os.WriteFile(config, []byte(r.config(i, x)), 0o600); err != nil {
		return err
	}
	x.cmd = exec.Command(x.at.Wrap()[0], append(x.at.Wrap()[1:], r.o.Hearth, "mount", "--config", config, "--open", "none", "s3://"+r.o.Bucket, x.mount)...)
	x.cmd.Env = append(append([]string{}, r.o.Env...), "AWS_ENDPOINT_URL="+r.proxy.URL())
	log, err := os.Create(x.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	x.cmd.Stdout, x.cmd.Stderr = log, log
	if err := hearthtest.Spawn(x.cmd); err != nil {
		return err
	}
	r.nodes = append(r.nodes, x)
	go func() { _ = x.cmd.Wait(); close(x.ended) }()
	return x.mounted(r.dir)
}

// config is what the node is told: the bucket, a cache that holds the set, and its ring.
func (r *testbed) config(i int, x *node) string {
	join := ""
	if i > 0 {
		join = fmt.Sprintf("%q", r.nodes[0].gossip())
	}
	return fmt.Sprintf("links:\n- {path: /, origin: {url: \"s3://%s\", endpoint: %q, region: us-east-1, path_style: true}, freshness: immutable}\n"+
		"cache: {ram: 64MiB, disks: [{path: %q, size: 8GiB}], free_floor: 1GiB}\nadmin: {socket: %q, listen: \"-\"}\n"+
		"node: {name: %s, listen: %q}\njoin: [%s]\ncluster: {name: %s, key_file: %q}\n",
		r.o.Bucket, r.proxy.URL(), r.path(fmt.Sprintf("cache-%d", i)), x.socket, x.name, x.gossip(), join, Ring, r.path("key"))
}

func (x *node) gossip() string { return x.at.Addr().String() + ":" + gossipPort }

// said is the end of what the node has logged.
func (x *node) said() string {
	text, _ := os.ReadFile(x.log)
	return string(text[max(0, len(text)-2000):])
}

// mounted waits until the mount is another file system than the directory it lies in.
func (x *node) mounted(parent string) error {
	for over := time.Now().Add(within); time.Now().Before(over); {
		var here, above syscall.Stat_t
		if syscall.Stat(x.mount, &here) == nil && syscall.Stat(parent, &above) == nil && here.Dev != above.Dev {
			return nil
		}
		select {
		case <-x.ended:
			return fmt.Errorf("it ended: %s", x.said())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("no mount within %v: %s", within, x.said())
}

// Whole waits until the node behind a socket knows of n nodes that live and own blocks.
func Whole(ctx context.Context, socket string, n int) error {
	var last *status.RingStatus
	for over := time.Now().Add(within); time.Now().Before(over); {
		s, err := Status(ctx, socket)
		if err != nil {
			return err
		}
		last = s
		here := 0
		for _, m := range s.Members {
			if m.State == "active" && m.Health == "alive" && m.Share > 0 { // its map has it, too
				here++
			}
		}
		if here == n {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the node at %s does not know of %d nodes within %v: %+v", socket, n, within, last)
}

// Status is how the node behind a socket sees its ring.
func Status(ctx context.Context, socket string) (*status.RingStatus, error) {
	client, err := admin.Dial("unix://" + socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	s, err := client.Ring(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the node at %s for its ring: %w", socket, err)
	}
	return s, nil
}

// stop ends the node in the ordinary way, which takes its mount away.
func (x *node) stop() error {
	_ = x.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-x.ended:
		return nil
	case <-time.After(within):
		_ = x.cmd.Process.Kill()
		<-x.ended
		return fmt.Errorf("%s did not end within %v of SIGTERM: %s", x.name, within, x.said())
	}
}
