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
)

// span is a range of bytes; n < 0: to the end.
type span struct{ off, n int64 }

// treePath is the path in the tree that p means: a URL that a link covers, a
// path below one of the mounts, else p itself.
func (n *Node) treePath(p string) (string, error) {
	if strings.Contains(p, "://") {
		return n.links.pathOf(p)
	}
	p = cleanPath(p)
	for _, m := range n.Mounts() {
		if rest, ok := below(p, m.Dir); ok {
			return cleanPath(m.Prefix + "/" + rest), nil
		}
	}
	if sole := n.links.sole(); sole != "/" {
		if _, ok := below(p, sole); !ok {
			return cleanPath(sole + "/" + p), nil
		}
	}
	return p, nil
}

// below gives what of p lies below dir.
func below(p, dir string) (string, bool) {
	if p == dir || dir == "/" {
		return strings.TrimPrefix(p, dir), true
	}
	return strings.CutPrefix(p, dir+"/")
}

func (n *Node) resolve(ctx context.Context, asked string) (string, namespace.Node, error) {
	p, err := n.treePath(asked)
	if err != nil {
		return "", namespace.Node{}, err
	}
	node, err := n.tree.Resolve(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		return "", namespace.Node{}, &Error{Kind: KindNotFound, Message: asked + ": no such file or directory"}
	}
	if err != nil {
		return "", namespace.Node{}, fmt.Errorf("look up %s: %w", asked, explained(err))
	}
	return p, node, nil
}

// list calls each for what lies in the directory asked for, or below it.
func (n *Node) list(ctx context.Context, asked string, recursive bool, each func(Entry) error) error {
	p, node, err := n.resolve(ctx, asked)
	if err != nil {
		return err
	}
	if !node.Dir {
		return each(entryOf(path.Base(p), node))
	}
	if recursive {
		return explained(n.tree.Walk(ctx, p, func(at string, x namespace.Node) error {
			rest, _ := below(cleanPath(at), p)
			rest = strings.TrimPrefix(rest, "/")
			if rest == "" {
				return nil
			}
			return each(entryOf(rest, x))
		}))
	}
	var failed error
	err = n.tree.ReadDir(ctx, node.ID, "", func(x namespace.Node) bool {
		failed = each(entryOf(x.Name, x))
		return failed == nil
	})
	return errors.Join(failed, explained(err))
}

func entryOf(p string, x namespace.Node) Entry {
	e := Entry{Path: p, Dir: x.Dir, ModTime: x.ModTime}
	if !x.Dir {
		e.Size, e.ModTime = x.Object.Size, x.Object.ModTime
	}
	return e
}

func (n *Node) stat(ctx context.Context, asked string) (*Stat, error) {
	p, x, err := n.resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	s := &Stat{Entry: entryOf(p, x), Inode: x.ID, TTLMS: int64(x.TTL / time.Millisecond)}
	if x.Dir {
		return s, nil
	}
	o := x.Object
	s.Link, s.Key, s.ETag = o.Link, o.Key, o.ETag
	s.Version, s.Cacheable, s.Blocks = hex.EncodeToString(o.Version[:]), o.Cacheable(), o.Blocks()
	s.Held = n.held(&o)
	return s, nil
}

// mostCounted bounds the look-ups of a stat on a huge object.
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

func (n *Node) usage(ctx context.Context, asked string) (*Usage, error) {
	p, x, err := n.resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	u := &Usage{Path: asked}
	if !x.Dir {
		u.Files, u.Bytes = 1, x.Object.Size
		return u, nil
	}
	err = n.tree.Walk(ctx, p, func(at string, x namespace.Node) error {
		switch {
		case !x.Dir:
			u.Files++
			u.Bytes += x.Object.Size
		case cleanPath(at) != p:
			u.Dirs++
		}
		return nil
	})
	return u, explained(err)
}

// catBuffer is what one step of cat copies.
const catBuffer = 1 << 20

func (n *Node) cat(ctx context.Context, asked string, r span, w io.Writer) error {
	_, x, err := n.resolve(ctx, asked)
	switch {
	case err != nil:
		return err
	case x.Dir:
		return usage("%s is a directory", asked)
	}
	o := x.Object
	end := o.Size
	if r.n >= 0 {
		end = min(end, r.off+r.n)
	}
	reader := cache.NewReader(n.tiers.reads, &o, cache.ReaderOptions{})
	defer reader.Close()
	buf := make([]byte, min(catBuffer, max(0, end-r.off)))
	for off := r.off; off < end; {
		got, err := reader.ReadAt(ctx, buf[:min(int64(len(buf)), end-off)], off)
		if _, err := w.Write(buf[:got]); err != nil {
			return fmt.Errorf("write %s: %w", asked, err)
		}
		off += int64(got)
		if err != nil && !(errors.Is(err, io.EOF) && off >= end) {
			return fmt.Errorf("read %s at %d: %w", asked, off, explained(err))
		}
	}
	return nil
}
