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

// MostNodes of a demo are as many as fit one machine.
const MostNodes = 8

// membership is how the nodes of a demo find each other: by gossip on loopback, with a key.
type membership struct {
	key    string // its file
	gossip []string
}

// prepare makes the key, and finds an address for each node, once.
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

// config are the lines of a node of that number; "": it is by itself.
func (r *membership) config(i int) string {
	if r.key == "" {
		return ""
	}
	return fmt.Sprintf("node: {name: node-%d, listen: %q}\njoin: [%s]\ncluster: {name: demo, key_file: %q}\n", i+1, r.gossip[i], strings.Join(r.gossip, ", "), r.key)
}

// room is what each node may keep on its disk, in bytes. Several have room for all files
// together, and none of them has by itself, unless these are few.
func (d *demo) room() int64 {
	const least, alone = 256 << 20, 4 << 30
	if d.Nodes == 1 || d.own {
		return alone
	}
	return max(least, total(d.files)*3/2/int64(d.Nodes))
}

// gathered waits until each node reads from all of them: what is read before it does may lie
// with another one than is asked for it later.
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
