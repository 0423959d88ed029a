package namespace

import (
	"context"
	"fmt"
	"math"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// File finds the file of a whole key of a link, byte for byte, whatever its name in the mount is. The
// error *Absent means that the tree has none.
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

// Prefix finds the directory of all keys of a link that begin with prefix, which ends in "/" or is the
// link's own. The error *Absent means that the tree has none.
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

// KeyOf returns the key that a name in a directory has at its link's origin, whether or not there is an object. The error is
// that of KeyIn, and syscall.EPERM where the directory, or what stands at the name, is made
// by links.
func (t *Tree) KeyOf(dir uint64, name string) (link, key string, err error) {
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return "", "", err
	}
	defer d.release()
	if _, ok := t.links.Load().below[d.hash][name]; ok || d.link == nil {
		return "", "", fmt.Errorf("%s: it is the configuration's: %w", name, syscall.EPERM)
	}
	key, err = KeyIn(d.prefix(), name)
	return d.link.Name, key, err
}

// DirKey returns what the keys of all names in a directory begin with. The error is syscall.EPERM for a directory that is made by
// links.
func (t *Tree) DirKey(dir uint64) (link, prefix string, err error) {
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return "", "", err
	}
	defer d.release()
	if d.link == nil {
		return "", "", fmt.Errorf("the directory is the configuration's: %w", syscall.EPERM)
	}
	return d.link.Name, d.prefix(), nil
}

// KeyIn is the key that a name has behind a prefix, which ends in "/" or is empty. The error is syscall.EINVAL for a name that no
// key can have, and syscall.ENAMETOOLONG if it or its key is too long.
func KeyIn(prefix, name string) (key string, err error) {
	m, ok := record.ParseName(name)
	switch {
	case len(name) > record.MaxName || ok && len(prefix+m.Segment+"/") > record.MaxKey:
		return "", fmt.Errorf("a name has at most %d bytes, and a key %d: %w", record.MaxName, record.MaxKey, syscall.ENAMETOOLONG)
	case !ok || m.Hashed || m.Segment == "" || !record.Representable(prefix+m.Segment+"/"):
		return "", fmt.Errorf("no key can be named %q: %w", name, syscall.EINVAL)
	}
	return prefix + m.Segment, nil
}

// Beside is the name of a file where a directory has its own.
func Beside(name string) string { return name + record.BesideTag }

// IsBeside reports whether a name is one that Beside gives.
func IsBeside(name string) bool { return strings.HasSuffix(name, record.BesideTag) }

// NewID returns a node id that no name has: a front end gives it to a file that is no object yet.
func (t *Tree) NewID() (uint64, error) { return t.ids.Next() }

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

// Keys calls each for what a link's origin has directly below a prefix, in the order of keys, until
// each returns false. It gives all keys, whatever their names in mounts are, and also those that other
// links hide in mounts. The prefix ends in "/" or is the link's own. Directories are Objects of
// PrefixSize with keys that end in "/".
//
// behind is the last part of a key; the keys after it are given. With "/" at its end it names a
// directory, and all below that is skipped. Names come as those of ReadDir do. hidden counts the keys
// there that cannot be given, as far as they are known then, and the given ones that are doubted.
//
// The error *Absent means that there is no such directory. Another error means that the tree has no
// such link, or cannot have the prefix: the origin may have keys there all the same.
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
		if e.Doubted || !e.Dir && l.differs.Load() != nil { // it may have changed or gone, or the origin lists another ETag
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

// Asks reports whether Keys of a prefix would have to ask the origin or the owner. With ahead it begins
// to list now, for a reader that comes soon. A strict link's directory is not listed ahead, since it
// would be listed again then.
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

// Below calls each for everything below a directory: each directory before its contents, names in the
// bucket's order, with paths that begin with "/". It lists some directories ahead. It also counts the
// keys there that are hidden.
func (t *Tree) Below(ctx context.Context, dir uint64, each func(path string, n Node) error) (hidden int64, err error) {
	w := walker{t: t, each: each}
	err = w.walk(ctx, "", dir)
	return w.hidden, err
}

// MountName is the name in a mount of a file whose key ends in a segment, where no directory stands beside it.
func MountName(segment string) string { return record.MountName(segment, false) }
