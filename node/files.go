package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/watch"
)

// treePath returns the path in the tree that p means. A path below a mount becomes the path that is mounted
// there. Any other path is p itself, or p within the link that needs no naming (links.home).
func (n *Node) treePath(p string) string {
	p = cleanPath(p)
	for _, m := range n.Mounts() {
		if rest, ok := belowPath(p, m.Dir); ok {
			return cleanPath(m.Prefix + "/" + rest)
		}
	}
	return n.links.within(p)
}

func (n *Node) resolve(ctx context.Context, asked string) (string, namespace.Node, error) {
	if isURL(asked) {
		k, err := n.keyed(ctx, asked, true)
		if err != nil {
			return "", namespace.Node{}, err
		}
		return asked, k.one(), nil
	}
	p := n.treePath(asked)
	node, err := n.tree.Resolve(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		return "", namespace.Node{}, &admin.Error{Kind: admin.KindNotFound, Message: asked + ": no such file or directory" + n.links.hint(asked, p)}
	}
	if err != nil {
		return "", namespace.Node{}, fmt.Errorf("look up %s: %w", asked, watch.Explained(err))
	}
	return p, node, nil
}

// list calls each for what lies in the directory asked for, or with recursive for all below it. It counts the
// keys there that have no name.
func (n *Node) list(ctx context.Context, asked string, recursive bool, each func(admin.Entry) error) (hidden int64, err error) {
	if isURL(asked) {
		return n.listKeys(ctx, asked, recursive, each)
	}
	p, node, err := n.resolve(ctx, asked)
	if err != nil {
		return 0, err
	}
	if !node.Dir {
		return 0, each(entryOf(path.Base(p), node))
	}
	if recursive {
		hidden, err = n.tree.Below(ctx, node.ID, func(at string, x namespace.Node) error {
			return each(entryOf(strings.TrimPrefix(at, "/"), n.sized(ctx, x)))
		})
		return hidden, watch.Explained(err)
	}
	return n.listDir(ctx, node.ID, func(x namespace.Node) error { return each(entryOf(x.Name, x)) })
}

// sized returns x with a size. A name that was listed without a size, or with one that cannot be believed, is
// looked up.
func (n *Node) sized(ctx context.Context, x namespace.Node) namespace.Node {
	if x.Dir || !x.Unsure || !x.Object.Vague() {
		return x
	}
	found, err := n.tree.File(ctx, x.Object.Link, x.Object.Key)
	if err != nil {
		return x // the name as it was listed
	}
	return found
}

func entryOf(p string, x namespace.Node) admin.Entry {
	e := admin.Entry{Path: p, Key: x.Object.Key, Dir: x.Dir, ModTime: x.ModTime}
	if x.Dir {
		e.Path = strings.TrimSuffix(p, "/")
	} else {
		e.Size = x.Object.Size
	}
	e.KeepBytes()
	return e
}

func (n *Node) stat(ctx context.Context, asked string) (*admin.Stat, error) {
	p, x, err := n.resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	s := &admin.Stat{Entry: entryOf(p, x), Inode: x.ID, TTLMS: int64(x.TTL / time.Millisecond)}
	if x.Dir {
		if p == "/" {
			s.Path = p // the root's name; elsewhere "/" ends a prefix
		}
		return s, nil
	}
	o := x.Object
	s.Link, s.ETag = o.Link, o.ETag
	s.Version, s.Cacheable, s.Blocks = hex.EncodeToString(o.Version[:]), o.Cacheable(), o.Blocks()
	s.Held = n.held(&o)
	return s, nil
}

// mostCounted bounds the number of blocks that a stat of a huge object looks up.
const mostCounted = 1 << 16

// held counts an object's blocks in each tier.
func (n *Node) held(o *hearth.Object) map[string]int64 {
	counts := map[string]int64{}
	tiers := map[string]interface{ Has(hearth.ID) bool }{"ram": n.mem}
	if n.disk != nil {
		tiers["disk"] = n.disk
	}
	for name, tier := range tiers {
		counts[name] = 0
		for i := range min(o.Blocks(), mostCounted) {
			if tier.Has(o.Block(i).ID()) {
				counts[name]++
			}
		}
	}
	return counts
}

func (n *Node) usage(ctx context.Context, asked string) (*admin.Usage, error) {
	u := &admin.Usage{Path: asked}
	if len(n.volumes.All()) > 0 {
		u.VolumeBytes = new(int64)
	}
	if isURL(asked) {
		k, err := n.keyed(ctx, asked, true)
		if err == nil && k.file != nil {
			n.count(u, *k.file)
		}
		if err == nil && k.dir != nil {
			err = n.addBelow(ctx, u, k)
		}
		return u, err
	}
	_, x, err := n.resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	if !x.Dir {
		n.count(u, x)
		return u, nil
	}
	return u, n.addBelow(ctx, u, keyed{dir: &x})
}

// addBelow adds up what lies below a directory. The caller has already counted k's own object.
func (n *Node) addBelow(ctx context.Context, u *admin.Usage, k keyed) (err error) {
	u.Hidden, err = n.tree.Below(ctx, k.dir.ID, func(_ string, x namespace.Node) error {
		if k.file == nil || k.file.ID != x.ID {
			n.count(u, n.sized(ctx, x))
		}
		return nil
	})
	return watch.Explained(err)
}

func (n *Node) count(u *admin.Usage, x namespace.Node) {
	if x.Dir {
		u.Dirs++
		return
	}
	u.Files++
	u.Bytes += x.Object.Size
	for i := int64(0); u.VolumeBytes != nil && i < x.Object.Blocks(); i++ {
		if b := x.Object.Block(i); n.volumes.Has(b.ID()) {
			*u.VolumeBytes += int64(b.Len())
		}
	}
}

// catBuffer is how many bytes one step of cat copies.
const catBuffer = 1 << 20

// readable returns the file that cat reads. For a URL that is the object of exactly that key.
func (n *Node) readable(ctx context.Context, asked string) (namespace.Node, error) {
	if !isURL(asked) {
		_, x, err := n.resolve(ctx, asked)
		return x, err
	}
	k, err := n.keyed(ctx, asked, false)
	if err != nil {
		return namespace.Node{}, err
	}
	return k.one(), nil
}

func (n *Node) cat(ctx context.Context, asked string, r admin.Span, w io.Writer) error {
	x, err := n.readable(ctx, asked)
	switch {
	case err != nil:
		return err
	case x.Dir:
		return usage("%s is a directory", asked)
	}
	o := x.Object
	end := o.Size
	if r.N >= 0 {
		end = min(end, r.Off+r.N)
	}
	reader := cache.NewReader(n.tiers.Reads, &o, cache.ReaderOptions{Until: end})
	defer reader.Close()
	buf := make([]byte, min(catBuffer, max(0, end-r.Off)))
	for off := r.Off; off < end; {
		got, err := reader.ReadAt(ctx, buf[:min(int64(len(buf)), end-off)], off)
		if got > 0 { // an empty Write would begin the answer, and an error could no longer be sent
			if _, err := w.Write(buf[:got]); err != nil {
				return fmt.Errorf("write %s: %w", asked, err)
			}
		}
		off += int64(got)
		if err != nil && !(errors.Is(err, io.EOF) && off >= end) {
			return fmt.Errorf("read %s at %d: %w", asked, off, watch.Explained(err))
		}
	}
	return nil
}
