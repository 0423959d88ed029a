package node

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hearthfs/hearth/cache/disk/layout"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/jobs"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/warmup"
)

// warmUps are the node's jobs, and what the disk tier must not give up for them.
type warmUps struct {
	*jobs.Jobs
	pins *warmup.Pins
}

// openJobs goes on with the warm-ups that are not over.
func (n *Node) openJobs() (err error) {
	p := jobs.Parts{Source: watch.WarmUp{Source: n.tiers.Own}, Tree: n.tree.Tree, Rooms: n.rooms, Find: n.find, Canonical: n.canonical,
		Check:   func(ctx context.Context, asked string) error { _, err := n.find(ctx, n.canonical(asked)); return err },
		Readers: n.readers, Throttled: n.throttled, Connections: n.forWarmUp,
		Explain: func(err error) string { return explained(err).Error() },
		Log:     func(what string, err error) { n.events.Trouble(what, what, "cause", err) }}
	if n.disk != nil {
		p.Disk, p.Pins, p.Dir = n.disk, n.jobs.pins, filepath.Join(n.dirs.First(), layout.Jobs)
	}
	n.jobs.Jobs, err = jobs.Open(p)
	return err
}

// canonical is what asked means also without the mounts of now.
func (n *Node) canonical(asked string) string {
	if isURL(asked) {
		return asked
	}
	return n.treePath(asked)
}

// find is what a canonical path or a URL means: a file, a directory, or one of each.
func (n *Node) find(ctx context.Context, target string) ([]namespace.Node, error) {
	if !isURL(target) {
		x, err := n.tree.Resolve(ctx, target)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{Kind: KindNotFound, Message: target + ": no such file or directory" + n.links.hint(target)}
		}
		if err != nil {
			return nil, explained(err)
		}
		return []namespace.Node{x}, nil
	}
	k, err := n.keyed(ctx, target, true)
	if err != nil {
		return nil, err
	}
	var all []namespace.Node
	if k.file != nil && (k.dir == nil || !strings.HasSuffix(k.key, "/")) { // else it lies in the directory
		all = append(all, *k.file)
	}
	if k.dir != nil {
		all = append(all, *k.dir)
	}
	return all, nil
}

// rooms are the bytes that each cache directory may hold beside its names.
func (n *Node) rooms() (all []int64) {
	names := n.tree.Stats()
	for _, d := range n.disk.Stats().Dirs {
		most := roomOf(d).Limit
		if strings.HasPrefix(names.Where, d.Path+"/") {
			most -= names.DiskBytes
		}
		all = append(all, max(0, most))
	}
	return all
}

// readers counts what the kernel has asked for readers so far.
func (n *Node) readers() (sum int64) {
	for _, x := range n.mounts.standing() {
		r := x.server.Stats().Requests
		sum += r["read"] + r["lookup"]
	}
	return sum
}

// throttled counts the answers of origins that asked to slow down.
func (n *Node) throttled() (sum int64) {
	for _, l := range n.links.list() {
		sum += l.origin.Stats().Throttled
	}
	return sum
}

// forWarmUp is how many connections a warm-up may use: those of the link that has the
// fewest, less the eighth that names have.
func (n *Node) forWarmUp() int {
	most := 0
	for _, l := range n.links.list() {
		c := l.Origin.Connections
		if c <= 0 {
			c = 64
		}
		if most == 0 || c < most {
			most = c
		}
	}
	return max(1, most-most/8)
}
