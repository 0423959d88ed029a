package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/watch"
)

// serveRefresh asks the origin again for what a path names.
func (n *Node) serveRefresh(r *http.Request) (any, error) {
	return n.refresh(r.Context(), r.FormValue("path"))
}

// refresh asks the origin for a name, as after a write of it. The known directories at and below it are listed
// again. What nobody has asked for yet stays unlisted. Mounts and the other nodes of a ring hear of what
// changed.
func (n *Node) refresh(ctx context.Context, asked string) (*admin.Refreshed, error) {
	l, key, err := n.linkAndKey(ctx, asked)
	if err != nil {
		return nil, err
	}
	since := n.tree.Now()
	if key = strings.TrimSuffix(key, "/"); len(key) > len(l.prefix) {
		n.tree.Written(ctx, l.name, key)
	}
	_, x, err := n.resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	r := &admin.Refreshed{Path: asked, Dir: x.Dir}
	switch {
	case x.Dir:
		err = n.relist(ctx, x.ID, since, r)
	case x.TTL == 0 && !l.strict(): // the origin could not be asked, and the last known name is shown
		err = watch.Explained(l.probe(ctx))
	default:
		r.Names = 1
	}
	if err != nil {
		return nil, fmt.Errorf("refresh %s: %w", asked, watch.Explained(err))
	}
	return r, nil
}

// relist lists a directory again, and each directory below it in which any name is known.
func (n *Node) relist(ctx context.Context, dir uint64, since int64, r *admin.Refreshed) error {
	if err := n.tree.Refresh(ctx, dir, since); err != nil {
		return err
	}
	r.Listed++
	var below []uint64
	known := func(dir uint64, each func(namespace.Node) bool) error {
		return n.tree.ReadDir(namespace.Quiet(ctx), dir, "", each)
	}
	err := known(dir, func(x namespace.Node) bool {
		if r.Names++; x.Dir {
			below = append(below, x.ID)
		}
		return true
	})
	for _, id := range below {
		any := false
		if err == nil {
			err = known(id, func(namespace.Node) bool { any = true; return false })
		}
		if err == nil && any {
			err = n.relist(ctx, id, since, r)
		}
		if errors.Is(err, fs.ErrNotExist) { // it is gone
			err = nil
		}
	}
	return err
}

// linkAndKey returns the link that a path or URL lies in, and the key there, even if nothing is known of it.
func (n *Node) linkAndKey(ctx context.Context, asked string) (*link, string, error) {
	if isURL(asked) {
		return n.links.holding(asked)
	}
	p := n.treePath(asked)
	l, rest := n.links.at(p)
	if l == nil {
		if _, err := n.links.forMount(p); err != nil {
			return nil, "", err
		}
		return nil, "", usage("%s is a directory that the links make: name one of them: %s", asked, n.links.paths())
	}
	if x, err := n.tree.Resolve(namespace.Quiet(ctx), p); err == nil && strings.HasPrefix(x.Object.Key, l.prefix) {
		return l, x.Object.Key, nil
	}
	key := l.prefix
	for name := range strings.SplitSeq(rest, "/") {
		m, ok := record.ParseName(name)
		if !ok && name != "" {
			return nil, "", &admin.Error{Kind: admin.KindNotFound, Message: asked + ": no such file or directory"}
		}
		key += m.Segment + "/"
	}
	return l, key, nil
}
