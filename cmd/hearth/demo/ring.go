package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthfs/hearth/peer/secret"
)

// MostNodes is how many nodes a demo may have, since all run on one machine.
const MostNodes = 8

// membership is how the nodes of a demo find each other: by gossip on loopback, with a cluster key.
type membership struct {
	key    string // its file
	gossip []string
}

// prepare makes the key and finds an address for each node, the first time that it is called.
func (r *membership) prepare(d *demo) error {
	if d.Nodes == 1 || r.key != "" {
		return nil
	}
	r.key = filepath.Join(d.Dir, "key")
	if err := os.WriteFile(r.key, []byte(secret.Generate()), 0o600); err != nil {
		return fmt.Errorf("write the cluster key: %w", err)
	}
	for range d.Nodes {
		at, err := freePorts(2)
		if err != nil {
			return err
		}
		r.gossip = append(r.gossip, at)
	}
	return nil
}

// config has the lines that configure node i as a member. "" means that the node is alone.
func (r *membership) config(i int) string {
	if r.key == "" {
		return ""
	}
	return fmt.Sprintf("node: {name: node-%d, listen: %q}\njoin: [%s]\ncluster: {name: demo, key_file: %q}\n", i+1, r.gossip[i], strings.Join(r.gossip, ", "), r.key)
}

// room is the disk budget of each node, in bytes. Several nodes together have room for all files.
// One alone has not, unless the files are few.
func (d *demo) room() int64 {
	const least, alone = 256 << 20, 4 << 30
	if d.Nodes == 1 || d.own {
		return alone
	}
	return max(least, total(d.files)*3/2/int64(d.Nodes))
}

// gathered waits until each node reads from all of them. A block that is read before may be kept by
// another node than the one that is asked for it later.
func (d *demo) gathered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, m := range d.nodes {
		for d.Nodes > 1 {
			n, err := m.owners(ctx)
			if err == nil && n == d.Nodes {
				break
			}
			select {
			case <-m.done:
				return fmt.Errorf("%s ended instead of serving: %s", m.name, m.log)
			case <-ctx.Done():
				return fmt.Errorf("%s reads from %d of %d nodes after a minute (%w): %s", m.name, n, d.Nodes, errors.Join(err, ctx.Err()), m.log)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}
