package namespace

import (
	"context"
	"strings"

	"github.com/hearthfs/hearth/namespace/record"
)

// File finds the file of a whole key of a link, byte for byte and whatever its
// name in the mount is. *Absent: the tree has none.
func (t *Tree) File(ctx context.Context, link, key string) (Node, error) {
	dir, last := key[:strings.LastIndexByte(key, '/')+1], key[strings.LastIndexByte(key, '/')+1:]
	d, err := t.Prefix(ctx, link, dir)
	if err != nil {
		return Node{}, err
	}
	n, err := t.segment(ctx, d.ID, record.Meaning{Segment: last})
	if err == nil && n.Dir { // the file beside it has another name in the mount
		n, err = t.segment(ctx, d.ID, record.Meaning{Segment: last, File: true})
	}
	return n, err
}

// Prefix finds the directory of all keys of a link that begin with prefix, which
// ends in "/" or is the link's own. *Absent: the tree has none.
func (t *Tree) Prefix(ctx context.Context, link, prefix string) (Node, error) {
	l := t.links.Load().named(link)
	if l == nil || !strings.HasPrefix(prefix, l.Prefix) {
		return Node{}, &Absent{}
	}
	id, err := t.placeID(place{link: l})
	if err != nil {
		return Node{}, err
	}
	n, err := t.Node(ctx, id)
	for rest := prefix[len(l.Prefix):]; rest != "" && err == nil; {
		var segment string
		segment, rest, _ = strings.Cut(rest, "/")
		if n, err = t.segment(ctx, n.ID, record.Meaning{Segment: segment}); err == nil && !n.Dir {
			err = &Absent{TTL: n.TTL}
		}
	}
	return n, err
}

// segment looks up what a segment of a key means in a directory.
func (t *Tree) segment(ctx context.Context, dir uint64, m record.Meaning) (Node, error) {
	t.stats.lookups.Add(1)
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return Node{}, err
	}
	defer d.release()
	if d.link == nil || !record.Representable(d.prefix()+m.Segment+"/") {
		return Node{}, &Absent{}
	}
	return t.lookup(ctx, d, m)
}

// Hidden counts the keys right below a directory that its listing could not show.
func (t *Tree) Hidden(dir uint64) (int64, error) {
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return 0, err
	}
	defer d.release()
	return int64(d.state.Load().refused), nil
}

// Below calls each for everything below a directory: each directory before what is
// in it, names in the bucket's order, paths from "/" on. Directories that are to be
// listed are listed some at a time ahead of that. It also counts the keys that are
// hidden there.
func (t *Tree) Below(ctx context.Context, dir uint64, each func(path string, n Node) error) (hidden int64, err error) {
	w := walker{t: t, each: each}
	err = w.walk(ctx, "", dir)
	return w.hidden, err
}
