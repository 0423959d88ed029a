package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/watch"
)

// holding returns the link that holds what a URL names, and the key as the link's Objects have it.
func (ls *links) holding(url string) (found *link, key string, err error) {
	asked := Origin{URL: url}.WithEnvironment()
	bucket, whole := splitURL(url)
	best := -2 // the length of the longest prefix; -1 means a link that begins at the key
	for _, l := range ls.list() {
		at, prefix := splitURL(l.Origin.URL)
		if prefix != "" && !strings.HasSuffix(prefix, "/") {
			prefix += "/"
		}
		rest, ok := strings.CutPrefix(whole, prefix)
		good := len(prefix)
		if whole+"/" == prefix { // the URL means all that the link shows, or the object of that name
			rest, ok, good = "", true, -1
		}
		if at == bucket && ok && good > best && (asked.Endpoint == "" || asked.Endpoint == l.Origin.Endpoint) {
			found, key, best = l, l.prefix+rest, good
		}
	}
	if found == nil {
		return nil, "", &admin.Error{Kind: admin.KindNoLink, Message: "no link of this node leads to " + url}
	}
	return found, key, nil
}

// keyed is what a URL means: the object of exactly that key, and the directory of the keys below it.
type keyed struct {
	key  string
	file *namespace.Node // nil if there is none
	dir  *namespace.Node // nil if there is none, or if it was not asked for
}

// keyed finds what a URL means. The tree may not know an object that no listing can show. For such a key the
// origin is asked directly.
func (n *Node) keyed(ctx context.Context, asked string, dirs bool) (k keyed, err error) {
	l, key, err := n.links.holding(asked)
	if err != nil {
		return k, err
	}
	k.key = key
	whole := key == l.prefix || strings.HasSuffix(key, "/")
	if dirs {
		prefix := key
		if !whole {
			prefix += "/"
		}
		k.dir, err = found(n.tree.Prefix(ctx, l.name, prefix))
	}
	if err == nil && key != "" {
		k.file, err = found(n.tree.File(ctx, l.name, key))
	}
	if err == nil && k.file == nil && k.dir == nil && key != "" {
		k.file, err = l.head(ctx, key)
	}
	switch {
	case err != nil:
		return k, fmt.Errorf("look up %s: %w", asked, watch.Explained(err))
	case k.file == nil && k.dir == nil && whole && !dirs:
		return k, usage("%s is a prefix, not an object (ls lists it)", asked)
	case k.file == nil && k.dir == nil && !dirs && n.isPrefix(ctx, l, key):
		return k, usage("%s is a prefix, not an object (ls lists it)", asked)
	case k.file == nil && k.dir == nil:
		return k, &admin.Error{Kind: admin.KindNotFound, Message: asked + ": no such file or key"}
	}
	return k, nil
}

// isPrefix reports whether there are keys below a key that is no object itself.
func (n *Node) isPrefix(ctx context.Context, l *link, key string) bool {
	dir, err := found(n.tree.Prefix(ctx, l.name, key+"/"))
	return err == nil && dir != nil
}

// found turns fs.ErrNotExist from a look-up into a nil Node without an error.
func found(x namespace.Node, err error) (*namespace.Node, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return &x, err
}

// head asks the origin itself for a key.
func (l *link) head(ctx context.Context, key string) (*namespace.Node, error) {
	o, err := l.origin.Head(ctx, key)
	return found(namespace.Node{Object: o, ModTime: o.ModTime}, err) // a HEAD gives whole seconds
}

// one returns the node that stat shows. An object goes before the prefix of the same name.
func (k *keyed) one() namespace.Node {
	if k.file != nil {
		return *k.file
	}
	return *k.dir
}

// listKeys calls each for the keys that a URL leads to: the object of that key, and what lies below it. Where
// there is such an object, what lies below is shown as one group, and with recursive also key by key.
func (n *Node) listKeys(ctx context.Context, asked string, recursive bool, each func(admin.Entry) error) (hidden int64, err error) {
	k, err := n.keyed(ctx, asked, true)
	if err != nil {
		return 0, err
	}
	base := k.key
	if !strings.HasSuffix(base, "/") && k.file != nil {
		base = base[:strings.LastIndexByte(base, '/')+1]
		if err := each(k.entry(base, k.file)); err != nil || k.dir == nil {
			return 0, err
		}
		group := *k.dir
		group.Object = hearth.Object{Key: k.key + "/", Size: hearth.PrefixSize}
		if err := each(k.entry(base, &group)); err != nil || !recursive {
			return 0, err
		}
	} else if base != "" && !strings.HasSuffix(base, "/") {
		base += "/"
	}
	if k.dir == nil { // an object whose key ends in "/", which no listing shows
		return 0, each(k.entry("", k.file))
	}
	if recursive {
		hidden, err = n.tree.Below(ctx, k.dir.ID, func(_ string, x namespace.Node) error {
			return k.each(base, n.sized(ctx, x), each)
		})
		return hidden, watch.Explained(err)
	}
	return n.listDir(ctx, k.dir.ID, func(x namespace.Node) error { return k.each(base, x, each) })
}

// each skips what other links put into the tree.
func (k *keyed) each(base string, x namespace.Node, each func(admin.Entry) error) error {
	if x.Object.Key == "" {
		return nil
	}
	return each(k.entry(base, &x))
}

// entry returns one line of a listing of keys: the key without base, and without the "/" that a directory's
// line gets. The object of the prefix itself has an empty line.
func (*keyed) entry(base string, x *namespace.Node) admin.Entry {
	return entryOf(strings.TrimPrefix(x.Object.Key, base), *x)
}

// listDir reads one directory, and counts the hidden keys in it.
func (n *Node) listDir(ctx context.Context, id uint64, each func(namespace.Node) error) (hidden int64, err error) {
	var failed error
	err = n.tree.ReadDir(ctx, id, "", func(x namespace.Node) bool {
		failed = each(n.sized(ctx, x))
		return failed == nil
	})
	if err = errors.Join(failed, watch.Explained(err)); err != nil {
		return 0, err
	}
	return n.tree.Hidden(id)
}
