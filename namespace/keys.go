package namespace

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/hearthfs/hearth"
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

// Keys calls each for what a link's origin has right below a prefix, which ends in "/" or is
// the link's own, in the order of keys, until each returns false: whatever mounts call it, and
// what other links hide in them. Directories are Objects of PrefixSize, their keys ending in
// "/". behind is the last part of a key, and they begin behind it; with "/" at its end it is a
// directory's, and all of that is passed. Names come as of ReadDir. hidden counts the keys
// there that it cannot give, as far as is known then, and those given that are doubted. *Absent: there is no such directory; an
// origin may have keys all the same where the tree has no such link, or cannot have the prefix,
// and then it is another error.
func (t *Tree) Keys(ctx context.Context, link, prefix, behind string, each func(*hearth.Object) bool) (hidden int64, err error) {
	l := t.links.Load().named(link)
	if !l.has(prefix) {
		return 0, fmt.Errorf("keys below %q of link %q: the tree does not have them", prefix, link)
	}
	if _, err := t.Prefix(ctx, link, prefix); err != nil {
		return 0, err
	}
	id, err := t.placeID(place{link: l, path: prefix[len(l.Prefix):]})
	if err != nil {
		return 0, err
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return 0, err
	}
	defer d.release()
	r, doubted := t.keyReader(d, behind, each), int64(0)
	tell := r.tell
	r.tell = func(sort string, e *record.Entry) bool {
		if e.Doubted || !e.Dir && l.differs.Load() != nil { // perhaps it is another, or gone; or the origin lists another ETag
			doubted++
		}
		return tell(sort, e)
	}
	err = r.since(ctx, math.MaxInt64, "")
	if l := d.running.Load(); l != nil { // the state has them once it ends
		hidden = l.refused.Load()
	}
	return max(hidden, int64(d.state.Load().refused)) + doubted, err
}

// Asks reports whether Keys of a prefix would have its names asked for. With ahead that begins
// now, for one who will read them soon; a strict link's would be asked for again then, and are not.
func (t *Tree) Asks(link, prefix string, ahead bool) bool {
	l := t.links.Load().named(link)
	if !l.has(prefix) {
		return false
	}
	id, ok, err := t.idOf(place{link: l, path: prefix[len(l.Prefix):]})
	if !ok || err != nil {
		return true
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return true
	}
	defer d.release()
	strict := l.Freshness.Mode == Strict
	switch {
	case strict:
	case d.listingLeft(t) > 0, d.running.Load() != nil, d.whole(t) && l.believes() && l.down.Load() != nil:
		return false
	case ahead:
		t.kick(d)
	}
	return true
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
