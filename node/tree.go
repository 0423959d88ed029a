package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/state"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/origin"
)

func compare(a, b string) int { return cmp.Compare(a, b) }

// strict reports whether each open asks the origin.
func (l *link) strict() bool { return l.freshness.Mode == namespace.Strict }

// names is the tree, and a wait group for the notes of node ids that are being written. The tree asks for notes
// until it is closed.
type names struct {
	*namespace.Tree
	noting sync.WaitGroup
}

func (n *names) close() error {
	defer n.noting.Wait()
	return n.Tree.Close()
}

func (n *Node) openTree() error {
	o := namespace.Options{Events: n.treeEvents(), FirstID: state.FirstNodeID(n.dirs.Paths()), Clock: n.config.Clock, Outlasts: n.config.Keeper != nil, Held: n.config.Keeper.Has()}
	o.Events.Reserved = func(upTo uint64) {
		n.tree.noting.Go(func() {
			for _, dir := range n.dirs.Paths() {
				if err := state.NoteNodeIDs(dir, upTo); err != nil {
					n.events.Trouble("node ids "+dir, "node ids are not noted", "dir", dir, "cause", err)
				}
			}
		})
	}
	for _, l := range n.links.list() {
		o.Links = append(o.Links, n.inTree(l))
	}
	if n.disk != nil {
		o.Next = n.disk.NamesDirs
		// The directory to which the names moved before the last restart, else the first one.
		if dirs := n.disk.NamesDirs(); len(dirs) > 0 {
			o.Dir = dirs[max(0, slices.IndexFunc(dirs, namespace.Kept))]
		}
	}
	var err error
	n.tree.Tree, err = namespace.Open(o)
	return err
}

// inTree returns the link as the namespace needs it. list decorates its origin.
func (l *link) inTree(list func(namespace.Origin) namespace.Origin) namespace.Link {
	n := namespace.Link{Path: l.Path, Name: l.name, Prefix: l.prefix, Origin: list(l.origin),
		Freshness: l.freshness, StaleIfError: !l.FailStale}
	if named, ok := l.origin.(interface{ Identity() string }); ok {
		n.Identity = named.Identity()
	}
	if d := l.found.Load(); d != nil {
		n.Differs, n.DiffersBy = d.key, d.says
	}
	return n
}

// addToTree adds a link to the tree that was made at run time.
func (n *Node) addToTree(l *link) error { return n.tree.AddLink(n.inTree(l)) }

// mostlyLarge reports whether a sample of the first keys below a mount's root is mostly large objects
// (fuse.MostlyLarge). It samples once per link and prefix, and keeps the result in the cache directory.
func (n *Node) mostlyLarge(ctx context.Context, x *mounted) (bool, error) {
	_, rest := n.links.at(x.Prefix)
	prefix := x.link.prefix
	if rest != "" {
		prefix += rest + "/"
	}
	key := x.link.Origin.Endpoint + " " + strings.TrimRight(x.link.Origin.URL, "/") + " " + prefix
	if large, ok := n.judged.Get(key); ok {
		return large, nil
	}
	sizes, err := state.SampleKeys(ctx, x.link.origin, prefix)
	if err != nil && x.link.doubted.Load() != nil && origin.Away(err) {
		return false, nil // not judged yet; the next mount tries again
	}
	if err != nil {
		return false, watch.Explained(err)
	}
	large := fuse.MostlyLarge(sizes)
	if err := n.judged.Put(key, large); err != nil {
		n.events.Trouble("open modes", "open mode is not kept", "cause", err)
	}
	return large, nil
}
